"""Clean, archive and savepoint of merge-on-read tables with logs, by us and by Java in turn."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import fastavro
import pytest

from hoodie_nb import Table, failpoints

from .client import TIDY, Judge
from .readers import java, ours
from .tables import LAYOUTS, Model, appending
from .test_java_appends import agree_but_names, create
from .test_java_merge_on_read import COMPACTS

sys.path.append(str(Path(__file__).parents[1] / "core"))
from archives import lsm_rows
from tables import pending_names

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("many_logs")]
SIMPLE = LAYOUTS["simple"]
ONE = {"hoodie.clean.commits.retained": "1", "hoodie.cleaner.commits.retained": "1"}
NO_CLEAN = {"hoodie.clean.automatic": "false"}
FEW = {
    "hoodie.clean.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.compact.inline.max.delta.commits": 2,
}
versions = pytest.mark.parametrize("version", [8, 9])


def made(path: Path, version: int, **options: object) -> tuple[Table, Model]:
    """Return a table of ours whose slices are rewritten after two logs, with one commit."""
    table, model = create(path, SIMPLE, version), Model(SIMPLE)
    table._handle.options = table._handle.options.updated({**FEW, **options})
    table.upsert(model.upsert(range(40), 1))
    return table, model


def files(table: Table) -> set[str]:
    """Return the names of the files in the partitions."""
    found = (f.name for f in Path(table.path).glob("*/*") if f.parent.name != ".hoodie")
    return {name for name in found if ".log." in name or name.endswith(".parquet")}


def records(table: Table, kind: str) -> list[dict[str, Any]]:
    """Return the completed instants of an action, oldest first."""
    found = []
    for file in sorted(Path(table.path, ".hoodie/timeline").glob(f"*_*.{kind}")):
        (record,) = fastavro.reader(io.BytesIO(file.read_bytes()))
        found.append(record)
    return found


def deleted(record: dict[str, Any]) -> set[str]:
    """Return the names that a clean has deleted."""
    done = record["partitionMetadata"].values()
    return {name.rpartition("/")[2] for part in done for name in part["successDeleteFiles"]}


def same_past(judge: Judge, table: Table, count: int) -> None:
    """Java reads the newest commits as we do."""
    for as_of in list(table.history()["requested_time"])[::-1][:count]:
        seen = [ours(table, as_of), java(judge, table, as_of)]
        for row in (row for found in seen for row in found):
            del row["_hoodie_file_name"]
        assert seen[0] == seen[1]


@versions
def test_java_reads_what_we_have_cleaned_and_archived(
    judge: Judge, tmp_path: Path, version: int
) -> None:
    """Logs are gone, and delta commits archived; Java reads, writes and we go on."""
    table, model = made(tmp_path / "t", version)
    for number in range(2, 16):
        table.upsert(model.upsert(range(0, 40, 3), number))
        if number % 4 == 3:
            assert agree_but_names(judge, table) == model.cells()
            same_past(judge, table, 1)
    assert any(".log." in name for record in records(table, "clean") for name in deleted(record))
    archive = table._handle.timeline.archive.commits()[0]
    assert len(archive) >= 5
    judge.write(
        table.path,
        model.upsert(range(0, 50, 5), 20),
        appending(SIMPLE, version, **COMPACTS),
        "append",
    )
    table = Table.open(table.path)
    table._handle.options = table._handle.options.updated(FEW)
    assert agree_but_names(judge, table) == model.cells()
    for number in range(21, 27):
        table.upsert(model.upsert(range(0, 50, 4), number))
    assert agree_but_names(judge, table) == model.cells()
    assert table.fsck() == [] and pending_names(table.path) == []


@versions
def test_java_cleans_our_logs_and_we_go_on(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java deletes a slice with its logs, and says so as we do; then we clean what is left."""
    table, model = made(tmp_path / "t", version, **NO_CLEAN)
    for number in range(2, 8):
        table.upsert(model.upsert(range(0, 40, 3), number))
    before = files(table)
    more = {**COMPACTS, **ONE, "hoodie.clean.automatic": "true"}
    for number in (8, 9):
        judge.write(
            table.path, model.upsert(range(0, 50, 5), number), appending(SIMPLE, version, **more)
        )
    table = Table.open(table.path)
    theirs = records(table, "clean")
    gone = {name for record in theirs for name in deleted(record)}
    assert any(".log." in name for name in gone) and gone & before
    assert not gone & files(table)
    assert agree_but_names(judge, table) == model.cells()
    table._handle.options = table._handle.options.updated(FEW)
    for number in range(10, 18):
        table.upsert(model.upsert(range(0, 50, 4), number))
    found = records(table, "clean")[-1]
    assert any(".log." in name for name in deleted(found))
    assert {*found} == {*theirs[0]}
    (part, *_), (other, *_) = (
        found["partitionMetadata"].values(),
        theirs[0]["partitionMetadata"].values(),
    )
    assert {key: type(value) for key, value in part.items()} == {
        key: type(value) for key, value in other.items()
    }
    slashes = [{"/" in name for name in each["successDeleteFiles"]} for each in (part, other)]
    assert slashes[0] == slashes[1]
    assert agree_but_names(judge, table) == model.cells()
    same_past(judge, table, 1)
    assert table.fsck() == []


