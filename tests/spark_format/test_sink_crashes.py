"""The sinks of Spark's format without Spark: crashes at any change of the disk, other writers."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from core.faults import Crash, Fault, FaultyStorage
from core.tables import hudi_rows, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import ConcurrentWriter, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.records import row_folders
from hoodie_nb.spark_format.hudi_options import SinkOptions, parse
from hoodie_nb.spark_format.sink import BatchSink, StagedRows, keys_of
from hoodie_nb.spark_format.staged_runs import stage_runs
from hoodie_nb.spark_format.stream_sink import StreamSink
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import STAGED, Storage

SCHEMA = schema_of()
OPERATION = "hoodie.datasource.write.operation"
EXTRA = {"id": "x", "p": "p0", "ts": 1, "v": 1, "extra": 1}
Run = Callable[[Storage], None]


def rows(batch: int) -> pa.Table:
    """Return the rows of a batch: no key is in two of them."""
    keys = range(batch * 5, batch * 5 + 5)
    values = [{"id": f"k{n:03d}", "p": f"p{n % 2}", "ts": 1, "v": n} for n in keys]
    return pa.Table.from_pylist(values, SCHEMA)


def options(path: Path, operation: str, checkpoint: Path | None = None) -> SinkOptions:
    """Return the options of a write."""
    given = {"path": str(path), OPERATION: operation}
    if checkpoint is None:
        return parse(given)
    return parse({**given, "checkpointLocation": str(checkpoint)}, stream=True)


def batch(storage: Storage, number: int, operation: str = "upsert") -> None:
    """Write a batch as Spark does, with one task."""
    given = options(Path(storage.root), operation)
    sink = BatchSink(open_table(storage), SCHEMA, given)
    sink.commit([sink.write(iter(rows(number).to_batches()))])


def micro_batch(storage: Storage, number: int, checkpoint: Path) -> None:
    """Write a micro-batch of inserts as Spark does: another sink commits it."""
    batch_id = number - 1
    (checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{number}")
    given = options(Path(storage.root), "insert", checkpoint)
    staged = StreamSink(open_table(storage), SCHEMA, given).write(iter(rows(number).to_batches()))
    StreamSink(open_table(storage), SCHEMA, given).commit([staged], batch_id)
    (checkpoint / "commits" / str(batch_id)).touch()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with one batch."""
    made = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p", ordering="ts"
    )
    batch(LocalStorage(made.path), 0)
    return made


