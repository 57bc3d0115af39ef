"""Events of running Spark tasks reach the driver during the run, each once, without blocking."""

import ast
import json
import pickle
import re
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from test_stream import board_table, same_as_board

import hoodie_nb as hn
from hoodie_nb import events as events_module
from hoodie_nb.events import EventLog
from hoodie_nb.on_spark.task_events import Receiver, Sender, as_text

TASKS = {"operator_progress", "buffer_level", "buffer_flushed", "operator_ran", "file_written"}
TINY = {"batch_size": "32 KB", "task_max_size": "256 KB", "trigger": "available_now"}
ON_TASKS = {"pipeline": "step3", "placement": "executors"}


def text(name="1.0", kind="buffer_flushed", **values):
    """Return an event as a task would send it."""
    return as_text(name, kind, values)


@pytest.fixture
def log():
    """A log whose `complete` is set once the event `last` is in it."""
    made, made_heard = EventLog(), threading.Event()
    made.listen(lambda event: made_heard.set() if event.kind == "last" else None)
    made.complete = made_heard
    yield made


@pytest.fixture
def receiver(log):
    """A receiver on this machine."""
    made = Receiver(log, "127.0.0.1")
    yield made
    made.close()


def kinds(log):
    """Return the kinds that are in the log."""
    return [event.kind for event in log.records()]


def test_what_a_task_sends_is_in_the_log_once(log, receiver):
    """An event arrives by datagram at once; the copy at the task's end adds nothing."""
    with receiver.run() as sender:
        sender = pickle.loads(pickle.dumps(sender))  # as it travels to a task
        sender.send(text("1.0", rows=3))
        sender.send(text("1.1", "last"))
        sender.flush()
        assert log.complete.wait(60)
        for name in ("1.0", "1.1", "1.2"):
            receiver.add(text(name, rows=3))
    assert kinds(log) == ["buffer_flushed", "last", "buffer_flushed"]
    assert log.records()[0].values == {"rows": 3}


def test_a_forged_datagram_changes_nothing(log, receiver):
    """Datagrams without the token, truncated, huge or not text are ignored."""
    with receiver.run() as sender, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
        there = (sender.host, sender.port)
        good, huge = text(), text(why="x" * 9000)
        wrong = Sender(*there, "0" * len(sender.token))
        wrong.send(good)  # the first goes at once
        for forged in (b"", b"\n", good.encode(), f"\n{good}".encode(), b"\xff" * 100):
            forger.sendto(forged, there)
        for malformed in ("[]", "1", "{", '["1", "k", "no time", {}]', '["1", "k", 1, 5]', huge):
            forger.sendto(f"{sender.token}\n{malformed}".encode(), there)
        sender.send(huge)
        sender.send(text("1.1", "last"))
        sender.flush()
        assert log.complete.wait(60)
    assert kinds(log) == ["last"]


def test_events_of_an_ended_run_are_ignored(log, receiver):
    """Events of a task that outlives its write are ignored, also by the next write."""
    with receiver.run() as old:
        pass
    with receiver.run() as new:
        old.send(text("1.0"))
        new.send(text("1.0", "last"))
        assert log.complete.wait(60)
    assert kinds(log) == ["last"]


def test_a_flood_is_few_datagrams():
    """A task sends twenty datagrams a second, ten more at first, none above 8 KB."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.bind(("127.0.0.1", 0))
        there.settimeout(60)
        sender, began = Sender(*there.getsockname(), "token"), time.monotonic()
        for number in range(10_000):
            sender.send(text(f"1.{number}"))
        most = 10 + 20 * (time.monotonic() - began)
        sender.flush()
        sender.send(text("1.10000", "last"))
        sender.flush()
        came = [there.recv(1 << 16)]
        while b"last" not in came[-1]:
            came.append(there.recv(1 << 16))
    assert len(came) <= most + 2  # and the two requested ones
    assert 4096 < max(len(datagram) for datagram in came) <= 8192


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_without_a_socket_events_arrive_at_the_end(log, host):
    """With an address of another host, only the tasks' results carry the events."""
    receiver = Receiver(log, host)
    with receiver.run() as sender:
        sender.send(text())
        receiver.add(text("1.0", "last"))
    receiver.close()
    assert kinds(log) == ["last"]


