"""Ways in which merge-on-read tables lose, double, revive or change rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from faults import Crash
from writes import commit_elsewhere

from hoodie_nb import Table
from hoodie_nb.actions.clean_plan import CleanPlan
from hoodie_nb.actions.clean_records import encode_plan as encode_clean
from hoodie_nb.actions.restore_plan import RestorePlan, encode_plan
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import HoodieError, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.evidence.outdated import Mark
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import settle
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.storage.local_storage import LocalStorage

pytestmark = pytest.mark.usefixtures("many_logs")
FLAG = "_hoodie_is_deleted"
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
FLAGGED = SCHEMA.append(pa.field(FLAG, pa.bool_()))
KEYS: dict[str, Any] = {"schema": SCHEMA, "record_key": "id", "partition_by": "p", "ordering": "ts"}


def row(key: str, ts: int, v: int = 0, p: str = "a", **more: Any) -> dict[str, Any]:
    """Return a row."""
    return {"id": key, "p": p, "ts": ts, "v": v, **more}


def make(root: Path, *, if_exists: str = "error", **options: Any) -> Table:
    """Create a merge-on-read table whose slices may all get logs."""
    own = {"hoodie_nb.append.above.bytes": 0, **options}
    return Table.create(root, if_exists=if_exists, options=own, table_type="merge_on_read", **KEYS)


def with_log(root: Path, **options: Any) -> Table:
    """Return a table with k0 to k4, and a log in which k1 is 555."""
    table = make(root, **options)
    table.upsert([row(f"k{n}", 1) for n in range(5)])
    table.upsert([row("k1", 5, 555)])
    return table


def values(root: Path) -> list[tuple[str, int]]:
    """Return key and value of all rows."""
    found = Table.open(root).to_arrow(meta=False).to_pylist()
    return sorted((r["id"], r["v"]) for r in found)


def test_a_replaced_table_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are deleted before the metadata file, which says that the folder is a partition."""
    with_log(tmp_path / "t")
    remove = LocalStorage.remove

    def dies(self: LocalStorage, path: str, *, tree: bool = False) -> bool:
        if ".log." in path:
            raise Crash
        return remove(self, path, tree=tree)

    monkeypatch.setattr(LocalStorage, "remove", dies)
    with pytest.raises(Crash):
        make(tmp_path / "t", if_exists="replace")
    monkeypatch.undo()
    table = make(tmp_path / "t", if_exists="replace")
    table.upsert([row("new", 1)])
    assert values(tmp_path / "t") == [("new", 0)]


def test_a_restore_of_another_engine_is_completed(tmp_path: Path) -> None:
    """Its log files are deleted: they would count again once the instant is archived."""
    with_log(tmp_path / "t")
    handle = open_table(tmp_path / "t")
    first, second = handle.timeline.completed_commits()
    undo = encode_plan(RestorePlan(first.requested_time, (second,)), {})
    handle.timeline.request("restore", undo)
    Table.open(tmp_path / "t").upsert([row("b0", 1, 1, "b")])
    assert values(tmp_path / "t") == [("b0", 1), *((f"k{n}", 0) for n in range(5))]
    assert [*(tmp_path / "t/a").glob(".*.log.*")] == []


def test_a_clean_of_another_engine_deletes_nothing_that_is_read(tmp_path: Path) -> None:
    """It is completed; a log of the newest slice stays, whatever the plan says."""
    with_log(tmp_path / "t")
    handle = open_table(tmp_path / "t")
    newest = handle.timeline.completed_commits()[-1]
    (piece,) = handle.file_groups()
    named = [path.rpartition("/")[2] for path in piece.paths]
    mark = Mark(0, newest.requested_time, frozenset())
    clean = CleanPlan("KEEP_LATEST_COMMITS", newest, newest.requested_time, mark, {"a": named})
    handle.timeline.request("clean", encode_clean(clean, handle.storage))
    Table.open(tmp_path / "t").upsert([row("b0", 1, 1, "b")])
    assert handle.timeline.pending() == []
    assert len(named) == 2
    assert all((tmp_path / "t/a" / name).exists() for name in named)
    assert ("k1", 555) in values(tmp_path / "t")


