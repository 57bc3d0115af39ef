"""The demo's parts: progress line, comparison, warehouse, command line; `test_kills` runs it."""

from __future__ import annotations

import io
import re
import signal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb.__main__ import main, parser
from hoodie_nb.events import Event, EventLog
from hoodie_nb.lab.experiments import flights
from hoodie_nb.programs import verify
from hoodie_nb.programs.demo import (
    DemoSettings,
    _print_summary,
    _save_replay,
    delivery_ends,
    prepare,
)
from hoodie_nb.programs.terminal import Progress, Screen, StopRequest
from hoodie_nb.programs.verify import differences, read_with_hudi_rs

ENDS = [100, 400, 1000]
INSTANT = "20260115093012345"


@pytest.fixture(scope="module")
def board() -> pd.DataFrame:
    """Return the board of one day."""
    return flights.board(days=1)


def arrow(board: pd.DataFrame) -> pa.Table:
    """Return the board as a reader would."""
    return pa.Table.from_pandas(board, flights.SCHEMA)


def make_events(*events: tuple) -> list[Event]:
    """Return events from (kind, at_ms, values)."""
    return [Event(kind, at_ms, values) for kind, at_ms, values in events]


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize(
    ("kept", "shown"), [(2, "5 commits (2 now, 3 archived)"), (9, "5 commits (2 now)")]
)
def test_the_last_lines_count_archived_commits_too(tmp_path, kept, shown):
    """The summary counts all commits of the table, and says how many of them are archived."""
    options = {"hoodie.keep.min.commits": kept, "hoodie.clean.commits.retained": 1}
    options |= {"hoodie.keep.max.commits": 10}
    schema = pa.schema({"k": pa.string()})
    table = hn.Table.create(tmp_path / "t", schema=schema, record_key="k", options=options)
    for key in "abcde":
        table.upsert(pa.table({"k": [key]}))
    table.archive()
    events, out = EventLog(), io.StringIO()
    for _ in range(2):
        events.emit("instant_committed")
    _print_summary(DemoSettings(tmp_path), table, events, Screen(out, every_s=5), 0.0)
    assert out.getvalue().startswith(f"{shown}, 1 file of ")


def test_a_demo_saves_a_page_of_its_run(tmp_path):
    """With --replay a page plays the events of the job, and a line says where it is."""
    events, out = EventLog(), io.StringIO()
    events.emit("instant_committed", instant=INSTANT, inserts=7)
    path = parser().parse_args(["demo", "--replay", str(tmp_path / "run.html")]).replay
    _save_replay(path, events, Screen(out, every_s=5))
    assert "7 rows in 1 commit" in path.read_text("utf-8")
    assert out.getvalue() == f"Replay: {path}\n"


# --- the progress line ---------------------------------------------------------------------------


def test_progress_counts_what_the_events_report():
    """The events are those of the ended batches, the rate is the one between their ends."""
    records = make_events(
        ("batch_started", 0, {"batch": 0}),
        ("file_written", 5, {"rows": 90}),
        ("instant_committed", 9, {"instant": INSTANT}),
        ("batch_ended", 10, {"batch": 0}),
        ("batch_started", 11, {"batch": 1}),
        ("instant_rolled_back", 12, {"instant": INSTANT}),
        ("buffer_flushed", 13, {"rows": 200}),
        ("file_written", 1000, {"rows": 200}),
        ("instant_committed", 1009, {"instant": INSTANT}),
        ("batch_ended", 1010, {"batch": 1}),
        ("instant_prepared", 1011, {"instant": INSTANT}),
    )
    progress = Progress.of(records, ENDS)
    assert progress == Progress(400, 1000, 300.0, "prepared (09:30:12.345)", 2, 2, 1, 1)
    assert str(progress) == (
        " 40% 400 events, 300/s, 2 s left · 2 commits, 2 files, 1 flush, 1 rolled back · "
        "instant prepared (09:30:12.345)"
    )


def test_progress_of_a_resumed_stream_counts_the_earlier_batches():
    """A run that starts with batch 2 counts the events of batches 0 and 1 as delivered."""
    progress = Progress.of(make_events(("batch_started", 0, {"batch": 2})), ENDS)
    assert str(progress) == " 40% 400 events · 0 commits, 0 files"


def test_progress_of_nothing():
    """Without events and without files the line is shown, with zeros."""
    assert str(Progress.of([], [])) == "  0% 0 events · 0 commits, 0 files"


