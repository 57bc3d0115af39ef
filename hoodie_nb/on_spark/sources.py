"""Readers of `spark.read.format("hoodie_nb")`: how files become partitions; stream offsets.

*Work flow*: Spark asks a Python process beside the driver for the columns, then for the pieces that
its tasks read: some base files of a snapshot, or the changed files of one partition. It asks for
these once for a DataFrame or view, at its first query: later queries read the same snapshot.

*Fault tolerance*: the offset of a stream is a completed commit, and its rows are the changes since
the previous offset: at most one for a key and partition. Spark writes an offset down before it
reads, so a repeated batch has the same rows. A commit that is open, or newer than one, waits. If
the files or commits of an offset are gone (cleaned, archived, rolled back), the stream stops.

**Caveats**: the columns stay those of the start. A task holds the changes of one partition in
memory. Spark does not say which columns it
needs, and filters are not pushed down: for a query without a filter, Spark 4.3 would reuse the
files and rows of an earlier query of the same DataFrame with one. `table.to_spark(spark)` reads
fewer bytes. There is no SQL by path for sources in Python (``select * from hoodie_nb.`path` ``).
*Source:* pyspark.sql.datasource, UserDefinedPythonDataSource.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark_api
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from hoodie_nb.errors import HoodieError, InvalidConfig
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.on_spark.reads import BATCH_ROWS, Batches, rows_of_slices
from hoodie_nb.reading.changes import (
    changed_slices,
    changes_schema,
    group_changes,
    net_changes,
)
from hoodie_nb.reading.positions import position_of
from hoodie_nb.reading.read import merge_of, snapshot_as_of
from hoodie_nb.reading.span import SlicePair, settled_commits
from hoodie_nb.storage.addresses import Address, storage_at
from hoodie_nb.types.conversion import as_lists
from hoodie_nb.view.file_groups import FileSlice

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

_TASK_BYTES = 16 << 20  # of base files


def _as_at_start(rows: Iterable[pa.RecordBatch], columns: pa.Schema, table: str) -> Batches:
    """Yield rows with the columns of the start of a query: some types may be wider now."""
    for batch in rows:
        arrays = [
            _narrowed(batch.column(field.name), field, table)
            if field.name in batch.schema.names
            else pa.nulls(len(batch), field.type)
            for field in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _narrowed(column: pa.Array, field: pa.Field, table: str) -> pa.Array:
    try:
        narrow = column.cast(field.type)
        if not _is_rounded(column, narrow):
            return narrow
        why = "it would be rounded"
    except pa.ArrowException as error:
        why = str(error)
    raise InvalidConfig(
        f"column {field.name!r} of {table} is {column.type} now and has values that are no "
        f"{field.type} ({why}): load the table or start the query again"
    )


def _is_rounded(column: pa.Array, narrow: pa.Array, *, inside: bool = False) -> bool:
    """Whether a cast has rounded doubles to floats, at any depth: Arrow does so without an error.

    A float that became a double kept its decimal text; one `inside` another value, its number.
    """
    kind = narrow.type
    if kind == pa.float32() != column.type:
        same = narrow.cast(column.type) if inside else narrow
        return not same.cast(pa.string()).equals(column.cast(pa.string()))
    both = (column, narrow)
    if pa.types.is_map(kind):
        both = (as_lists(column), as_lists(narrow))
    if pa.types.is_struct(kind):
        fields = ([pc.struct_field(rows, f.name) for rows in both] for f in kind)
        return any(_is_rounded(*field, inside=True) for field in fields)
    if pa.types.is_nested(kind):
        return _is_rounded(*map(pc.list_flatten, both), inside=True)
    return False


class SnapshotReader(spark_api.DataSourceReader):
    """Reads the base files of a snapshot, a few in each task."""

    def __init__(
        self, place: Address, columns: pa.Schema, as_of: str | None, *, read_optimized: bool = False
    ) -> None:
        self._storage = storage_at(place)
        self._columns = columns
        self._as_of = as_of
        self._read_optimized = read_optimized

    def partitions(self) -> Sequence[spark_api.InputPartition]:
        """Return the files, in groups of some megabytes."""
        table = open_table(self._storage)
        found, stored = snapshot_as_of(table, self._as_of, read_optimized=self._read_optimized)
        merge = merge_of(table, found, stored)
        tasks: list[list[FileSlice]] = []
        room = 0
        for piece in found:
            room -= piece.total_bytes
            if room < 0:
                tasks.append([])
                room = _TASK_BYTES - piece.total_bytes
            tasks[-1].append(piece)
        names = {*self._columns.names}
        now = pa.schema([field for field in stored if field.name in names])
        return [spark_api.InputPartition((task, now, merge)) for task in tasks]

    def read(self, partition: spark_api.InputPartition) -> Batches:
        """Yield the rows of some files."""
        if not partition.value:  # Spark makes a task without files, too
            return
        rows = rows_of_slices(self._storage, *partition.value)
        yield from _as_at_start(rows, self._columns, self._storage.root)


class _Changes:
    """The files that changed in a span, a partition of the table in each task."""

    def __init__(self, place: Address, columns: pa.Schema) -> None:
        self._storage = storage_at(place)
        self._columns = columns
        changes_schema(open_table(self._storage))  # refuses a table that has a column `_change`

    def _tasks(self, since: str | None, until: str | None) -> list[spark_api.InputPartition]:
        table = open_table(self._storage)
        found, whole = changed_slices(table, since, until)
        return [spark_api.InputPartition((pairs, whole)) for pairs in found]

    def read(self, partition: spark_api.InputPartition) -> Batches:
        """Yield the changes of one partition of the table."""
        if not partition.value:  # Spark makes a task without files, too
            return
        pairs: Sequence[SlicePair]
        pairs, whole = partition.value  # the columns of now: a file may have wider types
        groups = (group_changes(self._storage, pair, whole) for pair in pairs)
        rows = net_changes(groups, whole).to_batches(BATCH_ROWS)
        yield from _as_at_start(rows, self._columns, self._storage.root)


class ChangesReader(_Changes, spark_api.DataSourceReader):
    """Reads the changes between two moments."""

    def __init__(self, place: Address, columns: pa.Schema, since: str, until: str | None) -> None:
        super().__init__(place, columns)
        self._since = None if since == "earliest" else since
        self._until = until

    def partitions(self) -> Sequence[spark_api.InputPartition]:
        """Return the changed files, by partition of the table."""
        return self._tasks(self._since, self._until)


class ChangeStream(_Changes, spark_api.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes since the previous offset; an offset is `{"instant": 17 digits}`."""

    def __init__(self, place: Address, columns: pa.Schema, starting: str | None) -> None:
        super().__init__(place, columns)
        self._starting = starting
        self._end: str | None = None

    def initialOffset(self) -> dict[str, str]:
        """Return the newest commit up to `starting`; "" is the start of the table."""
        table = open_table(self._storage)
        commits = settled_commits(table)
        if self._starting is None:
            raise InvalidConfig(
                "a stream reads the changes of a table: say where it starts, with "
                ".option('starting', 'earliest') (first all rows, as inserts), 'latest' or a moment"
            )
        if self._starting in ("earliest", "latest"):
            return {"instant": max(commits, default="") if self._starting == "latest" else ""}
        first = position_of(table, self._starting, "starting")
        before = [time17 for time17 in commits if time17 <= first]
        if not before and table.timeline.archived():
            raise InvalidConfig(
                f"`starting` {first} is before the first commit that was not archived: give "
                f"{commits[0] if commits else 'a later time'} or a later one, or 'earliest'"
            )
        return {"instant": max(before, default="")}

    def latestOffset(self, start: Mapping[str, str], limit: ReadLimit) -> dict[str, str]:
        """Return the newest commit that no open one precedes."""
        self._check(start["instant"])
        return {"instant": max(start["instant"], self._newest(self._end))}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to the current newest commit."""
        self._end = self._newest()

    def _newest(self, until: str | None = None) -> str:
        """Return the newest commit that a batch may end with; one after `until` may not."""
        commits = settled_commits(open_table(self._storage))
        return max((t for t in commits if until is None or t <= until), default="")

    def partitions(
        self, start: Mapping[str, str], end: Mapping[str, str]
    ) -> Sequence[spark_api.InputPartition]:
        """Return the files that changed after `start` up to `end`, by partition of the table."""
        first = start["instant"]
        last = end["instant"]
        if first == last:
            return []
        self._check(first, last)
        with self._explained(first):
            return self._tasks(first or None, last)

    def _check(self, *offsets: str) -> None:
        """Raise InvalidConfig if a stream cannot continue from one of the offsets."""
        table = open_table(self._storage)
        with self._explained(offsets[0]):
            for offset in filter(None, offsets):
                position_of(table, offset, "offset")

    @contextlib.contextmanager
    def _explained(self, first: str) -> Iterator[None]:
        try:
            yield
        except HoodieError as error:
            raise type(error)(
                f"the stream cannot continue from its offset {first or '(the start)'} of the table "
                f"{self._storage.root}: {error}. Or start it with a new checkpoint folder: "
                "starting='earliest' gives all rows again, for an empty target; a commit of "
                "`table.history()` is for a target that has the snapshot as of it"
            ) from None
