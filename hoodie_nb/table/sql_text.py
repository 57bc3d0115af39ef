"""Conditions as SQL text: `day >= '2013-01-02' AND carrier IN ('AA', 'UA') AND delay IS NOT NULL`.

| SQL | supported |
| --- | --- |
| operators | AND, OR, NOT, =, <>, <, <=, >, >=, IN (...), BETWEEN, LIKE, IS NULL, +, -, * |
| values | numbers, texts, TRUE, FALSE, NULL, DATE '...', TIMESTAMP '...' |
| columns | by name, also in backticks, and fields of structs: place.city |

A text takes the type of the column that it is compared with: `'2013-01-02'` is a date for a column
of dates. Numbers are exact: 0.1 is a decimal, unless it meets a column of floats. The meaning is
SQL's: what is compared with null is unknown, and unknown is not true. But as in Arrow, NaN is equal
to nothing, and neither less nor greater; in Spark it equals itself and is the greatest number.

**Caveats**: all other syntax is refused by name; an expression of pyarrow.compute can say more.
*Source:* Spark SQL's grammar, as sqlglot parses it.
"""

import datetime as dt
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from hoodie_nb.errors import InvalidConfig

_EXAMPLE = "day >= '2013-01-02' AND delay IS NOT NULL"
_Two = dict[type, Callable[[Any, Any], pc.Expression]]
_LOGICAL: _Two = {exp.And: operator.and_, exp.Or: operator.or_}
_COMPARED: _Two = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_COMPUTED: _Two = {exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul}
_BINARY = {**_LOGICAL, **_COMPARED, **_COMPUTED}
_DOUBLE = pa.float64()
_ARGUMENTS = {  # what this module knows of a node; one with more is refused, not misread
    exp.Paren: {"this"},
    exp.Not: {"this"},
    exp.Neg: {"this"},
    exp.Literal: {"this", "is_string"},
    exp.Boolean: {"this"},
    exp.Null: set(),
    exp.Column: {"this", "table", "db", "catalog"},
    exp.Is: {"this", "expression"},
    exp.In: {"this", "expressions"},
    exp.Between: {"this", "low", "high"},
    exp.Like: {"this", "expression", "negate"},
    exp.Cast: {"this", "to"},
    **{kind: {"this", "expression"} for kind in _BINARY},
}
_UNKNOWN, _DAY = pa.null(), re.compile(r"\d{4}-\d\d-\d\d")
_TIMES = {"DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us"), "TIMESTAMPTZ": pa.timestamp("us")}


def condition(text: str, schema: pa.Schema) -> pc.Expression:
    """Return a condition in SQL as an expression, or raise InvalidConfig naming what it is not."""
    try:
        return _Reader(schema).read(sqlglot.parse_one(text, dialect="spark", into=exp.Condition))
    except sqlglot.errors.SqlglotError as error:
        reason = (str(error).splitlines() or [""])[0][:200]
    except RecursionError:
        reason = "it is nested too deeply"
    except (_NotSupported, ValueError, OverflowError, pa.ArrowException) as error:
        reason = str(error)[:300]
    raise InvalidConfig(
        f"{text[:200]!r} is not a usable condition ({reason}): write it as in "
        f'"{_EXAMPLE}", or give an expression of pyarrow.compute'
    ) from None


class _NotSupported(Exception):
    """Syntax that this module does not read."""


