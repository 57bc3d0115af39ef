"""What runs inside a Spark task: one function per stage; its output rows, its attempt number.

Each is bound to its plan by `partial`. Events of assigner tasks reach the driver in an accumulator,
events of writers with their statuses, when the task ends; before that they are sent as datagrams
(see `task_events`). A repeated task writes files with different names.

*Source:* RFC-24 STEP2, Pipelines.hoodieStreamWrite.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from hoodie_nb.buckets.assigner import assigned_schema
from hoodie_nb.buckets.plan import SealPlan, TaskAttempt, WritePlan
from hoodie_nb.commit.instant_generator import generate_instant, with_instant
from hoodie_nb.intake.bad_rows import BadRowsFile
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.operators import Waiting, assign, assign_and_write, write
from hoodie_nb.on_spark.task_events import Sender, as_text
from hoodie_nb.rows.columns import SEQ, with_column
from hoodie_nb.rows.runs import partitions_of, save_run
from hoodie_nb.timeline.commits import WriteStatus

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator


OUTPUT = "kind string, payload string"
INSTANT = "_hoodie_nb_instant"
Batches = Iterator[pa.RecordBatch]
Size: TypeAlias = "Accumulator[tuple[int, int]]"  # rows, bytes


@dataclass(frozen=True, slots=True)
class Channel:
    """How tasks send events to the driver: live, and when an assigner task ends.

    `size` adds up the rows and bytes that the tasks were given.
    """

    sender: Sender
    final_events: Accumulator[list[str]]
    size: Size
    kill: bool


def key_task(plan: WritePlan | SealPlan, size: Size | None, batches: Batches) -> Batches:
    """Create keyed rows."""
    for keyed in keyed_pieces(batches, plan, size):
        yield from keyed.to_batches()


def keyed_pieces(
    batches: Batches, plan: WritePlan | SealPlan, size: Size | None
) -> Iterator[pa.Table]:
    """Yield keyed rows, numbered by their task and their position in it.

    Rows that are refused are staged, if the plan says so. `size` counts what came.
    """
    intake = plan.intake
    bad = None
    mine = this_attempt()
    if plan.quarantine is not None:
        bad = BadRowsFile(plan.storage, plan.quarantine, mine.token)
    start = mine.task << 33  # as Spark's monotonically_increasing_id
    for piece in pieces_of(batches):
        if size is not None:
            size.add((piece.num_rows, piece.nbytes))
        sequence = np.arange(start, start + piece.num_rows, dtype=np.int64)
        keyed = intake.keyed(piece, pa.array(sequence), bad)
        start += piece.num_rows
        if keyed.num_rows:
            yield keyed
    if bad is not None:
        bad.close()


def seal_task(plan: SealPlan, kill: bool, batches: Batches) -> Batches:
    """Save the rows as a sorted run, and report it and its partitions."""
    keyed = list(_sorted_pieces(pieces_of(batches, kill), plan.intake))
    if keyed:
        path = f"{plan.folder}/{this_attempt().token}.arrow"
        run = save_run(plan.storage, path, pa.concat_tables(keyed), plan.intake.rule)
        partitions = {path for rows in keyed for path in partitions_of(rows)}
        found = [("partition", path) for path in sorted(partitions)]
        yield from _rows([("run", json.dumps(asdict(run))), *found])


def instant_task(plan: WritePlan, channel: Channel, batches: Batches) -> Batches:
    """Run the InstantGenerator: one task for all records; the first one creates the instant."""
    time17 = ""
    output = TaskOutput(channel)
    waiting = Waiting(output.emit, "InstantGenerator", 0)
    pieces = pieces_of(batches)
    for piece in waiting.on(pieces):
        time17 = time17 or generate_instant(plan)
        yield from piece.append_column(INSTANT, pa.repeat(time17, piece.num_rows)).to_batches()
    if waiting.rows:
        output.emit("instant_inflight", instant=time17)
        waiting.end()
    output.send_events()


def process_task(plan: WritePlan, channel: Channel, batches: Batches) -> Batches:
    """Index, assign and write, as before STEP2."""
    output = TaskOutput(channel)
    pieces = pieces_of(batches, channel.kill)
    first = next(pieces, None)
    if first is None:
        return
    if plan.shape.pipeline.serial_instant:
        plan = with_instant(plan, first.column(INSTANT)[0].as_py())
    keyed = _sorted_pieces(itertools.chain([first], pieces), plan.intake)
    yield from output.of(assign_and_write(plan, keyed, this_attempt(), output.emit))


def assign_task(plan: WritePlan, channel: Channel, batches: Batches) -> Batches:
    """Run the FileIdAssigner."""
    output = TaskOutput(channel)
    keyed = _sorted_pieces(pieces_of(batches), plan.intake)
    for rows in assign(plan, keyed, this_attempt().task, output.emit):
        yield from rows.to_batches()
    output.send_events()


def write_task(plan: WritePlan, channel: Channel, batches: Batches) -> Batches:
    """Run the BucketWriter."""
    output = TaskOutput(channel)
    assigned = assigned_schema(plan)
    rows = (piece.cast(assigned) for piece in pieces_of(batches, channel.kill))
    yield from output.of(write(plan, rows, this_attempt(), output.emit))


def pieces_of(batches: Batches, kill: bool = False) -> Iterator[pa.Table]:
    """Yield non-empty batches; `kill` ends the process of a first attempt, like `kill -9`."""
    for batch in batches:
        if batch.num_rows:
            yield pa.Table.from_batches([batch])
            context = TaskContext.get()
            if kill and context is not None and context.attemptNumber() == 0:
                os._exit(1)


def _sorted_pieces(pieces: Iterable[pa.Table], intake: Intake) -> Iterator[pa.Table]:
    """Yield sorted rows in the intake's types, numbered by their position in the task.

    Spark returns times in its session's time zone. All rows of a key are in one task.
    """
    schema = intake.keyed_schema
    return numbered(piece.select(schema.names).cast(schema) for piece in pieces)


def numbered(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the pieces with their rows numbered in order."""
    start = 0
    for piece in pieces:
        end = start + piece.num_rows
        yield with_column(piece, SEQ, np.arange(start, end, dtype=np.int64))
        start = end


@dataclass(slots=True)
class TaskOutput:
    """A task's output for the driver: events and write statuses, as rows."""

    channel: Channel
    rows: list[tuple[str, str]] = field(default_factory=list)
    attempt: int = field(default_factory=lambda: this_attempt().attempt)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def emit(self, kind: str, **values: object) -> None:
        """Record an event and send it."""
        text = as_text(f"{self.attempt}.{next(self.numbers)}", kind, values)
        self.rows.append(("event", text))
        self.channel.sender.send(text)

    def of(self, statuses: Iterable[WriteStatus]) -> Batches:
        """Yield the output of a writing task: its statuses, and the events until they are known."""
        self.rows += [("status", status.to_json()) for status in statuses]
        self.channel.sender.flush()
        yield from _rows(self.rows)

    def send_events(self) -> None:
        """Send the recorded events to the driver, from a task with another output."""
        self.channel.sender.flush()
        self.channel.final_events.add([payload for _, payload in self.rows])


def _rows(rows: list[tuple[str, str]]) -> Batches:
    if rows:
        columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=["kind", "payload"])


def this_attempt() -> TaskAttempt:
    """Return the running Spark task's attempt."""
    context = TaskContext.get()
    if context is None:  # outside a Spark task there is only one attempt
        return TaskAttempt()
    return TaskAttempt(context.partitionId(), context.stageId(), context.taskAttemptId())
