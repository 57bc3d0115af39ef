"""Who writes a table, who waits for it, who has died: for reports; nothing is locked or changed.

On a local disk the kernel's list of locks tells which files are locked, and by which process. On an
object store the objects of `store_turns` name their writers; whether these live is known of
processes of this machine, and of all others from look to look: who lives replaces its object.

*Costs*: a look reads `/proc/locks`, two folders and the files of those that wait; on a store it
lists two folders, and gets what has changed since the last look. Nobody looks unless asked.

**Caveats**: `/proc/locks` is Linux's, and has the processes of this machine and container only:
without it nothing is listed, and those of another container are taken for dead.
"""

import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hoodie_nb.display import card, counted
from hoodie_nb.events import EventLog
from hoodie_nb.lock.lock_file import PATH, parsed, shown
from hoodie_nb.lock.process import has_ended
from hoodie_nb.lock.store_turns import ASLEEP_S
from hoodie_nb.lock.waiting import JOB, jobs
from hoodie_nb.storage.storage import OURS, STAGED, TURNS, Storage, is_remote, read_bytes

if TYPE_CHECKING:
    from hoodie_nb.storage.object_storage import ObjectStorage

STATES = {
    "writes": "writes the table",
    "waits": "waits",
    "pauses": "runs a stream into the table",
    "died": "has died",
}
_SPARE_S = 2.0  # a store dates its objects in whole seconds
_DID = {"writes": "it had the table", "waits": "it waited", "pauses": "it ran a stream"}


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that writes a table, or the trace of one; its state is one of `STATES`.

    `ahead`: the instant whose files it has staged before its turn. Unless `sure`, it may have died,
    or, if it seems to have died, be elsewhere.
    """

    state: str
    process: int | None
    what: str = ""
    ahead: str = ""
    sure: bool = True

    @property
    def who(self) -> str:
        """Return its process."""
        return f"process {self.process}" if self.process else "a process"

    @property
    def role(self) -> str:
        """Return what it does, or that it has died."""
        doubt = ", or is elsewhere" if self.state == "died" else ", or has died"
        return STATES[self.state] + ("" if self.sure else doubt)

    def __str__(self) -> str:
        ahead = f"written ahead as {self.ahead}" if self.ahead else ""
        about = ", ".join(filter(None, (self.what, ahead)))
        return f"{self.who} {self.role}" + (f" ({about})" if about else "")


@dataclass(frozen=True, slots=True)
class Writers:
    """The writers of a table, and how its batches fared that were written before their turn.

    First who has the lock, then those that wait, in order. `fitted` batches were committed as they
    were staged, others were written `again`, as the events of a table or job say.
    """

    found: tuple[Writer, ...] = ()
    fitted: int = 0
    again: int = 0

    @classmethod
    def of(cls, found: list[Writer], events: EventLog) -> "Writers":
        """Return these writers, with the counts of some events."""
        fits = [event.values["fits"] for event in events.records("instant_written_ahead")]
        return cls(tuple(found), fits.count(True), fits.count(False))

    @property
    def ahead(self) -> str:
        """Return how the batches fared, as text; empty if there were none."""
        if not self.fitted + self.again:
            return ""
        made = counted(self.fitted + self.again, "batch", "es")
        return f"{made} written ahead: {self.fitted:,} fitted, {self.again:,} written again"

    def __iter__(self) -> Iterator[Writer]:
        return iter(self.found)

    def __repr__(self) -> str:
        lines = [*map(str, self.found)] or ["nobody writes the table"]
        return "\n".join([*lines, *filter(None, [self.ahead])])

    def _repr_html_(self) -> str:
        return card("Writers", {f"{n}": line for n, line in enumerate(repr(self).splitlines(), 1)})


def writers(storage: Storage) -> list[Writer]:
    """Return the writer that has the lock, those that wait, in order, streams, and the dead."""
    return Watch(storage).look()


class Watch:
    """Looks at the writers of a table, and on a store remembers the objects that it has seen."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._seen: dict[str, _Seen] = {}
        self._looked_s = -math.inf

    def look(self) -> list[Writer]:
        """Return the writers now, as `writers` does."""
        remote = is_remote(self._storage.root)
        return [*(self._leased() if remote else _local(self._storage))]

    def _leased(self) -> Iterator[Writer]:
        now = time.monotonic()
        gap_s = now - self._looked_s
        self._looked_s = now
        self._seen = {path: seen for path, seen in self._objects(now, gap_s) if seen}
        held = {path: seen for path, seen in self._seen.items() if seen.is_held}
        streams = {seen.name for path, seen in held.items() if path.startswith(JOB)}
        turns = {seen.name for path, seen in held.items() if not path.startswith(JOB)}
        for path, seen in held.items():
            if path == PATH:
                yield seen.writer("writes", now)
            elif path.startswith(TURNS):
                yield seen.writer("waits", now, "a stream" if seen.name in streams else "")
            elif seen.name not in turns:  # else it is listed already
                yield seen.writer("pauses", now)

    def _objects(self, now: float, gap_s: float) -> "Iterator[tuple[str, _Seen | None]]":
        """Yield the objects of writers; those that have been replaced are read."""
        store = cast("ObjectStorage", self._storage)
        ours = {f"{OURS}/{entry.name}": entry.version for entry in store.list_folder(OURS)}
        found = {PATH: ours[PATH]} if PATH in ours else {}
        found |= {f"{TURNS}/{entry.name}": entry.version for entry in store.list_folder(TURNS)}
        found |= {path: version for path, version in ours.items() if path.startswith(JOB)}
        for path, version in found.items():
            known = self._seen.get(path)
            if known is not None and known.version == version:
                yield path, known
            elif there := store.read_version(path):
                since_s = gap_s if known else math.inf
                yield path, _Seen(there.version, parsed(there.content), now, since_s)


