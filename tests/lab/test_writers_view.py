"""The other writers of a table in the dashboard: who they are, and when nothing is shown."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from runs import make_events
from s3_server import Proxy, S3Server

from hoodie_nb import Table
from hoodie_nb.errors import StoreFailed
from hoodie_nb.lab.draw.writers import HEIGHT, title, writers
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.dashboard import Dashboard
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.writers import Writer, Writers
from hoodie_nb.programs.lessons import start_program, without_check
from hoodie_nb.storage.object_storage import ObjectStorage

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.string())])
MINE = [{"id": "k", "v": "mine"}]
UPSERT = """
import sys
from hoodie_nb import Table
Table.open(sys.argv[1]).upsert([{"id": "k", "v": "theirs"}])
"""


def make(root: Path | str, **more: object) -> Table:
    """Create a table without rows."""
    return Table.create(root, schema=SCHEMA, record_key="id", table_version=9, **more)


def race(table: Table) -> Dashboard:
    """Write a key while another process writes it; return a dashboard of when both have met."""
    other = start_program(UPSERT, table.path, stop_at="coord.commit.pre")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(table.upsert, MINE)
        while not any(one.ahead for one in table.writers()):
            assert not call.done()
        board = Dashboard(table)
        board.close()
        other.send_signal(signal.SIGCONT)
        call.result()
    other.wait()
    return board


def shown(board: Dashboard) -> list[str]:
    """Return the lines of text in the picture of the writers."""
    root = ElementTree.fromstring(board.pictures.shown("writers"))
    assert float(root.get("height", 0)) == HEIGHT
    return [found.text or "" for found in root.iter() if found.tag.endswith("text")]


@pytest.mark.parametrize("checked", [True, False])
def test_two_processes_race_for_one_key(tmp_path: Path, checked: bool) -> None:
    """The dashboard shows who has the table and who waits, then how the batch fared.

    Without the check, the key is stored twice, and `fsck` says so.
    """
    table = make(tmp_path / "t")
    if checked:
        board = race(table)
    else:
        with without_check():
            board = race(table)
    heading, *_, first, second = shown(board)
    assert heading == "Writers: 1 writes the table, 1 waits in line"
    assert re.fullmatch(r"process \d+ writes the table \(a batch write, since .*", first)
    assert re.fullmatch(r"this process waits \(a batch call, written ahead as \d{17}\)", second)
    after = Dashboard(table)
    counts = "0 fitted, 1 written again" if checked else "1 fitted, 0 written again"
    assert shown(after)[-1] == f"In this process: 1 batch written ahead: {counts}"
    assert after.summary.endswith(
        f"1 commit; nobody writes the table; 1 batch written ahead: {counts}"
    )
    after.close()
    assert table.to_arrow(columns=["id"])["id"].to_pylist() == (["k"] if checked else ["k", "k"])
    values = sorted(table.to_arrow(columns=["v"])["v"].to_pylist())
    assert values == (["mine"] if checked else ["mine", "theirs"])
    assert [one.code for one in table.fsck()] == ([] if checked else ["duplicate-keys"])


def test_nothing_is_shown_of_a_table_with_one_writer(tmp_path: Path) -> None:
    """The dashboard of a job that is alone has no picture of writers, also while it writes."""
    table = make(tmp_path / "t")
    with writing(table._handle.storage):
        board = Dashboard(table)
        board.close()
        assert [one.process for one in board.state.writers.found] == [os.getpid()]
    assert board.pictures.shown("writers") == ""
    assert board.pictures.box.children[-1].layout.display == "none"
    assert "writes" not in board.summary


def test_a_look_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the lock nor a place is locked by who looks, not even for a moment."""
    table = make(tmp_path / "t")
    hold = JobHold(table._handle.storage, "a stream", checkpoint=str(tmp_path / "ck"))

    def flock(*_: object) -> None:
        raise AssertionError("a look locks a file")

    monkeypatch.setattr("fcntl.flock", flock)
    board = Dashboard(table)
    board.close()
    assert [one.state for one in board.state.writers] == ["writes"]
    monkeypatch.undo()
    hold.release()


def test_a_table_without_dashboard_is_not_looked_at(s3_server: S3Server) -> None:
    """A dashboard on a store asks with its first picture, and then each ten seconds at most."""
    asked: list[str] = []
    with Proxy(s3_server) as proxy:
        table = make(s3_server.new_root(), storage_options=proxy.options)
        with writing(ObjectStorage(table.path.replace("s3://", "s3a://"), s3_server.options)):
            proxy.fails = lambda _, method, path: asked.append(f"{method} {path}")
            board = Dashboard(table)
            for _ in range(20):
                board._draw(board.state)
            board.close()
    assert [one.state for one in board.state.writers] == ["writes"]
    assert len(asked) == 3 and all(one.startswith("GET") for one in asked)  # two lists, the lock


def test_a_look_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writers before are shown, and the drawing goes on."""
    board = Dashboard(make(tmp_path / "t"))
    board.close()
    before = board.state.writers

    def fails() -> list[Writer]:
        raise StoreFailed("no answer")

    monkeypatch.setattr(board._others._watch, "look", fails)
    board._others._next_s = 0.0
    board._draw(board.state)
    assert board.state.writers is before and board._others._next_s > 0


def test_many_writers_fit_into_the_picture() -> None:
    """Only the first are drawn; the title counts all, also the dead and a job's turns."""
    waits = [Writer("waits", n, "a batch call") for n in range(2, 9)]
    found = (Writer("writes", 1), *waits, Writer("pauses", 10), Writer("died", 11))
    state = RunState.of(make_events("turn_taken", {"seconds": 1}, "turn_taken", {"seconds": 1}))
    state.writers = Writers(found)
    counts = "1 writes the table, 7 waits in line, 1 between two turns, 1 has died"
    assert title(state) == counts
    drawn = writers(state)
    assert f"{counts}, 6 more are not shown" in drawn
    assert "In this process: the stream gave way 2 times" in drawn
