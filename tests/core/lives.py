"""The life of a writer process: open the table, recover, run every batch that is not in it yet.

The same steps as `stream/job.py` takes for its micro-batches, without Spark. The workload has
updates, deletes, a late update, new partitions, a batch that changes nothing and one that rewrites
all; `MODELS[n]` is the table after `n` batches.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pyarrow as pa
import pytest
from each_fault import opened
from faults import Crash
from tables import (
    Model,
    cleaned_files,
    committed_files,
    data_files,
    hudi_rows,
    pending_names,
    schema_of,
    timeline_names,
    tree,
    upgrade,
    without_meta,
)

from hoodie_nb import Table, failpoints
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.reading import read
from hoodie_nb.records.prepared import FOLDER
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.storage.storage import SCRATCH, STAGED
from hoodie_nb.view.markers import MARKERS

QUERY = "query-1"
SCHEMA = schema_of()
Batch = tuple[str, list[dict[str, object]]]


def _row(key: str, partition: str, ts: int, value: int) -> dict[str, object]:
    return {"id": key, "p": partition, "ts": ts, "v": value}


BATCHES: list[Batch] = [
    ("upsert", [_row(f"k{i}", f"par{i % 2}", 10, i) for i in range(6)]),
    ("upsert", [_row("k0", "par0", 11, 100), _row("k1", "par1", 5, 101), _row("k9", "par2", 1, 9)]),
    ("delete", [{"id": "unknown", "p": "par9"}]),
    ("delete", [{"id": "k2", "p": "par0"}, {"id": "k9", "p": "par2"}]),
    ("upsert", [_row(f"k{i}", f"par{i % 2}", 20, 200 + i) for i in range(4)]),
]


def _models() -> list[list[str]]:
    model = Model()
    found = [model.snapshot()]
    for operation, rows in BATCHES:
        getattr(model, operation)(rows)
        found.append(model.snapshot())
    return found


MODELS = _models()
COMMITS = [MODELS[0], MODELS[1], MODELS[2], MODELS[4], MODELS[5]]  # the third batch commits nothing


def make(root: Path, version: int = 6, *, merge_on_read: bool = False, **options: object) -> Path:
    """Create the workload's empty table and return its folder."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    if merge_on_read:
        keys |= {"table_type": "merge_on_read", "table_version": version}
    Table.create(root, schema=SCHEMA, options=options, **keys)
    if version != 6 and not merge_on_read:
        upgrade(root, version)
    return root


def fingerprint(number: int, last: int | None = None) -> str:
    """Return the fingerprint of batch `number`: new bytes above `last`, whose offsets were deleted.

    Spark writes the time into them, so they differ even if the batch has the same rows.
    """
    again = last is not None and number > last
    return hashlib.sha256(repr((BATCHES[number], again)).encode()).hexdigest()


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    """Let what the `with` block runs die at a failpoint, and check that it did."""
    failpoints.call(point, _die)
    try:
        with pytest.raises(Crash):
            yield
    finally:
        failpoints.arm("")


def _die() -> None:
    raise Crash("at a failpoint")


def kill_at(point: str, act: Callable[[Path], object], root: Path) -> None:
    """Run `act` on a table in a process that SIGKILL ends at a failpoint."""
    assert ended(f"{point}=kill", act, root) == -signal.SIGKILL


def ended(armed: str, act: Callable[[Path], object], root: Path) -> int | None:
    """Run `act` on a table in another process with armed failpoints; return its exit code."""
    process = processes(__name__).Process(target=_act, args=(armed, act, root))
    process.start()
    process.join()
    return process.exitcode


@cache
def processes(module: str) -> ForkServerContext:
    """Start the server of new processes, which has imported a module and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    return context


def _act(armed: str, act: Callable[[Path], object], root: Path) -> None:
    failpoints.arm(armed)
    act(root)


def live(
    table: TableHandle,
    batches: int = len(BATCHES),
    *,
    commit_on: str = "write",
    notified: int = len(BATCHES),
    last: int | None = None,
) -> EventLog:
    """Settle the table, then run the first `batches` batches, skipping those in the table.

    With `commit_on="checkpoint"` each batch is prepared first and committed by its notification,
    which the first `notified` batches get. `last` is the batch to which the checkpoint folder was
    taken back, as the error after a restore recommends.
    """
    events = EventLog()
    coordinator = WriteCoordinator(table, events)
    settle(coordinator)
    for number, (operation, rows) in enumerate(BATCHES[:batches]):
        intake = Intake(table.config, table.schema, operation)
        checkpointing = Checkpointing(coordinator, intake, Shape(), IN_PROCESS, commit_on=commit_on)
        data = pa.Table.from_pylist(rows, schema=_schema(rows))
        intake.check(data.schema)
        keyed = keyed_in_order(data, intake)
        checkpoint = Checkpoint(QUERY, number, fingerprint(number, last))
        before = fingerprint(number - 1, last) if number else None
        with checkpointing.running(checkpoint, before) as work:
            if work is not None:
                work.statuses = write_in_process(keyed, work.plan, events)
        if number < notified:
            checkpointing.notify(number)
    return events


def runs(
    batches: int = len(BATCHES), *, commit_on: str = "write", last: int | None = None
) -> Callable[[Table], EventLog]:
    """Return `live` for a table, as `each_fault` takes it."""
    return lambda table: live(table._handle, batches, commit_on=commit_on, last=last)


def _schema(rows: list[dict[str, object]]) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in rows[0]])


def commits(root: Path) -> int:
    """Return how many commits have completed, by the names on the timeline."""
    return sum(name.endswith((".commit", ".deltacommit")) for name in timeline_names(root))


def assert_whole_prefix(root: Path) -> None:
    """Both readers see exactly the batches whose commits have completed."""
    expected = COMMITS[commits(root)]
    assert without_meta(read.to_arrow(open_table(root))) == expected
    if timeline_names(root):
        assert hudi_rows(root) == expected


def assert_at_rest(root: Path) -> None:
    """Nothing is pending, staged, marked or stray; fsck finds nothing; recovery changes nothing."""
    assert pending_names(root) == []
    for folder in (STAGED, SCRATCH, MARKERS, FOLDER):
        place = root / folder
        assert not place.is_dir() or list(place.iterdir()) == [], folder
    assert data_files(root) == committed_files(root) - cleaned_files(root)
    assert [str(f) for f in fsck(root)] == []
    before = tree(root)
    settle(WriteCoordinator(opened(root), EventLog()))
    assert tree(root) == before


def assert_finished(root: Path) -> None:
    """Both readers see every row of the workload once, and nothing is pending."""
    assert commits(root) == len(COMMITS) - 1
    assert_whole_prefix(root)
    assert_at_rest(root)


def finish(root: Path, number: int) -> None:
    """A new process replays up to the batch: the table equals the model, with nothing pending."""
    live(opened(root), number + 1)
    assert_whole_prefix(root)
    assert without_meta(read.to_arrow(open_table(root))) == MODELS[number + 1]
    assert_at_rest(root)