def test_the_last_line_has_no_time_left():
    """At the end no remaining time is shown."""
    ended = [("batch_ended", n * 1000, {"batch": n}) for n in range(3)]
    assert (
        str(Progress.of(make_events(*ended), ENDS))
        == "100% 1,000 events, 450/s · 0 commits, 0 files"
    )


def test_a_terminal_shows_one_refreshed_line():
    """On a terminal every change replaces the line, and a final text clears it."""
    out = Terminal()
    screen = Screen(out, every_s=5)
    screen.show("one", 0.0)
    screen.show("two", 0.1)
    screen.show("two", 0.2)
    screen.say("end")
    assert out.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Kend\n"


def test_a_log_gets_plain_lines_at_intervals():
    """Without a terminal, lines are printed at intervals, without control characters."""
    out = io.StringIO()
    screen = Screen(out, every_s=5)
    for second, line in enumerate("abcdefgh"):
        screen.show(line, float(second))
    screen.say("end")
    assert out.getvalue() == "a\nf\nend\n"


def test_the_first_signal_requests_a_stop_and_the_second_interrupts():
    """The first signal waits for the batch, the second does not; the exit code shows which."""
    stop = StopRequest()
    stop.patient = True
    stop(signal.SIGTERM, None)
    assert (stop.signal, stop.exit_code) == (signal.SIGTERM, 143)
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT, None)
    assert stop.exit_code == 130


# --- the comparison ------------------------------------------------------------------------------


def test_equal_rows_in_any_order_do_not_differ(board):
    """The order of rows and of columns does not matter."""
    shuffled = arrow(board.sample(frac=1, random_state=1)).select(flights.SCHEMA.names[::-1])
    assert differences(shuffled, board) == []


def test_a_changed_row_is_reported(board):
    """A changed value is reported with its flight, its column and both values."""
    changed = board.copy()
    changed.loc[3, "status"] = "lost"
    (text,) = differences(arrow(changed), board)
    flight, status = board.loc[3, ["flight_id", "status"]]
    assert text == f"1 row changed: {flight}: status lost, not {status}"


def test_a_null_is_a_change(board):
    """A value that became null is a difference."""
    changed = board.astype({"distance": "Int32"})
    changed.loc[5, "distance"] = pd.NA
    (text,) = differences(arrow(changed), board)
    assert re.search(r"distance None, not \d+$", text)


def test_a_missing_row_is_reported(board):
    """A missing flight is named."""
    (text,) = differences(arrow(board.drop(index=7)), board)
    assert text == f"1 row missing: {board.loc[7, 'flight_id']}"


def test_an_extra_row_is_reported(board):
    """A surplus flight is named, and so is a duplicated one."""
    extra = pd.concat([board, board.loc[[2]].assign(flight_id="2013-01-01 XX1 JFK")])
    assert differences(arrow(extra), board) == ["1 row too many: 2013-01-01 XX1 JFK"]
    twice = pd.concat([board, board.loc[[2]]])
    (text,) = differences(arrow(twice), board)
    assert text == f"1 row there more than once: {board.loc[2, 'flight_id']}"


def test_a_missing_column_is_reported(board):
    """A reader's missing column is reported."""
    assert differences(arrow(board).drop_columns("dest"), board) == ["columns dest are missing"]


def test_many_differences_are_summarised(board):
    """Of many differences three are named and the others counted."""
    (text,) = differences(arrow(board.iloc[5:]), board)
    assert text.startswith("5 rows missing: ")
    assert text.endswith(" and 2 more")


def test_a_failing_reader_is_reported_and_does_not_end_the_check(board, tmp_path):
    """A reader that raises counts as one that differs; its own message is printed."""
    rows, wrong = verify._compared(lambda: read_with_hudi_rs(str(tmp_path)), board)
    assert rows == 0
    assert len(wrong) == 1
    assert re.match(r"\w+: \S", wrong[0])


# --- the warehouse -------------------------------------------------------------------------------


def test_different_settings_are_refused_with_the_fix(tmp_path):
    """Other days or another disorder than those of the warehouse need --fresh."""
    prepare(DemoSettings(warehouse=tmp_path, days=2))
    prepare(DemoSettings(warehouse=tmp_path, days=2, cores=1))
    for other in ({"days": 3}, {"days": 2, "disorder": 0.1}, {"days": 2, "seed": 1}):
        with pytest.raises(hn.InvalidConfig, match=r"contains a demo with .*--fresh"):
            prepare(DemoSettings(warehouse=tmp_path, **other))


