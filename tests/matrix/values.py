"""Random values of every type that a table can have, and what becomes of them in a wider type."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from core.every_type import EVERY

EPOCH = dt.datetime(1970, 1, 1)
TEXTS = ("", " ", "é", "😀\0x", "a,b:c", "null", "NaN", "0", "Ünïcode", "x" * 300)
FLOATS = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.5, -2.25, 5e-324, 1e308)
_EDGES = {kind: [v for v in values if v is not None] for kind, values in EVERY.values()}
_IS, _EXACT = pa.types, Context(prec=76)
WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {  # the changes of type that Hudi follows
    pa.int32(): (pa.int64(), pa.float32(), pa.float64(), pa.string()),
    pa.int64(): (pa.float32(), pa.float64(), pa.string()),
    pa.float32(): (pa.float64(),),
}


def value(kind: pa.DataType, draw: random.Random, nulls: float = 0.2) -> Any:
    """Return a random value: an edge of its type at times, null at times."""
    if draw.random() < nulls:
        return None
    if draw.random() < 0.25 and _EDGES.get(kind):
        return draw.choice(_EDGES[kind])
    if _IS.is_nested(kind):
        return _nested(kind, draw)
    return _plain(kind, draw)


def _nested(kind: pa.DataType, draw: random.Random) -> Any:
    if _IS.is_struct(kind):
        return {field.name: value(field.type, draw) for field in kind}
    count = draw.choice([0, 1, 1, 2, 3])
    if _IS.is_map(kind):
        names = draw.sample(sorted(TEXTS), count)
        return [(name, value(kind.item_type, draw)) for name in names]
    return [value(kind.value_type, draw) for _ in range(count)]


def _plain(kind: pa.DataType, draw: random.Random) -> Any:
    if _IS.is_boolean(kind):
        return draw.random() < 0.5
    if _IS.is_integer(kind):
        return draw.randrange(-(1 << kind.bit_width - 1), 1 << kind.bit_width - 1)
    if _IS.is_floating(kind):
        number = draw.choice([*FLOATS, draw.randrange(-4_000_000, 4_000_000) / 4])
        with np.errstate(over="ignore"):
            return float(np.float32(number)) if kind == pa.float32() else number
    if _IS.is_decimal(kind):
        return Decimal(draw.randrange(1 - 10**kind.precision, 10**kind.precision)).scaleb(
            -kind.scale, _EXACT
        )
    if _IS.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(days=draw.randrange(-700_000, 2_900_000))
    if _IS.is_timestamp(kind):
        moment = EPOCH + dt.timedelta(microseconds=draw.randrange(-(10**16), 10**17))
        return moment.replace(tzinfo=dt.UTC) if kind.tz else moment
    if _IS.is_binary(kind):
        return draw.randbytes(draw.choice([0, 1, 7]))
    return draw.choice([*TEXTS, f"t{draw.randrange(100)}"])


def wider(kind: pa.DataType, draw: random.Random) -> pa.DataType | None:
    """Return a type to which Hudi lets a column of `kind` change; None if there is none."""
    if kind in WIDER:
        return draw.choice(WIDER[kind])
    if _IS.is_decimal(kind) and kind.precision < 38:
        return pa.decimal128(draw.randint(kind.precision + 1, 38), kind.scale)
    if _IS.is_list(kind):
        inner = wider(kind.value_type, draw)
        return inner and pa.list_(inner)
    if _IS.is_map(kind):
        inner = wider(kind.item_type, draw)
        return inner and pa.map_(pa.string(), inner)
    if _IS.is_struct(kind):
        return pa.struct([*kind, pa.field(f"more{kind.num_fields}", pa.int64())])
    return None


def widened(held: Any, old: pa.DataType, new: pa.DataType, *, inner: bool = False) -> Any:
    """Return a value of the type `old` as a reader of the type `new` must show it.

    Integers become the nearest float. A float keeps its decimal text as a double, except inside
    lists, maps and structs. (Of two shortest texts, as of 419763.625, readers choose differently:
    `value` returns no such float.)
    """
    if held is None or old == new:
        return held
    if _IS.is_struct(old):
        types = {f.name: f.type for f in old}
        return {
            f.name: widened(held[f.name], types[f.name], f.type, inner=True)
            if f.name in types
            else None
            for f in new
        }
    if _IS.is_map(old):
        return [(k, widened(v, old.item_type, new.item_type, inner=True)) for k, v in held]
    if _IS.is_list(old):
        return [widened(v, old.value_type, new.value_type, inner=True) for v in held]
    if new == pa.string():
        return str(held)
    if _IS.is_integer(old) and _IS.is_floating(new):
        return np.array([held], np.int64).astype(new.to_pandas_dtype())[0].item()
    if old == pa.float32() and not inner:
        return float(str(np.float32(held)))
    return held
