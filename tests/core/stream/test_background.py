"""`commit_interval="background"`: one thread seals checkpoints, another one applies them meanwhile.

The two threads take turns: whenever one of them has released the mutex, the other one takes a whole
step. So every interleaving that the mutex allows can be tried, and the crash loop can let each
operation on the disk fail.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pytest
from each_fault import each_fault
from faults import Fault, FaultyStorage
from lives import assert_at_rest, commits
from tables import hudi_rows, without_meta
from test_crash_interval import BATCHES, MODELS, STORED, assert_whole
from writes import write_and_commit

from hoodie_nb import Table
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.clock import ManualClock
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition import properties
from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.events import Event, EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.rewriting import Rewriting
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import in_use, writing
from hoodie_nb.reading import read
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.runs import partitions_of, save_run
from hoodie_nb.storage.storage import SCRATCH

AUTO = Interval(checkpoints=5, background=True)
SPARSE = [*itertools.chain.from_iterable((batch, None) for batch in BATCHES)]
Step = Callable[[], object]
Batches = Sequence[pa.Table | None]


class Job:
    """A process whose stream is at checkpoint `number`; its steps are those of `MicroBatches`."""

    def __init__(self, root: Path, *, number: int = 0, batches: Batches = BATCHES) -> None:
        self.storage, self.events, self.batches = FaultyStorage(root), EventLog(), batches
        self.hold = JobHold(self.storage, "a test")
        self.number = number
        self.meanwhile: list[Step] = []
        self.kept = KeptFiles(1 << 20)
        coordinator = WriteCoordinator(self._handle(), self.events)
        last = self._checkpoint(number - 1) if number else None
        with self.hold.writing():
            settle(coordinator, sealing="query", last=last)
        intake = intake_of(coordinator, "upsert", "query")
        settings = (intake, Shape())
        self.sealing = Checkpointing(coordinator, *settings, IN_PROCESS, interval=AUTO)
        self.sealing.let_finish = self.hold.wait_until_unused
        applying = WriteCoordinator(self._handle(), self.events)
        self.background = Checkpointing(applying, *settings, Rewriting(self._pause, self.kept))

    def _handle(self) -> TableHandle:
        return TableHandle(self.storage, ManualClock(), properties.load(self.storage))

    def _checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint("query", number, f"{number:064d}")

    @contextlib.contextmanager
    def _pause(self, name: str) -> Iterator[None]:
        with self.hold.paused(name):
            if self.meanwhile:
                step, *rest = self.meanwhile
                self.meanwhile = []  # not while that step has released the mutex itself
                step()
                self.meanwhile = rest
            yield

    def seal(self) -> None:
        """Seal the stream's next checkpoint."""
        rows = self.batches[self.number]
        number, previous = self.number, f"{self.number - 1:064d}" if self.number else None
        checkpoint, storage = self._checkpoint(number), self.storage
        with self.hold.writing():
            folder = self.sealing.sealing(checkpoint, previous)
            if folder is not None:
                intake, runs, partitions = self.sealing.intake, [], []
                with self._pause(PurePosixPath(folder).name):
                    if rows is not None:
                        keyed = keyed_in_order(rows, intake)
                        runs = [save_run(storage, f"{folder}/0.arrow", keyed, intake.rule)]
                        partitions = partitions_of(keyed)
                self.sealing.take_over()
                self.sealing.keep(checkpoint, folder, runs, partitions)
        self.number += 1

    def apply(self) -> None:
        """Apply what is sealed."""
        with self.hold.writing():
            self.background.complete()

    def run(self, step: Step, *meanwhile: Step) -> None:
        """Take a step, and one of `meanwhile` each time that it has released the mutex."""
        self.meanwhile = [*meanwhile]
        step()
        assert self.meanwhile == [], "it has not released the mutex so often"

    def end(self) -> None:
        """The process is gone, and with it its lock."""
        self.storage.dead = True
        self.hold.release()


def live(job: Job) -> None:
    """Seven checkpoints in all interleavings of sealing and applying."""
    job.seal()
    job.run(job.seal, job.apply)
    job.run(job.apply, job.seal, job.seal)
    job.run(job.apply, job.seal, job.seal)
    job.run(job.seal, job.apply)
    job.apply()


def go_on(root: Path, number: int, batches: Batches = BATCHES) -> None:
    """New processes continue from a checkpoint to the end; then all readers equal the model."""
    job = Job(root, number=number, batches=batches)
    while job.number < len(batches):
        job.seal()
    job.end()
    settle(WriteCoordinator(open_table(root), EventLog()))
    assert without_meta(read.to_arrow(open_table(root))) == MODELS[7]
    assert hudi_rows(root) == MODELS[7]
    assert_at_rest(root)


def make(root: Path, **settings: Any) -> Path:
    """Create the empty table."""
    keys = {"record_key": ["id", "sub"], "partition_by": "p", "ordering": "ts"}
    Table.create(root, schema=STORED, **keys, **settings)
    return root


def test_applying_and_sealing_take_turns(tmp_path: Path) -> None:
    """While an instant is written, checkpoints are sealed; each is applied exactly once."""
    root = make(tmp_path / "t")
    job = Job(root)
    live(job)
    job.end()
    assert commits(root) == 5
    assert len(job.events.records("checkpoint_sealed")) == 7
    assert job.events.records("instant_rolled_back") == []
    go_on(root, 7)