def test_fresh_removes_what_the_demo_wrote_and_nothing_else(tmp_path):
    """Table, checkpoint and source are deleted; other files are kept."""
    prepare(DemoSettings(warehouse=tmp_path, days=2))
    for folder in (*DemoSettings(warehouse=tmp_path).folders, tmp_path / "mine"):
        folder.mkdir(parents=True)
    prepare(DemoSettings(warehouse=tmp_path, days=3, fresh=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["_checkpoints", "_demo.json", "mine"]
    assert not any((tmp_path / "_checkpoints").iterdir())


@pytest.mark.parametrize("fresh", [False, True])
def test_a_warehouse_without_the_demos_record_is_left_alone(tmp_path, fresh):
    """If the demo's own record is missing, nothing is used and nothing is removed."""
    precious = tmp_path / "board" / "precious"
    precious.mkdir(parents=True)
    with pytest.raises(hn.InvalidConfig, match="not written by the demo"):
        prepare(DemoSettings(warehouse=tmp_path, days=2, fresh=fresh))
    assert precious.exists()
    assert not (tmp_path / "_demo.json").exists()


def test_a_checkpoint_without_its_table_is_refused(tmp_path):
    """A table that was deleted by hand would be rebuilt with a gap: --fresh is needed."""
    settings = DemoSettings(warehouse=tmp_path, days=2)
    prepare(settings)
    settings.folders[0].mkdir(parents=True)
    with pytest.raises(hn.InvalidConfig, match="start again with --fresh"):
        prepare(settings)


@pytest.mark.parametrize("bad", [{"days": 0}, {"days": 366}, {"disorder": 2.0}, {"cores": 0}])
def test_bad_numbers_change_nothing(tmp_path, bad):
    """A number out of range is refused before anything is written."""
    with pytest.raises(hn.InvalidConfig):
        prepare(DemoSettings(warehouse=tmp_path / "new", **bad))
    assert not (tmp_path / "new").exists()


def test_delivery_ends_are_the_running_total_of_the_files(tmp_path):
    """The files' rows add up to the events of the stream."""
    flights._write_folder(tmp_path / "source", flights._parameters(2))
    ends = delivery_ends(tmp_path / "source")
    assert ends == sorted(ends)
    assert ends[-1] == flights.event_table(days=2).num_rows


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path, board) -> hn.Table:
    """Return a table that holds the board of one day."""
    made = hn.Table.create(
        tmp_path / "board",
        schema=flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
    )
    made.upsert(arrow(board))
    return made


def test_hudi_rs_reads_what_was_written(table, board):
    """The demo's third reader sees the board in a table written in this process."""
    assert differences(read_with_hudi_rs(table.path), board) == []


def test_fsck_of_a_clean_table_exits_with_0(table, capsys):
    """A clean table is reported as clean."""
    assert main(["fsck", table.path]) == 0
    assert capsys.readouterr().out == f"{table.path}: clean\n"


def test_fsck_reports_findings_with_fixes_and_exits_with_1(table, capsys):
    """A truncated base file is found."""
    (path,) = Path(table.path).glob("*/*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["fsck", table.path]) == 1
    out = capsys.readouterr().out
    assert path.name in out
    assert "  fix: restore" in out


def test_fsck_of_a_folder_without_a_table_exits_with_1(tmp_path, capsys):
    """A folder without a table is a finding, too."""
    assert main(["fsck", str(tmp_path)]) == 1
    assert "1 finding\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    ["", "demo", "doctor", "fsck", "history", "clean", "archive", "savepoint", "restore"],
)
def test_every_command_explains_itself(command, capsys):
    """`--help` describes each command and all its options."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m hoodie_nb {command}".rstrip())


def test_the_command_line_has_the_defaults_of_the_settings():
    """The command line and `DemoSettings()` agree."""
    asked = vars(parser().parse_args(["demo"]))
    settings = DemoSettings()
    del asked["run"]
    assert asked == {name: getattr(settings, name) for name in asked}


def test_an_error_is_one_line_and_exits_with_1(tmp_path, capsys):
    """What the library refuses reaches the user without a traceback."""
    assert main(["demo", "--warehouse", str(tmp_path / "w"), "--days", "0"]) == 1
    assert capsys.readouterr().err.startswith("error: InvalidConfig: days=0")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["dance"],
        ["demo", "--days", "many"],
        ["fsck"],
        ["history"],
        ["clean"],
        ["archive"],
        ["savepoint"],
        ["restore", "t"],
    ],
)
def test_an_unknown_command_exits_with_2(wrong, capsys):
    """For a typing error the usage is printed."""
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
