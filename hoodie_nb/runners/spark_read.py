"""Reading a snapshot with Spark's own Parquet reader, with the file list from the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from hoodie_nb.table.base_file import stored_schema
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.read import slices_as_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def snapshot(
    table: TableHandle,
    spark: SparkSession,
    as_of: object = None,
    partitions: Sequence[str] | None = None,
) -> DataFrame:
    """Return the snapshot as a DataFrame, Hudi's meta columns first."""
    schema = from_arrow_schema(stored_schema(table.schema), True)
    paths = [table.storage.fetch(s.path) for s in slices_as_of(table, as_of, partitions)]
    if not paths:
        return spark.createDataFrame([], schema)
    modes = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}  # as written
    reader = spark.read.schema(schema).options(recursiveFileLookup="true", **modes)
    return reader.parquet(*(_uri(path) for path in paths))


def _uri(path: str) -> str:
    """Return the path with glob characters escaped for Spark's reader."""
    for character in "\\{}[]*?":
        path = path.replace(character, f"\\{character}")
    return path
