"""State index, manifest: which runs are valid and which files they cover, its file format.

*On disk*: `.hoodie/.hoodie_nb/index/manifest-<instant>`, one per completed instant, written under a
temporary name and renamed. It has a line for itself and one per partition that the instant changed,
each with its own CRC-32, so that a lookup reads only the lines of its partitions:

    <crc> TAB "partition path" TAB [used, pure, {file id: [loaded group], …}, [[section], …]]

The first line names earlier manifests, newest first, whose lines are valid for the other
partitions. After `PARTS` of them, or when their lines outweigh those of the oldest, a manifest with
all lines is written: so a commit's cost does not depend on the partitions that it leaves alone.

*Semantics*: a file group's entries describe one slice, whose instant the line names. If the latest
slice is another one, the file counts as not loaded and its entries are not used. This one
comparison covers commits of others, rollbacks, restores, replaced groups, archived instants, and
older lines that are read because a newer manifest is damaged. A line or manifest that cannot be
read counts as empty.

*Source:* RFC-24 "new index"; a cache stored with the table.
"""

import contextlib
import functools
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.errors import InvalidTable
from hoodie_nb.index.run import Section
from hoodie_nb.storage.storage import OURS, Storage, read_bytes
from hoodie_nb.view.file_groups import FileSlice

FOLDER = f"{OURS}/index"
RUNS = f"{FOLDER}/runs"
_PREFIX = "manifest-"
_KIND = "hoodie_nb state index 2, murmur64a"
_NAME = re.compile(rf"{_PREFIX}\d{{14,17}}")
_REMOVED = "null"
PARTS = 16
_manifests: "dict[tuple[str, int, str], Manifest]" = {}  # the last one that this process read


def _typed(values: Sequence[Any], *kinds: type) -> Sequence[Any]:
    if [type(value) for value in values] != [*kinds]:
        raise TypeError(f"{values} were not written by this library")
    return values


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A file group whose keys are in the runs, as of the slice that `instant` wrote.

    Entries are valid from the run of instant `since` on, which has all keys; `dead` of the
    `entries` are keys deleted since.
    """

    instant: str
    since: str
    entries: int
    dead: int = 0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The index of one partition; `used` is the instant that last touched it.

    `pure` means that all its files were loaded at that time.
    """

    used: str
    groups: Mapping[str, LoadedGroup] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    pure: bool = False

    def loaded(self, piece: FileSlice) -> LoadedGroup | None:
        """Return the entry for a slice; None if its keys are not loaded."""
        known = self.groups.get(piece.file_id)
        current = known is not None and known.instant == piece.instant_time
        return known if current and piece.staged_path is None else None

    def valid(self, file_id: str, section: Section) -> bool:
        """Whether a file group's entries in a section are still valid."""
        known = self.groups.get(file_id)
        return known is not None and known.since <= section.instant

    @property
    def totals(self) -> "Totals":
        """Return the partition's share of the manifest's totals."""
        entries = sum(section.count for section in self.sections)
        size = sum(section.length for section in self.sections)
        return Totals(len(self.groups), entries, size, int(self.pure))

    def to_json(self) -> str:
        """Return the line's text; `parse` is the inverse."""
        groups = {file_id: astuple(known) for file_id, known in self.groups.items()}
        sections = [astuple(section) for section in self.sections]
        return json.dumps([self.used, self.pure, groups, sections])

    @classmethod
    def parse(cls, text: bytes) -> "PartitionState | None":
        """Return the state that `to_json` wrote; None for anything else."""
        try:
            used, pure, groups, sections = json.loads(text)
            known = {i: LoadedGroup(*_typed(v, str, str, int, int)) for i, v in groups.items()}
            kept = tuple(Section(*_typed(v, str, str, int, int, int, int)) for v in sections)
        except (ValueError, TypeError, AttributeError):
            return None
        inside = all(s.run == f"{RUNS}/{s.run.rpartition('/')[2]}" for s in kept)
        return cls(str(used), known, kept, bool(pure)) if inside else None


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals over a manifest's partitions, stored so that they need not be computed."""

    loaded_files: int = 0
    entries: int = 0
    bytes: int = 0
    pure_partitions: int = 0

    def changed(self, old: "Totals", new: "Totals") -> "Totals":
        """Return the totals after one partition's have changed."""
        numbers = zip(astuple(self), astuple(old), astuple(new), strict=True)
        return Totals(*(ours - before + after for ours, before, after in numbers))


_NOTHING = Totals()


@dataclass(frozen=True, slots=True)
class _Part:
    """The lines of one manifest file, without the first."""

    name: str
    content: bytes

    def line(self, name: bytes) -> bytes:
        """Return the line of a partition, whose name is given in JSON; empty if it has none."""
        at = self.content.find(b"\t" + name + b"\t")
        begin = self.content.rfind(b"\n", 0, max(at, 0)) + 1
        end = self.content.find(b"\n", at)
        return b"" if at < 0 else self.content[begin : end if end >= 0 else None]


