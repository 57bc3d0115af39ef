"""A streaming job without Spark: the RFC's threads and failures, one verb each.

*Work flow*: `write` hands rows to the process thread, which assigns and buffers them (`step3` also
flushes them in the background while more come); `checkpoint` is the checkpoint thread, which ends
the writers and makes their result durable; `complete` is the success notification that commits.

*Semantics*: the source remembers every row. A checkpoint that succeeded moves its position to the
barrier, the rows written before the checkpoint began; `failover` goes back there. In `step3` rows
may come between the barrier and the end of the writers: this eager batch lies in the instant of the
checkpoint before it and is written again after a failover. `upsert` keeps that right, `insert`
doubles it, as the RFC says. In `step1` and `step2` the process thread is blocked meanwhile.

**Caveats**: one task. *Source:* RFC-24 STEP1 to STEP3, StreamWriteFunctionWrapper of Hudi's tests.
"""

import hashlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from hoodie_nb.errors import WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.pipeline.checkpointing import Checkpointing, Interval, settle
from hoodie_nb.pipeline.coordinator import Shape, WriteCoordinator
from hoodie_nb.pipeline.in_process import keyed_in_order
from hoodie_nb.pipeline.intake import Intake
from hoodie_nb.pipeline.operators import assign, write
from hoodie_nb.pipeline.plan import WritePlan
from hoodie_nb.pipeline.prepared import Prepared
from hoodie_nb.pipeline.progress import Checkpoint
from hoodie_nb.pipeline.sealing import save_run
from hoodie_nb.pipeline.stages import pipeline_named
from hoodie_nb.pipeline.writer import TaskAttempt
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.timeline import Instant


class _ProcessThread:
    """The writers of one checkpoint, fed piece by piece."""

    def __init__(self, job: "LocalJob", records: list[Prepared]) -> None:
        self._job, self._records = job, records
        self._pieces: queue.Queue[pa.Table | BaseException | None] = queue.Queue()
        self._taken = threading.Semaphore(0)
        self._result: Prepared | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="process", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        job = self._job
        try:
            self._result = job.coordinator.write(
                job.intake, self._write, job.shape, None, self._records
            )
        except BaseException as error:
            self._error = error
        finally:
            self._taken.release()

    def _write(self, plan: WritePlan) -> list[WriteStatus]:
        tell = self._job.events.tell
        assigned = assign(plan, self._input(), 0, tell, recent=True)
        return list(write(plan, assigned, TaskAttempt(), tell))

    def _input(self) -> Iterator[pa.Table]:
        while True:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            if piece is None:
                return
            yield keyed_in_order(piece, self._job.intake)
            self._taken.release()

    def put(self, rows: pa.Table) -> None:
        """Hand rows over and return when they are in the buffer; raise if the task has failed."""
        self._pieces.put(rows)
        self._taken.acquire()
        if self._error is not None:
            raise self._error

    def end(self, failure: BaseException | None = None) -> Prepared | None:
        """End the input, by a failure of the task if given, and return what was written."""
        self._pieces.put(failure)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


