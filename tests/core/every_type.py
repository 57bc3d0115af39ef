"""A column of every type that can be stored: edge values, more of them, nulls."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

STRUCT = pa.struct([("a", pa.int32()), ("deep", pa.struct([("b", pa.list_(pa.string()))]))])
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["", "ü\0\U0001f600", None]),
    "binary": (pa.binary(), [b"", b"\xff\x00", None]),
    "bool": (pa.bool_(), [True, False, None]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "float": (pa.float32(), [0.5, -math.inf, None]),
    "double": (pa.float64(), [-0.0, 1e308, None]),
    "date": (pa.date32(), [dt.date(1582, 10, 14), dt.date(9999, 12, 31), None]),
    "instant": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC), None, None],
    ),
    "local": (pa.timestamp("us"), [dt.datetime(2026, 3, 29, 2, 30), None, None]),
    "small decimal": (pa.decimal128(3, 2), [Decimal("-9.99"), Decimal("0.01"), None]),
    "decimal": (pa.decimal128(18, 0), [Decimal(10**18 - 1), Decimal(-1), None]),
    "large decimal": (pa.decimal128(38, 10), [Decimal("9" * 28 + ".0000000001"), None, None]),
    "list": (pa.list_(pa.int64()), [[1, None], [], None]),
    "list of structs": (pa.list_(STRUCT), [[{"a": 1, "deep": {"b": ["x", None]}}, None], [], None]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("k", 1.5), ("z", None)], [], None]),
    "map of structs": (
        pa.map_(pa.string(), STRUCT),
        [[("k", {"a": None, "deep": None})], [], None],
    ),
    "struct": (STRUCT, [{"a": 1, "deep": {"b": []}}, {"a": None, "deep": None}, None]),
}
MORE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list of lists": (pa.list_(pa.list_(pa.string())), [[["a", None], []], [], None]),
    "map of maps": (
        pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())),
        [[("k", [("a", 1)])], [], None],
    ),
    "struct with a map": (
        pa.struct([("m", pa.map_(pa.string(), STRUCT))]),
        [{"m": [("k", {"a": 1, "deep": {"b": ["x"]}})]}, {"m": None}, None],
    ),
}
EVERY = TYPES | MORE
