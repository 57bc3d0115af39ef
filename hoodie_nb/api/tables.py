"""Methods of `Table` that write: `create`, `upsert`, `insert`, `delete`, `update`, `merge`.

`Table` writes batches: a Spark DataFrame is written by Spark tasks, other data (Arrow, pandas,
Polars, lists of dicts) in this process, without Spark. `write_stream` starts a `Job`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.api.definition import (
    Columns,
    arrow_schema_of,
    check_global,
    check_supported,
    defined,
)
from hoodie_nb.api.maintenance import TableMaintenance
from hoodie_nb.api.reads import TableReads
from hoodie_nb.buckets.pipelines import PIPELINES, Shape
from hoodie_nb.display import card
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import EventLog, log_events
from hoodie_nb.evidence.handle import TableHandle, create_table, open_table
from hoodie_nb.evidence.other_engines import refuse_foreign_logs
from hoodie_nb.intake.input import rows_of_keys
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.ahead import Ahead, Luck
from hoodie_nb.local.batch import Commit, completed, write_arrow
from hoodie_nb.local.conditional import change_rows
from hoodie_nb.local.merge_into import MergeInto
from hoodie_nb.local.settling import settled
from hoodie_nb.lock.lock import writing
from hoodie_nb.services.columns import add_columns
from hoodie_nb.storage.addresses import storage_at
from hoodie_nb.timeline.commits import OVERWRITES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Data: TypeAlias = Any  # a DataFrame, or what the class describes
Wait = str | float | None


class Table(TableReads, TableMaintenance):
    """A Hudi table on a local disk or object store; see `create` and `open`.

    | argument of `create` | meaning |
    | --- | --- |
    | record_key | the column or columns that identify a row within its partition |
    | partition_by | the column or columns that choose its folder; None: one folder |
    | ordering | of two rows with one key the greater value wins; None: the later write |
    | merge_mode | "event_time" (default with `ordering`), "commit_time", "partial" (null: keep) |
    | table_version | 6 (all engines), 8 or 9 (Hudi 1.x); default 6, or 9 if merge-on-read |
    | global_index | True: a key is in one partition of the table (docs/global-keys.md) |
    | table_type | "copy_on_write", or "merge_on_read" (docs/merge-on-read.md) |
    | if_exists | "error", "open" (it must agree; `options` are changed) or "replace" |
    | hive_style, url_encode | folders `column=value`; special characters as `%2F` |
    | options | file sizes, codec, bloom filter, cleaning: see `hoodie_nb.config` |

    `upsert`, `insert` and `delete` take a Spark DataFrame, which Spark writes, or an Arrow table,
    pandas DataFrame, list of dicts or anything with `__arrow_c_stream__`, which this process
    writes, holding all rows. Values get the table's types unchanged, or InvalidInput names column
    and row (docs/types.md). `events` records these calls.
    """

    def __init__(self, handle: TableHandle) -> None:
        if not isinstance(handle, TableHandle):
            raise InvalidConfig(f"a table is opened by hn.Table.open(path), here {handle!r}")
        self._handle = handle
        self.events = EventLog()
        self._luck = Luck()
        log_events(self.events, handle.config.name)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | StructType | str,
        record_key: str | Sequence[str],
        partition_by: str | Sequence[str] | None = None,
        ordering: str | None = None,
        if_exists: str = "error",
        name: str | None = None,
        table_version: int | None = None,
        hive_style: bool = False,
        url_encode: bool = False,
        merge_mode: str | None = None,
        global_index: bool = False,
        table_type: str = "copy_on_write",
        options: Mapping[str, object] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Table:
        """Create an empty table at `path`; for `storage_options` see docs/object-stores.md.

        `schema`: pyarrow, Spark StructType or DDL text (needs a running Spark session); see `Table`
        for the other arguments. Raises InvalidConfig, InvalidInput, InvalidTable.
        """
        config = defined(
            path,
            schema=schema,
            record_key=record_key,
            partition_by=partition_by,
            ordering=ordering,
            name=name,
            table_version=table_version,
            hive_style=hive_style,
            url_encode=url_encode,
            merge_mode=merge_mode,
            global_index=global_index,
            table_type=table_type,
        )
        storage = storage_at(path, storage_options)
        made = create_table(storage, config, options=options, if_exists=if_exists, holding=writing)
        return cls(made)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        drop_metadata_table: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> Table:
        """Open the table at `path`, or raise InvalidTable if there is none of a known version.

        `drop_metadata_table`: each write first drops a metadata table that Hudi's writer has built.
        """
        storage = storage_at(path, storage_options)
        return cls(open_table(storage, drops_metadata_table=drop_metadata_table))

    @property
    def path(self) -> str:
        """Return the table's folder."""
        return self._handle.storage.root

    @property
    def schema(self) -> pa.Schema:
        """Return the columns without Hudi's meta columns."""
        self._handle.reload()
        return self._handle.schema

    def __repr__(self) -> str:
        config = self._handle.config
        by = f" by {', '.join(config.partition_by)}" if config.partition_by else ""
        return f"<Table {config.name}: key {', '.join(config.record_key)}{by}, {self.path}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return text and HTML without the path: a shared notebook should not reveal it."""
        config = self._handle.config
        groups = self._handle.file_groups()
        commits = len(self._handle.timeline.completed_commits())
        facts: dict[str, object] = {
            "record key": ", ".join(config.record_key),
            "partitioned by": ", ".join(config.partition_by) or "nothing",
            "ordering": config.ordering or "none: the newest write wins",
            "columns": len(self.schema),
            "commits": commits,
            "file groups": sum(1 for _ in groups),
            "bytes": sum(piece.size_bytes for piece in groups),
        }
        listed = ", ".join(f"{k} {v}" for k, v in facts.items())
        title = f"Table {config.name}"
        return {"text/plain": f"<{title}: {listed}>", "text/html": card(title, facts)}

    # --- batch writes ---------------------------------------------------------------------------

    def upsert(
        self, data: Data, *, schema: str = "fixed", on_bad_record: str = "fail", wait: Wait = None
    ) -> Commit | None:
        """Insert or update rows by record key; None (`changes` refuses it) if `data` is empty.

        `schema="merge"`: columns of `data` that the table lacks are added, and integers, floats and
        decimals become wider, in the same commit (also in `insert`, `bulk_insert` and overwrites).

        `wait`: how long to wait for other processes that write the table, in seconds or as "10
        minutes" (None: a minute, on a store 130 seconds), before ConcurrentWriter is raised.
        `on_bad_record="quarantine"` sets rows aside that cannot be stored (see `quarantine`). All
        writes of rows have both options; `update` and `merge` have `wait` only.
        """
        return self._write(data, "upsert", on_bad_record, wait, schema)

    def insert(
        self, data: Data, *, schema: str = "fixed", on_bad_record: str = "fail", wait: Wait = None
    ) -> Commit | None:
        """Add rows without checking whether their keys exist (see `fsck`)."""
        return self._write(data, "insert", on_bad_record, wait, schema)

    def bulk_insert(
        self, data: Data, *, schema: str = "fixed", on_bad_record: str = "fail", wait: Wait = None
    ) -> Commit | None:
        """Add rows as `insert` does, but only to new files: none is rewritten (for a first load).

        The rows of each file are sorted by key. In this process a file has a key range of its own,
        which later upserts use to skip it; on Spark each task's files span all keys.
        """
        return self._write(data, "bulk_insert", on_bad_record, wait, schema)

    def insert_overwrite(
        self,
        data: Any,  # noqa: ANN401
        *,
        scope: str = "partitions",
        schema: str = "fixed",
        on_bad_record: str = "fail",
        wait: Wait = None,
    ) -> Commit | None:
        """Replace all rows of the partitions for which `data` has rows, or of the whole table.

        `scope`: "partitions" or "table" (also without rows, which empties it). Of several rows with
        one key one is written, as in `upsert`; rows marked as deleted only name their partition.
        The old files stay until they are cleaned. None if there is nothing to replace or write.
        """
        if scope not in OVERWRITES:
            raise InvalidConfig(f"scope={scope!r}: choose from {list(OVERWRITES)}")
        return self._write(data, OVERWRITES[scope], on_bad_record, wait, schema)

    def delete(
        self,
        data: Any = None,  # noqa: ANN401
        *,
        where: Any = None,  # noqa: ANN401
        on_bad_record: str = "fail",
        wait: Wait = None,
    ) -> Commit | None:
        """Delete the rows with these keys, or those for which a condition is true; None: no match.

        `data`: rows with the key columns; with an ordering column, only rows that are not newer are
        deleted. Without partitions and with one key column: also a list or array of keys.
        `where`: as `filters` in `to_arrow`: SQL text, an expression or lists (null is not true).
        Text or an expression as `data` is one, too. InvalidConfig if both or neither are given.
        """
        if (data is None) == (where is None):
            raise InvalidConfig("delete: give either rows or keys, or where=")
        if isinstance(data, str | pc.Expression):
            data, where = None, data
        if where is not None:
            check_supported(on_bad_record=on_bad_record)
            return self._change(where, None, wait)
        return self._write(rows_of_keys(data, self._handle.config), "delete", on_bad_record, wait)

    def update(
        self,
        *,
        where: Any,  # noqa: ANN401
        set: Mapping[str, Any],
        wait: Wait = None,
    ) -> Commit | None:
        """Set columns of the rows for which `where` is true; None if there are none.

        `set`, by column: SQL text or a pyarrow expression over the old row ("v + 1"), or a constant
        that is no text (None: null). A text is always SQL: write a string as "'text'" or
        `pc.scalar("text")`. Record key and partition columns cannot be set (InvalidConfig).
        """
        return self._change(where, set, wait)

    def add_columns(
        self, columns: Columns | StructType | str, *, wait: Wait = None
    ) -> Commit | None:
        """Add nullable columns behind the others, or make types wider; None if that is done.

        `columns`: names and types, as a dict, or as the schema in `create`. No file is rewritten:
        the columns are null in the rows that exist. A type of a column that the table has must be
        its own or a wider one (docs/types.md). Raises InvalidInput for other types, NOT NULL, names
        that differ only in case or are Hudi's, and wider record key, partition or ordering columns.
        """
        given = arrow_schema_of(columns)
        refuse_foreign_logs(self._handle)
        with self._writing(wait), self._handle.timeline.listed_once():
            return add_columns(self._handle, self.events, given)

    def merge(self, source: Data, *, on: str | Sequence[str] | None = None) -> MergeInto:
        """Start a merge of a source, whose clauses say what becomes of matching and other rows.

        `source`: what `upsert` writes in this process, with any further columns; held in memory.
        Rows match by record key (and partition, unless keys are global), which `on` may repeat; a
        key may occur once in the source.
        """
        return MergeInto(self._handle, source, on, self.events)

    def _change(self, where: object, values: Mapping[str, Any] | None, wait: Wait) -> Commit | None:
        handle = self._handle
        with self._writing(wait), handle.timeline.listed_once():
            handle.reload()
            return change_rows(handle, where, values, self.events)

    def _writing(
        self, wait: Wait, ahead: Ahead | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the table for one write; InvalidTable for a merge-on-read table of others."""
        refuse_foreign_logs(self._handle)
        meanwhile = ahead.write if ahead is not None and ahead.is_possible else None
        return writing(self._handle.storage, wait, meanwhile=meanwhile)

    def _write(
        self, data: Data, operation: str, on_bad_record: str, wait: Wait, schema: str = "fixed"
    ) -> Commit | None:
        check_supported(on_bad_record=on_bad_record, schema=schema)
        handle = self._handle
        keep = on_bad_record == "quarantine"
        merges = schema == "merge"
        ahead = Ahead(handle, data, operation, self.events, self._luck)
        with contextlib.closing(ahead), contextlib.ExitStack() as turn:
            turn.enter_context(self._writing(wait, None if keep or merges else ahead))
            turn.enter_context(handle.timeline.listed_once())
            handle.reload()
            if handle.timeline.listing.pending_of("rollback", "restore"):
                settled(handle, self.events)  # first: it may take columns from the table
            check_global(handle, operation)
            if hasattr(data, "sparkSession"):
                return self._write_dataframe(data, operation, keep, merges)
            written = ahead.commit()
            if written is not None:
                return completed(handle, written.instant)
            return write_arrow(
                handle, data, operation, self.events, quarantines=keep, merges=merges
            )

    def _write_dataframe(
        self, data: DataFrame, operation: str, keep: bool, merges: bool
    ) -> Commit | None:
        from hoodie_nb.api.session import require_classic
        from hoodie_nb.on_spark.driver import write_collected
        from hoodie_nb.on_spark.interrupts import cancel_on_interrupt
        from hoodie_nb.on_spark.stages import arrow_schema, receiver, write_on_spark

        require_classic(data.sparkSession)
        if data.isStreaming:
            raise InvalidConfig("the DataFrame is a stream: use hn.write_stream")
        handle = self._handle
        given = arrow_schema(data.schema)
        intake = Intake(handle.config, handle.schema, operation, quarantines=keep)
        intake = intake.merging(given) if merges else intake
        intake.check(given)
        if handle.config.global_keys:
            return write_collected(data, intake, handle, self.events)
        coordinator = settled(handle, self.events)
        tasks = data.sparkSession.sparkContext.defaultParallelism
        shape = Shape(PIPELINES["direct"], tasks=tasks)
        with (
            contextlib.closing(receiver(data, self.events)) as live,
            coordinator.committing(intake, shape) as work,
            cancel_on_interrupt(data.sparkSession.sparkContext),
        ):
            write_on_spark(data, work, live)
        return completed(handle, work.instant)
