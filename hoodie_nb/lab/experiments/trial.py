"""One run of a pipeline on generated input: its settings; on Spark, or in threads without it.

Without Spark the tasks are threads. `network` delays each shuffle and `store` each request of the
writers, as simulated links; by default neither takes any time.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hoodie_nb.buckets.pipelines import Shape, pipeline_named
from hoodie_nb.config import parse_bytes
from hoodie_nb.display import counted
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, create_table
from hoodie_nb.lab.experiments.race import Generated, measurements, stream_input, write_input
from hoodie_nb.lab.rfc.task_threads import write_in_threads
from hoodie_nb.lab.stores.slow_storage import Link, SlowStorage
from hoodie_nb.lock.lock import writing
from hoodie_nb.stream.job import Job
from hoodie_nb.stream.settings import StreamSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_DELAY = Link()
Started = Callable[[EventLog, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """The settings of a run; `pace_s` is the time between micro-batches, 0 for none."""

    pipeline: str = "step3"
    index: str = ""
    batch_size: str = "1 MB"
    writers: int = 2
    pace_s: float = 0.0
    input: Generated = field(default_factory=Generated)
    network: Link = _NO_DELAY
    store: Link = _NO_DELAY
    options: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        made = self.input
        writers = counted(self.writers, "writer")
        return (
            f"{self.pipeline}, {self._index}, {self.batch_size} buffers, {writers}; "
            f"{made.rows:,} rows of {made.record_bytes} B, {made.partitions} partitions, "
            f"skew {made.skew:.0%}, updates {made.update_share:.0%}"
        )

    @property
    def _index(self) -> str:
        return self.index or pipeline_named(self.pipeline).index

    def run(self, started: Started, spark: SparkSession | None = None) -> dict[str, float]:
        """Run it in a temporary folder and return its measurements, none if nothing is committed.

        `started` gets the event log and a function that stops the run after a micro-batch.
        """
        with tempfile.TemporaryDirectory(prefix="hoodie-trial-") as folder:
            size = parse_bytes(self.batch_size)
            options = {"write.batch.size": size, "write.task.max.size": 4 * size, **self.options}
            made = create_table(f"{folder}/table", self.input.config, options=options)
            table = TableHandle(SlowStorage(made.storage, self.store), made.clock, made.config)
            if spark is None:
                events = self._run_here(table, folder, started)
            else:
                events = self._run_on_spark(table, Path(folder), started, spark)
            return measurements(events, made) if events.records("instant_committed") else {}

    def _run_here(self, table: TableHandle, folder: str, started: Started) -> EventLog:
        events = EventLog()
        stopped = threading.Event()
        shape = Shape(pipeline_named(self.pipeline), self._index, self.writers, folder)
        started(events, stopped.set)
        events.emit("job_started", pipeline=self.pipeline, index=self._index, tasks=self.writers)
        try:
            with writing(table.storage):
                for number, rows in enumerate(self.input.tables()):
                    if stopped.wait(self.pace_s if number else 0):
                        break
                    write_in_threads(table, rows, shape, self.network, events)
        except BaseException as error:
            events.emit("job_failed", why=str(error), error=type(error).__name__)
            raise
        events.emit("job_stopped", why="")
        return events

    def _run_on_spark(
        self, table: TableHandle, folder: Path, started: Started, spark: SparkSession
    ) -> EventLog:
        write_input(folder / "input", self.input.tables())
        paced = {"processingTime": f"{round(1000 * self.pace_s)} milliseconds"}
        settings = StreamSettings(
            str(folder / "checkpoint"),
            trigger=paced if self.pace_s else {"availableNow": True},
            write_tasks=self.writers,
            pipeline=self.pipeline,
            index=self._index,
        )
        job = Job(stream_input(spark, folder / "input"), table, settings)
        started(job.events, job.stop)
        if self.pace_s:
            job.process_all_available()
            job.stop()
        job.wait()
        return job.events
