"""What becomes a log file and what a new base file, in merge-on-read tables."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from each_fault import opened
from tables import Model, hudi_rows, without_meta
from writes import commit_elsewhere, write_uncommitted

from hoodie_nb import Table
from hoodie_nb.buckets import assigner, plan
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import settle
from hoodie_nb.records.progress import Checkpoint

pytestmark = pytest.mark.usefixtures("many_logs")
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
NARROW = SCHEMA.set(2, pa.field("ts", pa.int32()))
APPENDS = {"hoodie_nb.append.above.bytes": 0}
FLAG = "_hoodie_is_deleted"


def make(root: Path, schema: pa.Schema = SCHEMA, **given: Any) -> Table:
    """Create a merge-on-read table in which every slice may get logs."""
    options = {**APPENDS, **given.pop("options", {})}
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", **given}
    return Table.create(root, schema=schema, table_type="merge_on_read", options=options, **keys)


def row(key: str, ts: int, v: int = 0, p: str = "a", **more: Any) -> dict[str, Any]:
    """Return a row."""
    return {"id": key, "p": p, "ts": ts, "v": v, **more}


def slices(table: Table) -> list[int]:
    """Return how many logs each slice has, in the order of their first commits."""
    found = Table.open(table.path)._handle.file_groups()
    return sorted(len(piece.logs) for piece in found)


def values(table: Table) -> dict[str, int]:
    """Return the value of each key; hudi-rs must read the same rows."""
    found = Table.open(table.path).to_arrow(meta=False)
    assert hudi_rows(table.path) == without_meta(found)
    return {r["id"]: r["v"] for r in found.to_pylist()}


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("ordering", ["ts", None])
@pytest.mark.parametrize("seed", range(4))
def test_random_batches_equal_a_dict(
    tmp_path: Path, version: int, ordering: str | None, seed: int
) -> None:
    """Updates, late rows, ties, deletes, new keys, two partitions; two readers."""
    draw, model = random.Random(seed), Model(ordering=ordering)
    options = {"hoodie.compact.inline.max.delta.commits": draw.choice([2, 5, 10])}
    table = make(tmp_path / "t", ordering=ordering, table_version=version, options=options)
    most = 0
    for number in range(12):
        keys = draw.sample(range(40), draw.randint(1, 20))
        rows = [
            row(f"k{k}", draw.randrange(6) + number // 3, number, "ab"[k % 2], **{FLAG: flag})
            for k in keys
            for flag in [draw.random() < 0.2 and number % 3 == 2]
        ]
        table.upsert(rows)
        model.upsert(rows)
        found = Table.open(table.path).to_arrow(meta=False)
        assert without_meta(found) == model.snapshot()
        assert hudi_rows(table.path) == model.snapshot()
        most = max(most, *slices(table))
    assert most >= 2
    assert most <= options["hoodie.compact.inline.max.delta.commits"]


def test_known_keys_go_to_logs_and_new_ones_to_base_files(tmp_path: Path) -> None:
    """Engines that look keys up in base files find every key."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1) for n in range(20)])
    table.upsert([row("k3", 2, 5), row("new", 1, 6)])
    assert slices(table) == [0, 1]
    assert values(table)["k3"] == 5
    commit = Table.open(table.path)._handle
    (instant,) = commit.timeline.completed_commits()[-1:]
    stats = commit.commit_metadata(instant).files.values()
    assert instant.action == "deltacommit"
    kept = ("numInserts", "numUpdateWrites", "logFiles", "prevCommit")
    log = next(s for s in stats if s["path"].startswith("a/."))
    assert [log[name] for name in kept] == [0, 1, [log["path"][2:]], instant.requested_time]


def test_small_slices_are_rewritten_and_have_room(tmp_path: Path) -> None:
    """By default a slice below 1 MB gets no logs, and new keys go there."""
    table = make(tmp_path / "t", options={"hoodie_nb.append.above.bytes": "1 MB"})
    table.upsert([row("k1", 1)])
    table.upsert([row("k1", 2, 1), row("k2", 1, 2)])
    assert slices(table) == [0]
    assert values(table) == {"k1": 1, "k2": 2}


