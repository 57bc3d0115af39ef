"""Dashboard and Replay: widgets that follow a job, or a recording, without a browser."""

from __future__ import annotations

import base64
import re
import threading

import nbformat
import pytest
from nbclient import NotebookClient
from runs import local_job, make_events, recorded

import hoodie_nb as hn
from hoodie_nb import display
from hoodie_nb.events import EventLog
from hoodie_nb.lab.run.follower import Follower
from hoodie_nb.lab.widgets.dashboard import Dashboard
from hoodie_nb.lab.widgets.replay import Replay

STATES = ("running", "running", "stopped")
VIEW = "application/vnd.jupyter.widget-view+json"


class EventsOnlyJob:
    """A job that has only events; `stop` ends it, as a job's own thread would."""

    def __init__(self, *events: object) -> None:
        self.events = EventLog()
        for event in make_events(*events):
            self.events.add(event)
        self.stopped = threading.Event()

    def stop(self) -> None:
        """Emit that the job has stopped."""
        self.events.emit("job_stopped", why="")
        self.stopped.set()


@pytest.fixture
def job():
    """Return a job that has emitted its start event."""
    return EventsOnlyJob("job_started", {"pipeline": "step3", "tasks": 2})


def test_a_dashboard_has_three_forms(job):
    """A notebook stores the live view, a PNG and a line of text."""
    dashboard = Dashboard(job)
    bundle = dashboard._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png", VIEW}
    assert base64.b64decode(bundle["image/png"])[:4] == b"\x89PNG"
    assert bundle["text/plain"] == "<Dashboard step3: running, 0 rows in 0 commits>"
    dashboard.close()


def test_closing_a_dashboard_ends_its_thread(job):
    """After `close` nothing follows the job any more, and the job can still emit events."""
    dashboard = Dashboard(job)
    dashboard.close()
    dashboard.follower.thread.join()
    assert not dashboard.follower.alive
    job.stop()


def test_a_dashboard_ends_with_its_job(job):
    """The job's last events are drawn before the job's own thread continues."""
    dashboard = Dashboard(job, hz=1)
    job.events.emit("instant_requested", instant="1")
    job.events.emit("instant_committed", instant="1", inserts=7)
    job.stop()
    assert not dashboard.follower.alive and dashboard.state.status == "stopped"
    assert "stopped" in dashboard.pictures.shown("head")
    assert dashboard._stop.disabled


def test_the_stop_button_stops_the_job_once(job):
    """A click requests the stop in a separate thread and cannot be repeated."""
    dashboard = Dashboard(job)
    dashboard._stop.click()
    assert dashboard._stop.disabled
    assert job.stopped.wait(30)
    assert dashboard.state.status == "stopped"


def test_nothing_is_sent_that_has_not_changed(job):
    """Drawing the same state again sends nothing; a new checkpoint sends one picture of it."""
    dashboard = Dashboard(job)
    dashboard.close()
    sent = []
    dashboard.pictures._htmls["instants"].observe(sent.append, "value")
    for _ in range(5):
        dashboard._draw(dashboard.state)
    assert sent == []
    dashboard.state.take(make_events("batch_started", {"batch": 0}))
    dashboard._draw(dashboard.state)
    assert len(sent) == 1


