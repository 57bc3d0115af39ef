"""Savepoints and archiving: nobody sees orphans, nobody misses rows, and savepoints can go."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import FEW, active, archive_elsewhere, archived, list_history, log_elsewhere, plant
from tables import Model, hudi_rows, tree, upgrade, without_meta
from test_clean_plan import make, upsert

from hoodie_nb import Table, failpoints
from hoodie_nb.errors import InvalidConfig, InvalidTable

OFF = {"hoodie.archive.automatic": "false", "hoodie.clean.automatic": "false"}


def write(table: Table, model: Model, number: int, *keys: int) -> None:
    """Upsert into the table and the model; all readers must agree."""
    upsert(table, number, [*keys])
    model.upsert([{"id": f"k{k}", "p": "ab"[k % 2], "ts": number} for k in keys])
    agree(table, model)


def agree(table: Table, model: Model) -> None:
    """Compare both readers, and a new process, with the model."""
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == model.snapshot()
    assert without_meta(Table.open(table.path).to_arrow()) == model.snapshot()


def test_a_savepoint_of_the_first_commit_shows_no_orphan(tmp_path: Path) -> None:
    """After an archiving it may be saved, and deleted: the timeline begins with it as before."""
    table, model = make(tmp_path / "t", **FEW), Model()
    for number in range(6):
        write(table, model, number, 0, 1)
    assert archived(table.path)
    first = active(table.path)[0]
    orphan = plant(table.path, first)
    table.savepoint(first)
    agree(table, model)
    write(table, model, 6, 3)
    (finding,) = table.fsck()
    assert str(orphan.relative_to(table.path)) in str(finding)
    table.delete_savepoint(first)
    for number in range(7, 12):
        write(table, model, number, 0)
    assert not orphan.exists() and table.fsck() == []


def test_orphans_of_every_age_around_a_savepoint(tmp_path: Path) -> None:
    """Archiving before it, its deletion and archiving after it never show one, and delete all."""
    table, model, orphans = make(tmp_path / "t", **FEW), Model(), []
    for number in range(14):
        write(table, model, number, 0, number)
        orphans.append(plant(table.path, active(table.path)[-1]))
        if number in (1, 9):
            saved = table.savepoint()
        agree(table, model)
        if number in (7, 11):
            table.delete_savepoint(saved)
            agree(table, model)
    assert len(archived(table.path)) > 8
    first = active(table.path)[0]
    assert [o.exists() for o in orphans] == [o.stem[-17:] > first for o in orphans]
    assert len(table.fsck()) == sum(o.exists() for o in orphans) < 4


@pytest.mark.parametrize("version", [6, 8])
@pytest.mark.parametrize("saved", [1, 2])
def test_a_table_that_was_archived_beyond_a_savepoint_is_refused(
    tmp_path: Path, version: int, saved: int
) -> None:
    """By every action, until Hudi deletes the savepoints and archives; then no row is missing."""
    table, model = make(tmp_path / "t", **OFF), Model()
    for number in range(6):
        write(table, model, number, number, 9)
    times = active(table.path)
    for time17 in times[:saved]:
        table.savepoint(time17)
    archive_elsewhere(table.path, times[2], times[3])
    if version == 8:
        upgrade(table.path)
        in_layout_2(table.path, times[2], times[3])
    before = tree(table.path)
    for use in (
        Table.to_arrow,
        Table.file_groups,
        Table.clean,
        Table.archive,
        lambda t: upsert(t, 9, [9]),
        lambda t: t.delete_savepoint(times[0]),
        lambda t: t.restore(times[4]),
        lambda t: t.changes(since=times[4]),
    ):
        words = rf"up to {times[3]} were archived, but {times[0]} .*let Hudi archive"
        with pytest.raises(InvalidTable, match=words):
            use(Table.open(table.path))
    assert tree(table.path) == before
    (finding,) = Table.open(table.path).fsck()
    assert "let Hudi archive" in finding.what
    for file in Path(table.path).rglob("*.savepoint*"):
        file.unlink()
    archive_elsewhere(table.path, *times[:2])
    if version == 8:
        in_layout_2(table.path, *times[:4])
    agree(table, model)
    assert Table.open(table.path).fsck() == []


def in_layout_2(root: str, *times: str) -> None:
    """Let the archive be in the other layout, with these commits and a clean after them."""
    Path(root, ".hoodie/archived/.commits_.archive.1_1-0-1").unlink()
    history = Path(root, ".hoodie/timeline/history")
    history.mkdir(parents=True, exist_ok=True)
    name = f"{times[0]}_{int(times[-1]) + 1}_0.parquet"
    found = pa.table({"instantTime": [*times, str(int(times[-1]) + 1)]})
    kinds = [*["commit"] * len(times), "clean"]
    pq.write_table(found.append_column("action", pa.array(kinds)), history / name)
    list_history(root, name)


def test_commits_that_a_crash_left_on_the_timeline_are_not_archived(tmp_path: Path) -> None:
    """The archive has them already: the first may be saved, and no orphan after it appears."""
    table, model = make(tmp_path / "t", **OFF), Model()
    for number in range(4):
        write(table, model, number, 0, 1)
    times = active(table.path)
    log_elsewhere(table.path, *times[:3])
    plant(table.path, times[0])
    table.savepoint(times[0])
    agree(table, model)
    table.delete_savepoint(times[0])


def test_a_damaged_archive_is_no_guess(tmp_path: Path) -> None:
    """Whether commits after the savepoint are in it is not known: the error names the file."""
    table, model = make(tmp_path / "t", **OFF), Model()
    for number in range(4):
        write(table, model, number, 0, 1)
    times = active(table.path)
    folder = Path(table.path, ".hoodie/archived")
    folder.mkdir(exist_ok=True)
    log = folder / ".commits_.archive.1_1-0-1"
    log.write_bytes(b"#HUDI#?")
    agree(table, model)
    Path(table.path, f".hoodie/{times[0]}.savepoint").touch()
    for action in (Table.to_arrow, lambda t: upsert(t, 5, [0])):
        with pytest.raises(InvalidTable, match=f"archive.1_1-0-1 cannot.* savepoint {times[0]}: "):
            action(Table.open(table.path))
    log.unlink()
    agree(table, model)


@pytest.mark.parametrize("version", [6, 8, 9])
def test_commits_that_are_archived_but_still_there_are_not_undone(
    tmp_path: Path, version: int
) -> None:
    """A crash left them on the timeline: undone, they would count as archived for ever."""
    table, model = make(tmp_path / "t", version, **FEW, **OFF), Model()
    for number in range(6):
        write(table, model, number, 0, 1, number)
    times = active(table.path)
    failpoints.arm("archive.log.post=raise:EIO")
    with pytest.raises(OSError):
        table.archive()
    failpoints.arm("")
    assert active(table.path) == times and archived(table.path)
    orphan = plant(table.path, times[1])
    table.savepoint(times[1])
    for target in times[:2]:
        with pytest.raises(InvalidConfig, match=r"archived.*table\.archive\(\)"):
            table.restore(target)
    agree(table, model)
    table.delete_savepoint(times[1])
    table.archive()
    assert {*archived(table.path)}.isdisjoint(active(table.path)) and not orphan.exists()
    table.restore(active(table.path)[0])
    for number in range(10, 16):
        upsert(table, number, [0, 1])
    table.archive()
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []
