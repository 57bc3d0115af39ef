"""Undone commits of merge-on-read tables: by us, by Java, and begun by us and completed by Java."""

from __future__ import annotations

from pathlib import Path

import pytest
from core.tables import commit_content

from hoodie_nb import Table, WriteFailed, failpoints
from hoodie_nb.errors import InvalidConfig

from .client import JavaError, Judge
from .tables import LAYOUTS, Model, appending
from .test_java_appends import agree_but_names, batches, create, logs_of
from .test_java_merge_on_read import COMPACTS

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("many_logs")]
LAYOUT = LAYOUTS["simple"]
PATHS = {"partitionPath": "", "successDeleteFiles": []}
both_versions = pytest.mark.parametrize("version", [8, 9])


def grown(path: Path, version: int) -> tuple[Table, list[Model]]:
    """Return a table, and the model after each of its commits."""
    table, model = create(path, LAYOUT, version), Model(LAYOUT)
    past = [Model(LAYOUT)]
    for _ in batches(table, model):
        past.append(Model(LAYOUT, dict(model.held)))
    return table, past


def times(table: Table) -> list[str]:
    """Return the times of the commits, oldest first."""
    return list(table.history()["requested_time"])


def goes_on(judge: Judge, path: str, model: Model, version: int) -> None:
    """All readers see the model; Java writes, we write after its compaction, and they agree."""
    table = Table.open(path, drop_metadata_table=True)
    assert agree_but_names(judge, table) == model.cells()
    table.upsert(model.upsert(range(3, 70, 4), 20))
    assert agree_but_names(judge, table) == model.cells()
    judge.write(path, model.upsert(range(0, 80, 5), 21), appending(LAYOUT, version), "append")
    assert agree_but_names(judge, Table.open(path)) == model.cells()
    more = appending(LAYOUT, version, **COMPACTS)
    judge.write(path, model.upsert(range(0, 80, 9), 22), more, "append")
    table = Table.open(path)
    table.upsert(model.upsert(range(0, 90, 4), 23))
    assert agree_but_names(judge, table) == model.cells()


@both_versions
def test_java_goes_on_after_we_have_undone_commits(
    judge: Judge, tmp_path: Path, version: int
) -> None:
    """A rollback of logs, then a restore to a commit with others."""
    table, past = grown(tmp_path / "t", version)
    table.rollback()
    assert agree_but_names(judge, table) == past[-2].cells()
    assert logs_of(table)
    table.restore(times(table)[3])
    assert logs_of(table)
    goes_on(judge, table.path, past[4], version)


@both_versions
def test_we_undo_what_java_has_written(judge: Judge, tmp_path: Path, version: int) -> None:
    """Its logs, and a compaction: after that we write again."""
    table, past = grown(tmp_path / "t", version)
    last = times(table)[-1]
    model = Model(LAYOUT, dict(past[-1].held))
    judge.write(table.path, model.upsert(range(0, 80, 5), 8), appending(LAYOUT, version), "append")
    more = appending(LAYOUT, version, **COMPACTS)
    judge.write(table.path, model.upsert(range(0, 80, 9), 9), more, "append")
    names = [path.name for path in Path(table.path, ".hoodie/timeline").iterdir()]
    assert any(".compaction." in name for name in names)
    table = Table.open(table.path)
    table.restore(last)
    names = [path.name for path in Path(table.path, ".hoodie/timeline").iterdir()]
    assert not any(".compaction." in name for name in names)
    assert table.fsck() == []
    goes_on(judge, table.path, past[-1], version)


