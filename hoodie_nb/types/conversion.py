"""Arrow values given in another type: which fit a column; the error with the row that does not.

| given | table | right if |
| --- | --- | --- |
| integers, whole floats, whole decimals | int, long | the value is in range |
| integers, floats | float, double | the nearest float is the value itself |
| integers, decimals | decimal | precision and scale suffice |
| naive times, `date64` | date | the time is midnight |
| times of any unit | times, both with a zone or both without | no nanoseconds are lost |
| structs | struct | every field with values is a field of the table |
| lists of structs with the fields `key` and `value` | map | no key is null or there twice |
| dictionaries, large and view types | their plain type | always |
| only nulls, of any type | any | always |

All other pairs are refused: text is not parsed, floats do not become decimals, and no time zone is
assumed.

*Source:* the types of `avro_schema`; docs/types.md lists them with tests.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import InvalidInput
from hoodie_nb.types.row_search import NOT_ARROW, failures, first_failure, part_of, plain
from hoodie_nb.types.schema import Pairs, inner_types, is_any_list, is_narrower

_is = pa.types


class Unfit(ValueError):
    """A value that has no equal in the table's type, and what to do about it."""

    def __init__(self, why: str, remedy: str = "cast, clean or filter the values first") -> None:
        super().__init__(why)
        self.remedy = remedy


