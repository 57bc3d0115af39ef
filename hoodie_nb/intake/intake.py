"""A piece of a batch becomes keyed rows, each to store or to delete; bad rows fail or go aside.

A keyed row has the record key and partition path as text, a sequence number (its position in the
input: among equal ordering values the newer arrival wins), the operation, and the table's own
columns, cast. All invalid input is detected here, before anything is written.

| column | type | meaning |
| --- | --- | --- |
| `_hoodie_record_key`, `_hoodie_partition_path` | string | as in the base file |
| `_hoodie_nb_seq` | int64 | order of arrival within the batch |
| `_hoodie_nb_op` | int8 | 0 store, 1 delete (if not older), 2 delete, 3 store always, 4 moved |
| `_hoodie_nb_threshold` | as the ordering | composed rows only (see `composing`) |

*Source:* HoodieKey, RowDataToHoodieFunction, Hudi's `_hoodie_is_deleted`.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.definition.keys import (
    Refusal,
    check_key_types,
    partition_paths,
    record_keys,
    refuse_rows,
)
from hoodie_nb.definition.new_columns import can_widen, with_new
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidInput, InvalidTable
from hoodie_nb.intake.bad_rows import RefusedRows
from hoodie_nb.rows.columns import DELETE, DELETE_ALWAYS, OP, SEQ, STORE, THRESHOLD
from hoodie_nb.rows.merge_rule import MergeRule, rule_of
from hoodie_nb.types.avro_schema import to_avro
from hoodie_nb.types.conversion import convertible, fitted, unfit_rows
from hoodie_nb.types.row_search import plain
from hoodie_nb.types.schema import (
    IS_DELETED,
    PARTITION_PATH,
    RECORD_KEY,
    check_stored_names,
    ordering_objection,
)

_KEYED = [
    pa.field(RECORD_KEY, pa.string()),
    pa.field(PARTITION_PATH, pa.string()),
    pa.field(SEQ, pa.int64()),
    pa.field(OP, pa.int8()),
]


@dataclass(frozen=True, slots=True)
class Intake:
    """The requirements on a batch, for one table and operation.

    `optional` columns may be missing: the table may have gained them after the query started.
    `quarantines`: rows with bad values do not fail the batch, see `keyed`. `merges`: the columns of
    the rows, if the write adds the new ones to the table.
    """

    config: TableConfig
    schema: pa.Schema
    operation: str = "upsert"
    composed: bool = False
    optional: frozenset[str] = frozenset()
    quarantines: bool = False
    merges: pa.Schema | None = None

    @property
    def rule(self) -> MergeRule:
        """Return what decides between the rows of one key."""
        return rule_of(self.config.merge_mode, self.config.ordering)

    @property
    def adds(self) -> bool:
        """Return whether every row is a separate record: keys are neither looked up nor folded."""
        return self.operation in ("insert", "bulk_insert")

    @property
    def ordering(self) -> str | None:
        """Return the column that decides between versions of a row; None: the newer arrival."""
        return self.rule.ordering

    @property
    def keyed_schema(self) -> pa.Schema:
        """Return the columns of keyed rows; composed rows also have a threshold."""
        fields = [*_KEYED, *self.schema]
        if self.composed:
            kind = self.schema.field(self.ordering).type if self.ordering else pa.int8()
            fields.append(pa.field(THRESHOLD, kind))
        return pa.schema(fields)

    def on(self, config: TableConfig, schema: pa.Schema) -> "Intake":
        """Return the intake for the current table; columns that it has gained are optional."""
        gained = frozenset(schema.names) - frozenset(self.schema.names)
        found = replace(self, config=config, schema=schema, optional=self.optional | gained)
        return found if self.merges is None else found.merging(self.merges)

    def merging(self, given: pa.Schema) -> "Intake":
        """Return the intake of a write that adds the new columns of its rows to the table."""
        return replace(self, schema=with_new(self.schema, given, self.config), merges=given)

    def check(self, given: pa.Schema) -> None:
        """Raise InvalidInput if columns are missing, unknown, of a wrong type or reserved.

        Raises InvalidTable if the table cannot be written by this library.
        """
        self.check_names(given)
        known = self._known
        for field in given:
            wanted = known[field.name]
            if not convertible(field.type, wanted):
                times = " (docs/types.md, Times)" if pa.types.is_timestamp(wanted) else ""
                wide = field.name in self.schema.names and can_widen(
                    self.schema, field, self.config
                )
                call = f", or call table.add_columns({{{field.name!r}: ...}}) with that type"
                raise InvalidInput(
                    f"column {field.name!r} has type {field.type}, but the table has {wanted}: "
                    f"cast it first{times}{call if wide else ''}"
                )

    def check_names(self, given: pa.Schema) -> None:
        """Like `check`, but only the names: values of any type are compared later, in `keyed`."""
        to_avro(self.schema, self.config.name)  # InvalidTable for a type that is only read
        check_stored_names(given)
        known = self._known
        becoming = [f.with_type(known.get(f.name, f.type)) for f in given]
        check_key_types(self.config, pa.schema(becoming))
        objection = ordering_objection(self.ordering, self.schema) if self.ordering else None
        if objection:
            raise InvalidTable(
                f"{objection}: write the table with the engine that created it, or use it to "
                "set another column in hoodie.table.precombine.field"
            )
        self._check_presence(given)

    @property
    def _known(self) -> dict[str, pa.DataType]:
        return {**{f.name: f.type for f in self.schema}, IS_DELETED: pa.bool_()}

    def _check_presence(self, given: pa.Schema) -> None:
        unknown = [n for n in given.names if n not in self.schema.names and n != IS_DELETED]
        if unknown:
            raise InvalidInput(
                f"columns {unknown} are not in the table, which has {self.schema.names}: drop or "
                'rename them, or add them to the table: schema="merge" in a batch write, or '
                "table.add_columns"
            )
        if self.operation == "delete":
            return
        missing = [
            n
            for n in self.schema.names
            if n not in given.names and n != IS_DELETED and n not in self.optional
        ]
        if missing:
            raise InvalidInput(
                f"columns {missing} of the table are missing in the data: add them (null is "
                "allowed except in keys)"
            )

    def keyed(self, rows: pa.Table, sequence: pa.Array, bad: RefusedRows | None = None) -> pa.Table:
        """Return keyed rows for `rows` (user columns), or raise InvalidInput naming bad values.

        With `bad`, rows that can be named go there, and the others are keyed.
        """
        while True:
            try:
                return self._keyed(rows, sequence)
            except InvalidInput as error:
                found = [] if bad is None else self._refused(rows, error)
                if bad is None or not found:
                    raise
            numbers, columns, reasons = zip(*found, strict=True)
            rows = pa.table([*map(plain, rows.columns)], names=rows.column_names)
            good = np.ones(rows.num_rows, dtype=bool)
            good[list(numbers)] = False
            bad.add(rows.filter(pa.array(~good)), [*columns], [*reasons])
            rows = rows.filter(pa.array(good))
            sequence = sequence.filter(pa.array(good))

    def _refused(self, rows: pa.Table, error: InvalidInput) -> list[tuple[int, str, str]]:
        """Return the bad rows for one of which an error was raised: number, column, reason."""
        if isinstance(error.refusal, Refusal):
            bad, column, why = error.refusal
            numbers = np.flatnonzero(np.asarray(bad)).tolist()
            whys = [why] * len(numbers) if isinstance(why, str) else why.filter(bad).to_pylist()
            return [(n, column, reason) for n, reason in zip(numbers, whys, strict=True)]
        first: dict[int, tuple[str, str]] = {}
        for name, kind in self._known.items():
            if name in rows.column_names:
                for number, why in unfit_rows(rows.column(name), kind).items():
                    first.setdefault(number, (name, why))
        return [(number, *found) for number, found in sorted(first.items())]

    def _keyed(self, rows: pa.Table, sequence: pa.Array) -> pa.Table:
        cast = _cast(rows, self.schema)
        if self.ordering in rows.column_names:  # a delete without it always wins
            self.refuse_unordered(cast)
        keys = record_keys(cast, self.config)
        place = cast.schema.get_field_index(self.config.record_key[0])
        field = cast.schema.field(place)
        if not self.config.composite_key and field.type == keys.type:  # one array, copied once
            cast = cast.set_column(place, field, keys)
        columns = [
            keys,
            partition_paths(cast, self.config),
            sequence,
            self._operations(rows),
            *cast.columns,
        ]
        return pa.Table.from_arrays(columns, schema=self.keyed_schema)

    def refuse_unordered(self, rows: pa.Table) -> None:
        """Raise InvalidInput for nulls that readers of log files do not merge: Java fails."""
        column = self.ordering
        if column is None or not self.config.merge_on_read:
            return
        values = rows.column(column).combine_chunks()
        why = "is the ordering column of a merge-on-read table, and null"
        refuse_rows(values, pc.is_null(values), column, why)

    def _operations(self, rows: pa.Table) -> pa.Array:
        if self.operation == "delete":
            by_order = self.ordering is not None and self.ordering in rows.column_names
            delete = DELETE if by_order else DELETE_ALWAYS
            return pa.repeat(pa.scalar(delete, pa.int8()), rows.num_rows)
        if IS_DELETED in rows.column_names:
            deleted = pc.fill_null(fitted(rows.column(IS_DELETED), IS_DELETED, pa.bool_()), False)
            return pc.cast(deleted, pa.int8()).combine_chunks()
        return pa.repeat(pa.scalar(STORE, pa.int8()), rows.num_rows)


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        fitted(rows.column(field.name), field.name, field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
