"""The runner without Spark: intake, assigner and writer in the calling process.

The same operators as in Spark tasks, over one Arrow table; buckets are merged by a few threads,
since Arrow and Parquet release the interpreter lock.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa

from hoodie_nb.events import EventLog
from hoodie_nb.runners.operators import assign, index_of, write
from hoodie_nb.table.checksums import StoredFile
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.writer.bad_rows import BadRows, RefusedRows
from hoodie_nb.writer.columns import SEQ
from hoodie_nb.writer.global_keys import relocated
from hoodie_nb.writer.intake import Intake
from hoodie_nb.writer.kept_files import KeptFiles
from hoodie_nb.writer.merge_rule import runs_of
from hoodie_nb.writer.ordering import THREADS, sort_order
from hoodie_nb.writer.plan import SealPlan, TaskAttempt, WritePlan
from hoodie_nb.writer.profile import record_bytes_of
from hoodie_nb.writer.runs import partitions_of, save_run
from hoodie_nb.writer.taking import parts_of, take_rows

_PIECE_ROWS, _FEW_ROWS = 131_072, 8_192


def keyed_in_order(
    rows: pa.Table, intake: Intake, arrived: int = 0, bad: RefusedRows | None = None
) -> pa.Table:
    """Return keyed rows sorted by partition, key and arrival (InvalidInput for bad values).

    `arrived` is the number of earlier rows of the checkpoint; `bad` takes the rows that are refused
    instead.
    """
    sequence = np.arange(arrived, arrived + rows.num_rows, dtype=np.int64)
    keyed = intake.keyed(rows, pa.array(sequence), bad)
    return in_order(keyed)


def saved(bad: BadRows | None, plan: WritePlan | SealPlan) -> list[StoredFile]:
    """Stage the rows that a write refused; return their file, if there are any."""
    if bad is None or plan.quarantine is None:
        return []
    return bad.saved(plan.storage, plan.quarantine)


def in_order(keyed: pa.Table) -> pa.Table:
    """Return keyed rows sorted by partition, key and arrival."""
    order = sort_order(keyed, (PARTITION_PATH, RECORD_KEY, SEQ))
    memory = [_memory(n, column) for n, column in enumerate(keyed.columns)]
    shared = {place: keyed.select([n]) for n, place in enumerate(memory)}
    with ThreadPoolExecutor(THREADS) as pool:  # one copy of a few columns at a time
        taken = pool.map(lambda column: take_rows(column.combine_chunks(), order), shared.values())
        columns = {place: column for place, (column,) in zip(shared, taken, strict=True)}
    return pa.table([columns[place] for place in memory], schema=keyed.schema)


def _memory(number: int, column: pa.ChunkedArray) -> object:
    """Return what only columns of the same arrays have in common, like a key and its column."""
    if pa.types.is_nested(column.type):  # the offsets of inner arrays are not in the buffers
        return number
    buffers = [buffer for chunk in column.chunks for buffer in chunk.buffers()]
    places = (None if buffer is None else buffer.address for buffer in buffers)
    return (column.type, *((chunk.offset, len(chunk)) for chunk in column.chunks), *places)


def write_in_process(
    keyed: pa.Table, plan: WritePlan, events: EventLog, kept: KeptFiles | None = None
) -> list[WriteStatus]:
    """Assign and write keyed rows that are sorted, onto `kept` files; return the statuses."""
    keyed = relocated(keyed, plan, index_of(plan))
    if plan.record_bytes is None:
        plan = replace(plan, record_bytes=record_bytes_of(keyed))
    assigned = assign(plan, _pieces(keyed), 0, events.emit)
    return list(write(plan, assigned, TaskAttempt(), events.emit, threads=THREADS, kept=kept))


def seal_in_process(
    keyed: pa.Table, plan: SealPlan, bad: BadRows | None = None
) -> tuple[list[StoredFile], set[str], list[StoredFile]]:
    """Save keyed rows in order as one run; return it, their partition paths, and refused rows."""
    refused = saved(bad, plan)
    if keyed.num_rows == 0:
        return [], set(), refused
    run = save_run(plan.storage, f"{plan.folder}/0-0-0.arrow", keyed, plan.intake.rule)
    return [run], {*partitions_of(keyed)}, refused


def _pieces(keyed: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in pieces; large partitions have their own, which need not be copied."""
    for piece in parts_of(keyed, _PIECE_ROWS):
        partitions = piece.column(PARTITION_PATH).combine_chunks()
        runs = runs_of(partitions)
        if (len(runs) + 1) * _FEW_ROWS > piece.num_rows:
            yield piece
        else:
            yield from (piece.slice(a, b - a) for a, b in runs)
