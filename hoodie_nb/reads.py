"""The reads of a `Table`: snapshots, changes, the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from hoodie_nb.runners.batch import Commit
from hoodie_nb.table import read
from hoodie_nb.table.changes import changes
from hoodie_nb.table.handle import TableHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Moment = str | datetime | Commit | None  # None: now


class TableReads:
    """What `Table` offers to readers."""

    _handle: TableHandle

    def snapshot(
        self,
        spark: SparkSession | None = None,
        as_of: Moment = None,
        partitions: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the snapshot as a Spark DataFrame, meta columns included.

        `as_of`: 17 digits (an instant's time), ISO text, a datetime (no zone: UTC) or a commit.
        """
        from hoodie_nb.runners.spark_read import snapshot
        from hoodie_nb.session import require_classic
        from hoodie_nb.session import spark as make_session

        session = spark or make_session()
        require_classic(session)
        return snapshot(self._handle, session, as_of, partitions)

    def to_arrow(
        self, columns: Sequence[str] | None = None, as_of: Moment = None, meta: bool = True
    ) -> pa.Table:
        """Return the snapshot as an Arrow table, without Spark; `as_of` as in `snapshot`."""
        return read.to_arrow(self._handle, columns, as_of, meta=meta)

    def to_pandas(
        self, columns: Sequence[str] | None = None, as_of: Moment = None, meta: bool = True
    ) -> pd.DataFrame:
        """Return the snapshot as a pandas DataFrame, without Spark; `as_of` as in `snapshot`."""
        return self.to_arrow(columns, as_of, meta).to_pandas()

    def changes(
        self, spark: SparkSession | None = None, *, since: Moment, until: Moment = None
    ) -> Any:  # noqa: ANN401 -- an Arrow table or a DataFrame
        """Return what changed after `since` up to `until` (None: now), in Arrow or on Spark.

        The columns of a snapshot, and `_change`: "insert", "update" or "delete" (the old row), on
        balance. Times as in `snapshot`; `since=None`: all rows, as inserts (beware: a write without
        rows returns None). Raises InvalidConfig if the files as of `since` were cleaned away,
        commits archived, or a commit that started before `until` has not completed.
        """
        if spark is None:
            return changes(self._handle, since, until)
        from hoodie_nb.runners.spark_read import spark_changes
        from hoodie_nb.session import require_classic

        require_classic(spark)
        return spark_changes(self._handle, spark, since, until)

    def timeline(self) -> pd.DataFrame:
        """Return the active timeline, one row per instant, oldest first."""
        self._handle.reload()
        found = self._handle.timeline.instants()
        rows = [(i.requested_time, i.action, str(i.state), i.completion_time) for i in found]
        return pd.DataFrame(rows, columns=["requested_time", "action", "state", "completion_time"])

    def history(self) -> pd.DataFrame:
        """Return the completed commits with what they wrote, oldest first."""
        self._handle.reload()
        commits = [Commit.of(self._handle, i) for i in self._handle.timeline.completed_commits()]
        return pd.DataFrame(map(astuple, commits), columns=[f.name for f in fields(Commit)])

    def file_groups(self, as_of: Moment = None) -> pd.DataFrame:
        """Return the file slices of the snapshot, one row per file group."""
        rows = [
            (s.partition_path, s.file_id, s.instant_time, s.file_name, s.size_bytes)
            for s in read.slices_as_of(self._handle, as_of)
        ]
        columns = ["partition_path", "file_id", "instant_time", "file_name", "size_bytes"]
        return pd.DataFrame(rows, columns=columns)
