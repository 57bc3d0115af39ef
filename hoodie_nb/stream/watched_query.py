"""The stream's loop: runs batches; a thread commits at Spark's `commits/N` or an interval's end.

*Work flow*: Spark writes `offsets/N` and calls `foreachBatch(df, N)`; the job takes the table's
mutex and runs the checkpoint. When Spark has written `commits/N`, which a thread here watches on
disk, the checkpoint has succeeded: this is the notification that commits the instant that N
prepared. Spark calls N+1 only after `commits/N`, and the start of N+1 commits N too.

With `commit_interval="background"` this thread applies what is sealed (`stream/background.py`).

*Fault tolerance*: a crash before N is prepared leaves an instant that the next start rolls back,
and Spark runs N again; after prepare, N is recognised by the fingerprint of `offsets/N`, skipped,
and committed if necessary. A failed or timed-out batch restarts the query up to `max_restarts`
times in a row, with a wait that doubles each time. `stop` ends the query between two batches. An
error inside a batch is stored here in full and passed to Spark as one short line, since Spark's
handling of long messages overflows the stack.

*Source:* RFC-24 §"The Semantics"; design of foreachBatch sinks in Hudi, Delta and Iceberg.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from hoodie_nb.errors import (
    ConcurrentWriter,
    HoodieError,
    InvalidConfig,
    InvalidInput,
    InvalidTable,
    WriteFailed,
)
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.lock.job import JobHold
from hoodie_nb.on_spark.lost_jvm import JVM_IS_GONE, jvm_is_gone
from hoodie_nb.on_spark.stages import receiver
from hoodie_nb.stream.background import BackgroundCommits
from hoodie_nb.stream.micro_batches import MicroBatches, recover_if_stale
from hoodie_nb.stream.settings import StreamSettings
from hoodie_nb.stream.spark_query import SparkQuery
from hoodie_nb.stream.triggers import POLL_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _Stopping(Exception):
    """Raised at the start of a batch that must not run; handled by the job only."""


class _LastBatch:
    """The newest micro-batch that was written, and a signal that there is a newer one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = threading.Event()
        self.running = threading.Lock()  # held while a batch is written
        self._ended_at = 0.0  # monotonic seconds

    def end(self, number: int) -> None:
        """Note that a batch was written."""
        self.number = number
        self._ended_at = time.monotonic()

    @property
    def is_recent(self) -> bool:
        """Whether it ended a moment ago, so that Spark's record of it is likely to come soon."""
        return time.monotonic() < self._ended_at + 5 * POLL_S


