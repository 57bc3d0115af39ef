"""Streams and batches on real Spark: what the in-process suites cannot show."""

import json
import shutil
import threading
import time
from pathlib import Path

import hudi
import pandas as pd
import pyarrow as pa
import pytest
from index_truth import index_gaps
from pyspark.sql import functions as F
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.storage.checksums import decode_record, encode_record
from hoodie_nb.storage.storage import OURS

pytestmark = pytest.mark.spark
DAYS = 3


def board_table(path, **options):
    """Return an empty table for the departures board."""
    return hn.Table.create(
        path,
        schema=hn.flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
        options=options,
    )


def same_as_board(table, days, spark=None):
    """Check the snapshot against the expected board: our reader, hudi-rs, and Spark if given."""
    board = hn.flights.board(days=days)
    batches = hudi.HudiTableBuilder.from_base_uri(table.path).build().read(hudi.HudiReadOptions())
    found = {"arrow": table.to_arrow(board.columns.tolist())}
    found["hudi-rs"] = pa.Table.from_batches(batches).select(board.columns.tolist())
    if spark is not None:
        found["spark"] = table.to_spark(spark).select(*board.columns).toArrow()
    for reader, rows in found.items():
        rows = rows.cast(hn.flights.SCHEMA).to_pandas()
        rows = rows.sort_values("flight_id", ignore_index=True)
        pd.testing.assert_frame_equal(rows, board, obj=reader)
    assert table.fsck() == []
    left = [p for p in Path(table.path, OURS).rglob("*") if p.is_file()]
    names = {p.parent.name for p in left} - {"progress", ".hoodie_nb", "index", "runs"}
    assert names == set(), "staging is empty"


def run(spark, table, folder, days=DAYS, disorder=0.0, pace=None, **settings):
    """Stream days of the board into the table and wait for the end."""
    stream = hn.flights.stream(
        spark, days=days, path=folder / "source", disorder=disorder, seed=7, pace=pace
    )
    job = hn.write_stream(
        stream, table, checkpoint=str(folder / "ck"), trigger="available_now", **settings
    )
    job.wait(600)
    return job


def test_the_full_year_out_of_order(spark, tmp_path):
    """A year with 5 % late, duplicate or unordered events, in two batch sizes, gives the board."""
    table = board_table(tmp_path / "board")
    source = {"path": tmp_path / "source", "disorder": 0.05, "seed": 7}
    stream = hn.flights.stream(spark, days=365, pace=2, **source)
    first = hn.write_stream(stream, table, checkpoint=str(tmp_path / "ck"), trigger="0 seconds")
    while len(first.events.records("instant_committed")) < 15:
        assert first.active
    first.stop()
    then = run(spark, table, tmp_path, days=365, disorder=0.05, pace=9)
    same_as_board(table, 365, spark)
    made = [len(job.events.records("instant_committed")) for job in (first, then)]
    assert 40 < sum(made) < 80
    assert (
        20 <= len(table.history()) <= 121
    )  # the last hour's stay, up to a hundred; the others are archived


@pytest.mark.parametrize("pipeline", ["current", "step1", "step2", "step3", "direct"])
def test_every_pipeline_ends_in_the_same_table(spark, tmp_path, pipeline):
    """The pipelines differ in how they write, not in what they write."""
    table = board_table(tmp_path / "board")
    settings = {"pipeline": pipeline, "placement": "executors", "index": "bloom"}
    job = run(spark, table, tmp_path, **settings)
    same_as_board(table, DAYS)
    operators = {e.values["operator"] for e in job.events.records("operator_ran")}
    assert ("InstantGenerator" in operators) == (pipeline == "current")


@pytest.mark.parametrize("commit_on", ["checkpoint", "write"])
def test_a_restart_skips_committed_batches_and_continues(spark, tmp_path, commit_on):
    """A job that ends and starts again continues at its position; nothing is written twice."""
    table = board_table(tmp_path / "board")
    first = run(spark, table, tmp_path, days=2, commit_on=commit_on)
    commits = len(table.history())
    again = run(spark, table, tmp_path, days=2, commit_on=commit_on)
    assert len(table.history()) == commits
    assert first.status.startswith("stopped") and not again.events.records("batch_started")
    same_as_board(table, 2)