def test_java_completes_our_clean_of_logs(judge: Judge, tmp_path: Path) -> None:
    """A plan of ours that was not executed: Java deletes its base files and logs."""
    table, model = made(tmp_path / "t", 9, **NO_CLEAN)
    for number in range(2, 8):
        table.upsert(model.upsert(range(0, 40, 3), number))
    planned = {path.rpartition("/")[2] for path in table.clean(commits=1, dry_run=True).files}
    assert any(".log." in name for name in planned) and planned < files(table)
    failpoints.arm("clean.plan.post=raise:EIO")
    try:
        with pytest.raises(OSError, match=r"."):
            table.clean(commits=1)
    finally:
        failpoints.arm("")
    assert planned < files(table)
    more = {**COMPACTS, **ONE}
    judge.write(table.path, model.upsert(range(0, 50, 5), 9), appending(SIMPLE, 9, **more))
    table = Table.open(table.path)
    assert deleted(records(table, "clean")[0]) == planned
    assert not planned & files(table)
    assert agree_but_names(judge, table) == model.cells()


def test_a_compaction_of_java_is_archived_as_java_does(judge: Judge, tmp_path: Path) -> None:
    """With its plan; its requested and inflight files have other names than its completed one."""
    table, model = made(tmp_path / "t", 9)
    more = {**COMPACTS, **TIDY}
    for number in range(2, 12):
        judge.write(table.path, model.upsert(range(0, 50, 5), number), appending(SIMPLE, 9, **more))
    theirs = {r["instantTime"]: r for r in lsm_rows(table.path) if r["action"] == "commit"}
    assert theirs
    compactions = Table.open(table.path).history().query("operation == 'compact'")["requested_time"]
    table = Table.open(table.path)
    table._handle.options = table._handle.options.updated(FEW)
    for number in range(12, 20):
        table.upsert(model.upsert(range(0, 50, 5), number))
    found = {r["instantTime"]: r for r in lsm_rows(table.path) if r["action"] == "commit"}
    mine = [row for time17, row in found.items() if time17 in set(compactions)]
    assert mine
    assert {row["plan"] is None for row in mine} == {row["plan"] is None for row in theirs.values()}
    assert pending_names(table.path) == []
    assert agree_but_names(judge, table) == model.cells()


def test_savepoints_are_javas(judge: Judge, tmp_path: Path) -> None:
    """Both name base files and logs, and each cleaner keeps the other's."""
    table, model = made(tmp_path / "t", 9, **NO_CLEAN)
    table.upsert(model.upsert(range(0, 40, 3), 2))
    saved = table.history()["requested_time"].iloc[-1]
    judge.sql(f"call create_savepoint(path => '{table.path}', commit_time => '{saved}')")
    (theirs,) = records(table, "savepoint")
    seen = ours(table, saved)
    table.delete_savepoint(saved)
    table.savepoint(saved)
    (mine,) = records(table, "savepoint")
    for record in (theirs, mine):
        for part in record["partitionMetadata"].values():
            part["savepointDataFile"].sort()
    assert mine["partitionMetadata"] == theirs["partitionMetadata"]
    named = {n for p in mine["partitionMetadata"].values() for n in p["savepointDataFile"]}
    assert any(".log." in name for name in named)
    for number in range(3, 9):
        table.upsert(model.upsert(range(0, 40, 3), number))
    table.clean(commits=1)
    more = {**COMPACTS, **ONE, "hoodie.clean.automatic": "true"}
    for number in (9, 10):
        judge.write(table.path, model.upsert(range(0, 50, 5), number), appending(SIMPLE, 9, **more))
    table = Table.open(table.path)
    assert named <= files(table)
    assert ours(table, saved) == seen
    assert agree_but_names(judge, table) == model.cells()
