"""SQL text (LIKE, IN, CAST, …) to Arrow expressions: which syntax, functions, types are understood.

| SQL | supported |
| --- | --- |
| operators | AND, OR, NOT, =, <>, <, <=, >, >=, IN (...), BETWEEN, LIKE, IS NULL, +, -, *, / |
| functions | UPPER, LOWER, COALESCE, CAST(... AS ...), `a || b` |
| values | numbers, texts, TRUE, FALSE, NULL, DATE '...', TIMESTAMP '...' |
| columns | by name, also in backticks, and fields of structs: place.city |
| in a merge | source.x and target.x, and fields of structs: source.place.city |

A text takes the type of the column that it is compared with: `'2013-01-02'` is a date for a column
of dates. Numbers are exact: 0.1 is a decimal, unless it meets a column of floats. The meaning is
SQL's: what is compared with null is unknown, and unknown is not true. But as in Arrow, NaN is equal
to nothing, and neither less nor greater; in Spark it equals itself and is the greatest number.

In an update, a text or number at the top has the type of the column that it is for. `/` divides as
floats, and by zero is an error. A CAST to a decimal rounds, half away from zero; no other loses
digits. Casts whose result differs between engines (floats and times as text) are refused. Arrow may
change the order of sums and products, so floats may differ from another engine's in the last digit.

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
import pyarrow.dataset as ds
import sqlglot
from sqlglot import exp

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.types.conversion import convertible

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
_UNARY: dict[type, Callable[[Any], pc.Expression]] = {
    exp.Upper: pc.utf8_upper,
    exp.Lower: pc.utf8_lower,
}
_FUNCTIONS = (exp.Cast, exp.Coalesce, exp.Div, exp.DPipe, *_UNARY)
_DOUBLE = pa.float64()
_is = pa.types
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
    exp.Coalesce: {"this", "expressions"},
    exp.Div: {"this", "expression", "safe"},
    exp.DPipe: {"this", "expression", "safe"},
    **{kind: {"this"} for kind in _UNARY},
    **{kind: {"this", "expression"} for kind in _BINARY},
}
_UNKNOWN = pa.null()
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_TIMES = {"DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us"), "TIMESTAMPTZ": pa.timestamp("us")}
_TYPES = {
    "TEXT": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": _DOUBLE,
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
}
_CASTS: dict[Callable[..., bool], tuple[Callable[..., bool], ...]] = {  # to: from
    _is.is_string: (_is.is_string, _is.is_integer, _is.is_decimal, _is.is_boolean, _is.is_date),
    _is.is_date: (_is.is_date, _is.is_string),
    _is.is_boolean: (_is.is_boolean, _is.is_integer),
    _is.is_integer: (
        _is.is_integer,
        _is.is_floating,
        _is.is_decimal,
        _is.is_string,
        _is.is_boolean,
    ),
    _is.is_floating: (_is.is_integer, _is.is_floating, _is.is_decimal, _is.is_string),
    _is.is_decimal: (_is.is_integer, _is.is_floating, _is.is_decimal, _is.is_string),
}


def condition(text: str, schema: pa.Schema) -> pc.Expression:
    """Return a condition in SQL as an expression, or raise InvalidConfig naming what it is not."""
    try:
        return _Reader(schema).parsed(text)
    except _FAILURES as error:
        raise InvalidConfig(
            f"{text[:200]!r} is not a usable condition ({_reason(error)}): write it as in "
            f'"{_EXAMPLE}", or give an expression of pyarrow.compute'
        ) from None


def value_for(
    column: str, text: str, schema: pa.Schema, over: pa.Schema | None = None
) -> pc.Expression:
    """Return a value in SQL, for a column of the schema; InvalidConfig if it is none for it.

    `over` are the columns that it may name, if they are others.
    """
    kind = schema.field(column).type
    try:
        reader = _Reader(schema if over is None else over)
        found = reader.parsed(text, kind)
        given = reader.type_of(found)
        if _is.is_floating(kind) and (_is.is_floating(given) or _is.is_decimal(given)):
            return _cast(found, given, kind)
        if not convertible(given, kind):
            raise _NotSupported(f"it is {given}, and the column is {kind}")
        return found
    except _FAILURES as error:
        plain = {*"'\\"}.isdisjoint(text)
        quoted = f"\"'{text[:200]}'\" or " if plain else ""
        raise InvalidConfig(
            f"set[{column!r}]: {text[:200]!r} is not SQL for this column ({_reason(error)}): a "
            f'text in `set` is SQL, like "upper(name)", so write a string as {quoted}'
            f"pc.scalar({text[:200]!r})"
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return (str(error).splitlines() or [""])[0][:300]


class _NotSupported(Exception):
    """Syntax that this module does not read."""


_FAILURES = (
    *(sqlglot.errors.SqlglotError, RecursionError, _NotSupported),
    *(ValueError, OverflowError, pa.ArrowException),
)


class _Reader:
    """Reads one condition or value on the columns of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def parsed(self, text: str, kind: pa.DataType = _UNKNOWN) -> pc.Expression:
        """Return SQL text as an expression."""
        return self.read(sqlglot.parse_one(text, dialect="spark", into=exp.Condition), kind)

    def type_of(self, expression: pc.Expression) -> pa.DataType:
        """Return the type of the values of an expression."""
        rows = ds.InMemoryDataset(self._schema.empty_table())
        return rows.scanner(columns={"value": expression}).projected_schema.field(0).type

    def read(self, node: Any, kind: pa.DataType = _UNKNOWN) -> pc.Expression:  # noqa: ANN401
        """Return a node as an expression; its literals get the type `kind`, if one is known."""
        self._check(node)
        if type(node) in _LOGICAL:
            return _LOGICAL[type(node)](self.read(node.this), self.read(node.expression))
        if type(node) in _BINARY:
            return _BINARY[type(node)](*self._sides(node, node.this, node.expression))
        if isinstance(node, _FUNCTIONS) and not _is_moment(node):
            return self._computed(node, kind)
        match node:
            case exp.Paren():
                return self.read(node.this, kind)
            case exp.Not():
                return ~self.read(node.this)
            case exp.Column():
                return pc.field(*self._path(node))
            case exp.Is() if isinstance(node.expression, exp.Null):
                return self.read(node.this).is_null()
            case exp.Neg() if not isinstance(node.this, exp.Literal):
                return pc.negate_checked(self.read(node.this, kind))
            case exp.In() if node.expressions:
                pairs = (self._sides(node, node.this, value) for value in node.expressions)
                return _any_of([one == other for one, other in pairs])
            case exp.Between():
                low = node.args["low"]
                high = node.args["high"]
                value, least = self._sides(node, node.this, low)
                same, most = self._sides(node, node.this, high)
                return (value >= least) & (same <= most)
            case exp.Like() if _is_pattern(node.expression):
                found = pc.match_like(self.read(node.this), node.expression.name)
                return ~found if node.args.get("negate") else found
        return pc.scalar(_value(node, kind))

    def _computed(self, node: Any, kind: pa.DataType) -> pc.Expression:  # noqa: ANN401
        """Return a function, a quotient or texts that are joined."""
        match node:
            case exp.Cast():
                side = self.read(node.this)
                to = _type_named(node.to)
                given = self.type_of(side)
                allowed = next((f for t, f in _CASTS.items() if to is not None and t(to)), ())
                if to is None or not any(of_kind(given) for of_kind in (*allowed, _is.is_null)):
                    name = node.to.sql("spark")
                    raise _NotSupported(f"a CAST from {given} to {name} is not supported")
                return _cast(side, given, to)
            case exp.Coalesce():
                given = [node.this, *node.expressions]
                kinds = [*map(self._kind, given)]
                known = next((k for k in kinds if k != _UNKNOWN), kind)
                return pc.coalesce(
                    *(_with_scale(s, known) for s in self._alike(given, kinds, kind))
                )
            case exp.Div():
                sides = self._operands(
                    node, _DOUBLE, _is.is_integer, _is.is_floating, _is.is_decimal
                )
                return pc.divide_checked(*sides)
            case exp.DPipe():
                sides = self._operands(node, pa.string(), _is.is_string)
                return pc.binary_join_element_wise(*sides, "", null_handling="emit_null")
        (side,) = self._operands(node, pa.string(), _is.is_string)
        return _UNARY[type(node)](side)

    def _operands(
        self,
        node: Any,  # noqa: ANN401
        kind: pa.DataType,
        *allowed: Callable[[pa.DataType], bool],
    ) -> list[pc.Expression]:
        """Return the operands as `kind`; those of other types than the allowed ones are refused."""
        given = [node.this, node.expression] if isinstance(node, exp.Binary) else [node.this]
        sides = [self.read(side, kind) for side in given]
        types = [self.type_of(side) for side in sides]
        for side, found in zip(given, types, strict=True):
            if not any(of_kind(found) for of_kind in (*allowed, _is.is_null)):
                raise _NotSupported(
                    f"{side.sql('spark')[:100]} is {found}: write CAST({side.sql('spark')[:100]} "
                    f"AS {kind})"
                )
        return [_cast(side, found, kind) for side, found in zip(sides, types, strict=True)]

    def _sides(self, node: Any, one: Any, other: Any) -> list[pc.Expression]:  # noqa: ANN401
        """Return two operands, of types that Arrow compares without a loss."""
        if type(node) not in _COMPUTED and node.find(exp.Column) is None:
            raise _NotSupported(f"{node.sql('spark')[:100]} compares two constants")
        kinds = [self._kind(side) for side in (one, other)]
        sides = self._alike((one, other), kinds, _UNKNOWN)
        if not any(map(pa.types.is_floating, kinds)):
            return sides
        mixed = [pa.types.is_floating(k) or pa.types.is_integer(k) for k in kinds]
        return [s.cast(_DOUBLE) if m else s for s, m in zip(sides, mixed, strict=True)]

    def _alike(
        self, nodes: Sequence[Any], kinds: Sequence[pa.DataType], kind: pa.DataType
    ) -> list[pc.Expression]:
        """Return nodes, of which a null has the type of a column, else `kind`, else of another."""
        known = next((each for each in (*kinds, kind) if each != _UNKNOWN), _UNKNOWN)
        sides = [self.read(node, known) for node in nodes]
        if known != _UNKNOWN:
            return sides
        types = [self.type_of(side) for side in sides]
        found = next((each for each in types if each != _UNKNOWN), _UNKNOWN)
        pairs = zip(nodes, sides, types, strict=True)
        return [self.read(n, found) if t == _UNKNOWN != found else side for n, side, t in pairs]

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
        """Return the type of a column, field or function; null if the node is none of them."""
        if isinstance(node, exp.Paren):
            return self._kind(node.this)
        if isinstance(node, _FUNCTIONS) and not isinstance(node, exp.Coalesce):
            return self.type_of(self.read(node))
        if not isinstance(node, exp.Column):
            return _UNKNOWN
        found = pa.struct(list(self._schema))
        for name in self._path(node):
            known = pa.types.is_struct(found) and found.get_field_index(name) >= 0
            found = found.field(name).type if known else _UNKNOWN
        return found

    def _path(self, node: Any) -> list[str]:  # noqa: ANN401
        """Return a column and the fields in it; a merge has columns called `source.x`."""
        path = [part.name for part in node.parts]
        sided = ".".join(path[:2])
        return [sided, *path[2:]] if sided in self._schema.names else path


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
        case exp.Cast() if _is_moment(node):
            wanted = _TIMES[node.to.this.name]
            if not node.to.expressions:
                same = pa.types.is_timestamp(wanted) and pa.types.is_timestamp(kind)
                return _moment(node.this.name, kind if same else wanted)
    raise _NotSupported(f"{node.sql('spark')[:100]} is not supported in text")


