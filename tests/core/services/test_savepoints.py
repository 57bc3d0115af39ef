"""Savepoints: what they keep, what Hudi reads in them, and what a crash leaves of them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from each_fault import each_fault
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

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidTable

TWO = {"hoodie.clean.commits.retained": 2}


def times(table: Table) -> list[str]:
    """Return the times of the commits, oldest first."""
    return list(table.history()["requested_time"])


@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_savepoint_is_an_instant_that_hudi_can_read(tmp_path: Path, version: int) -> None:
    """It is at the time of its commit, in Avro, and names the files of the snapshot."""
    table = make(tmp_path / "t")
    upsert(table, 0, [0, 1])
    if version != 6:
        upgrade(table.path, version)
    upsert(table, 1, [0])
    first, second = times(table)
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    made = table.savepoint(second, comment="before the move", user="ada")
    assert (made.requested_time, made.files) == (second, 2) and made.saved_at >= before
    names = [name for name in timeline_names(table.path) if "savepoint" in name]
    assert f"{second}.savepoint.inflight" in names
    (done,) = (name for name in names if name.endswith(".savepoint"))
    assert done.startswith(second) and ("_" in done) == (version != 6) and len(names) == 2
    record = commit_content(timeline_folder(table.path) / done)
    assert (record["savepointedBy"], record["comments"]) == ("ada", "before the move")
    listed = table.file_groups()
    for part, kept in record["partitionMetadata"].items():
        expected = listed[listed["partition_path"] == part]["file_name"]
        assert kept == {"partitionPath": part, "savepointDataFile": sorted(expected)}
    assert sorted(record["partitionMetadata"]) == ["a", "b"]
    table.savepoint(first)
    assert list(Table.open(table.path).savepoints()["requested_time"]) == [first, second]
    assert pending_names(table.path) == [] and table.fsck() == []
    assert hudi_rows(table.path) == without_meta(table.to_arrow())
    table.delete_savepoint(made)
    table.delete_savepoint(first)
    assert [name for name in timeline_names(table.path) if "savepoint" in name] == []


@pytest.mark.parametrize("seed", range(6))
def test_random_savepoints_keep_their_snapshots_until_they_are_deleted(
    tmp_path: Path, seed: int
) -> None:
    """While a savepoint exists both readers see its rows; without any, a clean deletes the rest."""
    draw = random.Random(seed)
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": draw.randint(1, 3)})
    kept: dict[str, list[str]] = {}
    for number in range(20):
        upsert(table, number, draw.sample(range(8), draw.randint(1, 5)))
        if number == 3 or draw.random() < 0.3:
            made = table.savepoint(comment=f"number {number}")
            kept[made.requested_time] = without_meta(table.to_arrow())
        if len(kept) > 1 and draw.random() < 0.2:
            gone = draw.choice(sorted(kept))
            del kept[gone]
            table.delete_savepoint(gone)
        for time17, rows in kept.items():
            assert without_meta(table.to_arrow(as_of=time17)) == hudi_rows(table.path, time17)
            assert hudi_rows(table.path, time17) == rows
    assert list(table.savepoints()["requested_time"]) == sorted(kept)
    table.clean()
    held = data_files(table.path)
    for time17 in kept:
        table.delete_savepoint(time17)
    table.clean()
    assert data_files(table.path) < held and table.fsck() == []
    assert table.clean(dry_run=True).files == ()


def test_what_a_savepoint_refuses(tmp_path: Path) -> None:
    """There must be such a commit with all its files, and one savepoint of it at most."""
    table = make(tmp_path / "t", **TWO)
    with pytest.raises(InvalidConfig, match=r"has no completed commit"):
        table.savepoint()
    for number in range(5):
        upsert(table, number, [0])
    first, *_, last = times(table)
    with pytest.raises(InvalidConfig, match=rf"cleaned away .* earliest .* {times(table)[2]}"):
        table.savepoint(first)
    with pytest.raises(InvalidConfig, match="not a completed commit"):
        table.savepoint(str(int(last) + 1))
    with pytest.raises(InvalidConfig, match="not a completed commit"):
        table.savepoint(datetime(2001, 1, 1))
    table.savepoint()
    with pytest.raises(InvalidConfig, match=f"{last} .* has a savepoint"):
        table.savepoint(datetime.now())
    with pytest.raises(InvalidConfig, match="has no savepoint"):
        table.delete_savepoint(first)
    assert list(table.savepoints()["requested_time"]) == [last]


def test_a_damaged_savepoint_still_keeps_its_files(tmp_path: Path) -> None:
    """The error names the file and the cure, which works; cleans go on and keep the snapshot."""
    table = make(tmp_path / "t", **TWO)
    upsert(table, 0, [0])
    made = table.savepoint()
    Path(table.path, ".hoodie", f"{made.requested_time}.savepoint").write_bytes(b"Obj\x01?")
    for number in range(1, 6):
        upsert(table, number, [0])
    assert table.to_arrow(as_of=made)["ts"].to_pylist() == [0]
    with pytest.raises(InvalidTable, match=rf"{made.requested_time}\.savepoint cannot be read"):
        table.savepoints()
    table.delete_savepoint(made)
    assert table.savepoints().empty and len(table.clean().files) == 1


HOW = pytest.mark.parametrize("how", ["before", "after", "torn", "error", "error_after"])
VERSIONS = pytest.mark.parametrize("version", [6, 9])


def started(root: Path, version: int) -> Table:
    """Return a table that retains two commits, after its first one."""
    table = make(root, **TWO)
    upsert(table, 0, [0, 1])
    if version != 6:
        upgrade(root, version)
    return table


@HOW
@VERSIONS
def test_a_failure_anywhere_leaves_a_savepoint_or_none(
    tmp_path: Path, how: str, version: int
) -> None:
    """After a failure at any operation the savepoint counts or not; the next write tidies up."""
    source = started(tmp_path / "t", version).path
    for root, _ in each_fault(source, Table.savepoint, how, at_least=2, raises=OSError):
        files_after_commits(root)
    table = Table.open(source)
    table.savepoint()
    assert files_after_commits(Path(source)) == 5


@HOW
@VERSIONS
def test_a_failure_anywhere_deletes_a_savepoint_or_keeps_it(
    tmp_path: Path, how: str, version: int
) -> None:
    """After a failure at any operation of a deletion the savepoint still counts, or not at all."""
    table = started(tmp_path / "t", version)
    delete = partial(Table.delete_savepoint, commit=table.savepoint())
    for root, _ in each_fault(table.path, delete, how, at_least=3, raises=OSError):
        files_after_commits(root)
    delete(table)
    assert files_after_commits(Path(table.path)) == 4


def files_after_commits(root: Path) -> int:
    """Write four batches; what is retained, and the savepoint if there is one, has its files."""
    table = Table.open(root)
    for number in range(1, 5):
        upsert(table, number, [0])
    assert pending_names(root) == [] and table.fsck() == []
    found = len(data_files(root))
    assert found == 2 + 2 + (not table.savepoints().empty)
    return found
