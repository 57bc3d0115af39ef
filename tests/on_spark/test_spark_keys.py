"""On Spark one function decides which rows are one record: the text of key and partition."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from core.tables import hudi_table, without_meta
from index_truth import plan_of
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb.errors import InvalidInput
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.on_spark.stages import _keyed
from hoodie_nb.rows.columns import SEQ

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
COUNT = 30
TASKS = 4  # among so many, Spark sends null and "" to different tasks


def repeated_keys() -> pa.Table:
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
    """Check that each key is in the table once, with the newer row, for us and for hudi-rs."""
    assert table.fsck() == []
    for rows in (table.to_arrow(), hudi_table(table.path)):
        assert sorted(rows["v"].to_pylist()) == list(range(COUNT, 2 * COUNT))


@pytest.mark.parametrize("pipeline", ["current", "step1", "step2", "step3"])
def test_null_and_empty_partition_are_one_in_every_pipeline(spark, tmp_path, pipeline):
    """A key with a null and with an empty partition value is one record in all four pipelines."""
    table = null_partition_table(tmp_path / "t")
    source = FolderSource(tmp_path / "source", SCHEMA)
    source.add(repeated_keys())
    stream = source.stream(spark)
    settings = {
        "checkpoint": str(tmp_path / "ck"),
        "trigger": "available_now",
        "placement": "executors",
    }
    hn.write_stream(
        stream, table, **settings, pipeline=pipeline, index="bloom", write_tasks=TASKS
    ).wait(120)
    holds_newer_rows(table)


def test_null_and_empty_partition_are_one_in_sealed_runs(spark, tmp_path):
    """A sealed checkpoint folds a null and an empty partition value into one record, too."""
    table = null_partition_table(tmp_path / "t", "commit_time")
    source = FolderSource(tmp_path / "source", SCHEMA)
    source.add(repeated_keys())
    settings = {
        "checkpoint": str(tmp_path / "ck"),
        "trigger": "available_now",
        "placement": "executors",
    }
    hn.write_stream(
        source.stream(spark), table, **settings, commit_interval=2, write_tasks=TASKS
    ).wait(120)
    holds_newer_rows(table)


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_a_snapshot_on_spark_has_the_dates_that_were_written(spark, tmp_path, mode):
    """In a file without Spark's version, dates are those stored, whatever the session's mode."""
    old, schema = datetime.date(1500, 1, 1), pa.schema([("id", pa.string()), ("d", pa.date32())])
    table = hn.Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert(pa.Table.from_pylist([{"id": "a", "d": old}], schema))
    (file,) = Path(table.path).glob("*.parquet")
    pq.write_table(pq.read_table(file), file, store_schema=False)  # as by Java's upsert
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", mode)
    try:
        (found,) = table.to_spark(spark).select("d").collect()
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")
    assert found.d == old


def test_a_seal_on_spark_is_refused_if_its_partitions_would_share_a_folder(spark, tmp_path):
    """Spark does not count such a batch as done, and the table can still be written."""
    table = null_partition_table(tmp_path / "t")
    (tmp_path / "t" / ".HOODIE").mkdir()  # as the file system's own answer to another spelling
    source, rows = FolderSource(tmp_path / "source", SCHEMA), repeated_keys().slice(0, 2)
    for partition in ("NY", "ny", "LA"):
        source.add(rows.set_column(1, "p", pa.array([partition] * 2)))
    settings = {
        "checkpoint": str(tmp_path / "ck"),
        "trigger": "available_now",
        "placement": "executors",
    }
    with pytest.raises(InvalidInput, match="'NY' and 'ny' are one folder"):
        hn.write_stream(source.stream(spark), table, **settings, commit_interval=5).wait(120)
    assert [p.name for p in (tmp_path / "ck" / "commits").glob("[0-9]*")] == ["0"]
    table.upsert(rows)
    assert table.to_arrow(["p"]).column("p").to_pylist() == ["NY", "NY", None, None]
    assert table.fsck() == []


def test_null_and_empty_partition_are_one_in_a_batch(spark, tmp_path):
    """A DataFrame's upsert keeps one row of a key whose partition is null or empty."""
    table = null_partition_table(tmp_path / "t", "commit_time")
    table.upsert(spark.createDataFrame(repeated_keys()))
    holds_newer_rows(table)


NESTED = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
TYPES = {
    "ts": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "small": pa.decimal128(9, 2),
    "large": pa.decimal128(38, 10),
    "map": pa.map_(pa.string(), NESTED),
    "struct": NESTED,
    "lists": pa.list_(pa.list_(pa.timestamp("us", "UTC"))),
    "raw": pa.binary(),
    "flag": pa.bool_(),
    "half": pa.float32(),
    "day": pa.date32(),
    "nothing": pa.int64(),
}


def of_every_type() -> pa.Table:
    """Return rows with values of every type that Hudi stores, and a row of nulls."""
    when = datetime.datetime(2026, 3, 29, 2, 30, 0, 123_456)
    inner = {"x": 1, "y": ["a", None, ""]}
    values: dict[str, list[Any]] = {
        "id": ["\uffee", "\U0001f600", "k\0", "k"],
        "p": [None, "", "ü", "a b"],
        "ts": [when.replace(tzinfo=datetime.UTC)] * 4,
        "local": [when, None, datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)],
        "small": [Decimal("1234567.89"), None, Decimal("-0.01"), Decimal(0)],
        "large": [Decimal("1234567890123456789012345678.0123456789"), None, None, Decimal(-1)],
        "map": [[("k", inner), ("", None)], None, [], [("z", {"x": None, "y": None})]],
        "struct": [inner, None, {"x": None, "y": []}, inner],
        "lists": [[[when.replace(tzinfo=datetime.UTC), None], None, []], None, [], [[]]],
        "raw": [b"\x00\xff", None, b"", b"x"],
        "flag": [True, None, False, True],
        "half": [0.5, None, float("inf"), -0.0],
        "day": [datetime.date.min, None, datetime.date.max, datetime.date(2026, 2, 28)],
        "nothing": [None] * 4,
    }
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), *TYPES.items()])
    return pa.table(values, schema=schema)


