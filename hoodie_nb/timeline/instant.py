"""Instants: states, actions, file names in both timeline layouts, a listing of a folder.

*On disk*: layout 1 (table version 6) is `.hoodie/`, layout 2 (8 and 9) `.hoodie/timeline/`:

| state | a commit | any other action | in layout 2 |
| --- | --- | --- | --- |
| requested | `T.commit.requested` | `T.<action>.requested` | the same |
| inflight | `T.inflight` (no "commit" in the name) | `T.<action>.inflight` | the same |
| completed | `T.commit` | `T.<action>` | `T_C.commit`, `T_C.<action>` |

`T` is the requested time, `C` the completion time, both 17 digits in UTC. Layout 1 does not store
the completion time: it is that of the file. In layout 2 a clustering is requested as `clustering`
and completed as `replacecommit`; here it has the second name in every state, as in layout 1. The
`compaction` of a merge-on-read table completes as a `commit` of its time, and `logcompaction` as a
`deltacommit`: then only that is listed.

*Source:* InstantFileNameGeneratorV1 and V2, TimelineLayout.
"""

import operator
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hoodie_nb.storage.storage import META


class State(StrEnum):
    """The states of an instant, in their order."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"


_ORDER = {State.REQUESTED: 0, State.INFLIGHT: 1, State.COMPLETED: 2}
_ACTIONS = (
    "commit|replacecommit|rollback|clean|savepoint|restore|deltacommit|compaction|logcompaction|"
    "indexing"
)
_NAME = re.compile(rf"(\d{{14}}|\d{{17}})(?:\.({_ACTIONS}))?(?:\.(requested|inflight))?")
_COMPLETED = re.compile(rf"(\d{{14}}|\d{{17}})_(\d{{14}}|\d{{17}})\.({_ACTIONS})")
WRITTEN = ("commit", "replacecommit")  # to copy-on-write tables, by this library
COMMITS = (*WRITTEN, "deltacommit")
ENDS_AS = {"compaction": "commit", "logcompaction": "deltacommit"}


@dataclass(frozen=True, slots=True)
class Instant:
    """An action at a time in a state; `completion_time` is 17 digits once completed."""

    requested_time: str
    action: str = "commit"
    state: State = State.REQUESTED
    completion_time: str | None = None

    @property
    def file_name(self) -> str:
        """Return the name in layout 1; `parse` is the inverse."""
        if self.state is State.COMPLETED:
            return f"{self.requested_time}.{self.action}"
        if self.state is State.INFLIGHT and self.action == "commit":
            return f"{self.requested_time}.inflight"
        return f"{self.requested_time}.{self.action}.{self.state}"

    @property
    def requested(self) -> "Instant":
        """Return the instant as it was requested: its file has the plan, if there is one."""
        return Instant(self.requested_time, self.action)

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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a timeline's files are, and their names; only completed files differ.

    A completed file of layout 2 without a completion time is an older engine's, and counts too.
    """

    number: int
    folder: str
    archive: str

    @property
    def avro(self) -> bool:
        """Whether commit metadata is written as Avro; it is read by what the file is."""
        return self.number == 2

    def file_name(self, instant: Instant) -> str:
        """Return the name of the instant's file; `parse` is the inverse."""
        done = instant.completion_time if instant.state is State.COMPLETED else None
        if self.number == 1 or done is None:
            return instant.file_name
        return f"{instant.requested_time}_{done}.{instant.action}"

    def path(self, instant: Instant) -> str:
        """Return the path of the instant's file, relative to the table's root."""
        return f"{self.folder}/{self.file_name(instant)}"

    def earlier(self, instant: Instant) -> list[Instant]:
        """Return what an instant was before it completed, by each name of its action."""
        time17 = instant.requested_time
        action = instant.action
        names = [action, *(["clustering"] if action == "replacecommit" else [])]
        if instant.state is State.COMPLETED:
            names += [planned for planned, end in ENDS_AS.items() if end == action]
        states = (State.REQUESTED, State.INFLIGHT)
        return [Instant(time17, name, state) for state in states for name in names]

    def parse(self, name: str) -> Instant | None:
        """Return the instant of a file name; None if it is not the name of an instant.

        >>> LAYOUT_2.parse("20261121024346363_20261121024350001.commit").completion_time
        '20261121024350001'
        """
        if self.number == 1:
            return Instant.parse(name)
        match = _COMPLETED.fullmatch(name)
        if match is not None:
            return Instant(match[1], match[3], State.COMPLETED, match[2])
        return Instant.parse(name.replace(".clustering.", ".replacecommit."))


