"""Reads again if a commit was rolled back, restored or cleaned while it was read.

*Semantics*: a rollback or restore, of this library or of Java, deletes a commit's completed file
before the commit's base files. So a view whose commits are all on the timeline after its folders
were listed has all of their files. Otherwise the reader looks again. Likewise, if a file cannot be
read whose commit has been undone since, its reader is to read again: whoever has returned nothing
yet does it here, others raise an error that names the commit.

A view takes one listing of the timeline, and one more to compare it with.

**Caveats**: an engine that deleted a commit's base files first would not be noticed. *Source:*
CopyOnWriteRollbackActionExecutor, which reverts a completed instant to inflight first.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from hoodie_nb.errors import ConcurrentWriter, HoodieError, InvalidTable
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.timeline import ArchivedMeanwhile, Listing
from hoodie_nb.view.file_groups import data_file_name
from hoodie_nb.view.read_handle import ReadHandle, open_to_read

_ATTEMPTS = 10
_DELETING = ("clean", "rollback", "restore")
T = TypeVar("T")
KEEP_MORE = (
    "to keep more, raise hoodie.clean.commits.retained, or set hoodie.clean.hours.retained and "
    "hoodie.clean.policy=KEEP_LATEST_BY_HOURS"
)


class UndoneMeanwhile(ConcurrentWriter):
    """A commit was undone while its files were read."""


def steadily(
    table: ReadHandle,
    look: Callable[[], T],
    counted: Callable[[T], Collection[str]] | None = None,
    *,
    whole: bool = False,
) -> T:
    """Return what `look` returns on one listing of the timeline; it looks again if that is over.

    That is: a commit was undone meanwhile that `counted` names (None: any), an instant was archived
    before it was read, or, for a `whole` snapshot, a clean began: what it deletes may have been the
    newest.

    Raises ConcurrentWriter or InvalidTable if it happens again and again.
    """
    for _ in range(_ATTEMPTS):
        failure: Exception | None = None
        with table.timeline.listed_once():
            seen = table.timeline.listing
            times: Collection[str] = seen.commit_times
            try:
                found = look()
                times = times if counted is None else counted(found)
            except (OSError, HoodieError) as error:
                failure = error
        over = _objection(table, seen, times, whole=whole)
        if over is None and failure is None:
            return found
        wrong = over or failure
        if over is None and not isinstance(failure, ArchivedMeanwhile):
            break
        table.timeline.forget()
        table.reload()
    assert wrong is not None
    raise wrong


def _objection(
    table: ReadHandle, seen: Listing, times: Collection[str], *, whole: bool
) -> HoodieError | None:
    """Return why a view of a listing, with these commits, is over; None if it is not."""
    root = table.storage.root
    now = table.timeline.look()
    undone = _undone(table, times, now)
    if undone is not None:
        return ConcurrentWriter(
            f"commits of {root} were undone (the last one is {undone}) in each of {_ATTEMPTS} "
            "attempts to read it: read again when the rollback or restore has ended"
        )
    if whole and _cleans(seen) != _cleans(now):
        return InvalidTable(
            f"{root} was cleaned {_ATTEMPTS} times while it was listed: {KEEP_MORE}"
        )
    return None


def _cleans(listing: Listing) -> list[str]:
    """Return the times of all cleans of a listing, in any state."""
    return [i.requested_time for i in listing.instants if i.action == "clean"]


def is_overtaken(table: ReadHandle, seen: Listing) -> bool:
    """Whether files that were there at a listing may be gone: by a clean, a rollback or a restore.

    Or instants: they may have been archived.
    """
    now = table.timeline.refresh()
    begun = {i.action for i in map(now.layout.parse, now.names - seen.names) if i is not None}
    return not seen.names <= now.names or not begun.isdisjoint(_DELETING)


def _undone(table: ReadHandle, times: Collection[str], now: Listing) -> str | None:
    """Return the newest of these commits that was undone, by a listing; None if none was."""
    gone = {*times} - {*now.commit_times}
    start = table.timeline.start(now) if gone else ""
    return max((t for t in gone if t >= start or not _is_archived(table, t)), default=None)


def _is_archived(table: ReadHandle, time17: str) -> bool:
    """Whether a commit that has left the timeline is archived; not if the archive is damaged."""
    with contextlib.suppress(InvalidTable):
        return not table.timeline.archive.lacks(time17)
    return False


# --- files of a view ------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(storage: Storage, *paths: str) -> Iterator[None]:
    """Raise UndoneMeanwhile for an error, in any process, if the commit of a file was undone."""
    try:
        yield
    except Exception as error:
        undone = None
        with contextlib.suppress(OSError, HoodieError):
            table = open_to_read(storage)
            names = (data_file_name(path.rpartition("/")[2]) for path in paths)
            times = {name.instant_time for name in names if name is not None}
            listing = table.timeline.listing  # version 6 names logs by a pending compaction, too
            times -= {i.requested_time for i in listing.pending_of("compaction")}
            undone = _undone(table, times, listing)
        if undone is None:
            raise
        raise UndoneMeanwhile(
            f"commit {undone} of {storage.root} was undone while its files were read: read again"
        ) from error


def until_true(read: Callable[[], T], over: type[Exception] = UndoneMeanwhile) -> T:
    """Return what `read` returns; it reads again if a commit was undone meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(over):
            return read()
    return read()
