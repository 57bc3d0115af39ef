"""Folding: of several rows of one key, which one counts.

The row with the greater ordering value wins; among equal ones the newer arrival. Null is lower than
any value, so that an update without an ordering value loses, and NaN counts as null. A delete takes
part with its own ordering value: a late one loses.

A fold sorts by (key, ordering, sequence) and keeps the last row of each key. Sorted runs that were
spilled to disk are folded again by walking them side by side, one range of keys after the other, so
that memory holds one piece of each run and not the whole.

**Caveats**: Java orders NaN above every number: there, a row that has one can never be updated.

*Source:* RecordMergeMode.EVENT_TIME_ORDERING, BufferedRecordMergerFactory.shouldKeepNewerRecord.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.table.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.writer.intake import SEQ

Mask = npt.NDArray[np.bool_]


def fold_partitions(rows: pa.Table, ordering: str | None) -> pa.Table:
    """Return one row a key, partition by partition, for rows that come sorted by partition."""
    partitions = rows.column(PARTITION_PATH).combine_chunks()
    begins = [*np.flatnonzero(first_of_run(partitions)).tolist(), rows.num_rows]
    pieces = [fold(rows.slice(a, b - a), ordering) for a, b in itertools.pairwise(begins)]
    return pa.concat_tables([rows.schema.empty_table(), *pieces])


def fold(rows: pa.Table, ordering: str | None) -> pa.Table:
    """Return one row a key, sorted by key; `ordering` None keeps the newest arrival."""
    if rows.num_rows < 2:
        return rows.combine_chunks()
    ranked, keys = _ranked(rows, ordering)
    rows = rows.take(pc.sort_indices(ranked, sort_keys=keys))
    return rows.filter(pa.array(_last_of_key(rows.column(RECORD_KEY).combine_chunks())))


def _ranked(rows: pa.Table, ordering: str | None) -> tuple[pa.Table, list[tuple[str, str]]]:
    """Return the columns to sort by; rows without an ordering value come first."""
    columns = {RECORD_KEY: rows.column(RECORD_KEY)}
    if ordering is not None:
        values = comparable(rows.column(ordering))
        if values.null_count:
            columns["present"] = pc.is_valid(values)
        columns["ordering"] = values
    columns[SEQ] = rows.column(SEQ)
    return pa.table(columns), [(name, "ascending") for name in columns]


def comparable(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return ordering values with null for NaN, which compares with nothing."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def _last_of_key(keys: pa.Array) -> Mask:
    last = np.ones(len(keys), dtype=bool)
    if len(keys) > 1:
        last[:-1] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    return last


def first_of_run(*columns: pa.Array) -> Mask:
    """Return which rows begin a run of equal values in all `columns` (none of them null)."""
    first = np.zeros(len(columns[0]), dtype=bool)
    first[:1] = True
    for column in columns:
        if len(column) > 1:
            first[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return first


def not_older(incoming: pa.Array, stored: pa.Array) -> Mask:
    """Return per row whether `incoming` has at least the ordering value of `stored`."""
    incoming, stored = comparable(incoming), comparable(stored)
    wins = pc.greater_equal(incoming, stored)
    wins = pc.if_else(pc.is_null(stored), True, pc.if_else(pc.is_null(incoming), False, wins))
    return np.asarray(pc.fill_null(wins, False).to_numpy(zero_copy_only=False), dtype=bool)


def fold_runs(runs: Sequence[Iterator[pa.Table]], ordering: str | None) -> Iterator[pa.Table]:
    """Fold sorted runs into pieces sorted by key; each run yields tables in key order."""
    heads: dict[int, pa.Table] = {}
    for number, run in enumerate(runs):
        _advance(heads, number, run)
    while heads:
        bound = min(h.column(RECORD_KEY)[h.num_rows - 1].as_py().encode() for h in heads.values())
        ready = []
        for number in list(heads):
            below, heads[number] = _split(heads[number], bound.decode())
            ready.append(below)
            if heads[number].num_rows == 0:
                _advance(heads, number, runs[number])
        yield fold(pa.concat_tables(ready), ordering)


def _advance(heads: dict[int, pa.Table], number: int, run: Iterator[pa.Table]) -> None:
    heads.pop(number, None)
    for piece in run:
        if piece.num_rows:
            heads[number] = piece
            return


def _split(piece: pa.Table, bound: str) -> tuple[pa.Table, pa.Table]:
    inside = pc.sum(pc.less_equal(piece.column(RECORD_KEY), bound)).as_py() or 0
    return piece.slice(0, inside), piece.slice(inside)
