"""How many rows and bytes of a micro-batch the driver may collect before it is too large."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.timeline.commits import WriteStatus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IN_TASK = (1 << 33) - 1  # the bits of monotonically_increasing_id that count a task's rows


class TooLarge(InvalidConfig):
    """A micro-batch is larger than the driver may collect; `auto` leaves it to the executors."""


@dataclass(slots=True)
class Taken:
    """What a micro-batch had, as it came from the source, and the bytes of the files it wrote."""

    rows: int = 0
    size_bytes: int = 0
    written_bytes: int = 0
    estimate: int | None = None
    limit_bytes: int | None = None
    limit_rows: int | None = None

    def bounded(self, batch: DataFrame) -> DataFrame:
        """Return a batch of which each task returns at most `limit_rows` rows, if there is one.

        If a task leaves out rows, at least `limit_rows` come, and `add` refuses them.
        """
        if self.limit_rows is None:
            return batch
        from pyspark.sql import functions as F

        in_task = F.monotonically_increasing_id().bitwiseAND(_IN_TASK)
        return batch.filter(in_task < self.limit_rows)

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Count some rows; raise TooLarge if they reach `limit_rows` or exceed `limit_bytes`."""
        self.rows += rows.num_rows
        self.size_bytes += rows.nbytes
        cut = self.limit_rows is not None and self.rows >= self.limit_rows
        if cut or (self.limit_bytes is not None and self.size_bytes > self.limit_bytes):
            raise TooLarge(
                f"the micro-batch has {self.size_bytes:,} bytes, more than the driver may write: "
                "use placement='executors'"
            )

    def note_written(self, statuses: Iterable[WriteStatus]) -> None:
        """Note the bytes of the files that the batch wrote."""
        self.written_bytes = sum(status.bytes_written for status in statuses)
