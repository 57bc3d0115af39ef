"""If a key is in several files of one micro-batch, the row of the newest file counts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import hoodie_nb as hn
from hoodie_nb.on_spark.file_order import with_places
from hoodie_nb.stream.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
KEYS = ["a", "b", "c"]
PIPELINES = ["current", "step1", "step2", "step3", "direct"]
SIZES = (1, 400, 30, 2000, 3)  # Spark packs the largest file first
NAMES = ("z old %20#+.json", "ü\U0001f600.json", "c.json", "b b.json", "a.json")  # oldest first


def feed(folder: Path, first: int = 0, sizes: tuple[int, ...] = SIZES) -> int:
    """Write files of different sizes, all with the same keys; return the newest row's value.

    The time of a file is its number; within a file, later rows have greater values.
    """
    value = first
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, size) in enumerate(zip(NAMES, sizes, strict=True)):
        rows = []
        for _ in range(size):
            value += 1
            rows += [json.dumps({"id": key, "v": value}) for key in KEYS]
        path = folder / name
        path.write_text("\n".join(rows))
        arrived = 1_700_000_000 + first + number
        os.utime(path, (arrived, arrived))
    return value


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return all files of a folder as a stream, in one micro-batch."""
    return spark.readStream.schema("id string, v long").json(str(folder))


