"""The runner on Spark: assigner and writer as `mapInArrow` stages of one Spark job.

    batch ─ sequence ─▶ shuffle by record key, sorted ─▶ FileIdAssigner
          ─▶ shuffle by file id ─▶ BucketWriter ─▶ write statuses to the driver

The batch is read by this one job only. The shuffle key is the text of the record key (with the
partition where keys are per partition), so that equal keys of different types meet. What the
assigner tasks tell travels in an accumulator and what the writers tell with their statuses: both
are with the driver when the task ends.

**Caveats**: `local[N]` never repeats a failed task; `local[N,F]` and clusters do.
*Source:* RFC-24 STEP2, Pipelines.hoodieStreamWrite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import AccumulatorParam, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from hoodie_nb.errors import InvalidConfig, InvalidInput, InvalidTable, WriteFailed
from hoodie_nb.events import Event, EventLog
from hoodie_nb.pipeline.assigner import FileIdAssigner, assigned_schema
from hoodie_nb.pipeline.index.bloom import BloomIndex
from hoodie_nb.pipeline.intake import SEQ, TASK, Intake
from hoodie_nb.pipeline.plan import WritePlan
from hoodie_nb.pipeline.writer import BucketWriter, TaskAttempt
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.schema import storable

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

_OUT = "kind string, payload string"
_RAISED = re.compile(r"hoodie_nb\.errors\.(InvalidInput|InvalidTable|InvalidConfig): (.*)")
_KINDS: dict[str, type[Exception]] = {
    "InvalidInput": InvalidInput,
    "InvalidTable": InvalidTable,
    "InvalidConfig": InvalidConfig,
}
Batches = Iterator[pa.RecordBatch]


class _EventParam(AccumulatorParam[list[str]]):
    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:
        value1.extend(value2)
        return value1


def arrow_schema(batch: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a DataFrame's columns, or raise InvalidInput for a type."""
    try:
        return to_arrow_schema(batch.schema, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(f"the data has a column that cannot be written: {error}") from None


def write_on_spark(batch: DataFrame, plan: WritePlan, events: EventLog) -> list[WriteStatus]:
    """Run assigner and writer over a DataFrame as Spark tasks; return the write statuses."""
    session = batch.sparkSession
    told = session.sparkContext.accumulator([], _EventParam())
    assigned = _keyed_order(batch, plan).mapInArrow(
        _assign_task(plan, told), from_arrow_schema(assigned_schema(plan), True)
    )
    routed = assigned.repartitionById(plan.tasks, F.col(TASK))
    written = routed.mapInArrow(_write_task(plan), _OUT)
    try:
        rows = written.collect()
    except Exception as error:
        raise _translated(error) from error
    finally:
        events.extend(_decoded(text) for text in told.value)
    events.extend(_decoded(row.payload) for row in rows if row.kind == "event")
    statuses = [WriteStatus.parse(row.payload) for row in rows if row.kind == "status"]
    return sorted(statuses, key=lambda s: (s.partition_path, s.file_id))


def _keyed_order(batch: DataFrame, plan: WritePlan) -> DataFrame:
    """Shuffle by the text of the key columns and sort, the order of arrival attached before."""
    config = plan.intake.config
    keys = [
        F.col(f"`{name}`").cast("string") for name in (*config.partition_by, *config.record_key)
    ]
    sequenced = batch.withColumn(SEQ, F.monotonically_increasing_id())
    return sequenced.repartition(plan.tasks, *keys).sortWithinPartitions(*keys, SEQ)


def _assign_task(plan: WritePlan, told: Accumulator[list[str]]) -> Callable[[Batches], Batches]:
    def task(batches: Batches) -> Batches:
        number = _attempt().task
        heard: list[str] = []
        index = BloomIndex(plan)

        def tell(kind: str, **values: object) -> None:
            heard.append(_encoded(kind, values))

        assigner = FileIdAssigner(plan, index, number, tell)
        for rows in assigner.assign(_keyed(batches, plan.intake)):
            yield from rows.to_batches()
        if index.counts.keys:
            tell("index_looked_up", task=number, **index.counts.as_values())
        told.add(heard)

    return task


def _keyed(batches: Batches, intake: Intake) -> Iterator[pa.Table]:
    for batch in batches:
        if batch.num_rows:
            rows = pa.Table.from_batches([batch])
            sequence = rows.column(SEQ).combine_chunks()
            plain = rows.drop_columns([SEQ])
            yield intake.keyed(plain.cast(storable(plain.schema)), sequence)


def _write_task(plan: WritePlan) -> Callable[[Batches], Batches]:
    def task(batches: Batches) -> Batches:
        out: list[tuple[str, str]] = []

        def tell(kind: str, **values: object) -> None:
            out.append(("event", _encoded(kind, values)))

        writer = BucketWriter(plan, _attempt(), tell)
        rows = (pa.Table.from_batches([b]) for b in batches if b.num_rows)
        for status in writer.write(rows):
            out.append(("status", status.to_json()))
        yield from _reported(out)

    return task


def _reported(out: list[tuple[str, str]]) -> Iterable[pa.RecordBatch]:
    if out:
        kinds, payloads = zip(*out, strict=True)
        columns = [pa.array(kinds, pa.string()), pa.array(payloads, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=["kind", "payload"])


def _attempt() -> TaskAttempt:
    context = TaskContext.get()
    if context is None:  # outside a Spark task there is nobody to tell attempts apart
        return TaskAttempt()
    return TaskAttempt(context.partitionId(), context.stageId(), context.taskAttemptId())


def _encoded(kind: str, values: dict[str, Any]) -> str:
    event = EventLog(1)
    event.tell(kind, **values)
    (told,) = event.records()
    return json.dumps([told.kind, told.at_ms, dict(told.values)])


def _decoded(text: str) -> Event:
    kind, at_ms, values = json.loads(text)
    return Event(kind, at_ms, values)


def _translated(error: Exception) -> Exception:
    """Return the error that an operator raised in a task, else WriteFailed."""
    raised = _RAISED.search(str(error))
    if raised is not None:
        return _KINDS[raised[1]](raised[2])
    return WriteFailed(
        f"the Spark job failed and nothing of the batch was written: {_first_cause(str(error))} "
        "(the whole text is in the cause and in the JVM's log)"
    )


def _first_cause(text: str) -> str:
    """Return the line of a Python worker's traceback that names the error, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (named or lines or ["unknown"])[0][:300]
