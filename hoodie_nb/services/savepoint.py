"""Savepoints by hand: keep the snapshot as of a commit, or stop keeping it."""

from hoodie_nb.actions.savepoints import Savepoint, read_savepoint
from hoodie_nb.commit import savepoints as actions
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled
from hoodie_nb.view.moments import parse_time


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
