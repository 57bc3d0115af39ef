"""Savepoints and archiving: nobody sees orphans, nobody misses rows, and savepoints can go."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import FEW, active, archive_elsewhere, archived, list_history, log_elsewhere, plant
from tables import Model, hudi_rows, upgrade, without_meta
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
def test_savepoints_below_commits_that_were_archived_are_not_deleted(
    tmp_path: Path, version: int
) -> None:
    """Of three those two are refused that have archived commits after them; no row is hidden."""
    table, model = make(tmp_path / "t", **OFF), Model()
    for number in range(7):
        upsert(table, number, [number, 9])
        model.upsert([{"id": f"k{k}", "p": "ab"[k % 2], "ts": number} for k in (number, 9)])
    times = active(table.path)
    for at in (0, 2, 5):
        table.savepoint(times[at])
    archive_elsewhere(table.path, times[1], times[3])
    if version == 8:
        upgrade(table.path)
        Path(table.path, ".hoodie/archived/.commits_.archive.1_1-0-1").unlink()
        history = Path(table.path, ".hoodie/timeline/history")
        history.mkdir(parents=True, exist_ok=True)
        found = pa.table({"instantTime": [times[1], times[3], times[6]]})
        found = found.append_column("action", pa.array(["commit", "commit", "clean"]))
        pq.write_table(found, history / f"{times[1]}_{times[6]}_0.parquet")
        list_history(table.path, f"{times[1]}_{times[6]}_0.parquet")
    table = Table.open(table.path)
    orphan = plant(table.path, times[4])
    assert without_meta(table.to_arrow()) == model.snapshot()
    for at in (0, 2):
        with pytest.raises(InvalidConfig, match="let Hudi archive"):
            table.delete_savepoint(times[at])
    table.delete_savepoint(times[5])
    orphan.unlink()
    assert without_meta(table.to_arrow()) == model.snapshot() and table.fsck() == []


@pytest.mark.parametrize("rest", [0, 1, 2])
def test_rows_count_if_only_savepoints_are_older_and_stay(tmp_path: Path, rest: int) -> None:
    """Another engine may have archived everything but saved commits: the rows are there."""
    table = make(tmp_path / "t", **OFF)
    for number in range(5):
        upsert(table, number, [number])
    times, rows = active(table.path), without_meta(table.to_arrow())
    for at in range(rest + 1):
        table.savepoint(times[at])
    archive_elsewhere(table.path, *times[rest + 1 :])
    table = Table.open(table.path)
    assert without_meta(table.to_arrow()) == rows
    upsert(table, 9, [9])
    assert table.to_arrow().num_rows == 6 and table.fsck() == []


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
    """A file that may be archived or an orphan is an error that names it; without one all goes."""
    table, model = make(tmp_path / "t", **OFF), Model()
    for number in range(4):
        write(table, model, number, 0, 1)
    times = active(table.path)
    table.savepoint(times[0])
    folder = Path(table.path, ".hoodie/archived")
    folder.mkdir(exist_ok=True)
    log = folder / ".commits_.archive.1_1-0-1"
    log.write_bytes(b"#HUDI#?")
    table = Table.open(table.path)
    write(table, model, 4, 0)
    orphan = plant(table.path, times[0])
    for action in (Table.to_arrow, lambda t: upsert(t, 5, [0])):
        with pytest.raises(InvalidTable, match=f"archive.1_1-0-1 cannot.* {int(times[0]) + 1} "):
            action(Table.open(table.path))
    orphan.unlink()
    table.delete_savepoint(times[0])
    agree(table, model)
    assert all(a < b for a, b in pairwise(active(table.path)))


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
