"""`table.savepoint()` and `delete_savepoint()`: which commits can be kept.

*Fault tolerance*: a savepoint exists as soon as its completed file does, until that is deleted. The
next writer drops one that a crash left pending. The table is recovered first: no clean is deleting
the files of the snapshot.

*Source:* SavepointActionExecutor, SavepointHelpers.
"""

from hoodie_nb import failpoints
from hoodie_nb.actions.savepoints import (
    ACTION,
    Savepoint,
    commit_as_of,
    encode_savepoint,
    read_savepoint,
    remove,
    saved,
)
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled
from hoodie_nb.reading.read import slices_as_of
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.view.moments import parse_time


def create(
    table: TableHandle, events: EventLog, moment: object, *, comment: str, user: str
) -> Savepoint:
    """Save the snapshot as of a commit (None: the newest), after committing what is prepared.

    Raises InvalidConfig if there is no such commit, if it has a savepoint, or if its files are
    gone.
    """
    settled(table, events)
    time17 = commit_as_of(table, moment).requested_time
    if any(instant.requested_time == time17 for instant in saved(table)):
        raise InvalidConfig(
            f"commit {time17} of {table.storage.root} has a savepoint: delete it "
            "first, to change its comment"
        )
    groups = slices_as_of(table, time17)
    content = encode_savepoint(groups, comment=comment, user=user, now_ms=table.clock.now_ms())
    pending = table.timeline.begin(Instant(time17, ACTION))
    failpoints.hit("savepoint.inflight.post")
    done = table.timeline.complete(pending, content)
    failpoints.hit("savepoint.completed.post")
    saved_now = read_savepoint(table, done)
    events.emit("savepoint_created", instant=time17, files=saved_now.files)
    return saved_now


def delete(table: TableHandle, events: EventLog, moment: object) -> None:
    """Delete the savepoint of a commit: the next clean may delete its files."""
    settled(table, events)
    time17 = parse_time(moment, table.config)
    if all(instant.requested_time != time17 for instant in saved(table)):
        raise InvalidConfig(
            f"commit {time17} of {table.storage.root} has no savepoint: `table.savepoints()` "
            "lists them"
        )
    remove(table, Instant(time17, ACTION, State.COMPLETED))
    events.emit("savepoint_deleted", instant=time17)
