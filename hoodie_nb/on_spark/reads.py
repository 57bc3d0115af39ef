"""`to_spark` and `changes_spark`: which files Spark reads itself and which Python tasks read.

A snapshot is read with Spark's own Parquet reader, or on an object store, where Spark needs its own
connector and credentials, by tasks that fetch the files; so are files whose types are narrower than
the table's. Changes are computed by the functions of `reading.changes`: a task compares the two
files of a file group; then the rows are shuffled by key, since a key may have moved to another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.files.base_file import open_base_file
from hoodie_nb.logs.folding import LogMerge
from hoodie_nb.machine import threads
from hoodie_nb.reading.changes import (
    changed_slices,
    group_changes,
    net_changes,
)
from hoodie_nb.reading.dataset import older_types
from hoodie_nb.reading.read import merge_of, snapshot_as_of
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.storage.storage import Storage, is_remote
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.view.file_groups import FileGroups, FileSlice
from hoodie_nb.view.views import reading, until_true

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_AS_WRITTEN = {  # whatever the session says: all rows, as they were written, or an error
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "ignoredPathSegmentRegex": "(?!)",  # of Spark 4.3, by which files are left out: none
    "recursiveFileLookup": "true",
    # of files without Spark's version, such as those of Java's upserts; others say what they have
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
_TASK_BYTES = 64 << 20  # of base files, for the tasks after the shuffle
_LIKE_HUDI = {(pa.int32(), pa.int64())}  # the changes of type that Spark's reader makes, too
BATCH_ROWS = 10_000
Batches = Iterator[pa.RecordBatch]


def snapshot(
    table: TableHandle,
    spark: SparkSession,
    as_of: object = None,
    partitions: Sequence[str] | None = None,
    *,
    read_optimized: bool = False,
) -> DataFrame:
    """Return the snapshot as a DataFrame, Hudi's meta columns first."""

    def look() -> tuple[FileGroups, pa.Schema]:
        return snapshot_as_of(table, as_of, partitions, read_optimized=read_optimized)

    return until_true(lambda: _snapshot(table, spark, *look()))


def _snapshot(
    table: TableHandle, spark: SparkSession, found: FileGroups, stored: pa.Schema
) -> DataFrame:
    slices = [*found]
    schema = from_arrow_schema(stored, True)
    if not slices:
        return spark.createDataFrame([], schema)
    merge = merge_of(table, found, stored)
    merged = [s for s in slices if s.logs]
    plain = [s for s in slices if not s.logs]
    if not plain or is_remote(table.storage.root) or _has_older_types(table, plain, stored):
        return _fetched(table, spark, slices, stored, merge)
    reader = spark.read.schema(schema).options(**_AS_WRITTEN)
    with reading(table.storage, *(s.path for s in plain)):  # Spark looks for the files here
        rows = reader.parquet(*(_uri(table.storage.fetch(s.path)) for s in plain))
    return rows.union(_fetched(table, spark, merged, stored, merge)) if merged else rows


def _has_older_types(table: TableHandle, slices: Sequence[FileSlice], schema: pa.Schema) -> bool:
    """Whether a file has a type from before the table's became wider.

    Spark's own reader refuses most of them, or returns other values than Hudi. A table with the
    columns of its creation has none.
    """
    if table.schema.equals(table.config.schema):
        return False

    def differs(piece: FileSlice) -> bool:
        with reading(table.storage, piece.path):
            file = open_base_file(table.storage.fetch(piece.path))
            return bool(older_types(file, schema) - _LIKE_HUDI)

    with ThreadPoolExecutor(threads()) as pool:
        return any(pool.map(differs, slices))


def _fetched(
    table: TableHandle,
    spark: SparkSession,
    slices: Sequence[FileSlice],
    schema: pa.Schema,
    merge: LogMerge,
) -> DataFrame:
    """Return the rows of slices that Spark's tasks read by this library, and fetch if need be."""
    storage = table.storage

    def read(batches: Batches) -> Batches:
        numbers = (row["slice"] for batch in batches for row in batch.to_pylist())
        return rows_of_slices(storage, (slices[number] for number in numbers), schema, merge)

    sizes = sum(s.total_bytes for s in slices)
    tasks = max(spark.sparkContext.defaultParallelism, sizes // _TASK_BYTES)
    files = spark.createDataFrame([(number,) for number in range(len(slices))], "slice int")
    return files.repartition(tasks).mapInArrow(read, from_arrow_schema(schema, True))


def rows_of_slices(
    storage: Storage, slices: Iterable[FileSlice], schema: pa.Schema, merge: LogMerge
) -> Batches:
    """Yield the rows of slices, in a task.

    Raises UndoneMeanwhile if one cannot be read because its commit was undone.
    """
    for piece in slices:
        with reading(storage, *piece.paths):
            for rows in slice_rows(storage, piece, schema, None, merge):
                yield from rows.to_batches(BATCH_ROWS)


def spark_changes(
    table: TableHandle, spark: SparkSession, since: object, until: object
) -> DataFrame:
    """Return the changes after `since` up to `until` as a DataFrame; its tasks read the files."""
    partitions, schema = changed_slices(table, since, until)
    pairs = [pair for partition in partitions for pair in partition]
    columns = from_arrow_schema(schema, True)
    if not pairs:
        return spark.createDataFrame([], columns)

    storage = table.storage

    def compare(batches: Batches) -> Batches:
        for number in (row["pair"] for batch in batches for row in batch.to_pylist()):
            found = group_changes(storage, pairs[number], schema)
            yield from found.to_batches(BATCH_ROWS)

    def settle(batches: Batches) -> Batches:
        rows = (pa.Table.from_batches([batch]).cast(schema) for batch in batches)
        yield from net_changes(rows, schema).to_batches(BATCH_ROWS)

    files = spark.createDataFrame([(number,) for number in range(len(pairs))], "pair int")
    sizes = sum(s.total_bytes for pair in pairs for s in (pair.before, pair.after) if s)
    tasks = max(spark.sparkContext.defaultParallelism, sizes // _TASK_BYTES)
    compared = files.mapInArrow(compare, columns)
    key = [F.coalesce(name, F.lit("")) for name in (PARTITION_PATH, RECORD_KEY)]  # null is "", too
    return compared.repartition(tasks, *key).mapInArrow(settle, columns)


def _uri(path: str) -> str:
    """Return the path with glob characters escaped for Spark's reader."""
    for character in "\\{}[]*?":
        path = path.replace(character, f"\\{character}")
    return path
