"""The timeline: which instants exist, and their states.

*On disk* (table version 6, timeline layout 1, in `.hoodie/`):

| state | a commit | any other action |
| --- | --- | --- |
| requested | `T.commit.requested` | `T.<action>.requested` |
| inflight | `T.inflight` (no "commit" in the name) | `T.<action>.inflight` |
| completed | `T.commit` | `T.<action>` |

A completed instant keeps its earlier files. `T` is 17 digits, UTC, unique over all
actions; the completed file is the point of no return.

A listing reads one name per file, so a long timeline is listed only where recent changes of another
engine matter. `listed_once` is for the steps in between: inside it the first listing is reused,
updated with the changes of this process.

**Caveats**: the archived timeline is not read; an instant older than the first active one counts
as completed, as in Hudi. *Source:* HoodieActiveTimeline, ActiveTimelineV1.
"""

import contextlib
import functools
import operator
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hoodie_nb import failpoints
from hoodie_nb.clock import Clock, instant_ms, instant_time
from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.storage import META, Storage, file_names, read_bytes


class State(StrEnum):
    """The states of an instant, in their order."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"


_ORDER = {State.REQUESTED: 0, State.INFLIGHT: 1, State.COMPLETED: 2}
_ACTIONS = "commit|replacecommit|rollback|clean|savepoint|restore|deltacommit|compaction|indexing"
_NAME = re.compile(rf"(\d{{14}}|\d{{17}})(?:\.({_ACTIONS}))?(?:\.(requested|inflight))?")
COMMITS = ("commit", "replacecommit")


@dataclass(frozen=True, slots=True)
class Instant:
    """An action at a time in a state; `completion_time` is 17 digits once completed."""

    requested_time: str
    action: str = "commit"
    state: State = State.REQUESTED
    completion_time: str | None = None

    @property
    def file_name(self) -> str:
        """Return the name under `.hoodie/`; `parse` is the inverse."""
        if self.state is State.COMPLETED:
            return f"{self.requested_time}.{self.action}"
        if self.state is State.INFLIGHT and self.action == "commit":
            return f"{self.requested_time}.inflight"
        return f"{self.requested_time}.{self.action}.{self.state}"

    @property
    def path(self) -> str:
        """Return the file's path, relative to the table's root."""
        return f"{META}/{self.file_name}"

    @classmethod
    def parse(cls, name: str) -> "Instant | None":
        """Return the instant of a file name; None if it is not the name of an instant.

        >>> Instant.parse("20261121024346363.inflight").state
        <State.INFLIGHT: 'inflight'>
        """
        match = _NAME.fullmatch(name)
        if match is None or (match[2] is None and match[3] != "inflight"):
            return None
        return cls(match[1], match[2] or "commit", State(match[3] or "completed"))

    def __str__(self) -> str:
        return f"{self.requested_time} {self.action} {self.state}"


_KEY = operator.attrgetter("requested_time", "action")


@dataclass(frozen=True)
class Listing:
    """The instants of a folder's file names: each once, in its latest state."""

    names: frozenset[str] = frozenset()
    latest: Mapping[tuple[str, str], Instant] = field(default_factory=dict)

    def of(self, names: Collection[str]) -> "Listing":
        """Return the listing of these names; only new names are parsed."""
        found = frozenset(names)
        if found == self.names:
            return self
        added, same = found - self.names, self.names <= found
        latest = dict(self.latest) if same else {}
        for instant in filter(None, map(Instant.parse, added if same else found)):
            known = latest.get(_KEY(instant))
            if known is None or _ORDER[instant.state] > _ORDER[known.state]:
                latest[_KEY(instant)] = instant
        return Listing(found, latest)

    @functools.cached_property
    def instants(self) -> list[Instant]:
        """Return the instants, oldest first."""
        return sorted(self.latest.values(), key=_KEY)

    @functools.cached_property
    def commits(self) -> list[Instant]:
        """Return the completed commits and replacecommits, oldest first."""
        return [i for i in self.instants if i.state is State.COMPLETED and i.action in COMMITS]

    @functools.cached_property
    def commit_times(self) -> tuple[str, ...]:
        """Return the times of the completed commits, which identify a view of the table."""
        return tuple(i.requested_time for i in self.commits)

    @functools.cached_property
    def pending(self) -> list[Instant]:
        """Return the instants of any action that have not completed, oldest first."""
        return [i for i in self.instants if i.state is not State.COMPLETED]


