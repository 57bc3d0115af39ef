"""Micro-batches: each micro-batch of Spark is run as a checkpoint of the table.

*Work flow*: the checkpoint is identified by query, batch and the fingerprint of `offsets/N`; it is
written, or only sealed if the job has a `commit_interval`. If it is already in the table, it is
skipped.

*Source:* RFC-24 §"The Semantics".
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hoodie_nb import failpoints
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.progress import Checkpoint
from hoodie_nb.events import EventLog
from hoodie_nb.runners.checkpoint_folder import CheckpointFolder
from hoodie_nb.runners.settings import StreamSettings
from hoodie_nb.runners.settling import IN_PROCESS, settle
from hoodie_nb.runners.spark import arrow_schema, seal_on_spark, write_on_spark
from hoodie_nb.runners.task_events import Receiver
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.timeline import Instant
from hoodie_nb.writer.pipelines import Shape, pipeline_named
from hoodie_nb.writer.plan import SealPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        self._table, self._settings, self._events, self._live = table, settings, events, live
        self.folder = CheckpointFolder(settings.checkpoint)
        self.coordinator = WriteCoordinator(table, events)
        intake = intake_of(self.coordinator, settings.operation, self.folder.query_id())
        given = arrow_schema(stream)
        intake.check(given)
        shape = Shape(
            pipeline_named(settings.pipeline),
            settings.index,
            settings.write_tasks or stream.sparkSession.sparkContext.defaultParallelism,
            self.folder.path,
        )
        self.tasks = shape.tasks
        self.checkpointing = Checkpointing(
            self.coordinator,
            intake,
            shape,
            events,
            IN_PROCESS,
            commit_on=settings.commit_on,
            interval=settings.interval,
            given=given,
        )

    def settle(self) -> None:
        """Settle the table; this query's sealed checkpoints wait for the end of their interval."""
        sealing = self.folder.query_id() if self._settings.interval else None
        settle(self.coordinator, self._events, sealing=sealing, last=self.folder.last())

    def run(self, batch: DataFrame, batch_id: int, query_id: str) -> None:
        """Run one micro-batch as a checkpoint; skip it if it is already in the table."""
        context = batch.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId") or query_id
        checkpoint = self.folder.checkpoint(query_id, batch_id)
        began = time.perf_counter()
        held = self.checkpointing.contains(checkpoint)
        previous, files = self.folder.fingerprint(batch_id - 1), self.folder.arrived(batch_id)
        if self._settings.interval is not None:
            instant = None
            folder = self.checkpointing.sealing(checkpoint, previous)
            if folder is not None:
                plan = SealPlan(self._table.storage, self.checkpointing.intake, folder, self.tasks)
                kill = self.checkpointing.fault_fires("kill_writer")
                runs, partitions = seal_on_spark(batch, plan, files, kill=kill)
                self.checkpointing.keep(checkpoint, folder, runs, partitions)
        else:
            instant = self._written(batch, files, checkpoint, previous)
        if held:  # a stateful plan must still advance
            batch.write.format("noop").mode("overwrite").save()
            return
        failpoints.hit("stream.batch.post")
        self._events.emit(
            "batch_ended",
            batch=batch_id,
            instant=instant.requested_time if instant else None,
            seconds=round(time.perf_counter() - began, 3),
        )

    def _written(
        self, batch: DataFrame, files: list[str], checkpoint: Checkpoint, previous: str | None
    ) -> Instant | None:
        with self.checkpointing.running(checkpoint, previous) as work:
            if work is not None:
                kill = self.checkpointing.fault_fires("kill_writer")
                work.statuses = write_on_spark(batch, work.plan, self._live, files=files, kill=kill)
        return None if work is None else work.instant
