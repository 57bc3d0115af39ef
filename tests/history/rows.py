"""The rows of a history: forty records, some late, deleted, or with special keys.

The number of a record decides: of four, the first is late at times, the second is deleted at
times, and the third often has the ordering value of its last version.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from history.model import DELETED

from hoodie_nb.definition.properties import TableConfig

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("sub", pa.string()),
        ("part", pa.string()),
        ("ts", pa.int64()),
        ("v", pa.int64()),
        ("n", pa.int32()),
    ]
)
RECORDS = 40
_IDS = (None, "", "k1", "a,b", "k:3", "é", "k6", "k7", "k8", "k9")
_SUBS = ("s", None, "", "t:u")
_STARTS = (
    "a",
    "\ue000",
    "😀",
    "\uffff",
    "\U0001d538",
    "é",
    "\uf8ff",
    "z",
)  # UTF-8 and UTF-16 disagree
_CRAFTED = (  # each gives the key text of another key, or may
    {"id": "__null__", "sub": "s"},
    {"id": "k1", "sub": "__empty__"},
    {"id": "k1", "sub": "__null__"},
    {"id": "k1,sub:s", "sub": "t"},
)


def config_of(keys: str, **more: object) -> TableConfig:
    """Return the table's configuration for a kind of keys."""
    key = ("id", "sub") if keys == "composite" else ("id",)
    return TableConfig("t", key, ("part",), "ts", merge_mode="event_time", schema=SCHEMA, **more)


def crafted(draw: random.Random) -> dict[str, Any]:
    """Return a composite key whose text equals that of another key."""
    return dict(draw.choice(_CRAFTED))


def record(keys: str, number: int, prefix: str, draw: random.Random) -> dict[str, Any]:
    """Return the key and partition columns of a record."""
    if keys == "composite":
        return _composite(number, prefix, draw)
    start = _STARTS[number % len(_STARTS)] if keys == "unicode" else ""
    return {"id": f"{start}{prefix}{number:03d}", "sub": None, "part": f"p{number % 3}"}


def _composite(number: int, prefix: str, draw: random.Random) -> dict[str, Any]:
    name, sub = _IDS[number % 10], _SUBS[number // 10]
    if not name and not sub:
        name = f"x{number}"
    if name and prefix != "k":
        name = prefix + name
    return {"id": name, "sub": sub, "part": ("p0", draw.choice((None, "")), "p2")[number % 3]}


class Rows:
    """A stream of rows; `ts` is the newest ordering value."""

    def __init__(self, keys: str, draw: random.Random) -> None:
        self._keys, self._draw, self.ts = keys, draw, 1000

    def take(
        self, schema: pa.Schema, most: int = 12, prefix: str = "k", *, deletes: bool = True
    ) -> list[dict[str, Any]]:
        """Return a few rows: new and known records, late rows, ties, deletes (never late)."""
        return [self._row(schema, prefix, deletes) for _ in range(self._draw.randint(1, most))]

    def _row(self, schema: pa.Schema, prefix: str, deletes: bool) -> dict[str, Any]:
        draw, number = self._draw, self._draw.randrange(RECORDS)
        self.ts += draw.choice([0, 1]) if number % 4 == 2 else 1
        late = number % 4 == 0 and draw.random() < 0.4
        ts = self.ts - draw.randrange(200) if late else self.ts
        deleted = deletes and number % 4 == 1 and draw.random() < 0.3
        row = {**record(self._keys, number, prefix, draw), "ts": ts, DELETED: deleted}
        return {**row, **{f.name: self._value(f) for f in schema if f.name not in row}}

    def _value(self, column: pa.Field) -> object:
        """Return a value for a column; a column that another engine added is sometimes null."""
        if column.name == "v":
            return self._draw.randrange(10**9)
        if column.name != "n" and self._draw.random() < 0.3:
            return None
        wide = 10**12 if column.type == pa.int64() else 10**6
        number = self._draw.randrange(wide)
        return str(number) if column.type == pa.string() else number


def table_of(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows as an Arrow table with the flag of deletes."""
    return pa.Table.from_pylist(rows, schema=schema.append(pa.field(DELETED, pa.bool_())))
