"""Restoring: what Hudi reads of it, what it refuses, and what it means for index and readers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from index_truth import index_gaps, plan_of
from lives import opened
from tables import (
    commit_content,
    data_files,
    hudi_rows,
    pending_names,
    timeline_folder,
    timeline_names,
    upgrade,
    without_meta,
)
from test_clean_plan import make, upsert
from test_lock import held_elsewhere
from test_savepoints import TWO, times

from hoodie_nb import Table, failpoints
from hoodie_nb.errors import ConcurrentWriter, InvalidConfig, InvalidTable, WriteFailed
from hoodie_nb.index.lookup import BloomStateIndex
from hoodie_nb.lock.job import JobHold


def grown(path: Path, commits: int = 4, version: int = 6, **options: object) -> Table:
    """Return a table whose n-th commit has the value n in two keys of two partitions."""
    table = make(path, **options)
    for number in range(commits):
        if number == 1 and version != 6:
            upgrade(path, version)
        upsert(table, number, [0, 1])
    return table


def half_restored(table: Table, to: str, point: str = "restore.withdrawn.post") -> Table:
    """Begin a restore that stops at a failpoint; return the table as a new process sees it."""
    failpoints.arm(f"{point}=raise:EIO")
    try:
        with pytest.raises(WriteFailed, match="Input/output"):
            table.restore(to)
    finally:
        failpoints.arm("")
    return Table.open(table.path)


@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_restore_is_an_instant_that_hudi_can_read(tmp_path: Path, version: int) -> None:
    """Plan and result have Hudi's fields, and nothing else remains of the undone commits."""
    table = grown(tmp_path / "t", version=version)
    _, second, third, fourth = times(table)
    before = timeline_names(table.path)
    restored = table.restore(second)
    assert [commit.requested_time for commit in restored.commits] == [fourth, third]
    names = timeline_names(table.path)
    assert [n for n in names if ".restore" not in n] == [n for n in before if n[:17] < third]
    plan, result = (
        commit_content(timeline_folder(table.path) / name)
        for end in (".restore.requested", ".restore")
        for name in names
        if name.endswith(end)
    )
    undone = [{"commitTime": time17, "action": "commit"} for time17 in (fourth, third)]
    assert plan["instantsToRollback"] == result["restoreInstantInfo"] == undone
    assert (plan["version"], plan["savepointToRestoreTimestamp"]) == (2, second)
    assert result["startRestoreTime"] == restored.requested_time
    assert result["instantsToRollback"] == [fourth, third]
    deleted = [
        path.removeprefix(f"file:{table.path}/")
        for records in result["hoodieRestoreMetadata"].values()
        for part in records[0]["partitionMetadata"].values()
        for path in part["successDeleteFiles"]
    ]
    assert sorted(deleted) == list(restored.files)
    assert not data_files(table.path) & {*restored.files} and len(restored.files) == 4
    assert hudi_rows(table.path) == without_meta(table.to_arrow())
    assert table.to_arrow()["ts"].to_pylist() == [1, 1] and table.fsck() == []


def test_a_plan_shows_what_a_restore_does(tmp_path: Path) -> None:
    """A dry run changes nothing and names commits, files and bytes; so does its display."""
    table = grown(tmp_path / "t")
    before = data_files(table.path), timeline_names(table.path)
    plan = table.restore(times(table)[1], dry_run=True)
    assert (data_files(table.path), timeline_names(table.path)) == before
    sizes = sum(Path(table.path, file).stat().st_size for file in plan.files)
    assert plan.size_bytes == sizes and plan.requested_time is None
    assert list(plan.table()["updates"]) == [2, 2]
    assert "2 commits to undo, 4 files to delete" in repr(plan)
    assert f"requested_time=&#x27;{times(table)[3]}" in plan._repr_html_()


def test_what_a_restore_refuses(tmp_path: Path) -> None:
    """Each refusal names the cause and the cure, and changes nothing."""
    table = grown(tmp_path / "t", 6, **TWO)
    first, *_, middle, last = times(table)
    before = timeline_names(table.path), data_files(table.path)
    refusals = {
        str(int(last) + 1): "not a completed commit",
        last: "newest commit .* nothing to undo",
        first: "cleaned away .* the earliest time that can be read is",
    }
    for to, why in refusals.items():
        for dry_run in (True, False):
            with pytest.raises(InvalidConfig, match=why):
                table.restore(to, dry_run=dry_run)
    assert (timeline_names(table.path), data_files(table.path)) == before
    table.savepoint()
    with pytest.raises(InvalidConfig, match=rf"have savepoints \({last}\): delete those"):
        table.restore(middle)
    table.delete_savepoint(last)
    held = [f for f in table.file_groups(as_of=middle)["file_name"] if middle in f]
    lost = next(Path(table.path).rglob(held[0]))
    lost.rename(tmp_path / "lost")
    with pytest.raises(InvalidTable, match=f"{lost.name} is lost"):
        table.restore(middle)
    shutil.move(tmp_path / "lost", lost)
    table.restore(middle)
    assert times(table)[-1] == middle and table.fsck() == []


