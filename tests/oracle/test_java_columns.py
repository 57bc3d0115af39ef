"""Columns that Java adds, widens, renames or drops, and what we do then."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hoodie_nb import InvalidInput, InvalidTable, Table

from .client import BLOOM, Judge
from .readers import agree
from .tables import LAYOUTS, Model, rows
from .test_java_rollbacks import OPTIONS

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


@pytest.mark.parametrize("version", [6, 9])
def test_java_follows_columns_that_we_add_and_widen(
    judge: Judge, tmp_path: Path, version: int
) -> None:
    """It reads them before any row has them; upserts of both keep them, and all agree."""
    table, model = SIMPLE.create(tmp_path / "t", table_version=version), Model(SIMPLE)
    table.upsert(model.upsert(range(10), 2))
    table.add_columns({"line": pa.int64(), "new": pa.string(), "money": pa.decimal128(12, 2)})
    wide = table.schema
    found = agree(judge, table)
    assert len(found) == 10 and {row["new"] for row in found} == {None}

    def with_new(given: pa.Table, value: str) -> pa.Table:
        return given.append_column("new", pa.array([value] * len(given))).cast(wide)

    theirs = with_new(model.upsert(range(5, 12), 3), "java")
    judge.write(table.path, theirs, BLOOM | OPTIONS[version])
    assert table.schema.equals(wide)
    found = agree(judge, table)
    assert sum(row["new"] == "java" for row in found) == 7 and len(found) == 12
    more = with_new(model.upsert(range(3), 4), "ours")
    table.upsert(more.append_column("more", pa.array([0.5] * 3)), schema="merge")
    found = agree(judge, table)
    assert sum(row["more"] == 0.5 for row in found) == 3 and table.fsck() == []


INT, TEXT, DOUBLE = pa.int32(), pa.string(), pa.float64()
WIDER: dict[str, tuple[pa.DataType, Any, pa.DataType]] = {
    "int_long": (INT, 5, pa.int64()),
    "int_float": (INT, 5, pa.float32()),
    "int_double": (INT, 5, DOUBLE),
    "int_text": (INT, 5, TEXT),
    "long_float": (pa.int64(), 5, pa.float32()),
    "long_double": (pa.int64(), 5, DOUBLE),
    "long_text": (pa.int64(), 5, TEXT),
    "float_double": (pa.float32(), 0.1, DOUBLE),
    "digits": (pa.decimal128(4, 2), Decimal("1.10"), pa.decimal128(8, 2)),
    "scale": (pa.decimal128(4, 2), Decimal("1.10"), pa.decimal128(20, 4)),
    "field": (pa.struct([("a", INT)]), {"a": 1}, pa.struct([("a", INT), ("b", TEXT)])),
}


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("name", WIDER)
def test_java_reads_older_files_with_our_wider_type(
    judge: Judge, tmp_path: Path, version: int, name: str
) -> None:
    """Each change that `add_columns` makes is read by Java as by us, before and after a write."""
    old, value, new = WIDER[name]
    schema = pa.schema([("id", TEXT), ("part", TEXT), ("v", old)])
    keys: dict[str, Any] = {"record_key": "id", "partition_by": "part", "table_version": version}
    table = Table.create(tmp_path / "t", schema=schema, **keys)
    rows = [{"id": key, "part": "x", "v": value} for key in "ab"]
    table.upsert(pa.table({f.name: pa.array([r[f.name] for r in rows], f.type) for f in schema}))
    table.add_columns({"v": new})
    first = agree(judge, table)
    table.upsert([{"id": "b", "part": "x", "v": None}])
    assert agree(judge, table)[0] == first[0]


@pytest.mark.parametrize("version", [6, 9])
def test_java_undoes_the_commit_that_adds_columns(
    judge: Judge, tmp_path: Path, version: int
) -> None:
    """A commit without files is rolled back as any other, and the columns go with it."""
    table, model = SIMPLE.create(tmp_path / "t", table_version=version), Model(SIMPLE)
    table.upsert(model.upsert(range(10), 2))
    commit = table.add_columns({"new": pa.string()})
    assert commit is not None
    judge.rollback(table.path, commit.requested_time, OPTIONS[version])
    assert table.schema.equals(SIMPLE.schema)
    agree(judge, table)
