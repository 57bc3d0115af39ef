"""Overwriting partitions or the table is one replacecommit, which every reader and job follows."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from each_fault import each_fault
from lives import assert_at_rest
from tables import hudi_rows, schema_of, timeline_names, tree, upgrade, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import HoodieError, InvalidConfig, InvalidInput
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob

Row = dict[str, Any]
EMPTY = schema_of().empty_table()


def row(key: str, p: str, v: int) -> Row:
    """Return one row."""
    return {"id": key, "p": p, "ts": v, "v": v}


ROWS = [row("a", "x", 5), row("b", "x", 5), row("c", "y", 5)]


def table_of(path: Path, partition: str | None = "p", version: int = 6) -> Table:
    """Return a table with three rows in two partitions, and two commits."""
    table = Table.create(
        path / "t", schema=schema_of(), record_key="id", partition_by=partition, ordering="ts"
    )
    table.upsert(ROWS[:2])
    if version != 6:
        upgrade(table.path, version)
    table.upsert(ROWS[2:])
    return table


def found(table: Table) -> dict[tuple[str, str], int]:
    """Return the value of each key, after comparing the rows with those that hudi-rs reads."""
    rows = table.to_arrow(meta=False)
    assert hudi_rows(table.path) == without_meta(rows)
    assert table.fsck() == []
    return {(r["p"], r["id"]): r["v"] for r in rows.to_pylist()}


@pytest.mark.parametrize("version", [6, 8, 9])
def test_partitions_with_rows_are_replaced(tmp_path: Path, version: int) -> None:
    """The rows of a batch replace those of its partitions, older ordering values included."""
    table = table_of(tmp_path, version=version)
    commit = table.insert_overwrite([row("a", "x", 1), row("d", "x", 1)])
    assert commit is not None
    assert (commit.operation, commit.inserts, commit.updates) == ("insert_overwrite", 2, 0)
    assert found(table) == {("x", "a"): 1, ("x", "d"): 1, ("y", "c"): 5}
    assert table.timeline()["action"].iloc[-1] == "replacecommit"
    before = table.history()["requested_time"].iloc[-2]
    assert len(table.to_arrow(as_of=before)) == 3
    kinds = [(r["id"], r["_change"]) for r in table.changes(since=before).to_pylist()]
    assert sorted(kinds) == [("a", "update"), ("b", "delete"), ("d", "insert")]


@pytest.mark.parametrize("version", [6, 9])
def test_the_whole_table_is_replaced(tmp_path: Path, version: int) -> None:
    """With scope="table" only the new rows remain; without rows the table is empty."""
    table = table_of(tmp_path, version=version)
    commit = table.insert_overwrite([row("q", "z", 1)], scope="table")
    assert commit is not None
    assert commit.operation == "insert_overwrite_table"
    assert found(table) == {("z", "q"): 1}
    assert table.insert_overwrite(EMPTY) is None
    table.insert_overwrite(EMPTY, scope="table")
    assert found(table) == {}
    names = timeline_names(table.path)
    assert table.insert_overwrite(EMPTY, scope="table") is None
    assert table.insert_overwrite([], scope="table") is table.upsert([]) is None
    assert timeline_names(table.path) == names
    table.upsert(ROWS)
    assert len(found(table)) == 3


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_equal_those_of_a_dict(tmp_path: Path, seed: int) -> None:
    """Upserts, deletes and overwrites in turn give the rows of a dict, also to a new process."""
    rng = random.Random(seed)
    partition = rng.choice(["p", None])
    table, model = table_of(tmp_path, partition), {(r["p"], r["id"]): r["v"] for r in ROWS}
    for step in range(10, 22):
        folders = "xyz" if partition else "x"
        if partition is None and step == 10:
            table.insert_overwrite(ROWS[:1])
            model = {("x", "a"): 5}
        keys = rng.sample("abcdefg", rng.randrange(1, 5))
        given = [row(key, rng.choice(folders), step) for key in keys]
        values = {(r["p"], r["id"]): step for r in given}
        action = rng.choice(["upsert", "partitions", "table", "delete"])
        if action == "upsert":
            table.upsert(given)
            model |= values
        elif action == "delete":
            table.delete(given)
            model = {at: v for at, v in model.items() if at not in values}
        else:
            table.insert_overwrite(given, scope=action)
            gone = {r["p"] for r in given} if action == "partitions" else {*"xyz"}
            model = {at: v for at, v in model.items() if at[0] not in gone} | values
        assert found(Table.open(table.path) if step % 2 else table) == model
    assert found(table) == model


def test_of_several_rows_with_one_key_one_is_written(tmp_path: Path) -> None:
    """The merge rule chooses between the rows of a batch; a deleted one is left out."""
    table = table_of(tmp_path)
    rows = [row("a", "x", 3), row("a", "x", 2), row("b", "x", 1)]
    flags = pa.array([False, False, True])
    data = pa.Table.from_pylist(rows, schema_of()).append_column("_hoodie_is_deleted", flags)
    table.insert_overwrite(data)
    assert found(table) == {("x", "a"): 3, ("y", "c"): 5}


def test_bad_input_changes_nothing(tmp_path: Path) -> None:
    """An unknown scope or a bad row is refused, and the disk does not change."""
    table = table_of(tmp_path)
    before = tree(table.path)
    with pytest.raises(InvalidConfig, match=r"scope='all'.*partitions.*table"):
        table.insert_overwrite(ROWS, scope="all")
    with pytest.raises(InvalidInput, match="null or empty"):
        table.insert_overwrite([{**ROWS[0], "id": None}], scope="table")
    assert tree(table.path) == before


@pytest.mark.parametrize("index", ["state", "bloom", "bloom+state"])
def test_a_running_job_follows_an_overwrite(tmp_path: Path, index: str) -> None:
    """A key that an overwrite has removed is new to a job, one that it has written is known."""
    table, source = table_of(tmp_path), Source()
    state = str(tmp_path / "state")
    job = LocalJob(open_table(table.path), index=index, state_folder=state, source=source)

    def checkpoint(number: int, *rows: Row) -> None:
        job.write(pa.Table.from_pylist([*rows], schema_of()))
        job.checkpoint(number)
        job.complete(number)

    checkpoint(1, row("k", "x", 6), row("l", "x", 6))
    table.insert_overwrite([row("k", "x", 1)])
    checkpoint(2, row("l", "x", 7))
    assert found(table) == {("x", "k"): 1, ("x", "l"): 7, ("y", "c"): 5}
    if index != "state":  # it knows this job's keys only
        checkpoint(3, row("k", "x", 8))
        assert found(table)["x", "k"] == 8


@pytest.mark.parametrize(
    ("how", "version", "scope"),
    [
        ("before", 6, "partitions"),
        ("torn", 6, "table"),
        ("error", 9, "partitions"),
        ("before", 9, "table"),
    ],
)
def test_a_crash_at_any_operation_replaces_all_or_nothing(
    tmp_path: Path, how: str, version: int, scope: str
) -> None:
    """Readers see the old rows or the new ones; the next write recovers, and nothing is left."""
    source, after = Path(table_of(tmp_path, version=version).path), tmp_path / "after"

    def change(table: Table) -> object:
        return table.insert_overwrite([row("a", "x", 1), row("d", "x", 1)], scope=scope)

    shutil.copytree(source, after)
    change(Table.open(after))
    old, new = hudi_rows(source), hudi_rows(after)
    assert old != new
    for number, (root, _) in enumerate(each_fault(source, change, how, at_least=8)):
        assert hudi_rows(root) == without_meta(Table.open(root).to_arrow())
        assert hudi_rows(root) in (old, new)
        if number % 2 == 0:
            Table.open(root).fsck(repair=True)
            assert hudi_rows(root) in (old, new)
        else:
            change(Table.open(root))
            assert hudi_rows(root) == without_meta(Table.open(root).to_arrow()) == new
        assert_at_rest(root)


def test_a_pending_clustering_of_another_engine_is_left_alone(tmp_path: Path) -> None:
    """A replacecommit with a plan is refused; one without is an overwrite, and is rolled back."""
    table = table_of(tmp_path)
    later = str(int(table.history()["requested_time"].iloc[-1]) + 1)
    plan = Path(table.path, ".hoodie", f"{later}.replacecommit.requested")
    plan.write_bytes(b"a plan")
    with pytest.raises(HoodieError, match="another engine's plan"):
        table.upsert(ROWS)
    plan.write_bytes(b"")
    (finding,) = table.fsck()
    assert "repair" in finding.fix
    table.upsert(ROWS)
    assert not plan.exists()
    assert len(found(table)) == 3


def test_events_say_what_an_overwrite_did(tmp_path: Path) -> None:
    """The events of an overwrite name one instant, from its request to its commit."""
    table = table_of(tmp_path)
    table.events = EventLog()
    commit = table.insert_overwrite(ROWS)
    assert commit is not None
    kinds = {e.kind: e.values.get("instant") for e in table.events.records()}
    assert kinds["instant_requested"] == kinds["instant_committed"] == commit.requested_time
