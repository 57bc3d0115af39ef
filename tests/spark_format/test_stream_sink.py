"""`df.writeStream.format("hoodie_nb")`: exactly-once, by the identity in the checkpoint folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from core.tables import hudi_rows, schema_of, without_meta
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb.storage.storage import STAGED

pytestmark = pytest.mark.spark
W = "hoodie.datasource.write."
DEFINED = {
    f"{W}recordkey.field": "id",
    f"{W}partitionpath.field": "p",
    f"{W}precombine.field": "ts",
}


def rows(batch: int, step: int = 8) -> pa.Table:
    """Return the eight rows of a micro-batch; with a smaller step keys are repeated."""
    keys = range(batch * step, batch * step + 8)
    return pa.Table.from_pylist(
        [{"id": f"k{n:04d}", "p": f"p{n % 3}", "ts": batch, "v": n} for n in keys], schema_of()
    )


class Stream:
    """A source of micro-batches, and queries from it into one table by Spark's own words."""

    def __init__(self, spark, folder: Path, **options: str) -> None:
        self.spark, self.folder, self.table = spark, folder, folder / "t"
        self.checkpoint, self.options = folder / "ck", {**DEFINED, **options}
        self.source = FolderSource(folder / "in", schema_of())

    def add(self, *batches: int, step: int = 8) -> None:
        """Add micro-batches."""
        for batch in batches:
            self.source.add(rows(batch, step))

    def run(self, **options: str) -> None:
        """Write what is there, and raise what the query raises."""
        stream = self.source.stream(self.spark).writeStream.format("hoodie_nb")
        stream = stream.options(**{**self.options, **options})
        stream = stream.option("checkpointLocation", str(self.checkpoint))
        query = stream.trigger(availableNow=True).start(str(self.table))
        assert query.awaitTermination(300)

    def check(self, *batches: int) -> hn.Table:
        """Compare the table with the batches: each inserted row is there once."""
        table = hn.Table.open(self.table)
        expected = pa.concat_tables([rows(n) for n in batches])
        assert without_meta(table.to_arrow()) == without_meta(expected) == hudi_rows(self.table)
        assert table.fsck() == [] and os.listdir(self.table / STAGED) == []
        return table


@pytest.fixture
def inserts(spark, tmp_path) -> Stream:
    """A stream of inserts: a batch that is written twice has all its rows twice."""
    return Stream(spark, tmp_path, **{f"{W}operation": "insert"})


@pytest.fixture
def failing(spark) -> Iterator[Callable[[str], None]]:
    """Arm failpoints in the processes that Spark starts for the format, and only there."""

    def arm(points: str) -> None:
        spark.sparkContext.environment["HOODIE_NB_FAILPOINTS"] = points
        hn.register(spark)

    yield arm
    spark.sparkContext.environment.pop("HOODIE_NB_FAILPOINTS", None)
    hn.register(spark)


def test_each_batch_is_a_commit_of_its_own(inserts):
    """A query writes its micro-batches one by one, goes on where it ended, and records each."""
    inserts.add(0, 1)
    inserts.run()
    inserts.add(2)
    inserts.run()
    table = inserts.check(0, 1, 2)
    assert list(table.history()["inserts"]) == [8, 8, 8]


def test_upserts_and_deletes_are_those_of_a_batch(spark, tmp_path):
    """Upserts by the ordering column, then deletes, from two queries into one table."""
    ups = Stream(spark, tmp_path)
    ups.add(0, 1, 2, step=4)
    ups.run()
    downs = Stream(spark, tmp_path, **{f"{W}operation": "delete"})
    downs.checkpoint, downs.source = tmp_path / "ck2", FolderSource(tmp_path / "in2", schema_of())
    downs.source.add(rows(2, step=4))
    downs.run()
    expected = [row for n in (0, 1) for row in rows(n, step=4).slice(0, 4).to_pylist()]
    found = hn.Table.open(tmp_path / "t")
    assert without_meta(found.to_arrow()) == without_meta(
        pa.Table.from_pylist(expected, schema_of())
    )
    assert found.fsck() == []


def test_a_batch_without_rows_is_recorded(inserts):
    """Batches whose rows are all filtered out make no commit, and the stream goes on after them."""
    inserts.add(0, 1, 2)
    stream = inserts.source.stream(inserts.spark).where("ts = 2").writeStream.format("hoodie_nb")
    stream = stream.options(**inserts.options, checkpointLocation=str(inserts.checkpoint))
    assert stream.trigger(availableNow=True).start(str(inserts.table)).awaitTermination(300)
    assert len(inserts.check(2).history()) == 1


