"""`df.writeStream.format("hoodie_nb")`: each micro-batch is a checkpoint of the table.

*Work flow*: Spark plans each micro-batch beside the driver, runs its tasks, which stage their rows,
and then asks another process to commit them, with nothing but the batch's number. Its identity is
in the checkpoint folder: the query's id in `metadata`, and `offsets/N`, which Spark writes before
it runs batch N. So it is the identity that `hn.write_stream` uses, in the same records: admission,
recovery and the commit are `Checkpointing` with `commit_on="write"`.

The table is settled as the batch is planned, under the lock: what speaks against the write is an
error of the plan, whose text Spark shows. Of a commit's it says only that the job has failed.

*Semantics*: exactly-once. A batch that Spark repeats, because it or its driver died before Spark
wrote `commits/N`, is skipped if it is in the table. A folder that was taken back, or that belongs
to another table, is refused. So is a stream whose batch was undone, as soon as its source has new
rows: without them Spark plans no batch.

*Fault tolerance*: Spark does not repeat a failed batch: its query ends with the error, and repeats
the batch when it is started again. The lock is held only while a batch is committed, so another
process can write between two batches; a commit waits for it.

**Caveats**: a batch is committed by one process beside the driver: no commit interval, no restarts,
no dashboard. The checkpoint folder must be on a disk of the driver's machine, and be named by the
option of the query, since Spark passes no session setting. *Source:* pyspark.sql.datasource.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource as spark_api

from hoodie_nb import failpoints
from hoodie_nb.buckets.global_keys import refuse_global
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import SealPlan
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.records.row_folders import new_row_folder, remove_row_folders
from hoodie_nb.services.columns import add_columns
from hoodie_nb.spark_format.hudi_options import SinkOptions
from hoodie_nb.spark_format.sink import (
    Messages,
    StagedRows,
    current,
    locked,
    opened,
    runs_of,
    staged,
)
from hoodie_nb.spark_format.staged_runs import verify_runs, write_runs
from hoodie_nb.stream.checkpoint_folder import CheckpointFolder, checkpoint_folder

if TYPE_CHECKING:
    from hoodie_nb.evidence.handle import TableHandle


class StreamSink(spark_api.DataSourceStreamArrowWriter):
    """One micro-batch; Spark makes another one of the same query to commit it."""

    def __init__(self, table: TableHandle, given: pa.Schema, options: SinkOptions) -> None:
        self._options = options
        self._given = given
        self._storage = table.storage
        self._folder = CheckpointFolder(
            checkpoint_folder(options.checkpoint or "", table.storage.root)
        )
        self._query_id = _query_of(self._folder)
        if options.operation == "insert":
            refuse_global(table.config, "a stream with operation insert", "use upsert")
        with locked(table.storage, self._options), table.timeline.listed_once():
            coordinator = self._coordinator(table)
            settle(coordinator, last=self._folder.last())
            intake = intake_of(coordinator, options.operation, self._query_id)
            if options.merges and _add_columns(table, intake.merging(given)):
                intake = intake_of(coordinator, options.operation, self._query_id)
        intake.check(given)
        self._plan = SealPlan(table.storage, intake, new_row_folder(table.clock, self._query_id), 1)
        self._limit_bytes = table.options.task_max_bytes // 2

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one task."""
        return staged(iterator, self._given.names, self._plan, self._limit_bytes)

    def commit(self, messages: Messages, batchId: int) -> None:
        """Run the micro-batch as a checkpoint of the table; skip it if it is already there."""
        failpoints.hit("spark.commit.pre")
        try:
            with locked(self._storage, self._options):
                self._run(messages, batchId)
        finally:
            remove_row_folders(self._storage, self._query_id)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Delete what the tasks have staged."""
        remove_row_folders(self._storage, self._query_id)

    def _coordinator(self, table: TableHandle, events: EventLog | None = None) -> WriteCoordinator:
        coordinator = WriteCoordinator(table, events or EventLog())
        coordinator.applies = self._query_id
        return coordinator

    def _run(self, messages: Messages, batch_id: int) -> None:
        runs = runs_of(messages)
        events = EventLog()
        checkpoint = self._folder.checkpoint(self._query_id, batch_id)
        previous = self._folder.fingerprint(batch_id - 1)
        table = opened(self._storage, self._options)
        with table.timeline.listed_once():
            checkpointing = Checkpointing(
                self._coordinator(table, events),
                current(self._plan.intake, table, messages),
                Shape(),
                IN_PROCESS,
                commit_on="write",
                given=self._given,
            )

            def has_rows() -> bool:
                verify_runs(self._storage, runs)
                return bool(runs)

            steps = checkpointing.running(checkpoint, previous, tasks=1, has_rows=has_rows)
            with steps as work:
                if work is not None:
                    work.statuses = write_runs(runs, work.plan, events)


def _add_columns(table: TableHandle, wanted: Intake) -> bool:
    """Commit the columns that the table lacks, if any, before the rows.

    A batch is completed after a crash, so a commit of its own makes its columns durable first.
    """
    new = [field for field in wanted.schema if field not in [*table.schema]]
    wanted.check(wanted.merges or wanted.schema)
    if new:
        add_columns(table, EventLog(), pa.schema(new))
        table.reload()
    return bool(new)


def _query_of(folder: CheckpointFolder) -> str:
    query_id = folder.query_id()
    if query_id is None:
        raise InvalidTable(
            f"{folder.path}/metadata, which names the query, is missing or damaged: restore the "
            "folder from a backup, or start the stream with a new one"
        )
    return query_id
