"""One history of the matrix: random operations on a table and on its model, compared after each.

The table must always equal the model, cell by cell, for our reader and hudi-rs; as of one earlier
commit, too; and the changes since that commit must lead to the table of now.
"""

from __future__ import annotations

import ast
import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from core.replay import check_replay, settled
from core.tables import canonical, hudi_table, upgrade
from matrix.conditions import condition
from matrix.model import DELETED, Model, Row, as_read
from matrix.shape import Shape
from matrix.values import value

from hoodie_nb import Table
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.types.schema import META_COLUMNS

Cells = dict[str, Any]
NAIVE = pa.timestamp("us")  # hudi-rs has no such type


class MatrixHistory:
    """A table, its model, and what was in it after each commit."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(f"matrix {seed}")
        self.shape = Shape.of(seed, self.draw)
        self.model = Model(self.shape)
        self.table = Table.create(folder / "t", **self.shape.given)
        self.operations: list[str] = []
        self.past: dict[str, tuple[pa.Schema, list[Row]]] = {}  # by commit
        self.saved = ""  # the commit of a savepoint, which always stays readable
        self.floor = ""  # commits before it may have been cleaned away
        self.by_rust_from = ""  # before it, hudi-rs cannot convert logs to the types of now
        self.grown: set[str] = set()  # columns whose type has changed
        self.upgraded = self.shape.version == self.shape.created_as
        self.upgrade_if_due()

    @property
    def readable_by_rust(self) -> bool:
        """Whether hudi-rs knows all types of the table."""
        return not any(field.type == NAIVE for field in self.model.schema)

    def upgrade_if_due(self) -> None:
        """Let another engine upgrade the table, before the first write or after a few."""
        if not self.upgraded and len(self.operations) >= self.shape.upgraded_after:
            self.operations.append("upgrade")
            upgrade(self.table.path, self.shape.version, self.shape.merge_mode)
            self.upgraded = True

    # --- rows -----------------------------------------------------------------------------------

    def rows(
        self, schema: pa.Schema, most: int = 12, *, fresh: bool = False
    ) -> list[dict[str, Any]]:
        """Return random rows with these columns; `fresh`: new keys, each once, none deleted."""
        found: list[Cells] = []
        seen = set(self.model.rows) if fresh else set()
        for _ in range(self.draw.randint(1, most)):
            record = self.draw.choice(self.shape.records)
            row = {f.name: record.get(f.name, self.cell(f)) for f in schema}
            if fresh and row.get(DELETED):
                row[DELETED] = False
            at = self.model.identity(record)
            if not fresh or at not in seen:
                seen.add(at)
                found.append(row)
        return found

    def cell(self, column: pa.Field) -> Any:
        """Return a random value for a column; small numbers where rows are to meet."""
        if column.name == DELETED:
            return self.draw.random() < 0.3 if self.draw.random() < 0.8 else None
        if column.name == "n" and pa.types.is_integer(column.type):
            return self.draw.choice([None, *range(-3, 6)])
        if column.name == "ts" and pa.types.is_integer(column.type):
            return self.draw.choice([*[None] * (not self.shape.merge_on_read), *range(10)])
        return value(column.type, self.draw)

    @property
    def fixed(self) -> list[str]:
        """Return the columns that no update sets."""
        return self.identifying

    @property
    def identifying(self) -> list[str]:
        """Return the columns that identify a record."""
        return [*self.shape.record_key, *self.shape.partition_by]

    # --- what must hold -------------------------------------------------------------------------

    def look(self) -> None:
        """Compare the table with the model: now, as of an earlier commit, and the changes."""
        handle = open_table(self.table.path)
        times = self.times()
        rows = list(self.model.rows.values())
        assert [(f.name, f.type) for f in handle.schema] == [
            (f.name, f.type) for f in self.model.schema
        ], "columns differ"
        self.same(self.table.to_arrow(meta=False).to_pylist(), rows, "the table")
        if self.readable_by_rust:
            self.same(self._by_rust(), rows, "hudi-rs")
        where, matches = condition(rows, self.model.schema, self.draw)
        found = self.table.to_arrow(filters=where, meta=False).to_pylist()
        self.same(found, filter(matches, rows), f"the rows with {where}")
        if times and times[-1] not in self.past:
            self.past[times[-1]] = (self.model.schema, rows)
        self.retain(int(self.shape.options[_RETAINED]))
        if times:
            self._look_back(self.draw.choice(times))

    def times(self) -> list[str]:
        """Return the commits on the timeline, oldest first."""
        commits = open_table(self.table.path).timeline.completed_commits()
        return [instant.requested_time for instant in commits]

    def retain(self, commits: int) -> None:
        """Take note that only so many commits before the newest one must be readable."""
        self.floor = max(self.floor, *self.times()[-1 - commits :][:1], "")

    def _look_back(self, time17: str) -> None:
        with refused_if(time17 < self.floor and time17 != self.saved):
            self._compare_past(time17)
        with refused_if(time17 < self.floor):
            check_replay(open_table(self.table.path), time17, None)

    def _compare_past(self, time17: str) -> None:
        schema, rows = self.past[time17]
        rows = [as_read(row, schema, self.model.schema) for row in rows]
        found = self.table.to_arrow(as_of=time17, meta=False)
        self.same(found.to_pylist(), rows, f"the table as of {time17}")
        if self.readable_by_rust and time17 >= self.by_rust_from:
            self.same(self._by_rust(time17), rows, f"hudi-rs as of {time17}")

    def _by_rust(self, time17: str | None = None) -> list[Cells]:
        found = hudi_table(self.table.path, time17)
        return [] if found is None else found.drop_columns(list(META_COLUMNS)).to_pylist()

    def same(self, found: Iterable[Row], rows: Iterable[Row], what: str) -> None:
        """Assert that a reader's rows are those of the model, in any order."""
        seen, wanted = (canonical(map(settled, some)) for some in (found, rows))
        assert seen == wanted, f"{what}: {different(seen, wanted)}"

    def refused(self, rows: pa.Table, match: str) -> None:
        """Assert that an upsert is refused with a message, and changes nothing."""
        before = list(self.table.timeline()["requested_time"])
        with pytest.raises(InvalidInput, match=match):
            self.table.upsert(rows)
        assert list(self.table.timeline()["requested_time"]) == before

    def finish(self) -> None:
        """End with a check of all files and of each commit."""
        assert [str(finding) for finding in fsck(self.table.path)] == []
        assert not self.saved or self.saved in self.times()
        for time17 in self.times():
            self._look_back(time17)


_RETAINED = "hoodie.clean.commits.retained"


def different(found: list[str], wanted: list[str]) -> str:
    """Return the cells in which the first rows differ that only one side has."""
    missing, extra = ([*(Counter(a) - Counter(b))] for a, b in ((wanted, found), (found, wanted)))
    if not missing or not extra:
        return (
            f"{len(missing)} rows not found, such as {missing[:1]}; {len(extra)} more: {extra[:1]}"
        )
    one = set(ast.literal_eval(missing[0]))
    other = max((set(ast.literal_eval(row)) for row in extra), key=lambda row: len(row & one))
    return f"found {sorted(other - one)} instead of {sorted(one - other)}"


@contextlib.contextmanager
def refused_if(cleaned: bool) -> Iterator[None]:
    """Allow the refusal of a time whose files may have been cleaned away."""
    try:
        yield
    except InvalidConfig as error:
        known = ("can be read is", "were archived, so its changes")
        assert cleaned and any(text in str(error) for text in known), error
