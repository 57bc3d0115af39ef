"""The events of jobs and tables in Python's logging."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb import events
from hoodie_nb.events import EventLog, log_events

ROWS = pa.table({"id": [1, 2], "v": [3, 4]})
SPEAKS = "from hoodie_nb.events import EventLog, log_events; log = EventLog(); "
SPEAKS += "log_events(log, 't'); log.emit('clean_postponed', why='a full disk'); "
SPEAKS += "log.listen(lambda event: 1 / 0); log.emit('job_failed', error='OSError')"


def board(folder: Path) -> hn.Table:
    """Return a new table."""
    return hn.Table.create(folder / "board", schema=ROWS.schema, record_key="id")


def test_commits_are_logged_one_line_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At INFO there is a line per commit, with table, instant and rows; at DEBUG there are more."""
    table = board(tmp_path)
    with caplog.at_level(logging.INFO, "hoodie_nb"):
        commit = table.upsert(ROWS)
    (line,) = caplog.messages
    assert commit is not None
    assert line.startswith(f"board: instant_committed instant={commit.requested_time} ")
    assert "inserts=2 " in line and "\n" not in line
    with caplog.at_level(logging.DEBUG, "hoodie_nb"):
        table.upsert(ROWS)
    assert len(caplog.messages) > 5


def test_each_area_has_its_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A level that is set for one area shows its details, and nothing of the others'."""
    table = board(tmp_path)
    with caplog.at_level(logging.DEBUG, "hoodie_nb.index"):
        table.upsert(ROWS)
    assert {record.name for record in caplog.records} == {"hoodie_nb.index"}
    assert any(line.startswith("board: index_saved ") for line in caplog.messages)


def test_the_loggers_are_named_after_rooms() -> None:
    """Each logger of an event has the name of a package of the library, which the page lists."""
    names = {f"hoodie_nb.{area}" for area in events._AREAS}
    page = (Path(__file__).parents[2] / "docs" / "logging.md").read_text()
    for name in names:
        assert importlib.util.find_spec(name) is not None and f"| `{name}` |" in page, name


def test_a_clean_is_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A clean is logged at INFO by the services' logger."""
    table = board(tmp_path)
    for _ in range(3):
        table.upsert(ROWS)
    with caplog.at_level(logging.INFO, "hoodie_nb"):
        table.clean(commits=1)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("hoodie_nb.services", "INFO")
    assert record.getMessage().startswith("board: files_cleaned ")


def test_a_turn_is_news_of_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    """A stream that has the table again after other processes is logged by the streams' logger."""
    log = EventLog()
    log_events(log, "board")
    with caplog.at_level(logging.INFO, "hoodie_nb"):
        log.emit("turn_taken", seconds=1.5)
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("hoodie_nb.stream", "INFO")
    ]


@pytest.mark.parametrize(
    "kind", ["clean_postponed", "settling_postponed", "commit_retried", "job_restarted"]
)
def test_what_did_not_work_at_once_is_a_warning(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is postponed, retried or restarted is a warning in one line, whatever its text is."""
    log = EventLog()
    log_events(log, "t")
    log.emit(kind, why="a full disk\nin two lines")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"t: {kind} why=a full disk in two lines"


def test_nothing_is_printed_unless_a_program_sets_logging_up() -> None:
    """Warnings, and a failing listener, print nothing by default; with basicConfig they do."""
    for setup, printed in (("", False), ("import logging; logging.basicConfig(); ", True)):
        done = subprocess.run([sys.executable, "-c", setup + SPEAKS], capture_output=True)
        assert done.returncode == 0
        assert (b"clean_postponed" in done.stderr) == printed
        assert bool(done.stdout + done.stderr) == printed


def test_a_level_that_is_off_formats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The values of an event become text only if its line is logged."""

    class Value:
        texts = 0

        def __str__(self) -> str:
            self.texts += 1
            return "text"

    log, value = EventLog(), Value()
    log_events(log, "t")
    with caplog.at_level(logging.INFO, "hoodie_nb"):
        log.emit("buffer_level", value=value)
    assert value.texts == 0 and caplog.messages == []
    with caplog.at_level(logging.DEBUG, "hoodie_nb"):
        log.emit("buffer_level", value=value)
    assert value.texts == 1 and caplog.messages == ["t: buffer_level value=text"]