class LocalJob:
    """One job into one table; the caller holds the table's lock and drives logical time."""

    def __init__(
        self,
        table: TableHandle,
        *,
        pipeline: str = "step3",
        index: str | None = None,
        operation: str = "upsert",
        query_id: str = "local",
        state_folder: str = "",
        interval: Interval | None = None,
    ) -> None:
        shape = pipeline_named(pipeline)
        self.table, self.events = table, EventLog()
        self.shape = Shape(
            replace(shape, serial_instant=False), index or shape.index, 1, state_folder
        )
        self.intake = Intake(table.config, table.schema, operation)
        self._query_id, self._interval = query_id, interval
        self.source: list[pa.Table] = []
        self._barriers: dict[int, int] = {}
        self._position = 0
        self._buffer: list[pa.Table] = []
        self._process: _ProcessThread | None = None
        self._sealed = 0
        self.restart_coordinator()

    def restart_coordinator(self) -> None:
        """Start with a new coordinator, as after a crash of the old: what is prepared is kept."""
        self.coordinator = WriteCoordinator(self.table, self.events)
        self.checkpointing = Checkpointing(
            self.coordinator, self.intake, self.shape, self.events, interval=self._interval
        )
        settle(self.coordinator, self.events)
        entries = self.coordinator.progress.entries(self._query_id)
        self._sealed = entries[-1].batch_id + 1 if entries else 0

    # --- the process thread ---------------------------------------------------------------------

    def write(self, rows: pa.Table) -> None:
        """Consume rows from the source."""
        self.source.append(rows)
        self._consume(rows)

    def _consume(self, rows: pa.Table) -> None:
        if self.shape.pipeline.mini_batches and self._interval is None:
            self._running().put(rows)
        else:
            self._buffer.append(rows)

    def _running(self) -> _ProcessThread:
        if self._process is None:
            if not self.checkpointing.held_open():
                self.checkpointing.complete()
            self._process = _ProcessThread(self, self.coordinator.prepared.all())
        return self._process

    # --- the checkpoint thread ------------------------------------------------------------------

    def barrier(self, number: int) -> None:
        """Let checkpoint `number` begin: rows from here on belong to the next one."""
        self._barriers[number] = len(self.source)

    def checkpoint(self, number: int) -> Instant | None:
        """End the writers of a checkpoint and make their result durable; None if it was empty."""
        if number not in self._barriers:
            self.barrier(number)
        if self._interval is not None:
            self._seal(number)
            return None
        if self._buffer:
            for rows in self._buffer:
                self._running().put(rows)
        process, self._process = self._process, None
        try:
            result = process.end() if process is not None else None
        except BaseException:
            self._buffer = []
            raise
        self._buffer = []
        checkpoint = self._identity(self._barriers[number])
        if result is None:
            self.coordinator.progress.record(checkpoint, None)
        else:
            self.coordinator.prepare(replace(result, checkpoints=(checkpoint,)))
        self._sealed += 1
        return None if result is None else self.coordinator.table.timeline.pending()[-1]

    def _seal(self, number: int) -> None:
        rows, self._buffer = self._buffer, []
        storage = self.table.storage

        def seal(folder: str) -> list[str]:
            if not rows:
                return []
            keyed = keyed_in_order(pa.concat_tables(rows), self.intake)
            save_run(keyed, self.intake.ordering, storage.local_path(f"{folder}/0.arrow"))
            return [f"{folder}/0.arrow"]

        self.checkpointing.keep(self._identity(self._barriers[number]), seal)
        self._sealed += 1

    def _identity(self, barrier: int) -> Checkpoint:
        text = f"{self._query_id} {self._position} {barrier} {self._sealed}"
        return Checkpoint(self._query_id, self._sealed, hashlib.sha256(text.encode()).hexdigest())

    # --- what becomes of it ---------------------------------------------------------------------

    def complete(self, number: int) -> Instant | None:
        """Notify that a checkpoint succeeded: what is prepared is committed."""
        self._position = max(self._position, self._barriers[number])
        if self._process is not None and self.coordinator.prepared.all():
            return None  # running writers build on the open instant: it completes with theirs
        due = self._interval is None or self.checkpointing.due()
        return self.checkpointing.complete() if due else None

    def lose(self, number: int) -> None:
        """Let a checkpoint succeed without its notification: its instant stays open."""
        self._position = max(self._position, self._barriers[number])
        self.checkpointing.hold_open(self._sealed - 1)

    def task_fails(self) -> None:
        """Let the task fail: its writers' result is rolled back, then the job goes back."""
        process, self._process = self._process, None
        if process is not None:
            try:
                process.end(WriteFailed("the task failed"))
            except WriteFailed as error:
                self.events.tell("task_failed", why=str(error))
        self.failover()

    def failover(self) -> None:
        """Drop what is buffered and read again from the last checkpoint that succeeded."""
        if self._process is not None:
            self.task_fails()
            return
        self._buffer = []
        again = self.source[self._position :]
        self.source = self.source[: self._position]
        for rows in again:
            self.write(rows)
