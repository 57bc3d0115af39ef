"""Which of two rows of a key wins: ordering values, nulls, NaN, ties; partial update.

| merge mode | rule |
| --- | --- |
| `event_time` | the row with the greater ordering value; among equal values, the newer arrival |
| `commit_time` | the newer arrival |
| `partial` | as above, but a column that is null in the winning row keeps the other row's value |

Null is lower than any ordering value, so an update without one loses; NaN counts as null. A delete
is compared by its own ordering value: a late delete loses. Within a batch, rows before a delete do
not fill nulls; the row after a delete is filled from the stored row, as in Hudi.

**Caveats**: Java orders NaN above every number, so there a row with NaN can never be updated.
Rows that fill one another are folded one bucket at a time, in memory: folding some of them first
could give another result.

*Source:* RecordMergeMode, BufferedRecordMergerFactory.shouldKeepNewerRecord,
PartialUpdateAvroPayload.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.rows.columns import OP, SEQ, is_delete
from hoodie_nb.rows.ordering import Mask, ascends, first_of_run, sort_order
from hoodie_nb.rows.taking import take_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

_OWN = (RECORD_KEY, PARTITION_PATH, SEQ, OP)


class MergeRule(Protocol):
    """Decides between the rows of one key; `ordering` None means by arrival.

    `fills`: rows fill one another's nulls, so the result of a row depends on the stored row.
    """

    @property
    def ordering(self) -> str | None:
        """Return the ordering column; None for the order of arrival."""

    @property
    def fills(self) -> bool:
        """Return whether a winning row takes values from a losing one."""

    def fold(self, rows: pa.Table) -> pa.Table:
        """Return one row per key, sorted by key."""


@dataclass(frozen=True, slots=True)
class WholeRow:
    """The winning row is kept unchanged."""

    ordering: str | None
    fills: bool = False

    def fold(self, rows: pa.Table) -> pa.Table:
        """Return the winning row of each key, sorted by key."""
        if ascends(rows.column(RECORD_KEY)):  # one row per key already, as in most batches
            return rows
        rows = _ranked(rows, self.ordering)
        first = first_of_run(rows.column(RECORD_KEY).combine_chunks())
        return rows.filter(pa.array(_lasts(first)))


@dataclass(frozen=True, slots=True)
class Partial:
    """The winning row keeps the values of older rows where its own are null."""

    ordering: str | None
    fills: bool = True

    def fold(self, rows: pa.Table) -> pa.Table:
        """Return one row per key: in each column the last non-null value since the last delete."""
        if rows.num_rows < 2:
            return rows.combine_chunks()
        rows = _ranked(rows, self.ordering)
        first = first_of_run(rows.column(RECORD_KEY).combine_chunks())
        numbers = np.arange(rows.num_rows)
        lasts = np.flatnonzero(_lasts(first))
        begins = np.maximum.accumulate(np.where(first, numbers, 0))
        deletes = is_delete(rows)
        begins = np.maximum(begins, np.maximum.accumulate(np.where(deletes, numbers + 1, 0)))[lasts]
        folded = {}
        for field in rows.schema:
            valid = rows.column(field.name).is_valid().to_numpy()
            newest = np.maximum.accumulate(np.where(valid, numbers, -1))[lasts]
            takes = lasts if field.name in _OWN else np.where(newest >= begins, newest, lasts)
            folded[field.name] = take_rows(rows.select([field.name]), pa.array(takes)).column(0)
        return pa.table(folded, schema=rows.schema)


def rule_of(mode: str, ordering: str | None) -> MergeRule:
    """Return the rule of a merge mode of `types.merge_modes`."""
    if mode == "partial":
        return Partial(ordering)
    return WholeRow(ordering if mode == "event_time" else None)


def filled(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return rows with nulls replaced by the values of the other rows, position by position."""
    columns = [
        pc.coalesce(column, others.column(name).cast(column.type))
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return pa.table(columns, schema=rows.schema)


def _ranked(rows: pa.Table, ordering: str | None) -> pa.Table:
    """Return rows by key, ordering value and arrival; rows without a value come first."""
    columns = {RECORD_KEY: rows.column(RECORD_KEY)}
    if ordering is not None:
        values = comparable(rows.column(ordering))
        if values.null_count:
            columns["present"] = pc.is_valid(values)
        columns["ordering"] = values
    columns[SEQ] = rows.column(SEQ)
    return take_rows(rows, sort_order(pa.table(columns), list(columns)))


def comparable(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return ordering values with null instead of NaN, which cannot be compared."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def _lasts(first: Mask) -> Mask:
    """Return which rows end a run, given which start one; there is at least one row."""
    return np.append(first[1:], True)


def not_older(incoming: pa.Array, stored: pa.Array) -> Mask:
    """Return per row whether the ordering value of `incoming` is at least that of `stored`."""
    incoming = comparable(incoming)
    stored = comparable(stored)
    wins = pc.greater_equal(incoming, stored)
    wins = pc.if_else(pc.is_null(stored), True, pc.if_else(pc.is_null(incoming), False, wins))
    return np.asarray(pc.fill_null(wins, False).to_numpy(zero_copy_only=False), dtype=bool)