class _Reader:
    """Reads one parsed condition on the columns of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def read(self, node: Any, kind: pa.DataType = _UNKNOWN) -> pc.Expression:  # noqa: ANN401
        """Return a node as an expression; its literals get the type `kind`, if one is known."""
        self._check(node)
        if type(node) in _LOGICAL:
            return _LOGICAL[type(node)](self.read(node.this), self.read(node.expression))
        if type(node) in _BINARY:
            return _BINARY[type(node)](*self._sides(node, node.this, node.expression))
        match node:
            case exp.Paren():
                return self.read(node.this, kind)
            case exp.Not():
                return ~self.read(node.this)
            case exp.Column():
                return pc.field(*(part.name for part in node.parts))
            case exp.Is() if isinstance(node.expression, exp.Null):
                return self.read(node.this).is_null()
            case exp.Neg() if not isinstance(node.this, exp.Literal):
                return pc.negate_checked(self.read(node.this, kind))
            case exp.In() if node.expressions:
                pairs = (self._sides(node, node.this, value) for value in node.expressions)
                return _any_of([one == other for one, other in pairs])
            case exp.Between():
                low, high = node.args["low"], node.args["high"]
                value, least = self._sides(node, node.this, low)
                same, most = self._sides(node, node.this, high)
                return (value >= least) & (same <= most)
            case exp.Like() if _is_pattern(node.expression):
                found = pc.match_like(self.read(node.this), node.expression.name)
                return ~found if node.args.get("negate") else found
        return pc.scalar(_value(node, kind))

    def _sides(self, node: Any, one: Any, other: Any) -> list[pc.Expression]:  # noqa: ANN401
        """Return two operands, of types that Arrow compares without a loss."""
        if type(node) not in _COMPUTED and node.find(exp.Column) is None:
            raise _NotSupported(f"{node.sql('spark')[:100]} compares two constants")
        kinds = [self._kind(side) for side in (one, other)]
        known = next((kind for kind in kinds if kind != _UNKNOWN), _UNKNOWN)
        sides = [self.read(side, known) for side in (one, other)]
        if not any(map(pa.types.is_floating, kinds)):
            return sides
        mixed = [pa.types.is_floating(k) or pa.types.is_integer(k) for k in kinds]
        return [s.cast(_DOUBLE) if m else s for s, m in zip(sides, mixed, strict=True)]

    def _check(self, node: Any) -> None:  # noqa: ANN401
        given = {name for name, value in node.args.items() if value not in (None, False, [])}
        known = next((_ARGUMENTS[each] for each in type(node).__mro__ if each in _ARGUMENTS), None)
        if known is None or not given <= known | {"_type"}:
            raise _NotSupported(f"{node.sql('spark')[:100]} is not supported in text")
        if isinstance(node, exp.Column) and self._kind(node) == _UNKNOWN:
            raise _NotSupported(
                f"there is no column {node.sql('spark')}; the columns are {self._schema.names}"
            )

    def _kind(self, node: Any) -> pa.DataType:  # noqa: ANN401
        """Return the type of a column or field; null if the node is none, or there is none."""
        if isinstance(node, exp.Paren):
            return self._kind(node.this)
        if not isinstance(node, exp.Column):
            return _UNKNOWN
        found = pa.struct(list(self._schema))
        for part in node.parts:
            known = pa.types.is_struct(found) and found.get_field_index(part.name) >= 0
            found = found.field(part.name).type if known else _UNKNOWN
        return found


def _any_of(conditions: Sequence[pc.Expression]) -> pc.Expression:
    """Return whether one of them is true, as a tree of small depth."""
    half = len(conditions) // 2
    return _any_of(conditions[:half]) | _any_of(conditions[half:]) if half else conditions[0]


def _value(node: Any, kind: pa.DataType) -> pa.Scalar:  # noqa: ANN401
    """Return a literal as a scalar, of the type that it is compared with where it has one."""
    match node:
        case exp.Null():
            return pa.scalar(None, kind)
        case exp.Boolean():
            return pa.scalar(bool(node.this))
        case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return _number(f"-{node.this.name}", kind)
        case exp.Literal() if not node.is_string:
            return _number(node.name, kind)
        case exp.Literal():
            return _moment(node.name, kind) if pa.types.is_temporal(kind) else pa.scalar(node.name)
        case exp.Cast() if isinstance(node.this, exp.Literal) and node.this.is_string:
            wanted = _TIMES.get(node.to.this.name)
            if wanted is not None and not node.to.expressions:
                same = pa.types.is_timestamp(wanted) and pa.types.is_timestamp(kind)
                return _moment(node.this.name, kind if same else wanted)
    raise _NotSupported(f"{node.sql('spark')[:100]} is not supported in text")


def _is_pattern(node: Any) -> bool:  # noqa: ANN401
    """Whether a node is a text that does not end in the middle of an escape."""
    if not (isinstance(node, exp.Literal) and node.is_string):
        return False
    return (len(node.name) - len(node.name.rstrip("\\"))) % 2 == 0


def _number(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_floating(kind):
        return pa.scalar(float(text), _DOUBLE)
    whole = text.removeprefix("-").isdigit() and pa.types.is_integer(kind)
    return pa.scalar(int(text) if whole else Decimal(format(Decimal(text), "f")))


def _moment(text: str, kind: pa.DataType) -> pa.Scalar:
    if not _DAY.match(text):
        raise _NotSupported(f"{text!r} is not a date or time such as '2013-01-02'")
    if pa.types.is_date(kind):
        return pa.scalar(dt.date.fromisoformat(text), kind)
    moment = dt.datetime.fromisoformat(text)
    if pa.types.is_timestamp(kind) and (moment.tzinfo is None) == (kind.tz is None):
        return pa.scalar(moment, kind)
    wanted = "with its zone, as in '2013-01-02T03:04:05Z'" if kind.tz else "without a zone"
    raise _NotSupported(f"{text!r} is compared with {kind}: give the time {wanted}")