def convertible(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether some values of the type `given` have an equal in `kind`."""
    try:
        _rule(given, kind)
    except Unfit:
        return False
    return all(convertible(*pair) for pair in _inner_types(given, kind))


def fitted(
    column: pa.Array | pa.ChunkedArray, name: str, kind: pa.DataType, first_row: int = 0
) -> pa.Array | pa.ChunkedArray:
    """Return a column as `kind`, or raise InvalidInput with its first unfit row and value.

    `first_row` is the number of the column's first row in the user's data, counted from 0.
    """
    try:
        return _checked(column, kind)
    except NOT_ARROW as error:
        whole = error
        row = first_failure(lambda a, b: _checked(part_of(column, a, b), kind), len(column))
    raise _refused(part_of(column, row, row + 1), name, kind, first_row + row, whole)


def unfit_rows(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> dict[int, str]:
    """Return the rows of a column that do not fit `kind`, and why."""
    found = failures(lambda a, b: _checked(part_of(column, a, b), kind), len(column))
    return {row: f"does not fit {kind}: {why}" for row, why in found.items()}


def _checked(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    column.validate(full=True)  # text from raw bytes may not be UTF-8
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_unrepeated(chunk, kind) for chunk in column.chunks], kind)
    return _unrepeated(column, kind)


def _unrepeated(column: pa.Array, kind: pa.DataType) -> pa.Array:
    array = converted(column, kind)
    if _has_map(kind):
        _refuse_repeated_keys(array)
    return array


def _has_map(kind: pa.DataType) -> bool:
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return _is.is_map(kind) or any(map(_has_map, inner))


def _refuse_repeated_keys(column: pa.Array) -> None:
    """Raise Unfit if a map, also one inside other values, has a key twice."""
    if _is.is_struct(column.type):
        for number in range(column.type.num_fields):
            _refuse_repeated_keys(pc.struct_field(column, [number]))
    elif _is.is_list(column.type):
        _refuse_repeated_keys(pc.list_flatten(column))
    elif _is.is_map(column.type):
        lists = as_lists(column)
        pairs = pc.list_flatten(lists)
        rows = pc.list_parent_indices(lists)
        both = pa.table({"row": rows, "key": pc.struct_field(pairs, "key")}).group_by(
            ["row", "key"], use_threads=False
        )
        if both.aggregate([]).num_rows < len(pairs):
            raise Unfit("a map has a key twice", "keep one of the pairs")
        _refuse_repeated_keys(pc.struct_field(pairs, "value"))


def as_lists(maps: pa.Array) -> pa.Array:
    """Return maps as lists of pairs."""
    pair = pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])
    return maps.cast(pa.list_(pair))


def _refused(
    value: pa.Array | pa.ChunkedArray, name: str, kind: pa.DataType, row: int, whole: Exception
) -> InvalidInput:
    try:
        _checked(value, kind)
        return InvalidInput(
            f"column {name!r} cannot become {kind} as a whole ({str(whole)[:200]}), although its "
            "single values can: write it in several batches"
        )
    except NOT_ARROW as error:
        remedy = getattr(error, "remedy", "cast, clean (text must be UTF-8) or filter them first")
        shown = _shown(value)
        widen = ", or widen the column (docs/types.md, New columns)"
        return InvalidInput(
            f"column {name!r} has values that do not fit {kind}: row {row} (from 0) has {shown} "
            f"of type {value.type} ({str(error)[:200]}): {remedy}"
            f"{widen if is_narrower(kind, value.type) else ''}"
        )


def _shown(value: pa.Array | pa.ChunkedArray) -> str:
    try:
        return repr(value[0].as_py())[:80]
    except (*NOT_ARROW, IndexError):
        return "a damaged value"


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as `kind` (a stored type), or raise Unfit or ArrowInvalid."""
    given = column.type
    if given.equals(kind, check_metadata=True):
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if _is.is_dictionary(given):
        return converted(_decoded(column), kind)
    _rule(given, kind)
    if _is.is_struct(kind):
        return _as_struct(column, kind)
    if _is.is_map(kind):
        return _as_map(column, kind)
    if _is.is_list(kind):
        offsets, values = _flat(column)
        values = converted(values, kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=column.is_null())
    return _as_number(column, kind) if _is.is_decimal(kind) else _cast_back(column, kind)


def _rule(given: pa.DataType, kind: pa.DataType) -> None:
    """Raise Unfit if no value but null of the type `given` has an equal in `kind`."""
    if given == kind or _is.is_null(given):
        return
    if _is.is_dictionary(given):
        return _rule(given.value_type, kind)
    if _is.is_timestamp(given) and (given.tz is None) != (getattr(kind, "tz", None) is None):
        raise Unfit(
            f"{given} and {kind} differ in the time zone",
            "cast it first, choosing the zone (docs/types.md, Times)",
        )
    if not any(source(given) and kind_of(kind) for source, kind_of in _PAIRS):
        raise Unfit(f"{given} cannot become {kind}", "cast it first")


def _is_text(kind: pa.DataType) -> bool:
    return bool(_is.is_string(kind) or _is.is_large_string(kind) or _is.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    plain = _is.is_binary(kind) or _is.is_large_binary(kind) or _is.is_binary_view(kind)
    return bool(plain or _is.is_fixed_size_binary(kind))


def _is_pairs(kind: pa.DataType) -> bool:
    inside = kind.value_type if is_any_list(kind) else None
    if inside is None or not _is.is_struct(inside):
        return False
    return sorted(field.name for field in inside) == ["key", "value"]


def _is_naive(kind: pa.DataType) -> bool:
    return _is.is_date64(kind) or (_is.is_timestamp(kind) and kind.tz is None)


_PAIRS: list[tuple[Callable[[Any], bool], Callable[[Any], bool]]] = [
    (_is_text, _is.is_string),
    (_is_bytes, _is.is_binary),
    (_is.is_integer, _is.is_integer),
    (_is.is_integer, _is.is_floating),
    (_is.is_integer, _is.is_decimal),
    (_is.is_floating, _is.is_floating),
    (_is.is_floating, _is.is_integer),
    (_is.is_decimal, _is.is_decimal),
    (_is.is_decimal, _is.is_integer),
    (_is.is_timestamp, _is.is_timestamp),
    (_is_naive, _is.is_date32),
    (is_any_list, _is.is_list),
    (_is_pairs, _is.is_map),
    (_is.is_map, _is.is_map),
    (_is.is_struct, _is.is_struct),
]


def _inner_types(given: pa.DataType, kind: pa.DataType) -> Pairs:
    """Return the pairs of types inside two types that fit."""
    if _is.is_dictionary(given):
        return _inner_types(given.value_type, kind)
    if _is.is_map(kind) and _is_pairs(given):
        pair = given.value_type
        return [(pair["key"].type, kind.key_type), (pair["value"].type, kind.item_type)]
    return inner_types(given, kind) or []


def _decoded(column: pa.DictionaryArray) -> pa.Array:
    """Return the values of a dictionary, of which Arrow does not decode views."""
    values = plain(column.dictionary)
    if _is.is_string(values.type) or _is.is_binary(values.type):
        size = pc.sum(pc.binary_length(values).cast(pa.int64()).take(column.indices)).as_py()
        if (size or 0) >= 1 << 31:  # not every version of Arrow refuses that
            raise Unfit("together they have 2 GiB or more", "write it in several batches")
    return values.take(column.indices)


def _cast_back(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the cast column, or raise Unfit if it has other values: not every cast checks that."""
    cast = pc.cast(column, kind)
    if _is.is_floating(column.type) and _is.is_floating(kind) and kind.bit_width < 64:
        exact, given = (pc.cast(values, pa.float64()) for values in (cast, column))
        same = pc.or_(pc.equal(exact, given), pc.is_nan(given))
        if not pc.all(same).as_py():
            raise Unfit(f"no {kind} is exactly this value", "round it first: values.astype(...)")
    if _is.is_date32(kind) and not pc.all(pc.equal(pc.cast(cast, column.type), column)).as_py():
        raise Unfit("a date cannot hold the time of day", "truncate it first: .dt.floor('D')")
    return cast


def _as_number(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals or integers as decimals."""
    if _is.is_integer(column.type):  # Arrow wants room for every integer of the type
        column = pc.cast(column, pa.decimal256(76, max(0, kind.scale)))
    return pc.cast(column, kind)


def _as_struct(column: pa.Array, kind: pa.DataType) -> pa.Array:
    names = [field.name for field in column.type]
    twice = sorted({name for name in names if names.count(name) > 1})
    known = {field.name for field in kind}
    lost = [
        n for n in names if n not in known and pc.struct_field(column, n).null_count < len(column)
    ]
    if twice or lost:
        raise Unfit(f"the fields {twice or lost} are not in the table", "rename or drop them first")
    fields = [
        converted(pc.struct_field(column, [names.index(f.name)]), f.type)
        if f.name in names
        else pa.nulls(len(column), f.type)
        for f in kind
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())


def _as_map(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if _is.is_map(column.type):
        column = as_lists(column)
    offsets, pairs = _flat(column)
    keys = converted(pc.struct_field(pairs, "key"), kind.key_type)
    if keys.null_count:
        raise Unfit("a key of a map is null", "remove these pairs first")
    items = converted(pc.struct_field(pairs, "value"), kind.item_type)
    offsets = pc.if_else(pa.concat_arrays([column.is_null(), pa.array([False])]), None, offsets)
    return pa.MapArray.from_arrays(offsets, keys, items).cast(kind)


def _flat(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets and values of lists; null lists have no values."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.array(offsets, pa.int64()).cast(pa.int32()), pc.list_flatten(column)