@pytest.mark.parametrize(("how", "every"), [("before", 6), ("after", 7), ("torn", 8), ("error", 8)])
def test_a_failure_while_both_work_is_recovered(tmp_path: Path, how: str, every: int) -> None:
    """After a crash or an error at any operation of both threads, every row is there once."""
    jobs: list[Job] = []

    def begun(root: Path, fault: Fault) -> TableHandle:
        jobs.append(Job(root))
        jobs[-1].storage.fault, jobs[-1].storage.steps = fault, 0
        return jobs[-1]._handle()

    def act(table: Table) -> None:
        live(jobs[-1])

    faults = {"every": every, "at_least": 100, "raises": OSError, "process": begun}
    for root, _ in each_fault(make(tmp_path / "t"), act, how, **faults):
        assert_whole(root)
        jobs[-1].end()
        go_on(root, jobs[-1].number)
    jobs[-1].end()


def test_a_full_backlog_is_applied_by_the_checkpoint_that_finds_it(tmp_path: Path) -> None:
    """If nothing is applied in the background, the stream does it: the backlog is bounded."""
    root = make(tmp_path / "t")
    job = Job(root)
    for _ in range(6):
        job.seal()
    assert commits(root) == 1
    assert job.sealing.oldest_ms() is not None
    job.end()
    go_on(root, 6)


@pytest.mark.parametrize("merge_mode", ["event_time", "partial"])
def test_checkpoints_without_rows_are_applied_meanwhile(tmp_path: Path, merge_mode: str) -> None:
    """A checkpoint without rows leaves no commit; the seal after it does not miss it."""
    root = make(tmp_path / "t", merge_mode=merge_mode)
    job = Job(root, batches=SPARSE)
    job.seal()
    job.seal()
    job.run(job.apply, job.seal)
    job.seal()
    job.run(job.seal, job.apply)
    job.apply()
    job.seal()
    job.run(job.seal, job.apply)
    job.apply()
    assert job.events.records("instant_rolled_back") == []
    job.end()
    go_on(root, job.number, SPARSE)


def test_a_column_added_meanwhile_keeps_its_values(tmp_path: Path) -> None:
    """If another engine adds a column while an instant is written, the rewrite keeps its values."""
    root = make(tmp_path / "t")
    job = Job(root)

    def add_column() -> None:
        table = open_table(root)
        intake = Intake(table.config, table.schema.append(pa.field("note", pa.string())))
        row = {"id": "a", "sub": "elsewhere", "p": "x", "ts": 99, "v": -1, "note": "kept"}
        keyed = keyed_in_order(pa.Table.from_pylist([row], schema=intake.schema), intake)
        coordinator = WriteCoordinator(table, EventLog())
        write_and_commit(
            coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog())
        )

    job.seal()
    job.run(job.apply, job.seal, add_column)
    job.apply()
    job.end()
    found = read.to_arrow(open_table(root)).to_pylist()
    assert [row["note"] for row in found if row["sub"] == "elsewhere"] == ["kept"]
    assert {row["v"] // 100 for row in found} == {-1, 0, 1}


def test_the_lock_is_not_released_while_a_thread_is_paused(tmp_path: Path) -> None:
    """The end of a job waits for the thread that writes: without the lock nothing is written."""
    root = make(tmp_path / "t")
    job = Job(root)
    held = job.hold._held
    ends = threading.Thread(target=job.hold.release)

    def release() -> None:
        ends.start()
        while ends.is_alive() and not held.changed._waiters:
            continue
        assert held.file is not None

    job.seal()
    job.run(job.apply, release)
    ends.join(60)
    assert held.file is None and commits(root) == 1
    go_on(root, 1)


def test_a_listener_cannot_write_while_its_job_does(tmp_path: Path) -> None:
    """A listener's batch call is refused, since the paused job waits for its listeners."""
    root = make(tmp_path / "t")
    job, refused = Job(root), []

    def listener(event: Event) -> None:
        if event.kind == "file_written":
            with pytest.raises(ConcurrentWriter, match="another thread"), writing(job.storage):
                pass
            refused.append(event)

    job.events.listen(listener)
    job.seal()
    job.apply()
    assert refused and commits(root) == 1
    job.end()
    go_on(root, 1)


def test_a_batch_waits_until_no_thread_is_paused(tmp_path: Path) -> None:
    """A batch call starts when no thread is paused, and the job begins nothing before it."""
    root = make(tmp_path / "t")
    job, order = Job(root), []
    held = job.hold._held

    def batch() -> None:
        with writing(job.storage):
            order.append(("batch", in_use(job.storage)))

    def next_checkpoint() -> None:
        with job.hold.writing():
            order.append(("next", in_use(job.storage)))

    def both_wait() -> None:
        for count, thread in enumerate(threads, 1):
            thread.start()
            while thread.is_alive() and len(held.changed._waiters) < count:
                continue

    threads = [threading.Thread(target=target) for target in (batch, next_checkpoint)]
    job.seal()
    job.run(job.apply, both_wait)
    for thread in threads:
        thread.join(60)
    assert order == [("batch", set()), ("next", set())]
    job.end()
    go_on(root, 1)


def test_recovery_spares_what_is_in_use(tmp_path: Path) -> None:
    """A recovery in between neither rolls the written instant back nor deletes an unsealed run."""
    root = make(tmp_path / "t")
    job = Job(root)

    def recover() -> None:
        temporary = root / SCRATCH / "half"
        temporary.parent.mkdir(exist_ok=True)
        temporary.touch()
        with job.hold.writing():
            job.sealing.recover()
        assert temporary.exists()

    job.seal()
    job.run(job.apply, recover, recover)
    job.run(job.seal, recover)
    assert commits(root) == 1
    assert job.events.records("instant_rolled_back") == []
    job.end()
    go_on(root, 2)
