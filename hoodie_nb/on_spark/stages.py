"""The Spark job of a write: which stages and shuffles each pipeline makes of a DataFrame.

    step2, step3   batch ─▶ Intake ─▶ shuffle by record key, sorted ─▶ FileIdAssigner
                         ─▶ shuffle by file id ─▶ BucketWriter ─▶ write statuses to the driver
    step1          batch ─▶ Intake ─▶ shuffle by partition ─▶ one task indexes, assigns,
                         writes
    direct         see `spark_direct`
    current        the same, after one task that every record passes and that creates the instant

The batch is read by this one job only, after a look at its first row if that is cheap: a batch
without rows opens no instant. Rows get the text of their key and partition path from the
intake, before the first shuffle, and are shuffled, sorted, folded and looked up by exactly that
text. Spark never compares the source columns, in which a null and an empty value, or two texts of
one number, would be different records. Events of assigner tasks reach the driver in an accumulator,
events of writers with their statuses, when the task ends; before that they are sent as datagrams
(see `task_events`).

**Caveats**: rows of one key are in order of their task and their position in it, which are Spark's:
of rows with equal ordering values, or none, it is unknown which one wins. `local[N]` never repeats
a failed task; `local[N,F]` and clusters do.
*Source:* RFC-24 STEP2, Pipelines.hoodieStreamWrite.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from hoodie_nb.buckets.assigner import assigned_schema
from hoodie_nb.buckets.plan import SealPlan, WritePlan
from hoodie_nb.errors import InvalidInput
from hoodie_nb.events import EventLog
from hoodie_nb.index.run import DamagedRun
from hoodie_nb.intake.bad_rows import files_of_tasks
from hoodie_nb.on_spark.direct import written_directly
from hoodie_nb.on_spark.taken import Taken
from hoodie_nb.on_spark.task_errors import raise_translated
from hoodie_nb.on_spark.task_events import Receiver
from hoodie_nb.on_spark.tasks import (
    INSTANT,
    OUTPUT,
    Channel,
    Size,
    assign_task,
    instant_task,
    key_task,
    process_task,
    seal_task,
    write_task,
)
from hoodie_nb.records.prepared import Writing
from hoodie_nb.rows.columns import SEQ, TASK
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_BY_KEY = (PARTITION_PATH, RECORD_KEY)
_ROW_BY_ROW = {  # steps of a plan
    *("Filter", "Project", "Generate", "Expand", "Union", "View", "SubqueryAlias"),
    *("CTERelationDef", "CTERelationRef", "WithCTE", "CollectMetrics", "EventTimeWatermark"),
    *("ResolvedHint", "StreamingRelation", "StreamingRelationV2"),
}


class _EventParam(AccumulatorParam[list[str]]):
    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:
        value1.extend(value2)
        return value1


class _SizeParam(AccumulatorParam[tuple[int, int]]):
    def zero(self, value: tuple[int, int]) -> tuple[int, int]:
        return (0, 0)

    def addInPlace(self, value1: tuple[int, int], value2: tuple[int, int]) -> tuple[int, int]:
        return (value1[0] + value2[0], value1[1] + value2[1])


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema of a DataFrame's columns, or raise InvalidInput for a type."""
    try:
        return to_arrow_schema(columns, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(f"the data has a column that cannot be written: {error}") from None


def receiver(data: DataFrame, events: EventLog) -> Receiver:
    """Return the receiver for the events of the tasks that write `data`."""
    context = data.sparkSession.sparkContext
    host = context.getConf().get("spark.driver.host") or ""
    return Receiver(events, "127.0.0.1" if str(context.master).startswith("local") else host)


def has_rows(batch: DataFrame) -> bool:
    """Whether a batch has a row, which Spark computes for this, up to the first one."""
    handled = sys.exception()
    try:
        return not batch.isEmpty()
    except Exception as error:
        raise_translated(error, handled)


def is_row_by_row(stream: DataFrame) -> bool:
    """Whether a stream is only filtered and projected by Spark: one row is found without others."""
    plan = stream._jdf.queryExecution().analyzed()
    jvm: Any = stream.sparkSession._jvm
    python = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    return _steps(plan) <= _ROW_BY_ROW and not plan.containsPattern(python)


def _steps(plan: Any) -> set[str]:  # noqa: ANN401 - a plan of the JVM
    children = plan.children()
    below = (_steps(children.apply(n)) for n in range(children.size()))
    return {plan.nodeName()}.union(*below)


def stop_started(stream: DataFrame, query_id: Callable[[], str | None], within_s: float) -> None:
    """Stop the query with this id, which may appear in the JVM with a delay."""
    until = time.monotonic() + within_s
    found = False
    while not found and time.monotonic() < until:
        for query in stream.sparkSession.streams.active:
            if query.id == query_id():
                found = True
                query.stop()
        time.sleep(0.05)


def write_on_spark(
    batch: DataFrame,
    work: Writing,
    live: Receiver,
    *,
    kill: bool = False,
    taken: Taken | None = None,
) -> None:
    """Run the pipeline of `work.plan` over a DataFrame as Spark tasks, which report to `work`.

    `taken` is given what the batch had. `kill` is an injected fault: writer tasks die in the middle
    of their first attempt. If the tasks of `direct` find the index damaged, the batch runs again
    without its state.
    """
    work.plan = replace(work.plan, groups=work.plan.groups.listed())
    handled = sys.exception()
    plan = work.plan
    try:
        work.statuses = _statuses(batch, plan, live, kill, taken=taken or Taken())
        work.quarantined = _quarantined(plan)
        return
    except Exception as error:
        if DamagedRun.__name__ not in str(error) or not plan.manifest:
            raise_translated(error, handled)
    quarantine = plan.quarantine and replace(plan.quarantine, run=uuid.uuid4().hex)
    work.plan = replace(plan, manifest="", quarantine=quarantine)
    write_on_spark(batch, work, live, kill=kill, taken=taken)


def _quarantined(plan: WritePlan | SealPlan) -> list[StoredFile]:
    """Return the files of the rows that the tasks of a job have refused."""
    return files_of_tasks(plan.storage, plan.quarantine) if plan.quarantine else []


def _statuses(
    batch: DataFrame, plan: WritePlan, live: Receiver, kill: bool, *, taken: Taken
) -> list[WriteStatus]:
    """Run the Spark job of a batch; add its events and return its write statuses."""
    final_events = batch.sparkSession.sparkContext.accumulator([], _EventParam())
    with live.run() as sender:
        channel = Channel(sender, final_events, _size(batch), kill)
        try:
            rows = _stages(batch, plan, channel).collect()
        finally:
            for text in final_events.value:
                live.add(text)
        for row in rows:
            if row.kind == "event":
                live.add(row.payload)
    taken.rows, taken.size_bytes = channel.size.value
    statuses = [WriteStatus.parse(row.payload) for row in rows if row.kind == "status"]
    return sorted(statuses, key=lambda s: (s.partition_path, s.file_id))


def _size(batch: DataFrame) -> Size:
    """Return the counter of what the tasks of one Spark job are given."""
    return batch.sparkSession.sparkContext.accumulator((0, 0), _SizeParam())


def seal_on_spark(
    batch: DataFrame, plan: SealPlan, *, kill: bool = False, taken: Taken | None = None
) -> tuple[list[StoredFile], set[str], list[StoredFile]]:
    """Write a DataFrame's records as sorted runs, without index or buckets.

    Returns the runs, the partition paths of their rows, and the files of refused rows; `taken` is
    given what the batch had.
    """
    size = _size(batch)
    keyed = _in_order(_keyed(batch, plan, size).repartition(plan.tasks, *_BY_KEY))
    handled = sys.exception()
    try:
        sealed = keyed.mapInArrow(partial(seal_task, plan, kill), OUTPUT).collect()
    except Exception as error:
        raise_translated(error, handled)
    if taken is not None:
        taken.rows, taken.size_bytes = size.value
    runs = [StoredFile(**json.loads(row.payload)) for row in sealed if row.kind == "run"]
    return runs, {row.payload for row in sealed if row.kind == "partition"}, _quarantined(plan)


def _keyed(batch: DataFrame, plan: WritePlan | SealPlan, size: Size | None = None) -> DataFrame:
    """Return a batch as keyed rows, numbered within their tasks."""
    schema = from_arrow_schema(plan.intake.keyed_schema, True)
    return batch.mapInArrow(partial(key_task, plan, size), schema)


def _stages(batch: DataFrame, plan: WritePlan, channel: Channel) -> DataFrame:
    """Return the output of the plan's pipeline for a batch: statuses and events."""
    if plan.shape.pipeline.routed:
        return written_directly(batch, plan, channel)
    keyed = _keyed(batch, plan, channel.size)
    by_file = plan.shape.pipeline.shuffle == "file id"
    return (_assigned_then_written if by_file else _written_by_partition)(keyed, plan, channel)


def _in_order(keyed: DataFrame) -> DataFrame:
    """Return keyed rows sorted within their tasks; Spark and Arrow both compare UTF-8 bytes."""
    return keyed.sortWithinPartitions(*_BY_KEY, SEQ)


def _assigned_then_written(keyed: DataFrame, plan: WritePlan, channel: Channel) -> DataFrame:
    """STEP2 and STEP3: shuffle by record key to the assigners, by file id to the writers."""
    ordered = _in_order(keyed.repartition(plan.shape.tasks, *_BY_KEY))
    schema = from_arrow_schema(assigned_schema(plan), True)
    assigned = ordered.mapInArrow(partial(assign_task, plan, channel), schema)
    task = partial(write_task, plan, channel)
    return assigned.repartitionById(plan.shape.tasks, F.col(TASK)).mapInArrow(task, OUTPUT)


def _written_by_partition(keyed: DataFrame, plan: WritePlan, channel: Channel) -> DataFrame:
    """Before STEP2: shuffle by partition path to tasks that index, assign and write."""
    if plan.shape.pipeline.serial_instant:
        schema = keyed.schema.add(INSTANT, "string")
        keyed = keyed.repartition(1).mapInArrow(partial(instant_task, plan, channel), schema)
    ordered = _in_order(keyed.repartition(plan.shape.tasks, PARTITION_PATH))
    return ordered.mapInArrow(partial(process_task, plan, channel), OUTPUT)