@pytest.mark.parametrize("how", ["batch", "current", "step3", "sealed"])
def test_values_of_every_type_come_through_spark(spark, tmp_path, how):
    """Every type that Hudi stores passes Spark's stages unchanged, in any session time zone."""
    rows = of_every_type()
    table = hn.Table.create(
        tmp_path / "t", schema=rows.schema, record_key="id", partition_by="p", ordering="ts"
    )
    source = FolderSource(tmp_path / "source", rows.schema)
    source.add(rows)
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now", "index": "bloom"}
    settings |= {"placement": "executors"}
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        if how == "batch":
            table.upsert(source.batch(spark))
        elif how == "sealed":
            source.add(rows.slice(1, 2))
            hn.write_stream(source.stream(spark), table, **settings, commit_interval=5).wait(120)
        else:
            hn.write_stream(source.stream(spark), table, **settings, pipeline=how).wait(120)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert without_meta(table.to_arrow()) == without_meta(rows)
    assert table.fsck() == []


def test_a_snapshot_on_spark_has_every_type(spark, tmp_path):
    """Spark's reader returns every type and value of a snapshot as it was written."""
    rows = of_every_type()
    table = hn.Table.create(tmp_path / "t", schema=rows.schema, record_key="id")
    table.upsert(rows)
    found = table.to_spark(spark).select(*rows.column_names).toArrow()
    assert without_meta(found.cast(rows.schema)) == without_meta(rows)


def test_a_delete_on_spark_needs_the_keys_alone(spark, tmp_path):
    """A DataFrame of key and partition deletes by text; null and empty partitions are one."""
    table = null_partition_table(tmp_path / "t")
    table.upsert(spark.createDataFrame(repeated_keys()))
    keys = repeated_keys().select(["id", "p"]).slice(0, 10)
    assert table.delete(spark.createDataFrame(keys)).deletes == 10
    assert sorted(table.to_arrow()["v"].to_pylist()) == list(range(COUNT + 10, 2 * COUNT))


def test_a_delete_flag_that_is_null_keeps_the_row(spark, tmp_path):
    """`_hoodie_is_deleted` deletes if it is true; rows with null are stored."""
    table = null_partition_table(tmp_path / "t")
    rows = spark.createDataFrame(repeated_keys()).where("v < 3")
    table.upsert(rows.withColumn("_hoodie_is_deleted", F.lit(None)))
    flags = F.when(F.col("v") == 1, True)
    table.upsert(rows.withColumn("_hoodie_is_deleted", flags).withColumn("p", F.lit("")))
    assert sorted(table.to_arrow()["v"].to_pylist()) == [0, 2]


@pytest.mark.parametrize("kind", ["interval year to month", "interval", "variant", "map<int, int>"])
def test_types_that_cannot_be_stored_are_refused_by_name(spark, tmp_path, kind):
    """A column type that Arrow or Hudi does not support is refused when a table is created."""
    schema = StructType.fromDDL(f"id string, c {kind}")
    with pytest.raises(hn.errors.InvalidInput, match="column"):
        hn.Table.create(tmp_path / "t", schema=schema, record_key="id")


def test_a_collation_does_not_make_two_keys_one(spark, tmp_path):
    """Keys are compared byte by byte, even if the DataFrame's own order ignores case."""
    table = null_partition_table(tmp_path / "t")
    rows = spark.createDataFrame(repeated_keys()).withColumn("p", F.lit("x"))
    ids = F.when(F.col("v") < COUNT, F.upper("id")).otherwise(F.col("id"))
    for _ in range(2):
        table.upsert(rows.withColumn("id", F.collate(ids, "UTF8_LCASE")))
    assert table.fsck() == []
    assert sorted(table.to_arrow()["v"].to_pylist()) == list(range(2 * COUNT))


def test_large_arrow_types_come_through_spark(spark, tmp_path):
    """A session whose Arrow text has 64-bit offsets writes the same rows."""
    rows = of_every_type()
    table = hn.Table.create(
        tmp_path / "t", schema=rows.schema, record_key="id", partition_by="p", ordering="ts"
    )
    source = FolderSource(tmp_path / "source", rows.schema)
    source.add(rows)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        table.upsert(source.batch(spark))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert without_meta(table.to_arrow()) == without_meta(rows)


def test_rows_are_numbered_in_the_order_in_which_they_come(spark, tmp_path):
    """Each row of a batch has a number, greater than those of the rows and tasks before it."""
    table = open_table(null_partition_table(tmp_path / "t").path)
    rows = spark.range(40, numPartitions=4).selectExpr(
        "string(id) AS id", "'p' AS p", "1L AS ts", "id AS v"
    )
    keyed = _keyed(rows, plan_of(table)).collect()
    numbers = [row[SEQ] for row in sorted(keyed, key=lambda row: row["v"])]
    assert numbers == sorted(set(numbers))
