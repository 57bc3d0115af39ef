"""Archiving by us and by Java on one table: each goes on from the other's, all readers agree."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hoodie_nb import Table, failpoints

from .client import BLOOM, TIDY, Judge
from .readers import agree, check, java, ours, rust
from .tables import LAYOUTS, Model

sys.path.append(str(Path(__file__).parents[1] / "core"))
from archives import FEW, active, archived, listed, lsm_rows, plant, records

pytestmark = pytest.mark.oracle
SIMPLE = LAYOUTS["simple"]
FILES_ONLY = {"hoodie.metadata.enable": "false", "hoodie.index.type": "BLOOM"}
EIGHT = FILES_ONLY | {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
WRITES = {6: BLOOM, 8: EIGHT, 9: FILES_ONLY}  # Java's options, by table version


def made(path: Path, version: int = 6) -> tuple[Table, Model]:
    """Return a table of ours that keeps two or three commits, with one commit."""
    model = Model(SIMPLE)
    table = SIMPLE.create(path, table_version=version)
    table._handle.options = table._handle.options.updated(FEW)
    table.upsert(model.upsert(range(40), 1))
    return table, model


def shown(judge: Judge, path: str | Path) -> list[str]:
    """Return the times of the commits in the archive, as Java's procedure shows them."""
    judge.sql(f"create table if not exists shown_{Path(path).name} using hudi location '{path}'")
    found = judge.sql(
        f"call show_archived_commits(table => 'shown_{Path(path).name}', limit => 1000, "
        "start_ts => '20000101000000000', end_ts => '29991231235959999')"
    )
    return sorted(row[0] for row in found)


