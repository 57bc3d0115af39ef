"""`index="bloom"`: lookups by key range, bloom filter and key column; its caches.

*Work flow* of `locate`: for each slice of the partition, keys outside the footer's key range are
pruned, the bloom filter prunes most of the others, and the remaining keys are looked up in the
file's key column. A slice without key range or bloom filter (written by others, or emptied by
deletes) is a candidate for every key: slower, with the same result.

Footers are read once per file and process; key columns are kept within a task. A base file with a
given name never changes, so neither can be stale.

*Source:* RFC-24 "new index", HoodieBloomIndex, HoodieKeyLookupHandle.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.index_port import Copies, Index, LookupCounts
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.files.base_file import open_base_file, read_footer, read_keys
from hoodie_nb.files.bloom import BloomFilter
from hoodie_nb.files.key_range import inside
from hoodie_nb.view.file_groups import FileSlice

V = TypeVar("V")
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _FileIndex:
    min_key: str | None
    max_key: str | None
    bloom: BloomFilter | None
    rows: int


class _Recent(Generic[V]):
    """A small LRU cache."""

    def __init__(self, capacity: int) -> None:
        self._kept: OrderedDict[str, V] = OrderedDict()
        self._capacity = capacity

    def get(self, key: str, read: Callable[[], V]) -> V:
        value = self._kept.get(key)
        if value is None:
            value = read()
            self._kept[key] = value
        self._kept.move_to_end(key)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
        return value


_FOOTER_BYTES = 16 << 10  # one small request
_footers: _Recent[_FileIndex] = _Recent(4096)  # shared by the tasks of a process


class BloomIndex(Index):
    """The index of one task over the slices of a plan."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._keys: _Recent[pa.Array] = _Recent(8)
        self.counts = LookupCounts()

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null for a new key."""
        slices: Mapping[str, FileSlice] = self._plan.groups.partition(partition)
        self.counts.keys += len(keys)
        numbers = np.full(len(keys), -1, dtype=np.int32)
        ids = sorted(slices)
        for number, file_id in enumerate(ids):
            open_keys = np.flatnonzero(numbers < 0)
            if len(open_keys) == 0:
                break
            hits = self._in_file(slices[file_id], keys.take(pa.array(open_keys)))
            numbers[open_keys[hits]] = number
        self.counts.found += int((numbers >= 0).sum())
        return pa.array(ids, pa.string()).take(pa.array(numbers, mask=numbers < 0))

    def copies(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> Copies:
        """Return other file groups with the keys, as (position of the key, file id)."""
        rows = [np.empty(0, np.int64)]
        ids = list[str]()
        for file_id, piece in sorted(self._plan.groups.partition(partition).items()):
            others = np.flatnonzero(pc.not_equal(file_ids, file_id).to_numpy(zero_copy_only=False))
            rows.append(others[self._in_file(piece, keys.take(pa.array(others)))])
            ids += [file_id] * len(rows[-1])
        return np.concatenate(rows), ids

    def _in_file(self, piece: FileSlice, keys: pa.Array) -> Positions:
        """Return the positions of the `keys` that are in the file."""
        maybe = self.candidates(piece, keys)
        if len(maybe) == 0:
            return maybe
        hits = maybe[self.contains(piece, keys.take(pa.array(maybe)))]
        self.counts.false_positives += len(maybe) - len(hits)
        return hits

    def candidates(self, piece: FileSlice, keys: pa.Array) -> Positions:
        """Return the positions of the `keys` that pass the key range and the bloom filter."""
        index = self._file_index(piece)
        maybe = np.arange(len(keys))
        if index.min_key is not None and index.max_key is not None:
            maybe = np.flatnonzero(inside(keys, index.min_key, index.max_key))
            self.counts.pruned_by_range += len(keys) - len(maybe)
        if index.bloom is not None and len(maybe):
            maybe = maybe[index.bloom.might_contain(keys.take(pa.array(maybe)))]
        if index.rows == 0 or len(maybe) == 0:
            return maybe[:0]
        self.counts.candidates += len(maybe)
        return maybe

    def contains(self, piece: FileSlice, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Return for each key whether it is in the file's key column."""
        found = pc.is_in(keys, value_set=self._file_keys(piece))
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)

    def _file_index(self, piece: FileSlice) -> _FileIndex:
        storage = self._plan.storage

        def read() -> _FileIndex:
            footer = read_footer(open_base_file(storage.fetch(piece.base_path, _FOOTER_BYTES)))
            return _FileIndex(footer.min_key, footer.max_key, footer.bloom(), footer.rows)

        return _footers.get(f"{storage.root}/{piece.base_path}", read)

    def _file_keys(self, piece: FileSlice) -> pa.Array:
        def read() -> pa.Array:
            self.counts.files_looked_up += 1
            return read_keys(self._plan.storage.fetch(piece.base_path, piece.size_bytes))

        return self._keys.get(piece.base_path, read)