class Manifest:
    """The partitions' states as of one instant; a line is read when it is needed."""

    def __init__(
        self, instant: str = "", totals: Totals = _NOTHING, parts: tuple[_Part, ...] = ()
    ) -> None:
        self.instant = instant
        self.totals = totals
        self._parts = parts  # newest first
        self._changed: dict[bytes, bytes] = {}
        self._read: dict[str, PartitionState | None] = {}  # writers look it up once per file

    @functools.cached_property
    def _lines(self) -> dict[bytes, bytes]:
        """All lines by partition, for callers that need more than a few of them."""
        lines = b"\n".join(part.content for part in reversed(self._parts)).split(b"\n")
        return {_name(line): line for line in lines if line} | self._changed

    def _line_of(self, path: str) -> bytes:
        name = json.dumps(path).encode()
        if "_lines" in vars(self) or len(self._read) > 16:  # splitting is faster
            return self._lines.get(name, b"")
        found = (line for part in self._parts if (line := part.line(name)))
        return self._changed.get(name) or next(found, b"")

    def __iter__(self) -> Iterator[str]:
        """Yield the partitions that can be read."""
        valid = (name for name, line in self._lines.items() if _body(line) is not None)
        return (path for path in map(json.loads, valid) if self.partition(path) is not None)

    def partition(self, path: str) -> PartitionState | None:
        """Return the state of a partition; None if unknown or not readable."""
        if path not in self._read:
            body = _body(self._line_of(path))
            text = b"" if body is None else body.partition(b"\t")[2]
            self._read[path] = PartitionState.parse(text)
        return self._read[path]

    @property
    def files(self) -> set[str]:
        """The names of the files that have its lines."""
        return {part.name for part in self._parts}

    @property
    def runs(self) -> set[str]:
        """The paths of all runs in its lines, from the table's root."""
        text = b"\n".join(self._lines.values()).decode(errors="replace")
        return set(re.findall(rf"{re.escape(RUNS)}/[^\"]+\.run", text))

    @property
    def current(self) -> dict[bytes, bytes]:
        """The lines of the partitions that were not removed."""
        removed = f"\t{_REMOVED}".encode()
        return {name: line for name, line in self._lines.items() if not line.endswith(removed)}

    def with_states(self, instant: str, states: Mapping[str, PartitionState | None]) -> "Manifest":
        """Return the manifest of a later instant with these partitions set; None removes one."""
        manifest = Manifest(instant, self.totals, self._parts)
        manifest._changed |= self._changed
        for path, state in states.items():
            before = self.partition(path)
            old = _NOTHING if before is None else before.totals
            new = _NOTHING if state is None else state.totals
            manifest.totals = manifest.totals.changed(old, new)
            line = _line(path, _REMOVED if state is None else state.to_json())
            manifest._changed[json.dumps(path).encode()] = line
        return manifest

    def save(self, storage: Storage) -> None:
        """Write the manifest atomically; it is not synced, since a torn one is ignored."""
        below = self._parts
        lines = self._changed
        later = sum(len(part.content) for part in below[:-1]) + sum(map(len, lines.values()))
        if not below or len(below) >= PARTS or later > len(below[-1].content):
            below = ()
            lines = self.current
        names = [part.name for part in below]
        head = json.dumps({"instant": self.instant, "totals": astuple(self.totals), "below": names})
        content = b"\n".join((_line(_KIND, head), *lines.values(), b""))
        storage.put(f"{FOLDER}/{manifest_name(self.instant)}", content, durable=False)


def manifest_name(instant: str) -> str:
    """Return the name of an instant's manifest."""
    return f"{_PREFIX}{instant}"


def manifest_names(storage: Storage) -> list[str]:
    """Return the names of all manifests, oldest first."""
    entries = storage.list_folder(FOLDER)
    return [e.name for e in entries if not e.is_folder and _NAME.fullmatch(e.name)]


def newest_manifest(storage: Storage) -> str:
    """Return the name of the newest manifest; empty if none."""
    try:
        return (manifest_names(storage) or [""])[-1]
    except (OSError, InvalidTable):
        return ""


def read_manifest(storage: Storage, name: str) -> Manifest:
    """Return the manifest with that name; an empty one if it cannot be read.

    Earlier manifests that it names but that cannot be read count as empty.
    """
    try:
        head, content = _contents(storage, name)
        totals = Totals(*_typed(head["totals"], int, int, int, int))
        manifest = Manifest(str(head["instant"]), totals, (_Part(name, content),))
        below = [n for n in head["below"] if _NAME.fullmatch(n)]
    except (OSError, InvalidTable, ValueError, KeyError, TypeError):
        return Manifest()
    for earlier in below:
        with contextlib.suppress(OSError, InvalidTable, ValueError):
            manifest._parts += (_Part(earlier, _contents(storage, earlier)[1]),)
    return manifest


def manifest_of(plan: WritePlan) -> Manifest:
    """Return the manifest that a plan names, read once per process."""
    path = f"{FOLDER}/{plan.manifest}"
    entry = plan.storage.entry(path) if plan.manifest else None
    if entry is None:
        return Manifest()
    version = (f"{plan.storage.root}/{path}", entry.modified_ms, entry.version)
    found = _manifests.get(version)
    if found is None:
        found = read_manifest(plan.storage, plan.manifest)
        _manifests.clear()
        _manifests[version] = found
    return found


def _contents(storage: Storage, name: str) -> tuple[dict[str, Any], bytes]:
    """Return the head and the other lines of a manifest; ValueError for another file."""
    first, _, content = read_bytes(storage, f"{FOLDER}/{name}").partition(b"\n")
    kind, _, head = (_body(first) or b"").partition(b"\t")
    if kind != json.dumps(_KIND).encode():
        raise ValueError(f"{name} is not a manifest of this version")
    return dict(json.loads(head)), content


def _line(name: str, text: str) -> bytes:
    body = f"{json.dumps(name)}\t{text}".encode()
    return f"{zlib.crc32(body):08x}\t".encode() + body


def _name(line: bytes) -> bytes:
    return line.partition(b"\t")[2].partition(b"\t")[0]


def _body(line: bytes) -> bytes | None:
    """Return a line without its checksum, None if that is wrong."""
    crc, _, body = line.partition(b"\t")
    return body if len(crc) == 8 and f"{zlib.crc32(body):08x}".encode() == crc else None
