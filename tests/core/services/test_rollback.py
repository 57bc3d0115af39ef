"""Rolling back the newest commit: what it leaves, refuses, and how it ends after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from each_fault import each_fault
from lives import (
    BATCHES,
    COMMITS,
    QUERY,
    assert_at_rest,
    assert_finished,
    assert_whole_prefix,
    commits,
    fingerprint,
    live,
    make,
    opened,
)
from tables import (
    commit_content,
    hudi_rows,
    pending_names,
    timeline_folder,
    timeline_names,
    without_meta,
)
from test_clean_plan import upsert
from test_crash_restore import settled
from test_restore import grown
from test_savepoints import times

from hoodie_nb import Table, failpoints
from hoodie_nb.__main__ import main
from hoodie_nb.api import maintenance
from hoodie_nb.errors import InvalidConfig, InvalidTable, WriteFailed
from hoodie_nb.lock.lock import writing
from hoodie_nb.records.progress import Checkpoint, ProgressRecords
from hoodie_nb.storage.storage import Storage


@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_rollback_is_an_instant_that_hudi_can_read(tmp_path: Path, version: int) -> None:
    """Plan and result have Hudi's fields, and the commit and its files are gone."""
    table = grown(tmp_path / "t", version=version)
    *_, third, fourth = times(table)
    plan = table.rollback(dry_run=True)
    assert times(table)[-1] == fourth and "2 files to delete" in repr(plan)
    done = table.rollback(fourth)
    assert done.files == plan.files and len(done.files) == 2 and fourth in done._repr_html_()
    assert not any(Path(table.path, file).exists() for file in done.files)
    names = [n for n in timeline_names(table.path) if n[:17] >= fourth]
    assert names and all(".rollback" in name for name in names)
    requested, result = (
        commit_content(timeline_folder(table.path) / name)
        for end in (".rollback.requested", ".rollback")
        for name in names
        if name.endswith(end)
    )
    assert requested["instantToRollback"] == {"commitTime": fourth, "action": "commit"}
    assert result["commitsRollback"] == [fourth] and result["totalFilesDeleted"] == 2
    assert times(table)[-1] == third and table.fsck() == []
    assert table.to_arrow()["ts"].to_pylist() == [2, 2]
    assert hudi_rows(table.path) == without_meta(table.to_arrow())


def test_what_a_rollback_refuses(tmp_path: Path) -> None:
    """Each refusal names the cause and the way, and changes nothing."""
    table = grown(tmp_path / "t", 3, **{"hoodie.parquet.small.file.limit": 0})
    first, *_, last = times(table)
    table.savepoint()
    before = timeline_names(table.path)
    for commit, why in ((first, "not the newest.*Table.restore"), (None, "has a savepoint")):
        for dry_run in (True, False):
            with pytest.raises(InvalidConfig, match=why):
                table.rollback(commit, dry_run=dry_run)
    assert timeline_names(table.path) == before
    table.delete_savepoint(last)
    table.bulk_insert([{"id": "k2", "p": "a", "ts": 9}])
    assert table.cluster().requested_time
    with pytest.raises(InvalidConfig, match=r"changed no row.*Table\.restore"):
        table.rollback()


def test_a_rollback_is_refused_if_the_files_before_it_were_cleaned(tmp_path: Path) -> None:
    """Otherwise the rows of the commit before would be gone with those of the newest."""
    table = grown(tmp_path / "t", 3)
    table.clean(versions=1)
    with pytest.raises(InvalidConfig, match="cleaned away"):
        table.rollback()
    assert table.to_arrow()["ts"].to_pylist() == [2, 2] and len(times(table)) == 3


def test_the_first_commit_can_be_undone(tmp_path: Path) -> None:
    """The table is empty then, and can be written again."""
    table = grown(tmp_path / "t", 1)
    table.rollback()
    assert table.to_arrow().num_rows == 0 and table.fsck() == []
    table.upsert([{"id": "k0", "p": "a", "ts": 5}])
    assert table.to_arrow()["ts"].to_pylist() == [5] and len(hudi_rows(table.path)) == 1


def assert_all_or_nothing(source: Path, how: str) -> None:
    """A rollback fails at any operation: it is completed or undone, and the stream goes on."""
    seen = set()
    for root, _ in each_fault(source, Table.rollback, how, at_least=10, raises=OSError):
        assert_whole_prefix(root)
        planned = any(name.endswith(".rollback.requested") for name in timeline_names(root))
        settled(Table(opened(root)))
        assert commits(root) == len(COMMITS) - 1 - planned
        assert_whole_prefix(root)
        assert_at_rest(root)
        live(opened(root), last=len(BATCHES) - 2 if planned else None)
        assert_finished(root)
        seen.add(planned)
    assert True in seen


@pytest.mark.parametrize(
    ("version", "how"),
    [*((6, how) for how in ("before", "after", "torn", "error", "interrupt")), (9, "before")],
)
def test_a_failure_anywhere_in_a_rollback_undoes_all_or_nothing(
    tmp_path: Path, version: int, how: str
) -> None:
    """The next writer completes what was planned, and the stream writes the batch again."""
    source = make(tmp_path / "source", version)
    live(opened(source))
    assert_all_or_nothing(source, how)


def fails(table: Table, point: str) -> Table:
    """Begin a rollback that stops at a failpoint; return the table as a new process sees it."""
    failpoints.arm(f"{point}=raise:EIO")
    try:
        with pytest.raises(WriteFailed, match="Input/output"):
            table.rollback()
    finally:
        failpoints.arm("")
    return Table.open(table.path)


