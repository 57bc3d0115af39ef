"""A stream from a folder of Parquet files: each file is one micro-batch, in the order given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class FolderSource:
    """Files that a streaming query reads, one per micro-batch."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder, self.schema, self.files = folder, schema, 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, rows: pa.Table) -> None:
        """Add the rows of the next micro-batch; the file appears atomically."""
        name = f"{self.files:06d}.parquet"
        hidden = self.folder / f".{name}"
        pq.write_table(rows.cast(self.schema), hidden)
        arrived = 1_700_000_000 + self.files  # Spark reads files in order of their time
        os.utime(hidden, (arrived, arrived))
        hidden.rename(self.folder / name)
        self.files += 1

    def stream(self, spark: SparkSession, files_per_batch: int = 1) -> DataFrame:
        """Return the folder as a streaming DataFrame."""
        reader = spark.readStream.schema(from_arrow_schema(self.schema, True))
        return reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(self.folder))

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return the rows of all files as a DataFrame."""
        schema = from_arrow_schema(self.schema, True)
        return spark.read.schema(schema).parquet(str(self.folder))
