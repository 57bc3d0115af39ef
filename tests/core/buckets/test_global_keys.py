"""Global keys: a record key is in one partition of the table, whatever the order of its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from replay import check_replay
from tables import hudi_rows, schema_of, without_meta
from writes import commit_elsewhere, run_checkpoint, write_and_commit

from hoodie_nb import InvalidConfig, InvalidInput, InvalidTable, Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.index import file_keys
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS
from hoodie_nb.records.progress import Checkpoint

Row = dict[str, Any]
SETTINGS = {"schema": schema_of(), "record_key": "id", "partition_by": "p", "ordering": "ts"}


def row(key: str, partition: str | None, ts: int, value: int = 0, **more: Any) -> Row:
    """Return a row of the small table."""
    return {"id": key, "p": partition, "ts": ts, "v": value, **more}


def places(table: Table) -> dict[str, list[tuple[str | None, int]]]:
    """Return the partition and ordering value of each row, by key, as both readers see them."""
    rows = table.to_arrow()
    assert hudi_rows(table.path) == without_meta(rows)
    found: dict[str, list[tuple[str | None, int]]] = {}
    for each in rows.to_pylist():
        found.setdefault(each["id"], []).append((each["p"], each["ts"]))
    return found


@pytest.fixture(params=[6, 9])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table with global keys, in which partition A has the keys `k` and `other` at 5."""
    made = Table.create(tmp_path / "t", global_index=True, table_version=request.param, **SETTINGS)
    made.upsert([row("k", "A", 5), row("other", "A", 5)])
    return made


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([row("k", "B", 6)], [("B", 6)]),
        ([row("k", "B", 5)], [("B", 5)]),
        ([row("k", "B", 4)], [("A", 5)]),
        ([row("k", None, 6)], [(None, 6)]),
        ([row("k", "B", 7), row("k", "C", 6)], [("B", 7)]),
        ([row("k", "B", 7), row("k", "C", 7)], [("C", 7)]),
        ([row("k", "B", 7), row("k", "A", 6)], [("B", 7)]),
        ([row("k", "A", 7), row("k", "B", 6)], [("A", 7)]),
        ([row("k", "B", 4), row("k", "C", 3)], [("A", 5)]),
        ([row("k", "B", 6, _hoodie_is_deleted=True)], None),
        ([row("k", "B", 4, _hoodie_is_deleted=True)], [("A", 5)]),
        ([row("k", "B", 6, _hoodie_is_deleted=True), row("k", "C", 7)], [("C", 7)]),
        ([row("k", "C", 6), row("k", "B", 7, _hoodie_is_deleted=True)], None),
        ([row("k", "C", 8), row("k", "B", 7, _hoodie_is_deleted=True)], [("C", 8)]),
    ],
)
def test_a_row_of_another_partition_moves_the_key_unless_it_is_late(
    table: Table, batch: list[Row], expected: list[tuple[str | None, int]] | None
) -> None:
    """The greatest ordering value decides over all partitions, the newer arrival among equals."""
    flagged = [{"_hoodie_is_deleted": False, **each} for each in batch]
    table.upsert(flagged)
    found = places(table)
    assert (found.pop("k", None), found) == (expected, {"other": [("A", 5)]})
    assert len(table.timeline()) <= 2, "a move is one instant"


def test_a_key_that_moves_there_and_back_is_known_at_its_new_place(table: Table) -> None:
    """The index still has the key at its old places, in one process and in the next."""
    for ts, partition in enumerate("BCABABCA", start=6):
        table.upsert([row("k", partition, ts)])
        assert places(table)["k"] == [(partition, ts)]
        table.upsert([row("k", "late", 5)])
        assert places(table)["k"] == [(partition, ts)]
    assert places(Table.open(table.path)) == places(table)
    check_replay(open_table(table.path), None, None)
    assert table.fsck() == []


@pytest.mark.parametrize("narrow", [0, 0xFF])
def test_keys_that_share_a_hash_move_on_their_own(table: Table, narrow: int) -> None:
    """A key in one partition is not taken for another key with the same hash in a second one."""
    keys = [f"k{number}" for number in range(40)]
    file_keys.MASK = narrow
    try:
        table.upsert([row(key, "A", 10) for key in keys[:20]])
        table.upsert([row(key, "B", 10) for key in keys[20:]])
        table.upsert([row(key, "B", 11) for key in keys[::2]] + [row(keys[1], "B", 9)])
    finally:
        file_keys.MASK = (1 << 64) - 1
    expected = {key: [("A" if int(key[1:]) < 20 else "B", 10)] for key in keys}
    expected |= {key: [("B", 11)] for key in keys[::2]}
    assert {key: found for key, found in places(table).items() if key in expected} == expected


def test_a_delete_needs_no_right_partition(table: Table) -> None:
    """Rows of keys delete the key where it is; with an ordering value only if it is not newer."""
    late = table.delete([{"id": "k", "p": "B", "ts": 4}])
    assert late is not None and late.deletes == 0
    assert places(table)["k"] == [("A", 5)]
    commit = table.delete([{"id": "k", "p": "B"}, {"id": "unknown", "p": "B"}])
    assert commit is not None and commit.deletes == 1
    assert places(table) == {"other": [("A", 5)]}


