"""Random conditions: for the table, an expression or SQL; for the model, a function of a row."""

from __future__ import annotations

import datetime as dt
import operator
import random
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from matrix.model import Row
from matrix.values import value

Condition = tuple[Any, Callable[[Row], bool]]
_COMPARE = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def condition(rows: Collection[Row], schema: pa.Schema, draw: random.Random) -> Condition:
    """Return a condition on one column, or on two of them; null does not match."""
    where, matches = _simple(rows, schema, draw)
    if draw.random() < 0.7:
        return where, matches
    other, also = _simple(rows, schema, draw)
    if isinstance(where, str) and isinstance(other, str):
        return f"{where} AND ({other})", lambda row: matches(row) and also(row)
    if isinstance(where, str) or isinstance(other, str):
        return where, matches
    return where | other, lambda row: matches(row) or also(row)


def _simple(rows: Collection[Row], schema: pa.Schema, draw: random.Random) -> Condition:
    field = schema.field(draw.choice(schema.names))
    name, kind = field.name, field.type
    if pa.types.is_nested(kind) or draw.random() < 0.2:
        negated = draw.random() < 0.5
        where: Any = pc.field(name).is_valid() if negated else pc.field(name).is_null()
        if draw.random() < 0.5:
            where = f"{name} IS NOT NULL" if negated else f"{name} IS NULL"
        return where, lambda row: (row[name] is None) != negated
    bounds = [row[name] for row in rows if row[name] is not None] or [_bound(kind, draw)]
    bound = draw.choice(bounds) if draw.random() < 0.8 else _bound(kind, draw)
    sign = draw.choice(list(_COMPARE))
    compare, literal = _COMPARE[sign], _literal(bound)
    where = compare(pc.field(name), pa.scalar(bound, kind))
    if literal is not None and draw.random() < 0.5:
        where = f"{name} {sign} {literal}"
    return where, lambda row: row[name] is not None and compare(row[name], bound)


def _literal(bound: Any) -> str | None:
    """Return a value as SQL text; None for values that SQL writes in another way."""
    if isinstance(bound, bool | int | Decimal):
        return str(bound)
    if isinstance(bound, dt.date) and not isinstance(bound, dt.datetime):
        return f"DATE '{bound:%Y-%m-%d}'" if bound.year > 999 else None
    if isinstance(bound, str) and bound.isprintable() and not {*"'\\"} & {*bound}:
        return f"'{bound}'"
    return None


def _bound(kind: pa.DataType, draw: random.Random) -> Any:
    return pa.scalar(value(kind, draw, nulls=0), kind).as_py()
