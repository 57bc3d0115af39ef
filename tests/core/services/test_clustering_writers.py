"""Jobs, other engines and other services go on across a clustering."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_files import NO_FILLING, Row, check, meta_of, model_of, row, table_of
from tables import (
    data_files,
    hudi_rows,
    schema_of,
    timeline_names,
    without_meta,
)

from hoodie_nb import Table, failpoints
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.in_process import keyed_in_order, write_in_process


def upsert_elsewhere(root: str, given: list[Row]) -> None:
    """Commit rows like another engine, which does not know our lock."""
    handle, events = open_table(root), EventLog()
    intake = Intake(handle.config, handle.schema)
    keyed = keyed_in_order(pa.Table.from_pylist(given, schema_of()), intake)
    with WriteCoordinator(handle, events).committing(intake) as work:
        work.statuses = write_in_process(keyed, work.plan, events)


@pytest.mark.parametrize("index", ["bloom+state", "bloom", "state"])
def test_a_running_job_follows_a_clustering(tmp_path: Path, index: str) -> None:
    """Its keys are updated in the new files; a job that knows its keys by file only is refused."""
    table, source = table_of(tmp_path), Source()
    state = str(tmp_path / "state")
    job = LocalJob(open_table(table.path), index=index, state_folder=state, source=source)
    model = model_of(table)

    def checkpoint(number: int, *rows: Row) -> None:
        job.write(pa.Table.from_pylist([*rows], schema_of()))
        job.checkpoint(number)
        job.complete(number)
        model.upsert(rows)

    checkpoint(1, row(200, 6), row(201, 6))
    done = table.cluster()
    assert done.files == 13
    if index == "state":
        with pytest.raises(InvalidTable, match=r"keys of partition 'x'.*index='bloom\+state'"):
            checkpoint(2, row(200, 7))
        check(table, model)
    else:
        checkpoint(2, row(200, 7), row(300, 7), row(4, 7))
        check(table, model)
        table.cluster()
        checkpoint(3, row(200, 8), row(300, 6))
        check(table, model)


def test_prepared_checkpoints_are_committed_first(tmp_path: Path) -> None:
    """What a job has prepared is in the new files, and its checkpoint is not applied again."""
    table, source = table_of(tmp_path), Source()
    job = LocalJob(open_table(table.path), source=source)
    model = model_of(table)
    job.write(pa.Table.from_pylist([row(0, 9), row(400, 9)], schema_of()))
    job.checkpoint(1)
    model.upsert([row(0, 9), row(400, 9)])
    other = Table.open(table.path)
    done = other.cluster()
    assert done.files == 13
    check(table, model)
    job.complete(1)
    check(table, model)
    job.write(pa.Table.from_pylist([row(0, 10), row(400, 8)], schema_of()))
    job.checkpoint(2)
    job.complete(2)
    model.upsert([row(0, 10), row(400, 8)])
    check(table, model)


def test_a_commit_of_another_engine_in_between_is_noticed(tmp_path: Path) -> None:
    """A clustering is given up if the table changes before its commit: no update is lost."""
    table = table_of(tmp_path)
    model, given = model_of(table), [row(0, 9), row(500, 9)]

    def write_elsewhere() -> None:
        failpoints.arm("")
        upsert_elsewhere(table.path, given)

    failpoints.call("coord.statuses.pre", write_elsewhere)
    try:
        with pytest.raises(ConcurrentWriter, match="another writer changed"):
            table.cluster()
    finally:
        failpoints.arm("")
    model.upsert(given)
    check(table, model)
    table.cluster()
    check(table, model)


@pytest.mark.parametrize("version", [6, 9])
def test_rows_that_do_not_fit_into_memory_are_sorted_on_disk(tmp_path: Path, version: int) -> None:
    """With a tiny buffer every source is a run on disk; the result is the same, nothing is left."""
    table = table_of(tmp_path, version, **{"write.batch.size": 1})
    model, before = model_of(table), meta_of(table)
    done = table.cluster()
    assert done.new_files == 2
    assert meta_of(table) == before
    check(table, model)
    for path in (p for p in data_files(table.path) if str(done.requested_time) in p):
        keys = pq.read_table(f"{table.path}/{path}")["id"].to_pylist()
        assert keys == sorted(keys)


def test_partial_updates_go_on_in_the_new_files(tmp_path: Path) -> None:
    """A null keeps the value that was stored before the clustering, and late rows fill nulls."""
    table = Table.create(
        tmp_path / "t",
        schema=schema_of(),
        record_key="id",
        ordering="ts",
        merge_mode="partial",
        options=NO_FILLING,
    )
    table.upsert([{"id": "a", "p": "1", "ts": 5, "v": None}])
    table.upsert([{"id": "b", "p": None, "ts": 5, "v": 2}])
    assert table.cluster().files == 2
    table.upsert(
        [{"id": "a", "p": None, "ts": 4, "v": 7}, {"id": "b", "p": "2", "ts": 6, "v": None}]
    )
    rows = {r["id"]: (r["p"], r["ts"], r["v"]) for r in table.to_arrow().to_pylist()}
    assert rows == {"a": ("1", 5, 7), "b": ("2", 6, 2)}
    assert hudi_rows(table.path) == without_meta(table.to_arrow())


def test_clusterings_are_cleaned_and_archived(tmp_path: Path) -> None:
    """The replacecommit leaves the timeline only after the old files: no row comes back."""
    options = {"hoodie.clean.commits.retained": 1, "hoodie.keep.min.commits": 2}
    table = table_of(tmp_path, **options, **{"hoodie.keep.max.commits": 3})
    model = model_of(table)
    for step in range(3, 12):
        given = [row(step, step), row(200 + step, step)]
        table.upsert(given)
        model.upsert(given)
        if step % 3 == 0:
            table.cluster()
        check(table, model)
    times = [name[:17] for name in timeline_names(table.path) if "commit" in name]
    assert len({*times}) < 8


def test_a_savepoint_keeps_the_small_files(tmp_path: Path) -> None:
    """A clean after a clustering deletes no file that a savepoint reads."""
    table = table_of(tmp_path)
    model, kept = model_of(table).snapshot(), data_files(table.path)
    saved = table.savepoint()
    table.cluster()
    table.upsert([row(0, 5), row(3, 5, "y")])
    table.upsert([row(0, 6), row(3, 6, "y")])
    table.clean(commits=1)
    assert len(data_files(table.path) & kept) == 13
    assert without_meta(table.to_arrow(as_of=saved)) == model
    table.delete_savepoint(saved)
    table.clean(commits=1)
    assert len(data_files(table.path) & kept) == 1
    assert table.fsck() == []