def test_an_error_while_drawing_ends_only_the_drawing(job):
    """The job continues, and ends without waiting for a closed dashboard."""
    follower = Follower(job.events, lambda state: 1 // (not state.checkpoints), hz=1)
    job.events.emit("batch_started", batch=0)
    follower.wake()
    follower.thread.join()
    assert not follower.alive and "ZeroDivisionError" in follower.state.trouble.what
    job.stop()
    assert job.stopped.is_set()


def test_progress_is_shown_for_a_known_number_of_rows(job):
    """With `total_rows` the head has a bar and the remaining time."""
    values = {"operator": "BucketWriter", "task": 0, "rows": 250, "seconds": 1}
    job.events.emit("operator_ran", **values)
    dashboard = Dashboard(job, total_rows=1000)
    dashboard.close()
    assert "25% of the input" in dashboard.pictures.shown("head")


def test_too_many_drawings_a_second_are_refused(job):
    """More than 10 drawings a second would take a core from the writers."""
    with pytest.raises(hn.InvalidConfig, match="hz=20"):
        Dashboard(job, hz=20)


def test_a_job_without_spark_has_a_dashboard(tmp_path):
    """The dashboard needs events only: an in-process job emits the same ones."""
    dashboard = Dashboard(local_job(tmp_path))
    dashboard.close()
    assert dashboard.state.committed == 3
    assert dashboard.summary.startswith("Dashboard step3: running, ")


def test_values_without_a_widget_keep_their_text(capsys, monkeypatch):
    """Without the notebook packages a job prints its text."""
    monkeypatch.setattr(display, "maker", lambda value: None)
    assert display.shown(42) is None
    assert capsys.readouterr().out == "42\n"
    assert display.bundle(42, None) == {"text/plain": "42"}


NOTEBOOK = """
from types import SimpleNamespace
from hoodie_nb.events import EventLog
from hoodie_nb.lab.widgets.dashboard import Dashboard
job = SimpleNamespace(events=EventLog())
job.events.emit("job_started", pipeline="step2", tasks=1)
Dashboard(job)
"""


def test_a_notebook_keeps_the_last_picture():
    """The output of the cell that showed the dashboard is replaced once, when the job has ended."""
    cells = [NOTEBOOK, "1", 'job.events.emit("job_stopped", why="")']
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    kept = []
    client = NotebookClient(
        made,
        kernel_name="python3",
        on_cell_executed=lambda **_: kept.append(dict(made.cells[0].outputs[0].data)),
    )
    client.execute()
    texts = [data["text/plain"] for data in kept]
    assert texts == [f"<Dashboard step2: {s}, 0 rows in 0 commits>" for s in STATES]
    assert kept[0]["image/png"] == kept[1]["image/png"] != kept[2]["image/png"]
    alternative = made.cells[0].outputs[0].metadata["image/png"]["alt"]
    assert alternative == "Dashboard step2: stopped, 0 rows in 0 commits"


def test_a_button_shows_all_facts_as_text():
    """What a picture says when the mouse is over it is also in a list, which the keyboard opens."""
    replay = Replay(recorded("step3"))
    assert replay.children[-1].value == ""
    replay.as_text.value = True
    shown = replay.children[-1].value
    drawn = "".join(text for _, _, text in replay.pictures.placed())
    titles = re.findall(r"<title>(.*?)</title>", drawn)
    assert len(titles) > 20 and all(f"<li>{title}</li>" in shown for title in titles)
    assert shown.count("<li>") == len(titles) + drawn.count("aria-label")
    replay.as_text.value = False
    assert replay.children[-1].value == ""


# --- Replay --------------------------------------------------------------------------------------


def test_a_replay_starts_at_the_end():
    """A notebook saves the whole run of a replay."""
    replay = Replay(recorded())
    assert replay.state.committed == 3
    assert replay._play.value == replay.duration_ms  # the page sets the slider to it
    replay.go(0)
    assert (replay._play.value, replay._slider.value) == (0, 0)
    replay.go(replay.duration_ms)
    assert set(replay._repr_mimebundle_()) == {"text/plain", "image/png", VIEW}


def test_a_replay_is_the_same_forward_and_backward():
    """At a given moment a run looks the same, whether it is reached forward or backward."""
    replay = Replay(recorded())
    middle = replay.duration_ms // 2
    replay.go(middle)
    from_the_end = replay.pictures.shown("instants"), replay.state.event_count
    replay.go(0)
    replay.go(middle)
    assert (replay.pictures.shown("instants"), replay.state.event_count) == from_the_end


def test_a_replay_steps_from_event_to_event():
    """Each step shows at least one more event, and `back` hides it again."""
    replay = Replay(recorded())
    replay.go(0)
    seen = [replay.state.event_count]
    while replay.position_ms < replay.duration_ms:
        replay.step()
        seen.append(replay.state.event_count)
    assert seen == sorted(set(seen)) and seen[-1] == len(recorded())
    replay.back()
    assert replay.state.event_count == seen[-2]


def test_a_replay_at_its_end_plays_from_the_start():
    """`play` after the last event shows the run again."""
    replay = Replay(recorded())
    replay.play()
    assert replay.position_ms == 0 and replay._play.playing


@pytest.mark.parametrize("name", ["step2", "step3"])
def test_a_replay_knows_its_pipeline(name):
    """The pipeline of events that do not name it is derived from their kinds."""
    assert Replay(recorded(name)).summary.startswith(f"Replay {name}: ")


def test_an_empty_recording_is_refused():
    """An empty recording is refused with a hint."""
    with pytest.raises(hn.InvalidConfig, match=r"job\.events\.records"):
        Replay([])


# --- a real job ----------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_stream_is_followed_to_its_end(spark, tmp_path):
    """The dashboard of a Spark stream ends with all its commits and all its input."""
    table = hn.Table.create(
        tmp_path / "board",
        schema=hn.flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
    )
    stream = hn.flights.stream(spark, days=2, path=tmp_path / "source")
    checkpoint = str(tmp_path / "checkpoint")
    job = hn.write_stream(stream, table, checkpoint=checkpoint, trigger="available_now")
    bundle = job._repr_mimebundle_()
    job.wait()
    dashboard = job._view
    assert set(bundle) == {"text/plain", "image/png", VIEW}
    assert not dashboard.follower.alive
    assert dashboard.state.committed == len(table.history())
    assert dashboard.state.pipeline == "direct"
    assert "100% of the input" in dashboard.pictures.shown("head")
