"""Clauses of `update`, `delete`, `merge`: which rows one applies to, and which values it sets.

A merge has two sides, whose columns are `source.x` and `target.x`. For rows of one side only the
name alone is enough. An update or delete by condition has the columns of the table, as they are.

*Source:* the clauses of MERGE in Spark SQL and delta-rs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.intake.intake import Intake
from hoodie_nb.intake.objects import from_objects
from hoodie_nb.reading.filters import RowFilter, projected
from hoodie_nb.rows.taking import take_rows
from hoodie_nb.types.conversion import fitted
from hoodie_nb.types.schema import META_COLUMNS

Numbers = npt.NDArray[np.int64]
Sides = Mapping[str, tuple[pa.Table, Numbers]]  # "source", "target": a table, and rows of it


def columns_of(**sides: pa.Schema) -> pa.Schema:
    """Return the columns of the sides with the side's name, of a single one also without."""
    found = [(side, field) for side, schema in sides.items() for field in schema]
    plain = [f for _, f in found if len(sides) == 1 and f.name not in META_COLUMNS]
    return pa.schema([*(f.with_name(f"{side}.{f.name}") for side, f in found), *plain])


def _place(name: str, kind: str) -> tuple[str, str]:
    """Return the side and the name there of a column that a clause of this kind names."""
    side, _, column = name.partition(".")
    own = "source" if kind == "not_matched" else "target"
    sided = kind != "any" and column and side in ("source", "target")
    return (side, column) if sided else (own, name)


def _taken(names: Sequence[str], kind: str, sides: Sides) -> pa.Table:
    found = {}
    for name in names:
        side, column = _place(name, kind)
        rows, at = sides[side]
        found[name] = chosen(rows.select([column]), at).column(0)
    return pa.table(found or {"": pa.nulls(len(sides["source"][1]))})  # a constant needs no column


@dataclass(frozen=True, slots=True)
class NewValues:
    """The values that a clause sets: expressions, SQL, or constants; `whole`: of all columns."""

    expressions: Mapping[str, pc.Expression]
    schema: pa.Schema
    over: pa.Schema
    whole: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any], intake: Intake, over: pa.Schema) -> "NewValues":
        """Check columns and constants, or raise InvalidConfig or InvalidInput.

        `over` are the columns that the values may name.
        """
        schema = intake.schema
        if not values:
            raise InvalidConfig("set={}: name at least one column and its value")
        fixed = sorted({*intake.config.record_key, *intake.config.partition_by} & {*values})
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
        given = {n: _expression(n, v, schema, over) for n, v in values.items()}
        empty = over.empty_table()
        for name, expression in given.items():
            try:
                projected(empty, {name: expression})
            except pa.ArrowException as error:
                raise InvalidConfig(f"set[{name!r}] does not fit the table ({error})") from None
        return cls(given, schema, over)

    def onto(self, rows: pa.Table, kind: str, sides: Sides) -> pa.Table:
        """Return the rows with the new values, converted as those of a batch."""
        try:
            new = projected(_taken(self.over.names, kind, sides), self.expressions)
        except pa.ArrowException as error:
            raise InvalidInput(
                f"set: an expression for {[*self.expressions]} fails on a matching row ({error}): "
                "change it, or let `where` leave these rows out; nothing was written"
            ) from None
        for name in self.expressions:
            column = fitted(new.column(name), name, self.schema.field(name).type)
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        return rows


@dataclass(frozen=True, slots=True)
class Clause:
    """What is done with rows of one `kind`; without values they are deleted.

    The kinds are those of a merge, and "any": rows of the table, whatever the source has.
    """

    kind: str
    condition: RowFilter
    values: NewValues | None

    @property
    def needs(self) -> set[str]:
        """Return the columns of the table that the condition needs."""
        places = (_place(name, self.kind) for name in self.condition.needs.names)
        return {column for side, column in places if side == "target"}

    def hits(self, sides: Sides) -> npt.NDArray[np.bool_]:
        """Return for each row whether the condition is true."""
        mask = self.condition.mask(_taken(self.condition.needs.names, self.kind, sides))
        return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


def whole_rows(intake: Intake, source: pa.Schema) -> NewValues:
    """Return the values of all columns of the source, or raise InvalidInput if it lacks some."""
    missing = [name for name in intake.schema.names if name not in source.names]
    if missing:
        raise InvalidInput(
            f"set=None writes whole rows, but the source has no columns {missing}: add them, or "
            "name the columns to write, as in set={'a': 'source.a'}"
        )
    fixed = {*intake.config.record_key, *intake.config.partition_by}
    given = {n: pc.field(f"source.{n}") for n in intake.schema.names if n not in fixed}
    over = pa.schema([field.with_name(f"source.{field.name}") for field in source])
    return NewValues(given, intake.schema, over, whole=True)


def chosen(rows: pa.Table, at: Numbers) -> pa.Table:
    """Return the rows at these positions; all, in their order, are not copied."""
    whole = len(at) == rows.num_rows and bool((at == np.arange(len(at))).all())
    return rows if whole else take_rows(rows, pa.array(at))


def _expression(name: str, value: object, schema: pa.Schema, over: pa.Schema) -> pc.Expression:
    if isinstance(value, pc.Expression):
        return value
    if isinstance(value, str):
        from hoodie_nb.reading.sql_text import value_for  # sqlglot takes a tenth of a second

        return value_for(name, value, schema, over)
    kind = schema.field(name).type
    if isinstance(value, pa.Scalar):
        return pc.scalar(fitted(pa.repeat(value, 1), name, kind)[0])
    return pc.scalar(from_objects([value], name, kind)[0])
