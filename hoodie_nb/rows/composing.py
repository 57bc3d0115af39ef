"""Several sealed checkpoints as one write: what each key's operations amount to, in order.

The result equals that of one commit per checkpoint. A delete at 5 followed by an insert at 3 in a
later checkpoint must keep the insert, so rows are not simply folded. Instead each key carries a
threshold, the greatest ordering value that its rows have beaten so far; the stored row is replaced
if it is not newer than the threshold.

| before | next row | result |
| --- | --- | --- |
| row at v, threshold t | row or delete at o >= v | that row or delete, threshold max(t, o) |
| row at v, threshold t | row or delete at o < v | unchanged: the row is late |
| delete, threshold t | row or delete at o | that row or delete, threshold max(t, o) |

All rows are sorted once by key and arrival. The table above is then applied to the second row of
each key, to the third row, and so on: the work grows with the number of rows, not of checkpoints.
Ordering values are compared by their rank among all rows; null and NaN are lowest.

**Caveats**: the rows of one interval are composed in the driver's memory.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.rows.columns import (
    DELETE_ALWAYS,
    OP,
    SEQ,
    STORE,
    STORE_ALWAYS,
    THRESHOLD,
    with_column,
)
from hoodie_nb.rows.merge_rule import comparable
from hoodie_nb.rows.ordering import first_of_run
from hoodie_nb.rows.taking import sort_rows, take_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

Numbers = npt.NDArray[np.int64]
Kinds = npt.NDArray[np.int8]


def composed(runs: Sequence[pa.Table], ordering: str | None) -> pa.Table:
    """Return the keyed rows of several checkpoints, given in order of arrival, with thresholds.

    The result has one row per key, in order of partition and key; so does each run.
    """
    rows = _by_key_and_arrival(runs)
    kinds: Kinds = np.asarray(rows.column(OP).to_numpy(), dtype=np.int8)
    ranks = _ranks(rows, ordering)
    key = (rows.column(name).combine_chunks() for name in (PARTITION_PATH, RECORD_KEY))
    begins = np.flatnonzero(first_of_run(*key))
    state = _State(begins, kinds[begins])
    for keys, following in _rounds(begins, rows.num_rows):
        state.apply(keys, following, kinds, ranks, by_arrival=ordering is None)
    winners = take_rows(rows, pa.array(state.row))
    winners = with_column(winners, OP, state.kind)
    if ordering is None:
        return winners.append_column(THRESHOLD, pa.nulls(winners.num_rows, pa.int8()))
    return winners.append_column(
        THRESHOLD, rows.column(ordering).take(pa.array(state.threshold)).combine_chunks()
    )


def beat_by_their_own(rows: pa.Table, ordering: str) -> bool:
    """Whether the thresholds of composed rows are their ordering values, all that a log can say."""
    compared = rows.filter(pc.not_equal(rows.column(OP), DELETE_ALWAYS))
    same = pc.equal(compared.column(ordering), compared.column(THRESHOLD))
    return bool(pc.all(same, skip_nulls=False, min_count=0).as_py())


class _State:
    """For each key: the winning row, the row with its threshold, and the operation."""

    def __init__(self, begins: Numbers, kinds: Kinds) -> None:
        self.row = begins.copy()
        self.threshold = begins.copy()
        self.kind = kinds.copy()

    def apply(
        self, keys: Numbers, rows: Numbers, kinds: Kinds, ranks: Numbers, *, by_arrival: bool
    ) -> None:
        """Apply one later row to each of `keys`."""
        deleted = ~np.isin(self.kind[keys], (STORE, STORE_ALWAYS))
        newer = ranks[rows] >= ranks[self.row[keys]]
        wins = deleted | newer | (kinds[rows] == DELETE_ALWAYS) | by_arrival
        keys = keys[wins]
        rows = rows[wins]
        always = np.isin(self.kind[keys], (DELETE_ALWAYS, STORE_ALWAYS))
        stores = np.isin(kinds[rows], (STORE, STORE_ALWAYS))
        lasting = np.where(stores, STORE_ALWAYS, DELETE_ALWAYS)  # rows that lost once stay replaced
        self.kind[keys] = np.where(always, lasting, kinds[rows])
        higher = ranks[rows] >= ranks[self.threshold[keys]]
        self.threshold[keys] = np.where(higher, rows, self.threshold[keys])
        self.row[keys] = rows


def _by_key_and_arrival(runs: Sequence[pa.Table]) -> pa.Table:
    """Return all rows by partition, key and arrival; the sequence is set to the arrival."""
    rows = pa.concat_tables(runs)
    rows = with_column(rows, SEQ, np.arange(rows.num_rows, dtype=np.int64))
    return sort_rows(rows, (PARTITION_PATH, RECORD_KEY, SEQ))


def _ranks(rows: pa.Table, ordering: str | None) -> Numbers:
    """Return the rank of each row's ordering value; equal values share a rank, null is lowest."""
    if ordering is None:
        return np.zeros(rows.num_rows, dtype=np.int64)
    values = comparable(rows.column(ordering).combine_chunks())
    order = pc.array_sort_indices(values, null_placement="at_start")
    valid = values.take(order).drop_null()
    ranks = np.zeros(rows.num_rows, dtype=np.int64)
    ranks[order.to_numpy()[values.null_count :]] = np.cumsum(first_of_run(valid))
    return ranks


def _rounds(begins: Numbers, count: int) -> list[tuple[Numbers, Numbers]]:
    """Return the second row of each key that has one, then the third, …, with the keys."""
    lengths = np.diff(np.append(begins, count))
    rounds = []
    keys = np.flatnonzero(lengths > 1)
    step = 1
    while len(keys):
        rounds.append((keys, begins[keys] + step))
        step += 1
        keys = keys[lengths[keys] > step]
    return rounds
