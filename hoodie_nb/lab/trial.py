"""One run of a pipeline on a generated input: on Spark, or in this process without it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hoodie_nb.commit.lock import writing
from hoodie_nb.config import parse_bytes
from hoodie_nb.events import EventLog
from hoodie_nb.lab.draw.svg import counted
from hoodie_nb.lab.race import Generated, stream_input, write_input
from hoodie_nb.runners.job import Job
from hoodie_nb.runners.rfc_job import LocalJob
from hoodie_nb.runners.settings import StreamSettings
from hoodie_nb.table.handle import TableHandle, create_table
from hoodie_nb.writer.pipelines import pipeline_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE_ROWS = 1000
Started = Callable[[EventLog], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """The settings of a run; `pace_s` is the time between micro-batches, 0 for none."""

    pipeline: str = "step3"
    index: str = ""
    batch_size: str = "1 MB"
    writers: int = 2
    pace_s: float = 0.0
    input: Generated = field(default_factory=Generated)

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

    def run(self, started: Started, spark: SparkSession | None = None) -> None:
        """Run it to the end in a temporary folder; `started` gets the event log at the start."""
        with tempfile.TemporaryDirectory(prefix="hoodie-trial-") as folder:
            size = parse_bytes(self.batch_size)
            options = {"write.batch.size": size, "write.task.max.size": 4 * size}
            table = create_table(f"{folder}/table", self.input.config, options=options)
            if spark is None:
                self._run_here(table, folder, started)
            else:
                self._run_on_spark(table, Path(folder), started, spark)

    def _run_here(self, table: TableHandle, folder: str, started: Started) -> None:
        events, clock = EventLog(), threading.Event()
        started(events)
        events.emit("job_started", pipeline=self.pipeline, index=self._index, tasks=1)
        try:
            with writing(table.storage):
                job = LocalJob(
                    table,
                    pipeline=self.pipeline,
                    index=self._index,
                    state_folder=folder,
                    events=events,
                )
                for number, rows in enumerate(self.input.tables(), 1):
                    for start in range(0, rows.num_rows, _PIECE_ROWS):
                        job.write(rows.slice(start, _PIECE_ROWS))
                    job.checkpoint(number)
                    job.complete(number)
                    clock.wait(self.pace_s)
        except BaseException as error:
            events.emit("job_failed", why=str(error), error=type(error).__name__)
            raise
        events.emit("job_stopped", why="")

    def _run_on_spark(
        self, table: TableHandle, folder: Path, started: Started, spark: SparkSession
    ) -> None:
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
        started(job.events)
        if self.pace_s:
            job.process_all_available()
            job.stop()
        job.wait()
