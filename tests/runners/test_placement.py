"""Where micro-batches are written: by Spark's executors, or by the driver."""

import pytest
from test_stream import DAYS, board_table, run, same_as_board

import hoodie_nb as hn

pytestmark = pytest.mark.spark


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


def test_auto_writes_small_batches_on_the_driver_and_large_ones_on_executors(spark, tmp_path):
    """The limit is a share of `task_max_size`, by the size of the source files."""
    small, large = (board_table(tmp_path / name) for name in ("small", "large"))
    job = run(spark, small, tmp_path / "1", placement="auto")
    assert writers(job) == {0}
    job = run(
        spark, large, tmp_path / "2", placement="auto", batch_size="10 KB", task_max_size="20 KB"
    )
    assert len(writers(job)) > 1
    for table in (small, large):
        same_as_board(table, DAYS)


def test_auto_leaves_sources_without_an_estimate_to_the_executors(spark, tmp_path):
    """A rate source does not report the size of a batch, so the batch counts as large."""
    table = hn.Table.create(tmp_path / "t", schema="value long", record_key="value")
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
    job = hn.write_stream(
        source.select("value"), table, checkpoint=str(tmp_path / "ck"), placement="auto"
    )
    while len(job.events.records("instant_committed")) < 2:
        assert job.active
    job.stop()
    assert len(writers(job)) > 1


def test_a_batch_without_rows_opens_no_instant_on_the_driver(spark, tmp_path):
    """The driver reads the rows first; the checkpoint is recorded, a restart does not run it."""
    table = board_table(tmp_path / "board")
    stream = hn.flights.stream(spark, days=1, path=tmp_path / "source").where("origin = 'nowhere'")
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    job = hn.write_stream(stream, table, placement="driver", **settings)
    job.wait(100)
    assert job.events.records("batch_ended") and not job.events.records("instant_requested")
    again = hn.write_stream(stream, table, placement="driver", **settings)
    again.wait(100)
    assert not again.events.records("batch_started") and table.timeline().empty


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