def write_and_read(folder: Path, rows: DataFrame, **settings: object) -> dict[str, int]:
    """Write a stream into a table without ordering column; return its rows."""
    table = hn.Table.create(folder / "t", schema=SCHEMA, record_key="id", if_exists="open")
    settings = {"placement": "executors", "trigger": "available_now", **settings}
    settings |= {"checkpoint": str(folder / "ck")}
    assert hn.write_stream(rows, table, **settings).wait(120)
    assert table.fsck() == []
    return {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_newest_file_of_a_batch_counts(spark, tmp_path, pipeline):
    """For any sizes and names of files, the newest row of a key is in the newest file."""
    newest = feed(tmp_path / "source")
    found = write_and_read(tmp_path, stream(spark, tmp_path / "source"), pipeline=pipeline)
    assert found == dict.fromkeys(KEYS, newest)


@pytest.mark.parametrize("settings", [{}, {"commit_interval": 2}])
@pytest.mark.parametrize("placement", ["executors", "driver"])
def test_the_newest_file_counts_in_every_placement(spark, tmp_path, placement, settings):
    """Also in a sealed checkpoint, the row of the newest file is kept."""
    newest, rows = feed(tmp_path / "source"), stream(spark, tmp_path / "source")
    found = write_and_read(tmp_path, rows, placement=placement, **settings)
    assert found == dict.fromkeys(KEYS, newest)


@pytest.mark.parametrize("packed", [True, False])
def test_rows_of_a_file_keep_their_order_across_its_blocks(spark, tmp_path, packed):
    """Files that Spark reads in several blocks, in several tasks or one, keep their order."""
    newest = feed(tmp_path / "source")
    sizes = {"spark.sql.files.maxPartitionBytes": "8000", "spark.sql.files.openCostInBytes": "100"}
    if packed:
        sizes = {"spark.sql.files.minPartitionNum": "1"}
    for name, value in sizes.items():
        spark.conf.set(name, value)
    try:
        found = write_and_read(tmp_path, stream(spark, tmp_path / "source"), write_tasks=3)
    finally:
        for name in sizes:
            spark.conf.unset(name)
    assert found == dict.fromkeys(KEYS, newest)


def plans(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    """Return streams that do more than read a folder; the second folder has the newest file."""
    first, second = stream(spark, folder / "1"), stream(spark, folder / "2")
    both = stream(spark, folder / "*")
    first.createOrReplaceTempView("first")
    second.createOrReplaceTempView("second")
    other = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    other = other.selectExpr("'a' AS id", "value AS v").where("v < 0")
    timed = both.withColumn("t", F.timestamp_seconds("v")).withWatermark("t", "1 second")
    return {
        "union": second.union(first),
        "filtered union": first.union(second).where("v > 0").withColumn("v", F.col("v") + 0),
        "function": both.withColumn("id", F.udf(lambda text: text)("id")),
        "watermark": timed.drop("t"),
        "view": spark.sql("SELECT id, v FROM second WHERE v > 0"),
        "two views": spark.sql("SELECT * FROM second UNION ALL SELECT * FROM first"),
        "common table": spark.sql("WITH c AS (SELECT * FROM second) SELECT * FROM c WHERE v > 0"),
        "common table twice": spark.sql(
            "WITH c AS (SELECT * FROM second) SELECT * FROM c WHERE id < 'b' "
            "UNION ALL SELECT * FROM c WHERE id >= 'b' UNION ALL SELECT * FROM first"
        ),
        "one folder twice": second.where("id < 'b'").union(second.where("id >= 'b'")).union(first),
        "one folder around another": second.where("id < 'b'").union(first).union(second),
        "another source": second.where("id < 'b'").union(second).union(other).union(first),
        "metrics": both.observe("seen", F.count(F.lit(1)).alias("rows")),
        "hint": both.hint("broadcast"),
        "unpivot": both.unpivot("id", ["v"], "name", "w").selectExpr("id", "w AS v"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "union",
        "filtered union",
        "function",
        "watermark",
        "view",
        "two views",
        "common table",
        "common table twice",
        "one folder twice",
        "one folder around another",
        "another source",
        "metrics",
        "hint",
        "unpivot",
    ],
)
def test_the_newest_file_counts_after_other_steps(spark, tmp_path, name):
    """Steps that change rows one by one, also in SQL, keep the order of files."""
    feed(tmp_path / "in" / "1")
    newest = feed(tmp_path / "in" / "2", 100_000)
    rows = plans(spark, tmp_path / "in")[name]
    assert write_and_read(tmp_path, rows) == dict.fromkeys(KEYS, newest)


def test_the_newest_file_counts_with_offsets_of_the_second_format(spark, tmp_path):
    """The second format of Spark's offsets begins each line with the number of the source."""
    newest = feed(tmp_path / "source")
    format_version = "spark.sql.streaming.offsetLog.formatVersion"
    spark.conf.set(format_version, "2")
    try:
        found = write_and_read(tmp_path, stream(spark, tmp_path / "source"))
    finally:
        spark.conf.unset(format_version)
    assert found == dict.fromkeys(KEYS, newest)


def test_the_newest_file_counts_after_a_shuffle(spark, tmp_path):
    """A shuffle loses the order of the rows in a file, not the order of the files."""
    newest = feed(tmp_path / "source", sizes=(1,) * len(NAMES))
    path = tmp_path / "source" / NAMES[-1]
    with path.open("a") as file:
        file.write("\n" * 5000)  # the largest file is read first
    os.utime(path, (1_700_001_000,) * 2)
    rows = stream(spark, tmp_path / "source").repartition(1)
    assert write_and_read(tmp_path, rows) == dict.fromkeys(KEYS, newest)


def test_the_newest_file_counts_in_every_batch_of_a_long_query(spark, tmp_path):
    """This also holds after Spark has compacted its list of files, and after a restart."""
    folder, newest = tmp_path / "source", 0
    for number in range(11):
        newest = feed(folder / f"day={number}", newest)
        days = stream(spark, folder).drop("day")
        found = write_and_read(tmp_path, days, index="bloom", write_tasks=1)
        assert found == dict.fromkeys(KEYS, newest)
    assert (tmp_path / "ck/sources/0/9.compact").exists()


@pytest.mark.parametrize("placement", ["executors", "driver"])
def test_a_replayed_batch_of_several_files_keeps_their_order(spark, tmp_path, placement):
    """A batch that was planned with several files keeps their order if the next start reads one."""
    newest, rows = feed(tmp_path / "source"), stream(spark, tmp_path / "source")
    write = rows.writeStream.foreachBatch(lambda batch, _: print(batch.count()))
    write = write.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "ck"))
    write.start().awaitTermination()
    for name in ("0", ".0.crc"):  # as if it had been killed before its commit
        (tmp_path / "ck/commits" / name).unlink()
    one = spark.readStream.schema("id string, v long").option("maxFilesPerTrigger", 1)
    one = one.json(str(tmp_path / "source"))
    found = write_and_read(tmp_path, one, placement=placement)
    assert found == dict.fromkeys(KEYS, newest)


