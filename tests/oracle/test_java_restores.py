"""Savepoints and restores by us and by Java on one table: each goes on from the other's."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from hoodie_nb import Table, WriteFailed, failpoints

from .client import JavaError, Judge
from .readers import check, java, ours, rust
from .tables import Model
from .test_java_cleans import OPTIONS, TWO, made, versions

pytestmark = pytest.mark.oracle


def shown(judge: Judge, table: Table) -> list[str]:
    """Return the times of the savepoints that Java sees."""
    found = judge.sql(f"call show_savepoints(path => '{table.path}')")
    return sorted(row[0] for row in found)


@versions
def test_java_keeps_and_deletes_our_savepoint(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java's cleans keep the files of our savepoint until one of us deletes it."""
    table, model = made(judge, tmp_path / "t", version)
    first = table.savepoint(comment="ours", user="ada")
    seen = ours(table)
    assert shown(judge, table) == [first.requested_time]
    table.upsert(model.upsert(range(2), 2))
    second = table.savepoint()
    for number in range(3, 8):
        judge.write(table.path, model.upsert(range(number), number), OPTIONS[version] | TWO)
    assert ours(table, first.requested_time) == rust(table, first.requested_time) == seen
    assert shown(judge, table) == [first.requested_time, second.requested_time]
    check(judge, table, model)
    judge.sql(
        f"call delete_savepoint(path => '{table.path}', instant_time => '{first.requested_time}')"
    )
    assert list(table.savepoints()["requested_time"]) == [second.requested_time]
    table.delete_savepoint(second)
    assert shown(judge, table) == []
    assert len(table.clean(commits=2).files) >= 4
    check(judge, table, model)


def call(judge: Judge, table: Table, procedure: str, time17: str) -> list[list[str]]:
    """Call one of Java's procedures on a table and an instant."""
    found = judge.sql(f"call {procedure}(path => '{table.path}', instant_time => '{time17}')")
    return found


def grown(judge: Judge, path: Path, version: int) -> tuple[Table, Model, Model]:
    """Return a table with a savepoint after two commits, and three more by us and by Java.

    The first model is that of the savepoint, the second one that of now.
    """
    table, model = made(judge, path, version)
    table.upsert(model.upsert(range(5), 2))
    table.savepoint()
    then = Model(model.layout, dict(model.held))
    judge.write(path, model.upsert(range(3, 50), 3), OPTIONS[version] | TWO)
    for number in range(4, 6):
        table.upsert(model.upsert(range(number), number))
    return table, then, model


def goes_on(judge: Judge, table: Table, then: Model, version: int) -> None:
    """All readers see the model; we write, Java writes, we clean, and they still agree."""
    table.fsck(repair=True)
    check(judge, table, then)
    saved = table.savepoints()["requested_time"].iloc[-1]
    assert table.history()["requested_time"].iloc[-1] == saved
    table.upsert(then.upsert(range(2, 45), 7))
    check(judge, table, then)
    judge.write(table.path, then.upsert(range(40, 60), 8), OPTIONS[version] | TWO)
    check(judge, table, then)
    table.delete_savepoint(saved)
    table.upsert(then.upsert(range(50), 9))
    judge.write(table.path, then.upsert(range(5), 10), OPTIONS[version] | TWO)
    table.clean(commits=1)
    check(judge, table, then)


@versions
def test_java_goes_on_after_our_restore(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java reads the restored table, as of its savepoint too, writes it, and cleans it."""
    table, then, _ = grown(judge, tmp_path / "t", version)
    seen = ours(table, saved := table.savepoints()["requested_time"].iloc[-1])
    restored = table.restore(saved)
    assert len(restored.commits) == 3 and len(restored.files) >= 6
    assert java(judge, table) == ours(table) == rust(table) == seen
    goes_on(judge, table, then, version)


@versions
def test_we_go_on_after_java_restored(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java restores to our savepoint, which creates its metadata table; both write on."""
    table, then, _ = grown(judge, tmp_path / "t", version)
    call(judge, table, "rollback_to_savepoint", table.savepoints()["requested_time"].iloc[-1])
    goes_on(judge, Table.open(table.path, drop_metadata_table=True), then, version)


def crashed(table: Table, saved: str, point: str) -> None:
    """Begin a restore that stops at a failpoint."""
    failpoints.arm(f"{point}=raise:EIO")
    try:
        with pytest.raises(WriteFailed, match="Input/output"):
            table.restore(saved)
    finally:
        failpoints.arm("")


@versions
@pytest.mark.parametrize("point", ["restore.plan.post", "restore.withdrawn.post"])
def test_java_completes_our_restore(judge: Judge, tmp_path: Path, version: int, point: str) -> None:
    """Java's restore to the same savepoint takes over the plan of one that we did not complete."""
    table, then, _ = grown(judge, tmp_path / "t", version)
    saved = table.savepoints()["requested_time"].iloc[-1]
    crashed(table, saved, point)
    call(judge, table, "rollback_to_savepoint", saved)
    found = table.timeline()
    (state,) = found[found["action"] == "restore"]["state"]
    assert state == "completed"
    goes_on(judge, Table.open(table.path, drop_metadata_table=True), then, version)


def test_java_does_not_write_while_our_restore_is_pending(judge: Judge, tmp_path: Path) -> None:
    """Java reads a state of the past and refuses to write, until our next write completes it."""
    table, then, now = grown(judge, tmp_path / "t", 6)
    saved = table.savepoints()["requested_time"].iloc[-1]
    crashed(table, saved, "restore.withdrawn.post")
    seen = ours(table, table.history()["requested_time"].iloc[-1])
    assert java(judge, table) == rust(table) == ours(table) == seen
    with pytest.raises(JavaError, match="pending restore in active timeline"):
        judge.write(table.path, now.upsert(range(9), 9), OPTIONS[6])
    goes_on(judge, Table.open(table.path), then, 6)


@versions
@pytest.mark.parametrize("point", ["", "restore.rollback.post", "restore.withdrawn.post"])
def test_java_goes_on_after_our_rollback(
    judge: Judge, tmp_path: Path, version: int, point: str
) -> None:
    """Java reads and writes a table whose newest commit we have undone, or begun to undo."""
    table, _, model = grown(judge, tmp_path / "t", version)
    table.upsert(model.upsert(range(9), 6))
    newest = table.history()["requested_time"].iloc[-1]
    failpoints.arm(f"{point}=raise:EIO" if point else "")
    try:
        with pytest.raises(WriteFailed, match="Input/output") if point else nullcontext():
            table.rollback()
    finally:
        failpoints.arm("")
    assert java(judge, table) == ours(table) == rust(table)
    judge.write(table.path, model.upsert(range(9), 7), OPTIONS[version] | TWO)
    assert newest not in set(table.timeline()["requested_time"])
    check(judge, Table.open(table.path), model)