def test_a_savepoint_keeps_a_target_that_would_be_cleaned(tmp_path: Path) -> None:
    """A restore to a savepoint works after any number of cleans; then it can be deleted."""
    table = make(tmp_path / "t", **TWO)
    upsert(table, 0, [0, 1])
    saved = table.savepoint()
    for number in range(1, 9):
        upsert(table, number, [0, 1])
    table.restore(saved)
    assert hudi_rows(table.path) == without_meta(table.to_arrow())
    assert table.to_arrow()["ts"].to_pylist() == [0, 0]
    for number in range(9, 14):
        upsert(table, number, [0])
    table.delete_savepoint(saved)
    table.clean()
    assert table.fsck() == [] and len(data_files(table.path)) == 3 + 1


@pytest.mark.usefixtures("at_once")
def test_a_restore_beside_a_writer_is_refused(tmp_path: Path) -> None:
    """A job of this process or another process that has the lock is to be stopped first."""
    table = grown(tmp_path / "t")
    to = times(table)[0]
    hold = JobHold(table._handle.storage, "the job j")
    with pytest.raises(ConcurrentWriter, match="the job j: stop it first"):
        table.restore(to)
    hold.release()
    with held_elsewhere(Path(table.path)), pytest.raises(ConcurrentWriter):
        table.restore(to)
    assert len(times(table)) == 4
    table.restore(to)


def test_the_index_forgets_undone_keys_and_finds_deleted_ones(tmp_path: Path) -> None:
    """Keys of undone commits are located nowhere; keys that they deleted are in their files."""
    table = make(tmp_path / "t")
    upsert(table, 0, [0, 2, 4])
    upsert(table, 1, [0])
    to = times(table)[-1]
    upsert(table, 2, [6, 8])
    table.delete(pa.table({"id": ["k0", "k2"], "p": ["a", "a"]}))
    table.restore(to)
    plan = plan_of(table._handle)
    found = BloomStateIndex(plan).locate("a", pa.array([f"k{n}" for n in (0, 2, 4, 6, 8)]))
    (group,) = table.file_groups()["file_id"]
    assert found.to_pylist() == [group] * 3 + [None] * 2
    table._handle.storage.remove(plan.staged, tree=True)
    upsert(table, 3, [2, 6])
    assert index_gaps(table._handle) == []
    rows = {row["id"]: row["ts"] for row in table.to_arrow().to_pylist()}
    assert rows == {"k0": 1, "k2": 3, "k4": 0, "k6": 3}
    assert hudi_rows(table.path) == without_meta(table.to_arrow())


def test_earlier_times_stay_readable_after_cleans_of_undone_commits(tmp_path: Path) -> None:
    """Files that a clean has deleted of commits that are undone now are not missed."""
    table = make(tmp_path / "t", **TWO)
    upsert(table, 0, [0, 1])
    saved = table.savepoint()
    for number in range(1, 6):
        upsert(table, number, [0])
    between = times(table)[-1]
    table.restore(saved)
    upsert(table, 9, [1])
    assert table.to_arrow(as_of=between)["ts"].to_pylist() == [0, 0]
    assert hudi_rows(table.path, between) == without_meta(table.to_arrow(as_of=between))


def test_changes_since_an_undone_commit_are_refused(tmp_path: Path) -> None:
    """Who has read what was undone gets an error with the cure; others get the changes."""
    table = grown(tmp_path / "t")
    first, second, third, fourth = times(table)
    restored = table.restore(second)
    upsert(table, 9, [0])
    for since in (third, fourth, str(int(fourth) + 1)):
        undone = rf"commit {third}, but restore {restored.requested_time} has undone it.*Read the"
        with pytest.raises(InvalidConfig, match=undone):
            table.changes(since=since)
    for since in (second, restored.requested_time):
        found = table.changes(since=since).to_pylist()
        assert [(row["id"], row["ts"], row["_change"]) for row in found] == [("k0", 9, "update")]
    assert table.changes(since=first).num_rows == 2
    assert table.changes(since="earliest").num_rows == 2


def test_a_table_that_is_open_elsewhere_lives_through_a_restore(tmp_path: Path) -> None:
    """An object with cached files and commits reads, checks and writes the restored table."""
    table = grown(tmp_path / "t")
    other = Table(opened(Path(table.path)))
    upsert(other, 4, [0])
    table.restore(times(table)[1])
    assert without_meta(other.to_arrow()) == hudi_rows(table.path)
    assert other.fsck() == [] and not other.clean(dry_run=True).files
    upsert(other, 5, [0])
    assert sorted(other.to_arrow()["ts"].to_pylist()) == [1, 5] and other.fsck() == []
    assert without_meta(table.to_arrow()) == without_meta(other.to_arrow()) == hudi_rows(table.path)


