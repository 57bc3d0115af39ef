"""Views of tables, filters, indexes and faults, and the knobs of a run; all without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from runs import local_job, make_events, recorded

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.events import EventLog
from hoodie_nb.files.bloom import BloomFilter
from hoodie_nb.lab.draw.file_groups import GroupFacts, file_groups
from hoodie_nb.lab.draw.recovery import recovery
from hoodie_nb.lab.draw.timeline import InstantFacts, timeline
from hoodie_nb.lab.look import palette
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.bloom_view import BloomView, bits_of, rates
from hoodie_nb.lab.widgets.compare import Compare
from hoodie_nb.lab.widgets.controls import Controls
from hoodie_nb.lab.widgets.job_views import FaultPanel, IndexView
from hoodie_nb.lab.widgets.tables import FileGroups, Timeline
from hoodie_nb.local.batch import Commit

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return a table of three commits and three file groups."""
    folder = tmp_path_factory.mktemp("views")
    local_job(folder)
    return hn.Table.open(folder / "table")


def titles(svg):
    """Return the picture's hover texts."""
    return [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("title")]


# --- Timeline ------------------------------------------------------------------------------------


def test_every_instant_has_its_line(table):
    """The timeline has a line for each instant; hover texts show rows, files and bytes."""
    view = Timeline(table)
    lines = titles(view.pictures.shown("timeline"))
    assert [i.requested_time for i in view.instants] == list(table.timeline()["requested_time"])
    assert len(lines) == 3
    assert "completed after" in lines[0] and "1,000 rows in 3 files" in lines[0]
    assert repr(view) == "<Timeline: 3 instants, 0 pending>"


def test_a_pending_instant_has_an_open_bar():
    """An instant that has not completed is drawn and labelled as pending."""
    svg = timeline([InstantFacts("20261121080000000", "commit", "inflight")])
    assert titles(svg) == ["20261121080000000 commit, pending. inflight"]


@pytest.mark.parametrize("count", [0, 1, 14, 500])
def test_a_timeline_of_any_length_is_drawn(count):
    """None, one or many instants: at most the newest 14 are shown."""
    times = [f"2026112108{n:07d}" for n in range(count)]
    made = [InstantFacts(t, "commit", "completed", t, "upsert", 1, 1, 1) for t in times]
    assert len(titles(timeline(made))) == min(count, 14)


def test_refresh_shows_new_instants(tmp_path):
    """`refresh` reads the timeline again."""
    table = hn.Table.create(
        tmp_path / "t", schema=pa.schema([("id", pa.string())]), record_key="id"
    )
    view = Timeline(table)
    table.upsert(pa.table({"id": ["a"]}))
    view.refresh()
    assert view.summary == "Timeline: 1 instant, 0 pending"


# --- FileGroups ----------------------------------------------------------------------------------


def test_file_groups_as_of_every_commit(table):
    """The slider goes through the commits; the number of slices grows."""
    view = FileGroups(table)
    seen = []
    for commit in range(3):
        view.go(commit)
        seen.append(sum(group.slices for group in view.groups))
        frame = table.file_groups(as_of=view._slider.value)
        assert [g.file_id for g in view.groups] == list(frame["file_id"])
    assert seen == [3, 6, 9]
    assert len(titles(view.pictures.shown("groups"))) == 3
    assert "written by this instant" in view.pictures.shown("groups")


def test_file_groups_show_their_logs(tmp_path):
    """Each update adds a log to the group, until one is due: then a base file folds them."""
    schema = pa.schema([("id", pa.string()), ("ts", pa.int64())])
    options = {"hoodie.compact.inline.max.delta.commits": 3, "hoodie_nb.append.above.bytes": 0}
    keys = {"schema": schema, "record_key": "id", "ordering": "ts", "options": options}
    table = hn.Table.create(tmp_path / "t", table_type="merge_on_read", **keys)
    for ts in range(8):
        table.upsert(pa.table({"id": ["a", "b"], "ts": [ts, ts]}, schema=schema))
    view = FileGroups(table)
    seen = []
    for commit in range(8):
        view.go(commit)
        [group] = view.groups
        seen.append(len(group.logs))
        assert group.instant_time == view._slider.value and all(group.logs)
        drawn = view.pictures.shown("groups")
        assert (f"{seen[-1]} log" in drawn) == (seen[-1] > 0)
        assert drawn.count(f'fill="{palette.PURPLE}"') == max(0, seen[-1] - 1) + bool(seen[-1])
    folds = [n for n in range(1, 8) if seen[n] < seen[n - 1]]
    assert folds and all(seen[n] == 0 for n in folds)
    assert all(seen[n] == seen[n - 1] + 1 for n in range(1, 8) if n not in folds)
    assert f", {seen[-1]} logs" in view.summary or seen[-1] == 0


