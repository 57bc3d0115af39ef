"""Injected faults on real Spark: each fires once, and the job recovers without help."""

import pytest
from test_stream import board_table, same_as_board

import hoodie_nb as hn

pytestmark = pytest.mark.spark
DAYS = 2
RECOVERY = {"instant_rolled_back", "batch_skipped", "job_restarted", "instant_committed"}


@pytest.fixture(autouse=True)
def without_failpoints(monkeypatch):
    """Faults work without failpoints being enabled."""
    monkeypatch.delenv("HOODIE_NB_TESTING")


def run_with(spark, folder, *faults, **settings):
    """Stream the board, inject the faults when the second batch starts, return the ended job."""
    table = board_table(folder / "board")
    stream = hn.flights.stream(spark, days=DAYS, path=folder / "source")
    job = hn.write_stream(
        stream, table, checkpoint=str(folder / "ck"), trigger="0 seconds", **settings
    )

    def inject_faults(event):
        now = (event.kind, event.values.get("batch"))
        if now in {("batch_started", 1), ("checkpoint_sealed", 0)} and not injected:
            injected.extend(faults)
            for fault in faults:
                hn.faults.inject(job, fault)

    injected: list[str] = []
    job.events.listen(inject_faults)
    job.process_all_available()
    job.stop()
    faults_seen = [event.values["fault"] for event in job.events.records("fault_injected")]
    assert faults_seen == list(faults) and hn.faults.pending(job) == []
    same_as_board(table, DAYS)
    assert set(table.timeline()["state"]) == {"completed"}
    return job


def recovery(job):
    """Return the events after the fault, in order, up to the next commit of the batch."""
    events = job.events.records()
    start = [event.kind for event in events].index("fault_injected")
    return [event.kind for event in events[start:] if event.kind in RECOVERY]


def instants(job, kind):
    """Return the instants that events of this kind name."""
    return [event.values["instant"] for event in job.events.records(kind)]


@pytest.mark.parametrize("placement", ["executors", "driver"])
@pytest.mark.parametrize("fault", ["kill_writer", "time_out_checkpoint"])
def test_a_batch_that_fails_is_rolled_back_and_run_again(spark, tmp_path, fault, placement):
    """Dead writer tasks and a cancelled job: rolled back, the query restarts, the batch commits."""
    job = run_with(spark, tmp_path, fault, placement=placement)
    opened = fault == "kill_writer"  # a time-out may come before: rows are looked for first
    steps = ["instant_rolled_back"] * opened + ["job_restarted", "instant_committed"]
    found = [step for step in recovery(job) if opened or step != "instant_rolled_back"]
    assert found[: len(steps)] == steps
    assert len(job.events.records("checkpoint_timed_out")) == (fault == "time_out_checkpoint")
    undone = instants(job, "instant_rolled_back")
    assert len(undone) == opened and not {*undone} & {*instants(job, "instant_committed")}


def test_a_crash_after_the_files_is_rolled_back_by_the_restart(spark, tmp_path):
    """Files written but not prepared remain after the crash; the restart rolls them back."""
    job = run_with(spark, tmp_path, "crash_after_files")
    assert recovery(job)[:3] == ["job_restarted", "instant_rolled_back", "instant_committed"]
    (undone,) = instants(job, "instant_rolled_back")
    assert undone not in instants(job, "instant_prepared") + instants(job, "instant_committed")


def test_a_crash_before_the_commit_is_completed_by_the_restart(spark, tmp_path):
    """The restart commits the prepared instant; the batch is sent again and skipped."""
    job = run_with(spark, tmp_path, "crash_before_commit")
    assert recovery(job)[:3] == ["job_restarted", "instant_committed", "batch_skipped"]
    assert not instants(job, "instant_rolled_back")
    assert len(set(instants(job, "instant_committed"))) == len(instants(job, "instant_prepared"))


def test_faults_of_every_kind_in_one_job(spark, tmp_path):
    """More faults than consecutive restarts: each successful batch resets the count."""
    faults = ("lose_success", "kill_writer", "crash_after_files", "crash_before_commit")
    job = run_with(spark, tmp_path, *faults, max_restarts=3)
    assert len(job.events.records("job_restarted")) == 3


@pytest.mark.parametrize("fault", ["crash_after_files", "crash_before_commit"])
@pytest.mark.parametrize("settings", [{"commit_on": "write"}, {"commit_interval": 2}])
def test_other_ways_to_commit_recover_too(spark, tmp_path, fault, settings):
    """What was prepared or sealed before the crash is skipped; mere files are rolled back."""
    job = run_with(spark, tmp_path, fault, **settings)
    assert recovery(job)[0] == "job_restarted"
    undone, skipped = instants(job, "instant_rolled_back"), job.events.records("batch_skipped")
    durable = fault == "crash_before_commit"
    assert (len(undone), len(skipped)) == (int("commit_on" in settings and not durable), durable)


def test_a_killed_job_reports_it(spark, tmp_path):
    """`kill` ends the job immediately; the next one settles its unfinished work."""
    table = board_table(tmp_path / "board")
    stream = hn.flights.stream(spark, days=1, path=tmp_path / "source")
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    job = hn.write_stream(stream, table, **settings)
    hn.faults.inject(job, "kill")
    assert not job.active and job.events.records("fault_injected")
    hn.write_stream(stream, table, **settings).wait(200)
    same_as_board(table, 1)


def test_an_unknown_fault_is_refused(spark, tmp_path):
    """The message names all existing faults."""
    with pytest.raises(hn.InvalidConfig, match="crash_after_files"):
        hn.faults.inject(None, "gremlins")
    assert list(hn.faults.names()) == [
        "lose_success",
        "kill_writer",
        "time_out_checkpoint",
        "crash_after_files",
        "crash_before_commit",
        "kill",
    ]
