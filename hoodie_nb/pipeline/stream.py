"""The stream: a Structured Streaming query whose micro-batches are the RFC's checkpoints.

*Work flow*: Spark writes `offsets/N` and calls `foreachBatch(df, N)`; the job takes the table's
mutex, skips N if the table holds it already, checks that it holds N-1, and runs one checkpoint
through the coordinator. The commit happens inside the batch (`commit_on="write"`).

*Fault tolerance*: a crash before the completed file leaves an instant that the next start rolls
back, and Spark runs N again; a crash behind it is recognised by the fingerprint of `offsets/N` and
N is skipped. `stop` ends the query between two batches. An error inside a batch is kept here in
full and handed to Spark in one short line, since its own handling of long ones overflows the stack.

*Source:* RFC-24 §"The Semantics"; design of foreachBatch sinks in Hudi, Delta and Iceberg.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hoodie_nb import failpoints
from hoodie_nb.errors import HoodieError, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.pipeline.checkpoints import CheckpointFolder
from hoodie_nb.pipeline.coordinator import Shape, WriteCoordinator
from hoodie_nb.pipeline.intake import Intake
from hoodie_nb.pipeline.lock import JobHold, writing
from hoodie_nb.pipeline.progress import Checkpoint
from hoodie_nb.pipeline.spark import arrow_schema, write_on_spark
from hoodie_nb.pipeline.stages import pipeline_named
from hoodie_nb.pipeline.triggers import seconds
from hoodie_nb.table.handle import TableHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a job was asked for."""

    checkpoint: str
    operation: str = "upsert"
    trigger: dict[str, Any] = field(default_factory=dict)
    write_tasks: int | None = None
    commit_on: str = "write"
    pipeline: str = "step3"
    index: str = "bloom"


class _Stopping(Exception):
    """Raised at the entry of a batch that must not begin; the job alone swallows it."""


