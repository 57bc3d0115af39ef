"""Where micro-batches are written: by Spark's executors, or by the driver."""

import uuid
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from spark_source import FolderSource
from test_stream import DAYS, board_table, run, same_as_board

import hoodie_nb as hn
from hoodie_nb.on_spark.taken import Taken

pytestmark = pytest.mark.spark
ALTERNATING = pa.schema([("id", pa.int64())])


def writers(job):
    """Return the numbers of the tasks that wrote."""
    ran = job.events.records("operator_ran")
    return {e.values["task"] for e in ran if e.values["operator"] == "BucketWriter"}


@pytest.mark.parametrize("pipeline", ["step2", "direct"])
@pytest.mark.parametrize("settings", [{}, {"commit_on": "write"}, {"commit_interval": 2}])
def test_the_driver_writes_the_same_table(spark, tmp_path, pipeline, settings):
    """Placement on the driver gives the same rows, in every way to commit."""
    table = board_table(tmp_path / "board")
    job = run(spark, table, tmp_path, pipeline=pipeline, placement="driver", **settings)
    same_as_board(table, DAYS)
    assert writers(job) == {0} and not job.events.records("job_restarted")


def placements(job):
    """Return where each batch was placed, in order: of one that was too large, both places."""
    placed = job.events.records("batch_placed")
    return [(e.values["batch"], e.values["placement"]) for e in placed]


def counted_rows(spark, rows):
    """Return a stream without an estimate whose batch n has as many rows as the SQL says.

    Its rows are numbered within the batch: `value`, `number`, and a text of 100 bytes.
    """
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1)
    many = source.load().selectExpr("value", f"explode(sequence(1, {rows})) AS number")
    return many.selectExpr("value", "number", "repeat('x', 100) AS text")


COUNTED = {"schema": "value long, number int, text string", "record_key": ["value", "number"]}


def run_batches(stream, table, folder, count, **settings):
    """Write so many batches of an endless stream, then stop."""
    job = hn.write_stream(stream, table, checkpoint=folder / "ck", trigger="0 seconds", **settings)
    while len(job.events.records("batch_ended")) < count:
        assert job.active
        job.wait(0.02)
    job.stop()
    return job


def test_auto_writes_small_batches_on_the_driver_and_large_ones_on_executors(spark, tmp_path):
    """The limit is `task_max_size`, by the size of the source files."""
    small, large = (board_table(tmp_path / name) for name in ("small", "large"))
    job = run(spark, small, tmp_path / "1")
    assert writers(job) == {0}
    job = run(spark, large, tmp_path / "2", batch_size="5 KB", task_max_size="5 KB")
    assert len(writers(job)) > 1
    for table in (small, large):
        same_as_board(table, DAYS)


@pytest.mark.parametrize("settings", [{}, {"commit_interval": 2}])
def test_auto_writes_a_source_without_an_estimate_where_its_last_batches_fit(
    spark, tmp_path, monkeypatch, settings
):
    """The first batch, and one larger than its tasks may return, go to the executors."""
    returned = []
    plain = Taken.add
    monkeypatch.setattr(Taken, "add", lambda t, rows: (returned.append(len(rows)), plain(t, rows)))
    table = hn.Table.create(tmp_path / "t", **COUNTED)
    limits = {"batch_size": "20 KB", "task_max_size": "20 KB", **settings}
    stream = counted_rows(spark, "if(value = 2, 10000, 2)")
    job = run_batches(stream, table, tmp_path, 7, **limits)
    where = placements(job)[:8]
    assert [number for number, _ in where] == [0, 1, 2, 2, 3, 4, 5, 6]
    assert [place for _, place in where] == [
        *("executors", "driver", "driver", "executors"),  # of batch 2 both: it was too large
        *("executors", "executors", "executors", "driver"),  # the last three batches decide
    ]
    ended = [e.values["rows"] for e in job.events.records("batch_ended")]
    assert ended[:7] == [2, 2, 10_000, 2, 2, 2, 2] and max(returned) < 1000
    assert not job.events.records("job_restarted") and table.fsck() == []
    assert table.to_arrow().num_rows == sum(ended)


def test_auto_follows_batches_of_alternating_sizes(spark, tmp_path):
    """Files have an estimate: it is corrected by what the last batches had, batch by batch."""
    source = FolderSource(tmp_path / "source", ALTERNATING)
    table = hn.Table.create(tmp_path / "t", schema=ALTERNATING, record_key="id")
    rows = [pa.table({"id": range(10_000 * (n % 2) + 5)}, ALTERNATING) for n in range(8)]
    for piece in rows:
        source.add(piece)
    settings = {"checkpoint": tmp_path / "ck", "batch_size": "40 KB", "task_max_size": "40 KB"}
    job = hn.write_stream(source.stream(spark), table, trigger="available_now", **settings)
    assert job.wait(300)
    where = ["driver", "executors"] * 4
    assert [placement for _, placement in placements(job)] == where
    assert [e.values["rows"] for e in job.events.records("batch_ended")] == [5, 10_005] * 4
    assert table.to_arrow().num_rows == 10_005 and table.fsck() == []


