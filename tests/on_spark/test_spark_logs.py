"""Spark reads merge-on-read tables as this process does; it writes no table of another engine."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from core.every_type import EVERY
from core.java_logs import java_rows, java_table, same_rows
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import hoodie_nb as hn
from hoodie_nb.errors import HoodieError, InvalidTable

pytestmark = pytest.mark.spark
QUERY = "hoodie.datasource.query.type"
STATES = [(6, "pending"), (9, "pending"), (9, "log_only"), (8, "commit_time")]


@pytest.mark.parametrize("version, state", STATES)
def test_both_reads_of_spark_are_javas(
    spark: SparkSession, tmp_path: Path, version: int, state: str
) -> None:
    """`to_spark` and the format, with logs, without base files, and with both kinds of slices."""
    root = java_table(tmp_path, version, state)
    wanted = java_rows(version, state)
    assert same_rows(hn.Table.open(root).to_spark(spark).toArrow(), wanted)
    assert same_rows(spark.read.format("hoodie_nb").load(str(root)).toArrow(), wanted)


@pytest.mark.parametrize("version, state", STATES)
def test_read_optimized_queries_of_spark(
    spark: SparkSession, tmp_path: Path, version: int, state: str
) -> None:
    """`to_spark` and the format by Hudi's option return the base files' rows, as `to_arrow`."""
    root = java_table(tmp_path, version, state)
    table = hn.Table.open(root)
    wanted = table.to_arrow(read_optimized=True)
    assert same_rows(table.to_spark(spark, read_optimized=True).toArrow(), wanted)
    reader = spark.read.format("hoodie_nb").option(QUERY, "read_optimized")
    assert same_rows(reader.load(str(root)).toArrow(), wanted)
    reader = spark.read.format("hoodie_nb").option(QUERY, "snapshot")
    assert same_rows(reader.load(str(root)).toArrow(), java_rows(version, state))


@pytest.mark.parametrize(
    "options, words",
    [
        ({QUERY: "incremental"}, "`since` reads changes"),
        ({QUERY: "read_optimized", "since": "earliest"}, "changes are never read so"),
    ],
)
def test_other_query_types_are_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    """With what to do instead."""
    root = java_table(tmp_path, 9)
    with pytest.raises(PySparkException, match=words):
        spark.read.format("hoodie_nb").options(**options).load(str(root)).count()


def test_values_of_every_type_in_logs(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes edge values and nulls to logs, over others in base files, and reads them again.

    By all its reads, in a zone that is not UTC.
    """
    columns = {name.replace(" ", "_"): kind for name, (kind, _) in EVERY.items()}
    schema = pa.schema({"id": pa.string(), **columns})
    keys = pa.array([f"k{number}" for number in range(300)])
    first = [pa.array([(v * 100)[number] for number in range(300)], k) for k, v in EVERY.values()]
    turned = [pa.array(v[::-1], k) for k, v in EVERY.values()]
    table = hn.Table.create(
        tmp_path / "t",
        schema=schema,
        record_key="id",
        table_type="merge_on_read",
        options={"hoodie_nb.append.above.bytes": 0},
    )
    base = table.upsert(pa.Table.from_arrays([keys, *first], schema=schema))
    rows = pa.Table.from_arrays([keys.slice(0, 3), *turned], schema=schema)
    assert base is not None
    since = base.requested_time
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        table.upsert(spark.createDataFrame(rows, from_arrow_schema(schema, True)))
        assert [*Path(table.path).glob(".*.log.*")]
        reader = spark.read.format("hoodie_nb")
        frames = [
            table.to_spark(spark),
            reader.load(table.path),
            table.changes_spark(spark, since=since),
            reader.option("since", since).load(table.path),
        ]
        changed = (each.where("id in ('k0', 'k1', 'k2')") for each in frames)
        found = [each.select(schema.names).toArrow().sort_by("id") for each in changed]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [each.cast(schema).to_pylist() for each in found] == [rows.to_pylist()] * 4


def test_an_earlier_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    """As of a commit before the compaction."""
    table = hn.Table.open(java_table(tmp_path, 6))
    time17 = table.history()["requested_time"][3]
    wanted = java_rows(6, f"expected/{time17}")
    assert same_rows(table.to_spark(spark, as_of=time17).toArrow(), wanted)


def test_streams_and_the_format_do_not_write(spark: SparkSession, tmp_path: Path) -> None:
    """`write_stream`, `df.write` in each mode, and DataFrames given to `upsert`."""
    root = java_table(tmp_path / "t", 9)
    table = hn.Table.open(root)
    frame = spark.createDataFrame([("k001", "a", 99)], "id string, part string, at long")
    with pytest.raises(InvalidTable, match="only be read"):
        table.upsert(frame)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidTable, match="only be read"):
        hn.write_stream(stream, table, checkpoint=tmp_path / "c")
    for mode in ("append", "overwrite"):
        with pytest.raises(PySparkException, match="only be read"):
            frame.write.format("hoodie_nb").mode(mode).save(str(root))
    options = {"checkpointLocation": str(tmp_path / "d")}
    with pytest.raises((PySparkException, HoodieError), match="only be read"):
        sink = stream.writeStream.format("hoodie_nb").options(**options)
        sink.start(str(root)).processAllAvailable()


@pytest.mark.parametrize("version", [6, 9])
def test_changes_of_spark_are_those_of_this_process(
    spark: SparkSession, tmp_path: Path, version: int
) -> None:
    """By `changes_spark` and the format, over updates, deletes and a compaction."""
    root = java_table(tmp_path, version)
    table = hn.Table.open(root)
    times = [*table.history()["requested_time"]]
    for since, until in [(times[1], times[-1]), (times[2], times[4]), ("earliest", times[3])]:
        wanted = table.changes(since=since, until=until)
        assert wanted.num_rows
        assert same_rows(table.changes_spark(spark, since=since, until=until).toArrow(), wanted)
        reader = spark.read.format("hoodie_nb").options(since=since, until=until)
        assert same_rows(reader.load(str(root)).toArrow(), wanted)


def test_a_stream_of_changes(spark: SparkSession, tmp_path: Path) -> None:
    """From the start: all rows, as inserts."""
    root = java_table(tmp_path / "t", 9)
    stream = spark.readStream.format("hoodie_nb").option("starting", "earliest").load(str(root))
    query = (
        stream.writeStream.format("memory")
        .queryName("changes_of_logs")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.table("changes_of_logs").toArrow()
    assert same_rows(found, hn.Table.open(root).to_arrow())
    assert set(found["_change"].to_pylist()) == {"insert"}