@dataclass(frozen=True, slots=True)
class _Seen:
    """An object of a writer, when it was first seen, and how long after the one that it replaced.

    Times are monotonic seconds.
    """

    version: str
    holder: Mapping[str, Any]
    at_s: float
    after_s: float

    @property
    def is_held(self) -> bool:
        return bool(self.holder) and not self.holder.get("released")

    @property
    def name(self) -> tuple[object, object]:
        return self.holder.get("host"), self.holder.get("pid")

    def writer(self, state: str, now: float, kind: str = "") -> Writer:
        lease_s = self.holder.get("lease_s")
        limit_s = lease_s + _SPARE_S if isinstance(lease_s, int | float) else ASLEEP_S
        died = has_ended(self.holder.get("process")) or now - self.at_s > limit_s
        lease = f"its lease is {lease_s} s" if lease_s else ""
        did = _DID[state] if died else ""
        what = "; ".join(filter(None, (did, kind, shown(self.holder), lease)))
        sure = died or self.after_s <= limit_s
        return Writer("died" if died else state, self.holder.get("pid"), what, sure=sure)


def _local(storage: Storage) -> Iterator[Writer]:
    names = storage.file_names(TURNS)  # first: what is there then, and not locked, is of the dead
    locked = _locked()
    if locked is None:
        return
    lock = _process(storage, PATH, locked)
    holder = parsed(_content(storage, PATH))
    about = shown({name: holder[name] for name in ("purpose", "since") if name in holder})
    if lock is not None:
        yield Writer("writes", lock, about)
    streams = {_process(storage, path, locked) for path in jobs(storage)} - {None}
    places = [_waiting(storage, f"{TURNS}/{name}", locked, streams) for name in names]
    line = [one for one in places if one is not None and one.process != lock]
    yield from line  # in order
    for process in sorted(filter(None, streams - {lock, *(one.process for one in line)})):
        yield Writer("pauses", process, "between two turns")
    spared = {one.ahead for one in line}
    left = {entry.name.partition("-")[0] for entry in storage.list_folder(STAGED)} - spared
    if left and not streams and lock is None and has_ended(holder.get("process")):
        yield Writer("died", holder.get("pid"), f"it left files: {about}")


def _waiting(
    storage: Storage, place: str, locked: Mapping[int, int], streams: Collection[int | None]
) -> Writer | None:
    """Return the writer in a place, whose name ends with its process; None if it has left it."""
    process = _process(storage, place, locked)
    if process is None:
        pid = place.rpartition("-")[2]
        died = Writer("died", int(pid) if pid.isdecimal() else None, _DID["waits"], sure=False)
        return died if storage.entry(place) else None
    noted = _content(storage, place)[:17].decode("ascii", "replace")
    if noted.isdecimal():
        return Writer("waits", process, "a batch call", ahead=noted)
    starts = "a batch call, or a stream that starts"
    return Writer("waits", process, "a stream" if process in streams else starts)


def _content(storage: Storage, path: str) -> bytes:
    with suppress(FileNotFoundError):
        return read_bytes(storage, path)
    return b""


def _locked() -> dict[int, int] | None:
    """Return the processes that hold locks of whole files, by the number of the file's inode.

    None if the kernel has no such list.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    parts = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    return {int(part[5].split(":")[2]): int(part[4]) for part in parts}


def _process(storage: Storage, path: str, locked: Mapping[int, int]) -> int | None:
    """Return the process that has locked a file; None if none has, or the file is gone."""
    try:
        return locked.get(os.lstat(storage.fetch(path)).st_ino)
    except OSError:
        return None
