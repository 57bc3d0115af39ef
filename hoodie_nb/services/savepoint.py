"""Savepoints by hand: keep the snapshot as of a commit, or stop keeping it."""

from hoodie_nb.commit import savepoints as actions
from hoodie_nb.events import EventLog
from hoodie_nb.runners.settling import settled
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.moments import parse_time
from hoodie_nb.table.savepoints import Savepoint, read_savepoint


def create(
    table: TableHandle, events: EventLog, moment: object, *, comment: str, user: str
) -> Savepoint:
    """Create a savepoint of a commit (None: the newest), after committing what is prepared."""
    settled(table, events)
    given = {"comment": comment, "user": user}
    done = actions.create_savepoint(table, moment, events.emit, **given)
    return read_savepoint(table, done)


def delete(table: TableHandle, events: EventLog, moment: object) -> None:
    """Delete a savepoint, given by its commit."""
    settled(table, events)
    actions.delete_savepoint(table, parse_time(moment, table.config), events.emit)