class WatchedQuery:
    """A streaming query into a table, and the thread that commits what its batches prepared."""

    def __init__(
        self, stream: DataFrame, table: TableHandle, settings: StreamSettings, events: EventLog
    ) -> None:
        self.settings = settings
        self.events = events
        self.live = receiver(stream, events)
        with contextlib.ExitStack() as undo:
            undo.callback(self.live.close)
            self._begin(stream, table, undo)
            undo.pop_all()

    def _begin(self, stream: DataFrame, table: TableHandle, undo: contextlib.ExitStack) -> None:
        settings = self.settings
        self.batches = MicroBatches(stream, table, settings, self.events, self.live)
        self.stopping = threading.Event()
        self.killed = threading.Event()
        self.ended = threading.Event()
        done = self.batches.folder.last()  # sealed checkpoints do not wait for another batch
        self.last = _LastBatch(-1 if done is None else done.batch_id)
        self.error: BaseException | None = None
        keeps = settings.index == "state"  # the lock
        self.hold = JobHold(
            table.storage,
            f"writing {'to its end ' if keeps else ''}from checkpoint {settings.checkpoint}",
            checkpoint=None if keeps else settings.checkpoint,
            wait_s=settings.wait_s,
        )
        undo.callback(self.hold.release)
        self._background: BackgroundCommits | None = None
        if settings.interval is not None and settings.interval.background:
            most = settings.max_restarts
            self._background = BackgroundCommits(self.batches, self.hold, self.events, most)
        self.query = SparkQuery(stream, self.batches.folder, settings)
        self.query.refuse_shared_folder()
        self._settle()
        undo.push(self._abandon)
        self._start()
        threading.Thread(target=self._watch, name="hoodie-job", daemon=True).start()

    def _settle(self) -> None:
        with self.hold.writing():
            self.hold.wait_until_unused()
            self.batches.settle()
            self.hold.stale = 0.0

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the table for one write; first recover it if other processes have had a turn."""
        with self.hold.writing():
            recover_if_stale(self.batches.checkpointing, self.hold, self.events)
            yield

    def _start(self) -> None:
        self.query.start(self._on_batch)
        self.events.emit(
            "job_started",
            query=str(self.query.started.id),
            pipeline=self.settings.pipeline,
            index=self.settings.index,
            tasks=self.batches.tasks,
        )

    def _abandon(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the query of an interrupted start, even if the JVM had not answered yet."""
        self.stopping.set()  # from now on none of its batches starts
        self.hold.until = 0.0
        self.query.abandon(kind)

    # --- the thread that watches Spark ----------------------------------------------------------

    def _watch(self) -> None:
        """Pass on success notifications, restart a failed query, end the job with its query."""
        try:
            failures = 0
            done = self.last.number
            while True:
                self._watch_query()
                failures = failures + 1 if done == self.last.number else 1
                done = self.last.number
                if not self._restartable() or failures > self.settings.max_restarts:
                    break
                self._emit_end("job_restarted")
                if self.stopping.wait(0.25 * 2**failures):
                    break
                self._restart()
            if not self.stopping.is_set():
                self.error = self.error or self.query.failure()
            if not self.killed.is_set():
                self.complete()
        except BaseException as error:
            self.error = self.error or error
        suspect = (Py4JError, OSError, WriteFailed)
        lost = isinstance(self.error, Py4JError)
        if isinstance(self.error, suspect) and jvm_is_gone(within_s=1 if lost else 0):
            self.error = WriteFailed(JVM_IS_GONE)
        self.query.stop()  # without its watcher nothing would be committed
        self.live.close()
        self.batches.close()
        self.hold.release()
        try:  # first: the job's display is up to date when `wait` returns
            self._emit_end("job_failed" if self.error else "job_stopped")
        finally:
            self.ended.set()

    def _emit_end(self, kind: str) -> None:
        error = self.error
        named = {"error": type(error).__name__} if error else {}
        self.events.emit(kind, why=str(error or ""), **named)

    def _restart(self) -> None:
        """Start the query again; after a crash, first recover as the next process would."""
        self.error = None
        if self.batches.coordinator.dead:
            for coordinator in self.batches.coordinators:
                coordinator.dead = False
            self._settle()
        self._start()

    def _watch_query(self) -> None:
        """Wait for the query's end; meanwhile each `commits/N` on disk is N's notification."""
        noticed = -1
        while self.query.active:
            if self.stopping.is_set():
                self._end_query()
                continue
            last = self.last.number
            timed = self.settings.interval is not None and self.settings.interval.duration_ms
            if self._background is not None:
                if self._background.due and self.batches.folder.completed(last):
                    self._background.apply()
            elif (last > noticed or timed) and self.batches.folder.completed(last):
                noticed = last
                self._notify(last)
            self.hold.give_way()
            self._pause(self.last.number > noticed)

    def _pause(self, awaits: bool) -> None:
        """Wait for a short time; `awaits` a notification, which is likely soon after the batch."""
        soon = awaits and self.last.is_recent
        if self.last.ended.wait(POLL_S / 20 if soon else POLL_S):
            self.last.ended.clear()

    def _end_query(self) -> None:
        """End a query that should stop, between two batches unless it is killed."""
        if not self.killed.is_set():
            with self.last.running:
                last = self.last.number
            until = time.monotonic() + 5  # a replay would be skipped, so do not wait longer
            while self.query.active and last >= 0 and not self.batches.folder.completed(last):
                if self.killed.is_set() or time.monotonic() > until:
                    break
                time.sleep(POLL_S / 5)
        self.query.stop()

    def _notify(self, batch_id: int) -> None:
        try:
            with self._writing():
                if batch_id == self.last.number:
                    self.batches.checkpointing.notify(batch_id)
                    if self.settings.interval is not None:
                        self.batches.oldest_ms = self.batches.checkpointing.oldest_ms()
        except HoodieError as error:  # it stays prepared: the next checkpoint or start completes it
            self.events.emit("commit_failed", why=str(error))

    def complete(self) -> None:
        """Commit everything that is prepared or sealed."""
        with self._writing():
            self.hold.wait_until_unused()
            self.batches.checkpointing.complete()
            if self.settings.interval is not None:
                self.batches.oldest_ms = self.batches.checkpointing.oldest_ms()

    def _restartable(self) -> bool:
        """Whether the query failed in a way that a rerun of the batch can fix."""
        wrong = (InvalidInput, InvalidTable, InvalidConfig, ConcurrentWriter)
        asked = self.stopping.is_set() or self.killed.is_set()
        return self.error is not None and not asked and not isinstance(self.error, wrong)

    # --- one checkpoint -----------------------------------------------------------------------

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        try:
            if self.stopping.is_set():
                raise _Stopping
            limit = self.batches.limit(batch_id, self.query.cancel_jobs)
            with self.last.running, self._writing(), limit:
                self.batches.run(batch, batch_id)
                self.last.end(batch_id)
            self.last.ended.set()
        except BaseException as error:
            if not isinstance(error, _Stopping) and not self.killed.is_set():
                self.error = self.error or error  # a dying watcher interrupts the batch
            raise RuntimeError(f"{type(error).__name__}: {error}"[:200]) from None
