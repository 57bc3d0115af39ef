"""The active timeline: new instant times, state transitions, reading instants' files.

The folder and the names of its files depend on the table's layout (see `instant`), which another
engine may change by an upgrade: the handle chooses it whenever it reads the properties. The
completed file is the point of no return; a completed instant keeps its earlier files. Requested
times are unique over all actions.

In layout 2 the name of a completed file contains the time at which it is written, so it cannot be
predicted. A completed file of an instant is therefore looked for under any name: a second one is
never written, whichever attempt or process wrote the first. The writer lock keeps others out.

A listing reads one name per file, so a long timeline is listed only where recent changes of another
engine matter. `listed_once` is for the steps in between: inside it the first listing is reused,
updated with the changes of this process.

**Caveats**: an instant older than the first active one counts as completed, as in Hudi; the archive
is read only if that has a savepoint. *Source:* HoodieActiveTimeline, ActiveTimelineV1 and V2.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hoodie_nb import failpoints
from hoodie_nb.clock import Clock, instant_ms, instant_time
from hoodie_nb.errors import InvalidTable
from hoodie_nb.forked import renew_in_child
from hoodie_nb.storage.storage import Storage, read_bytes
from hoodie_nb.timeline.archived import Archive
from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.timeline.instant import (
    COMMITS,
    LAYOUT_1,
    LAYOUT_2,
    WRITTEN,
    Instant,
    Layout,
    Listing,
    State,
)

__all__ = ["COMMITS", "Instant", "Listing", "State", "Timeline"]
_ATTEMPTS = 10


class ArchivedMeanwhile(FileNotFoundError):
    """The file of an instant is gone: it was archived after it was listed, or it is lost."""


@dataclass(frozen=True, slots=True)
class CommitsInTable:
    """The commits that are in the table, of those that somebody saw complete: others were undone.

    `listed` are on the timeline, `start` is the time from which on none was archived. An older one
    was, unless the archive shows that it was not.
    """

    listed: tuple[str, ...]
    start: str
    archive: Archive

    def __contains__(self, time17: str) -> bool:
        return time17 in self.listed or (time17 < self.start and not self.archive.lacks(time17))


class Timeline:
    """The active timeline of one table."""

    def __init__(self, storage: Storage, clock: Clock, layout: Layout = LAYOUT_1) -> None:
        self._storage = storage
        self._clock = clock
        self._known = Listing(layout=layout)
        self._stale = True
        self.archive = Archive(storage, self._archives)
        self._asked = Listing()
        self.sent: Instant | None = None  # the last that this process has tried to complete
        self._scope = threading.local()
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Forget the parent's lock, and what it may have been changing."""
        self._lock = threading.Lock()
        self._stale = True

    @property
    def layout(self) -> Layout:
        """Return where the files are, and how they are named."""
        return self._known.layout

    def use(self, layout: Layout) -> None:
        """Continue with another layout: another engine has upgraded the table."""
        with self._lock:
            if layout != self._known.layout:
                self._known = Listing(layout=layout)
                self._stale = True

    def path(self, instant: Instant) -> str:
        """Return the path of an instant's file, relative to the table's root."""
        return self.layout.path(instant)

    def refresh(self) -> Listing:
        """List the timeline again, repeatedly if instants are archived in the meantime.

        Archiving deletes the oldest commits first: if the first one is still there, none is missing
        between others in what was listed.
        """
        with self._lock:
            self._known = self.look()
            self._stale = False
            return self._known

    def look(self) -> Listing:
        """Return the listing that `refresh` would, and keep the one that is in use."""
        found = self._known
        for _ in range(_ATTEMPTS):
            found = found.of(self._storage.file_names(self.layout.folder))
            if not found.commits or self._storage.entry(self.path(found.commits[0])) is not None:
                break
        return found

    def listed_once(self) -> "_ListedOnce":
        """Reuse one listing in this block and thread: that of the first access, or of `refresh`."""
        return _ListedOnce(self, self._scope)

    @property
    def listing(self) -> Listing:
        """Return the current listing."""
        once = getattr(self._scope, "inside", False) and not self._stale
        return self._known if once else self.refresh()

    def forget(self) -> None:
        """List the timeline again at the next look, also within `listed_once`."""
        with self._lock:
            self._stale = True

    def instants(self) -> list[Instant]:
        """Return each instant once, in its latest state, oldest first, with completion times."""
        return [replace(i, completion_time=self.completion_time(i)) for i in self.listing.instants]

    def completion_time(self, instant: Instant) -> str | None:
        """Return the completion time of an instant, in 17 digits; None if pending or gone.

        In layout 1 it is the time of the completed file; a store may cut it to seconds.
        """
        if instant.state is not State.COMPLETED or instant.completion_time:
            return instant.completion_time
        found = self._storage.entry(self.path(instant))
        time17 = None if found is None else _file_time(found.modified_ms)
        return max(time17, instant.requested_time) if time17 and found and found.version else time17

    def completed(self, requested_time: str, actions: Sequence[str] = WRITTEN) -> Instant | None:
        """Return the completed commit of that time, by its file; None if there is none.

        In layout 1 each of the actions costs a request: those of copy-on-write, if not given. In
        layout 2 all actions of commits cost one.
        """
        if self.layout.number == 2:
            return next((i for i in self.under(requested_time) if i.action in COMMITS), None)
        found = (self._completed(requested_time, action) for action in actions)
        return next(filter(None, found), None)

    def _completed(self, requested_time: str, action: str) -> Instant | None:
        """Return the completed instant of that time and action, under any name of its file."""
        done = Instant(requested_time, action, State.COMPLETED)
        if self.layout.number == 1:
            return done if self._storage.entry(self.path(done)) else None
        return next((i for i in self.under(requested_time) if i.action == action), None)

    def under(self, requested_time: str) -> Iterator[Instant]:
        """Yield the completed instants of that time, under any name of their files."""
        names = self._storage.file_names(self.layout.folder)
        ours = (self.layout.parse(name) for name in names if name.startswith(requested_time))
        done = (i for i in ours if i is not None and i.state is State.COMPLETED)
        return (i for i in done if i.requested_time == requested_time)

    def completed_commits(self) -> list[Instant]:
        """Return the completed commits and replacecommits, oldest first."""
        return list(self.listing.commits)

    def archived(self) -> bool:
        """Return whether instants were archived, by any engine and also before an upgrade."""
        return any(map(self._storage.file_names, sorted(self._archives())))

    def _archives(self) -> set[str]:
        return {self.layout.archive, LAYOUT_1.archive, LAYOUT_2.archive}

    def start(self, listing: Listing) -> str:
        """Return the time of the first commit, from which on none was archived; empty if none.

        Raises InvalidTable if later ones were archived, or may have been: it has a savepoint.
        """
        times = listing.commit_times
        if times and times[0] in listing.saved and self._asked is not listing:
            self.archive.refuse_beyond(times)
            self._asked = listing
        return times[0] if times else ""

    def left_archived(self) -> tuple[list[Instant], bool]:
        """Return the oldest completed files, without any others, of commits that are archived.

        And whether they hide rows: later commits are archived and not on the timeline.
        """
        listing = self.listing
        alone = [*itertools.takewhile(listing.is_alone, listing.commits[:-1])]
        archived = self.archive.commits()[0] if alone else frozenset[str]()
        known = [*itertools.takewhile(lambda done: done.requested_time in archived, alone)]
        newest = max(archived.difference(listing.commit_times), default="")
        return known, any(newest > done.requested_time for done in known)

    def commits_in_table(self) -> CommitsInTable:
        """Return which commits are in the table, and were not undone."""
        listing = self.listing
        return CommitsInTable(listing.commit_times, self.start(listing), self.archive)

    def pending(self) -> list[Instant]:
        """Return the instants of any action that have not completed, oldest first."""
        return list(self.listing.pending)

    def next_time(self, after: str = "", before: str = "", *, completed: bool = True) -> str:
        """Return max(now, newest time on the timeline and `after` + 1 ms) as 17 digits.

        Instead of now 1 ms earlier than `before`, if that is earlier. Unless `completed`, the times
        at which instants completed do not count.
        """
        found = self.listing.instants
        times = [(i.requested_time, i) for i in found[-1:]]
        ended = found if completed else []
        done = sorted((i.completion_time, n) for n, i in enumerate(ended) if i.completion_time)
        times += [(time17, found[n]) for time17, n in done[-1:]]
        newest = max((self._ms(time17, i) for time17, i in times), default=-1)
        newest = max(newest, instant_ms(after) if after else -1)
        now_ms = self._clock.now_ms()
        now_ms = min(now_ms, instant_ms(before) - 1) if before else now_ms
        return instant_time(max(now_ms, newest + 1))

    def _ms(self, time17: str, instant: Instant) -> int:
        try:
            instant_time(instant_ms(time17) + 1)
            return instant_ms(time17)
        except (ValueError, OverflowError) as error:
            raise InvalidTable(
                f"{self._storage.root}/{self.path(instant)} has a time that no later instant can "
                f"follow ({error}): move the file away unless one of your engines wrote it"
            ) from None

    def request(
        self,
        action: str = "commit",
        plan: bytes = b"",
        *,
        after: str = "",
        before: str = "",
        completed: bool = True,
        at: str = "",
    ) -> Instant:
        """Put a new requested instant on the timeline, its time unique across actions.

        `after` is the time of a rolled back instant, which the new one must follow; `before` and
        `completed`: see `next_time`. `at` is its own time, if that was chosen (FileExistsError if
        there is one).
        """
        for _ in range(100):
            time17 = at or self.next_time(after, before, completed=completed)
            instant = Instant(time17, action)
            try:
                self._put(instant, plan)
            except FileExistsError:
                if at:
                    raise
                continue
            return instant
        raise InvalidTable(f"no free instant time on the timeline of {self._storage.root}")

    def begin(self, instant: Instant) -> Instant:
        """Move a requested instant to inflight, unless it is."""
        inflight = Instant(instant.requested_time, instant.action, State.INFLIGHT)
        if instant.state is State.REQUESTED:
            self._put(inflight, b"")
        return inflight

    def complete(self, instant: Instant, content: bytes) -> Instant:
        """Write the completed file: after this the instant counts for every reader.

        Raises FileExistsError if the instant has a completed file.
        """
        done = Instant(instant.requested_time, instant.action, State.COMPLETED)
        if instant.action in COMMITS:
            failpoints.hit("coord.commit.pre")
        if self.layout.number == 2:
            if self._completed(instant.requested_time, instant.action) is not None:
                raise FileExistsError(f"{instant} has completed")
            done = replace(done, completion_time=self.next_time())
        self.sent = done
        self._put(done, content)
        return done

    def _put(self, instant: Instant, content: bytes) -> None:
        try:
            self._storage.put(self.path(instant), content, new=True)
        except BaseException:
            self.forget()  # the name may exist nevertheless
            raise
        with self._lock:
            self._known = self._known.of(self._known.names | {self.layout.file_name(instant)})

    def withdraw(self, instant: Instant) -> None:
        """Delete the completed files of an instant, if there are any: it is pending again."""
        found = [i for i in self.under(instant.requested_time) if i.action == instant.action]
        for done in found:
            self._storage.remove(self.path(done))
        if found:
            self.forget()
            self._storage.sync_folder(self.layout.folder)

    def remove(self, instant: Instant) -> None:
        """Remove a pending instant from the timeline: inflight first, then requested."""
        for earlier in reversed(self.layout.earlier(instant)):
            self._storage.remove(self.path(earlier))
        self.forget()
        self._storage.sync_folder(self.layout.folder)

    def files(self, instant: Instant) -> list[Instant]:
        """Return a completed instant in each state of which there is a file, the completed last."""
        earlier = self.layout.earlier(instant)
        return [i for i in earlier if self.layout.file_name(i) in self.listing.names] + [instant]

    def drop(self, files: Sequence[Instant]) -> None:
        """Delete files of archived instants: requested and inflight, then completed, oldest first.

        So none looks unfinished, and no commit is missing between others. A second completed file
        (see `fsck`) goes, too: the timeline would begin with it.
        """
        gone = {(i.requested_time, i.action) for i in files if i.state is State.COMPLETED}
        self.forget()
        for pending in (i for i in files if i.state is not State.COMPLETED):
            self._storage.remove(self.path(pending))
            failpoints.hit("archive.pending")
        self._storage.sync_folder(self.layout.folder)
        names = sorted(self._storage.file_names(self.layout.folder))
        done = (
            i for i in filter(None, map(self.layout.parse, names)) if i.state is State.COMPLETED
        )
        for instant in (i for i in done if (i.requested_time, i.action) in gone):
            self._storage.remove(self.path(instant))
            failpoints.hit("archive.completed")
        self._storage.sync_folder(self.layout.folder)

    def read(self, instant: Instant) -> bytes:
        """Return the content of the instant's file; ArchivedMeanwhile if it is gone."""
        try:
            return read_bytes(self._storage, self.path(instant))
        except FileNotFoundError as error:
            raise ArchivedMeanwhile(*error.args) from None

    def commit(self, done: Instant) -> CommitMetadata:
        """Return what a completed commit wrote; InvalidTable if its file is damaged."""
        return CommitMetadata.parse(self.read(done), f"{self._storage.root}/{self.path(done)}")


class _ListedOnce:
    """The scope of `Timeline.listed_once`; a generator may leak it when Ctrl-C interrupts it."""

    def __init__(self, timeline: Timeline, scope: threading.local) -> None:
        self._timeline = timeline
        self._scope = scope
        self._outer = False

    def __enter__(self) -> None:
        self._outer = getattr(self._scope, "inside", False)
        if not self._outer:
            self._timeline.forget()
        self._scope.inside = True

    def __exit__(self, *error: object) -> None:
        self._scope.inside = self._outer


def _file_time(modified_ms: int) -> str | None:
    with contextlib.suppress(ValueError, OverflowError, OSError):  # a file may have any time
        return instant_time(modified_ms)
    return None
