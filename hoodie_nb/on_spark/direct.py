"""Pipeline `direct` on Spark: one shuffle per batch, of Arrow blobs; its two stages.

    batch ─▶ Intake, KeyRouter ─▶ shuffle of blobs by task ─▶ sort, new keys' buckets, BucketWriter
          ─▶ write statuses to the driver

A blob is a part of a batch for one task, as a compressed Arrow stream: Spark moves one binary value
instead of thousands of rows, and nothing is converted to rows and back. The writing task sorts what
it receives; above half of `task_max_size` it spills sorted runs and merges them, so its memory is
bounded.

*Semantics*: as `step3`. File ids of new keys are drawn after the exchange, by the task that writes
them, so a repeated task may choose others: its files also have other names.

*Source:* beyond RFC-24; see `routing`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.local.operators import assign_routed, route, write
from hoodie_nb.on_spark.tasks import (
    OUTPUT,
    Batches,
    Channel,
    TaskOutput,
    keyed_pieces,
    numbered,
    pieces_of,
    this_attempt,
)
from hoodie_nb.rows.columns import SEQ
from hoodie_nb.rows.spilling import run_options, sorted_rows
from hoodie_nb.rows.taking import PART_ROWS, parts_of
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TASK = "task"
_BLOB = "blob"
_CHUNK_BYTES = 32 << 20
_BLOB_BYTES = 16 << 20


def written_directly(batch: DataFrame, plan: WritePlan, channel: Channel) -> DataFrame:
    """Return the output of the pipeline `direct` for a batch: statuses and events."""
    blobs = batch.mapInArrow(partial(_route_task, plan, channel), f"{_TASK} int, {_BLOB} binary")
    shuffled = blobs.repartitionById(plan.shape.tasks, F.col(_TASK))
    return shuffled.mapInArrow(partial(_write_task, plan, channel), OUTPUT)


def _route_task(plan: WritePlan, channel: Channel, batches: Batches) -> Batches:
    """Send the keyed rows as blobs to the tasks of their file groups."""
    output = TaskOutput(channel)
    chunks = _chunks(keyed_pieces(batches, plan, channel.size))
    for number, rows in route(plan, chunks, this_attempt().task, output.emit):
        for part in _blob_sized(rows):
            columns = [pa.array([number], pa.int32()), pa.array([_blob(part)], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=[_TASK, _BLOB])
    output.send_events()


def _write_task(plan: WritePlan, channel: Channel, batches: Batches) -> Batches:
    """Sort the rows in the blobs of a task, assign the new keys, and write."""
    output = TaskOutput(channel)
    mine = this_attempt()
    blobs = (
        _rows_of(blob) for piece in pieces_of(batches, channel.kill) for blob in piece.column(_BLOB)
    )
    folder = plan.storage.local_folder(plan.staged)
    ordered = sorted_rows(
        blobs,
        (PARTITION_PATH, RECORD_KEY, SEQ),
        limit_bytes=plan.options.task_max_bytes // 2,
        path=f"{folder}/{mine.token}-{uuid.uuid4().hex[:12]}-sort",
    )
    assigned = assign_routed(plan, numbered(ordered), mine.task, output.emit)
    yield from output.of(write(plan, assigned, mine, output.emit))


def _chunks(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the pieces together until there are enough rows for a lookup and a blob."""
    held: list[pa.Table] = []
    for piece in pieces:
        held.append(piece)
        size = sum(table.nbytes for table in held)
        if size >= _CHUNK_BYTES or sum(table.num_rows for table in held) >= PART_ROWS:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _blob_sized(rows: pa.Table) -> Iterator[pa.Table]:
    parts = -(-rows.nbytes // _BLOB_BYTES)
    yield from parts_of(rows, -(-rows.num_rows // parts))


def _blob(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=run_options()) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _rows_of(blob: pa.BinaryScalar) -> pa.Table:
    return pa.ipc.open_stream(blob.as_buffer()).read_all()
