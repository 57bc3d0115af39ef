"""Which Arrow types can be stored or order rows; NOT NULL; stored rows read in a newer schema.

Int8 and int16 are stored as int32. See `avro_schema` for what Hudi keeps in its commits.
"""

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import InvalidInput, InvalidTable

META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
COMMIT_TIME, SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME = META_COLUMNS
IS_DELETED = "_hoodie_is_deleted"
META_FIELDS = [pa.field(name, pa.string()) for name in META_COLUMNS]

PLAIN: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
}
WORDS = {kind: word for word, kind in PLAIN.items()}
LOGICAL: dict[str, tuple[str, pa.DataType]] = {
    "date": ("int", pa.date32()),
    "timestamp-micros": ("long", pa.timestamp("us", "UTC")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
}
LOGICAL_OF = {kind: {"type": raw, "logicalType": name} for name, (raw, kind) in LOGICAL.items()}
_NUMBERS = (pa.int32(), pa.int64(), pa.float32(), pa.float64())  # each may become a later one
_DEEPEST = 64
Pairs = list[tuple[pa.DataType, pa.DataType]]
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def storable(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with each type as it is stored, or raise InvalidInput naming the column."""
    check_stored_names(schema)
    return pa.schema(_stored_fields(schema, ""))


def check_stored_names(schema: pa.Schema) -> None:
    """Raise InvalidInput for columns that are Hudi's own, or have the same name.

    Spark ignores case: Hudi's own names are reserved in any case.
    """
    lower = {name: name.lower() for name in schema.names}
    reserved = [n for n, k in lower.items() if k in META_COLUMNS or k.startswith("_hoodie_nb_")]
    if reserved:
        raise InvalidInput(
            f"columns {reserved} belong to Hudi: drop them first, e.g. data.drop(*columns)"
        )
    flags = [name for name, key in lower.items() if key == IS_DELETED != name]
    if flags:
        raise InvalidInput(
            f"columns {flags} differ from Hudi's delete flag only in case: rename them, to "
            f"{IS_DELETED!r} if they are meant as that flag"
        )
    _check_fields(schema, "")


def ordering_objection(column: str, schema: pa.Schema) -> str | None:
    """Return why a column cannot decide between two versions of a row; None if it can."""
    if column not in schema.names:
        return f"ordering column {column!r} is not in the schema {schema.names}"
    kind = schema.field(column).type
    if pa.types.is_nested(kind):
        return f"ordering column {column!r} has type {kind}, whose values have no order"
    return None


def refuse_not_null(schema: pa.Schema, key: str | None) -> None:
    """Raise InvalidInput for NOT NULL fields, except for a `key` column, which is never null."""
    strict = [n for f in schema if f.name != key for n in _not_null(f, f.name)]
    if strict:
        raise InvalidInput(
            f"columns {strict} are NOT NULL, but all columns of the table must be nullable: change "
            "them (field.with_nullable(True) in Arrow, nullable=True or no NOT NULL in Spark)"
        )


def _not_null(field: pa.Field, path: str) -> list[str]:
    kind = field.type
    inside = list(kind) if pa.types.is_struct(kind) else []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = [kind.value_field]
    if pa.types.is_map(kind):
        inside = [kind.item_field]
    nested = [name for f in inside for name in _not_null(f, f"{path}.{f.name}")]
    return nested if field.nullable else [path, *nested]


def _check_fields(fields: Iterable[pa.Field], inside: str) -> None:
    """Refuse names of the fields of a schema (`inside` is "") or of a struct."""
    fields = list(fields)
    for field in fields:
        if not _AVRO_NAME.fullmatch(field.name):
            raise InvalidInput(
                f"column {inside + field.name!r} has a name that Avro does not allow: rename it "
                "(letters, digits and _, no leading digit)"
            )
    names = [field.name.lower() for field in fields]
    twice = sorted(inside + f.name for f in fields if names.count(f.name.lower()) > 1)
    if twice:
        raise InvalidInput(f"columns {twice} have the same name, ignoring case: rename one")


def _stored_fields(fields: Iterable[pa.Field], inside: str, depth: int = 0) -> list[pa.Field]:
    """Return the fields of a schema (`inside` is "") or of a struct as they are stored."""
    fields = list(fields)
    _check_fields(fields, inside)
    return [pa.field(f.name, _stored_type(f.type, inside + f.name, depth)) for f in fields]


def _stored_type(kind: pa.DataType, column: str, depth: int = 0) -> pa.DataType:
    if depth > _DEEPEST:
        name = column.partition(".")[0]
        raise InvalidInput(f"column {name!r} is nested deeper than {_DEEPEST} levels: flatten it")
    if pa.types.is_dictionary(kind):
        return _stored_type(kind.value_type, column, depth)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()):
        return pa.int32()
    if kind == pa.uint32():
        return pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_stored_type(kind.value_type, column, depth + 1))
    if pa.types.is_map(kind) and _stored_type(kind.key_type, column, depth + 1) == pa.string():
        return pa.map_(pa.string(), _stored_type(kind.item_type, column, depth + 1))
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct(_stored_fields(kind, f"{column}.", depth + 1))
    if kind in WORDS or kind in LOGICAL_OF:
        return kind
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return kind
    raise InvalidInput(f"column {column!r} has type {kind}, which Hudi cannot store: cast it first")


def as_type(column: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Return a column in its table's current type, or raise ArrowInvalid.

    Only Hudi's own changes of a type are followed. Integers that became floats are rounded to the
    nearest; a float that became a double keeps its decimal text (0.1 stays 0.1).
    """
    if pa.types.is_dictionary(kind):
        return as_type(column, kind.value_type).dictionary_encode()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not _follows(column.type, kind):
        raise pa.ArrowInvalid("Hudi does not change columns in this way")
    if column.type == pa.float32() and kind == pa.float64():
        return pc.cast(pc.cast(column, pa.string()), kind)
    return pc.cast(column, kind, safe=not _rounds(column.type, kind))


def conform(rows: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Return stored rows with exactly the columns of `schema`: cast, missing ones null.

    Raises InvalidTable naming file and column if values do not fit.
    """
    columns = [
        _fitting(rows.column(f.name), f, where)
        if f.name in rows.column_names
        else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _fitting(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    try:
        return column if column.type == field.type else as_type(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidTable(
            f"{where} has column {field.name!r} as {column.type}, which does not fit "
            f"the table's current type, {field.type} ({str(error)[:120]}): restore the table to "
            "before that change, or rewrite the file with the engine that changed it"
        ) from None


def _follows(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Hudi reads columns of the type `given` as `kind`: nothing narrower or of other text.

    An inner double of an inner float is the nearest number, not that of the same text.
    """
    if given in _NUMBERS and kind in _NUMBERS:
        return _NUMBERS.index(given) <= _NUMBERS.index(kind)
    if pa.types.is_integer(given):
        return kind in (*_NUMBERS, pa.string())
    inner = inner_types(given, kind)
    if inner is not None:
        return all(_follows(*both) for both in inner)
    alike = (_is_text, pa.types.is_decimal, pa.types.is_timestamp)
    same = any(of_kind(given) and of_kind(kind) for of_kind in alike)
    return same or given == kind or pa.types.is_null(given)


def is_narrower(kind: pa.DataType, given: pa.DataType) -> bool:
    """Whether a column of numbers became wider when its type `kind` became `given`."""
    both = kind in _NUMBERS and given in _NUMBERS
    return both and _NUMBERS.index(kind) < _NUMBERS.index(given)


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in texts or pa.types.is_fixed_size_binary(kind)


def is_any_list(kind: pa.DataType) -> bool:
    """Whether a type is that of lists, of 32 or 64 bits or of a fixed size."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def inner_types(given: pa.DataType, kind: pa.DataType) -> Pairs | None:
    """Return the pairs of inner types of two structs, lists or maps; None for other types."""
    if pa.types.is_struct(given) and pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return [(f.type, known[f.name]) for f in given if f.name in known]
    if is_any_list(given) and pa.types.is_list(kind):
        return [(given.value_type, kind.value_type)]
    if pa.types.is_map(given) and pa.types.is_map(kind):
        return [(given.key_type, kind.key_type), (given.item_type, kind.item_type)]
    return None


def _rounds(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether no values but numbers that become floats can be changed by an unchecked cast."""
    inner = inner_types(given, kind)
    if inner is not None:
        return all(_rounds(*both) for both in inner)
    if pa.types.is_decimal(given) and pa.types.is_decimal(kind):
        digits = kind.precision - kind.scale
        return bool(kind.scale >= given.scale and digits >= given.precision - given.scale)
    if pa.types.is_integer(given) and kind == pa.string():
        return True
    return given == kind or (given in _NUMBERS and kind in _NUMBERS and _follows(given, kind))


def lost_fields(column: pa.Array, kind: pa.DataType, path: str) -> list[str]:
    """Return the inner fields of a column that have values and are missing in `kind`."""
    given = column.type
    if pa.types.is_struct(given) and pa.types.is_struct(kind):
        known = {f.name: f.type for f in kind}
        lost = []
        for field in given:
            inner = pc.struct_field(column, field.name)
            name = f"{path}.{field.name}"
            if field.name in known:
                lost += lost_fields(inner, known[field.name], name)
            elif inner.null_count < len(inner):
                lost.append(name)
        return lost
    if pa.types.is_list(given) and pa.types.is_list(kind):
        return lost_fields(pc.list_flatten(column), kind.value_type, path)
    if pa.types.is_map(given) and pa.types.is_map(kind):
        return lost_fields(column.items, kind.item_type, path)
    return []
