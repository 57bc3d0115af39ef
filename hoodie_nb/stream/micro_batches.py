"""Each micro-batch as a checkpoint: which runner writes its rows, or saves them as sealed runs.

*Work flow*: the checkpoint is identified by query, batch and the fingerprint of `offsets/N`; it is
written, or only sealed if the job has a `commit_interval`. If it is already in the table, it is
skipped.

*Source:* RFC-24 §"The Semantics".
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from hoodie_nb import failpoints
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.pipelines import Pipeline, Shape, pipeline_named
from hoodie_nb.buckets.plan import SealPlan
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.intake.bad_rows import BadRows
from hoodie_nb.local.in_process import saved, seal_in_process, write_in_process
from hoodie_nb.local.rewriting import Rewriting
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.job import JobHold
from hoodie_nb.on_spark.driver import collected
from hoodie_nb.on_spark.stages import (
    arrow_schema,
    has_rows,
    is_row_by_row,
    seal_on_spark,
    write_on_spark,
)
from hoodie_nb.on_spark.task_events import Receiver
from hoodie_nb.records.progress import Checkpoint, quarantine_of
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.stream.checkpoint_folder import CheckpointFolder
from hoodie_nb.stream.placing import Placing
from hoodie_nb.stream.settings import StreamSettings
from hoodie_nb.timeline.timeline import Instant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEPT_BYTES = 512 << 20  # at most, of files that a job has written


def recover_if_stale(
    checkpointing: Checkpointing, hold: JobHold, events: EventLog, *, again: bool = False
) -> None:
    """Recover the table `again`, or if other processes have had a turn, which is an event."""
    if again or hold.stale:
        checkpointing.recover()
    if hold.stale:
        events.emit("turn_taken", seconds=round(time.monotonic() - hold.stale, 3))
        hold.stale = 0.0


class MicroBatches:
    """The micro-batches of one query into one table; the caller holds the table's lock."""

    def __init__(
        self,
        stream: DataFrame,
        table: TableHandle,
        settings: StreamSettings,
        events: EventLog,
        live: Receiver,
    ) -> None:
        self._settings = settings
        self._live = live
        self._cancelled = threading.Event()
        self._kept = KeptFiles(min(2 * table.options.task_max_bytes, KEPT_BYTES))
        self._hold: JobHold | None = None
        self.oldest_ms: int | None = None  # when the oldest checkpoint that waits was sealed
        self.folder = CheckpointFolder(settings.checkpoint)
        self.coordinator = WriteCoordinator(table, events)
        self.coordinators = [self.coordinator]
        self._is_cheap = is_row_by_row(stream)
        pipeline = pipeline_named(settings.pipeline)
        self.placing = Placing(
            settings.placement, pipeline, table.options.task_max_bytes, events.emit
        )
        self.checkpointing = self._protocol(stream, pipeline)

    def _protocol(self, stream: DataFrame, pipeline: Pipeline) -> Checkpointing:
        settings = self._settings
        intake = intake_of(
            self.coordinator,
            settings.operation,
            self.folder.query_id(),
            quarantines=self._sets_aside,
        )
        given = arrow_schema(stream.schema)
        intake.check(given)
        tasks = settings.write_tasks or stream.sparkSession.sparkContext.defaultParallelism
        return Checkpointing(
            self.coordinator,
            intake,
            Shape(pipeline, settings.index, tasks, self.folder.path),
            IN_PROCESS,
            commit_on=settings.commit_on,
            interval=settings.interval,
            given=given,
        )

    @property
    def _table(self) -> TableHandle:
        return self.coordinator.table

    @property
    def _sets_aside(self) -> bool:
        return self._settings.on_bad_record == "quarantine"

    @property
    def tasks(self) -> int:
        """Return the number of tasks that write a batch on executors."""
        return self.checkpointing.shape.tasks

    def background(self, hold: JobHold) -> Checkpointing:
        """Return the protocol for a second thread, which applies what this one has sealed.

        It has its own table handle. From now on both release the mutex of `hold` as they work.
        """
        self._hold = hold
        self.checkpointing.let_finish = hold.wait_until_unused
        drops = self._table.drops_metadata_table
        table = open_table(self._table.storage, drops_metadata_table=drops)
        table.options = self._table.options
        coordinator = WriteCoordinator(table, self.coordinator.events)
        intake = self.checkpointing.intake
        self.coordinators.append(coordinator)
        return Checkpointing(coordinator, intake, Shape(), Rewriting(hold.paused, self._kept))

    def close(self) -> None:
        """Free what is kept for further batches."""
        self._kept.clear()

    def settle(self) -> None:
        """Settle the table; this query's sealed checkpoints wait for the end of their interval."""
        sealing = self.folder.query_id() if self._settings.interval else None
        settle(self.coordinator, sealing=sealing, last=self.folder.last())
        self.oldest_ms = self.checkpointing.oldest_ms()

    def run(self, batch: DataFrame, batch_id: int) -> None:
        """Run one micro-batch as a checkpoint; skip it if it is already in the table."""
        context = batch.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId") or self.folder.query_id()
        checkpoint = self.folder.checkpoint(query_id, batch_id)
        began = time.perf_counter()
        held = self.checkpointing.contains(checkpoint)
        previous = self.folder.fingerprint(batch_id - 1)
        if self._settings.interval is not None:
            instant = None
            self._seal(batch, checkpoint, previous)
        else:
            instant = self._written(batch, checkpoint, previous)
        if held:  # a stateful plan must still advance
            batch.write.format("noop").mode("overwrite").save()
            return
        taken = self.placing.remember()
        failpoints.hit("stream.batch.post")
        self.coordinator.events.emit(
            "batch_ended",
            batch=batch_id,
            instant=instant.requested_time if instant else None,
            seconds=round(time.perf_counter() - began, 3),
            rows=taken.rows,
            bytes=taken.size_bytes,
        )

    def cancel(self) -> None:
        """Let the running batch fail, or the next one, if it is written in this process."""
        self._cancelled.set()

    @contextlib.contextmanager
    def limit(self, batch_id: int, cancel_jobs: Callable[[], None]) -> Iterator[None]:
        """Cancel the batch that runs in this block, with its Spark jobs, if it takes too long."""
        limit = self._settings.checkpoint_timeout_s

        def cancel() -> None:
            self.coordinator.events.emit("checkpoint_timed_out", batch=batch_id, seconds=limit)
            self.cancel()
            cancel_jobs()

        timer = threading.Timer(limit or 0, cancel)
        if limit is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._cancelled.clear()

    def _seal(self, batch: DataFrame, checkpoint: Checkpoint, previous: str | None) -> None:
        folder = self.checkpointing.sealing(checkpoint, previous)
        if folder is None:
            return
        intake = self.checkpointing.intake
        quarantine = quarantine_of(intake, folder, self._table.clock, checkpoint)
        plan = SealPlan(self._table.storage, intake, folder, self.tasks, quarantine)
        kill = self.checkpointing.fault_fires("kill_writer")
        pause = self._hold.paused if self._hold else contextlib.nullcontext
        with pause(PurePosixPath(folder).name):
            sealed = self._runs(batch, plan, checkpoint.batch_id, kill=kill)
        with self._table.timeline.listed_once():
            if self._hold is not None:
                self.checkpointing.take_over()  # the other thread may have applied what was sealed
            self.checkpointing.keep(checkpoint, folder, *sealed)
        self.oldest_ms = self.checkpointing.oldest_ms()

    def _runs(
        self, batch: DataFrame, plan: SealPlan, number: int, *, kill: bool
    ) -> tuple[list[StoredFile], Collection[str], list[StoredFile]]:
        """Save a checkpoint's keyed rows as runs; return them as `Checkpointing.keep` takes them.

        These are the runs, the partition paths of their rows, and the files of refused rows.
        """
        with self.placing.unless_too_large(number):
            if self.placing.here(batch, number):
                bad = self._bad_rows()
                keyed = collected(batch, plan.intake, bad, self.placing.newest)
                self._go_on(kill)
                return seal_in_process(keyed, plan, bad)
        return seal_on_spark(batch, plan, kill=kill, taken=self.placing.newest)

    def _written(
        self, batch: DataFrame, checkpoint: Checkpoint, previous: str | None
    ) -> Instant | None:
        placing = self.placing
        number = checkpoint.batch_id
        with placing.unless_too_large(number):
            if placing.here(batch, number):
                return self._written_here(batch, checkpoint, previous)
        asks = partial(self._may_have_rows, batch)
        with self.checkpointing.running(checkpoint, previous, has_rows=asks) as work:
            if work is not None:
                kill = self.checkpointing.fault_fires("kill_writer")
                taken = placing.newest
                write_on_spark(batch, work, self._live, kill=kill, taken=taken)
                taken.note_written(work.statuses)
        return None if work is None else work.instant

    def _may_have_rows(self, batch: DataFrame) -> bool:
        """Whether to open an instant for a batch that the executors write.

        One that would have to be computed twice is only asked for rows if the last one had none.
        """
        if (
            self.checkpointing.shape.pipeline.serial_instant
        ):  # its task opens the instant, at the first row
            return True
        return not (self.placing.last_was_empty or self._is_cheap) or has_rows(batch)

    def _bad_rows(self) -> BadRows | None:
        return BadRows() if self._sets_aside else None

    def _written_here(
        self, batch: DataFrame, checkpoint: Checkpoint, previous: str | None
    ) -> Instant | None:
        keyed: list[pa.Table] = []
        bad = self._bad_rows()
        taken = self.placing.newest

        def collects() -> bool:
            keyed.append(collected(batch, self.checkpointing.intake, bad, taken))
            return bool(keyed[0].num_rows or bad)

        steps = self.checkpointing.running(checkpoint, previous, tasks=1, has_rows=collects)
        with steps as work:
            if work is not None:
                self._go_on(self.checkpointing.fault_fires("kill_writer"))
                rows = keyed.pop()
                kept = self._kept
                work.quarantined = saved(bad, work.plan)
                work.statuses = write_in_process(
                    rows, work.plan, self.coordinator.events, kept, arrived=True
                )
                taken.note_written(work.statuses)
                self._go_on()
        return None if work is None else work.instant

    def _go_on(self, killed: bool = False) -> None:
        """Raise WriteFailed if the batch was cancelled, or killed by an injected fault."""
        if self._cancelled.is_set():
            raise WriteFailed("the checkpoint was cancelled: none of the batch was written")
        if killed:
            raise WriteFailed("the injected fault 'kill_writer' ended the write")