def test_another_number_of_writers_after_a_restart(spark, tmp_path):
    """A job may continue with more or fewer tasks; file groups change tasks, rows do not move."""
    table = board_table(tmp_path / "board")
    stream = hn.flights.stream(spark, days=DAYS, path=tmp_path / "source")
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "0 seconds"}
    settings |= {"placement": "executors"}
    job = hn.write_stream(stream, table, **settings, write_tasks=1)
    while not job.events.records("instant_committed"):
        assert job.active
    job.stop()
    job = hn.write_stream(stream, table, **settings, write_tasks=3)
    job.process_all_available()
    job.stop()
    assert len({e.values["task"] for e in job.events.records("operator_ran")}) > 1
    same_as_board(table, DAYS)


def test_a_replay_of_the_last_batch_is_skipped(spark, tmp_path):
    """Without Spark's last commits/N the batch is sent again and recognised by its fingerprint."""
    table = board_table(tmp_path / "board")
    run(spark, table, tmp_path)
    last = max(
        (tmp_path / "ck/commits").iterdir(), key=lambda p: int(p.name) if p.name.isdigit() else -1
    )
    last.unlink()
    Path(last.parent, f".{last.name}.crc").unlink(missing_ok=True)
    commits = len(table.history())
    job = run(spark, table, tmp_path)
    assert [e.values["batch"] for e in job.events.records("batch_skipped")] == [int(last.name)]
    assert len(table.history()) == commits
    same_as_board(table, DAYS)


@pytest.mark.parametrize("interrupted", [False, True], ids=["between batches", "in a batch"])
def test_a_job_whose_watcher_dies_stops_its_query(spark, tmp_path, interrupted):
    """Nothing could be committed; the job reports the watcher's error, not that of a batch."""
    table, jobs = board_table(tmp_path / "board"), []
    stream = hn.flights.stream(spark, days=DAYS, path=tmp_path / "source", seed=7, pace=1)

    def wait_until(true):
        limit = time.monotonic() + 60
        while not (jobs and true(jobs[0])) and time.monotonic() < limit:
            time.sleep(0.01)

    def dies():
        if threading.current_thread().name == "hoodie-job":
            if interrupted:
                wait_until(lambda job: job._watched.last.running.locked())
            raise MemoryError("the watcher is made to die")

    def fails():
        wait_until(lambda job: job._watched.error)
        raise OSError("the batch was interrupted")

    failpoints.call("coord.commit.pre", dies)
    if interrupted:
        failpoints.call("coord.requested.pre", fails, on_hit=2)
    try:
        settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "0 seconds"}
        jobs.append(hn.write_stream(stream, table, **settings))
        with pytest.raises(MemoryError, match="made to die"):
            jobs[0].wait(120)
    finally:
        failpoints.arm("")
    assert not jobs[0].active and not jobs[0].query.isActive
    run(spark, table, tmp_path, pace=1)
    same_as_board(table, DAYS)


def test_a_second_job_with_empty_state_finds_every_key(spark, tmp_path):
    """The keys of a table without index state are found by blooms once, later by the state only."""
    table = board_table(tmp_path / "board")
    run(spark, table, tmp_path, index="bloom")
    assert table.index_status().loaded_files == 0 < table.index_status().files
    rows, own = table.to_arrow().num_rows, tmp_path / "second"
    second = run(spark, table, own)  # the same events come again, to a new job
    lookups = second.events.records("index_looked_up")
    sums = {
        n: sum(e.values[n] for e in lookups)
        for n in lookups[0].values
        if n not in ("task", "index")
    }
    assert sums["files_looked_up"] > 0 and sums["candidates"] > 0 and sums["state_hits"] > 0
    assert sums["found"] == sums["keys"] and table.to_arrow().num_rows == rows
    assert table.index_status().pure and second.events.records("index_saved")[-1].values["pure"]
    third = run(spark, table, tmp_path / "third")
    lookups = third.events.records("index_looked_up")
    assert sum(e.values["state_hits"] for e in lookups) == sum(e.values["keys"] for e in lookups)
    assert sum(e.values["candidates"] + e.values["files_looked_up"] for e in lookups) == 0
    assert index_gaps(open_table(table.path)) == []
    same_as_board(table, DAYS, spark)


