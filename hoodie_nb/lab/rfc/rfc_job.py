"""A streaming job without Spark: checkpoint, notification, time-out, failover as methods.

*Work flow*: `write` passes rows to the process thread, which assigns and buffers them (`step3` also
flushes them in the background while more arrive); `checkpoint` is the checkpoint thread, which ends
the writers and makes their result durable; `complete` is the success notification that commits.

*Semantics*: the source remembers every row, the barrier of each checkpoint (the rows before it) and
the last checkpoint that succeeded. `failover` reads again from there, but a checkpoint that is
already in the table is skipped, as a stream skips a batch by its fingerprint. In `step1` and
`step2` the process thread is blocked between barrier and end: exactly once. In `step3` rows may
arrive in that time: this eager batch goes into the instant of the previous checkpoint and is
written again after a failover or a time-out. `upsert` stays correct, `insert` creates duplicates,
as the RFC says.

*Fault tolerance*: the buffer is cleared as the last step of a checkpoint. If its writers fail, or
it times out before they end, the next checkpoint writes the remaining rows.

**Caveats**: one task. *Source:* RFC-24 STEP1 to STEP3, StreamWriteFunctionWrapper of Hudi's tests.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from hoodie_nb.buckets.global_keys import refuse_global
from hoodie_nb.buckets.pipelines import Shape, pipeline_named
from hoodie_nb.buckets.plan import SealPlan
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import InvalidConfig, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.process_thread import ProcessThread, Source
from hoodie_nb.local.in_process import keyed_as_arrived, seal_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.records.prepared import Prepared
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import Interval
from hoodie_nb.timeline.timeline import Instant, State


class LocalJob:
    """One job into one table; the caller holds the table's lock and drives logical time.

    A new job over the `source` of a dead one is a restart of the process; with `keeps_seals` it
    leaves sealed checkpoints until the end of their interval, as a stream does.
    """

    def __init__(
        self,
        table: TableHandle,
        *,
        pipeline: str = "step3",
        index: str | None = None,
        operation: str = "upsert",
        query_id: str = "local",
        state_folder: str = "",
        source: Source | None = None,
        events: EventLog | None = None,
        interval: Interval | None = None,
        keeps_seals: bool = False,
    ) -> None:
        refuse_global(table.config, "LocalJob", "use Table.upsert")
        shape = pipeline_named(pipeline)
        if (index or shape.index) == "state" and not state_folder:
            raise InvalidConfig("index='state' needs state_folder, the folder for the job's keys")
        self.table = table
        self.events = events or EventLog()
        self.shape = Shape(
            replace(shape, serial_instant=False), index or shape.index, 1, state_folder
        )
        self.source = source or Source()
        self._query_id = query_id
        self._interval = interval
        self._eager = shape.mini_batches and interval is None
        self._process: ProcessThread | None = None
        self._fed = 0
        self._next = 0
        self.coordinator = WriteCoordinator(table, self.events)
        intake = intake_of(self.coordinator, operation, query_id)
        self.checkpointing = Checkpointing(
            self.coordinator, intake, self.shape, IN_PROCESS, interval=interval
        )
        sealing = query_id if keeps_seals else None
        settle(self.coordinator, sealing=sealing, last=self._last())
        self.checkpointing.recover()
        self.checkpointing.note_columns(query_id)
        self.failover()

    def _last(self) -> Checkpoint | None:
        """Return the last checkpoint that has succeeded according to the source."""
        known = self.source.succeeded
        return self.source.identity(self._query_id, known - 1) if known else None

    @property
    def intake(self) -> Intake:
        """Return the intake for the current table."""
        return self.checkpointing.intake

    # --- the process thread ---------------------------------------------------------------------

    def write(self, rows: pa.Table) -> None:
        """Consume rows from the source."""
        self.intake.check(rows.schema)
        self.source.rows.append(rows)
        if self._eager:
            self._feed(len(self.source.rows))

    def _feed(self, end: int) -> None:
        """Pass the source's rows up to `end` to the writers, again after a task failure."""
        if self._process is None:
            self._fed = self._next
        if self._fed < end and self._process is None:
            with self.coordinator.table.timeline.listed_once():
                if self.checkpointing.held_open():
                    self.checkpointing.take_over()
                else:
                    self.checkpointing.complete()
                self.checkpointing.check_state(self._query_id, self.shape)
                records = self.coordinator.open_records()
                self._process = ProcessThread(self.coordinator, self.intake, self.shape, records)
        while self._fed < end and self._process is not None:
            if self._process.intake != self.intake:
                self.task_fails("another engine has changed the table's columns")
                return  # everything has been read again
            try:
                self._process.put(self.source.rows[self._fed])
            except BaseException:
                self._process = None
                raise
            self._fed += 1

    @property
    def waiting_rows(self) -> int:
        """The number of rows that are not in a durable checkpoint yet."""
        return sum(rows.num_rows for rows in self.source.rows[self._next :])

    # --- the checkpoint thread ------------------------------------------------------------------

    def barrier(self, number: int) -> None:
        """Begin checkpoint `number`: later rows belong to the next one."""
        self.source.barriers[number] = len(self.source.rows)

    def checkpoint(self, number: int, *, clears_first: bool = False) -> Instant | None:
        """End the writers of a checkpoint and make their result durable; None if it was empty.

        `clears_first` is the wrong order, for a lesson: the buffer is cleared before that.
        """
        if number not in self.source.barriers:
            self.barrier(number)
        barrier = self.source.barriers[number]
        if self._interval is not None:
            self._seal(barrier)
            return None
        self._feed(len(self.source.rows) if self._eager else barrier)
        process = self._process
        self._process = None
        if clears_first:
            self._next = barrier
        result = process.end() if process is not None else None
        self.source.sealed.append(barrier)  # before it is durable, like Spark's offsets/N
        try:
            self._make_durable(result)
        except Exception:
            self.coordinator.undo_unprepared()
            self.failover()
            raise
        self._next = max(self._fed, barrier)
        return Instant(result.instant_time, "commit", State.INFLIGHT) if result else None

    def _seal(self, barrier: int) -> None:
        """Save the checkpoint's rows as a run; the interval's end writes them."""
        self.coordinator.forget_records()
        rows = self.source.rows[self._next : barrier]
        self.source.sealed.append(barrier)
        checkpoint = self.source.identity(self._query_id, len(self.source.sealed) - 1)
        try:
            if not self.checkpointing.contains(checkpoint):
                folder = self.checkpointing.new_folder()
                schema = self.intake.keyed_schema
                keyed = pa.concat_tables([schema.empty_table(), *self._keyed(rows)])
                plan = SealPlan(self.table.storage, self.intake, folder, tasks=1)
                self.checkpointing.keep(checkpoint, folder, *seal_in_process(keyed, plan))
        except Exception:
            self.failover()
            raise
        self._next = barrier

    def _keyed(self, pieces: list[pa.Table]) -> Iterator[pa.Table]:
        """Yield keyed rows piece by piece: their columns may differ if the table's have changed."""
        arrived = 0
        for piece in pieces:
            yield keyed_as_arrived(piece, self.intake, arrived)
            arrived += piece.num_rows

    def _make_durable(self, result: Prepared | None) -> None:
        checkpoint = self.source.identity(self._query_id, len(self.source.sealed) - 1)
        if self.intake.operation == "insert":
            self.checkpointing.check_insert(checkpoint)
        if result is None:
            self.coordinator.forget_records()  # another writer may have completed the open instant
            self.coordinator.record_empty(checkpoint)
        else:
            self.coordinator.prepare(replace(result, checkpoints=(checkpoint,)))

    # --- success and failure --------------------------------------------------------------------

    def _succeeded(self, number: int) -> None:
        """Record that a checkpoint succeeded, and with it all earlier ones."""
        barrier = self.source.barriers[number]
        done = [n for n, end in enumerate(self.source.sealed, 1) if end <= barrier]
        self.source.succeeded = max([self.source.succeeded, *done])

    def complete(self, number: int) -> Instant | None:
        """Notify the success of a checkpoint: prepared instants are committed."""
        self._succeeded(number)
        if self._process is not None and self._process.records:
            return None  # running writers build on the open instant: it completes with them
        due = self._interval is None or self.checkpointing.due()
        return self.checkpointing.complete() if due else None

    def lose(self, number: int) -> None:
        """Lose the success notification of a checkpoint: its instant stays open."""
        self._succeeded(number)
        for batch_id in range(self.source.succeeded):
            self.checkpointing.hold_open(batch_id)

    def time_out(self, number: int) -> None:
        """Time a checkpoint out: the next one writes the rows after its barrier again."""
        start = max(self.source.barriers[number], *self.source.sealed[-1:], 0)
        left = self.source.rows[start : self._next]  # eager rows: in no later checkpoint
        self._emit_repeated(left)
        if self._process is None:
            self._next -= len(left)
        else:
            for rows in left:
                self._process.put(rows)

    def task_fails(self, why: str = "the task failed") -> None:
        """Fail the task: its writers' result is rolled back, then the job fails over."""
        process = self._process
        self._process = None
        if process is not None:
            try:
                process.end(WriteFailed(why))
            except WriteFailed as error:
                self.events.emit("task_failed", why=str(error))
        self.failover()

    def failover(self) -> None:
        """Drop the buffer and read again from the last successful checkpoint."""
        if self._process is not None:
            self.task_fails()
            return
        held = self.source.succeeded
        while held < len(self.source.sealed) and self.replay(held):
            held += 1
        del self.source.sealed[held:]
        position = self.source.start(held)
        self._emit_repeated(self.source.rows[position : self._next])
        self._next = position
        if self._eager:
            self._feed(len(self.source.rows))

    def replay(self, batch_id: int) -> bool:
        """Run a checkpoint again; return whether it was skipped because it is in the table."""
        if not self.checkpointing.contains(self.source.identity(self._query_id, batch_id)):
            return False
        self.events.emit("batch_skipped", batch=batch_id)
        return True

    def _emit_repeated(self, pieces: list[pa.Table]) -> None:
        if pieces:
            rows = sum(piece.num_rows for piece in pieces)
            self.events.emit("eager_rows_repeated", rows=rows)
