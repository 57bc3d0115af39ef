"""Comparing text columns fast: sort order, ranks, runs of equal values.

Comparing texts pair by pair was most of the cost of a first load. Here they are compared as
numbers: eight bytes after their common prefix, padded with zeros. Rows that these do not separate
are compared by the next eight bytes, and so on up to `_COMPARED`; Arrow sorts the rows that are
still tied, and by the other columns. The order is Arrow's: byte by byte, and stable.

If the first two columns are texts (partition path and record key), the rank of the first takes the
highest bits of the first number.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
ARROW_BYTES = (1 << 31) - 1  # Arrow counts the bytes of a text column in 32 bits
_COMPARED = 40  # bytes
_RUN_ROWS = 8  # the least mean length of runs whose first rows alone are encoded
_KEPT = np.array([(1 << 64) - (1 << 64 - 8 * n) for n in range(9)], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts as bytes, without the prefix that all have in common."""

    data: npt.NDArray[np.uint8]
    starts: Indices
    lengths: Indices

    @classmethod
    def of(cls, texts: pa.Array) -> "_Texts":
        """Return the texts of a string array without nulls."""
        ends = pc.min_max(texts).as_py()
        low = ends["min"].encode()
        high = ends["max"].encode()
        differ = (at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
        shared = next(differ, len(low))
        _, offsets, data = texts.buffers()
        edges = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
        data = np.frombuffer(data or b"", np.uint8)[edges[0] : edges[-1]]
        padded = np.concatenate([data, np.zeros(8, np.uint8)])
        return cls(padded, edges[:-1] - edges[0] + shared, np.diff(edges) - shared)

    @property
    def longest(self) -> int:
        """Return the length of the longest text."""
        return int(self.lengths.max())

    def words(self, rows: Indices | slice, skip: int) -> Words:
        """Return bytes `skip` to `skip + 8` of each text as a number, high byte first."""
        found = np.ndarray((len(self.data) - 7,), ">u8", self.data, strides=(1,))
        left = np.clip(self.lengths[rows] - skip, 0, 8)
        at = np.where(left > 0, self.starts[rows] + skip, 0)
        return found[at].astype(np.uint64) & _KEPT[left]


def sort_order(rows: pa.Table, by: Sequence[str]) -> pa.Array:
    """Return the positions of the rows in ascending order of the columns `by`."""
    texts = [name for name in by[:2] if is_comparable(rows.column(name))]
    too_large = any(rows.column(name).nbytes >= ARROW_BYTES for name in by)  # cannot be taken
    if rows.num_rows < 2 or not texts or texts[0] != by[0] or too_large:
        return _arrow_order(rows, by)
    compared = _Texts.of(rows.column(texts[-1]).combine_chunks())
    words = compared.words(slice(None), 0)
    skip = 8
    if len(texts) == 2:
        ranks, bits = ranked(rows.column(by[0]).combine_chunks())
        words = (words >> np.uint64(bits)) | (ranks << np.uint64(63 - bits) << np.uint64(1))
        skip -= -(-bits // 8)
    order = np.argsort(words, kind="stable")
    at, groups = _tied(np.arange(len(order)), words[order])
    for begin in range(skip, min(compared.longest, _COMPARED), 8):
        if not len(at):
            return pa.array(order)
        words = compared.words(order[at], begin)
        within = np.lexsort((words, groups))
        order[at] = order[at][within]
        words = words[within]
        at, groups = _tied(at, _numbered(groups, words))
    if len(at):
        tied = rows.select(list(by)).take(pa.array(order[at]))
        within = _arrow_order(tied.append_column("", pa.array(groups)), ["", *by]).to_numpy()
        order[at] = order[at][within]
    return pa.array(order)


def ascends(column: pa.ChunkedArray) -> bool:
    """Return whether each value is greater than the one before it, as in rows that were sorted."""
    if column.null_count or len(column) < 2:
        return not column.null_count
    if not column[0].as_py() < column[-1].as_py():
        return False
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    edges = all(a[-1].as_py() < b[0].as_py() for a, b in itertools.pairwise(chunks))
    return edges and all(pc.all(pc.less(c[:-1], c[1:])).as_py() is not False for c in chunks)


def _arrow_order(rows: pa.Table, by: Sequence[str]) -> pa.Array:
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in by])


def is_comparable(texts: pa.ChunkedArray) -> bool:
    """Return whether texts can be compared as numbers: no nulls, and not too large."""
    return texts.type == pa.string() and not texts.null_count and texts.nbytes < ARROW_BYTES


def ranked(texts: pa.Array) -> tuple[Words, int]:
    """Return the rank of each text among the distinct ones, and the bits that a rank needs."""
    distinct, codes = encoded(texts)
    ranks = np.empty(len(distinct), dtype=np.uint64)
    ranks[pc.sort_indices(distinct).to_numpy()] = np.arange(len(ranks))
    return ranks[codes], (len(ranks) - 1).bit_length()


def encoded(texts: pa.Array) -> tuple[pa.Array, Indices]:
    """Return the distinct texts, and for each text (none is null) its position among them."""
    begins = np.flatnonzero(first_of_run(texts))
    if len(begins) > len(texts) // _RUN_ROWS:
        found = texts.dictionary_encode()
        return found.dictionary, found.indices.to_numpy()
    found = texts.take(pa.array(begins)).dictionary_encode()
    return found.dictionary, np.repeat(found.indices.to_numpy(), np.diff(begins, append=len(texts)))


def first_of_run(*columns: pa.Array) -> Mask:
    """Return which rows start a run of equal values in all `columns` (none of them null)."""
    first = np.zeros(len(columns[0]), dtype=bool)
    first[:1] = True
    for column in columns:
        if len(column) > 1:
            first[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return first


def runs_of(values: pa.Array) -> list[tuple[int, int]]:
    """Return the bounds of the runs of equal values (none of them null)."""
    return list(itertools.pairwise([*np.flatnonzero(first_of_run(values)).tolist(), len(values)]))


def _tied(at: Indices, numbers: Words | Indices) -> tuple[Indices, Indices]:
    """Return the places whose number equals that of a neighbour, and the number of their group."""
    same = numbers[1:] == numbers[:-1]
    tied = np.append(False, same) | np.append(same, False)
    return at[tied], np.cumsum(np.append(True, ~same))[tied]


def _numbered(groups: Indices, words: Words) -> Indices:
    """Return a number for each run of equal pairs."""
    new = (groups[1:] != groups[:-1]) | (words[1:] != words[:-1])
    return np.append(0, np.cumsum(new))
