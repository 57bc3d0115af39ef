"""The arms in a Spark stream: file source -> `foreachBatch` -> table, with a checkpoint.

One query runs all the time, on two cores unless the session has its defaults. Each file that
appears in its source folder is one micro-batch; the base is the first. A step ends when the query
has nothing left to do and its rows are visible.
"""

import os
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame

import hoodie_nb as hn

from .in_process import TUNED, delta_rows, merge, our_rows, our_table
from .workload import DDL, PARTITION, SCHEMA

_PATIENT = {"spark.network.timeout": "3600s"}  # its heart stops while other arms work


class _Stream:
    """A folder of files as a stream."""

    def __init__(self, folder: Path, cores: int | None = 2) -> None:
        self._folder, self._source = folder, folder / "source"
        self._source.mkdir()
        self._checkpoint = str(folder / "checkpoint")
        self._spark = hn.spark(cores=cores, conf=_PATIENT)
        source = self._spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        self._stream = source.parquet(str(self._source))

    def load(self, file: Path) -> None:
        """Let the base appear."""
        self.upsert(file)

    def upsert(self, file: Path) -> None:
        """Let a file appear in the source folder, and wait until its rows are in the table."""
        os.link(file, self._source / file.name)
        self._wait()

    def _wait(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End the session."""
        self._spark.stop()


class OurStream(_Stream):
    """`hn.write_stream` with some of its options, or none, in a session of some cores, or all."""

    def __init__(
        self, folder: Path, *, cores: int | None = 2, table_type: str = "", **options: object
    ) -> None:
        super().__init__(folder, cores)
        self._table = our_table(folder, **({"table_type": table_type} if table_type else {}))
        self._job = hn.write_stream(
            self._stream, self._table, checkpoint=self._checkpoint, trigger="0 seconds", **options
        )

    def _wait(self) -> None:
        self._job.process_all_available()

    def rows(self) -> pa.Table:
        """Return the snapshot."""
        return our_rows(self._table.path)

    def close(self) -> None:
        """Stop the job, and end the session."""
        self._job.stop()
        super().close()


class DeltaStream(_Stream):
    """`toArrow()` and a merge by delta-rs on the driver."""

    def __init__(self, folder: Path, *, tuned: bool) -> None:
        super().__init__(folder)
        self._path, self._properties = folder / "table", TUNED if tuned else None
        DeltaTable.create(self._path, SCHEMA, partition_by=[PARTITION])
        writer = self._stream.writeStream.option("checkpointLocation", self._checkpoint)
        self._query = writer.foreachBatch(self._merge).trigger(processingTime="0 seconds").start()

    def _merge(self, batch: DataFrame, batch_id: int) -> None:
        merge(self._path, batch.toArrow(), self._properties)

    def _wait(self) -> None:
        self._query.processAllAvailable()

    def rows(self) -> pa.Table:
        """Return the newest version."""
        return delta_rows(self._path)

    def close(self) -> None:
        """Stop the query, and end the session."""
        self._query.stop()
        super().close()
