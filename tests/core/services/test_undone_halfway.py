"""An undo whose process died halfway: who comes next completes it, and nobody is misled by it."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from faults import Crash
from queries import Query
from tables import schema_of, upgrade
from writes import commit_elsewhere

from hoodie_nb import Table, failpoints
from hoodie_nb.actions.archive_plan import ArchivePlan
from hoodie_nb.actions.rollback import _METADATA, _metadata, roll_back
from hoodie_nb.commit.archiving import archive
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.types.avro_file import encode

versions = pytest.mark.parametrize("version", [6, 9])
Row = dict[str, object]


def made(path: Path, version: int) -> Table:
    """Return a new table."""
    Table.create(path, schema=schema_of(), record_key="id", partition_by="p", ordering="ts")
    if version != 6:
        upgrade(path, version)
    return Table.open(path)


def row(key: str, value: int, **more: object) -> Row:
    """Return a row."""
    return {"id": key, "p": "p0", "ts": 1, "v": value, **more}


def upsert(table: Table, *rows: Row, schema: pa.Schema | None = None) -> None:
    """Write rows."""
    table.upsert(pa.Table.from_pylist(list(rows), schema or schema_of()))


def dies(point: str, act: Callable[[], object]) -> None:
    """Let an action's process die at a failpoint."""

    def die() -> None:
        raise Crash(point)

    failpoints.call(point, die)
    try:
        with pytest.raises(Crash):
            act()
    finally:
        failpoints.arm("")


def pass_milliseconds() -> None:
    """Let the clock go on: times have milliseconds."""
    start = dt.datetime.now(dt.UTC)
    while dt.datetime.now(dt.UTC) - start < dt.timedelta(milliseconds=5):
        pass


def keys(table: Table) -> list[str]:
    """Return the keys of all rows."""
    return sorted(table.to_arrow().column("id").to_pylist())


@versions
@pytest.mark.parametrize(
    "point", ["restore.rollback.post", "restore.withdrawn.post", "rollback.files.post"]
)
@pytest.mark.parametrize("mode", ["checkpoint", "three"])
def test_a_stream_after_a_rollback_that_died_is_refused_with_the_number(
    tmp_path: Path, version: int, point: str, mode: str
) -> None:
    """The commit is not lost, and no file is to be restored: the stream goes back, and goes on."""
    table = made(tmp_path / "t", version)
    query = Query(tmp_path / "ck", Path(table.path), mode, "upsert")
    query.rows = [[row(f"k{n}", n)] for n in range(3)]
    query.run()
    query.rows += [[row(f"k{n}", n)] for n in range(3, 6)]
    query.run()
    dies(point, lambda: Table.open(table.path).rollback())
    with pytest.raises(InvalidTable, match=r"whose number is above \d+, the last batch"):
        query.run()


@versions
def test_a_rollback_after_a_restore_that_died_completes_the_restore(
    tmp_path: Path, version: int
) -> None:
    """Its own rollbacks are part of it: no other engine has to finish them."""
    table = made(tmp_path / "t", version)
    for n in range(4):
        upsert(table, row(f"k{n}", n))
    to = table.history()["requested_time"].iloc[1]
    dies("restore.rollback.post", lambda: Table.open(table.path).restore(to))
    assert {finding.code for finding in table.fsck()} == {"pending-instant"}
    with pytest.raises(InvalidConfig, match="not a completed commit"):
        Table.open(table.path).rollback()
    assert keys(Table.open(table.path)) == ["k0", "k1"] and table.fsck() == []


def test_a_write_that_completes_a_rollback_does_not_bring_its_columns_back(tmp_path: Path) -> None:
    """The rollback is completed before the columns of the write are compared with the table's."""
    table = made(tmp_path / "t", 6)
    upsert(table, row("a", 1))
    wide = schema_of().append(pa.field("x", pa.string()))
    commit_elsewhere(table.path, pa.Table.from_pylist([row("w", 3, x="X")], wide))
    dies("restore.rollback.post", lambda: Table.open(table.path).rollback())
    upsert(Table.open(table.path), row("b", 1))
    table = Table.open(table.path)
    assert keys(table) == ["a", "b"] and table.schema.names == schema_of().names


@versions
def test_a_time_while_a_dead_rollback_waits_is_refused_later(tmp_path: Path, version: int) -> None:
    """The commit was still visible then, so who read the table has its rows."""
    table = made(tmp_path / "t", version)
    upsert(table, row("a", 1))
    upsert(table, row("b", 3))
    dies("restore.rollback.post", lambda: Table.open(table.path).rollback())
    assert keys(Table.open(table.path)) == ["a", "b"]
    then = dt.datetime.now(dt.UTC)
    pass_milliseconds()
    upsert(Table.open(table.path), row("c", 9))
    table = Table.open(table.path)
    assert keys(table) == ["a", "c"]
    with pytest.raises(InvalidConfig, match="has undone it"):
        table.changes(since=then)