@pytest.mark.parametrize("version", [6, 8])
def test_java_reads_our_archive_and_goes_on(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java lists what we archived, reads and writes the table, and archives after our archive."""
    table, model = made(tmp_path / f"reads{version}", version)
    for number in range(2, 9):
        table.upsert(model.upsert(range(number), number))
    before = archived(table.path)
    assert len(before) == 6 and shown(judge, table.path) == before
    check(judge, table, model)
    for number in range(9, 13):
        judge.write(table.path, model.upsert(range(number), number), WRITES[version] | TIDY)
        check(judge, table, model)
    assert len(archived(table.path)) > 8
    assert shown(judge, table.path) == archived(table.path)
    for number in range(13, 17):
        table.upsert(model.upsert(range(number), number))
        check(judge, table, model)
    assert shown(judge, table.path) == archived(table.path)
    assert len(active(table.path)) <= 3
    last = active(table.path)[-1]
    assert java(judge, table, last) == rust(table, last) == ours(table, last)


def test_levels_that_we_and_java_merge(judge: Judge, tmp_path: Path) -> None:
    """Java archives after ten files that we merged, and we after it; the past is the same."""
    table, model = made(tmp_path / "levels", 9)
    table._handle.options = table._handle.options.updated({"hoodie.clean.automatic": False})
    options = WRITES[9] | TIDY | {"hoodie.clean.automatic": "false"}
    number = 1
    while not [name for name in listed(table.path) if name.endswith("_1.parquet")]:
        table.upsert(model.upsert(range(1 + number % 5), number := number + 1))
    for _ in range(2):
        judge.write(table.path, model.upsert(range(3), number := number + 1), options)
    for _ in range(4):
        table.upsert(model.upsert(range(2), number := number + 1))
    check(judge, table, model)
    assert shown(judge, table.path) == archived(table.path)
    assert len(archived(table.path)) + len(active(table.path)) == number
    for as_of in (archived(table.path)[3], archived(table.path)[-1], *active(table.path)):
        assert java(judge, table, as_of) == rust(table, as_of) == ours(table, as_of)
    done = table.timeline().query("action == 'commit' and state == 'completed'")
    changed = java(judge, table, since=done["completion_time"].iloc[-2])
    last = active(table.path)[-1]
    assert [row["_hoodie_commit_time"] for row in changed] == [last] * 2
    assert java(judge, table, since="20000101000000000") == ours(table)


def test_java_goes_on_after_our_crash(judge: Judge, tmp_path: Path) -> None:
    """Whatever an archiving has left, Java archives next, and no commit is missing or wrong."""
    table, model = made(tmp_path / "crash", 9)
    number = 1
    for step in ("file", "manifest", "version", "removed"):
        failpoints.arm(f"archive.lsm.{step}=raise:EIO")
        while not table.events.records("archive_postponed"):
            table.upsert(model.upsert(range(3), number := number + 1))
        failpoints.arm("")
        judge.write(table.path, model.upsert(range(2), number := number + 1), WRITES[9] | TIDY)
        found = {row["instantTime"] for row in lsm_rows(table.path) if row["action"] == "commit"}
        assert len(found | {*active(table.path)}) == number and len(active(table.path)) <= 3
        table = Table.open(table.path)
        table._handle.options = table._handle.options.updated(FEW)
    check(judge, table, model)
    assert len({*shown(judge, table.path)} | {*active(table.path)}) == number


def test_our_rows_of_layout_2_are_javas(judge: Judge, tmp_path: Path) -> None:
    """Java and we archive copies of one table: the rows of each instant are equal."""
    table, model = made(tmp_path / "rows", 9)
    table._handle.options = table._handle.options.updated({"hoodie.archive.automatic": False})
    model.delete([n for n in model.held if n % 2 == 0])
    overwrite = {"hoodie.datasource.write.operation": "insert_overwrite"}
    judge.write(table.path, model.upsert(range(0, 10, 2), 2), FILES_ONLY | overwrite)
    for number in range(3, 8):
        table.upsert(model.upsert(range(number), number))
    judge.write(
        table.path, model.upsert(range(8), 8), FILES_ONLY | {"hoodie.archive.automatic": "false"}
    )
    copy = archived_copy(judge, table, tmp_path / "copy")
    table.archive()
    theirs, found = by_instant(copy), by_instant(table.path)
    assert len(theirs) >= 7 and {"clean", "replacecommit"} <= {action for _, action in theirs}
    for name in theirs.keys() & found.keys():
        assert found[name] == theirs[name], name
    assert {name for name in theirs if name[1] != "clean"} <= {*found}


def archived_copy(judge: Judge, table: Table, path: Path) -> Path:
    """Return a copy of a table that Java has archived."""
    shutil.copytree(table.path, path)
    judge.sql(
        f"call archive_commits(path => '{path}', min_commits => 2, max_commits => 3, "
        "retain_commits => 1, enable_metadata => false)"
    )
    return path


def by_instant(root: str | Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of an archive of layout 2 by instant."""
    return {(row["instantTime"], row["action"]): row for row in lsm_rows(root)}


def test_our_records_are_javas(judge: Judge, tmp_path: Path) -> None:
    """Java and we archive copies of one table: the records of each instant are equal."""
    table, model = made(tmp_path / "records")
    table._handle.options = table._handle.options.updated({"hoodie.archive.automatic": False})
    for number in range(2, 7):
        table.upsert(model.upsert(range(number), number))
    judge.write(
        table.path, model.upsert(range(7), 7), BLOOM | {"hoodie.archive.automatic": "false"}
    )
    copy = archived_copy(judge, table, tmp_path / "copy")
    table._handle.options = table._handle.options.updated({"hoodie.archive.automatic": True})
    table.upsert(model.upsert(range(8), 8))
    theirs, found = by_file(records(copy)), by_file(records(table.path))
    assert len(theirs) >= 3 * 4
    for name, record in theirs.items():
        assert comparable(found[name]) == comparable(record), name


def by_file(entries: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the records by instant, action and state."""
    return {(r["commitTime"], r["actionType"], r["actionState"]): r for r in entries}


def comparable(record: dict[str, Any]) -> str:
    """Return a record as text, without fields that depend on the reading of the file's time."""
    return json.dumps({**record, "stateTransitionTime": None}, sort_keys=True, default=str)


def test_java_upgrades_a_table_with_our_archive(judge: Judge, tmp_path: Path) -> None:
    """Java's upgrade to version 9 converts our archive; rows of archived commits are still read."""
    table, model = made(tmp_path / "upgrades")
    for number in range(2, 8):
        table.upsert(model.upsert(range(number), number))
    assert archived(table.path)
    first = set(archived(table.path))
    judge.write(table.path, model.upsert(range(8), 8), {"hoodie.metadata.enable": "false"})
    assert list((tmp_path / "upgrades/.hoodie/timeline/history").glob("*.parquet"))
    assert first <= set(shown(judge, table.path))
    check(judge, table, model)
    table.upsert(model.upsert(range(9), 9))
    check(judge, table, model)


def test_orphans_and_overwrites_do_not_appear_after_our_archiving(
    judge: Judge, tmp_path: Path
) -> None:
    """Neither a file of no commit nor a file group that Java replaced is shown again by anyone."""
    table, model = made(tmp_path / "t")
    table.upsert(model.upsert(range(20), 2))
    plant(table.path, active(table.path)[-1])
    overwrite = BLOOM | {"hoodie.datasource.write.operation": "insert_overwrite"}
    model.delete([n for n in model.held if n % 2 == 0])
    judge.write(table.path, model.upsert(range(0, 10, 2), 3), overwrite)
    for number in range(4, 12):
        table.upsert(model.upsert(range(number), number))
        assert agree(judge, table) == model.cells()
    assert archived(table.path, "replacecommit") and table.fsck() == []


def test_a_savepoint_of_java_stops_our_archiving(judge: Judge, tmp_path: Path) -> None:
    """All readers see the table and the savepoint, and later commits stay."""
    table, model = made(tmp_path / "t")
    table.upsert(model.upsert(range(3), 2))
    saved = active(table.path)[-1]
    seen = ours(table, saved)
    judge.sql(f"call create_savepoint(path => '{table.path}', commit_time => '{saved}')")
    for number in range(3, 9):
        table.upsert(model.upsert(range(number), number))
        assert agree(judge, table) == model.cells()
    assert active(table.path)[0] == saved and len(active(table.path)) == 7
    assert ours(table, saved) == seen
    assert table.fsck() == []
