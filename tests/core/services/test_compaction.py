"""`table.compact()`: logs become base files, and no row, snapshot or change is another one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from each_fault import opened
from foreign_logs import log_elsewhere
from index_truth import index_gaps
from lives import SCHEMA, assert_at_rest
from replay import check_replay
from tables import Model, hudi_rows, hudi_table, timeline_names, tree, without_meta
from writes import commit_elsewhere, write_uncommitted

from hoodie_nb import Table, failpoints
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import ConcurrentWriter, InvalidConfig, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import settle
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.services.compact import CompactedSlice
from hoodie_nb.types.schema import FILE_NAME

pytestmark = pytest.mark.usefixtures("many_logs")
FLAG = "_hoodie_is_deleted"
versions = pytest.mark.parametrize("version", [8, 9])


def row(key: str, ts: int, v: int = 0, p: str = "a", **more: Any) -> dict[str, Any]:
    """Return a row."""
    return {"id": key, "p": p, "ts": ts, "v": v, **more}


def make(root: Path, version: int = 9, **options: Any) -> Table:
    """Create a merge-on-read table in which every slice may get logs."""
    return Table.create(
        root,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        table_type="merge_on_read",
        table_version=version,
        options={"hoodie_nb.append.above.bytes": 0, **options},
    )


def batches() -> list[list[dict[str, Any]]]:
    """Return batches that leave two logs in partition a, one with deletes, and one in b."""
    return [
        [row(f"k{n}", 10, n, "ab"[n % 2]) for n in range(12)],
        [row("k0", 11, 100), row("k2", 5, 101), row("k1", 12, 102, "b")],
        [row("k4", 12, 103), row("k6", 13, **{FLAG: True})],
    ]


def logged(root: Path, version: int = 9) -> tuple[Table, Model]:
    """Return a table whose two slices have logs, and its model."""
    table = make(root, version)
    model = Model()
    for batch in batches():
        table.upsert(batch)
        model.upsert(batch)
    assert logs(table) == [2, 1]
    return table, model


def logs(table: Table) -> list[int]:
    """Return how many logs each slice has, by partition."""
    return [*Table.open(table.path).file_groups()["logs"]]


def check(table: Table, model: Model) -> None:
    """This library and hudi-rs read the model's rows."""
    found = Table.open(table.path).to_arrow()
    assert without_meta(found) == model.snapshot()
    assert hudi_rows(table.path) == model.snapshot()


def meta(rows: pa.Table) -> list[str]:
    """Return the rows with their meta columns but the file's name, sorted."""
    return sorted(map(repr, rows.drop_columns(FILE_NAME).to_pylist()))


@versions
def test_logs_become_base_files(tmp_path: Path, version: int) -> None:
    """In one delta commit; rows keep commit times; the past and the changes are as they were."""
    table, model = logged(tmp_path / "t", version)
    before = meta(table.to_arrow())
    times = [*table.history()["requested_time"]]
    past = {time: meta(table.to_arrow(as_of=time)) for time in times}
    groups = set(table.file_groups()["file_id"])
    done = table.compact()
    assert (len(done.slices), done.logs) == (2, 3)
    assert logs(table) == [0, 0]
    check(table, model)
    assert meta(table.to_arrow()) == before
    theirs = hudi_table(table.path)
    assert theirs is not None
    assert meta(theirs) == before
    assert set(table.file_groups()["file_id"]) == groups
    for time, rows in past.items():
        assert meta(table.to_arrow(as_of=time)) == rows
        assert hudi_rows(table.path, time) == without_meta(table.to_arrow(as_of=time))
    assert table.changes(since=times[-1]).num_rows == 0
    for since, until in itertools.combinations([*times, done.requested_time], 2):
        check_replay(table._handle, since, until)
    last = table.history().iloc[-1]
    assert (last["requested_time"], last["operation"]) == (done.requested_time, "compact")
    assert all("deltacommit" in name for name in timeline_names(tmp_path / "t"))
    assert_at_rest(tmp_path / "t")
    assert table.compact().requested_time is None
    assert len(table.history()) == len(times) + 1


