"""Publishing with retries: a commit is tried several times before it fails.

A single disk error should not cause a complete rewrite. The steps are idempotent.
"""

import contextlib
from collections.abc import Sequence

from hoodie_nb.commit.prepared import drop_torn
from hoodie_nb.errors import CommitFailed, ConcurrentWriter, HoodieError
from hoodie_nb.events import EventLog
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.publish import publish_commit
from hoodie_nb.table.timeline import Instant, State

_RETRIES = 3


def publish(
    table: TableHandle,
    events: EventLog,
    instant: Instant,
    statuses: Sequence[WriteStatus],
    content: bytes,
) -> Instant:
    """Publish an instant's files and write its completed file; the last attempt's error counts."""
    for attempt in range(_RETRIES + 1):
        try:
            return publish_commit(table.storage, table.timeline, instant, statuses, content)
        except ConcurrentWriter as error:
            if table.timeline.completed(instant.requested_time) is None:
                raise  # the lock was lost before
            raise _lost_meanwhile(table, instant) from error
        except OSError as error:
            torn = drop_torn(table, [instant.requested_time])
            done = table.timeline.completed(instant.requested_time)
            if done is not None and table.timeline.read(done) == content:  # only not synced
                with contextlib.suppress(OSError):
                    table.storage.sync_folder(table.timeline.layout.folder)
                return done
            if attempt == _RETRIES or (isinstance(error, FileExistsError) and not torn):
                raise
            events.emit("commit_retried", instant=instant.requested_time, why=str(error))
            table.clock.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def not_published(table: TableHandle, instant_time: str, error: OSError) -> CommitFailed:
    """Return what is known of a commit whose publishing failed; `retryable` if it is undone."""
    try:
        if table.timeline.completed(instant_time) is None:
            return CommitFailed(f"instant {instant_time} was not applied: {error}", retryable=True)
    except (OSError, HoodieError) as second:
        error = second if isinstance(second, OSError) else error
    return _unknown(instant_time, str(error))


def _lost_meanwhile(table: TableHandle, instant: Instant) -> CommitFailed:
    """Return what is known of a completed file that was written while the lock was lost."""
    listing, time17 = table.timeline.refresh(), instant.requested_time
    earlier = (
        Instant(time17, instant.action, state) for state in (State.REQUESTED, State.INFLIGHT)
    )
    lost = f"the lock of {table.storage.root} was lost while its completed file was written"
    if all(listing.layout.file_name(i) in listing.names for i in earlier):
        return _unknown(time17, lost)
    return CommitFailed(
        f"instant {time17} was not applied: {lost}, and another process has rolled it back. "
        "Run table.fsck(), and write the data again"
    )


def _unknown(instant_time: str, why: str) -> CommitFailed:
    return CommitFailed(
        f"it is not known whether instant {instant_time} was applied: {why}. Look for it in "
        "table.history() when the cause is fixed, before you write the data again"
    )
