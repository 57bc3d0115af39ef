"""The manifest of the state index: its valid runs, and the files that they cover.

*On disk*: `.hoodie/.hoodie_nb/index/manifest-<instant>`, one per completed instant, written under a
temporary name and renamed. It has one line per partition, and one for the manifest itself, each
with its own CRC-32, so that a lookup reads only the lines of its partitions:

    <crc> TAB "partition path" TAB [used, pure, {file id: [loaded group], …}, [[section], …]]

*Semantics*: a file group's entries describe one slice, whose instant the line names. If the latest
slice is another one, the file counts as not loaded and its entries are not used. This one
comparison covers commits of others, rollbacks, restores, replaced groups and archived instants. A
line or manifest that cannot be read counts as empty.

*Source:* RFC-24 "new index"; a cache stored with the table.
"""

import functools
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from hoodie_nb.errors import InvalidTable
from hoodie_nb.index.run import Section
from hoodie_nb.table.file_groups import FileSlice
from hoodie_nb.table.storage import OURS, Storage

FOLDER = f"{OURS}/index"
RUNS = f"{FOLDER}/runs"
_PREFIX = "manifest-"
_KIND = "hoodie_nb state index 1, murmur64a"


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


class Manifest:
    """The partitions' states as of one instant; a line is read when it is needed."""

    def __init__(self, instant: str = "", content: bytes = b"", totals: Totals = _NOTHING) -> None:
        self.instant, self.totals = instant, totals
        self._content = content
        self._read: dict[str, PartitionState | None] = {}  # writers look it up once per file

    @functools.cached_property
    def _lines(self) -> dict[bytes, bytes]:
        """All lines by partition, for callers that need more than a few of them."""
        return {_name(line): line for line in self._content.split(b"\n") if line}

    def _line_of(self, path: str) -> bytes:
        name = json.dumps(path).encode()
        if "_lines" in vars(self) or len(self._read) > 16:  # splitting is faster
            return self._lines.get(name, b"")
        at = self._content.find(b"\t" + name + b"\t")
        begin, end = self._content.rfind(b"\n", 0, max(at, 0)) + 1, self._content.find(b"\n", at)
        return b"" if at < 0 else self._content[begin : end if end >= 0 else None]

    def __iter__(self) -> Iterator[str]:
        """Yield the partitions that can be read."""
        return (json.loads(name) for name, line in self._lines.items() if _body(line) is not None)

    def partition(self, path: str) -> PartitionState | None:
        """Return the state of a partition; None if unknown or not readable."""
        if path not in self._read:
            body = _body(self._line_of(path))
            text = b"" if body is None else body.partition(b"\t")[2]
            self._read[path] = PartitionState.parse(text)
        return self._read[path]

    def with_states(self, instant: str, states: Mapping[str, PartitionState | None]) -> "Manifest":
        """Return the manifest of a later instant with these partitions set; None removes one."""
        manifest = Manifest(instant, totals=self.totals)
        manifest._lines = dict(self._lines)
        for path, state in states.items():
            before, name = self.partition(path), json.dumps(path).encode()
            old = _NOTHING if before is None else before.totals
            new = _NOTHING if state is None else state.totals
            manifest.totals = manifest.totals.changed(old, new)
            manifest._lines.pop(name, None)
            if state is not None:
                manifest._lines[name] = _line(path, state.to_json())
        return manifest

    def save(self, storage: Storage) -> None:
        """Write the manifest atomically; not synced, since a torn one is merely not used."""
        head = json.dumps({"instant": self.instant, "totals": astuple(self.totals)})
        lines = (_line(_KIND, head), *self._lines.values(), b"")
        storage.put(manifest_path(self.instant), b"\n".join(lines), durable=False)


def manifest_path(instant: str) -> str:
    """Return the path of an instant's manifest, relative to the table's root."""
    return f"{FOLDER}/{_PREFIX}{instant}"


def make_folders(storage: Storage) -> None:
    """Create the index's folders."""
    storage.make_folder(RUNS)


def manifest_paths(storage: Storage) -> list[str]:
    """Return the paths of all manifests, relative to the table's root, oldest first."""
    names = [entry.name for entry in storage.list_folder(FOLDER) if not entry.is_folder]
    return sorted(f"{FOLDER}/{n}" for n in names if re.fullmatch(rf"{_PREFIX}\d{{14,17}}", n))


def newest_manifest(storage: Storage) -> str:
    """Return the path of the newest manifest, relative to the table's root; empty if none."""
    try:
        return (manifest_paths(storage) or [""])[-1]
    except (OSError, InvalidTable):
        return ""


def last_manifest(storage: Storage) -> Manifest:
    """Return the newest manifest; an empty one if there is none."""
    path = newest_manifest(storage)
    return read_manifest(storage.fetch(path)) if path else Manifest()


def read_manifest(path: str) -> Manifest:
    """Return the manifest at the local `path`; an empty one if it cannot be read."""
    try:
        with open(path, "rb") as file:
            first, _, content = file.read().partition(b"\n")
        kind, _, head = (_body(first) or b"").partition(b"\t")
        raw = json.loads(head) if kind == json.dumps(_KIND).encode() else {}
        return Manifest(
            str(raw["instant"]), content, Totals(*_typed(raw["totals"], int, int, int, int))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Manifest()


def _line(name: str, text: str) -> bytes:
    body = f"{json.dumps(name)}\t{text}".encode()
    return f"{zlib.crc32(body):08x}\t".encode() + body


def _name(line: bytes) -> bytes:
    return line.partition(b"\t")[2].partition(b"\t")[0]


def _body(line: bytes) -> bytes | None:
    """Return a line without its checksum, None if that is wrong."""
    crc, _, body = line.partition(b"\t")
    return body if len(crc) == 8 and f"{zlib.crc32(body):08x}".encode() == crc else None