def _type_named(node: Any) -> pa.DataType | None:  # noqa: ANN401
    """Return the type to which a cast converts; None if it is not supported."""
    if node.this.name == "DECIMAL" and len(node.expressions) == 2:
        return pa.decimal128(*(int(part.name) for part in node.expressions))
    return None if node.expressions else _TYPES.get(node.this.name)


def _cast(value: pc.Expression, given: pa.DataType, kind: pa.DataType) -> pc.Expression:
    """Return a value as `kind`: floats and decimals become the nearest, others are exact."""
    if _is.is_decimal(kind) and _is.is_decimal(given):
        value = pc.round(value, kind.scale, "half_towards_infinity")
    if _is.is_decimal(kind) and _is.is_integer(given):  # Arrow wants room for every integer
        value = value.cast(pa.decimal256(76, kind.scale))
    if _is.is_floating(kind) and _is.is_decimal(given):  # Arrow's own cast is not the nearest
        value = value.cast(pa.string())
    return value.cast(kind, safe=not _is.is_floating(kind))


def _is_moment(node: Any) -> bool:  # noqa: ANN401
    """Whether a node is a date or time: DATE '2013-01-02'."""
    text = isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal)
    return bool(text and node.this.is_string and node.to.this.name in _TIMES)


def _with_scale(value: pc.Expression, kind: pa.DataType) -> pc.Expression:
    """Return a decimal as one of the type `kind`, which has room for it; other values as given."""
    return value.cast(kind) if _is.is_decimal(kind) else value


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
    raise _NotSupported(f"{text!r} is used as {kind}: give the time {wanted}")
