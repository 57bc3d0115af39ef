"""The command line for a table's maintenance: what it prints, what it changes, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb.__main__ import main


@pytest.fixture
def table(tmp_path: Path) -> hn.Table:
    """Return a table of four commits, each of which rewrites its only file."""
    made = hn.Table.create(tmp_path / "t", schema=pa.schema([("k", pa.string())]), record_key="k")
    for number in range(4):
        made.upsert(pa.table({"k": ["same", f"new{number}"]}))
    return made


def files(table: hn.Table) -> list[str]:
    """Return the names of all base files, whether a snapshot reads them or not."""
    return sorted(path.name for path in Path(table.path).rglob("*.parquet"))


def test_history_lists_the_last_commits(table, capsys):
    """Each commit is a line with its counts; `--last` limits them."""
    times = table.history()["requested_time"].tolist()
    assert main(["history", table.path]) == 0
    printed = capsys.readouterr().out
    assert [time for time in times if time in printed] == times
    assert main(["history", table.path, "--last", "1"]) == 0
    printed = capsys.readouterr().out
    assert times[-1] in printed and times[-2] not in printed


def test_other_programs_read_json(table, capsys):
    """`--json` prints what is there as an array, with the exit code of the text."""

    def printed(*command: str, code: int = 0) -> list[dict]:
        assert main([*command, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    rows = printed("history", table.path, "--last", "2")
    assert rows == table.history().tail(2).to_dict("records")
    assert printed("savepoint", table.path, "--list") == printed("fsck", table.path) == []
    (saved,) = printed("savepoint", table.path, "--comment", "month end")
    assert (saved["requested_time"], saved["comment"]) == (rows[-1]["requested_time"], "month end")
    assert {"what", "state", "fix"} <= printed("doctor")[0].keys()
    Path(table.path, ".hoodie", "29990101000000000.commit.requested").touch()
    (finding,) = printed("fsck", table.path, code=1)
    assert finding["at_stake"] and finding["fix"] and finding["repaired"] == ""


def test_a_dry_run_of_clean_lists_the_files_and_keeps_them(table, capsys):
    """The files that are listed are those that a clean then deletes."""
    before = files(table)
    assert main(["clean", table.path, "--dry-run", "--commits", "1"]) == 0
    *listed, summary = capsys.readouterr().out.splitlines()
    assert files(table) == before and "2 files to delete" in summary
    assert main(["clean", table.path, "--commits", "1"]) == 0
    assert "2 files deleted" in capsys.readouterr().out
    assert sorted(set(before) - set(files(table))) == sorted(listed)
    assert len(table.to_arrow()) == 5 and table.fsck() == []


def test_clean_takes_one_retention_only(table, capsys):
    """Two retentions are an invalid command line, and a number below one is an error."""
    with pytest.raises(SystemExit) as end:
        main(["clean", table.path, "--commits", "1", "--hours", "1"])
    assert end.value.code == 2 and "not allowed with" in capsys.readouterr().err
    assert main(["clean", table.path, "--commits", "0"]) == 1
    assert "InvalidConfig" in capsys.readouterr().err and len(files(table)) == 4


def test_a_dry_run_of_archive_lists_the_instants_and_keeps_them(table, capsys):
    """What is listed is what is then archived, until the least number of commits stays."""
    few = {"hoodie.keep.min.commits": 2, "hoodie.clean.commits.retained": 1}
    keys = {"schema": table.schema, "record_key": "k", "if_exists": "open"}
    table = hn.Table.create(table.path, options=few, **keys)
    before = table.history()["requested_time"].tolist()
    assert main(["archive", table.path, "--dry-run"]) == 0
    *listed, summary = capsys.readouterr().out.splitlines()
    assert (
        listed == [f"{time} commit" for time in before[:2]] and "2 instants to archive" in summary
    )
    assert table.history()["requested_time"].tolist() == before
    assert main(["archive", table.path]) == 0
    assert f"2 instants archived, the timeline starts at {before[2]}" in capsys.readouterr().out
    assert table.history()["requested_time"].tolist() == before[2:]
    assert len(table.to_arrow()) == 5 and table.fsck() == []
    assert table.archive().instants == () and before[2] in table.archive()._repr_html_()


def test_savepoints_are_created_listed_and_deleted(table, capsys):
    """Each form of the command lists the savepoints that exist after it."""
    first, *_, last = table.history()["requested_time"]
    assert main(["savepoint", table.path, "--list"]) == 0
    assert capsys.readouterr().out == "no savepoints\n"
    assert main(["savepoint", table.path, "--comment", "month end"]) == 0
    assert main(["savepoint", table.path, "--commit", first]) == 0
    printed = capsys.readouterr().out
    assert "month end" in printed and [first in printed, last in printed] == [True, True]
    assert main(["savepoint", table.path, "--delete", first]) == 0
    assert list(table.savepoints()["requested_time"]) == [last]
    assert main(["savepoint", table.path, "--delete", first]) == 1
    assert "has no savepoint" in capsys.readouterr().err


def test_a_restore_prints_its_plan_and_undoes_commits(table, capsys):
    """With `--dry-run` the commits are listed and stay; without it they are undone."""
    first, second, third, fourth = table.history()["requested_time"]
    before = files(table)
    assert main(["restore", table.path, "--to", second, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert third in printed and fourth in printed and first not in printed
    assert "2 commits to undo, 2 files to delete" in printed and files(table) == before
    assert main(["restore", table.path, "--to", second]) == 0
    assert "2 commits undone, 2 files deleted" in capsys.readouterr().out
    assert list(table.history()["requested_time"]) == [first, second]
    assert sorted(table.to_pandas()["k"]) == ["new0", "new1", "same"]
    assert main(["restore", table.path, "--to", second]) == 1
    assert "nothing to undo" in capsys.readouterr().err