def test_a_repeated_batch_is_skipped(inserts):
    """A batch whose end Spark did not record runs again, and is not written again."""
    inserts.add(0, 1)
    inserts.run()
    for name in ("1", ".1.crc"):
        (inserts.checkpoint / "commits" / name).unlink()
    inserts.run()
    inserts.add(2)
    inserts.run()
    inserts.check(0, 1, 2)


def test_both_ways_to_stream_continue_one_another(inserts):
    """The identity of a batch is that of `hn.write_stream`: one continues where the other ended."""
    inserts.add(0)
    inserts.run()
    inserts.add(1)
    table = hn.Table.open(inserts.table)
    stream = inserts.source.stream(inserts.spark)
    settings = {"operation": "insert", "trigger": "available_now"}
    hn.write_stream(stream, table, checkpoint=inserts.checkpoint, **settings).wait(300)
    inserts.add(2)
    inserts.run()
    inserts.check(0, 1, 2)


def test_a_folder_of_another_moment_is_refused(inserts, tmp_path):
    """A table that was taken back behind its checkpoint folder is an error, not a gap."""
    inserts.add(0)
    inserts.run()
    shutil.copytree(inserts.table, tmp_path / "copy")
    inserts.add(1)
    inserts.run()
    shutil.rmtree(inserts.table)
    (tmp_path / "copy").rename(inserts.table)
    inserts.add(2)
    with pytest.raises(PySparkException, match="is not in the table, but the checkpoint folder"):
        inserts.run()


def test_an_undone_batch_is_noticed_with_the_next_rows(inserts):
    """Without rows Spark asks for nothing; the refusal names where to take the folder back to."""
    inserts.add(0)
    inserts.run()
    inserts.add(1)
    inserts.run()
    hn.Table.open(inserts.table).rollback()
    inserts.run()
    inserts.check(0)
    inserts.add(2)
    with pytest.raises(PySparkException, match="number is above 0, the last batch in the table"):
        inserts.run()
    for name in ("offsets", "commits"):
        for file in (inserts.checkpoint / name).iterdir():
            if file.name not in ("0", ".0.crc"):
                file.unlink()
    inserts.run()
    inserts.check(0, 1, 2)


def test_what_a_stream_cannot_do_is_refused(inserts, spark, tmp_path):
    """Complete mode, bulk inserts and a missing option say what to do instead."""
    inserts.add(0)
    with pytest.raises(PySparkException, match="is not possible in a stream"):
        inserts.run(**{f"{W}operation": "bulk_insert"})
    counts = inserts.source.stream(spark).groupBy("id", "p").agg(F.max("ts").alias("ts"))
    options = {**inserts.options, "checkpointLocation": str(tmp_path / "ck2")}
    query = counts.writeStream.format("hoodie_nb").outputMode("complete").options(**options)
    with pytest.raises(PySparkException, match="write_stream"):
        query.start(str(inserts.table)).awaitTermination(300)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "default"))
    try:
        unnamed = inserts.source.stream(spark).writeStream.format("hoodie_nb")
        with pytest.raises(PySparkException, match="checkpointLocation"):
            unnamed.options(**inserts.options).start(str(inserts.table)).awaitTermination(300)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert not inserts.table.exists()


SLOW_POINTS = [  # `make slow`: half a minute each
    "spark.rows.post",
    "coord.requested.post",
    "coord.inflight.post",
    "writer.data.post",
    "coord.statuses.pre",
    "coord.prepare.pre",
    "coord.prepare.post",
    "coord.publish",
    "coord.progress.post",
    "coord.sweep.post",
]


@pytest.mark.kills
@pytest.mark.parametrize(
    "point",
    [
        "spark.commit.pre",
        "coord.publish.post",
        "coord.commit.post",
        *(pytest.param(point, marks=pytest.mark.slow) for point in SLOW_POINTS),
    ],
)
def test_a_killed_batch_is_written_once(inserts, failing, point):
    """`kill -9` of a task or of a commit at any point: the query goes on, no insert is doubled."""
    inserts.add(0)
    inserts.run()
    inserts.add(1)
    failing(f"{point}=kill")
    with pytest.raises(PySparkException):
        inserts.run()
    failing("")
    inserts.add(2)
    inserts.run()
    inserts.check(0, 1, 2)