def test_a_buffer_reports_its_largest_buckets(tmp_path):
    """The level event lists at most sixteen buckets, by size, and the last one is empty."""
    from hoodie_nb.local.batch import write_arrow

    table, log = board_table(tmp_path / "board"), EventLog()
    write_arrow(table._handle, hn.flights.event_table(days=20), "upsert", log)
    *_, full, empty = (event.values for event in log.records("buffer_level"))
    sizes = [size for _, _, size in full["buckets"]]
    assert len(sizes) == 16 and sizes == sorted(sizes, reverse=True)
    assert sum(sizes) < full["bytes"] <= full["limit_bytes"]
    assert (empty["bytes"], empty["buckets"]) == (0, [])
    last = [event.values for event in log.records("operator_progress")]
    assert [(v["operator"], v["rows"]) for v in last[-2:]] == [
        ("FileIdAssigner", hn.flights.event_table(days=20).num_rows),
        ("BucketWriter", hn.flights.event_table(days=20).num_rows),
    ]


# --- on Spark ----------------------------------------------------------------------------------


def stream_of_one_batch(spark, folder, *, live=True):
    """Stream ten days as one batch; return the job and the events that arrived live."""
    table = board_table(folder / "board")
    stream = hn.flights.stream(spark, days=10, path=folder / "source", pace=1000)
    tracker, early = spark.sparkContext.statusTracker(), Counter()

    def listen(event):
        live = threading.current_thread().name == "hoodie-events"
        early[event.kind] += live and bool(tracker.getActiveJobsIds())

    job = hn.write_stream(stream, table, checkpoint=str(folder / "ck"), **TINY, **ON_TASKS)
    if not live:
        job._watched.live.close()
    job.events.listen(listen)
    job.wait(300)
    same_as_board(table, 10)
    return job, +early


def outcome(job):
    """Return the events of the tasks without the values that differ from run to run."""
    events = (e for e in job.events.records() if e.kind in ("operator_ran", "file_written"))
    names = ("operator", "task", "partition", "rows")
    return Counter((e.kind, *(e.values.get(name) for name in names)) for e in events)


@pytest.mark.spark
def test_events_of_running_tasks_reach_the_driver(spark, tmp_path):
    """Progress, buffer levels and flushes arrive before the Spark job ends, each once."""
    job, early = stream_of_one_batch(spark, tmp_path)
    assert {"operator_progress", "buffer_level", "buffer_flushed"} <= early.keys()
    events = job.events.records()
    ended = [event.kind for event in events].index("batch_ended")
    assert not [event for event in events[ended:] if event.kind in TASKS]
    once = Counter((e.kind, e.at_ms, json.dumps(e.values)) for e in events if e.kind in TASKS)
    assert max(once.values()) == 1
    rows = hn.flights.event_table(days=10).num_rows
    for operator in ("FileIdAssigner", "BucketWriter"):
        ran = [e.values for e in events if e.kind == "operator_ran"]
        assert sum(v["rows"] for v in ran if v["operator"] == operator) == rows
    flushed = sum(e.values["rows"] for e in events if e.kind == "buffer_flushed")
    assert 0 < flushed <= rows
    seen = {}
    for event in job.events.records("operator_progress"):
        who = (event.values["operator"], event.values["task"])
        assert seen.get(who, 0) <= event.values["rows"] and event.values["waiting"] >= 0
        seen[who] = event.values["rows"]


@pytest.mark.spark
def test_a_lost_channel_only_delays_the_events(spark, tmp_path):
    """With a dead receiver the write succeeds and all events come when the tasks end."""
    live, _ = stream_of_one_batch(spark, tmp_path / "live")
    dead, early = stream_of_one_batch(spark, tmp_path / "dead", live=False)
    assert outcome(dead) == outcome(live)
    assert not early


# --- the list of kinds ---------------------------------------------------------------------------


def emitted_kinds():
    """Return every kind of event that the library's code emits."""
    for path in Path(events_module.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search(r"emit(_end)?$", ast.unparse(node.func)):
                for part in ast.walk(node.args[0]) if node.args else ():
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def test_the_list_of_kinds_is_complete():
    """The docstring of `events` lists exactly the kinds that are emitted."""
    rows = re.findall(r"^\| (`.+?) \|", events_module.__doc__, re.M)
    listed = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} - {"commit_interval"}
    emitted = {kind for kind in emitted_kinds() if "_" in kind}
    assert listed == emitted