def test_file_groups_begin_where_the_files_are_whole(tmp_path):
    """The slider has no commit whose files were cleaned away."""
    keys = {"schema": pa.schema([("id", pa.string())]), "record_key": "id"}
    table = hn.Table.create(tmp_path / "t", **keys, options={"hoodie.clean.commits.retained": 1})
    for _ in range(5):
        table.upsert(pa.table({"id": ["a"]}))
    view, times = FileGroups(table), list(table.history()["requested_time"])
    assert list(view._slider.options) == times[-2:]
    view.go(0)
    assert [group.instant_time for group in view.groups] == times[-2:-1]


def test_hidden_file_groups_are_counted(tmp_path):
    """A table with more groups than fit says how many are not shown."""
    made = [GroupFacts(f"p{n % 12:02d}", f"id{n}", "1", 10, 1) for n in range(12 * 8)]
    svg = file_groups(made, 1000, "1", 12)
    assert "+2</text>" in svg and "3 more partitions" in svg
    assert len(titles(svg)) == 9 * 6


def test_a_table_without_commits_is_shown(tmp_path):
    """An empty table has neither instants nor groups, and both views say so."""
    schema = pa.schema([("id", pa.string())])
    table = hn.Table.create(tmp_path / "empty", schema=schema, record_key="id")
    assert Timeline(table).summary == "Timeline: 0 instants, 0 pending"
    assert FileGroups(table).summary == "FileGroups as of no commit yet: 0 groups, 0 slices"


# --- BloomView -----------------------------------------------------------------------------------


def test_the_bits_are_those_of_the_footer():
    """The bits that are shown are the filter's own: a key sets at most one bit a hash."""
    made = BloomFilter.sized(32, 0.01)
    assert not any(bits_of(made)) and len(bits_of(made)) == made.bits
    made.add(pa.array(["key-0"]))
    assert 0 < sum(bits_of(made)) <= made.hashes


def test_the_filter_never_denies_what_it_holds():
    """For added keys the answer is maybe; for an empty filter it is always no."""
    view = BloomView(keys=16, held=16)
    assert all(view.ask(f"key-{n}") for n in range(16))
    view._held.value = 0
    assert not view.ask("key-0")
    assert view.summary.endswith("'key-0': certainly not")


def test_the_measured_rate_is_near_the_one_asked_for():
    """Larger filters have fewer false positives, as sized (within a factor of three)."""
    found = rates(64)
    measured = [point.measured for point in found]
    assert measured == sorted(measured, reverse=True)
    for point in found[:5]:
        assert point.asked / 3 < point.measured < point.asked * 3


# --- IndexView and FaultPanel --------------------------------------------------------------------


def test_an_index_view_shows_recorded_events():
    """Recorded lookups are drawn without a job."""
    view = IndexView(recorded())
    assert view.summary == "IndexView bloom: state 0, ruled out 3,100, read 900, false positive 0"
    assert set(view._repr_mimebundle_()) == {"text/plain", "image/png", VIEW}


def test_an_index_view_follows_a_table(table):
    """A table's own batch writes are followed until the view is closed."""
    view = IndexView(table)
    table.upsert(table.to_arrow(meta=False).slice(0, 50))
    view.follower.wake()
    view.close()
    view._draw(RunState.of(table.events.records()))
    assert sum(seen.count("keys") for seen in view.state.lookups) == 50


class Faulty:
    """A job with nothing but events."""

    def __init__(self):
        self.events = EventLog()


def test_a_fault_panel_has_a_button_for_each_fault(monkeypatch):
    """A click injects that fault into the job."""
    injected = EventLog()
    monkeypatch.setattr(hn.faults, "inject", lambda job, name: injected.emit(name))
    panel = FaultPanel(Faulty())
    assert set(panel.buttons) == set(hn.faults.names())
    panel._inject("lose_success")
    assert [event.kind for event in injected.records()] == ["lose_success"]
    panel.close()


def test_the_recovery_view_starts_with_the_last_fault():
    """The recovery is shown from the last fault on."""
    events = make_events(
        *("instant_committed", {"instant": "1"}, "fault_injected", {"fault": "kill_writer"}),
        *("instant_rolled_back", {"instant": "2"}, "job_restarted", {"why": "WriteFailed"}),
        *("instant_committed", {"instant": "3", "checkpoints": 1}),
    )
    svg = recovery(RunState.of(events))
    shown = [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]
    assert "Fault: kill_writer" in shown and "Instant 2 is rolled back" in shown
    assert not any("Instant 1" in text for text in shown)
    panel = FaultPanel(events)
    assert panel.buttons == {}
    assert panel.summary == "FaultPanel: kill_writer: rolled back, job restarted, committed"


