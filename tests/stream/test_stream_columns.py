"""Columns that another engine adds or widens while a stream runs, and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from core.tables import Model, hudi_rows, without_meta
from core.writes import commit_elsewhere
from pyspark.sql import functions as F
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb.errors import InvalidInput

pytestmark = pytest.mark.spark
OLD = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("n", pa.int32())])
NEW = OLD.set(3, pa.field("n", pa.int64())).append(pa.field("x", pa.string()))


def rows(schema: pa.Schema, ts: int, n: int, **more: str) -> pa.Table:
    """Return a new version of three records, and a new record."""
    keys = ["a", "b", "c", f"new{ts}"]
    held = [{"id": k, "p": "xy"[i % 2], "ts": ts, "n": n + i, **more} for i, k in enumerate(keys)]
    return pa.Table.from_pylist(held, schema=schema)


def feed(source: FolderSource, job: Any, model: Model, given: pa.Table) -> None:
    """Let a stream write these rows, and the model; without a column `x` theirs is null."""
    source.add(given)
    job.process_all_available()
    model.upsert({**row, "x": row.get("x")} for row in given.to_pylist())


@pytest.mark.parametrize("settings", [{"placement": "driver"}, {"commit_interval": 3}, {}])
def test_a_stream_follows_columns_that_another_engine_changes(spark, tmp_path, settings):
    """It goes on with the old columns, and starts again on its checkpoint with the new ones."""
    table = hn.Table.create(
        tmp_path / "t", schema=OLD, record_key="id", partition_by="p", ordering="ts"
    )
    model, source = Model(), FolderSource(tmp_path / "source", OLD)
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "0 seconds", **settings}
    job = hn.write_stream(source.stream(spark), table, **settings)

    feed(source, job, model, rows(OLD, 1, 10))
    other = rows(NEW, 2, 2**40, x="other").slice(1)
    commit_elsewhere(table.path, other)
    model.upsert(other.to_pylist())
    feed(source, job, model, rows(OLD, 3, 30).slice(2))
    job.stop()
    assert table.schema.equals(NEW)
    source.schema = NEW
    job = hn.write_stream(source.stream(spark), table, **settings)
    feed(source, job, model, rows(NEW, 4, 2**41, x="ours"))
    job.stop()
    assert without_meta(table.to_arrow()) == hudi_rows(Path(table.path)) == model.snapshot()
    assert {type(n) for n in table.to_arrow()["x"].to_pylist()} == {str, type(None)}
    assert table.fsck() == []


def test_a_stream_whose_integers_became_text_starts_again_with_text(spark, tmp_path):
    """It stops with an error; with a cast it goes on from its checkpoint, without a loss."""
    table = hn.Table.create(tmp_path / "t", schema=OLD, record_key="id", ordering="ts")
    source, ck = FolderSource(tmp_path / "source", OLD), str(tmp_path / "ck")
    job = hn.write_stream(source.stream(spark), table, checkpoint=ck, trigger="0 seconds")
    source.add(rows(OLD, 1, 10))
    job.process_all_available()
    table.add_columns({"n": pa.string()})
    source.add(rows(OLD, 2, 20))
    with pytest.raises(hn.HoodieError, match="cast it first"):
        job.process_all_available()
    text = source.stream(spark).withColumn("n", F.col("n").cast("string"))
    job = hn.write_stream(text, table, checkpoint=ck, trigger="0 seconds")
    job.process_all_available()
    job.stop()
    model = Model()
    for given in (rows(OLD, 1, 10), rows(OLD, 2, 20)):
        model.upsert({**row, "n": str(row["n"])} for row in given.to_pylist())
    assert without_meta(table.to_arrow()) == hudi_rows(Path(table.path)) == model.snapshot()


def test_a_new_stream_must_have_the_columns_that_the_table_has_now(spark, tmp_path):
    """A query that never wrote the table cannot leave out a column: it is refused by name."""
    table = hn.Table.create(tmp_path / "t", schema=OLD, record_key="id", ordering="ts")
    commit_elsewhere(table.path, rows(NEW, 1, 1, x="other"))
    source = FolderSource(tmp_path / "source", OLD)
    with pytest.raises(InvalidInput, match=r"columns \['x'\] of the table are missing"):
        hn.write_stream(source.stream(spark), table, checkpoint=str(tmp_path / "ck"))
