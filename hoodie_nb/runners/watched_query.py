"""The stream: a Structured Streaming query whose micro-batches are the RFC's checkpoints.

*Work flow*: Spark writes `offsets/N` and calls `foreachBatch(df, N)`; the job takes the table's
mutex and runs the checkpoint. When Spark has written `commits/N`, which a thread here watches on
disk, the checkpoint has succeeded: this is the notification that commits the instant that N
prepared. Spark calls N+1 only after `commits/N`, and the start of N+1 commits N too.

With `commit_interval="background"` this thread applies what is sealed (`runners/background.py`).

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
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException

from hoodie_nb.commit.lock import JobHold
from hoodie_nb.errors import (
    ConcurrentWriter,
    HoodieError,
    InvalidConfig,
    InvalidInput,
    InvalidTable,
    WriteFailed,
)
from hoodie_nb.events import EventLog, log_events
from hoodie_nb.runners.background import BackgroundCommits
from hoodie_nb.runners.lost_jvm import JVM_IS_GONE, jvm_is_gone
from hoodie_nb.runners.micro_batches import MicroBatches
from hoodie_nb.runners.settings import StreamSettings
from hoodie_nb.runners.spark import receiver, stop_started
from hoodie_nb.runners.spark_files import sources_of, with_places
from hoodie_nb.runners.tally import Tally
from hoodie_nb.runners.task_errors import first_cause
from hoodie_nb.runners.triggers import POLL_S
from hoodie_nb.table.handle import TableHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class _Stopping(Exception):
    """Raised at the start of a batch that must not run; handled by the job only."""


class WatchedQuery:
    """A streaming query into a table, and the thread that commits what its batches prepared."""

    _background: BackgroundCommits | None = None  # with commit_interval="background"

    def __init__(self, stream: DataFrame, table: TableHandle, settings: StreamSettings) -> None:
        self.settings = settings
        self.query: StreamingQuery
        self._stream, self._events = stream, EventLog()
        self._tally = Tally()
        self._events.listen(self._tally)
        log_events(self._events, table.config.name)
        self._live = receiver(stream, self._events)
        with contextlib.ExitStack() as undo:
            undo.callback(self._live.close)
            self._begin(table, undo)
            undo.pop_all()

    def _begin(self, table: TableHandle, undo: contextlib.ExitStack) -> None:
        settings, stream = self.settings, self._stream
        self._batches = MicroBatches(stream, table, settings, self._events, self._live)
        self.checkpointing, self._folder = self._batches.checkpointing, self._batches.folder
        self._stopping, self._killed, self._ended = (threading.Event() for _ in range(3))
        self._written, self._written_at = threading.Event(), 0.0  # the last batch's end
        self._in_batch = threading.Lock()
        done = self._folder.last()  # sealed checkpoints do not wait for another batch
        self._last_batch = -1 if done is None else done.batch_id
        self._error: BaseException | None = None
        self._hold = JobHold(table.storage, f"writing from checkpoint {settings.checkpoint}")
        undo.callback(self._hold.release)
        if settings.interval is not None and settings.interval.background:
            most, events = settings.max_restarts, self._events
            self._background = BackgroundCommits(self._batches, self._hold, events, most)
        self._refuse_shared_folder()
        self._settle()
        undo.push(self._abandon)
        self._start()
        threading.Thread(target=self._watch, name="hoodie-job", daemon=True).start()

    def _refuse_shared_folder(self) -> None:
        """Raise ConcurrentWriter if a running query uses the checkpoint folder: Spark stops it."""
        query_id = self._folder.query_id()
        if any(query.id == query_id for query in self._stream.sparkSession.streams.active):
            raise ConcurrentWriter(
                f"the checkpoint folder {self._folder.path} is used by a running query (id "
                f"{query_id}): stop that one first, or choose another folder for this stream"
            )

    def _settle(self) -> None:
        with self._hold.writing():
            self._hold.wait_until_unused()
            self._batches.settle()

    def _start(self) -> None:
        self._folder.clear_torn_start()
        self._folder.sources = sources_of(self._stream)
        stream = with_places(self._stream, ahead=self._folder.listed_ahead())
        place = f"file://{self._folder.path}"  # else it is a path of fs.defaultFS
        writer = stream.writeStream.outputMode(self.settings.output_mode)
        writer = writer.option("checkpointLocation", place)
        writer = writer.foreachBatch(self._on_batch).trigger(**self.settings.trigger)
        try:
            self.query = writer.start()
        except Py4JJavaError as error:
            raise InvalidConfig(
                f"Spark cannot start a stream with the checkpoint folder {self._folder.path}: "
                f"{first_cause(str(error))}. Let this user read and write all of it, or choose "
                "another folder"
            ) from None
        except AnalysisException as error:
            mode, cause = self.settings.output_mode, first_cause(str(error))
            hint = " (an aggregation may need output_mode='update')" if mode == "append" else ""
            raise InvalidConfig(
                f"Spark cannot run this stream in {mode} mode{hint}: {cause}"
            ) from None
        self._events.emit(
            "job_started",
            query=str(self.query.id),
            pipeline=self.settings.pipeline,
            index=self.settings.index,
            tasks=self._batches.tasks,
        )

    def _abandon(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the query of an interrupted start, even if the JVM had not answered yet."""
        self._stopping.set()  # from now on none of its batches starts
        if hasattr(self, "query"):
            self._stop_query()
        elif kind is not None and not issubclass(kind, Exception):
            with contextlib.suppress(Exception):
                stop_started(self._stream, self._folder.query_id, within_s=3)

    # --- the thread that watches Spark ----------------------------------------------------------

    def _watch(self) -> None:
        """Pass on success notifications, restart a failed query, end the job with its query."""
        try:
            failures, done = 0, self._last_batch
            while True:
                self._watch_query()
                failures = failures + 1 if done == self._last_batch else 1
                done = self._last_batch
                if not self._restartable() or failures > self.settings.max_restarts:
                    break
                self._emit_end("job_restarted")
                if self._stopping.wait(0.25 * 2**failures):
                    break
                self._restart()
            self._error = self._error or self._failed_outside()
            if not self._killed.is_set():
                self._complete()
        except BaseException as error:
            self._error = self._error or error
        suspect, lost = (Py4JError, OSError, WriteFailed), isinstance(self._error, Py4JError)
        if isinstance(self._error, suspect) and jvm_is_gone(within_s=1 if lost else 0):
            self._error = WriteFailed(JVM_IS_GONE)
        self._stop_query()  # without its watcher nothing would be committed
        self._live.close()
        self._batches.close()
        self._hold.release()
        try:  # first: the job's display is up to date when `wait` returns
            self._emit_end("job_failed" if self._error else "job_stopped")
        finally:
            self._ended.set()

    def _failed_outside(self) -> WriteFailed | None:
        """Return the error of a query that failed outside the writer, None if it did not fail."""
        failure = None if self._stopping.is_set() else self.query.exception()
        if failure is None:
            return None
        line = str(failure).splitlines()[0][:300]
        return WriteFailed(f"the streaming query failed outside the writer: {line}")

    def _emit_end(self, kind: str) -> None:
        error = self._error
        named = {"error": type(error).__name__} if error else {}
        self._events.emit(kind, why=str(error or ""), **named)

    def _restart(self) -> None:
        """Start the query again; after a crash, first recover as the next process would."""
        self._error = None
        if self._batches.coordinator.dead:
            for coordinator in self._batches.coordinators:
                coordinator.dead = False
            self._settle()
        self._start()

    def _watch_query(self) -> None:
        """Wait for the query's end; meanwhile each `commits/N` on disk is N's notification."""
        noticed = -1
        while self.query.isActive:
            if self._stopping.is_set():
                self._end_query()
                continue
            last = self._last_batch
            timed = self.settings.interval is not None and self.settings.interval.duration_ms
            if self._background is not None:
                if self._background.due and self._folder.completed(last):
                    self._background.apply()
            elif (last > noticed or timed) and self._folder.completed(last):
                noticed = last
                with self._hold.writing():
                    if last == self._last_batch:
                        self._notify(last)
            self._pause(self._last_batch > noticed)

    def _pause(self, awaits: bool) -> None:
        """Wait for a short time; `awaits` a notification, which is likely soon after the batch."""
        soon = awaits and time.monotonic() < self._written_at + 5 * POLL_S
        if self._written.wait(POLL_S / 20 if soon else POLL_S):
            self._written.clear()

    def _end_query(self) -> None:
        """End a query that should stop, between two batches unless it is killed."""
        if not self._killed.is_set():
            with self._in_batch:
                last = self._last_batch
            until = time.monotonic() + 5  # a replay would be skipped, so do not wait longer
            while self.query.isActive and last >= 0 and not self._folder.completed(last):
                if self._killed.is_set() or time.monotonic() > until:
                    break
                time.sleep(POLL_S / 5)
        self._stop_query()

    def _stop_query(self) -> None:
        with contextlib.suppress(Exception):  # a query that ended by _Stopping raises here
            self.query.stop()

    def _notify(self, batch_id: int) -> None:
        try:
            self.checkpointing.notify(batch_id)
            if self.settings.interval is not None:
                self._batches.oldest_ms = self.checkpointing.oldest_ms()
        except HoodieError as error:  # it stays prepared: the next checkpoint or start completes it
            self._events.emit("commit_failed", why=str(error))

    def _complete(self) -> None:
        """Commit everything that is prepared or sealed."""
        with self._hold.writing():
            self._hold.wait_until_unused()
            self.checkpointing.complete()
            if self.settings.interval is not None:
                self._batches.oldest_ms = self.checkpointing.oldest_ms()

    def _restartable(self) -> bool:
        """Whether the query failed in a way that a rerun of the batch can fix."""
        wrong = (InvalidInput, InvalidTable, InvalidConfig, ConcurrentWriter)
        asked = self._stopping.is_set() or self._killed.is_set()
        return self._error is not None and not asked and not isinstance(self._error, wrong)

    # --- one checkpoint -----------------------------------------------------------------------

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        try:
            if self._stopping.is_set():
                raise _Stopping
            limit = self._batches.limit(batch_id, self._cancel_jobs)
            with self._in_batch, self._hold.writing(), limit:
                self._batches.run(batch, batch_id, str(self.query.id))
                self._last_batch, self._written_at = batch_id, time.monotonic()
            self._written.set()
        except BaseException as error:
            if not isinstance(error, _Stopping) and not self._killed.is_set():
                self._error = self._error or error  # a dying watcher interrupts the batch
            raise RuntimeError(f"{type(error).__name__}: {error}"[:200]) from None

    def _cancel_jobs(self) -> None:
        self._stream.sparkSession.sparkContext.cancelJobGroup(str(self.query.runId))