def test_the_recovery_view_keeps_the_first_events_after_the_fault():
    """A long stream does not push the recovery off the panel."""
    later = [x for n in range(30) for x in ("instant_committed", {"instant": n, "checkpoints": 1})]
    events = make_events(
        *("fault_injected", {"fault": "kill_writer"}, "batch_started", {"batch": 0}),
        *("instant_rolled_back", {"instant": "a"}, "job_restarted", {"why": "WriteFailed"}),
        *later,
    )
    svg = recovery(RunState.of(events))
    assert "Instant a is rolled back" in svg and "restarted: WriteFailed" in svg
    assert "Instant 5 is committed" in svg and "24 later not shown" in svg
    assert "Batch 0 begins" not in svg and "Instant 6" not in svg


def test_the_panel_remembers_every_fault():
    """An earlier fault stays with what came of it, when the run has gone on and another fired."""
    later = [x for n in range(60) for x in ("instant_committed", {"instant": n, "checkpoints": 1})]
    events = make_events(
        *("fault_injected", {"fault": "kill_writer"}, "instant_rolled_back", {"instant": "1"}),
        *("job_restarted", {"why": "WriteFailed"}, *later),
        *("fault_injected", {"fault": "lose_success"}, "job_stopped", {}),
    )
    state = RunState.of(events)
    shown = [e.text for e in ElementTree.fromstring(recovery(state)).iter()]
    assert "Fault: kill_writer: rolled back, job restarted, committed" in shown
    assert "Fault: lose_success" in shown and "The job has stopped" in shown
    assert FaultPanel(events).summary.startswith(
        "FaultPanel: kill_writer: rolled back, job restarted"
    )


def texts(svg):
    """Return the texts of a picture."""
    return [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def test_an_effect_belongs_to_the_fault_that_caused_it():
    """A fault that waits for its moment gets nothing of what an earlier one has caused."""
    waits, names = {"waits": True}, ("crash_after_files", "lose_success")
    injected = [x for f in names for x in ("fault_injected", {"fault": f} | waits)]
    events = make_events(
        *injected,
        *("fault_fired", {"fault": "crash_after_files"}, "job_restarted", {"why": "WriteFailed"}),
        *("instant_rolled_back", {"instant": "1"}),
    )
    state = RunState.of(events)
    assert [story.outcome for story in state.stories] == ["waits", "job restarted, rolled back"]
    shown = texts(recovery(state))
    assert "Fault: crash_after_files" in shown and "Instant 1 is rolled back" in shown
    assert "Fault: lose_success: waits" in shown
    fired = make_events("fault_fired", {"fault": "lose_success"}, "instant_committed", {})
    state.take(fired)
    assert [story.outcome for story in state.stories] == ["job restarted, rolled back", "committed"]
    RunState.of(fired)  # its injection may be missing


def test_a_fault_that_fires_says_so():
    """A job's log has the moment at which a fault fires, once."""
    job = Faulty()
    job.checkpointing = SimpleNamespace(fault_fires=None)
    hn.faults.inject(job, "kill_writer")
    assert hn.faults.pending(job) == ["kill_writer"]
    asked = [job.checkpointing.fault_fires(name) for name in ("kill", "kill_writer", "kill_writer")]
    assert asked == [False, True, False] and hn.faults.pending(job) == []
    assert [event.kind for event in job.events.records()] == ["fault_injected", "fault_fired"]


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ("inflight", "; instant 1 is still inflight: the next start settles it"),
        ("prepared", "; instant 1 is still prepared: the next start settles it"),
        ("committed", ""),
    ],
)
def test_a_stop_that_leaves_an_instant_open_is_not_shown_as_a_success(state, ended):
    """After a kill the instant is still inflight, which the panel names and shows in grey."""
    events = make_events(
        *("instant_inflight", {"instant": "1"}, f"instant_{state}", {"instant": "1"}),
        *("fault_injected", {"fault": "kill"}, "job_stopped", {}),
    )
    run = RunState.of(events)
    svg = recovery(run)
    assert f"The job has stopped{ended}" in texts(svg)
    assert run.stories[-1].outcome == ("left open" if ended else "job stopped")
    assert (svg.count(f'fill="{palette.GREEN}"') > 1) == (not ended)  # one is the legend's


# --- Compare -------------------------------------------------------------------------------------


def test_two_runs_have_the_same_time_axis():
    """The shorter run is drawn on the time axis of the longer one, to the left of its end."""
    short, long = recordings.recorded("step1"), recordings.recorded("step3")
    view = Compare(short, long)
    assert captions(view) == {"62"}
    ends = {side: max(bars(view, f"{side} lanes")) for side in ("left", "right")}
    lasted = {e: es[-1].at_ms - es[0].at_ms for e, es in (("left", short), ("right", long))}
    assert (ends["left"] - 112) / (ends["right"] - 112) == pytest.approx(
        lasted["left"] / lasted["right"], abs=0.05
    )
    assert set(view._repr_mimebundle_()) == {"text/plain", "image/png", VIEW}
    assert repr(view).startswith("<Compare step1: 30,521 rows, stopped | step3: ")
    view._draw("right", RunState.of(long[:100]))  # as if it were still running
    assert len(captions(view)) == 1


