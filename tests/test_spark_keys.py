"""On Spark one function decides which rows are the same record: the text of key and partition."""

from __future__ import annotations

import pyarrow as pa
import pytest
from core.tables import hudi_table
from spark_source import FolderSource

import hoodie_nb as hn

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
COUNT = 30
TASKS = 4  # among so many, Spark sends null and "" to different tasks


def twice() -> pa.Table:
    """Return thirty keys twice: older rows with a null, newer ones with an empty partition."""
    keys = [f"k{n:02d}" for n in range(COUNT)]
    partitions = [None] * COUNT + [""] * COUNT
    numbers = list(range(2 * COUNT))
    columns = [keys + keys, partitions, numbers, numbers]
    return pa.Table.from_arrays([pa.array(c) for c in columns], schema=SCHEMA)


def null_partition_table(path, merge_mode: str = "event_time") -> hn.Table:
    """Return an empty table partitioned by a column that may be null."""
    return hn.Table.create(
        path,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        merge_mode=merge_mode,
    )


def holds_newer_rows(table: hn.Table) -> None:
    """Check that each key is there once, with the newer row, for us and for hudi-rs."""
    assert table.fsck() == []
    for rows in (table.to_arrow(), hudi_table(table.path)):
        assert sorted(rows["v"].to_pylist()) == list(range(COUNT, 2 * COUNT))


@pytest.mark.parametrize("pipeline", ["current", "step1", "step2", "step3"])
def test_null_and_empty_partition_are_one_in_every_pipeline(spark, tmp_path, pipeline):
    """A key with a null and with an empty partition value is one record in all four pipelines."""
    table = null_partition_table(tmp_path / "t")
    source = FolderSource(tmp_path / "source", SCHEMA)
    source.add(twice())
    stream = source.stream(spark)
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    hn.write_stream(
        stream, table, **settings, pipeline=pipeline, index="bloom", write_tasks=TASKS
    ).wait(120)
    holds_newer_rows(table)


def test_null_and_empty_partition_are_one_in_sealed_runs(spark, tmp_path):
    """A sealed checkpoint folds a null and an empty partition value into one record, too."""
    table = null_partition_table(tmp_path / "t", "commit_time")
    source = FolderSource(tmp_path / "source", SCHEMA)
    source.add(twice())
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    hn.write_stream(
        source.stream(spark), table, **settings, commit_interval=2, write_tasks=TASKS
    ).wait(120)
    holds_newer_rows(table)


def test_null_and_empty_partition_are_one_in_a_batch(spark, tmp_path):
    """A DataFrame's upsert keeps one row of a key whose partition is null here and empty there."""
    table = null_partition_table(tmp_path / "t", "commit_time")
    table.upsert(spark.createDataFrame(twice()))
    holds_newer_rows(table)
