"""The expected rows of a table: a dict with the same batches applied, written from the rules.

Of the rows with one key the greatest ordering value wins, and of equal ones the newest arrival;
null and NaN are lowest. A delete is compared like a row, unless it has no ordering column. With
partial updates a null in the winning row is replaced by the value of the other row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from matrix.shape import Shape
from matrix.values import widened

Row = Mapping[str, Any]
DELETED = "_hoodie_is_deleted"
Identity = tuple[tuple[Any, ...], tuple[Any, ...]]


def rank(value: Any) -> tuple[Any, ...]:
    """Return the sort key of an ordering value: null and NaN are equal and lowest."""
    nothing = value is None or (isinstance(value, float) and math.isnan(value))
    return (0,) if nothing else (1, value.encode() if isinstance(value, str) else value)


class Model:
    """A table as a dict of rows by partition and key."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.schema = shape, shape.schema
        self.ordering = None if shape.merge_mode == "commit_time" else shape.ordering
        self.rows: dict[Identity, Row] = {}

    def identity(self, row: Row) -> Identity:
        """Return what identifies a row's record; null and empty are one partition."""
        parts = tuple(None if row[c] == "" else row[c] for c in self.shape.partition_by)
        return parts, tuple(row[c] for c in self.shape.record_key)

    def upsert(self, rows: Iterable[Row], *, always: bool = False) -> None:
        """Apply a batch; `always`: whatever the stored ordering values are."""
        for at, row in self._folded(rows).items():
            held = self.rows.get(at)
            if held is None:
                new = row
            elif always or self._rank(row) >= self._rank(held):
                new = self._filled(row, held)
            elif row.get(DELETED):
                continue
            else:
                new = self._filled(held, row)
            if row.get(DELETED):
                self.rows.pop(at, None)
            else:
                self.rows[at] = self._stored(new)

    def delete(self, rows: Iterable[Row]) -> None:
        """Delete these keys: by ordering value if the rows have one."""
        marked = [{**row, DELETED: True} for row in rows]
        by_order = self.ordering is not None and all(self.ordering in row for row in marked)
        self.upsert(marked, always=not by_order)

    def overwrite(self, rows: Iterable[Row], *, all_partitions: bool) -> None:
        """Replace the partitions of these rows, or all of them."""
        rows = list(rows)
        named = {self.identity(row)[0] for row in rows}
        kept = {at: r for at, r in self.rows.items() if not all_partitions and at[0] not in named}
        new = {at: self._stored(r) for at, r in self._folded(rows).items() if not r.get(DELETED)}
        self.rows = kept | new

    def change(self, matches: Callable[[Row], bool], new: Mapping[str, Any] | None) -> None:
        """Delete the matching rows, or set columns of them; a callable gets the old row."""
        for at, row in list(self.rows.items()):
            if not matches(row):
                continue
            if new is None:
                del self.rows[at]
            else:
                values = {n: v(row) if callable(v) else v for n, v in new.items()}
                self.rows[at] = self._stored({**row, **values})

    def evolve(self, schema: pa.Schema) -> None:
        """Change the table's columns."""
        self.rows = {at: as_read(row, self.schema, schema) for at, row in self.rows.items()}
        self.schema = schema

    def _rank(self, row: Row) -> tuple[Any, ...]:
        return (0,) if self.ordering is None else rank(row.get(self.ordering))

    def _stored(self, row: Row) -> Row:
        return {name: row.get(name) for name in self.schema.names}

    def _filled(self, row: Row, other: Row) -> Row:
        if self.shape.merge_mode != "partial":
            return row
        return {n: other.get(n) if v is None else v for n, v in row.items()}

    def _folded(self, rows: Iterable[Row]) -> dict[Identity, Row]:
        """Return one row per key: the winning one, filled from those since the last delete."""
        of_key: dict[Identity, list[Row]] = {}
        for row in rows:
            whole = {**dict.fromkeys(self.schema.names), **row}
            of_key.setdefault(self.identity(row), []).append(whole)
        return {at: self._last(sorted(some, key=self._rank)) for at, some in of_key.items()}

    def _last(self, rows: list[Row]) -> Row:
        last = dict(rows[-1])
        for row in reversed(rows[:-1]):
            if last.get(DELETED) or row.get(DELETED):
                break
            last = dict(self._filled(last, row))
        return last


def as_read(row: Row, old: pa.Schema, new: pa.Schema) -> Row:
    """Return a row that was stored in the columns `old` as a reader of `new` must show it."""
    types = {f.name: f.type for f in old}
    return {
        f.name: widened(row[f.name], types[f.name], f.type) if f.name in types else None
        for f in new
    }