@versions
def test_writes_go_on(tmp_path: Path, version: int) -> None:
    """Updates become logs of the new slices, deleted keys are new ones; the index finds all."""
    table, model = logged(tmp_path / "t", version)
    table.compact()
    assert index_gaps(table._handle) == []
    for batch in ([row("k0", 20, 7), row("k1", 20, 8, "b")], [row("k6", 1, 9), row("new", 1, 1)]):
        table.upsert(batch)
        model.upsert(batch)
        check(table, model)
    table.upsert([row("k2", 21, 5)])
    model.upsert([row("k2", 21, 5)])
    assert max(logs(table)) >= 1
    table.compact()
    check(table, model)
    assert index_gaps(table._handle) == []
    assert_at_rest(tmp_path / "t")


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    """It says which slices, how many logs and bytes, and needs no lock."""
    table, _ = logged(tmp_path / "t")
    before = tree(table.path)
    done = table.compact(dry_run=True)
    assert tree(table.path) == before
    listed = table.file_groups()
    columns = ["partition_path", "file_id", "size_bytes", "logs", "log_bytes"]
    rows = [tuple(values) for values in listed[columns].itertuples(index=False)]
    assert done.slices == tuple(CompactedSlice(*values) for values in rows)
    assert done.requested_time is None
    size = sum(path.stat().st_size for path in Path(table.path).glob("*/.*.log.*"))
    assert done.log_bytes == size == listed["log_bytes"].sum()
    assert repr(done) == (
        f"<Compacted: 2 slices to merge, 3 log files, {done.log_bytes:,} bytes of logs>"
    )
    assert "1 log of" in done._repr_html_()


def test_only_some_partitions(tmp_path: Path) -> None:
    """Others keep their logs; unknown ones are refused."""
    table, model = logged(tmp_path / "t")
    assert [s.partition_path for s in table.compact(partitions=["b"]).slices] == ["b"]
    assert logs(table) == [2, 0]
    check(table, model)
    with pytest.raises(InvalidConfig, match="nowhere"):
        table.compact(partitions=["nowhere"])


def test_tables_without_logs(tmp_path: Path) -> None:
    """There is nothing to do, also in copy-on-write tables, whose listing has no such columns."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    table.upsert([row("k1", 1)])
    assert table.compact().slices == ()
    assert "logs" not in table.file_groups()
    assert len(table.history()) == 1


def test_a_slice_of_deleted_rows_only(tmp_path: Path) -> None:
    """Its new base file has no row; its keys are new ones afterwards."""
    table = make(tmp_path / "t")
    table.upsert([row("k1", 1), row("k2", 1, p="b")])
    table.upsert([row("k1", 2, **{FLAG: True})])
    table.compact()
    model = Model()
    model.upsert([row("k2", 1, p="b")])
    check(table, model)
    table.upsert([row("k1", 3, 5)])
    model.upsert([row("k1", 3, 5)])
    check(table, model)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    """Nothing is changed: a base file without its rows would lose them for ever."""
    table, _ = logged(tmp_path / "t")
    gone = min(Path(table.path, "a").glob(".*.log.*"))
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(InvalidTable, match=rf"{gone.name} is missing"):
        Table.open(table.path).compact()
    gone.write_bytes(content)
    assert logs(table) == [2, 1]
    assert_at_rest(tmp_path / "t")


def test_a_commit_in_between_is_noticed(tmp_path: Path) -> None:
    """Its rows are in no base file of the compaction, which is rolled back."""
    table, model = logged(tmp_path / "t")
    between = [row("k0", 30, 30), row("k8", 30, 31)]

    def act() -> None:
        failpoints.arm("")
        commit_elsewhere(table.path, pa.Table.from_pylist(between, SCHEMA))

    failpoints.call("coord.statuses.pre", act)
    with pytest.raises(ConcurrentWriter, match="another writer changed"):
        table.compact()
    model.upsert(between)
    check(table, model)
    table.compact()
    check(table, model)
    assert logs(table) == [0, 0]
    assert_at_rest(tmp_path / "t")


def test_a_compaction_is_not_undone_alone(tmp_path: Path) -> None:
    """As a clustering: it changed no row."""
    table, _ = logged(tmp_path / "t")
    table.compact()
    with pytest.raises(InvalidConfig, match="only merged files"):
        table.rollback()


# --- logs of other engines -----------------------------------------------------------------------


def foreign(table: Table, model: Model) -> None:
    """Commit another engine's log in partition a: an update, a new key and a delete."""
    listed = table.file_groups()
    (file_id,) = listed.query("partition_path == 'a'")["file_id"]
    rows = [row("k0", 40, 40), row("theirs", 40, 41)]
    log_elsewhere(table.path, file_id, rows, [("k2", 50)])
    model.upsert([*rows, row("k2", 50, **{FLAG: True})])