def test_a_time_at_which_a_commit_was_being_written_is_refused(tmp_path: Path) -> None:
    """Its rows were not visible then, although its instant is earlier: they would be left out."""
    table, seen = made(tmp_path / "t", 9), list[tuple[dt.datetime, list[str]]]()
    upsert(table, row("a", 1))

    def look() -> None:
        pass_milliseconds()
        seen.append((dt.datetime.now(dt.UTC), keys(Table.open(table.path))))

    failpoints.call("coord.commit.pre", look)
    try:
        upsert(Table.open(table.path), row("b", 1))
    finally:
        failpoints.arm("")
    [(then, had)] = seen
    assert had == ["a"]
    with pytest.raises(InvalidConfig, match="was being written at `since`"):
        table.changes(since=then)
    first = table.history()["requested_time"].iloc[0]
    assert table.changes(since=first)["id"].to_pylist() == ["b"]


@versions
def test_a_time_before_a_restore_whose_plan_was_deleted_is_refused(
    tmp_path: Path, version: int
) -> None:
    """The rollbacks of the restore say themselves that they have undone completed commits."""
    table = made(tmp_path / "t", version)
    for n in range(3):
        upsert(table, row(f"k{n}", n))
    to, then = str(table.history()["requested_time"].iloc[0]), dt.datetime.now(dt.UTC)
    dies("restore.withdrawn.post", lambda: Table.open(table.path).restore(to))
    for file in Path(table.path).glob(".hoodie/**/*.restore.*"):
        file.unlink()  # as an error advises for a plan that cannot be read
    upsert(Table.open(table.path), row("c", 9))
    table = Table.open(table.path)
    assert keys(table) == ["c", "k0", "k1"]
    with pytest.raises(InvalidConfig, match="has undone it"):
        table.changes(since=then)


@versions
@pytest.mark.parametrize("overtaken", [False, True])
def test_a_rollback_of_a_restore_whose_plan_was_deleted_is_given_up(
    tmp_path: Path, version: int, overtaken: bool
) -> None:
    """No other engine finishes it: the error says what to delete, and the restore is called again.

    The plan was deleted as an error advises: it could not be read, or another engine has written.
    """
    table = made(tmp_path / "t", version)
    for n in range(3):
        upsert(table, row(f"k{n}", n))
    to = str(table.history()["requested_time"].iloc[0])
    dies("restore.rollback.post", lambda: Table.open(table.path).restore(to))
    if overtaken:
        commit_elsewhere(table.path, pa.Table.from_pylist([row("j", 1)], schema_of()))
    for file in Path(table.path).glob(".hoodie/**/*.restore.*"):
        file.unlink()
    with pytest.raises(InvalidTable, match=r"undone nothing yet\. Delete the rollback's \.req"):
        Table.open(table.path).restore(to)
    for file in Path(table.path).glob(".hoodie/**/*.rollback.*"):
        file.unlink()
    Table.open(table.path).restore(to)
    assert keys(Table.open(table.path)) == ["k0"] and table.fsck() == []


@versions
def test_a_prepared_instant_whose_rollback_was_archived_is_written_again(
    tmp_path: Path, version: int
) -> None:
    """The archive shows that it was not archived: each row of the stream is there once."""
    table = made(tmp_path / "t", version)
    upsert(table, row("a", 1))
    query = Query(tmp_path / "ck", Path(table.path), "checkpoint", "insert")
    query.rows = [[row("k0", 0)]]
    query.run(dies="coord.prepare.post")
    handle = open_table(table.path)
    for pending in [i for i in handle.timeline.pending() if i.action == "commit"]:
        rollback = handle.timeline.begin(handle.timeline.request("rollback"))
        roll_back(handle, pending, keep_staged=True)
        handle.timeline.complete(rollback, encode(_METADATA, _metadata(rollback, pending, [])))
    own, kept = Path(table.path, ".hoodie/.hoodie_nb"), tmp_path / "kept"
    for name in ("prepared", "staged"):
        shutil.copytree(own / name, kept / name)
    shutil.rmtree(own / "prepared")  # another engine does not look at our records
    for n in range(3):
        commit_elsewhere(table.path, pa.Table.from_pylist([row(f"j{n}", n)], schema_of()))
    handle = open_table(table.path)
    *old, last = handle.timeline.completed_commits()
    done = handle.timeline.listing.completed("rollback")
    old += [i for i in done if i.requested_time < last.requested_time]
    plan = ArchivePlan(tuple(sorted(old, key=lambda i: i.requested_time)))
    archive(handle, plan, lambda *_, **__: None)
    for name in ("prepared", "staged"):
        shutil.copytree(kept / name, own / name, dirs_exist_ok=True)
    query.run()
    assert keys(Table.open(table.path)) == ["a", "j0", "j1", "j2", "k0"]
