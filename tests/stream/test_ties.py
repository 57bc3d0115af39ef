"""Several rows of one key in a micro-batch, without different ordering values: one of them wins."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import hudi
import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb import failpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hoodie_nb.stream.job import Job

pytestmark = pytest.mark.spark
COLUMNS = {"id": pa.string(), "ts": pa.int64(), "v": pa.int64(), "text": pa.string()}
SCHEMA = pa.schema(list(COLUMNS.items()))
KEYS = ["a", "b", "c"]
PIPELINES = ["current", "step1", "step2", "step3", "direct"]
SIZES = (1, 400, 30, 2000, 3)
FEW_PACKS = {"spark.sql.files.minPartitionNum": "1"}
MANY_PACKS = {"spark.sql.files.maxPartitionBytes": "40000", "spark.sql.files.openCostInBytes": "1"}


def feed(folder: Path, first: int = 0) -> range:
    """Write files of different sizes, all with rows of the same keys; return their values."""
    value = first
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(SIZES):
        rows = []
        for _ in range(size):
            rows += [json.dumps({"id": k, "ts": 7, "v": value, "text": f"t{value}"}) for k in KEYS]
            value += 1
        (folder / f"{first}-{number}.json").write_text("\n".join(rows))
    return range(first, value)


@contextlib.contextmanager
def with_settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Change settings of the session in a block: how many files Spark puts into a task."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return all files of a folder as a stream, in one micro-batch."""
    return spark.readStream.schema("id string, ts long, v long, text string").json(str(folder))


def start(folder: Path, rows: DataFrame, ordering: str | None = None, **settings: object) -> Job:
    """Start a stream into a table, by default without ordering column, in one trigger."""
    table = hn.Table.create(
        folder / "t", schema=SCHEMA, record_key="id", ordering=ordering, if_exists="open"
    )
    settings = {"placement": "executors", "trigger": "available_now", **settings}
    return hn.write_stream(rows, table, checkpoint=str(folder / "ck"), **settings)


def winners(folder: Path, values: range) -> dict[str, int]:
    """Return the value of each key: that of one whole row, the same for every reader."""
    table = hn.Table.open(folder / "t")
    own = table.to_arrow(meta=False)
    built = hudi.HudiTableBuilder.from_base_uri(table.path).build()
    outside = pa.Table.from_batches(built.read(hudi.HudiReadOptions())).select(SCHEMA.names)
    files = [f"{folder}/t/{name}" for name in {*table.to_arrow()["_hoodie_file_name"].to_pylist()}]
    plain = duckdb.sql(f"SELECT id, v, text FROM read_parquet({files})").to_arrow_table()
    found = {row["id"]: row["v"] for row in own.to_pylist()}
    for rows in (own, outside, plain):
        assert sorted(rows["id"].to_pylist()) == KEYS
        for row in rows.to_pylist():
            assert row["v"] == found[row["id"]] and row["text"] == f"t{row['v']}"
    assert {*found.values()} <= {*values}
    assert table.fsck() == []
    return found


@pytest.mark.parametrize("placed", [*PIPELINES, "driver"])
@pytest.mark.parametrize(("packs", "ordering"), [(FEW_PACKS, None), (MANY_PACKS, "ts")])
def test_one_of_the_rows_wins_for_every_reader(spark, tmp_path, placed, packs, ordering):
    """Each key is stored once, with all columns of one of its rows, however Spark reads files."""
    values = feed(tmp_path / "source")
    where = {"placement": "driver"} if placed == "driver" else {"pipeline": placed}
    with with_settings(spark, packs):
        start(tmp_path, stream(spark, tmp_path / "source"), ordering, **where).wait(120)
    winners(tmp_path, values)


@pytest.mark.parametrize("settings", [{}, {"placement": "driver"}, {"commit_interval": 2}])
def test_the_later_micro_batch_wins(spark, tmp_path, settings):
    """Between micro-batches the order is that of the stream, also if one commit has several."""
    folder = tmp_path / "source"
    feed(folder)
    job = start(tmp_path, stream(spark, folder), **settings, trigger="0 seconds")
    job.process_all_available()
    later = feed(folder, 10_000)
    job.process_all_available()
    job.stop()
    winners(tmp_path, later)


@pytest.mark.parametrize("settings", [{}, {"placement": "driver"}])
@pytest.mark.parametrize("point", ["coord.commit.pre", "coord.statuses.pre"])
def test_a_prepared_row_is_committed_even_if_another_would_win_now(
    spark, tmp_path, settings, point
):
    """A batch is completed from its staged files; one that was not prepared runs again."""
    folder = tmp_path / "source"
    values = feed(folder)
    first = stream(spark, folder)
    now = first.repartition(7, "v")  # another order of the rows
    found = []
    for name, rows in (("first", first), ("now", now)):
        start(tmp_path / name, rows, **settings).wait(120)
        found.append(winners(tmp_path / name, values))
    assert found[0] != found[1]
    failpoints.arm(f"{point}=raise:EIO")
    try:
        with pytest.raises(hn.HoodieError):
            start(tmp_path, first, **settings, max_restarts=0).wait(120)
    finally:
        failpoints.arm("")
    for name in ("0", ".0.crc"):  # as if Spark had been killed before its commit
        (tmp_path / "ck/commits" / name).unlink(missing_ok=True)
    start(tmp_path, now, **settings).wait(120)
    is_prepared = point == "coord.commit.pre"
    assert winners(tmp_path, values) == found[0] or not is_prepared
