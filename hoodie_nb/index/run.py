"""State index, run files: sorted key hashes on disk, their format, checksums and search.

A run has one section per partition; a section maps each hash to the file group that had the key.
The manifest gives the run, position, length and checksum of each section.

*On disk*: `.hoodie/.hoodie_nb/index/runs/<instant>-<nonce>.run`, little endian, each part padded to
8 bytes: the head `HNBRUN01`, instant (17 digits, padded to 24), then sections of

    meta        uint64 length, JSON: partition, file ids, number of hashes, bits
    hashes      uint64 each, sorted
    groups      uint32 each: position of the file id
    directory   uint32 each, 2^bits + 1: start of the hashes with that prefix
    filter      2^(bits + 4) bits: whether any hash has that longer prefix

A key takes at most 15 bytes. A hash is stored once per file group that has it, however many of the
group's keys share it. A lookup with many hashes of one prefix continues by bisection. So crafted
keys cost no more than others. The filter rejects most absent hashes early, which makes several
sections nearly as fast as one. Files are memory-mapped: lookups touch only the pages they need, no
run is held in memory, and no file stays open. A section's checksum is verified when it is first
opened.

*Source:* RFC-24 "new index"; the memtables of log-structured merge trees.
"""

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from hoodie_nb.storage.storage import Storage

HEAD = b"HNBRUN01"
_HEAD_BYTES = 32
_FINER = 4  # extra bits of the filter's prefixes, compared with the directory's
_STEPS = 24  # entries of one prefix that a lookup scans linearly; four are usual
Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]
Groups = NDArray[np.uint32]


class DamagedRun(ValueError):
    """A run that does not match the manifest: the index does not use it."""


@dataclass(frozen=True, slots=True)
class Section:
    """The location of one partition's hashes: run (path from the root), bytes, CRC-32, count.

    `instant` is the commit that wrote the run.
    """

    run: str
    instant: str
    offset: int
    length: int
    crc: int
    count: int


@dataclass(frozen=True, slots=True)
class Entries:
    """The hashes of one partition, sorted, and for each the position of its file id."""

    partition: str
    file_ids: Sequence[str]
    hashes: Hashes
    groups: Groups

    @classmethod
    def of(cls, partition: str, file_id: str, hashes: Hashes) -> "Entries":
        """Return the entries of one file group, given its hashes in any order."""
        hashes = np.sort(hashes)  # np.unique would hash them first: nine times slower
        distinct = hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]]
        return cls(partition, (file_id,), distinct, np.zeros(len(distinct), dtype=np.uint32))

    @classmethod
    def union(cls, parts: Sequence["Entries"], counts: Sequence[Collection[str]]) -> "Entries":
        """Return the union of several entries, limited to the file groups that count in each."""
        if len(parts) == 1 and [*parts[0].file_ids] == sorted(counts[0]):
            return parts[0]
        file_ids = sorted({i for part in parts for i in part.file_ids})
        number = {file_id: n for n, file_id in enumerate(file_ids)}
        hashes = [np.empty(0, np.uint64)]
        groups = [np.empty(0, np.uint32)]
        for part, valid in zip(parts, counts, strict=True):
            numbers = np.array([number[i] for i in part.file_ids], dtype=np.uint32)
            kept = np.array([i in valid for i in part.file_ids], dtype=bool)[part.groups]
            hashes.append(part.hashes[kept])
            groups.append(numbers[part.groups[kept]])
        together = np.concatenate(hashes)
        theirs = np.concatenate(groups)
        order = np.argsort(together, kind="stable")  # fast, since the parts are sorted
        return cls(parts[0].partition, file_ids, *_distinct(together[order], theirs[order]))

    def encoded(self) -> bytes:
        """Return the section's bytes; `SectionView` reads them."""
        count = len(self.hashes)
        bits = _bits(count)
        prefixes = (self.hashes >> np.uint64(63 - bits)) >> np.uint64(1)  # never a shift by 64
        each = np.bincount(prefixes.astype(np.int64), minlength=1 << bits)
        directory = np.concatenate([[0], np.cumsum(each)]).astype("<u4")
        present = np.zeros(1 << bits + _FINER, dtype=bool)
        present[(self.hashes >> np.uint64(64 - bits - _FINER)).astype(np.int64)] = True
        bitmap = np.packbits(present, bitorder="little").tobytes()
        meta = {"partition": self.partition, "groups": list(self.file_ids)}
        text = json.dumps({**meta, "count": count, "bits": bits}).encode()
        parts = [len(text).to_bytes(8, "little"), _padded(text), self.hashes.tobytes()]
        rest = (self.groups.tobytes(), directory.tobytes(), bitmap)
        return b"".join([*parts, *map(_padded, rest)])


def _distinct(hashes: Hashes, groups: Groups) -> tuple[Hashes, Groups]:
    """Return each pair once, by hash and group; the hashes are sorted."""
    same = hashes[1:] == hashes[:-1]
    if not same.any():
        return hashes, groups
    shared = np.flatnonzero(np.append(same, False) | np.append(False, same))
    groups[shared] = groups[shared][np.lexsort((groups[shared], hashes[shared]))]
    new = np.append(True, ~same | (groups[1:] != groups[:-1]))
    return hashes[new], groups[new]