@pytest.mark.parametrize("point", ["restore.rollback.post", "restore.withdrawn.post"])
def test_a_pending_rollback_is_not_followed_by_another_one(tmp_path: Path, point: str) -> None:
    """A call that is repeated after a crash undoes one commit, not two; fsck names the pending."""
    table = grown(tmp_path / "t")
    third = times(table)[-2]
    table = fails(table, point)
    assert all("fsck(repair=True)" in f.fix or "see the finding" in f.fix for f in table.fsck())
    with pytest.raises(InvalidConfig, match=r"was pending .* call again"):
        table.rollback()
    assert times(table)[-1] == third and table.fsck() == []


@pytest.mark.parametrize("version", [6, 9])
def test_an_error_after_a_rollback_is_complete_is_none(tmp_path: Path, version: int) -> None:
    """The commit is undone, so the call returns: if it raised, a second one would undo another."""
    table = grown(tmp_path / "t", version=version)
    *kept, newest = times(table)
    failpoints.arm("rollback.completed.post=raise:EIO")
    try:
        assert table.rollback().commit.requested_time == newest
    finally:
        failpoints.arm("")
    assert times(table) == kept
    table.upsert([{"id": "k0", "p": "a", "ts": 9}])
    assert table.fsck() == [] and pending_names(table.path) == []


@pytest.mark.parametrize("point", ["restore.rollback.post", "restore.withdrawn.post"])
def test_the_call_that_a_failed_rollback_names_undoes_no_other_commit(
    tmp_path: Path, point: str
) -> None:
    """Repeated as the error says, by name, it undoes the one commit, or says that it is undone."""
    table = grown(tmp_path / "t")
    *_, third, fourth = times(table)
    failpoints.arm(f"{point}=raise:EIO")
    try:
        with pytest.raises(WriteFailed, match=rf'table\.rollback\("{fourth}"\)'):
            table.rollback()
    finally:
        failpoints.arm("")
    with pytest.raises(InvalidConfig, match=f"{fourth} is not a completed commit"):
        table.rollback(fourth)
    table.fsck(repair=True)
    assert times(table)[-1] == third and table.fsck() == []


def test_a_table_without_commits_has_nothing_to_undo(tmp_path: Path) -> None:
    """The refusal names the table, not a commit None."""
    table = Table(opened(make(tmp_path / "t")))
    with pytest.raises(InvalidConfig, match="has no completed commit"):
        table.rollback()


def test_a_pending_rollback_below_a_newer_commit_is_refused(tmp_path: Path) -> None:
    """If another engine has written meanwhile, the error names a cure that works."""
    table = fails(grown(tmp_path / "t"), "restore.rollback.post")
    kept = {f: f.read_bytes() for f in Path(table.path, ".hoodie").glob("*.rollback.*")}
    for file in kept:
        file.unlink()
    table.upsert([{"id": "k0", "p": "a", "ts": 9}])
    for file, content in kept.items():
        file.write_bytes(content)
    table = Table.open(table.path)
    with pytest.raises(InvalidTable, match=r"undone nothing yet\. Delete"):
        table.upsert([{"id": "k0", "p": "a", "ts": 10}])
    for file in kept:
        file.unlink()
    table.upsert([{"id": "k0", "p": "a", "ts": 10}])
    assert sorted(table.to_arrow()["ts"].to_pylist()) == [3, 10] and table.fsck() == []


def test_readers_of_changes_and_streams_know_what_was_undone(tmp_path: Path) -> None:
    """A position in the undone commit is refused, and its batch counts as not in the table."""
    root = make(tmp_path / "t")
    live(opened(root))
    table = Table(opened(root))
    last = times(table)[-1]
    done = table.rollback()
    with pytest.raises(InvalidConfig, match=f"rollback {done.requested_time} has undone"):
        table.changes(since=last)
    progress, number = ProgressRecords(table._handle.storage), len(BATCHES) - 1
    assert progress.entries(QUERY)[-1].instant_time == f"undone by {done.requested_time}"
    there = table._handle.timeline.commits_in_table()
    assert not progress.contains(Checkpoint(QUERY, number, fingerprint(number)), there)


def test_the_command_prints_its_plan_and_undoes_the_commit(tmp_path: Path, capsys) -> None:
    """With `--dry-run` the files are listed and stay; without it they are deleted."""
    table = grown(tmp_path / "t", 2)
    first, second = times(table)
    assert main(["rollback", table.path, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"_{second}.parquet") == 2 and "2 files to delete" in printed
    assert main(["rollback", table.path, "--commit", first]) == 1
    assert "not the newest" in capsys.readouterr().err and len(times(table)) == 2
    assert main(["rollback", table.path]) == 0
    assert "2 files deleted" in capsys.readouterr().out and times(table) == [first]


def test_a_commit_that_came_while_it_waited_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever calls it means the newest commit of then, not that of a writer before it in line."""
    table = grown(tmp_path / "t")
    before = times(table)

    @contextmanager
    def after_another(storage: Storage, **more: Any) -> Iterator[None]:
        upsert(Table.open(table.path), 9, [0, 1])
        with writing(storage, **more):
            yield

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "writing", after_another)
        with pytest.raises(InvalidConfig, match=f"{before[-1]} was the newest .* nothing was"):
            table.rollback()
    assert times(table)[:-1] == before
    assert table.rollback().commit.requested_time > before[-1]
    assert times(table) == before
