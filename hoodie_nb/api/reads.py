"""Methods of `Table` that read: `to_arrow`, `to_spark`, `changes`, `timeline`, `file_groups`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from datetime import date
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from hoodie_nb.actions.quarantine import refused_rows
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.batch import Commit
from hoodie_nb.reading.changes import changes
from hoodie_nb.reading.dataset import dataset
from hoodie_nb.reading.read import batches, slices_as_of, to_arrow
from hoodie_nb.view.views import steadily

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Moment = str | date | Commit | None  # a datetime is a date, too; None: now
EARLIEST: Final = "earliest"  # as `since`: before the first commit
Filters: TypeAlias = pc.Expression | str | Sequence[Any] | None


class TableReads:
    """What `Table` offers to readers."""

    _handle: TableHandle

    def to_spark(
        self,
        spark: SparkSession | None = None,
        as_of: Moment = None,
        partitions: Sequence[str] | None = None,
        *,
        read_optimized: bool = False,
    ) -> DataFrame:
        """Return the snapshot as a Spark DataFrame, meta columns included.

        `as_of`: an instant's 17 digits (of the table's timeline: UTC), ISO text, a date (its start)
        or a datetime (without a zone: this machine's local time), or a commit. `partitions`: paths,
        as in the column `_hoodie_partition_path`; InvalidConfig for unknown ones.
        `read_optimized`: as in `to_arrow`.
        """
        from hoodie_nb.api.session import require_classic
        from hoodie_nb.api.session import spark as make_session
        from hoodie_nb.on_spark.reads import snapshot

        session = spark or make_session()
        require_classic(session)
        return snapshot(self._handle, session, as_of, partitions, read_optimized=read_optimized)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        filters: Filters = None,
        partitions: Sequence[str] | None = None,
        as_of: Moment = None,
        meta: bool = True,
        read_optimized: bool = False,
    ) -> pa.Table:
        """Return the snapshot as an Arrow table, without Spark.

        `filters`: SQL text ("delay > 15"), an expression (`pc.field("delay") > 15`), or lists of
        `("delay", ">", 15)` as in pyarrow.parquet; they may name columns that are not returned.
        Files that they exclude are not read (see `hoodie_nb.reading.filters`).
        `partitions`: paths, as in the column `_hoodie_partition_path`. `as_of`: as in `to_spark`.
        `meta=False`: without Hudi's columns, unless `columns` names them. `read_optimized`: of a
        merge-on-read table only the newest base files, without what log files changed, as Hudi's
        query of that name. Raises InvalidConfig for unknown columns and partitions.
        """
        return to_arrow(
            self._handle,
            columns,
            filters=filters,
            partitions=partitions,
            as_of=as_of,
            meta=meta,
            read_optimized=read_optimized,
        )

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        *,
        filters: Filters = None,
        partitions: Sequence[str] | None = None,
        as_of: Moment = None,
        meta: bool = True,
        read_optimized: bool = False,
    ) -> pd.DataFrame:
        """Return the snapshot as a pandas DataFrame, without Spark; see `to_arrow`."""
        found = self.to_arrow(
            columns,
            filters=filters,
            partitions=partitions,
            as_of=as_of,
            meta=meta,
            read_optimized=read_optimized,
        )
        return found.to_pandas()

    def to_pyarrow_dataset(
        self, as_of: Moment = None, *, read_optimized: bool = False
    ) -> ds.FileSystemDataset:
        """Return the snapshot as a lazy dataset of Arrow, with the columns and rows of `to_arrow`.

        DuckDB, Polars (`scan_pyarrow_dataset`) and others read of it only the columns, files and
        row groups that a query needs. It stays the snapshot of one commit: reading a file that
        was cleaned away since is an error. Slices with log files are merged now, and held in memory
        as compressed Parquet. `read_optimized`: as in `to_arrow`. Raises InvalidConfig for a table
        on an object store. See `hoodie_nb.reading.dataset`.
        """
        return dataset(self._handle, as_of, read_optimized=read_optimized)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the current snapshot as an Arrow stream: `polars.DataFrame(table)`, DuckDB, ...

        Its columns are those of `schema`, which DuckDB compares, so it is without Hudi's. One file
        is open at a time, and a piece of it in memory. `requested_schema`: a capsule of the
        protocol, to which the columns are cast. *Source:* Arrow's PyCapsule interface.
        """
        return batches(self._handle).__arrow_c_stream__(requested_schema)

    def changes(self, *, since: Moment, until: Moment = None) -> pa.Table:
        """Return the net changes after `since` up to `until` (None: now) as an Arrow table.

        The columns are those of a snapshot and `_change`, a text: "insert", "update" or "delete"
        (the old row). Times as in `to_spark`; "earliest" as `since`: all rows, as inserts; digits
        are those of an instant of the table. Raises InvalidConfig if `since` is None (what a write
        without rows returns), if a commit up to `since` was undone, if the files as of it were
        cleaned away, if commits were archived, or if a commit that started before `until` has not
        completed.
        """
        return changes(self._handle, _start(since), until)

    def changes_spark(
        self, spark: SparkSession, *, since: Moment, until: Moment = None
    ) -> DataFrame:
        """Return the net changes as a DataFrame; Spark's tasks compare the files; see `changes`."""
        from hoodie_nb.api.session import require_classic
        from hoodie_nb.on_spark.reads import spark_changes

        require_classic(spark)
        return spark_changes(self._handle, spark, _start(since), until)

    def quarantine(self) -> pa.Table:
        """Return the rows that writes with `on_bad_record="quarantine"` refused, oldest first.

        Columns: `row` (JSON text), `column` and `reason` of its refusal, `query_id` and `batch_id`
        of a stream, `found_at`, `commit` (see `hoodie_nb.actions.quarantine`).
        """
        self._handle.reload()
        return steadily(self._handle, lambda: refused_rows(self._handle))

    def timeline(self) -> pd.DataFrame:
        """Return the active timeline, one row per instant, oldest first, as texts.

        `completion_time` is None where Hudi's timeline has none.
        """
        self._handle.reload()
        found = self._handle.timeline.instants()
        rows = [(i.requested_time, i.action, str(i.state), i.completion_time) for i in found]
        columns = ["requested_time", "action", "state", "completion_time"]
        return _listing(rows, columns, "no instants: nothing was written yet")

    def history(self) -> pd.DataFrame:
        """Return the completed commits of the active timeline, oldest first.

        The columns are the fields of `Commit`: times and the operation as text, counts as int64.
        """
        self._handle.reload()
        done = self._handle.timeline.completed_commits
        commits = steadily(self._handle, lambda: [Commit.of(self._handle, i) for i in done()])
        types = {field.name: field.type for field in fields(Commit)}
        counts = {name: "int64" for name, kind in types.items() if kind is int}
        return _listing(map(astuple, commits), [*types], "no commits yet", counts)

    def file_groups(self, as_of: Moment = None) -> pd.DataFrame:
        """Return the file slices of the snapshot, one row per file group; sizes are int64.

        Of a merge-on-read table `logs` and `log_bytes` say how many log files belong to a slice.
        """
        logs = self._handle.config.merge_on_read
        rows = [
            (
                *(s.partition_path, s.file_id, s.instant_time, s.file_name, s.size_bytes),
                *((len(s.logs), s.total_bytes - s.size_bytes) if logs else ()),
            )
            for s in slices_as_of(self._handle, as_of)
        ]
        counts = ["size_bytes", *(["logs", "log_bytes"] if logs else [])]
        columns = ["partition_path", "file_id", "instant_time", "file_name", *counts]
        types = dict.fromkeys(counts, "int64")
        return _listing(rows, columns, "no files: no rows are stored", types)


class EmptyListing(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    """A frame without rows that is printed as a sentence."""

    _metadata: Final = ["sentence"]  # what pandas asks of a subclass with an attribute
    sentence: str

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence}</p>"


def _listing(
    rows: Iterable[Sequence[object]],
    columns: list[str],
    nothing: str,
    types: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Return rows whose texts are Python's, as None is, in any version of pandas."""
    found = pd.DataFrame(rows, columns=columns, dtype=object).astype(types or {})
    if found.empty:
        found = EmptyListing(found)
        found.sentence = nothing
    return found


def _start(since: Moment) -> Moment:
    """Return where changes start as a moment, None for the start of the table."""
    if since is None:
        raise InvalidConfig(
            'since=None: give a commit or a time, or "earliest" for every row as an insert. A '
            "write without rows returns None: keep the position that you had before it"
        )
    return None if since == EARLIEST else since