@both_versions
def test_we_go_on_after_java_rolled_back(judge: Judge, tmp_path: Path, version: int) -> None:
    """Its plan has the shape of ours, and a reader at the undone commit is refused."""
    table, past = grown(tmp_path / "t", version)
    *_, before, last = times(table)
    judge.rollback(table.path, last, appending(LAYOUT, version))
    table = Table.open(table.path)
    assert agree_but_names(judge, table) == past[-2].cells()
    with pytest.raises(InvalidConfig, match=f"had commit {last}, but rollback .* has undone it"):
        table.changes(since=last)
    table.rollback(before)
    records = []
    for end in (".rollback.requested", ".rollback"):
        found = sorted(Path(table.path, ".hoodie/timeline").glob(f"*{end}"))
        records.append([commit_content(file) for file in found])
    (their_plan, our_plan), (their_result, our_result) = records
    assert their_plan.keys() == our_plan.keys()
    for plans in (their_plan, our_plan):
        assert {repr(r["logBlocksToBeDeleted"]) for r in plans["RollbackRequests"]} == {"{}"}
    shapes = []
    for result in (their_result, our_result):
        parts = result["partitionMetadata"].values()
        assert result["totalFilesDeleted"] == sum(len(p["successDeleteFiles"]) for p in parts)
        shapes.append({repr({**part, **PATHS}) for part in parts})
    assert shapes[0] == shapes[1]
    goes_on(judge, table.path, past[-3], version)


@both_versions
def test_we_go_on_after_java_restored(judge: Judge, tmp_path: Path, version: int) -> None:
    """To a savepoint of Java's."""
    table, past = grown(tmp_path / "t", version)
    saved = times(table)[3]
    where = f"path => '{table.path}'"
    judge.sql(f"call create_savepoint({where}, commit_time => '{saved}')")
    judge.sql(f"call rollback_to_savepoint({where}, instant_time => '{saved}')")
    judge.sql(f"call delete_savepoint({where}, instant_time => '{saved}')")
    goes_on(judge, table.path, past[4], version)


@both_versions
@pytest.mark.parametrize("point", ["restore.rollback.post", "restore.withdrawn.post"])
def test_java_completes_our_rollback(
    judge: Judge, tmp_path: Path, version: int, point: str
) -> None:
    """Its next write does, and deletes the log files."""
    table, past = grown(tmp_path / "t", version)
    last = times(table)[-1]
    failpoints.arm(f"{point}=raise:EIO")
    try:
        with pytest.raises(WriteFailed, match="Input/output"):
            table.rollback()
    finally:
        failpoints.arm("")
    shown = past[-1] if point == "restore.rollback.post" else past[-2]
    assert agree_but_names(judge, table) == shown.cells()
    model = Model(LAYOUT, dict(past[-2].held))
    judge.write(table.path, model.upsert(range(0, 60, 5), 8), appending(LAYOUT, version), "append")
    assert not [*Path(table.path).rglob(f"*{last}.*log*"), *Path(table.path).glob(f"*/*_{last}.*")]
    assert last not in times(Table.open(table.path))
    assert agree_but_names(judge, Table.open(table.path)) == model.cells()
    Table.open(table.path).rollback()
    goes_on(judge, table.path, past[-2], version)


@pytest.mark.parametrize("point", ["restore.plan.post", "restore.withdrawn.post"])
def test_java_does_not_write_while_our_restore_is_pending(
    judge: Judge, tmp_path: Path, point: str
) -> None:
    """It reads a state of the past, until our next write completes the restore."""
    table, past = grown(tmp_path / "t", 9)
    saved = times(table)[3]
    failpoints.arm(f"{point}=raise:EIO")
    try:
        with pytest.raises(WriteFailed, match="Input/output"):
            table.restore(saved)
    finally:
        failpoints.arm("")
    shown = past[-1] if point == "restore.plan.post" else past[-2]
    assert agree_but_names(judge, table) == shown.cells()
    with pytest.raises(JavaError, match="pending restore in active timeline"):
        judge.write(table.path, Model(LAYOUT).upsert(range(9), 9), appending(LAYOUT, 9), "append")
    Table.open(table.path).fsck(repair=True)
    goes_on(judge, table.path, past[4], 9)