def test_without_an_ordering_column_the_newer_arrival_moves(tmp_path: Path) -> None:
    """Every later row moves its key."""
    table = Table.create(
        tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p", global_index=True
    )
    for partition, ts in (("A", 5), ("B", 1), ("C", 9), ("A", 0)):
        table.upsert([row("k", partition, ts)])
        assert places(table) == {"k": [(partition, ts)]}


def test_insert_adds_only_keys_that_the_table_does_not_have(table: Table) -> None:
    """A known key, or one that is twice in the batch, is refused with its name; nothing changes."""
    before = table.to_arrow()
    for batch, text in (
        ([row("new", "B", 1), row("k", "B", 9)], "key 'k' is in partition 'A' already"),
        ([row("k", "A", 9)], "key 'k' is in partition 'A' already"),
        ([row("new", "B", 1), row("new", "C", 1)], "the batch has key 'new' more than once"),
    ):
        with pytest.raises(InvalidInput, match=text):
            table.insert(batch)
    assert table.to_arrow().equals(before) and len(table.timeline()) == 1
    table.insert([row("new", "B", 1)])
    assert places(table)["new"] == [("B", 1)]


def test_overwriting_the_table_writes_each_key_once(table: Table) -> None:
    """The table is replaced by one row per key."""
    table.insert_overwrite([row("k", "B", 1), row("k", "C", 2), row("x", "A", 1)], scope="table")
    assert places(table) == {"k": [("C", 2)], "x": [("A", 1)]}


