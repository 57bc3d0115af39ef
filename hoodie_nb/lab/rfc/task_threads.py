"""The stages of a pipeline as threads in this process, with a delay for each shuffle.

Each shuffle moves rows to its tasks over a `Link`, which takes its time in each task; everything
else is the operators' own work. As on Spark, a stage begins when the one before it has ended.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan, task_of
from hoodie_nb.commit.instant_generator import generate_instant, with_instant
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.stores.slow_storage import Link
from hoodie_nb.local.in_process import keyed_in_order
from hoodie_nb.local.operators import Waiting, assign, assign_and_write, write
from hoodie_nb.local.settling import settled
from hoodie_nb.rows.columns import TASK
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

_PIECE_ROWS = 250
Task = Callable[[Iterable[pa.Table], int], Iterable[Any]]


def write_in_threads(
    table: TableHandle, rows: pa.Table, shape: Shape, network: Link, events: EventLog
) -> None:
    """Write and commit one checkpoint; `network` is what its rows are shuffled over."""
    coordinator = settled(table, events)
    intake = Intake(table.config, table.schema)
    began = time.perf_counter()
    with coordinator.committing(intake, shape) as work:
        work.statuses = _written(work.plan, keyed_in_order(rows, intake), network, events)
    events.emit("batch_ended", seconds=round(time.perf_counter() - began, 6))


def _written(
    plan: WritePlan, keyed: pa.Table, network: Link, events: EventLog
) -> list[WriteStatus]:
    """Run the stages of the plan's pipeline."""
    emit = events.emit

    def stage(rows: pa.Table, sent_by: str, task: Task) -> list[Any]:
        return _stage(rows, sent_by, plan.shape.tasks, network, task)

    if plan.shape.pipeline.serial_instant:
        plan = _with_serial_instant(plan, keyed, network, events)
    if plan.shape.pipeline.shuffle == "partition":
        return stage(
            keyed,
            PARTITION_PATH,
            lambda r, task: assign_and_write(plan, r, TaskAttempt(task), emit),
        )
    assigned = stage(keyed, RECORD_KEY, lambda r, task: assign(plan, r, task, emit))
    return stage(
        pa.concat_tables(assigned), TASK, lambda r, task: write(plan, r, TaskAttempt(task), emit)
    )


def _with_serial_instant(
    plan: WritePlan, keyed: pa.Table, network: Link, events: EventLog
) -> WritePlan:
    """Run the InstantGenerator: all rows pass it, and the first one creates the instant."""
    waiting = Waiting(events.emit, "InstantGenerator", 0)
    time17 = ""
    for piece in waiting.on(_pieces(keyed)):
        time17 = time17 or generate_instant(plan)
        network.wait(piece.nbytes)
    events.emit("instant_inflight", instant=time17)
    waiting.end()
    return with_instant(plan, time17)


def _stage(rows: pa.Table, sent_by: str, tasks: int, network: Link, task: Task) -> list[Any]:
    """Send rows to the tasks of a stage by a column, and run each task in a thread."""
    values = rows[sent_by].combine_chunks().dictionary_encode()
    named = values.dictionary.to_pylist()
    numbers = named if sent_by == TASK else [task_of(text, tasks) for text in named]
    sent_to = np.array(numbers)[values.indices]

    def run(number: int) -> list[Any]:
        return list(task(_pieces(rows.filter(pa.array(sent_to == number)), network), number))

    with ThreadPoolExecutor(tasks) as pool:
        return [*itertools.chain.from_iterable(pool.map(run, range(tasks)))]


def _pieces(rows: pa.Table, network: Link | None = None) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _PIECE_ROWS):
        piece = rows.slice(start, _PIECE_ROWS)
        if network is not None:
            network.wait(piece.nbytes)
        yield piece
