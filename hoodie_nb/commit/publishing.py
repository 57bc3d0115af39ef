"""Retries of publishing: how often, what is reported, whether a failed commit is retryable.

A single disk error should not cause a complete rewrite. The steps are idempotent.
"""

import contextlib
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, cast

from hoodie_nb.actions.publish import publish_commit
from hoodie_nb.actions.quarantine import publish_refused
from hoodie_nb.errors import CommitFailed, ConcurrentWriter, HoodieError, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.records.prepared import Prepared, checkpoints_of, merged, quarantined
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.storage.fences import check_fence, place_of
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.timeline.timeline import Instant, State

if TYPE_CHECKING:
    from hoodie_nb.storage.object_storage import ObjectStorage

_RETRIES = 3


def folder_of(file: StoredFile) -> str:
    """Return which staging folder has a file: the instant in its name, also if that was redone."""
    return PurePosixPath(file.path).parent.name.partition("-")[0]


def completed_by(records: Sequence[Prepared]) -> list[Checkpoint]:
    """Return the checkpoints that a commit of these records completes.

    A batch write counts as one if it has no base file: only its record, and the later commits that
    name it, show that it was completed if its completed file is lost.
    """
    checkpoints = checkpoints_of(records)
    if checkpoints or merged(records):
        return checkpoints
    return [Checkpoint("hoodie-nb-batch-writes", 0, records[0].instant_time)]


def publish(
    table: TableHandle,
    events: EventLog,
    records: Sequence[Prepared],
    statuses: Sequence[WriteStatus],
    content: bytes,
) -> Instant:
    """Publish an instant's files and write its completed file; the last attempt's error counts."""
    instant = records[-1].pending
    for attempt in range(_RETRIES + 1):
        try:
            publish_refused(table.storage, instant.requested_time, quarantined(records))
            return publish_commit(table.storage, table.timeline, instant, statuses, content)
        except ConcurrentWriter as error:
            time17 = instant.requested_time
            if table.timeline.completed(time17) is None and not _is_archived(table, time17):
                raise  # the lock was lost before
            raise _lost_meanwhile(table, instant) from error
        except (OSError, InvalidTable) as error:
            done = _found(table, instant.requested_time, error)
            if done is not None and table.timeline.read(done) == content:  # only not synced
                with contextlib.suppress(OSError):
                    table.storage.sync_folder(table.timeline.layout.folder)
                return _kept(table, done, error)
            if attempt == _RETRIES or isinstance(error, FileExistsError | InvalidTable):
                raise
            events.emit("commit_retried", instant=instant.requested_time, why=str(error))
            table.clock.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def emit_committed(
    events: EventLog, records: Sequence[Prepared], statuses: Sequence[WriteStatus], seconds: float
) -> None:
    """Report what the commit of these records wrote."""
    events.emit(
        "instant_committed",
        instant=records[0].instant_time,
        checkpoints=len(checkpoints_of(records)),
        files=len(statuses),
        rows=sum(s.rows for s in statuses),
        inserts=sum(s.inserts for s in statuses),
        updates=sum(s.updates for s in statuses),
        deletes=sum(s.deletes for s in statuses),
        bytes=sum(s.bytes_written for s in statuses),
        seconds=round(seconds, 6),
    )


def not_published(table: TableHandle, instant_time: str, error: OSError) -> CommitFailed:
    """Return what is known of a commit whose publishing failed; `retryable` if it is undone."""
    try:
        if table.timeline.completed(instant_time) is None:
            return CommitFailed(f"instant {instant_time} was not applied: {error}", retryable=True)
    except (OSError, HoodieError) as second:
        error = second if isinstance(second, OSError) else error
    return _unknown(instant_time, str(error))


def _found(table: TableHandle, time17: str, error: Exception) -> Instant | None:
    """Return an instant if it has completed; CommitFailed if that was tried, and nobody can say."""
    try:
        return table.timeline.completed(time17)
    except (OSError, HoodieError):
        sent = table.timeline.sent
        if sent is None or sent.requested_time != time17:
            raise error from None
        raise _unknown(time17, str(error)) from error


def _kept(table: TableHandle, done: Instant, error: Exception) -> Instant:
    """Return a completed instant if this process still has the lock: it may have come late."""
    try:
        check_fence(place_of(table.storage.root), new=True)
    except ConcurrentWriter:
        raise _lost_meanwhile(table, done) from error
    except (OSError, HoodieError):
        raise _unknown(done.requested_time, str(error)) from error
    return done


def _lost_meanwhile(table: TableHandle, instant: Instant) -> CommitFailed:
    """Return what is known of a completed file that was written while the lock was lost."""
    listing = table.timeline.refresh()
    time17 = instant.requested_time
    earlier = (
        Instant(time17, instant.action, state) for state in (State.REQUESTED, State.INFLIGHT)
    )
    lost = f"the lock of {table.storage.root} was lost while its completed file was written"
    gone = not all(listing.has(i) for i in earlier)
    with contextlib.suppress(HoodieError, OSError):
        _withdraw(table, time17, gone=gone)
    if not gone or _is_archived(table, time17):
        return _unknown(time17, lost)
    return CommitFailed(
        f"instant {time17} was not applied: {lost}, and another process has rolled it back. "
        "Run table.fsck(), and write the data again"
    )


def _is_archived(table: TableHandle, time17: str) -> bool:
    """Whether another process has archived the instant; its files may have left the timeline."""
    return table.timeline.archived() and not table.timeline.archive.lacks(time17)


def _withdraw(table: TableHandle, time17: str, *, gone: bool) -> None:
    """Delete a completed file that the store received after the instant was rolled back.

    Or after it was archived: the timeline would begin with it. Or, from version 8 on, one beside a
    later one of another process: the last stays, so that of two that are late one does.
    """
    timeline = table.timeline
    done = timeline.completed(time17)
    is_first = timeline.refresh().commit_times[:1] == (time17,)
    unwanted = gone and (is_first or not _is_archived(table, time17))
    if timeline.layout.number == 2:
        done = timeline.sent
        if done is None or done.requested_time != time17:
            return
        last = max((i.completion_time or "" for i in timeline.under(time17)), default="")
        unwanted = unwanted or last > (done.completion_time or "")
    if done is not None and unwanted and is_remote(table.storage.root):
        cast("ObjectStorage", table.storage).mark(timeline.path(done), None)


def _unknown(instant_time: str, why: str) -> CommitFailed:
    return CommitFailed(
        f"it is not known whether instant {instant_time} was applied: {why}. Look for it in "
        "table.history() when the cause is fixed, before you write the data again"
    )
