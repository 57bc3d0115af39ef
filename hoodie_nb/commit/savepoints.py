"""Creating and deleting savepoints, as actions of the timeline.

*Fault tolerance*: a savepoint exists as soon as its completed file does, until that is deleted. The
next writer drops one that a crash left pending. The caller has recovered the table: no clean is
deleting the files of the snapshot.

*Source:* SavepointActionExecutor, SavepointHelpers.
"""

from hoodie_nb import failpoints
from hoodie_nb.actions.savepoints import (
    ACTION,
    commit_as_of,
    encode_savepoint,
    saved,
)
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import Emit
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.reading.read import slices_as_of
from hoodie_nb.timeline.timeline import Instant, State


def create_savepoint(
    table: TableHandle, moment: object, emit: Emit, *, comment: str, user: str
) -> Instant:
    """Save the snapshot as of a commit (None: the newest) from cleaning.

    Raises InvalidConfig if there is no such commit, if it has a savepoint, or if its files are
    gone.
    """
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
    emit("savepoint_created", instant=time17, files=sum(1 for _ in groups))
    return done


def delete_savepoint(table: TableHandle, time17: str, emit: Emit) -> None:
    """Delete the savepoint of a commit: the next clean may delete its files."""
    if all(instant.requested_time != time17 for instant in saved(table)):
        raise InvalidConfig(
            f"commit {time17} of {table.storage.root} has no savepoint: `table.savepoints()` "
            "lists them"
        )
    _remove(table, Instant(time17, ACTION, State.COMPLETED))
    emit("savepoint_deleted", instant=time17)


def drop_pending_savepoints(table: TableHandle) -> None:
    """Drop the savepoints that were not completed, or not deleted to the end."""
    for pending in table.timeline.pending():
        if pending.action == ACTION:
            _remove(table, pending)


def _remove(table: TableHandle, instant: Instant) -> None:
    table.timeline.withdraw(instant)
    failpoints.hit("savepoint.deleted.post")
    table.timeline.remove(instant)