def test_a_late_row_after_a_delete_is_stored_as_in_copy_on_write(tmp_path: Path) -> None:
    """A log with deletes gets no log after it: its tombstone would drop, or restore, the row."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 4) for n in range(5)])
    table.upsert([row("k1", 5, **{FLAG: True})])
    table.delete([{"id": "k2", "p": "a"}])
    assert sorted(values(table)) == ["k0", "k3", "k4"]
    table.upsert([row("k1", 3, 7), row("k2", 3, 8)])
    assert values(table) == {"k0": 0, "k1": 7, "k2": 8, "k3": 0, "k4": 0}


def test_a_delete_of_the_integer_zero_is_no_log(tmp_path: Path) -> None:
    """Java writes 0 for "no value": such a delete would remove newer rows."""
    table = make(tmp_path / "t", NARROW)
    table.upsert([row("k1", 1, 1), row("k2", 0, 2)])
    table.upsert([row("k1", 0, **{FLAG: True}), row("k2", 0, **{FLAG: True})])
    assert slices(table) == [0]
    assert values(table) == {"k1": 1}
    table.upsert([row("k1", 1, **{FLAG: True})])
    assert slices(table) == [1]
    assert values(table) == {}


def test_a_slice_is_rewritten_when_it_has_enough_logs(tmp_path: Path) -> None:
    """Then it has none, and the log files of before stay for earlier snapshots."""
    options = {"hoodie.compact.inline.max.delta.commits": 1}
    table = make(tmp_path / "t", options=options)
    counts = []
    for number in range(6):
        table.upsert([row(f"k{n}", number, number) for n in range(5)])
        counts.append(slices(table))
    assert counts == [[0], [1], [0], [1], [0], [1]]
    times = Table.open(table.path).history()["requested_time"]
    for number, as_of in enumerate(times):
        found = Table.open(table.path).to_arrow(as_of=as_of, meta=False).to_pylist()
        assert {r["v"] for r in found} == {number}


def test_logs_larger_than_the_base_file_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader never reads much more in logs than in the base file."""
    monkeypatch.setattr(plan, "LOGS_PER_BASE", 0.1)
    table = make(tmp_path / "t")
    for number in range(4):
        table.upsert([row(f"k{n}", number, number) for n in range(5)])
    assert slices(table) == [1]


def test_keys_that_the_base_file_lacks_are_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the index says: the bloom filter is asked, and the slice rewritten."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1) for n in range(5)])
    monkeypatch.setattr(plan.WritePlan, "may_append", lambda self, piece: bool(piece.file_name))
    monkeypatch.setattr(
        assigner.BucketAssigner,
        "_small_files",
        lambda self, partition: [
            assigner.SmallFile(i, 9) for i in self._plan.groups.partition(partition)
        ],
    )
    table.upsert([row("new", 1, 9)])
    assert slices(table) == [0]
    assert values(table)["new"] == 9


def test_a_deleted_key_comes_back_into_a_base_file(tmp_path: Path) -> None:
    """After its slice was rewritten without it, the index does not find it there any more."""
    options = {"hoodie.compact.inline.max.delta.commits": 1}
    table = make(tmp_path / "t", options=options)
    table.upsert([row(f"k{n}", 1) for n in range(5)])
    table.upsert([row("k1", 2, **{FLAG: True})])
    table.upsert([row("k0", 3, 3)])  # merges the log: no key k1
    table.upsert([row("k1", 4, 4), row("k0", 4, 4)])
    found = Table.open(table.path)._handle.file_groups()
    bases = {piece.base_path for piece in found}
    keys = [
        key
        for path in bases
        for key in pq.read_table(Path(table.path, path), columns=["id"])["id"].to_pylist()
    ]
    assert sorted(keys) == ["k0", "k1", "k2", "k3", "k4"]
    assert values(table)["k1"] == 4


def test_a_checkpoint_that_was_overtaken_is_written_again(tmp_path: Path) -> None:
    """Rows and deletes of prepared logs are applied on top of what another writer has committed."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1) for n in range(6)])
    prepared(table, [row("k0", 3, 30), row("k1", 9, 90), row("k5", 2, **{FLAG: True})])
    assert slices(table) == [0]
    commit_elsewhere(table.path, pa.Table.from_pylist([row("k0", 5, 50), row("k1", 5)], SCHEMA))
    settle(WriteCoordinator(opened(Path(table.path)), EventLog()))
    assert values(table) == {"k0": 50, "k1": 90, "k2": 0, "k3": 0, "k4": 0}


def prepared(table: Table, rows: list[dict[str, Any]]) -> None:
    """Write a checkpoint of a stream whose success is not known yet."""
    handle = opened(Path(table.path))
    coordinator = WriteCoordinator(handle, EventLog())
    settle(coordinator)
    intake = Intake(handle.config, handle.schema)
    data = pa.Table.from_pylist(rows, SCHEMA.append(pa.field(FLAG, pa.bool_())))
    keyed = keyed_in_order(data, intake)
    result = write_uncommitted(
        coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog()), Shape()
    )
    assert any(status.is_log for status in result.statuses)
    coordinator.prepare(replace(result, checkpoints=(Checkpoint("q", 0, "f"),)))