def test_a_lost_completed_file_is_noticed(tmp_path: Path) -> None:
    """A commit of logs only leaves no other trace than its logs, without markers."""
    with_log(tmp_path / "t")
    newest = max((tmp_path / "t/.hoodie/timeline").glob("*_*.deltacommit"))
    newest.unlink()
    with pytest.raises(InvalidTable, match="was completed"):
        Table.open(tmp_path / "t").upsert([row("k2", 2)])


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """No damage to a log shows other rows: they would be merged into the next base file."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1, n) for n in range(60)])
    table.upsert([row(f"k{n}", 2, n + 1000, **{FLAG: n % 3 == 0}) for n in range(30)])
    want = values(tmp_path / "t")
    log = next((tmp_path / "t/a").glob(".*.log.*"))
    data, draw = log.read_bytes(), random.Random(1)
    for _ in range(60):
        bad = bytearray(data)
        bad[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        log.write_bytes(bytes(bad))
        try:
            assert values(tmp_path / "t") == want
        except HoodieError:
            continue


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_a_late_row_of_an_open_instant_is_written_again(tmp_path: Path, kind: str) -> None:
    """Its log was superseded by a base file of the same instant, in which it lost."""
    options = {"hoodie_nb.append.above.bytes": 0} if kind == "merge_on_read" else {}
    root = tmp_path / "t"
    table = Table.create(root, table_type=kind, table_version=9, options=options, **KEYS)
    table.upsert([row(f"k{n}", 7) for n in range(5)])
    handle = open_table(root)
    coordinator = WriteCoordinator(handle, EventLog())
    settle(coordinator)
    intake = Intake(handle.config, handle.schema)
    for batch, rows in enumerate(([row("k1", 3, 333)], [row("k2", 9, 222)])):
        keyed = keyed_in_order(pa.Table.from_pylist(rows, SCHEMA), intake)
        open_records = coordinator.open_records()
        named = Checkpoint("q", batch, f"f{batch}")
        with coordinator.writing(intake, Shape(), named, open_records) as work:
            work.statuses = write_in_process(keyed, work.plan, EventLog())
        assert work.result is not None
        coordinator.prepare(work.result)
    commit_elsewhere(root, pa.Table.from_pylist([row("k1", 8)], SCHEMA), "delete")
    settle(WriteCoordinator(open_table(root), EventLog()))
    assert values(root) == [("k0", 0), ("k1", 333), ("k2", 222), ("k3", 0), ("k4", 0)]


@pytest.mark.parametrize("call", ["insert", "savepoint", "rollback", "insert_overwrite"])
def test_a_handle_of_the_table_before_is_refused(tmp_path: Path, call: str) -> None:
    """It was opened when the table was copy-on-write."""
    old = Table.create(tmp_path / "t", table_version=9, **KEYS)
    make(tmp_path / "t", if_exists="replace").upsert([row("k1", 1)])
    given = [[row("k1", 1)]] if call.startswith("insert") else []
    with pytest.raises(InvalidTable, match="merge-on-read"):
        getattr(old, call)(*given)


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_hudis_operation_as_a_column(tmp_path: Path, kind: str) -> None:
    """The column of Flink's changelogs deletes rows in logs: it is refused, or it is data."""
    schema = SCHEMA.append(pa.field("_hoodie_operation", pa.string()))
    options = {"hoodie_nb.append.above.bytes": 0} if kind == "merge_on_read" else {}
    keys = {**KEYS, "schema": schema}
    try:
        table = Table.create(
            tmp_path / "t", table_type=kind, table_version=9, options=options, **keys
        )
    except HoodieError:
        return
    table.upsert([row(f"k{n}", 1, _hoodie_operation="I") for n in range(3)])
    table.upsert([row("k1", 2, 1, _hoodie_operation="D")])
    assert [key for key, _ in values(tmp_path / "t")] == ["k0", "k1", "k2"]


def test_a_cut_log_with_deletes_gets_no_log_after_it(tmp_path: Path) -> None:
    """When it is restored, its tombstone would drop the row that was written since."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1) for n in range(3)])
    table.upsert([row("k1", 9, **{FLAG: True})])
    log = next((tmp_path / "t/a").glob(".*.log.*"))
    data = log.read_bytes()
    log.write_bytes(data[:-20])
    with pytest.raises(InvalidTable, match="log file"):
        Table.open(tmp_path / "t").upsert([row("k1", 5, 5)])


def test_deletes_do_not_count_as_bytes_of_rows(tmp_path: Path) -> None:
    """After many deletes and few rows in logs, new files would get a few rows each."""
    small = {"hoodie.parquet.small.file.limit": 100_000, "hoodie.parquet.max.file.size": 2_000_000}
    table = make(tmp_path / "t", **small)

    def rows(name: str, count: int, p: str, gone: int = 0) -> pa.Table:
        found = [row(f"{name}{n:08d}", 1, n, p, **{FLAG: n < gone}) for n in range(count)]
        return pa.Table.from_pylist(found, FLAGGED)

    table.upsert(rows("key-", 20_000, "a"))
    table.upsert(rows("key-", 9_000, "a", gone=8_990))
    commit = table.upsert(rows("new-", 20_000, "b"))
    assert commit is not None
    assert commit.files == 1
