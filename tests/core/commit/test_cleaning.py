"""Automatic cleaning: after commits, by a plan on the timeline, never at the cost of a commit."""

from __future__ import annotations

import io
from pathlib import Path

import fastavro
import pytest
from tables import data_files, hudi_rows, pending_names, timeline_names, upgrade, without_meta
from test_clean_plan import make, upsert

from hoodie_nb import Table, failpoints
from hoodie_nb.actions.clean_records import _PLAN
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.types.avro_file import encode

TWO = {"hoodie.clean.commits.retained": 2}


def cleans(root: Path | str) -> list[str]:
    """Return the names of the clean instants' files."""
    return [name for name in timeline_names(root) if ".clean" in name]


def planned(root: Path, files: dict[str, list[str]], *, empty: bool = False) -> str:
    """Put a pending clean on the timeline, as another engine would; return its time."""
    time17 = str(int(max(timeline_names(root))[:17]) + 1)
    paths = {p: [{"filePath": f"file:{root}/{p}/{n}"} for n in files[p]] for p in files}
    plan = {
        "policy": "KEEP_LATEST_COMMITS",
        "version": 2,
        "filesToBeDeletedPerPartition": {},
        "filePathsToBeDeletedPerPartition": paths,
    }
    requested = root / ".hoodie" / f"{time17}.clean.requested"
    requested.write_bytes(b"" if empty else encode(_PLAN, plan))
    (root / ".hoodie" / f"{time17}.clean.inflight").touch()
    return time17


@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_clean_is_an_instant_that_hudi_can_read(tmp_path: Path, version: int) -> None:
    """Requested and completed files are Avro with Hudi's fields, in each table version."""
    table = make(tmp_path / "t", **TWO)
    upsert(table, 0, [0, 1])
    if version != 6:
        upgrade(tmp_path / "t", version)
    for number in range(1, 4):
        upsert(table, number, [0, 1])
    names = cleans(tmp_path / "t")
    assert len(names) == 3 and pending_names(tmp_path / "t") == []
    folder = tmp_path / "t/.hoodie" / ("timeline" if version != 6 else "")
    done = next(name for name in names if not name.endswith(("requested", "inflight")))
    (result,) = fastavro.reader(io.BytesIO((folder / done).read_bytes()))
    (plan,) = fastavro.reader(io.BytesIO((folder / f"{done[:17]}.clean.requested").read_bytes()))
    times = list(table.history()["requested_time"])
    assert result["earliestCommitToRetain"] == times[2]
    assert result["lastCompletedCommitTimestamp"] == times[3]
    assert plan["earliestInstantToRetain"] == {
        "timestamp": times[2],
        "action": "commit",
        "state": "COMPLETED",
    }
    assert result["totalFilesDeleted"] == 2 and {*result["partitionMetadata"]} == {"a", "b"}
    for part, files in plan["filePathsToBeDeletedPerPartition"].items():
        names = result["partitionMetadata"][part]["successDeleteFiles"]
        assert [f"file:{table.path}/{part}/{n}" for n in names] == [f["filePath"] for f in files]
    assert without_meta(table.to_arrow()) == hudi_rows(tmp_path / "t") and table.fsck() == []


def test_too_few_commits_and_inserts_leave_no_instant(tmp_path: Path) -> None:
    """There is no clean without a file to delete, nor with `hoodie.clean.automatic=false`."""
    table = make(tmp_path / "t", **TWO)
    for number in range(2):
        upsert(table, number, [0])
    for number in range(5):
        few = {"hoodie.parquet.small.file.limit": 0}
        if number == 0:
            table = make(tmp_path / "inserts", **few, **TWO)
        upsert(table, number, [number])
    off = make(tmp_path / "off", **TWO, **{"hoodie.clean.automatic": False})
    for number in range(5):
        upsert(off, number, [0])
    assert [cleans(tmp_path / name) for name in ("t", "inserts", "off")] == [[], [], []]
    assert len(data_files(off.path)) == 5


def test_an_error_in_a_clean_does_not_fail_the_commit(tmp_path: Path) -> None:
    """The commit succeeds, the error is an event, and the next commit completes the clean."""
    table = make(tmp_path / "t", **TWO)
    for number in range(3):
        upsert(table, number, [0])
    for point in ("clean.plan.post", "clean.inflight.post", "clean.file", "clean.files.post"):
        failpoints.arm(f"{point}=raise:EIO")
        try:
            upsert(table, 10, [0])
        finally:
            failpoints.arm("")
        (event,) = table.events.records("clean_postponed")[-1:]
        assert "Input/output error" in event.values["why"]
        assert len(pending_names(tmp_path / "t")) == 1
        assert any("is pending" in str(f) and "repair" in str(f) for f in table.fsck())
        upsert(table, 11, [0])
        assert pending_names(tmp_path / "t") == [] and table.fsck() == []
        assert len(data_files(table.path)) == 3


