"""Folding: reduce the rows of each key to one row, by the table's merge rule.

Sorted runs that were spilled to disk are folded again by reading them in parallel, one key range
after another, so that only one piece of each run is in memory.

*Source:* HoodieWriteHelper.deduplicateRecords, ExternalSpillableMap.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.table.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.writer.merge_rule import MergeRule, first_of_run


def fold_partitions(rows: pa.Table, rule: MergeRule) -> pa.Table:
    """Return one row per key, partition by partition, for rows sorted by partition."""
    partitions = rows.column(PARTITION_PATH).combine_chunks()
    begins = [*np.flatnonzero(first_of_run(partitions)).tolist(), rows.num_rows]
    pieces = [rule.fold(rows.slice(a, b - a)) for a, b in itertools.pairwise(begins)]
    return pa.concat_tables([rows.schema.empty_table(), *pieces])


def fold_runs(runs: Sequence[Iterator[pa.Table]], rule: MergeRule) -> Iterator[pa.Table]:
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
        yield rule.fold(pa.concat_tables(ready))


def _advance(heads: dict[int, pa.Table], number: int, run: Iterator[pa.Table]) -> None:
    heads.pop(number, None)
    for piece in run:
        if piece.num_rows:
            heads[number] = piece
            return


def _split(piece: pa.Table, bound: str) -> tuple[pa.Table, pa.Table]:
    inside = pc.sum(pc.less_equal(piece.column(RECORD_KEY), bound)).as_py() or 0
    return piece.slice(0, inside), piece.slice(inside)