def captions(view):
    """Return the last number of the time axis of both lanes, in seconds."""
    found = [[e.text for e in elements(view, f"{side} lanes")][-1] for side in ("left", "right")]
    return {*found}


def elements(view, name):
    """Return the elements of a picture."""
    return [*ElementTree.fromstring(view.pictures.shown(name)).iter()]


def bars(view, name):
    """Return where each bar of a picture ends."""
    rects = [e.attrib for e in elements(view, name) if e.tag.endswith("rect")]
    return [float(rect["x"]) + float(rect["width"]) for rect in rects]


def test_a_running_job_is_compared_live():
    """A job that is still running is followed, next to a recording, until it ends."""
    job = Faulty()
    view = Compare(job, recorded())
    for event in recorded():
        job.events.add(event)
    job.events.emit("job_stopped", why="")
    assert not view.follower.alive and view.summary.count("4,000 rows") == 2
    view.close()


# --- Controls ------------------------------------------------------------------------------------


def test_moving_a_knob_runs_nothing():
    """Moving a knob changes the settings of the next run, and runs nothing."""
    controls = Controls(rows=400, batches=2)
    controls.knobs["pipeline"].value = "step2"
    controls.knobs["partitions"].value = 7
    assert controls.trial.pipeline == "step2" and controls.trial.input.partitions == 7
    assert controls.summary == "Controls: nothing has run yet"


def test_the_new_run_is_shown_next_to_the_last():
    """After two runs both are shown, the newest on the right."""
    controls = Controls(rows=400, batches=2)
    for pipeline in ("step3", "step1"):
        controls.knobs["pipeline"].value = pipeline
        controls.button.click()
        controls.wait()
    assert "Last: step3" in controls.pictures.shown("last title")
    assert "New: step1" in controls.pictures.shown("new title")
    assert controls.summary.count("stopped: ") == 2
    assert not controls.button.disabled


def test_a_failed_run_shows_its_error():
    """The error of a run is shown in place of its figures, and Run can be pressed again."""
    controls = Controls(rows=400, batches=2)
    controls._rows = -1
    controls.run()
    controls.wait()
    assert "Error" in controls.pictures.shown("new title")
    assert not controls.button.disabled


def test_stop_ends_a_run_after_its_micro_batch():
    """A click on Stop ends the run long before its input; then Run can be pressed again."""
    controls, started = Controls(rows=4000, batches=40), threading.Event()
    controls.knobs["pace_s"].value = 2.0
    controls.stop_button.observe(lambda change: change["new"] or started.set(), "disabled")
    assert controls.stop_button.disabled
    controls.button.click()
    assert started.wait(60)
    controls.stop_button.click()
    controls.wait()
    state = controls._runs[-1][1]
    assert state.status == "stopped" and state.committed < 20
    assert controls.stop_button.disabled and not controls.button.disabled


@pytest.mark.spark
def test_controls_run_on_spark(spark):
    """With a session a run is a real stream with the requested number of writers."""
    controls = Controls(spark, rows=400, batches=2)
    controls.run()
    controls.wait()
    title, state = controls._runs[0]
    assert state.status == "stopped" and state.rows == 400 and "2 writers" in title


# --- what everything else shows ------------------------------------------------------------------


def test_public_values_have_a_rich_and_a_text_form(table):
    """Tables and commits are small HTML tables in a notebook, else one line, without paths."""
    bundle = table._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert table.path not in "".join(bundle.values())
    ElementTree.fromstring(bundle["text/html"])
    commit = Commit("1", "2", "upsert", 1000, 2, 3, 4, 5)
    assert "1,000" in commit._repr_html_() and "inserts=1000" in repr(commit)
    assert repr(EventLog()) == "<EventLog: 0 events>"
    assert PIPELINES["step3"]._repr_markdown_().startswith("```mermaid\nflowchart LR")
    for name in ("timeline", "history", "file_groups"):
        assert getattr(table, name)()._repr_html_()


@pytest.mark.parametrize("name", ["Timeline", "FileGroups", "BloomView"])
def test_a_view_has_three_forms(table, name):
    """Every widget stores a picture and a line of text in a notebook."""
    view = getattr(hn, name)() if name == "BloomView" else getattr(hn, name)(table)
    assert set(view._repr_mimebundle_()) == {"text/plain", "image/png", VIEW}