def test_a_deleted_checkpoint_folder_converges(spark, tmp_path):
    """The source is read again under a new query id, and upserts give the same table."""
    table = board_table(tmp_path / "board")
    run(spark, table, tmp_path, disorder=0.05)
    shutil.rmtree(tmp_path / "ck")
    run(spark, table, tmp_path, disorder=0.05)
    same_as_board(table, DAYS)


def test_a_restored_table_is_detected_by_its_position(spark, tmp_path):
    """A table older than its checkpoint folder is refused instead of left with a gap."""
    table = board_table(tmp_path / "board")
    run(spark, table, tmp_path, days=1)
    shutil.copytree(tmp_path / "board", tmp_path / "backup")
    shutil.rmtree(tmp_path / "source")
    shutil.copytree(tmp_path / "ck", tmp_path / "ck1")
    hn.flights.stream(spark, days=2, path=tmp_path / "source")
    stream = hn.flights.stream(spark, days=2, path=tmp_path / "source")
    hn.write_stream(stream, table, checkpoint=str(tmp_path / "ck"), trigger="available_now").wait()
    progress = Path(tmp_path, "backup", OURS, "progress")
    for record in progress.iterdir():
        content = decode_record(record.read_bytes(), record.name)
        record.write_bytes(encode_record({**content, "checkpoints": []}))
    for commit in Path(tmp_path, "backup", ".hoodie").glob("*.commit"):
        text = json.loads(commit.read_text())
        text["extraMetadata"].pop("_hoodie_nb_progress")
        text["extraMetadata"].pop("_hoodie_nb_checksum")
        commit.write_text(json.dumps(text))
    restored = hn.Table.open(tmp_path / "backup")
    last = max(int(p.name) for p in (tmp_path / "ck/commits").iterdir() if p.name.isdigit())
    (tmp_path / f"ck/commits/{last}").unlink()
    with pytest.raises(hn.InvalidTable, match="was restored or replaced"):
        hn.write_stream(
            stream, restored, checkpoint=str(tmp_path / "ck"), trigger="available_now"
        ).wait(120)


def test_a_second_job_on_the_table_is_refused(spark, tmp_path):
    """Only one query writes a table; batch writes of the same process run between checkpoints."""
    table = board_table(tmp_path / "board")
    stream = hn.flights.stream(spark, days=1, path=tmp_path / "source")
    job = hn.write_stream(stream, table, checkpoint=str(tmp_path / "ck"), trigger="1 second")
    with pytest.raises(hn.ConcurrentWriter, match="is written by the job"):
        hn.write_stream(stream, table, checkpoint=str(tmp_path / "ck2"))
    job.process_all_available()
    key = table.to_arrow(["flight_id", "flight_date"]).slice(0, 1)
    assert table.delete(key).deletes == 1
    job.stop()
    assert job.stop() is None and not job.active
    assert len(table.to_pandas()) == len(hn.flights.board(days=1)) - 1
    assert table.fsck() == []


def test_a_lost_notification_lets_the_instant_span(spark, tmp_path):
    """Two checkpoints whose first notification is lost are one commit, with every key once."""
    table = board_table(tmp_path / "board")
    stream = hn.flights.stream(spark, days=2, path=tmp_path / "source")
    job = hn.write_stream(stream, table, checkpoint=str(tmp_path / "ck"), trigger="1 second")
    hn.faults.inject(job, "lose_success")
    hn.faults.inject(job, "lose_success")
    job.process_all_available()
    job.stop()
    spans = [e.values["checkpoints"] for e in job.events.records("instant_committed")]
    assert max(spans) >= 2
    same_as_board(table, 2)