class Timeline:
    """The active timeline of one table."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._known, self._stale, self._lock = Listing(), True, threading.Lock()
        self._scope = threading.local()

    def refresh(self) -> Listing:
        """List the timeline again."""
        with self._lock:
            self._known = self._known.of(file_names(self._storage, META))
            self._stale = False
            return self._known

    def listed_once(self) -> "_ListedOnce":
        """List the timeline once in here, for this thread: when first asked, or by `refresh`."""
        return _ListedOnce(self, self._scope)

    @property
    def listing(self) -> Listing:
        """Return the current listing."""
        once = getattr(self._scope, "inside", False) and not self._stale
        return self._known if once else self.refresh()

    def _forget(self) -> None:
        with self._lock:
            self._stale = True

    def instants(self) -> list[Instant]:
        """Return each instant once, in its latest state, oldest first, with completion times."""
        found = self.listing.instants
        return [replace(i, completion_time=self.completion_time(i)) for i in found]

    def completion_time(self, instant: Instant) -> str | None:
        """Return the completion time of an instant, in 17 digits; None if pending or gone."""
        if instant.state is not State.COMPLETED:
            return None
        found = self._storage.entry(instant.path)
        return None if found is None else _file_time(found.modified_ms)

    def completed(self, requested_time: str) -> Instant | None:
        """Return the completed commit of that time, by its file; None if there is none."""
        done = (Instant(requested_time, action, State.COMPLETED) for action in COMMITS)
        return next((i for i in done if self._storage.entry(i.path)), None)

    def completed_commits(self) -> list[Instant]:
        """Return the completed commits and replacecommits, oldest first."""
        return list(self.listing.commits)

    def pending(self) -> list[Instant]:
        """Return the instants of any action that have not completed, oldest first."""
        return list(self.listing.pending)

    def next_time(self, after: str = "") -> str:
        """Return max(now, newest time on the timeline and `after` + 1 ms) as 17 digits."""
        newest = max(map(self._ms, self.listing.instants[-1:]), default=-1)
        newest = max(newest, instant_ms(after) if after else -1)
        return instant_time(max(self._clock.now_ms(), newest + 1))

    def _ms(self, instant: Instant) -> int:
        try:
            instant_time(instant_ms(instant.requested_time) + 1)
            return instant_ms(instant.requested_time)
        except (ValueError, OverflowError) as error:
            raise InvalidTable(
                f"{self._storage.root}/{instant.path} has a time that no later instant can follow "
                f"({error}): move the file away unless one of your engines wrote it"
            ) from None

    def request(self, action: str = "commit", plan: bytes = b"", *, after: str = "") -> Instant:
        """Put a new requested instant on the timeline, its time unique across actions.

        `after` is the time of a rolled back instant, which the new one must follow.
        """
        for _ in range(100):
            instant = Instant(self.next_time(after), action)
            try:
                self._put(instant, plan)
            except FileExistsError:
                continue
            return instant
        raise InvalidTable(f"no free instant time on the timeline of {self._storage.root}")

    def begin(self, instant: Instant) -> Instant:
        """Move a requested instant to inflight."""
        inflight = Instant(instant.requested_time, instant.action, State.INFLIGHT)
        self._put(inflight, b"")
        return inflight

    def complete(self, instant: Instant, content: bytes) -> Instant:
        """Write the completed file: after this the instant counts for every reader."""
        done = Instant(instant.requested_time, instant.action, State.COMPLETED)
        if instant.action == "commit":
            failpoints.hit("coord.commit.pre")
        self._put(done, content)
        return done

    def _put(self, instant: Instant, content: bytes) -> None:
        try:
            self._storage.put(instant.path, content, new=True)
        except BaseException:
            self._forget()  # the name may exist nevertheless
            raise
        with self._lock:
            self._known = self._known.of(self._known.names | {instant.file_name})

    def remove(self, instant: Instant) -> None:
        """Remove a pending instant from the timeline: inflight first, then requested."""
        for state in (State.INFLIGHT, State.REQUESTED):
            self._storage.remove(Instant(instant.requested_time, instant.action, state).path)
        self._forget()
        self._storage.sync_folder(META)

    def read(self, instant: Instant) -> bytes:
        """Return the content of the instant's file."""
        return read_bytes(self._storage, instant.path)


class _ListedOnce:
    """The scope of `Timeline.listed_once`; a generator may leak it when Ctrl-C interrupts it."""

    def __init__(self, timeline: Timeline, scope: threading.local) -> None:
        self._timeline, self._scope, self._outer = timeline, scope, False

    def __enter__(self) -> None:
        self._outer = getattr(self._scope, "inside", False)
        if not self._outer:
            self._timeline._forget()
        self._scope.inside = True

    def __exit__(self, *error: object) -> None:
        self._scope.inside = self._outer


def _file_time(modified_ms: int) -> str | None:
    with contextlib.suppress(ValueError, OverflowError, OSError):  # a file may have any time
        return instant_time(modified_ms)
    return None
