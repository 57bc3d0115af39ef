"""The knobs: each of the RFC's bottlenecks and recoveries as an experiment, without a browser."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from traitlets import TraitError

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.lab.experiments import experiments
from hoodie_nb.lab.experiments.race import Generated
from hoodie_nb.lab.experiments.trial import Trial

VIEW = "application/vnd.jupyter.widget-view+json"
MOMENTS = list(experiments.named("crash").positions)
PREPARED = MOMENTS.index("before prepare")


def shown(knob: hn.Knob) -> list[str]:
    """Return all texts in the pictures of a knob, each of which must be XML."""
    htmls = [html.value for html in knob.pictures._htmls.values()]
    return ["".join(e.itertext()) for svg in htmls for e in ElementTree.fromstring(svg).iter()]


@pytest.mark.parametrize("name", hn.Knob.names())
def test_the_reader_turns_the_knob(name):
    """A step of the slider runs the experiment again and draws it; no row is lost."""
    knob = hn.Knob(name)
    before, rows = shown(knob), knob.result["rows"].min()
    knob.slider.value = knob.positions[0]
    assert shown(knob) != before and rows > 0
    assert set(knob._repr_mimebundle_()) == {"text/plain", "image/png", VIEW}
    assert repr(knob).endswith(f", {knob.positions[0]}>")


def test_an_unknown_experiment_or_position_is_refused():
    """An unknown name is refused with the known ones, an unknown position by the slider."""
    with pytest.raises(hn.InvalidConfig, match="choose from serial_task"):
        hn.Knob("coffee")
    with pytest.raises(TraitError):
        hn.Knob("crash").turn("tomorrow")


# --- the bottlenecks -----------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_tasks_in_threads_store_every_row_once(pipeline):
    """In this process, too, every pipeline with several tasks ends with the same rows."""
    made = Generated(rows=900, batches=3, partitions=3, update_share=0.5)
    found = Trial(pipeline=pipeline, writers=3, input=made).run(lambda events, stop: None)
    assert (found["rows"], found["duplicates"]) == (600, 0)


@pytest.mark.parametrize("tasks", [1, 8])
def test_all_rows_pass_the_serial_task(tasks):
    """In `current` one task has all rows, however many write; STEP1 has no such task."""
    current, step1 = experiments.named("serial_task").run(tasks)
    passed = [
        (event.values["task"], event.values["rows"])
        for event in current.events
        if event.kind == "operator_ran" and event.values["operator"] == "InstantGenerator"
    ]
    assert passed == [(0, 2000)]
    assert current.facts["serial_s"] > 0 == step1.facts["serial_s"]


def test_a_hot_partition_is_the_work_of_one_task_before_step2():
    """If all rows are in one partition, one of four tasks of STEP1 writes them all."""
    skew = hn.Knob("hot_partition", "100%").result["skew"]
    assert skew["step1"] == 4 and skew["step2"] < 1.5


def test_small_buckets_bound_the_buffer_of_step3():
    """The knob bounds the buffer of STEP3; STEP2 buffers the checkpoint whatever its position."""
    knob = hn.Knob("buffer", "8 KB")
    peak = knob.result["peak_buffer_mb"]
    assert peak["step3"] < 0.5 * peak["step2"]
    assert knob.turn("512 KB")["peak_buffer_mb"]["step2"] == peak["step2"]


def test_a_jobs_own_state_duplicates_the_keys_of_another_job():
    """Exactly the keys that another job wrote are duplicated, and none with the new index."""
    knob = hn.Knob("job_state", "25%")
    assert knob.result["duplicates"].tolist() == [225, 0]
    assert knob.turn("0%")["duplicates"].tolist() == [0, 0]


# --- the recoveries ------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_crash_is_rolled_back_before_prepare_and_completed_after_it(moment):
    """The outcome of a crash depends on one thing: whether the checkpoint was prepared."""
    knob = hn.Knob("crash", moment)
    [found] = knob.result.to_dict("records")
    assert (found["rows"], found["duplicates"]) == (900, 0)
    assert (found["files_again"] > 0) == (MOMENTS.index(moment) <= PREPARED)
    assert ("Fault: the process dies" in shown(knob)) == (moment != "never")


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_error_of_the_disk_costs_a_commit_nothing(moment):
    """A write that fails once is done again by the next checkpoint, a commit at once."""
    knob = hn.Knob("disk_error", moment)
    [found] = knob.result.to_dict("records")
    assert (found["rows"], found["duplicates"]) == (900, 0)
    assert found["visible_then"] == (0 if MOMENTS.index(moment) <= PREPARED else 900)
    notes = " ".join(shown(knob))
    assert ("is rolled back" in notes) == (moment in MOMENTS[1:3])
    assert ("is retried" in notes) == (moment in MOMENTS[3:5])


@pytest.mark.parametrize("lost", ["0", "3"])
def test_an_instant_spans_the_checkpoints_whose_notifications_are_lost(lost):
    """With n notifications lost in a row, one commit has n + 1 checkpoints."""
    knob = hn.Knob("lost_notification", lost)
    [found] = knob.result.to_dict("records")
    assert f"checkpoints in the one commit: {int(lost) + 1}; " in " ".join(shown(knob))
    assert (found["commits"], found["checkpoints"]) == (1, int(lost) + 1)


@pytest.mark.parametrize("eager", ["0", "300"])
def test_eager_rows_are_written_twice_and_stored_once(eager):
    """After a time-out and after a failover exactly the eager rows come again."""
    [late] = hn.Knob("time_out", eager).result.to_dict("records")
    assert (late["repeated"], late["duplicates"]) == (int(eager), 0)
    again = hn.Knob("failover", eager).result
    assert again["repeated"].tolist() == [int(eager)] * 2
    assert again["duplicates"].tolist() == [int(eager), 0]