@versions
def test_other_engines_logs_are_merged_and_writes_go_on(tmp_path: Path, version: int) -> None:
    """Their new keys are in the base file then, where the index finds them."""
    table, model = logged(tmp_path / "t", version)
    foreign(table, model)
    table = Table.open(table.path)
    check(table, model)
    with pytest.raises(InvalidTable, match=r"another engine.*call Table\.compact"):
        table.upsert([row("theirs", 60, 60)])
    table.compact()
    check(table, model)
    assert index_gaps(table._handle) == []
    (path,) = table.file_groups().query("partition_path == 'a'")["file_name"]
    keys = pq.read_table(Path(table.path, "a", path), columns=["id"])["id"].to_pylist()
    assert "theirs" in keys
    for index in range(3):
        batch = [row("theirs", 60 + index, index), row("k2", 60, index)]
        table.upsert(batch)
        model.upsert(batch)
        check(Table.open(table.path), model)
    assert_at_rest(tmp_path / "t")


def test_a_failed_compaction_opens_no_door(tmp_path: Path) -> None:
    """The same open table still refuses other engines' logs afterwards."""
    table, model = logged(tmp_path / "t")
    foreign(table, model)
    gone = next(Path(table.path, "b").glob(".*.log.*"))
    content = gone.read_bytes()
    gone.unlink()
    table = Table.open(table.path)
    with pytest.raises(InvalidTable, match="is missing"):
        table.compact()
    gone.write_bytes(content)
    with pytest.raises(InvalidTable, match="log file of another engine"):
        table.upsert([row("theirs", 60, 60)])
    check(table, model)
    with pytest.raises(InvalidTable, match="log file of another engine"):
        table.cluster()


def test_a_file_group_of_logs_only_gets_a_base_file(tmp_path: Path) -> None:
    """Engines that index logs put new keys there."""
    table, model = logged(tmp_path / "t")
    rows = [row("only", 40, 40), row("other", 40, 41)]
    log_elsewhere(table.path, "11111111-2222-3333-4444-555555555555-0", rows)
    model.upsert(rows)
    table = Table.open(table.path)
    check(table, model)
    done = table.compact()
    assert [s.size_bytes for s in done.slices].count(0) == 1
    check(table, model)
    assert "" not in set(table.file_groups()["file_name"])
    table.upsert([row("only", 41, 1)])
    model.upsert([row("only", 41, 1)])
    check(table, model)
    assert_at_rest(tmp_path / "t")


def prepared(table: Table, rows: list[dict[str, Any]]) -> None:
    """Write a checkpoint of a stream whose success is not known yet."""
    handle = opened(Path(table.path))
    coordinator = WriteCoordinator(handle, EventLog())
    settle(coordinator)
    intake = Intake(handle.config, handle.schema)
    keyed = keyed_in_order(pa.Table.from_pylist(rows, SCHEMA), intake)
    result = write_uncommitted(
        coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog()), Shape()
    )
    coordinator.prepare(replace(result, checkpoints=(Checkpoint("q", 0, "f"),)))


def test_a_prepared_checkpoint_is_committed_first(tmp_path: Path) -> None:
    """Then its logs are merged, too; in a slice whose log has deletes it has left none."""
    table, model = logged(tmp_path / "t")
    prepared(table, [row("k0", 35, 35), row("k1", 35, 36, "b")])
    model.upsert([row("k0", 35, 35), row("k1", 35, 36, "b")])
    assert table.compact().logs == 2
    check(table, model)
    assert_at_rest(tmp_path / "t")


def test_an_overtaken_checkpoint_is_no_dead_end(tmp_path: Path) -> None:
    """It cannot be written again onto another engine's logs; after the compaction it can."""
    table, model = logged(tmp_path / "t")
    late = [row("k0", 45, 45), row("theirs", 35, 36)]
    prepared(table, late)
    foreign(table, model)
    table = Table.open(table.path)
    with pytest.raises(InvalidTable, match="log file of another engine"):
        table.upsert([row("z", 1, 1, "z")])
    table.compact()
    check(table, model)
    table.upsert([row("z", 1, 1, "z")])
    model.upsert([*late, row("z", 1, 1, "z")])
    check(table, model)
    assert_at_rest(tmp_path / "t")