@pytest.mark.parametrize("moment", ["instant_inflight", "file_written", "instant_prepared"])
def test_a_batch_runs_again_in_the_other_place(spark, tmp_path, moment):
    """It was killed on the driver, and the executors write it: each row is there once."""
    table = hn.Table.create(tmp_path / "t", **COUNTED)
    settings = {"checkpoint": tmp_path / "ck", "trigger": "0 seconds", "operation": "insert"}
    killed = hn.write_stream(counted_rows(spark, "50"), table, placement="driver", **settings)

    def kill(event):
        if event.kind == moment:
            killed.kill()

    killed.events.listen(kill)
    killed.wait(100)
    last, place = placements(killed)[-1]
    assert place == "driver"
    settings = {"operation": "insert", "placement": "executors"}
    again = run_batches(counted_rows(spark, "50"), table, tmp_path, 2, **settings)
    first = placements(again)[0]
    assert first == (last, "executors") or moment == "instant_prepared"
    found = table.to_arrow().select(["value", "number"]).to_pylist()
    values = range(max(row["value"] for row in found) + 1)
    expected = [{"value": value, "number": n} for value in values for n in range(1, 51)]
    assert sorted(found, key=lambda row: (row["value"], row["number"])) == expected
    assert table.fsck() == []


@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "driver"},
        {"placement": "executors"},
        {"placement": "executors", "pipeline": "step1", "index": "bloom"},
        {},
    ],
    ids=str,
)
def test_a_batch_without_rows_opens_no_instant(spark, tmp_path, settings):
    """The rows are read first, or one of them; the checkpoint is recorded and not run again."""
    table = board_table(tmp_path / "board")
    stream = hn.flights.stream(spark, days=1, path=tmp_path / "source").where("origin = 'nowhere'")
    settings |= {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    job = hn.write_stream(stream, table, **settings)
    job.wait(100)
    assert job.events.records("batch_ended") and not job.events.records("instant_requested")
    again = hn.write_stream(stream, table, **settings)
    again.wait(100)
    assert not again.events.records("batch_started") and table.timeline().empty


def test_a_batch_that_is_costly_is_not_computed_twice(spark, tmp_path):
    """A Python function runs once for a batch, unless the one before it had no rows."""
    source, calls = FolderSource(tmp_path / "source", ALTERNATING), tmp_path / "calls"
    calls.mkdir()
    for number in (1, -2, -3, 4):
        source.add(pa.table({"id": [number]}, ALTERNATING))

    def positive(batches):
        for batch in batches:
            (calls / f"{batch.column('id')[0]} {uuid.uuid4().hex}").touch()
            yield batch.filter(pc.greater(batch.column("id"), 0))

    stream = source.stream(spark).coalesce(1)
    table = hn.Table.create(tmp_path / "t", schema=ALTERNATING, record_key="id")
    job = hn.write_stream(
        stream.mapInArrow(positive, stream.schema),
        table,
        checkpoint=tmp_path / "ck",
        trigger="available_now",
        placement="executors",
    )
    assert job.wait(300)
    computed = Counter(path.name.split()[0] for path in calls.iterdir())
    assert (computed["1"], computed["-2"], computed["4"]) == (1, 1, 2), [
        *map(str, job.events.records())
    ]
    assert len(job.events.records("instant_requested")) == 1 + 1 + 0 + 1
    assert sorted(table.to_arrow().column("id").to_pylist()) == [1, 4]


def test_a_batch_that_is_too_large_for_the_driver_is_refused(spark, tmp_path):
    """The error names Spark's limit and the remedy; the executors then write the batch."""
    table, conf = board_table(tmp_path / "board"), spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", "10k")
    try:
        with pytest.raises(hn.InvalidConfig, match=r"maxResultSize.*placement='executors'"):
            run(spark, table, tmp_path, placement="driver")
    finally:
        conf.remove("spark.driver.maxResultSize")
    run(spark, table, tmp_path, placement="executors")
    same_as_board(table, DAYS)


@pytest.mark.parametrize("settings", [{}, {"commit_interval": 2}])
def test_auto_gives_a_batch_that_is_too_large_for_the_driver_to_the_executors(
    spark, tmp_path, settings
):
    """The estimate was wrong: the batch is written by Spark's tasks, without a restart."""
    table, conf = board_table(tmp_path / "board"), spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", "60k")
    try:
        job = run(spark, table, tmp_path, placement="auto", **settings)
    finally:
        conf.remove("spark.driver.maxResultSize")
    assert not job.events.records("job_restarted")
    same_as_board(table, DAYS)


def test_direct_runs_a_batch_again_if_the_index_is_damaged(spark, tmp_path):
    """Its tasks share keys and must agree, so the state of a damaged run is not used at all."""
    table = board_table(tmp_path / "board")
    run(spark, table, tmp_path)
    for path in (tmp_path / "board/.hoodie/.hoodie_nb/index/runs").glob("*.run"):
        path.write_bytes(bytes(path.stat().st_size))
    assert table.upsert(hn.flights.events(spark, days=DAYS)).inserts == 0
    same_as_board(table, DAYS)


@pytest.mark.parametrize("pipeline", ["current", "step1"])
def test_the_driver_does_not_run_pipelines_that_shuffle_by_partition(spark, tmp_path, pipeline):
    """Before STEP2 there is one writer per partition: this placement has no such tasks."""
    table = board_table(tmp_path / "board")
    with pytest.raises(hn.InvalidConfig, match="step2' or 'step3"):
        run(spark, table, tmp_path, pipeline=pipeline, placement="driver")


def test_direct_spills_what_does_not_fit_into_memory(spark, tmp_path):
    """A task that receives more than half of `task_max_size` sorts it in runs, with one result."""
    table = board_table(tmp_path / "board")
    sizes = {"batch_size": "10 KB", "task_max_size": "20 KB"}
    job = run(spark, table, tmp_path, pipeline="direct", **sizes)
    assert len(writers(job)) > 1 and job.events.records("buffer_flushed")
    same_as_board(table, DAYS)


def test_direct_needs_an_index_of_the_table(spark, tmp_path):
    """The index of one job's keys is kept by task; `direct` has no task that sees all its keys."""
    table = board_table(tmp_path / "board")
    with pytest.raises(hn.InvalidConfig, match="index='bloom"):
        run(spark, table, tmp_path, pipeline="direct", index="state")
