"""How a job starts and ends: idle after a restart, stopped by a listener, interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StreamingQueryListener
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb import failpoints

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])


def row(key: str) -> pa.Table:
    """Return one row."""
    return pa.table({"id": [key], "v": [1]}, schema=SCHEMA)


def started(spark, folder, **settings):
    """Return a table, its source with one file, and a function that starts a job."""
    table = hn.Table.create(folder / "t", schema=SCHEMA, record_key="id")
    source = FolderSource(folder / "source", SCHEMA)
    source.add(row("a"))

    def start(**more):
        common = {"checkpoint": str(folder / "ck"), "trigger": "0 seconds", **settings, **more}
        return hn.write_stream(source.stream(spark), table, **common)

    return table, source, start


def wait_until(condition, limit: float = 60) -> bool:
    """Return whether a condition became true within the limit."""
    end = time.monotonic() + limit
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


def test_sealed_rows_of_an_idle_stream_are_committed_after_a_restart(spark, tmp_path):
    """The interval of rows sealed before a kill ends even if no further batch arrives."""
    table, _, start = started(spark, tmp_path)
    job = start(commit_interval="1 hour")
    assert wait_until((tmp_path / "ck/commits/0").exists)
    job.kill()
    assert table.to_arrow().num_rows == 0
    job = start(commit_interval="1 second")
    try:
        assert wait_until(lambda: table.to_arrow().num_rows, 30), job.status
    finally:
        job.stop()
    assert table.fsck() == []


@pytest.mark.parametrize("kind", ["instant_committed", "batch_started", "operator_ran"])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_listener_may_end_the_job(spark, tmp_path, kind, how):
    """`stop` and `kill` end the job, also from the threads that notify or run a batch."""
    table, source, start = started(spark, tmp_path)
    ends = threading.Event()
    job = start()
    job.process_all_available()

    def listen(event):
        if event.kind == kind and not ends.is_set():
            ends.set()
            getattr(job, how)()

    job.events.listen(listen)
    source.add(row("b"))
    assert job.wait(60)
    assert ends.is_set() and not job.active and not job.query.isActive
    start(trigger="available_now").wait(60)
    assert sorted(table.to_arrow()["id"].to_pylist()) == ["a", "b"]
    assert table.fsck() == []


class Interrupts(StreamingQueryListener):
    """Ctrl-C while the JVM starts a query: it waits for its listeners."""

    def onQueryStarted(self, event):
        os.kill(os.getpid(), signal.SIGINT)

    def onQueryProgress(self, event):
        """Nothing."""

    def onQueryIdle(self, event):
        """Nothing."""

    def onQueryTerminated(self, event):
        """Nothing."""


def test_an_interrupted_start_leaves_no_query(spark, tmp_path):
    """After Ctrl-C before the JVM has answered, the query that it started ends without a write."""
    table, source, start = started(spark, tmp_path)
    listener, attempts = Interrupts(), 0
    spark.streams.addListener(listener)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background: it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            while attempts < 3:  # Python drops a signal that comes while a finalizer runs
                attempts += 1
                start().stop()
    finally:
        signal.signal(signal.SIGINT, before)
        spark.streams.removeListener(listener)
    assert wait_until(lambda: not spark.streams.active, 10)
    source.add(row("b"))
    assert attempts > 1 or table.timeline().empty
    start(trigger="available_now").wait(60)
    assert table.to_arrow().num_rows == 2
    assert table.fsck() == []


def test_a_query_that_failed_in_its_source_reports_it_when_stopped(spark, tmp_path):
    """If a query failed outside the writer, its job has failed, even if `stop` is called later."""
    table, source, start = started(spark, tmp_path)
    job = start()
    job.process_all_available()
    (tmp_path / "ck/offsets/1").mkdir()  # so that Spark cannot write the offsets of its next batch
    source.add(row("b"))
    assert wait_until(lambda: not job.active)
    assert job.status.startswith("failed")
    with pytest.raises(hn.errors.WriteFailed, match="outside the writer"):
        job.stop()
    assert table.to_arrow().num_rows == 1


@pytest.mark.parametrize("where", ["a listener", "a write"])
def test_a_batch_may_end_the_job(spark, tmp_path, where):
    """`stop` inside a batch write of the same table, or in its listener, requests the stop."""
    table, _, start = started(spark, tmp_path)
    job = start()
    job.process_all_available()
    if where == "a write":
        failpoints.call("coord.commit.post", job.stop)
    else:
        table.events.listen(lambda event: job.stop() if event.kind == "instant_committed" else None)
    batch = threading.Thread(target=table.upsert, args=(row("b"),), daemon=True)
    try:
        batch.start()
        batch.join(60)
    finally:
        failpoints.arm("")
    assert not batch.is_alive()
    assert job.wait(60)
    assert sorted(table.to_arrow()["id"].to_pylist()) == ["a", "b"]
    assert table.fsck() == []


def test_a_checkpoint_folder_is_used_by_one_query_at_a_time(spark, tmp_path):
    """A job into another table with the folder of a running job is refused; the first goes on."""
    table, source, start = started(spark, tmp_path)
    other = hn.Table.create(tmp_path / "other", schema=SCHEMA, record_key="id")
    job = start()
    try:
        with pytest.raises(hn.ConcurrentWriter, match="is used by a running query"):
            hn.write_stream(source.stream(spark), other, checkpoint=str(tmp_path / "ck"))
        source.add(row("b"))
        job.process_all_available()
    finally:
        job.stop()
    assert table.to_arrow().num_rows == 2
    other.upsert(row("c"))
    assert other.to_arrow().num_rows == 1


def test_a_restart_with_a_state_that_lacks_its_keys_is_refused(spark, tmp_path):
    """The state index of `step2` does not know what `step3` wrote; the message names the remedy."""
    table, source, start = started(spark, tmp_path, trigger="available_now")
    start().wait(60)
    source.add(pa.concat_tables([row("a"), row("b")]))
    with pytest.raises(hn.InvalidTable, match=r"lacks instant.*index='bloom\+state'"):
        start(pipeline="step2").wait(60)
    start(pipeline="step2", index="bloom+state").wait(60)
    assert sorted(table.to_arrow()["id"].to_pylist()) == ["a", "b"]
    assert table.fsck() == []