def test_a_snapshot_is_refused_while_its_files_may_be_going(tmp_path: Path) -> None:
    """Between a deletion and the end of the clean no older slice is shown instead."""
    table = make(tmp_path / "t", **TWO)
    for number in range(3):
        upsert(table, number, [0, 1])
    times = list(table.history()["requested_time"])
    failpoints.arm("clean.file=raise:EIO")
    try:
        upsert(table, 3, [0, 1])
    finally:
        failpoints.arm("")
    for reader in (table, Table.open(table.path)):
        with pytest.raises(InvalidConfig, match="cleaned away"):
            reader.to_arrow(as_of=times[0])
        assert reader.to_arrow(as_of=times[1])["ts"].to_pylist() == [1, 1]


def test_a_clean_that_another_engine_planned_is_completed(tmp_path: Path) -> None:
    """The next writer deletes what the plan names, unless the table shows it."""
    table = make(tmp_path / "t", **{"hoodie.clean.automatic": "false"})
    for number in range(4):
        upsert(table, number, [0, 1])
    slices = table.file_groups()
    newest = slices[slices["partition_path"] == "a"]["file_name"].iloc[0]
    names = sorted(path.name for path in (tmp_path / "t/a").glob("*.parquet"))
    rows = without_meta(table.to_arrow())
    time17 = planned(tmp_path / "t", {"a": names})
    assert [f.what for f in fsck(table.path)] == [f"instant {time17} clean inflight is pending"]
    table.fsck(repair=True)
    assert [path.name for path in (tmp_path / "t/a").glob("*.parquet")] == [newest]
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == rows
    assert table.fsck() == [] and f"{time17}.clean" in cleans(table.path)


@pytest.mark.parametrize(
    "files",
    [
        {"a": ["notes.txt"]},
        {"../x": ["f-0_0-0-0_20260101000000000.parquet"]},
        {".hoodie": ["f-0_0-0-0_20260101000000000.parquet"]},
        {"/tmp": ["f-0_0-0-0_20260101000000000.parquet"]},
    ],
)
def test_a_plan_that_names_other_files_is_not_followed(
    tmp_path: Path, files: dict[str, list[str]]
) -> None:
    """Only base files in partitions are deleted; writes go on, and fsck names a fix that works."""
    table = make(tmp_path / "t", **TWO)
    for number in range(4):
        upsert(table, number, [0, 1])
    for folder in ("a", ".hoodie", "../x"):
        (tmp_path / "t" / folder).mkdir(exist_ok=True)
        for name in ("notes.txt", "f-0_0-0-0_20260101000000000.parquet"):
            (tmp_path / "t" / folder / name).touch()
    time17 = planned(tmp_path / "t", files)
    upsert(table, 4, [0, 1])
    assert "names other files" in table.events.records("clean_postponed")[-1].values["why"]
    for folder in ("a", ".hoodie", "../x"):
        for name in ("notes.txt", "f-0_0-0-0_20260101000000000.parquet"):
            (tmp_path / "t" / folder / name).unlink()
    (finding,) = table.fsck()
    assert "delete its .requested and .inflight files" in finding.fix
    for state in ("requested", "inflight"):
        (tmp_path / "t/.hoodie" / f"{time17}.clean.{state}").unlink()
    upsert(table, 5, [0, 1])
    assert table.fsck() == [] and len(data_files(table.path)) == 6


def test_an_empty_plan_is_removed(tmp_path: Path) -> None:
    """A plan that another engine has not written to its end deletes nothing."""
    table = make(tmp_path / "t", **TWO)
    for number in range(3):
        upsert(table, number, [0])
    planned(tmp_path / "t", {}, empty=True)
    upsert(table, 3, [0])
    assert pending_names(tmp_path / "t") == [] and len(data_files(table.path)) == 3


def test_a_new_process_continues_where_the_last_clean_ended(tmp_path: Path) -> None:
    """One process for each commit cleans like one process for all."""
    make(tmp_path / "t", **TWO)
    for number in range(8):
        upsert(Table.open(tmp_path / "t"), number, [number % 3])
    kept = data_files(tmp_path / "t")
    assert Table.open(tmp_path / "t").clean().files == ()
    assert len(kept) == 2 + 2 and cleans(tmp_path / "t") != []