def test_rollbacks_after_the_target_leave_the_timeline(tmp_path: Path) -> None:
    """As in Hudi, rollbacks of writes that failed after the target are removed, older ones stay."""
    table = grown(tmp_path / "t", 1)
    rollbacks = []
    for number in (1, 2):
        upsert(table, number, [0])
        failpoints.arm("coord.commit.pre=raise:EIO")
        try:
            with pytest.raises(Exception, match="rolled back"):
                upsert(table, 9, [0])
        finally:
            failpoints.arm("")
        names = timeline_names(table.path)
        rollbacks.append(max(n[:17] for n in names if n.endswith(".rollback")))
    upsert(table, 3, [0])
    table.restore(times(table)[1])
    left = {name[:17] for name in timeline_names(table.path) if ".rollback" in name}
    assert left == {rollbacks[0]} and table.fsck() == []


# --- restores that are pending --------------------------------------------------------------------


def test_fsck_names_a_pending_restore_and_repair_completes_it(tmp_path: Path) -> None:
    """It is not taken for a lost commit; readers see a state of the past meanwhile."""
    table = grown(tmp_path / "t")
    first, _, third, _ = times(table)
    table = half_restored(table, first)
    found = [str(finding) for finding in table.fsck()]
    assert any("restore inflight is pending" in text for text in found)
    assert all("fsck(repair=True)" in text or "see the finding" in text for text in found)
    assert times(table)[-1] == third and table.to_arrow()["ts"].to_pylist() == [2, 2]
    assert hudi_rows(table.path) == without_meta(table.to_arrow())
    table.fsck(repair=True)
    assert times(table) == [first] and table.fsck() == []
    assert [event.kind for event in table.events.records("table_restored")] == ["table_restored"]


def test_a_pending_restore_whose_plan_is_damaged_is_refused(tmp_path: Path) -> None:
    """The error, of fsck too, names the file and a cure that works."""
    table = grown(tmp_path / "t")
    first = times(table)[0]
    table = half_restored(table, first)
    (plan,) = Path(table.path, ".hoodie").glob("*.restore.requested")
    plan.write_bytes(b"Obj\x01 damaged")
    with pytest.raises(InvalidTable, match=rf"{plan.name} cannot be read.*call Table\.restore"):
        upsert(table, 9, [0])
    assert any("cannot be read" in finding.fix for finding in table.fsck())
    for file in Path(table.path, ".hoodie").glob("*.restore.*"):
        file.unlink()
    table.restore(first)
    assert times(table) == [first] and pending_names(table.path) == [] and table.fsck() == []


def test_a_restore_is_not_completed_under_newer_commits(tmp_path: Path) -> None:
    """If an engine that ignores it has written meanwhile, the error names a cure that works."""
    table = grown(tmp_path / "t")
    first = times(table)[0]
    table = half_restored(table, first, "restore.commit.post")
    kept = {f: f.read_bytes() for f in Path(table.path, ".hoodie").glob("*.restore.*")}
    for file in kept:
        file.unlink()
    upsert(table, 9, [0])
    for file, content in kept.items():
        file.write_bytes(content)
    newest = times(table)[-1]
    for _ in range(2):
        with pytest.raises(
            InvalidTable, match=rf"another engine has since written commit {newest}"
        ):
            upsert(table, 10, [0])
    for file in kept:
        file.unlink()
    table.restore(first)
    assert times(table) == [first] and table.to_arrow()["ts"].to_pylist() == [0, 0]
    assert table.fsck() == [] and hudi_rows(table.path) == without_meta(table.to_arrow())


def test_a_savepoint_that_stopped_our_archiving_is_a_target(tmp_path: Path) -> None:
    """The first commit of an archived timeline can be restored to, and its savepoint deleted."""
    few = {"hoodie.keep.min.commits": 3, "hoodie.keep.max.commits": 4}
    table = make(tmp_path / "t", **TWO, **few)
    for number in range(8):
        upsert(table, number, [0, 1])
    saved = table.savepoint()
    for number in range(8, 16):
        upsert(table, number, [0])
    assert times(table)[0] == saved.requested_time
    assert list(Path(table.path, ".hoodie/archived").iterdir()) != []
    table.restore(saved)
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []
    assert table.to_arrow()["ts"].to_pylist() == [7, 7]
    table.delete_savepoint(saved)
    for number in range(16, 24):
        upsert(table, number, [0])
    assert table.fsck() == [] and hudi_rows(table.path) == without_meta(table.to_arrow())
