"""Batch writes of Spark DataFrames: converted, overwriting and bulk inserts, as in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from core.tables import hudi_rows, schema_of, without_meta

import hoodie_nb as hn
from hoodie_nb.errors import InvalidInput, InvalidTable

pytestmark = pytest.mark.spark


def row(key: str, p: str, v: int) -> dict[str, Any]:
    """Return one row."""
    return {"id": key, "p": p, "ts": v, "v": v}


ROWS = [row("a", "x", 5), row("b", "x", 5), row("c", "y", 5)]


@pytest.fixture
def table(tmp_path):
    """A table with three rows in two partitions."""
    made = hn.Table.create(
        tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p", ordering="ts"
    )
    made.upsert(ROWS)
    return made


def frame(spark, *rows: dict[str, Any]) -> Any:
    """Return a DataFrame, in several tasks."""
    given = [{**each, "v": float(each["v"])} for each in rows]
    return spark.createDataFrame(given, "id string, p string, ts long, v double").repartition(3)


def found(table) -> dict[tuple[str, str], int]:
    """Return the value of each key, after comparing the rows with those that hudi-rs reads."""
    rows = table.to_arrow(meta=False)
    assert hudi_rows(table.path) == without_meta(rows)
    assert table.fsck() == []
    return {(r["p"], r["id"]): r["v"] for r in rows.to_pylist()}


def test_a_dataframe_overwrites_partitions_and_tables(spark, table):
    """The partitions of the DataFrame's rows are replaced, or all; without rows the table is."""
    commit = table.insert_overwrite(frame(spark, row("a", "x", 1), row("d", "x", 1)))
    assert (commit.operation, commit.inserts) == ("insert_overwrite", 2)
    assert found(table) == {("x", "a"): 1, ("x", "d"): 1, ("y", "c"): 5}
    table.upsert(frame(spark, row("a", "x", 7), row("b", "x", 7)))
    assert found(table) == {("x", "a"): 7, ("x", "b"): 7, ("x", "d"): 1, ("y", "c"): 5}
    table.insert_overwrite(frame(spark, row("q", "z", 1)), scope="table")
    assert found(table) == {("z", "q"): 1}
    assert table.insert_overwrite(frame(spark, *ROWS).where("false")) is None
    table.insert_overwrite(frame(spark, *ROWS).where("false"), scope="table")
    assert found(table) == {}


def test_a_dataframe_is_bulk_inserted(spark, table):
    """Rows are added to new files, and keys that exist are stored again."""
    before = set(table.file_groups()["file_name"])
    commit = table.bulk_insert(frame(spark, row("a", "x", 6), row("d", "x", 6)))
    assert (commit.operation, commit.inserts, commit.updates) == ("bulk_insert", 2, 0)
    assert before < set(table.file_groups()["file_name"])
    assert table.to_arrow().num_rows == 5


def test_doubles_of_a_dataframe_are_converted_or_refused(spark, table):
    """A whole double becomes a long; one with a fraction is refused with its value."""
    table.upsert(frame(spark, row("a", "x", 6)))
    assert found(table)["x", "a"] == 6
    with pytest.raises(InvalidInput, match=r"'v' .* 6\.5 of type double"):
        table.upsert(frame(spark, {**row("b", "x", 6), "v": 6.5}))
    assert found(table)["x", "b"] == 5


def test_a_lost_file_is_named_before_the_tasks_start(spark, table):
    """Tasks get all partitions listed and checked, also those that the rows do not touch."""
    (lost,) = Path(table.path, "y").glob("*.parquet")
    kept = lost.read_bytes()
    lost.unlink()
    with pytest.raises(InvalidTable, match=f"^[^:]*{lost.name}, written by commit"):
        hn.Table.open(table.path).upsert(frame(spark, row("a", "x", 7)))
    lost.write_bytes(kept)
    table.upsert(frame(spark, row("a", "x", 7)))
    assert found(table) == {("x", "a"): 7, ("x", "b"): 5, ("y", "c"): 5}