def write_run(
    storage: Storage, path: str, instant: str, entries: Iterable[Entries]
) -> list[Section]:
    """Write a run, whose name must be new, and return the locations of its sections.

    It is not synced: if a power failure tears it, its checksum fails.
    """
    found = []
    offset = _HEAD_BYTES
    with storage.open_new(path) as sink:
        sink.write(HEAD + instant.encode().ljust(_HEAD_BYTES - len(HEAD)))
        for part in entries:
            body = part.encoded()
            sink.write(body)
            crc = crc32(body)
            found.append(Section(path, instant, offset, len(body), crc, len(part.hashes)))
            offset += len(body)
    return found


def _bits(count: int) -> int:
    return max(0, count.bit_length() - 2)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class SectionView:
    """A section opened for lookups; raises DamagedRun if its content has changed."""

    def __init__(self, path: str, section: Section) -> None:
        body = _mapped(path, section)
        try:
            size = int.from_bytes(body[:8], "little")
            meta = json.loads(bytes(body[8 : 8 + size]))
            self.partition = str(meta["partition"])
            self.file_ids = list(meta["groups"])
            count = int(meta["count"])
            bits = int(meta["bits"])
            if bits != _bits(count):
                raise ValueError(f"{count} hashes do not match {bits} bits")
            at = 8 + -(-size // 8) * 8
            self.hashes: Hashes = np.frombuffer(body, "<u8", count, at)
            self.groups: Groups = np.frombuffer(body, "<u4", count, at + 8 * count)
            at += 8 * count + -(-4 * count // 8) * 8
            self._directory = np.frombuffer(body, "<u4", (1 << bits) + 1, at)
            at += -(-4 * ((1 << bits) + 1) // 8) * 8
            self._filter = np.frombuffer(body, np.uint8, 1 << bits + _FINER - 3, at)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise DamagedRun(f"{path}: {error}") from None
        self._bits = bits
        self.instant = section.instant

    def entries(self) -> Entries:
        """Return the section's entries; the arrays stay in the mapped file."""
        return Entries(self.partition, self.file_ids, self.hashes, self.groups)

    def first(self, hashes: Hashes) -> tuple[Positions, Groups, Positions]:
        """Return the position of each hash found, one of its groups, and which have several.

        Groups are positions of file ids; the work is linear in the number of `hashes`.
        """
        rows, at = self._matches(hashes)
        after = np.minimum(at + 1, len(self.hashes) - 1)
        several = (after > at) & (self.hashes[after] == hashes[rows])
        return rows, self.groups[at], rows[several]

    def find(self, hashes: Hashes) -> tuple[Positions, Groups]:
        """Return each match as (position among `hashes`, position of the file id).

        A hash in several file groups is matched several times; distinct hashes have at most as many
        matches as there are entries.
        """
        rows, at = self._matches(hashes)
        found = [(rows, self.groups[at])]
        while len(rows):  # equal hashes are adjacent
            at = at + 1
            inside = np.flatnonzero(at < len(self.hashes))
            again = inside[self.hashes[at[inside]] == hashes[rows[inside]]]
            rows = rows[again]
            at = at[again]
            found.append((rows, self.groups[at]))
        return np.concatenate([r for r, _ in found]), np.concatenate([g for _, g in found])

    def _matches(self, hashes: Hashes) -> tuple[Positions, Positions]:
        """Return the position of each hash found, and of its first entry."""
        maybe = self._maybe(hashes)
        rows, at = self._first(hashes[maybe])
        return maybe[rows], at

    def _maybe(self, hashes: Hashes) -> Positions:
        """Return the positions of the hashes that pass the filter."""
        prefixes = hashes >> np.uint64(64 - self._bits - _FINER)
        bits = self._filter[(prefixes >> np.uint64(3)).astype(np.int64)]
        bits &= np.uint8(1) << (prefixes & np.uint64(7)).astype(np.uint8)
        return np.flatnonzero(bits)

    def _first(self, hashes: Hashes) -> tuple[Positions, Positions]:
        """Return the positions of the hashes found, and of their first match."""
        prefixes = ((hashes >> np.uint64(63 - self._bits)) >> np.uint64(1)).astype(np.int64)
        at = self._directory[prefixes].astype(np.int64)
        end = self._directory[prefixes + 1].astype(np.int64)
        rows = np.flatnonzero(at < end)
        at = at[rows]
        end = end[rows]
        wanted = hashes[rows]
        matched: list[tuple[Positions, Positions]] = []
        for _ in range(_STEPS):
            here = self.hashes[at]
            equal = here == wanted
            matched.append((rows[equal], at[equal]))
            on = np.flatnonzero((here < wanted) & (at + 1 < end))
            rows = rows[on]
            at = at[on] + 1
            end = end[on]
            wanted = wanted[on]
            if not len(rows):
                break
        else:
            at = np.minimum(np.searchsorted(self.hashes, wanted), len(self.hashes) - 1)
            equal = self.hashes[at] == wanted
            matched.append((rows[equal], at[equal]))
        none = np.empty(0, dtype=np.int64)
        found = np.concatenate([none, *(r for r, _ in matched)])
        return found, np.concatenate([none, *(a for _, a in matched)])


def _mapped(path: str, section: Section) -> memoryview:
    try:
        if not os.path.isfile(path):  # opening a pipe would block
            raise FileNotFoundError(f"there is no file {path}")
        with pa.memory_map(path) as file:
            data = memoryview(file.read_buffer())
    except OSError as error:
        raise DamagedRun(f"{path}: {error}") from None
    head = HEAD + section.instant.encode().ljust(_HEAD_BYTES - len(HEAD))
    body = data[section.offset : section.offset + section.length]
    if data[:_HEAD_BYTES] != head or len(body) != section.length or crc32(body) != section.crc:
        raise DamagedRun(f"{path} is not the run that was written")
    return body