def test_batches_of_one_file_have_no_places(spark, tmp_path):
    """Places are added to a stream unless each of its micro-batches has one file."""
    source = spark.readStream.schema("id string, v long")
    one = source.option("maxFilesPerTrigger", 1).json(str(tmp_path))
    assert with_places(one.where("v > 0"), ahead=False).columns == ["id", "v"]
    assert len(with_places(one, ahead=True).columns) == 4
    assert len(with_places(one.union(one), ahead=False).columns) == 4
    assert len(with_places(stream(spark, tmp_path), ahead=False).columns) == 4
    ten = spark.readStream.schema("id string, v long").option("maxFilesPerTrigger", 10)
    assert len(with_places(ten.json(str(tmp_path)), ahead=False).columns) == 4


@pytest.mark.parametrize("placement", ["executors", "driver"])
def test_a_file_that_spark_listed_before_a_crash_is_older_than_the_next(spark, tmp_path, placement):
    """After a crash between the list of files and the offsets, a batch has two files, in order."""

    def put(number: int, rows: int) -> None:
        path = tmp_path / f"source/{number}.json"
        path.write_text("\n".join([json.dumps({"id": "a", "v": number})] * rows))
        os.utime(path, (1_700_000_000 + number,) * 2)

    def run(folder: Path) -> dict[str, int]:
        one = spark.readStream.schema("id string, v long").option("maxFilesPerTrigger", 1)
        rows = one.json(str(tmp_path / "source"))
        return write_and_read(folder, rows, placement=placement)

    (tmp_path / "source").mkdir()
    put(1, 1)
    assert run(tmp_path / "whole") == {"a": 1}
    shutil.copytree(tmp_path / "whole", tmp_path / "crashed")
    put(2, 1)
    assert run(tmp_path / "whole") == {"a": 2}
    listed = "ck/sources/0/1"
    shutil.copy(tmp_path / "whole" / listed, tmp_path / "crashed" / listed)
    put(3, 500)  # Spark packs the largest file first
    assert run(tmp_path / "crashed") == {"a": 3}
    assert CheckpointFolder(str(tmp_path / "crashed/ck")).arrived(1) != []
    assert not CheckpointFolder(str(tmp_path / "crashed/ck")).listed_ahead()


def test_a_plan_with_state_continues_from_an_older_checkpoint_folder(spark, tmp_path):
    """No column is added to the rows in Spark's state: its schema must not change."""
    feed(tmp_path / "source")
    rows = stream(spark, tmp_path / "source").dropDuplicates(["id"])
    write = rows.writeStream.foreachBatch(lambda batch, _: print(batch.count()))
    write = write.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "ck"))
    write.start().awaitTermination()
    for name in ("0", ".0.crc"):  # as if it had been killed before its commit
        (tmp_path / "ck/commits" / name).unlink()
    assert set(write_and_read(tmp_path, rows)) == set(KEYS)


def test_a_source_that_lists_no_files_may_have_the_offset_of_one_that_does(tmp_path):
    """Files of a batch are read only from lists that are in the checkpoint folder."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_text('v1\n{}\n{"logOffset":3}')
    assert CheckpointFolder(str(tmp_path)).arrived(0) == []
