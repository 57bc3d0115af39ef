"""Taking rows by position, and parts of bounded size, without Arrow's 2 GB overflow.

Arrow counts the bytes of a text column in 32 bits: `Table.take` and `Table.sort_by` fail if the
column has 2 GiB or more, even if few rows are taken. Here large tables are taken in bounded parts,
so the result has several chunks. Otherwise rows that a stream considers written could be too large
to be applied.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.rows.ordering import ARROW_BYTES, ascends, sort_order

PART_BYTES = 256 << 20
PART_ROWS = 131_072  # of a piece that operators pass on
_TEXT = (pa.types.is_string, pa.types.is_binary)
Indices = npt.NDArray[np.int64]


def take_rows(rows: pa.Table, indices: pa.Array) -> pa.Table:
    """Return the rows at `indices`, like `Table.take`."""
    if rows.nbytes * max(1.0, len(indices) / max(1, rows.num_rows)) < ARROW_BYTES:
        return rows.take(indices)
    batches = rows.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches])
    sizes = _row_bytes(rows)
    order = indices.to_numpy().astype(np.int64)
    parts = [_part(batches, ends, order[a:b]) for a, b in _cuts(sizes[order])]
    return pa.concat_tables([rows.schema.empty_table(), *parts])


def sort_rows(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the rows in ascending order of the columns `by`."""
    if ascends(rows.column(by[0])):
        return rows.combine_chunks()
    return take_rows(rows, sort_order(rows, by)).combine_chunks()


def parts_of(rows: pa.Table, max_rows: int) -> Iterator[pa.Table]:
    """Yield the rows in parts of bounded size, in order."""
    for start in range(0, rows.num_rows, max_rows):
        part = rows.slice(start, max_rows)
        if part.nbytes < PART_BYTES:
            yield part
        else:
            yield from (part.slice(a, b - a) for a, b in _cuts(_row_bytes(part)))


def _row_bytes(rows: pa.Table) -> Indices:
    """Return the bytes of each row; those of nested columns are averages."""
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in rows.columns:
        if any(is_text(column.type) for is_text in _TEXT):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        else:
            sizes += -(-column.nbytes // max(1, rows.num_rows))
    return sizes


def _cuts(sizes: Indices) -> list[tuple[int, int]]:
    """Return the bounds of parts of at most `PART_BYTES` each, and the rest of one row."""
    part = np.cumsum(sizes) // PART_BYTES
    inner = (np.flatnonzero(np.diff(part)) + 1).tolist()
    return list(itertools.pairwise([0, *inner, len(sizes)])) if len(sizes) else []


def _part(batches: Sequence[pa.RecordBatch], ends: Indices, order: Indices) -> pa.Table:
    """Return the rows at `order`, whose bytes fit into one Arrow array."""
    where = np.searchsorted(ends, order, side="right")
    by_batch = np.argsort(where, kind="stable")
    found, counts = np.unique(where, return_counts=True)
    groups = np.split(order[by_batch], np.cumsum(counts)[:-1])
    taken = []
    for number, rows in zip(found.tolist(), groups, strict=True):
        first = ends[number] - batches[number].num_rows
        taken.append(batches[number].take(pa.array(rows - first)))
    together = pa.Table.from_batches(taken, batches[0].schema).combine_chunks()
    return together.take(pa.array(np.argsort(by_batch)))
