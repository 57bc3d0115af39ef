"""Job, the user's handle of a stream: status, progress, wait, stop, time out.

See `watched_query` for its query, and `micro_batches` for the processing of a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from hoodie_nb import display
from hoodie_nb.clock import seconds
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.display import counted
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import EventLog, log_events
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.on_spark.interrupts import stop_on_interrupt
from hoodie_nb.stream.settings import StreamSettings
from hoodie_nb.stream.tally import JobProgress, Tally
from hoodie_nb.stream.triggers import POLL_S
from hoodie_nb.stream.watched_query import WatchedQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TURN_S = 60.0  # how long a job that is stopped waits for other processes


class Job:
    """A running stream into a table. `await job`, or `job.wait()` in a script.

    `with hn.write_stream(...) as job:` stops the job at the end of the block.
    """

    def __init__(self, stream: DataFrame, table: TableHandle, settings: StreamSettings) -> None:
        self.settings = settings
        self.table = table  # its handle
        self.events = EventLog()  # the newest events of this job
        self._tally = Tally()
        self.events.listen(self._tally)
        log_events(self.events, table.config.name)
        self._view: display.View | None = None
        self._watched = WatchedQuery(stream, table, settings, self.events)

    @property
    def query(self) -> StreamingQuery:
        """Return Spark's query; a restart makes another one."""
        return self._watched.query.started

    @property
    def checkpointing(self) -> Checkpointing:
        """Return the protocol of its checkpoints."""
        return self._watched.batches.checkpointing

    @property
    def active(self) -> bool:
        """Whether the job is still running."""
        return not self._watched.ended.is_set()

    @property
    def status(self) -> str:
        """Return one line: what the job is doing, how much it has committed, and its pipeline."""
        now = self.progress
        batch = "no batch yet" if now.batch < 0 else f"batch {now.batch}"
        aside = f", {now.refused_rows:,} in quarantine" if now.refused_rows else ""
        done = f"{counted(now.commits, 'commit')}, {counted(now.rows, 'row')} written{aside}"
        placed = self._watched.batches.placing.where
        where = f" on the {placed}" if placed else ""
        return f"{now.state}: {done}, {batch}, pipeline {self.settings.pipeline}{where}"

    @property
    def progress(self) -> JobProgress:
        """Return what the job has done so far, for a program that watches it."""
        tally = self._tally
        return JobProgress(
            state="running" if self.active else "failed" if self._watched.error else "stopped",
            batch=self._watched.last.number,
            commits=tally.commits,
            last_commit=tally.last_commit,
            rows=tally.rows,
            rows_per_s=tally.rows_per_s,
            deletes=tally.deletes,
            refused_rows=tally.refused_rows,
            freshness_s=self._freshness_s(),
            restarts=tally.restarts,
        )

    def _freshness_s(self) -> float:
        oldest = self._watched.batches.oldest_ms
        now = self._watched.batches.coordinator.table.clock.now_ms()
        return 0.0 if oldest is None else max(0.0, (now - oldest) / 1000)

    def __repr__(self) -> str:
        return f"<Job {self.status}>"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the job at the end of a `with` block; an error of the block is raised, not ours."""
        with contextlib.suppress(*([] if kind is None else [Exception])):
            self.stop()

    def _ipython_display_(self) -> None:
        self._view = display.shown(self, self._view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        self._view = self._view or display.view(self)
        return display.bundle(self, self._view)

    def wait(self, timeout: float | str | None = None) -> bool:
        """Return True when the stream has ended and everything is committed, False after `timeout`.

        Ctrl-C stops the job at a batch boundary and raises KeyboardInterrupt.
        """
        until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        with stop_on_interrupt(self.stop):
            while not self._watched.ended.wait(POLL_S):
                if until is not None and time.monotonic() > until:
                    return False
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
            await asyncio.sleep(POLL_S)
        self._raise()

    def process_all_available(self) -> None:
        """Return when all current input is committed and visible."""
        if self._is_awaited:
            raise InvalidConfig(
                "process_all_available was called in a listener of the job, or inside a write of "
                "its table, for which the job waits: call it in another thread"
            )
        with stop_on_interrupt(self.stop):
            while not self._processed(self.query):
                continue  # it was restarted
        self._watched.complete()

    def _processed(self, query: StreamingQuery) -> bool:
        """Whether a run of the query processed all input; if it failed, wait for the outcome."""
        try:
            query.processAllAvailable()
            return True
        except Exception:
            while not self._watched.ended.wait(POLL_S):
                if self.query is not query:
                    return False
            self._raise()
            raise

    def stop(self) -> None:
        """Stop between two batches and commit prepared instants; idempotent.

        The job waits for listeners and for writes of the table, so inside one of them this only
        requests the stop: the job ends later. ConcurrentWriter if another process keeps the table
        for a minute: what is prepared is then committed by its next writer.
        """
        self._watched.hold.until = min(self._watched.hold.until, time.monotonic() + TURN_S)
        self._watched.stopping.set()
        if not self._is_awaited:
            self._watched.ended.wait()
            self._raise()

    def time_out(self) -> None:
        """Cancel the Spark job of the running or next checkpoint, as its timeout does."""
        self.events.emit("checkpoint_timed_out", batch=self._watched.last.number + 1, seconds=0)
        self._watched.batches.cancel()
        self._watched.query.cancel_jobs_and_next()

    def kill(self) -> None:
        """End like a crash: in the middle of a batch, without cleanup or commit."""
        self._watched.killed.set()
        self._watched.hold.until = 0.0
        self._watched.stopping.set()
        for coordinator in self._watched.batches.coordinators:
            coordinator.dead = True
        self._watched.batches.cancel()
        if not self._is_awaited:
            self._watched.query.stop()
            self._watched.ended.wait()

    @property
    def _is_awaited(self) -> bool:
        """Whether the job may wait for this thread, which then cannot wait for the job."""
        return self.events.in_listener or self._watched.hold.in_write

    def _raise(self) -> None:
        if self._watched.error is not None:
            raise self._watched.error
