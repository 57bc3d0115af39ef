"""Python values (dicts, pandas objects) to Arrow types; the error with the row that is unfit.

Arrow finds the type of plain values itself. Dates, times, bytes, lists, dicts and maps are looked
at here first, since Arrow would drop a time of day, a zone, nanoseconds or an unknown field
silently. A map is a dict, or a list or tuple of pairs.

**Caveats**: whole columns are in memory as Python objects, as they were given.
"""

import datetime
import itertools
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from hoodie_nb.errors import InvalidInput
from hoodie_nb.types.conversion import Unfit, converted
from hoodie_nb.types.row_search import NOT_ARROW, failures, first_failure
from hoodie_nb.types.schema import is_narrower

Objects = npt.NDArray[np.object_]
_KINDS: dict[str, tuple[type, ...]] = {  # the first that fits counts
    "durations": (datetime.timedelta, np.timedelta64),
    "booleans": (bool, np.bool_),
    "integers": (int, np.integer),
    "longdouble": (np.longdouble,),
    "floats": (float, np.floating),
    "decimals": (Decimal,),
    "texts": (str,),
    "bytes": (bytes, bytearray, memoryview),
    "times": (datetime.datetime,),
    "dates": (datetime.date,),
}
_is = pa.types
_WIDEST = {int: pa.int64(), float: pa.float64()}  # what a column of numbers may become


def from_objects(values: Iterable[Any], name: str, kind: pa.DataType) -> pa.Array:
    """Return Python values as `kind`, or raise InvalidInput naming column, row and value."""
    cells = values.to_numpy() if isinstance(values, pd.Series) else _cells(values)
    try:
        return _array(cells, kind)
    except NOT_ARROW:
        row = first_failure(lambda a, b: _array(cells[:b], kind), len(cells))
        raise _refused(cells, row, name, kind) from None


def unfit_objects(values: pd.Series, kind: pa.DataType) -> dict[int, str]:
    """Return the rows of Python values that do not fit `kind`, and why."""
    cells = values.to_numpy()
    found = failures(lambda a, b: _array(cells[a:b], kind), len(cells))
    return {row: f"does not fit {kind}: {why}" for row, why in found.items()}


def _refused(cells: Objects, row: int, name: str, kind: pa.DataType) -> InvalidInput:
    try:
        _array(cells[: row + 1], kind)
        raise AssertionError("unreachable: these values have been refused before")
    except NOT_ARROW as error:
        remedy = getattr(error, "remedy", "cast, clean (text must be UTF-8) or filter them first")
        widen = ", or widen the column (docs/types.md, New columns)"
        return InvalidInput(
            f"column {name!r} has values that do not fit {kind}: row {row} (from 0) "
            f"has {_shown(cells[row])} of type {type(cells[row]).__name__} "
            f"(Arrow cannot convert it: {str(error)[:200]}): {remedy}"
            f"{widen if is_narrower(kind, _WIDEST.get(type(cells[row]), kind)) else ''}"
        )


def _shown(value: Any) -> str:  # noqa: ANN401
    try:
        return ascii(value)[:80]
    except Exception:  # Python has no text for long integers, nor for every class
        return "a value without a text"


def _cells(values: Iterable[Any]) -> Objects:
    given = list(values)
    return np.fromiter(given, dtype=object, count=len(given))


