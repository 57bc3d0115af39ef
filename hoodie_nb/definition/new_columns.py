"""Schema evolution: which columns a write may add, and which types it may widen.

Columns are only added, behind the others, and types only become wider: all readers find columns by
name, and read older files with nulls and converted values. So no file is rewritten.

| type | `Table.add_columns` | `schema="merge"` |
| --- | --- | --- |
| int | long, float, double, string | long |
| long | float, double, string | - |
| float | double | double |
| decimal | at least as many digits before and after the point | the same |
| struct, list, map | new inner fields; inner types as above | the same |

A write only widens where no stored value changes and numbers stay of their kind: pandas gives
integers with nulls as floats, which must not turn a column of longs into doubles.

**Caveats**: the columns of record key, partition and order keep their types: keys and paths are
text that is made from the value, and the ordering's type decides how Hudi compares.

*Source:* HoodieAvroUtils.rewritePrimaryType, AlterHoodieTableAddColumnsCommand.
"""

from collections.abc import Mapping

import pyarrow as pa

from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.types.schema import (
    IS_DELETED,
    check_stored_names,
    is_any_list,
    refuse_not_null,
    storable,
)

Changes = Mapping[pa.DataType, tuple[pa.DataType, ...]]
_INT = pa.int32()
_LONG = pa.int64()
_FLOAT = pa.float32()
_DOUBLE = pa.float64()
BY_CALL: Changes = {
    _INT: (_LONG, _FLOAT, _DOUBLE, pa.string()),
    _LONG: (_FLOAT, _DOUBLE, pa.string()),
    _FLOAT: (_DOUBLE,),
}
BY_WRITE: Changes = {_INT: (_LONG,), _FLOAT: (_DOUBLE,)}
_MOST_DIGITS = 38


def with_added(schema: pa.Schema, given: pa.Schema, config: TableConfig) -> pa.Schema:
    """Return a table's schema with the columns of `given`, or raise InvalidConfig, InvalidInput.

    A column of `given` that the table has must have its type, or a wider one.
    """
    if not given.names:
        raise InvalidConfig("no columns are given: name at least one, with its type")
    stored = storable(given)
    refuse_not_null(given, None)
    merged = _merged(schema, stored, BY_CALL)
    for field in stored:
        if merged.field(field.name).type != field.type:
            raise InvalidInput(
                f"column {field.name!r} has type {schema.field(field.name).type} in the table, "
                f"which cannot become {field.type} (docs/types.md, New columns): choose another "
                "name for the new column"
            )
    fixed = [n for n in _fixed(config) if n in schema.names and merged.field(n) != schema.field(n)]
    if fixed:
        raise InvalidInput(
            f"columns {fixed} are part of record key, partition or order, whose types cannot "
            "change: write the rows to a new table with these types"
        )
    return merged


def with_new(schema: pa.Schema, given: pa.Schema, config: TableConfig) -> pa.Schema:
    """Return a table's schema for rows of the schema `given`: with their new columns, and wider.

    Raises InvalidInput for new columns that cannot be stored. Other types are left to the intake.
    """
    check_stored_names(given)
    new = [f for f in given if f.name not in schema.names and f.name != IS_DELETED]
    known = [f for f in given if f.name in schema.names and f.name not in _fixed(config)]
    return _merged(
        schema, [*filter(None, map(_storable, known)), *storable(pa.schema(new))], BY_WRITE
    )


def can_widen(schema: pa.Schema, given: pa.Field, config: TableConfig) -> bool:
    """Whether `Table.add_columns` can change a column of the table to the type of `given`."""
    field = _storable(given)
    kind = schema.field(given.name).type
    if field is None or given.name in _fixed(config):
        return False
    return bool(field.type == _wider(kind, field.type, BY_CALL) != kind)


def _fixed(config: TableConfig) -> list[str]:
    """Return the columns whose types decide where a row is, or which version of it counts."""
    names = (*config.record_key, *config.partition_by, *filter(None, [config.ordering]))
    return [name.partition(".")[0] for name in dict.fromkeys(names)]


def _storable(field: pa.Field) -> pa.Field | None:
    try:
        return storable(pa.schema([field])).field(0)
    except InvalidInput:  # of another type, whose values may fit nevertheless
        return None


def _merged(schema: pa.Schema, stored: list[pa.Field] | pa.Schema, changes: Changes) -> pa.Schema:
    both = pa.schema(_fields(schema, stored, changes))
    check_stored_names(both)
    storable(pa.schema([f for f in both if f not in [*schema]]))  # names inside that differ in case
    return both


def _fields(
    own: pa.Schema | pa.StructType,
    given: list[pa.Field] | pa.Schema | pa.StructType,
    changes: Changes,
) -> list[pa.Field]:
    """Return the fields of a schema or struct, wider ones for `given`, and then its new ones."""
    kinds = {field.name: field.type for field in own}
    for field in given:
        known = kinds.get(field.name)
        kinds[field.name] = field.type if known is None else _wider(known, field.type, changes)
    return [pa.field(name, kind) for name, kind in kinds.items()]


def _wider(kind: pa.DataType, given: pa.DataType, changes: Changes) -> pa.DataType:
    """Return `kind` with the allowed changes that lead to `given`; itself if there are none."""
    if pa.types.is_struct(kind) and pa.types.is_struct(given):
        return pa.struct(_fields(kind, given, changes))
    if pa.types.is_list(kind) and is_any_list(given):
        return pa.list_(_wider(kind.value_type, given.value_type, changes))
    if pa.types.is_map(kind) and pa.types.is_map(given):
        return pa.map_(kind.key_type, _wider(kind.item_type, given.item_type, changes))
    if pa.types.is_decimal(kind) and pa.types.is_decimal(given):
        scale = max(kind.scale, given.scale)
        digits = scale + max(kind.precision - kind.scale, given.precision - given.scale)
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else kind
    return given if given in changes.get(kind, ()) else kind