@pytest.mark.parametrize("interval", [3, "1 second"])
def test_an_interval_commits_less_often_and_ends_the_same(spark, tmp_path, interval):
    """Between commits, checkpoints only seal their records; the final table is the same."""
    table = board_table(tmp_path / "board")
    job = run(spark, table, tmp_path, commit_interval=interval)
    sealed = len(job.events.records("checkpoint_sealed"))
    assert len(table.history()) < sealed
    same_as_board(table, DAYS)


@pytest.mark.parametrize("placement", ["executors", "driver"])
def test_checkpoints_are_applied_in_the_background(spark, tmp_path, placement):
    """With "background" the same rows are there, and at the end nothing waits to become visible."""
    table = board_table(tmp_path / "board")
    settings = {"commit_interval": "background", "pipeline": "direct", "placement": placement}
    job = run(spark, table, tmp_path, disorder=0.1, pace=1, **settings)
    assert len(job.events.records("checkpoint_sealed")) >= DAYS
    assert len(job.events.records("backlog_applied")) >= 1
    progress, history = job.progress, table.history()
    assert (progress.state, progress.freshness_s, progress.restarts) == ("stopped", 0.0, 0)
    assert (progress.commits, progress.last_commit) == (
        len(history),
        history["requested_time"].iloc[-1],
    )
    assert progress.rows == (history["inserts"] + history["updates"]).sum()
    assert progress.rows_per_s > 0
    same_as_board(table, DAYS)


def test_a_failed_background_commit_is_tried_again(spark, tmp_path):
    """If applying fails once, it is repeated although no further micro-batch comes."""
    table = board_table(tmp_path / "board")
    source = FolderSource(tmp_path / "source", hn.flights.SCHEMA)
    source.add(hn.flights.event_table(days=1))
    failpoints.arm("coord.requested.pre=raise:ENOSPC@1")
    try:
        settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "0 seconds"}
        job = hn.write_stream(source.stream(spark), table, **settings, commit_interval="background")
        while not job.events.records("backlog_applied") or job.progress.freshness_s:
            assert job.active
        assert len(job.events.records("commit_failed")) == 1
        job.stop()
    finally:
        failpoints.arm("")
    same_as_board(table, 1)


def test_a_background_that_always_fails_ends_the_job(spark, tmp_path):
    """After as many attempts as a batch has, the job fails with the error; nothing is lost."""
    table = board_table(tmp_path / "board")
    source = FolderSource(tmp_path / "source", hn.flights.SCHEMA)
    source.add(hn.flights.event_table(days=1))
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "0 seconds", "max_restarts": 1}
    failpoints.arm("coord.requested.pre=raise:ENOSPC")
    try:
        job = hn.write_stream(source.stream(spark), table, **settings, commit_interval="background")
        with pytest.raises((OSError, hn.HoodieError), match="No space left"):
            job.wait(120)
    finally:
        failpoints.arm("")
    assert job.status.startswith("failed") and len(job.events.records("commit_failed")) == 2
    settings["trigger"] = "available_now"
    hn.write_stream(source.stream(spark), table, **settings).wait(120)
    same_as_board(table, 1)


def test_a_killed_job_is_completed_by_the_next(spark, tmp_path):
    """The next start settles the prepared and unfinished work of a killed job."""
    table = board_table(tmp_path / "board")
    stream = hn.flights.stream(spark, days=DAYS, path=tmp_path / "source", seed=7)
    job = hn.write_stream(stream, table, checkpoint=str(tmp_path / "ck"), trigger="0 seconds")
    while not job.events.records("instant_prepared"):
        assert job.active
    job.kill()
    run(spark, table, tmp_path)
    same_as_board(table, DAYS)


