"""The runner without Spark: intake, assigner and writer, in pieces of bounded memory.

The same operators as in Spark tasks, over one Arrow table; buckets are merged by a few threads,
since Arrow and Parquet release the interpreter lock.
"""

import contextlib
from collections.abc import Generator, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from hoodie_nb.buckets.global_keys import relocated
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.plan import SealPlan, TaskAttempt, WritePlan
from hoodie_nb.buckets.profile import record_bytes_of, with_record_bytes
from hoodie_nb.events import EventLog
from hoodie_nb.intake.bad_rows import BadRows, RefusedRows
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.operators import assign, index_of, write
from hoodie_nb.machine import threads
from hoodie_nb.rows.ordering import runs_of
from hoodie_nb.rows.runs import partitions_of, save_run
from hoodie_nb.rows.sorting import in_order, tables_in_order
from hoodie_nb.rows.taking import PART_ROWS, parts_of
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import PARTITION_PATH

_FEW_ROWS = 8_192


def keyed_as_arrived(
    rows: pa.Table, intake: Intake, earlier: int = 0, bad: RefusedRows | None = None
) -> pa.Table:
    """Return keyed rows, as they arrived (InvalidInput for bad values).

    `earlier` is the number of earlier rows of the checkpoint; `bad` takes the rows that are refused
    instead.
    """
    sequence = np.arange(earlier, earlier + rows.num_rows, dtype=np.int64)
    return intake.keyed(rows, pa.array(sequence), bad)


def keyed_in_order(rows: pa.Table, intake: Intake, earlier: int = 0) -> pa.Table:
    """Return keyed rows sorted by partition, key and arrival (InvalidInput for bad values)."""
    return in_order(keyed_as_arrived(rows, intake, earlier))


def saved(bad: BadRows | None, plan: WritePlan | SealPlan) -> list[StoredFile]:
    """Stage the rows that a write refused; return their file, if there are any."""
    if bad is None or plan.quarantine is None:
        return []
    return bad.saved(plan.storage, plan.quarantine)


def write_in_process(
    keyed: pa.Table,
    plan: WritePlan,
    events: EventLog,
    kept: KeptFiles | None = None,
    *,
    arrived: bool = False,
) -> list[WriteStatus]:
    """Assign and write keyed rows onto `kept` files; return the statuses.

    The rows are sorted; if they are in the order in which they `arrived`, they are sorted here,
    while others are written.
    """
    if plan.intake.config.global_keys:
        keyed = relocated(in_order(keyed) if arrived else keyed, plan, index_of(plan))
        arrived = False
    if plan.record_bytes is None:
        plan = replace(plan, record_bytes=record_bytes_of(keyed))
    with contextlib.closing(_pieces(keyed, arrived)) as pieces:  # its threads end with the write
        return write_pieces(pieces, plan, events, kept)


def write_pieces(
    pieces: Iterable[pa.Table], plan: WritePlan, events: EventLog, kept: KeptFiles | None = None
) -> list[WriteStatus]:
    """Assign and write keyed rows that arrive sorted, one piece in memory at a time."""
    plan, pieces = with_record_bytes(plan, pieces)
    assigned = assign(plan, pieces, 0, events.emit)
    cores = threads(plan.options.max_file_bytes)
    return list(write(plan, assigned, TaskAttempt(), events.emit, threads=cores, kept=kept))


def seal_in_process(
    keyed: pa.Table, plan: SealPlan, bad: BadRows | None = None
) -> tuple[list[StoredFile], set[str], list[StoredFile]]:
    """Save keyed rows as a sorted run; return it, their partition paths, and refused rows."""
    refused = saved(bad, plan)
    if keyed.num_rows == 0:
        return [], set(), refused
    run = save_run(plan.storage, f"{plan.folder}/0-0-0.arrow", in_order(keyed), plan.intake.rule)
    return [run], {*partitions_of(keyed)}, refused


def _pieces(keyed: pa.Table, arrived: bool) -> Generator[pa.Table]:
    """Yield sorted rows in pieces; large partitions have their own, which need not be copied."""
    for table in tables_in_order(keyed) if arrived else [keyed]:
        for piece in parts_of(table, PART_ROWS):
            runs = runs_of(piece.column(PARTITION_PATH).combine_chunks())
            if (len(runs) + 1) * _FEW_ROWS > piece.num_rows:
                yield piece
            else:
                yield from (piece.slice(a, b - a) for a, b in runs)
