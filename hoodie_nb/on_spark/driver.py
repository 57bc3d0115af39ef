"""`placement="driver"`: collects a micro-batch as Arrow and writes it in this process.

A shuffle and Python workers cost more than writing a small batch. The operators are those of the
Spark tasks, in threads instead of tasks; index, files and protocol do not depend on the placement.

`placing` says which micro-batches are written here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.bad_rows import BadRows, RefusedRows
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.batch import Commit, write_keyed
from hoodie_nb.local.in_process import keyed_as_arrived
from hoodie_nb.on_spark.interrupts import cancel_on_interrupt
from hoodie_nb.on_spark.taken import Taken, TooLarge
from hoodie_nb.on_spark.task_errors import raise_translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def collected(
    batch: DataFrame, intake: Intake, bad: RefusedRows | None = None, taken: Taken | None = None
) -> pa.Table:
    """Return a micro-batch as keyed rows, in the order in which Spark collects them.

    `taken` counts the rows. Raises InvalidInput for invalid rows, unless `bad` takes them, and
    TooLarge if the batch is too large for the driver.
    """
    handled = sys.exception()
    try:
        rows = (batch if taken is None else taken.bounded(batch)).toArrow()
    except Exception as error:
        if "spark.driver.maxResultSize" in str(error):
            raise TooLarge(
                "the rows of one write are larger than spark.driver.maxResultSize, so the driver "
                f"cannot collect them: {_remedy(intake)}"
            ) from error
        raise_translated(error, handled)
    if taken is not None:
        taken.add(rows)
    return keyed_as_arrived(rows, intake, bad=bad)


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
        keyed = collected(data, intake, bad)
    return write_keyed(table, keyed, intake, bad, events)
