"""The arms without Spark: an Arrow table goes into a table, in this process.

delta-rs runs as it comes, and tuned: without dictionaries, which cost it 15 % here. It writes
neither meta columns nor blooms, and does not sync. Its merge compares no `ts`; ours does.
"""

from pathlib import Path

import pyarrow as pa
from deltalake import ColumnProperties, DeltaTable, WriterProperties, write_deltalake

import hoodie_nb as hn

from .workload import KEY, ORDERING, PARTITION, SCHEMA

TUNED = WriterProperties(
    compression="SNAPPY",
    default_column_properties=ColumnProperties(dictionary_enabled=False),
)


class Ours:
    """`table.insert` and `table.upsert`; a merge-on-read table begins with an upsert, too."""

    def __init__(self, folder: Path, **options: str) -> None:
        self._table = our_table(folder, **options)
        self._load = self._table.upsert if options else self._table.insert

    def load(self, rows: pa.Table) -> None:
        """Write the base."""
        self._load(rows)

    def upsert(self, rows: pa.Table) -> None:
        """Upsert a batch."""
        self._table.upsert(rows)

    def rows(self) -> pa.Table:
        """Return the snapshot, from a table opened again."""
        return our_rows(self._table.path)


class Delta:
    """`write_deltalake` and `DeltaTable.merge`."""

    def __init__(self, folder: Path, *, tuned: bool) -> None:
        self._path, self._properties = folder / "table", TUNED if tuned else None

    def load(self, rows: pa.Table) -> None:
        """Write the base."""
        write_deltalake(
            self._path, rows, partition_by=[PARTITION], writer_properties=self._properties
        )

    def upsert(self, rows: pa.Table) -> None:
        """Merge a batch."""
        merge(self._path, rows, self._properties)

    def rows(self) -> pa.Table:
        """Return the newest version."""
        return delta_rows(self._path)


def our_table(folder: Path, **options: str) -> hn.Table:
    """Create our table with all its defaults but `options`."""
    return hn.Table.create(
        folder / "table",
        schema=SCHEMA,
        record_key=KEY,
        partition_by=PARTITION,
        ordering=ORDERING,
        **options,
    )


def our_rows(path: str) -> pa.Table:
    """Return what a reader of our table sees; refuse a table with problems."""
    table = hn.Table.open(path)
    assert table.fsck() == [], table.fsck()
    return table.to_arrow(meta=False)


def merge(path: Path, rows: pa.Table, properties: WriterProperties | None) -> None:
    """Upsert into a Delta table; the partition is part of the condition, so files are pruned."""
    merger = DeltaTable(path).merge(
        rows,
        predicate=f"t.{KEY} = s.{KEY} AND t.{PARTITION} = s.{PARTITION}",
        source_alias="s",
        target_alias="t",
        writer_properties=properties,
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def delta_rows(path: Path) -> pa.Table:
    """Return what a reader of the Delta table sees."""
    return DeltaTable(path).to_pyarrow_table()
