"""Placement on the driver: a micro-batch is collected as Arrow and written in this process.

A shuffle and Python workers cost more than writing a small batch. The operators are those of the
Spark tasks, in threads instead of tasks; index, files and protocol do not depend on the placement.

`placing` says which micro-batches are written here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.bad_rows import BadRows, RefusedRows
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.batch import Commit, write_keyed
from hoodie_nb.on_spark.file_order import BLOCK, PATH, placed, places
from hoodie_nb.on_spark.interrupts import cancel_on_interrupt
from hoodie_nb.on_spark.taken import Taken, TooLarge
from hoodie_nb.on_spark.task_errors import raise_translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Numbers = npt.NDArray[np.int64]


def collected(
    batch: DataFrame,
    intake: Intake,
    files: Sequence[str],
    bad: RefusedRows | None = None,
    taken: Taken | None = None,
) -> pa.Table:
    """Return a micro-batch as keyed rows, as they arrived.

    `files` are the files that the rows come from, oldest first, if there are several; `taken`
    counts the rows. Raises InvalidInput for invalid rows, unless `bad` takes them, and TooLarge if
    the batch is too large for the driver.
    """
    handled = sys.exception()
    try:
        rows = placed(batch if taken is None else taken.bounded(batch), files).toArrow()
    except Exception as error:
        if "spark.driver.maxResultSize" in str(error):
            raise TooLarge(
                "the rows of one write are larger than spark.driver.maxResultSize, so the driver "
                f"cannot collect them: {_remedy(intake)}"
            ) from error
        raise_translated(error, handled)
    in_files = PATH in rows.column_names
    arrival = _by_file(rows, files) if in_files else np.arange(rows.num_rows)
    plain = rows.drop_columns([PATH, BLOCK]) if in_files else rows
    if taken is not None:
        taken.add(plain)
    return intake.keyed(plain, pa.array(arrival, pa.int64()), bad)


def _remedy(intake: Intake) -> str:
    if intake.config.global_keys:
        return "write them in smaller parts, since only the driver moves global keys"
    return "use placement='executors', or smaller micro-batches"


def write_collected(
    data: DataFrame, intake: Intake, table: TableHandle, events: EventLog
) -> Commit | None:
    """Write a DataFrame in this process, as one batch; None if it has no rows.

    Raises InvalidInput for invalid rows, and TooLarge if the driver may not collect them.
    """
    bad = BadRows() if intake.quarantines else None
    with cancel_on_interrupt(data.sparkSession.sparkContext):
        keyed = collected(data, intake, (), bad)
    return write_keyed(table, keyed, intake, bad, events)


def _by_file(rows: pa.Table, files: Sequence[str]) -> Numbers:
    """Return each row's number by age of its file, block and position; unknown files come first."""
    rank, block = (column.to_numpy() for column in places(rows, files))
    order = np.lexsort((block, rank))
    numbers: Numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.arange(len(order))
    return numbers