REFUSED: dict[str, Callable[[Table], object]] = {
    "insert_overwrite of partitions": lambda t: t.insert_overwrite([row("k", "B", 9)]),
    "bulk_insert into a table with rows": lambda t: t.bulk_insert([row("n", "B", 9)]),
    "LocalJob": lambda t: LocalJob(t._handle),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_keep_keys_unique_is_refused_by_name(table: Table, what: str) -> None:
    """The error names the option and the remedy, and nothing is written."""
    names = sorted(str(path) for path in Path(table.path).rglob("*"))
    with pytest.raises(InvalidConfig, match=rf"{what} is not supported .*global_index=True.*: use"):
        REFUSED[what](table)
    assert sorted(str(path) for path in Path(table.path).rglob("*")) == names


def test_partial_updates_with_global_keys_are_refused(tmp_path: Path) -> None:
    """A row that moves would have to take values along."""
    with pytest.raises(InvalidConfig, match="choose"):
        Table.create(tmp_path / "t", global_index=True, merge_mode="partial", **SETTINGS)


def test_an_existing_table_keeps_its_kind_of_keys(table: Table, tmp_path: Path) -> None:
    """A table is opened with the kind of keys that it was created with, or refused."""
    with pytest.raises(InvalidConfig, match="global_keys"):
        Table.create(table.path, if_exists="open", **SETTINGS)
    plain = Table.create(tmp_path / "plain", **SETTINGS)
    with pytest.raises(InvalidConfig, match="global_keys"):
        Table.create(plain.path, if_exists="open", global_index=True, **SETTINGS)


def test_a_lost_property_is_noticed(table: Table) -> None:
    """Without the line that makes keys global a write would duplicate them: it is refused."""
    properties = Path(table.path, ".hoodie", "hoodie.properties")
    lines = properties.read_text().splitlines(keepends=True)
    assert "hoodie.index.type=GLOBAL_BLOOM\n" in lines
    properties.write_text("".join(x for x in lines if "hoodie.index.type" not in x))
    with pytest.raises(InvalidTable, match="global_keys=False"):
        Table.open(table.path).upsert([row("k", "B", 9)])


def test_a_table_of_an_older_version_is_written_as_before(tmp_path: Path) -> None:
    """Its kept rules do not name global keys, which means that it has none."""
    table = Table.create(tmp_path / "t", **SETTINGS)
    rules = Path(table.path, ".hoodie", ".hoodie_nb", "rules.json")
    assert json.loads(rules.read_bytes())
    table.upsert([row("k", "A", 5)])
    table.upsert([row("k", "B", 1)])
    assert places(table) == {"k": [("A", 5), ("B", 1)]}


def test_a_table_without_partitions_has_global_keys_anyway(tmp_path: Path) -> None:
    """The option changes nothing there, so nothing is refused."""
    settings = {**SETTINGS, "partition_by": None}
    table = Table.create(tmp_path / "t", global_index=True, **settings)
    table.upsert([row("k", "A", 5)])
    table.bulk_insert([row("n", "B", 5)])
    assert Table.create(tmp_path / "t", global_index=True, if_exists="open", **settings)
    assert places(table) == {"k": [("A", 5)], "n": [("B", 5)]}


def test_rows_that_another_engine_moved_are_found(table: Table) -> None:
    """Its files are not in the state index: key ranges and blooms find the key there."""
    commit_elsewhere(table.path, pa.Table.from_pylist([row("k", "C", 6)], schema=schema_of()))
    table.upsert([row("k", "D", 5)])
    assert places(table)["k"] == [("C", 6)]
    table.upsert([row("k", "D", 7)])
    assert places(table)["k"] == [("D", 7)]


def test_a_key_that_another_engine_doubled_is_found_and_repaired(table: Table) -> None:
    """Without a global index it stores a key twice: fsck says so, and the winner is kept."""
    twice = pa.Table.from_pylist([row("k", "C", 6), row("x", "A", 1)], schema=schema_of())
    commit_elsewhere(table.path, twice, global_keys=False)
    (found,) = table.fsck()
    assert found.what == "the table has 1 duplicate keys"
    table.fsck(repair="deduplicate")
    assert places(table) == {"k": [("C", 6)], "other": [("A", 5)], "x": [("A", 1)]}
    assert table.fsck() == []
    commit_elsewhere(table.path, twice.slice(0, 1).set_column(1, "p", [["B"]]), global_keys=False)
    table.upsert([row("k", "D", 7)])
    assert places(table)["k"] == [("D", 7)]


def test_clustering_restore_and_savepoints_keep_a_move_whole(table: Table) -> None:
    """Undoing the instant of a move puts the key back; small files are merged around it."""
    first = table.timeline()["requested_time"].iloc[-1]
    table.savepoint()
    table.upsert([row("k", "B", 6), row("b", "B", 6)])
    table.restore(first)
    assert places(table) == {"k": [("A", 5)], "other": [("A", 5)]}
    table.upsert([row("k", "B", 6), row("b", "B", 6)])
    table.cluster()
    table.upsert([row("k", "A", 6), row("b", "A", 5)])
    assert places(table) == {"k": [("A", 6)], "other": [("A", 5)], "b": [("B", 6)]}


def test_a_late_row_is_decided_again_on_a_changed_table(table: Table) -> None:
    """It lost when its checkpoint was prepared; the stored row is deleted then: it is in B, not A.

    A row that had moved the key from A then moves it from C, where another writer has put it.
    """
    handle, events = open_table(table.path), EventLog()
    intake, coordinator = Intake(handle.config, schema_of()), WriteCoordinator(handle, events)
    protocol = Checkpointing(coordinator, intake, Shape(), IN_PROCESS)
    batch = pa.Table.from_pylist([row("k", "B", 4), row("other", "B", 8)], schema=schema_of())
    keyed = keyed_in_order(batch, intake)
    checkpoint = Checkpoint("q", 0, "f" * 64)
    run_checkpoint(protocol, checkpoint, None, lambda plan: write_in_process(keyed, plan, events))
    schema = schema_of().append(pa.field("_hoodie_is_deleted", pa.bool_()))
    other = [row("k", "A", 9, _hoodie_is_deleted=True), row("other", "C", 7)]
    elsewhere = open_table(table.path)
    theirs = keyed_in_order(pa.Table.from_pylist(other, schema=schema), intake)
    write_and_commit(
        WriteCoordinator(elsewhere, events),
        intake,
        lambda plan: write_in_process(theirs, plan, events),
        Shape(index="bloom"),
    )
    protocol.complete()
    assert len(events.records("instant_redone")) == 1
    assert places(table) == {"k": [("B", 4)], "other": [("B", 8)]}
    (kept,) = table.to_arrow(partitions=["B"]).filter(pc.field("id") == "k").to_pylist()
    assert kept["_hoodie_partition_path"] == "B" and table.fsck() == []


@pytest.mark.parametrize("small", [0, 104_857_600])
@pytest.mark.parametrize("orders", [(7, 5), (5, 7), (9, 8, 7), (4, 5)])
def test_copies_in_one_partition_move_together_or_are_refused(
    tmp_path: Path, orders: tuple[int, ...], small: int
) -> None:
    """Another engine inserts copies: a row that only some of them are newer than is refused."""
    options = {"hoodie.parquet.small.file.limit": small}
    made = Table.create(tmp_path / "t", global_index=True, options=options, **SETTINGS)
    for ts in orders:
        copy = pa.Table.from_pylist([row("k", "A", ts)], schema=schema_of())
        commit_elsewhere(made.path, copy, "insert", global_keys=False)
    before = places(made)
    assert sorted(before["k"]) == sorted(("A", ts) for ts in orders)
    batch = [row("k", "B", 6)]
    if min(orders) <= 6 < max(orders):
        with pytest.raises(InvalidTable, match=r"'A' has key 'k' more.*repair=.deduplicate"):
            made.upsert(batch)
        assert places(made) == before
        made.fsck(repair="deduplicate")
    made.upsert(batch)
    found = places(made)["k"]
    assert found == ([("B", 6)] if max(orders) <= 6 else found) and max(t for _, t in found) >= 6
    assert {p for p, _ in found} == ({"B"} if max(orders) <= 6 else {"A"})