def checkpoint_at(folder: Path) -> Path:
    """Return a checkpoint folder as that of a new query."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "1f0c-22"}))
    return folder


def check(root: Path, *batches: int) -> None:
    """The table has these batches once, hudi-rs reads the same, and nothing is left over."""
    found = Table.open(root)
    expected = without_meta(pa.concat_tables([rows(n) for n in batches]))
    assert without_meta(found.to_arrow()) == expected == hudi_rows(root)
    assert found.fsck() == [] and os.listdir(root / STAGED) == []


def trials(table: Table, monkeypatch, how: str, run: Run, again: Run) -> int:
    """Let each change of the disk fail once, in a job that then ends; return how many there are."""
    for at in itertools.count(1):
        root = Path(table.path).with_name(f"{how}{at}")
        shutil.copytree(table.path, root)
        job = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        monkeypatch.setattr(row_folders, "getppid", lambda job=job: job.pid)
        storage, error = FaultyStorage(root, Fault(at, how)), None
        try:
            run(storage)
        except (Crash, Exception) as raised:
            error = raised
        job.communicate()
        if storage.fired is None:
            assert error is None
            return at - 1
        before = without_meta(Table.open(root).to_arrow())
        assert before in [
            without_meta(pa.concat_tables([rows(n) for n in range(count)])) for count in (1, 2)
        ]
        again(LocalStorage(root))
        check(root, *range(3))
        shutil.rmtree(root)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("how", ["before", "after", "torn", "error"])
def test_a_batch_that_fails_anywhere_is_written_once_when_it_is_repeated(table, monkeypatch, how):
    """Each change of the disk by tasks and commit fails once; the next writes find all in order."""

    def again(storage: Storage) -> None:
        batch(storage, 1)
        batch(storage, 2)

    assert trials(table, monkeypatch, how, lambda storage: batch(storage, 1), again) > 15


@pytest.mark.parametrize("how", ["before", "after", "torn", "error"])
def test_a_micro_batch_that_fails_anywhere_is_written_once(table, monkeypatch, tmp_path, how):
    """Each change of the disk fails once; Spark repeats the batch of inserts, and goes on."""
    folders = (tmp_path / f"ck{n}" for n in itertools.count())
    latest: list[Path] = []

    def run(storage: Storage) -> None:
        latest.append(checkpoint_at(next(folders)))
        micro_batch(storage, 1, latest[-1])

    def again(storage: Storage) -> None:
        micro_batch(storage, 1, latest[-1])
        micro_batch(storage, 2, latest[-1])

    assert trials(table, monkeypatch, how, run, again) > 15


def test_only_the_reported_attempt_of_a_task_counts(table):
    """A repeated task stages its rows twice; Spark reports one attempt: no insert is doubled."""
    sink = BatchSink(open_table(table.path), SCHEMA, options(Path(table.path), "insert"))
    intake = sink._plan.intake
    keyed = [intake.keyed(rows(1), pa.array(range(5), pa.int64()))]
    attempts = [stage_runs(sink._plan, keyed, f"0-0-{n}", 1 << 20) for n in range(2)]
    sink.commit([StagedRows(tuple(attempts[1]), keys_of(intake.config))])
    check(Path(table.path), 0, 1)


def test_a_task_that_reports_nothing_is_an_error(table):
    """So it is with a continuous trigger: its rows are unknown, and not taken for none."""
    sink = BatchSink(open_table(table.path), SCHEMA, options(Path(table.path), "upsert"))
    staged = sink.write(iter(rows(1).to_batches()))
    with pytest.raises(WriteFailed, match=r"trigger\(continuous=...\) is not supported"):
        sink.commit([staged, None])
    check(Path(table.path), 0)


def test_rows_that_were_deleted_meanwhile_are_an_error(table):
    """If another process has deleted the staged rows, nothing is written, and it is said."""
    sink = BatchSink(open_table(table.path), SCHEMA, options(Path(table.path), "upsert"))
    staged = sink.write(iter(rows(1).to_batches()))
    for folder in Path(table.path, STAGED).iterdir():
        shutil.rmtree(folder)
    with pytest.raises(WriteFailed, match=r"is missing; .* Write the data again"):
        sink.commit([staged])
    check(Path(table.path), 0)


def test_a_table_that_was_replaced_meanwhile_is_an_error(table):
    """Keys that were made for another definition of the table are not written."""
    sink = BatchSink(open_table(table.path), SCHEMA, options(Path(table.path), "upsert"))
    staged = sink.write(iter(rows(1).to_batches()))
    kept = Path(table.path).with_name("kept")
    shutil.copytree(Path(table.path, STAGED), kept)
    made = Table.create(table.path, schema=SCHEMA, record_key="v", if_exists="replace")
    shutil.copytree(kept, Path(table.path, STAGED), dirs_exist_ok=True)
    with pytest.raises(ConcurrentWriter, match="another definition"):
        sink.commit([staged])
    assert made.to_arrow().num_rows == 0


def test_rows_staged_before_a_column_was_added_are_written(table):
    """Another engine adds a column while the tasks run: the staged rows have null in it."""
    sink = BatchSink(open_table(table.path), SCHEMA, options(Path(table.path), "upsert"))
    staged = sink.write(iter(rows(1).to_batches()))
    add_column(table)
    sink.commit([staged])
    found = Table.open(table.path).to_arrow()
    assert found.num_rows == 11 and found.column("extra").null_count == 10


def add_column(table: Table) -> None:
    """Write a row as another engine does that has added a column."""
    handle, events = open_table(table.path), EventLog()
    intake = Intake(handle.config, handle.schema.append(pa.field("extra", pa.int64())))
    keyed = keyed_in_order(pa.Table.from_pylist([EXTRA], intake.schema), intake)
    with WriteCoordinator(handle, events).committing(intake) as work:
        work.statuses = write_in_process(keyed, work.plan, events)