class Job:
    """A running stream into a table. `await job`, or `job.wait()` in a script."""

    def __init__(self, stream: DataFrame, table: TableHandle, settings: StreamSettings) -> None:
        self.settings = settings
        self.query: StreamingQuery
        self._table = table
        self._events = EventLog()
        self._folder = CheckpointFolder(settings.checkpoint)
        self._coordinator = WriteCoordinator(table, self._events)
        self._intake = Intake(table.config, table.schema, settings.operation)
        self._intake.check(arrow_schema(stream))
        self._shape = Shape(
            pipeline_named(settings.pipeline),
            settings.index,
            settings.write_tasks or stream.sparkSession.sparkContext.defaultParallelism,
            self._folder.path,
        )
        self._stopping = threading.Event()
        self._in_batch = threading.Lock()
        self._last_batch = -1
        self._error: BaseException | None = None
        self._hold = JobHold(table.storage, f"writing from checkpoint {settings.checkpoint}")
        try:
            with writing(table.storage):
                self._coordinator.recover()
            self._start(stream)
        except BaseException:
            self._hold.release()
            raise

    def _start(self, stream: DataFrame) -> None:
        writer = stream.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", self._folder.path)
        self.query = writer.trigger(**self.settings.trigger).start()
        self._events.tell("job_started", query=str(self.query.id))
        threading.Thread(target=self._watch, name="hoodie-job", daemon=True).start()

    def _watch(self) -> None:
        """Let go of the table when the query has ended, however it ended."""
        while self.query.isActive:
            time.sleep(_POLL_S)
        self._hold.release()
        self._events.tell(
            "job_failed" if self._error else "job_stopped", why=str(self._error or "")
        )

    # --- one checkpoint -----------------------------------------------------------------------

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        try:
            if self._stopping.is_set():
                raise _Stopping
            with self._in_batch, writing(self._table.storage):
                self._run_checkpoint(batch, batch_id)
                self._last_batch = batch_id
        except BaseException as error:
            if not isinstance(error, _Stopping) and not self._stopping.is_set():
                self._error = error
            raise RuntimeError(f"{type(error).__name__}: {error}"[:200]) from None

    def _run_checkpoint(self, batch: DataFrame, batch_id: int) -> None:
        context = batch.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId") or str(self.query.id)
        checkpoint = self._folder.checkpoint(query_id, batch_id)
        progress = self._coordinator.progress
        if progress.find(checkpoint) is not None:
            self._events.tell("batch_skipped", batch=batch_id)
            batch.write.format("noop").mode("overwrite").save()  # stateful plans must still advance
            return
        self._check(checkpoint)
        self._events.tell("batch_started", batch=batch_id)
        began = time.perf_counter()
        self._coordinator.recover()
        instant = self._coordinator.run(
            self._intake,
            lambda plan: write_on_spark(batch, plan, self._events),
            shape=self._shape,
            checkpoint=checkpoint,
        )
        failpoints.hit("stream.batch.post")
        self._events.tell(
            "batch_committed",
            batch=batch_id,
            instant=instant.requested_time if instant else None,
            seconds=round(time.perf_counter() - began, 3),
        )

    def _check(self, checkpoint: Checkpoint) -> None:
        progress = self._coordinator.progress
        if self.settings.operation == "insert":
            progress.check_insert(checkpoint)
        known = [i.requested_time for i in self._table.timeline.completed_commits()]
        previous = self._folder.fingerprint(checkpoint.batch_id - 1)
        progress.check_position(checkpoint, previous, known)

    # --- what a user does with it --------------------------------------------------------------

    @property
    def events(self) -> EventLog:
        """Return the newest events of this job."""
        return self._events

    @property
    def active(self) -> bool:
        """Whether the query still runs."""
        return bool(self.query.isActive)

    @property
    def status(self) -> str:
        """Return one line: what the job is doing and how much it has committed."""
        commits = self._events.records("instant_committed")
        rows = sum(e.values["inserts"] + e.values["updates"] for e in commits)
        state = "running" if self.active else "failed" if self._error else "stopped"
        return f"{state}: {len(commits)} commits, {rows:,} rows written, batch {self._last_batch}"

    def __repr__(self) -> str:
        return f"<Job {self.status}>"

    def wait(self, timeout: float | str | None = None) -> bool:
        """Return True when the stream has ended and all is committed, False after `timeout`.

        Ctrl-C stops the job at a batch boundary and raises KeyboardInterrupt.
        """
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        with self._stop_on_interrupt():
            while self.active:
                if until is not None and time.monotonic() > until:
                    return False
                time.sleep(_POLL_S)
        self._raise()
        return True

    def __await__(self) -> Generator[Any, None, None]:
        return self._until_done(None).__await__()

    async def run_for(self, duration: float | str) -> None:
        """Let the stream run for a while, then stop it cleanly."""
        await self._until_done(seconds(duration))
        await asyncio.to_thread(self.stop)

    async def _until_done(self, limit: float | None) -> None:
        until = None if limit is None else time.monotonic() + limit
        while self.active and (until is None or time.monotonic() < until):
            await asyncio.sleep(_POLL_S)
        self._raise()

    def process_all_available(self) -> None:
        """Return when all input that is present now is committed and visible."""
        try:
            with self._stop_on_interrupt():
                self.query.processAllAvailable()
        except HoodieError:
            raise
        except Exception:
            self._raise()
            raise

    def stop(self) -> None:
        """Stop between two batches; a running batch is finished first. May be called again."""
        self._stopping.set()
        with self._in_batch:
            last = self._last_batch
        until = time.monotonic() + 5
        while self.active and last >= 0 and not self._folder.completed(last):
            if time.monotonic() > until:  # the replay would be skipped: waiting on is not worth it
                break
            time.sleep(_POLL_S / 5)
        self._end_query()
        self._raise()

    def kill(self) -> None:
        """End as a crash would: in the middle of a batch, nothing tidied up."""
        self._stopping.set()
        self._end_query()

    def _end_query(self) -> None:
        with contextlib.suppress(Exception):  # a query that ended by _Stopping raises here
            self.query.stop()
        self._hold.release()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
        failure = None if self.active or self._stopping.is_set() else self.query.exception()
        if failure is not None:
            line = str(failure).splitlines()[0][:300]
            raise WriteFailed(f"the streaming query failed outside the writer: {line}")

    @contextlib.contextmanager
    def _stop_on_interrupt(self) -> Iterator[None]:
        """Turn Ctrl-C into a clean stop: pyspark's own handler would cancel the running batch."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous: Callable[..., Any] | int | None = signal.signal(
            signal.SIGINT, signal.default_int_handler
        )
        try:
            yield
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            signal.signal(signal.SIGINT, previous)
