"""One row per key out of sorted rows or runs, by the merge rule.

Sorted runs that were spilled to disk are folded again by reading them in parallel, one key range
after another, so that only one piece of each run is in memory.

*Source:* HoodieWriteHelper.deduplicateRecords, ExternalSpillableMap.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.rows.merge_rule import MergeRule
from hoodie_nb.rows.ordering import runs_of
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY


def fold_partitions(rows: pa.Table, rule: MergeRule) -> pa.Table:
    """Return one row per key, partition by partition, for rows sorted by partition."""
    partitions = rows.column(PARTITION_PATH).combine_chunks()
    pieces = [rule.fold(rows.slice(a, b - a)) for a, b in runs_of(partitions)]
    return pa.concat_tables([rows.schema.empty_table(), *pieces])


def fold_runs(runs: Sequence[Iterator[pa.Table]], rule: MergeRule) -> Iterator[pa.Table]:
    """Fold sorted runs into pieces sorted by key; each run yields tables in key order."""
    for ready in merge_runs(runs):
        yield rule.fold(ready)


def merge_runs(runs: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Yield the rows of runs that are sorted by partition and key; a piece has whole keys."""
    heads: dict[int, pa.Table] = {}
    for number, run in enumerate(runs):
        _advance(heads, number, run)
    while heads:
        bound = min(_last_key(head) for head in heads.values())
        ready = []
        for number in list(heads):
            while number in heads:  # the rows of the last key may go on in the run's next piece
                below, heads[number] = _split(heads[number], bound)
                ready.append(below)
                if heads[number].num_rows:
                    break
                _advance(heads, number, runs[number])
        yield pa.concat_tables(ready)


def _advance(heads: dict[int, pa.Table], number: int, run: Iterator[pa.Table]) -> None:
    heads.pop(number, None)
    for piece in run:
        if piece.num_rows:
            heads[number] = piece
            return


def _last_key(rows: pa.Table) -> tuple[bytes, bytes]:
    """Return the partition and key of the last row, as bytes: Arrow compares texts so."""
    last = rows.slice(rows.num_rows - 1).select([PARTITION_PATH, RECORD_KEY]).to_pylist()[0]
    return last[PARTITION_PATH].encode(), last[RECORD_KEY].encode()


def _split(piece: pa.Table, bound: tuple[bytes, bytes]) -> tuple[pa.Table, pa.Table]:
    partition, key = (text.decode() for text in bound)
    partitions = piece.column(PARTITION_PATH)
    same = pc.and_(pc.equal(partitions, partition), pc.less_equal(piece.column(RECORD_KEY), key))
    inside = pc.sum(pc.or_(pc.less(partitions, partition), same)).as_py() or 0
    return piece.slice(0, inside), piece.slice(inside)