LAYOUT_1 = Layout(1, META, f"{META}/archived")
LAYOUT_2 = Layout(2, f"{META}/timeline", f"{META}/timeline/history")
Contents = Sequence[tuple[Instant, bytes]]  # of an instant: its files, the completed one last
_KEY = operator.attrgetter("requested_time", "action")


@dataclass(frozen=True, slots=True)
class Listing:
    """The instants of a folder's file names: each once, in its latest state, oldest first.

    `commits` are the completed commits of any kind (`COMMITS`); their times identify a view of the
    table. `pending` are the instants of any action that have not completed, `saved` the times of
    the savepoints in any state.
    """

    names: frozenset[str] = frozenset()
    latest: dict[tuple[str, str], Instant] = field(default_factory=dict)
    commits: tuple[Instant, ...] = ()
    commit_times: tuple[str, ...] = ()
    pending: tuple[Instant, ...] = ()
    saved: frozenset[str] = frozenset()
    layout: Layout = LAYOUT_1

    def of(self, names: Collection[str]) -> "Listing":
        """Return the listing of these names; itself if they are the same."""
        found = frozenset(names)
        added = found - self.names
        if len(found) < len(self.names) + len(added):  # some are gone
            return Listing(layout=self.layout).of(found)
        return self._with(added, found) if added else self

    def _with(self, added: Collection[str], names: frozenset[str]) -> "Listing":
        """Return the listing with more names; what they do not change is not computed again."""
        changed: dict[tuple[str, str], Instant] = {}
        for instant in filter(None, map(self.layout.parse, sorted(added))):
            known = changed.get(_KEY(instant)) or self.latest.get(_KEY(instant))
            if known is None or _ORDER[instant.state] > _ORDER[known.state]:
                changed[_KEY(instant)] = instant
        changed = dict(sorted(changed.items()))
        last = next(reversed(self.latest), ("", ""))
        latest = {**self.latest, **changed}
        commits = self.commits
        times = self.commit_times
        if any(key < last and key not in self.latest for key in changed):
            latest = dict(sorted(latest.items()))
        for time17, action in [_KEY(i) for i in (*self.pending, *changed.values())]:
            end = latest.get((time17, ENDS_AS.get(action, "")))
            if end is not None and end.state is State.COMPLETED:
                latest.pop((time17, action), None)
        if any(i.state is State.COMPLETED and i.action in COMMITS for i in changed.values()):
            done = (i for i in latest.values() if i.state is State.COMPLETED)
            commits = tuple(i for i in done if i.action in COMMITS)
            times = tuple(map(operator.attrgetter("requested_time"), commits))
        saved = self.saved | {t for t, action in changed if action == "savepoint"}
        newest = (i for i in (*self.pending, *changed.values()) if latest.get(_KEY(i)) is i)
        pending = sorted((i for i in newest if i.state is not State.COMPLETED), key=_KEY)
        return Listing(names, latest, commits, times, tuple(pending), saved, self.layout)

    @property
    def instants(self) -> list[Instant]:
        """Return the instants, oldest first."""
        return list(self.latest.values())

    def has(self, instant: Instant) -> bool:
        """Return whether there is a file of an instant in its state."""
        return self.layout.file_name(instant) in self.names

    def is_alone(self, done: Instant) -> bool:
        """Whether a completed instant has no other file: it was archived, rolled back, or is late.

        A compaction was requested under another name.
        """
        return not any(map(self.has, self.layout.earlier(done)))

    def pending_of(self, *actions: str) -> list[Instant]:
        """Return the instants of these actions that have not completed, oldest first."""
        return [i for i in self.pending if i.action in actions]

    def completed(self, action: str) -> list[Instant]:
        """Return the completed instants of an action, oldest first."""
        found = self.latest.values()
        return [i for i in found if i.action == action and i.state is State.COMPLETED]
