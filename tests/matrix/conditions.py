"""Random conditions: for the table, an expression or lists; for the model, a function of a row."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from matrix.model import Row
from matrix.values import value

Condition = tuple[Any, Callable[[Row], bool]]
_COMPARE = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def condition(rows: Collection[Row], schema: pa.Schema, draw: random.Random) -> Condition:
    """Return a condition on one column, or two of them joined by `and`; null does not match."""
    where, matches = _simple(rows, schema, draw)
    if draw.random() < 0.7:
        return where, matches
    other, also = _simple(rows, schema, draw)
    return where & other, lambda row: matches(row) and also(row)


def _simple(rows: Collection[Row], schema: pa.Schema, draw: random.Random) -> Condition:
    field = schema.field(draw.choice(schema.names))
    name, kind = field.name, field.type
    if pa.types.is_nested(kind) or draw.random() < 0.2:
        negated = draw.random() < 0.5
        where = pc.field(name).is_valid() if negated else pc.field(name).is_null()
        return where, lambda row: (row[name] is None) != negated
    bounds = [row[name] for row in rows if row[name] is not None] or [_bound(kind, draw)]
    bound = draw.choice(bounds) if draw.random() < 0.8 else _bound(kind, draw)
    compare = draw.choice(_COMPARE)
    where = compare(pc.field(name), pa.scalar(bound, kind))
    return where, lambda row: row[name] is not None and compare(row[name], bound)


def _bound(kind: pa.DataType, draw: random.Random) -> Any:
    return pa.scalar(value(kind, draw, nulls=0), kind).as_py()
