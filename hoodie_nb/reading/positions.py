"""`since=`, `until=` and stream offsets: whether reading may continue there after undone commits.

A reader at a position has a copy of the table as of then. If a commit in that copy is undone later,
no change says so: the reader must start again.

*Semantics*: a position is refused if a commit up to it was undone after it. One that names an
instant (a commit, 17 digits, the offset of a stream) is also refused if the table has no completed
instant of that time: it was undone, and nothing is left that says so, or the table was replaced.

What was undone is in the plans of the restores and rollbacks on the timeline. They stay there as
long as a commit before them does, so a position that needs one that is gone is older than the
timeline, and `span` refuses it. Java archives the rollbacks of version 6 earlier: then the archive
has them. It is read only for a position that is not a completed commit.

**Caveats**: an undone commit is gone when its restore is complete. Layout 1 does not record when
that was, so a time of day while a restore runs counts as one after it. Nor does it record when a
commit completed: the changes after a time of day at which one was being written lack its rows, so
only commits are safe positions; layout 2 refuses such a time. Archived rollbacks do not say whether
the commit had completed: it counts as completed. *Source:* HoodieRollbackPlan.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from hoodie_nb.actions.restore_plan import restores, undone_by
from hoodie_nb.actions.savepoints import ACTION as SAVEPOINT
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.timeline.archived import Archive
from hoodie_nb.timeline.timeline import COMMITS, Instant, State
from hoodie_nb.view.moments import parse_time
from hoodie_nb.view.read_handle import ReadHandle

_AGAIN = (
    "Read the table again into an empty copy, from the start ('earliest'), or its snapshot as of "
    "a commit of `table.history()`, and continue from that one"
)


class _Undoing(NamedTuple):
    """A restore or rollback: what it did, to which commits, and until when readers saw them."""

    name: str
    commits: Collection[str]
    until: str


def position_of(table: ReadHandle, moment: object, option: str = "since") -> str:
    """Return the 17 digits of a moment up to which a reader has read the table.

    Raises InvalidConfig if what it has read is no state of the table any more, or may be none.
    """
    time17 = parse_time(moment, table.config)
    with table.timeline.listed_once():
        commits = table.timeline.listing.commit_times
        if time17 in map(_whole, commits):
            _refuse_undone(table, time17, option, _on_timeline(table, time17, commits))
        else:
            archive = _archive_of(table, time17)
            _refuse_undone(table, time17, option, _on_timeline(table, time17))
            _refuse_undone(table, time17, option, _in_archive(archive, time17))
            if _names_instant(moment):
                _refuse_unknown(table, time17, option, archive)
            _refuse_running(table, time17, option)  # also at a clean
    return time17


def _on_timeline(table: ReadHandle, time17: str, there: Collection[str] = ()) -> Iterator[_Undoing]:
    """Yield what undid commits, or will, after a position; commits that are still `there` aside."""
    for action in restores(table):
        done = action.state is State.COMPLETED
        until = _end(table, action, named=bool(there)) if done else "9"
        if time17 < until and not (done and time17 == action.requested_time):
            name = f"{action.action} {action.requested_time} has undone it"
            if not done:
                name += " or will, and is pending: complete it with `table.fsck(repair=True)` first"
            yield _Undoing(name, undone_by(table, action) - {*there}, until)


def _end(table: ReadHandle, action: Instant, *, named: bool) -> str:
    """Return until when readers may have seen what a completed action has undone.

    A position that names a commit is not in between. Layout 1 does not record the time: that of the
    file may be later, in a copy of the table; on a store it is cut to seconds.
    """
    if action.completion_time or named:
        return action.completion_time or action.requested_time
    until = table.timeline.completion_time(action) or action.requested_time
    return f"{until[:14]}9999" if is_remote(table.storage.root) else until  # the second's end


def _archive_of(table: ReadHandle, time17: str) -> Archive | None:
    """Return the archive, if there is one and the position is not older than the timeline."""
    timeline = table.timeline
    start = timeline.start(timeline.listing)
    return timeline.archive if start and start <= time17 and timeline.archived() else None


def _in_archive(archive: Archive | None, time17: str) -> Iterator[_Undoing]:
    for at, commits in archive.rollbacks(time17) if archive else ():
        yield _Undoing(f"rollback {at}, which is archived, has undone it", commits, at)


def _refuse_undone(table: ReadHandle, time17: str, option: str, found: Iterable[_Undoing]) -> None:
    for name, commits, until in found:
        before = sorted(t for t in commits if _whole(t) <= time17 < until)
        if before:
            raise InvalidConfig(
                f"as of `{option}` {time17}, {table.storage.root} had commit {before[0]}, but "
                f"{name}: the rows read up to then are no longer a state of this table. {_AGAIN}"
            )


def _refuse_unknown(table: ReadHandle, time17: str, option: str, archive: Archive | None) -> None:
    """Raise InvalidConfig if a position names an instant that the table does not have."""
    timeline = table.timeline
    other = (*COMMITS, SAVEPOINT)  # a savepoint has the time of its commit
    done = (i for i in timeline.listing.instants if i.state is State.COMPLETED)
    known = any(_whole(i.requested_time) == time17 and i.action not in other for i in done)
    older = archive is None and timeline.archived()  # than the timeline: `span` refuses it
    if not known and not older and not (archive and archive.knows(time17)):
        raise InvalidConfig(
            f"{table.storage.root} has no completed commit {time17} (`{option}`): it was undone or "
            "archived, or the table was replaced, so the rows read up to then may be no state of "
            f"this table. {_AGAIN}. Digits name a commit: give a time of day as ISO text"
        )


def _refuse_running(table: ReadHandle, time17: str, option: str) -> None:
    """Raise InvalidConfig if a commit was being written then: it is earlier, but was not visible.

    Layout 1 does not record when a commit completed.
    """
    for commit in table.timeline.listing.commits:
        if _whole(commit.requested_time) <= time17 < (commit.completion_time or ""):
            raise InvalidConfig(
                f"commit {commit.requested_time} of {table.storage.root} was being written at "
                f"`{option}` {time17}: who read the table then has not seen its rows. Give a "
                "commit of `table.history()`, or an earlier or later time"
            )


def _names_instant(moment: object) -> bool:
    return hasattr(moment, "requested_time") or (isinstance(moment, str) and moment.isdigit())


def _whole(time17: str) -> str:
    """Return the 17 digits of a time, of which old versions of Hudi wrote 14."""
    return time17.ljust(17, "0")
