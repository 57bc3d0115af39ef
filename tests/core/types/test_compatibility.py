"""Who reads which type, and what works in which table version: docs/compatibility-tested.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from every_type import EVERY
from tables import Model, hudi_rows, hudi_table, schema_of, upgrade, without_meta

from hoodie_nb import Table

PAGE = Path(__file__).parents[3] / "docs" / "compatibility-tested.md"
READERS: dict[str, Callable[[Table], pa.Table]] = {
    "this library": lambda board: board.to_arrow(),
    "Polars": lambda board: pl.DataFrame(board).to_arrow(),
    "DuckDB": lambda board: duckdb.sql("SET TimeZone = 'UTC'; FROM board").to_arrow_table(),
    "hudi-rs": lambda board: hudi_table(board.path),
}
NOT_READ = {("local", "hudi-rs")}  # it has no such type, and says so


def plain(value: Any) -> Any:
    """Return a value with maps as lists of pairs, which is how some readers show them."""
    if isinstance(value, dict):
        pair = [*value] == ["key", "value"]
        return (
            tuple(map(plain, value.values())) if pair else {k: plain(v) for k, v in value.items()}
        )
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", EVERY)
def test_a_reader_returns_the_values_of_a_type(tmp_path: Path, name: str, reader: str) -> None:
    """Values and nulls of each type are returned as they were written, after an update, too."""
    kind, values = EVERY[name]
    schema = pa.schema({"id": pa.string(), "v": kind})
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    for _ in range(2):
        table.upsert(pa.table([["a", "b", "c"], pa.array(values, kind)], schema=schema))
    if (name, reader) in NOT_READ:
        with pytest.raises(BaseException, match="not yet implemented"):
            READERS[reader](table)
        return
    rows = READERS[reader](table).sort_by("id")
    found = [plain(value) for value in rows["v"].to_pylist()]
    assert repr(found) == repr([plain(v) for v in pa.array(values, kind).to_pylist()])


# --- versions -------------------------------------------------------------------------------------


@pytest.fixture(params=[6, 8, 9])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Table, Model]:
    """A table of each version after two upserts, and what must be in it."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    table, model = Table.create(tmp_path / "t", schema=schema_of(), **keys), Model()
    for version in (1, 2):
        batch = rows(version, *"abcd"[: 2 * version])
        table.upsert(batch)
        model.upsert(batch.to_pylist())
    if request.param != 6:
        upgrade(table.path, request.param)
    return Table.open(table.path), model


def rows(version: int, *keys: str) -> pa.Table:
    """Return rows of two partitions."""
    held = [{"id": k, "p": "xy"[ord(k) % 2], "ts": version, "v": version} for k in keys]
    return pa.Table.from_pylist(held, schema=schema_of())


def test_reads_of_a_version(written: tuple[Table, Model]) -> None:
    """Snapshots, filters, streams, the past, changes and checks are the same in each version."""
    table, model = written
    first, second = table.history()["requested_time"]
    snapshot = model.snapshot()
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == snapshot
    assert without_meta(pa.table(table)) == snapshot
    assert without_meta(table.to_arrow(as_of=first)) == hudi_rows(table.path, first)
    kept = table.to_arrow(filters=pc.field("p") == "x", partitions=["x"])
    assert without_meta(kept) == without_meta(table.to_arrow().filter(pc.field("p") == "x"))
    changes = table.changes(since=first, until=second)
    assert sorted(changes["_change"].to_pylist()) == ["insert", "insert", "update", "update"]
    assert len(table.timeline()) == 2 and len(table.file_groups()) == 2
    assert table.fsck() == []


def test_writes_of_a_version(written: tuple[Table, Model]) -> None:
    """Upserts, inserts and deletes, a late row and a new partition, as the model and hudi-rs."""
    table, model = written
    for batch in (rows(3, "a", "e"), rows(1, "b")):
        table.upsert(batch)
        model.upsert(batch.to_pylist())
    table.insert(rows(1, "g"))
    model.upsert(rows(1, "g").to_pylist())
    table.delete(rows(9, "c", "d"))
    model.delete(rows(9, "c", "d").to_pylist())
    table.update(where=pc.field("v") == 3, set={"v": 30})
    table.delete(where=[("id", "=", "g")])
    model.delete(rows(1, "g").select(["id", "p"]).to_pylist())
    for key, row in model.rows.items():
        model.rows[key] = {**row, "v": 30 if row["v"] == 3 else row["v"]}
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == model.snapshot()
    assert len(table.to_arrow(filters=[("v", "=", 30)])) == 2
    assert len(table.history()) == 8
    assert table.fsck() == []


# --- the page -------------------------------------------------------------------------------------


def test_the_page_says_what_these_tests_show() -> None:
    """The matrix has a row for each type, and "yes" or "no" where a reader is tested here."""
    lines = [[c.strip() for c in r.split("|")[1:-1]] for r in PAGE.read_text().splitlines()]
    (head,) = [cells for cells in lines if cells[:1] == ["type"]]
    rows = {
        cells[0]: dict(zip(head, cells, strict=True))
        for cells in lines
        if cells[:1] != ["type"] and len(cells) == len(head)
    }
    for name in EVERY:
        for reader in READERS:
            wanted = "no" if (name, reader) in NOT_READ else "yes"
            assert rows[name][reader].startswith(wanted), (name, reader)
