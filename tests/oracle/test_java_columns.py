"""Columns that Java adds, widens, renames or drops, and what we do then."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from hoodie_nb import InvalidInput, InvalidTable, Table

from .client import BLOOM, Judge
from .readers import agree
from .tables import LAYOUTS, Model, rows

pytestmark = pytest.mark.oracle
SIMPLE = LAYOUTS["simple"]
ON_READ = "hoodie.schema.on.read.enable"
ALTERING = {  # a change is a commit of its own, and must not upgrade the table
    ON_READ: "true",
    "hoodie.write.table.version": "6",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
}


def made(path: Path) -> tuple[Table, Model]:
    """Return a table of ours with ten rows."""
    table, model = SIMPLE.create(path), Model(SIMPLE)
    table.upsert(model.upsert(range(10), 2))
    return table, model


def altered(judge: Judge, path: Path, change: str) -> Table:
    """Let Java change the columns of a table by ALTER TABLE."""
    table, _ = made(path / "t")
    judge.sql(f"create table {path.name} using hudi location '{table.path}'")
    try:
        for option, value in ALTERING.items():
            judge.sql(f"set {option}={value}")
        judge.sql(f"alter table {path.name} {change}")
    finally:
        for option in ALTERING:
            judge.sql(f"reset {option}")
    return Table.open(table.path)


def test_java_adds_and_widens_columns_and_we_write_on(judge: Judge, tmp_path: Path) -> None:
    """Our next batch needs the new column, by name; then both engines write, and all agree."""
    table, model = made(tmp_path / "t")
    wide = SIMPLE.schema.set(1, pa.field("line", pa.int64())).append(pa.field("new", pa.string()))
    theirs = model.upsert(range(5, 15), 3)
    more = theirs.append_column("new", pa.array(["java"] * len(theirs))).cast(wide)
    judge.write(table.path, more, BLOOM)
    assert table.schema.equals(wide)
    agree(judge, table)
    with pytest.raises(InvalidInput, match=r"columns \['new'\] of the table are missing"):
        table.upsert(rows(range(3), SIMPLE, 4))
    ours = rows(range(3, 12), SIMPLE, 4)
    table.upsert(ours.append_column("new", pa.nulls(len(ours), pa.string())))
    judge.write(table.path, more.slice(9), BLOOM)
    seen = {row["id"]: row["new"] for row in agree(judge, table)}
    assert sum(value == "java" for value in seen.values()) == 3 and len(seen) == 15


@pytest.mark.parametrize("change", ["add column extra string", "drop column price"])
def test_columns_that_java_alters_are_read_but_not_written(
    judge: Judge, tmp_path: Path, change: str
) -> None:
    """The columns are those of Java; a write is refused, since it would lose the columns' ids."""
    table = altered(judge, tmp_path, change)
    agree(judge, table)
    with pytest.raises(InvalidTable, match=r"evolved by ALTER TABLE .*latest_schema"):
        table.upsert(table.to_arrow(meta=False))


def test_a_column_that_java_renamed_is_refused(judge: Judge, tmp_path: Path) -> None:
    """Older files have its old name: readers by name would show nulls where Java shows values."""
    table = altered(judge, tmp_path, "rename column price to cost")
    assert judge.read(table.path, **{ON_READ: "true"})["cost"].null_count < 10
    for act in (table.to_arrow, lambda: table.upsert(rows(range(1), SIMPLE, 4))):
        with pytest.raises(InvalidTable, match=r"'price' is 'cost' now"):
            act()