def _array(cells: Objects, kind: pa.DataType) -> pa.Array:
    """Return the values as `kind`, or raise Unfit or an error of Arrow."""
    if _is.is_nested(kind):
        return _nested(cells, kind)
    present = cells[~pd.isna(cells)]
    types = set(map(type, present))
    if _is.is_binary(kind) and any(issubclass(given, str) for given in types):
        raise Unfit("text is not bytes", "encode it first")
    _refuse_mixed(types)
    if _is.is_temporal(kind):
        _refuse_mixed_times(present)
    if len(types) > 1 and any(issubclass(given, np.number) for given in types):
        cells = _cells(c.item() if isinstance(c, np.number) else c for c in cells)
    array = pa.array(cells, from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return converted(array, kind)


def _nested(cells: Objects, kind: pa.DataType) -> pa.Array:
    null = pd.isna(cells)
    if null.all():
        return pa.nulls(len(cells), kind)
    present = cells[~null]
    array = _NESTED[kind.id](present, set(map(type, present)), kind)
    places = pa.array(np.cumsum(~null) - 1, pa.int64(), mask=null)
    return array.take(places) if null.any() else array


def _instances(cells: Objects, kind: type) -> npt.NDArray[np.bool_]:
    return np.fromiter(map(isinstance, cells, itertools.repeat(kind)), bool, len(cells))


def _refuse_mixed(types: set[type]) -> None:
    """Refuse mixtures that Arrow would guess at: a date and a number would both become a date."""
    kinds = sorted({_kind(given) for given in types})
    if len(kinds) > 1 and kinds not in (["floats", "integers"], ["decimals", "integers"]):
        raise Unfit(f"the column has {' and '.join(kinds)}", "use one type")
    if "longdouble" in kinds:
        raise Unfit("Arrow has no type for longdouble", "cast it to float first")


def _kind(given: type) -> str:
    return next(
        (name for name, types in _KINDS.items() if issubclass(given, types)), given.__name__
    )


def _refuse_mixed_times(present: Objects) -> None:
    """Refuse times of which Arrow would drop a part, and mixtures that it would guess at."""
    zones = set(map(attrgetter("tzinfo"), present[_instances(present, datetime.datetime)]))
    if None in zones and len(zones) > 1:
        raise Unfit("some of the times have a time zone, others do not", "choose the zone first")
    stamps = present[_instances(present, pd.Timestamp)]
    if any(map(attrgetter("nanosecond"), stamps)):
        raise Unfit("the time has nanoseconds", "round it first, e.g. with .dt.floor('us')")


def _lists(present: Objects, types: set[type], kind: pa.DataType) -> pa.Array:
    _refuse_types(types, (list, tuple, np.ndarray), "a list")
    values = _cells(itertools.chain.from_iterable(present))
    return pa.ListArray.from_arrays(_offsets(present), _array(values, kind.value_type), type=kind)


def _structs(present: Objects, types: set[type], kind: pa.DataType) -> pa.Array:
    _refuse_types(types, (Mapping,), "a dict")
    unknown = sorted(set().union(*present) - {field.name for field in kind}, key=str)
    if unknown:
        raise Unfit(f"the fields {unknown} are not in the table", "rename or drop them first")
    fields = [_array(_cells(map(methodcaller("get", f.name), present)), f.type) for f in kind]
    return pa.StructArray.from_arrays(fields, fields=list(kind))


def _maps(present: Objects, types: set[type], kind: pa.DataType) -> pa.Array:
    if all(issubclass(given, Mapping) for given in types):
        present = _cells(map(list, map(methodcaller("items"), present)))
    else:
        _refuse_types(types, (list, tuple, np.ndarray), "a dict or a list of pairs")
    pairs = _cells(itertools.chain.from_iterable(present))
    _refuse_types(set(map(type, pairs)), (tuple, list), "a pair")
    if set(map(len, pairs)) - {2}:
        raise Unfit("a map has pairs of a key and a value", "give a dict, or a list of pairs")
    both = _cells(itertools.chain.from_iterable(pairs))
    keys = _array(both[0::2], kind.key_type)
    if keys.null_count:
        raise Unfit("a key of a map is null", "remove these pairs first")
    return pa.MapArray.from_arrays(
        _offsets(present), keys, _array(both[1::2], kind.item_type)
    ).cast(kind)


_NESTED: dict[int, Callable[[Objects, set[type], pa.DataType], pa.Array]] = {
    pa.lib.Type_LIST: _lists,
    pa.lib.Type_STRUCT: _structs,
    pa.lib.Type_MAP: _maps,
}


def _refuse_types(types: set[type], wanted: tuple[type, ...], what: str) -> None:
    other = sorted(given.__name__ for given in types if not issubclass(given, wanted))
    if other:
        raise Unfit(f"{other[0]} is not {what}", f"give {what}")


def _offsets(present: Objects) -> pa.Array:
    lengths = np.fromiter(map(len, present), np.int64, len(present))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64()).cast(pa.int32())
