"""Deletes and updates by condition: `table.delete(where=…)`, `table.update(where=…, set=…)`.

*Work flow*, under the table's lock: the columns of the condition are read, file by file; each file
that has matching rows is rewritten as a whole, a few at a time, in one commit. Without a matching
row there is no instant.

*Semantics*: as in SQL, a row for which the condition is null does not match. A row is changed where
it is stored, without the index and the merge rule. So it changes whatever its ordering value is,
and keeps that value; setting a column to null replaces its value (even with
`merge_mode="partial"`); and if a key was inserted twice, only the matching rows change. A text in
`set` is always SQL, never stored as it is: `"'x'"` is the string x, and `"x"` the column x.

*Fault tolerance*: like any write. No other writer can commit between the read and the commit: a
change by an engine that does not know the lock is noticed before the commit (ConcurrentWriter).
*Source:* Hudi's DeleteHoodieTableCommand, UpdateHoodieTableCommand.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.events import EventLog
from hoodie_nb.index.file_keys import KeysToIndex
from hoodie_nb.machine import threads
from hoodie_nb.runners.batch import Commit, completed
from hoodie_nb.runners.settling import settled
from hoodie_nb.table.base_file import iterate_rows, open_base_file, stored_schema
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.conversion import fitted
from hoodie_nb.table.file_groups import FileSlice
from hoodie_nb.table.filters import RowFilter, projected
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.schema import COMMIT_TIME, RECORD_KEY, SEQNO
from hoodie_nb.writer.columns import with_column
from hoodie_nb.writer.intake import Intake
from hoodie_nb.writer.merge import MergeCounts
from hoodie_nb.writer.objects import from_objects
from hoodie_nb.writer.plan import TaskAttempt, WritePlan
from hoodie_nb.writer.rewrite import rewrite

_KEYS = pa.schema([(RECORD_KEY, pa.string())])


def change_rows(
    table: TableHandle, where: object, values: Mapping[str, Any] | None, events: EventLog
) -> Commit | None:
    """Delete the rows for which `where` is true, or set `values` in them; None if there are none.

    The caller holds the table. Raises InvalidConfig for a condition or columns that do not fit,
    InvalidInput for a value that does not.
    """
    coordinator = settled(table, events)
    schema = table.schema
    intake = Intake(table.config, schema, "delete" if values is None else "upsert")
    intake.check(schema)
    condition = RowFilter.of(where, stored_schema(schema))
    new = None if values is None else _NewValues.of(values, intake)
    with ThreadPoolExecutor(threads(table.options.max_file_bytes)) as pool:
        pieces = list(table.groups_to_write())
        hits = pool.map(lambda piece: _matches(table, piece, condition), pieces)
        found = [piece for piece, hit in zip(pieces, hits, strict=True) if hit]
        if not found:
            return None
        with coordinator.committing(intake) as work:
            change = _Rewriter(work.plan, condition, new).rewritten
            work.statuses = list(pool.map(change, found, range(len(found))))
    return completed(table, work.instant)


def _matches(table: TableHandle, piece: FileSlice, condition: RowFilter) -> bool:
    """Whether a file has a row for which the condition is true; only its columns are read."""
    path = table.storage.fetch(piece.path, piece.size_bytes)
    needs = condition.needs if len(condition.needs) else _KEYS  # a constant needs no column
    return any(
        condition.mask(r).true_count for r in iterate_rows(open_base_file(path), needs, path)
    )


@dataclass(frozen=True, slots=True)
class _NewValues:
    """The values that an update sets: expressions or SQL over the old row, or constants."""

    expressions: Mapping[str, pc.Expression]
    schema: pa.Schema

    @classmethod
    def of(cls, values: Mapping[str, Any], intake: Intake) -> "_NewValues":
        """Check columns and constants, or raise InvalidConfig or InvalidInput."""
        config, schema = intake.config, intake.schema
        if not values:
            raise InvalidConfig("set={}: name at least one column and its value")
        fixed = sorted({*config.record_key, *config.partition_by} & {*values})
        if fixed:
            raise InvalidConfig(
                f"set: {fixed} are record key or partition columns, which identify a row and "
                "cannot be set: delete these rows and upsert them with other values"
            )
        unknown = [name for name in values if name not in schema.names]
        if unknown:
            raise InvalidConfig(
                f"set: columns {unknown} are not in the table; it has {schema.names}"
            )
        given = {n: _expression(n, v, schema) for n, v in values.items()}
        empty = stored_schema(schema).empty_table()
        for name, expression in given.items():
            try:
                projected(empty, {name: expression})
            except pa.ArrowException as error:
                raise InvalidConfig(f"set[{name!r}] does not fit the table ({error})") from None
        return cls(given, schema)

    def applied(self, rows: pa.Table) -> pa.Table:
        """Return the rows with the new values, converted as those of a batch."""
        try:
            new = projected(rows, self.expressions)
        except pa.ArrowException as error:
            raise InvalidInput(
                f"set: an expression for {[*self.expressions]} fails on a matching row ({error}): "
                "change it, or let `where` leave these rows out; nothing was written"
            ) from None
        for name in self.expressions:
            column = fitted(new.column(name), name, self.schema.field(name).type)
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        return rows


def _expression(name: str, value: object, schema: pa.Schema) -> pc.Expression:
    if isinstance(value, pc.Expression):
        return value
    if isinstance(value, str):
        from hoodie_nb.table.sql_text import value_for  # sqlglot takes a tenth of a second

        return value_for(name, value, stored_schema(schema))
    kind = schema.field(name).type
    if isinstance(value, pa.Scalar):
        return pc.scalar(fitted(pa.repeat(value, 1), name, kind)[0])
    return pc.scalar(from_objects([value], name, kind)[0])


@dataclass(slots=True)
class _Rewriter:
    """Rewrites the files of one instant."""

    plan: WritePlan
    condition: RowFilter
    new: _NewValues | None

    def rewritten(self, piece: FileSlice, number: int) -> WriteStatus:
        """Return the status of a file's rewrite, the `number`-th of the instant."""
        attempt, counts = TaskAttempt(task=number), MergeCounts()
        keys = KeysToIndex(self.plan, piece.partition_path, piece)

        def change(rows: pa.Table) -> pa.Table:
            mask = self.condition.mask(rows)
            if self.new is None:
                counts.deletes += mask.true_count
                return rows.filter(pc.invert(mask))
            return self._updated(rows, mask, counts, f"{self.plan.instant_time}_{number}_")

        return rewrite(self.plan, piece, attempt, change, counts=counts, keys=keys)

    def _updated(
        self, rows: pa.Table, mask: pa.Array, counts: MergeCounts, prefix: str
    ) -> pa.Table:
        """Return the rows in their order, the matching ones with new values and this instant."""
        assert self.new is not None
        at = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        if not len(at):
            return rows
        changed = self.new.applied(rows.take(pa.array(at)))
        numbers = pc.cast(
            pa.array(np.arange(counts.updates, counts.updates + len(at))), pa.string()
        )
        meta = {
            COMMIT_TIME: pa.repeat(self.plan.instant_time, len(at)),
            SEQNO: pc.binary_join_element_wise(prefix, numbers, ""),
        }
        for name, column in meta.items():
            changed = with_column(changed, name, column)
        counts.updates += len(at)
        source = np.arange(rows.num_rows)
        source[at] = rows.num_rows + np.arange(len(at))
        together = pa.concat_tables([rows, changed.cast(rows.schema)])
        return together.take(pa.array(source))
