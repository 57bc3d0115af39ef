"""`df.write.format("hoodie_nb")`: stages rows in tasks; one process commits or drops them.

*Work flow* of a batch: beside the driver the write is planned: the table is opened, or created, and
the columns are checked. Each task makes keyed rows and stages them as sorted runs (see
`staged_runs`). Beside the driver, in a process of its own, the commit takes the table's lock and
applies the runs that Spark reports as one instant, with the steps of any other write. Then the
staged rows are deleted, as they are if the job fails.

*Semantics*: of each task Spark reports one attempt. mode("overwrite") replaces all rows of the
table in one commit, which can be rolled back: the table keeps its definition and its history.

*Fault tolerance*: until the commit, nothing but a row folder exists, which the next write deletes
if this one died. A commit that died is rolled back, or was complete, as for any other write.

**Caveats**: a new table exists from the plan on, empty until the commit, and stays if that fails.
If the commit's process dies after its completed file, Spark reports an error although the rows are
in the table: write again with `upsert`, not `insert`. *Source:* pyspark.sql.datasource.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource as spark_api

from hoodie_nb import failpoints
from hoodie_nb.api.definition import check_global
from hoodie_nb.buckets.plan import SealPlan
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import ConcurrentWriter, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.evidence.other_engines import refuse_foreign_logs
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.settling import settle
from hoodie_nb.lock.lock import writing
from hoodie_nb.on_spark.stages import arrow_schema
from hoodie_nb.on_spark.tasks import keyed_pieces, this_attempt
from hoodie_nb.records.row_folders import new_row_folder
from hoodie_nb.spark_format.hudi_options import SinkOptions
from hoodie_nb.spark_format.staged_runs import stage_runs, verify_runs, write_runs
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.commits import OVERWRITES
from hoodie_nb.types.schema import META_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Messages = Sequence[spark_api.WriterCommitMessage | None]


@dataclass(frozen=True, slots=True)
class StagedRows(spark_api.WriterCommitMessage):
    """What one task staged, and how the table defines its keys."""

    runs: tuple[StoredFile, ...]
    keys: str


class BatchSink(spark_api.DataSourceArrowWriter):
    """One `df.write`: planned in one process, run in the tasks, committed in another process."""

    def __init__(self, table: TableHandle, given: pa.Schema, options: SinkOptions) -> None:
        self._options = options
        self._columns = given.names
        intake = Intake(table.config, table.schema, options.operation)
        intake = intake.merging(given) if options.merges else intake
        intake.check(given)
        check_global(table, options.operation)
        self._plan = SealPlan(table.storage, intake, new_row_folder(table.clock), 1)
        self._limit_bytes = table.options.updated(options.options).task_max_bytes // 2
        with locked(table.storage, options):  # fails early if another process has it
            pass

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of one task."""
        return staged(iterator, self._columns, self._plan, self._limit_bytes)

    def commit(self, messages: Messages) -> None:
        """Apply the staged rows as one instant."""
        failpoints.hit("spark.commit.pre")
        with self._without_rows():
            runs = runs_of(messages)
            verify_runs(self._plan.storage, runs)
            if runs or self._plan.intake.operation == OVERWRITES["table"]:
                self._apply(messages)

    def _apply(self, messages: Messages) -> None:
        runs = runs_of(messages)
        events = EventLog()
        with locked(self._plan.storage, self._options):  # all rows are staged by now
            table = opened(self._plan.storage, self._options)
            with table.timeline.listed_once():
                check_global(table, self._options.operation)
                coordinator = WriteCoordinator(table, events)
                coordinator.applies = self._plan.folder.rpartition("/")[2]
                settle(coordinator)
                intake = current(self._plan.intake, table, messages)
                with coordinator.committing(intake) as work:
                    work.statuses = write_runs(runs, work.plan, events)

    def abort(self, messages: Messages) -> None:
        """Delete what the tasks have staged."""
        with self._without_rows():
            pass

    @contextlib.contextmanager
    def _without_rows(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._plan.storage.remove(self._plan.folder, tree=True)


def staged(
    batches: Iterator[pa.RecordBatch], columns: list[str], plan: SealPlan, limit_bytes: int
) -> StagedRows:
    """Stage the rows of one task, and report them."""
    keyed = keyed_pieces((batch.select(columns) for batch in batches), plan, None)
    runs = stage_runs(plan, keyed, this_attempt().token, limit_bytes)
    failpoints.hit("spark.rows.post")
    return StagedRows(tuple(runs), keys_of(plan.intake.config))


def runs_of(messages: Messages) -> list[StoredFile]:
    """Return the runs that the tasks have reported; WriteFailed if one has reported nothing.

    Each task of a batch or micro-batch does, also without rows; one of a continuous trigger never.
    """
    reported = [message for message in messages if isinstance(message, StagedRows)]
    if len(reported) < len(messages):
        raise WriteFailed(
            "a task of the write has reported nothing, so its rows are not known; nothing was "
            "written. trigger(continuous=...) is not supported: use processingTime"
        )
    return [run for message in reported for run in message.runs]


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the columns to write of a DataFrame, or raise InvalidInput; all allow nulls.

    Hudi's own columns are left out, as Hudi does. Whether Spark's optimizer knows a column to be
    without nulls says nothing about later batches.
    """
    given = arrow_schema(schema)
    return pa.schema([f.with_nullable(True) for f in given if f.name not in META_COLUMNS])


def opened(storage: Storage, options: SinkOptions) -> TableHandle:
    """Open the table for a write with these options."""
    table = open_table(storage)
    refuse_foreign_logs(table)
    table.options = table.options.updated(options.options)
    return table


def current(intake: Intake, table: TableHandle, messages: Messages) -> Intake:
    """Return the intake for the table as it is now.

    Raises ConcurrentWriter if the staged keys are not those of the table any more, and InvalidInput
    if new columns of the rows are there with other types.
    """
    table.reload()
    keys = {message.keys for message in messages if isinstance(message, StagedRows)}
    if keys - {keys_of(table.config)}:
        raise ConcurrentWriter(
            f"{table.storage.root} was replaced by a table with another definition while this "
            "write ran: nothing was written. Write the data again"
        )
    intake = intake.on(table.config, table.schema)
    if intake.merges is not None:
        intake.check(intake.merges)  # another write may have added the columns, too
    return intake


def keys_of(config: TableConfig) -> str:
    """Return what the texts of a table's keys and paths depend on, as text."""
    paths = (config.partition_by, config.hive_style, config.url_encode, config.times)
    return repr((config.record_key, *paths, config.merge_mode, config.ordering))


@contextlib.contextmanager
def locked(storage: Storage, options: SinkOptions) -> Iterator[None]:
    """Hold the table for a commit; ConcurrentWriter, with what it means here, if it is taken."""
    try:
        with writing(storage, options.wait):
            yield
    except ConcurrentWriter as error:
        raise ConcurrentWriter(
            f"{error}. Spark commits a write with the format hoodie_nb in a process of its own, so "
            "a job or call in the notebook or script that runs the query is another process, too: "
            "use table.upsert(df) there, which runs between the checkpoints of a job; or set "
            "option('wait', '10 minutes') to wait longer for a write that ends"
        ) from None
