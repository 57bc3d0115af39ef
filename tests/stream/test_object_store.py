"""Tables on an object store from Spark: a stream onto S3, read back by hudi-rs from S3."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import hudi
import pandas as pd
import pyarrow as pa
import pytest
from s3_server import S3Server

import hoodie_nb as hn

pytestmark = pytest.mark.spark
DAYS = 3


def board_table(server: S3Server) -> hn.Table:
    """Return an empty table for the departures board, on the server."""
    return hn.Table.create(
        server.new_root(),
        schema=hn.flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
        storage_options=server.options,
    )


def start(spark, table: hn.Table, folder: Path, days: int = DAYS, **settings) -> hn.Job:
    """Start the stream of some days into the table."""
    stream = hn.flights.stream(spark, days=days, path=folder / "source", disorder=0.1, seed=7)
    settings = {"trigger": "available_now", **settings}
    return hn.write_stream(stream, table, checkpoint=folder / "ck", **settings)


def by_hudi_rs(table: hn.Table, options: dict[str, str]) -> pa.Table:
    """Return what hudi-rs reads from the store."""
    builder = hudi.HudiTableBuilder.from_base_uri(table.path).with_storage_options(options)
    return pa.Table.from_batches(builder.build().read(hudi.HudiReadOptions()))


def check(found: pa.Table, reader: str, days: int = DAYS) -> None:
    """Compare rows with the expected board."""
    board = hn.flights.board(days=days)
    rows = found.select(board.columns.tolist()).cast(hn.flights.SCHEMA).to_pandas()
    rows = rows.sort_values("flight_id", ignore_index=True)
    pd.testing.assert_frame_equal(rows, board, obj=reader)


def test_a_stream_onto_a_store_is_the_board_for_every_reader(spark, s3_server, tmp_path) -> None:
    """Flights streamed onto S3 from two cores are equal in Arrow, hudi-rs and three ways of Spark.

    A batch write by Spark, and `changes` on Spark, follow; nothing is on the driver's disk.
    """
    table, options = board_table(s3_server), s3_server.options
    start(spark, table, tmp_path).wait(240)
    check(table.to_arrow(), "arrow")
    check(by_hudi_rs(table, options), "hudi-rs")
    check(table.to_spark(spark).toArrow(), "snapshot")
    check(table.changes_spark(spark, since="earliest").toArrow(), "changes")
    hn.register(spark)
    check(spark.read.format("hoodie_nb").options(**options).load(table.path).toArrow(), "format")
    plain = {name.removeprefix("aws_"): value for name, value in options.items()}
    check(spark.read.format("hoodie_nb").options(**plain).load(table.path).toArrow(), "unprefixed")
    commit = table.upsert(spark.createDataFrame(hn.flights.board(days=DAYS).head(50)))
    assert commit.updates == 50 and table.fsck() == []
    assert not any("s3" in name for name in os.listdir())


@pytest.mark.parametrize("placement", ["executors", "driver"])
def test_a_killed_stream_goes_on(spark, s3_server, tmp_path, placement) -> None:
    """A job that ends like a crash after some commits is continued, and the board is whole."""
    table = board_table(s3_server)
    first = start(spark, table, tmp_path, trigger="0 seconds", placement=placement)
    while len(first.events.records("instant_committed")) < 2:
        assert first.active
    first.kill()
    start(spark, table, tmp_path, placement=placement, pipeline="direct").wait(240)
    check(table.to_arrow(), "arrow")
    check(by_hudi_rs(table, s3_server.options), "hudi-rs")
    assert table.fsck() == []


@pytest.mark.kills
def test_a_stream_that_is_killed_with_its_process_goes_on(spark, s3_server, tmp_path) -> None:
    """After `kill -9` the next process takes the lock at once, and the board is whole."""
    table = board_table(s3_server)
    program = (
        "import sys, pathlib, hoodie_nb as hn\n"
        "from s3_server import options_of\n"
        "path, endpoint, folder = sys.argv[1:]\n"
        "sys.path.insert(0, str(pathlib.Path(folder)))\n"
        "from test_object_store import start\n"
        "spark = hn.spark(cores=2, memory='1g')\n"
        "table = hn.Table.open(path, storage_options=options_of(endpoint))\n"
        "job = start(spark, table, pathlib.Path(folder), trigger='0 seconds')\n"
        "job.events.listen(lambda event: print(event.kind, flush=True))\n"
        "job.wait(200)\n"
    )
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", program, table.path, s3_server.endpoint, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{here.parents[1]}:{here.parent}:{here}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    commits = (line for line in process.stdout if line.startswith("instant_committed"))
    assert [next(commits), next(commits)]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    start(spark, table, tmp_path).wait(240)
    check(table.to_arrow(), "arrow")
    check(by_hudi_rs(table, s3_server.options), "hudi-rs")
    assert table.fsck() == []
