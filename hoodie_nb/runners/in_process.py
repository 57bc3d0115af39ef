"""The runner without Spark: intake, assigner and writer in the calling process.

The same operators as in Spark tasks, over one Arrow table; buckets are merged by a few threads,
since Arrow and Parquet release the interpreter lock.
"""

import os

import numpy as np
import pyarrow as pa

from hoodie_nb.events import EventLog
from hoodie_nb.runners.operators import assign, write
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.writer.columns import SEQ
from hoodie_nb.writer.intake import Intake
from hoodie_nb.writer.plan import TaskAttempt, WritePlan
from hoodie_nb.writer.taking import parts_of, sort_rows

_PIECE_ROWS = 131_072


def keyed_in_order(rows: pa.Table, intake: Intake, arrived: int = 0) -> pa.Table:
    """Return keyed rows sorted by partition, key and arrival (InvalidInput for bad values).

    `arrived` is the number of earlier rows of the checkpoint.
    """
    sequence = np.arange(arrived, arrived + rows.num_rows, dtype=np.int64)
    keyed = intake.keyed(rows, pa.array(sequence))
    return in_order(keyed)


def in_order(keyed: pa.Table) -> pa.Table:
    """Return keyed rows sorted by partition, key and arrival."""
    return sort_rows(keyed, (PARTITION_PATH, RECORD_KEY, SEQ))


def write_in_process(keyed: pa.Table, plan: WritePlan, events: EventLog) -> list[WriteStatus]:
    """Assign and write keyed rows that are sorted; return the write statuses."""
    assigned = assign(plan, parts_of(keyed, _PIECE_ROWS), 0, events.emit)
    threads = min(4, os.cpu_count() or 2)
    return list(write(plan, assigned, TaskAttempt(), events.emit, threads))