def test_a_failed_batch_is_run_again(spark, tmp_path):
    """A batch that fails restarts the query, which runs the batch again."""
    table = board_table(tmp_path / "board")
    flag = tmp_path / "failed"

    def fails_once(batches):
        import pathlib

        for batch in batches:
            if not pathlib.Path(flag).exists():
                pathlib.Path(flag).touch()
                raise RuntimeError("the first attempt fails")
            yield batch

    stream = hn.flights.stream(spark, days=1, path=tmp_path / "source")
    stream = stream.mapInArrow(fails_once, stream.schema)
    job = hn.write_stream(stream, table, checkpoint=str(tmp_path / "ck"), trigger="0 seconds")
    job.process_all_available()
    job.stop()
    assert len(job.events.records("job_restarted")) == 1
    same_as_board(table, 1)


def test_a_checkpoint_that_takes_too_long_is_cancelled(spark, tmp_path):
    """A timed-out checkpoint fails, the query restarts, and at the end the job says why."""
    table = board_table(tmp_path / "board")

    def slow(batches):
        import time

        for batch in batches:
            time.sleep(30)
            yield batch

    stream = hn.flights.stream(spark, days=1, path=tmp_path / "source")
    stream = stream.mapInArrow(slow, stream.schema)
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    job = hn.write_stream(stream, table, **settings, checkpoint_timeout=1, max_restarts=1)
    with pytest.raises(hn.WriteFailed):
        job.wait(120)
    assert len(job.events.records("checkpoint_timed_out")) == 2
    assert table.history().empty and table.fsck() == []


def test_bad_rows_on_spark_are_refused_before_anything_is_written(spark, tmp_path):
    """Null keys and partition values outside the table are refused with column and count."""
    table = board_table(tmp_path / "board")
    good = hn.flights.events(spark, days=1).limit(50)
    cases = {
        r"flight_id.*is null or empty in \d+ rows.*one Spark task": good.withColumn(
            "flight_id", F.lit(None).cast("string")
        ),
        "flight_date.*outside the table": good.withColumn("flight_date", F.lit("..")),
        "flight_date.*unsafe": good.withColumn("flight_date", F.lit("a/b")),
        "flight_id.*missing": good.drop("flight_id"),
        "extra.*not in the table": good.withColumn("extra", F.lit(1)),
    }
    for message, data in cases.items():
        with pytest.raises(hn.InvalidInput, match=message):
            table.upsert(data)
    assert table.timeline().empty
    assert [p.name for p in Path(table.path).iterdir()] == [".hoodie"]
    assert table.upsert(good.limit(0)) is None


def test_spark_and_arrow_upserts_agree(spark, tmp_path):
    """The same batch through Spark tasks and in this process ends in the same rows."""
    rows = hn.flights.event_table(days=1)
    one, two = board_table(tmp_path / "one"), board_table(tmp_path / "two")
    for table, data in ((one, rows), (two, spark.createDataFrame(rows))):
        commit = table.upsert(data)
        assert commit.inserts == len(hn.flights.board(days=1))
        same_as_board(table, 1)
    late = rows.filter(pa.compute.equal(rows["status"], "scheduled")).slice(0, 5)
    null = late.set_column(2, "event_time", pa.nulls(5, rows.schema.field("event_time").type))
    for table, data in ((one, null), (two, spark.createDataFrame(null))):
        table.upsert(data)
        same_as_board(table, 1)


def test_a_task_that_dies_is_repeated(tmp_path):
    """With local[2,4] a killed worker's task is run again; one file per group is published."""
    import subprocess
    import sys

    code = f"""
import os
os.environ["HOODIE_NB_TESTING"] = "1"
import hoodie_nb as hn
spark = hn.spark(conf={{"spark.master": "local[2,4]", "spark.task.maxFailures": "4",
    "spark.executorEnv.HOODIE_NB_TESTING": "1"}})
import sys
sys.path.append("stream")
import test_stream
table = test_stream.board_table({str(tmp_path / "board")!r})
flag = {str(tmp_path / "died")!r}
def dies_once(batches):
    import os, signal
    for batch in batches:
        if not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
events = hn.flights.events(spark, days=1)
table.upsert(events.mapInArrow(dies_once, events.schema))
test_stream.same_as_board(table, 1)
assert os.path.exists(flag)
print("ended well")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
        timeout=200,
    )
    assert done.stdout.strip().endswith("ended well"), done.stderr[-2000:]
