"""Reading a snapshot: the rows of its slices, as Arrow tables; Spark's tasks use it, too.

Files are read in parallel and cast to the table's schema, so slices written before a column was
added have nulls in it. A filter is applied to each piece of a file after that; see `filters` for
the files and row groups that it leaves out.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

import pyarrow as pa

from hoodie_nb.clock import instant_ms, instant_time
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.table.base_file import iterate_rows, open_base_file, stored_schema
from hoodie_nb.table.clean_records import KEEP_MORE, cleans, refuse_cleaned
from hoodie_nb.table.file_groups import Commits, FileGroups, FileSlice, table_folders
from hoodie_nb.table.filters import RowFilter
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.keys import partition_values, paths_have_values
from hoodie_nb.table.partitions import Partitions
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.rules import PATH as RULES
from hoodie_nb.table.schema import META_COLUMNS
from hoodie_nb.table.timeline import steadily
from hoodie_nb.table.walk import Choice

_BATCH_ROWS, _ATTEMPTS = 65_536, 10


def parse_time(moment: object, config: TableConfig) -> str:
    """Return the 17 digits, in the zone of the table's timeline, of a moment.

    Digits and the time of a commit or instant are those of the timeline already. ISO text, a date
    (its start) or a datetime without a zone is local time.
    """
    moment = getattr(moment, "requested_time", moment)
    try:
        if isinstance(moment, str) and moment.isdigit():
            return instant_time(instant_ms(moment))
        when = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        if isinstance(when, datetime) and str(when) != "NaT":  # pandas: not a time, but a datetime
            whole = datetime.combine(when.date(), when.timetz())  # pandas: naive is UTC there
            return _digits(whole, config)
        if isinstance(when, date) and not isinstance(when, datetime):
            return _digits(datetime.combine(when, time()), config)
    except (ValueError, OverflowError):
        pass
    raise InvalidConfig(
        f"{moment!r} is not a time: give 17 digits, ISO text, a date, a datetime or a commit"
    )


def _digits(when: datetime, config: TableConfig) -> str:
    there = when.astimezone(None if config.local_time else UTC)
    return f"{there.year:04}{there:%m%d%H%M%S}{there.microsecond // 1000:03}"


def slices_as_of(
    table: TableHandle,
    as_of: object = None,
    partitions: Sequence[str] | None = None,
    filters: object = None,
) -> FileGroups:
    """Return the slices of the snapshot as of a moment (None: now), of all or some partitions.

    Partitions in which `filters` keeps no row may be left out.

    Raises InvalidConfig if files of that snapshot were cleaned away, or if one of the `partitions`,
    given as paths, is not in the table.
    """
    table.reload()  # another engine may have upgraded the table and its timeline
    time17 = None if as_of is None else parse_time(as_of, table.config)
    paths = _paths(partitions)
    whole = filters is None or time17 is not None or paths is not None
    keep = None if whole else _folders_kept(table, filters)
    return steadily(lambda: _listed(table, time17, paths, keep))


def _listed(
    table: TableHandle, time17: str | None, paths: list[str] | None, keep: Choice | None
) -> FileGroups:
    for _ in range(_ATTEMPTS):
        before = cleans(table)
        found = Partitions(table.storage, table.timeline, time17, keep).listed(paths)
        if time17 is not None:
            refuse_cleaned(table, found, time17, paths)
        if cleans(table) == before:  # else what is deleted may have been newest when we began
            _refuse_unknown(table, [path for path in paths or () if path not in found.slices])
            return found
    raise InvalidTable(
        f"{table.storage.root} was cleaned {_ATTEMPTS} times while it was listed: {KEEP_MORE}"
    )


def _paths(partitions: Sequence[str] | None) -> list[str] | None:
    """Return each path once, or raise InvalidConfig for one that is none, such as `a/` for `a`."""
    if partitions is None:
        return None
    paths = [partitions] if isinstance(partitions, str) else [*dict.fromkeys(partitions)]
    for path in paths:
        if not isinstance(path, str) or (path and {"", ".", ".."} & {*path.split("/")}):
            raise InvalidConfig(
                f"`partitions` has {path!r}, which is not a partition path: give paths as text, "
                "such as '2024-01-01' or 'country=de/day=1'"
            )
    return paths


def _refuse_unknown(table: TableHandle, paths: Sequence[str]) -> None:
    if paths:
        commits = Commits.of(table.timeline)
        known = sorted(f.path for f in table_folders(table.storage, commits) if f.is_partition)
        missing = [path for path in paths if path not in known]
        if missing:
            more = f" and {len(known) - 20} more" if len(known) > 20 else ""
            raise InvalidConfig(
                f"partitions {missing} are not in the table at {table.storage.root}; it has "
                f"{known[:20]}{more}"
            )


@dataclass(frozen=True, slots=True)
class Scan:
    """A read of a snapshot: its files, the columns to return, and the rows (None: all)."""

    table: TableHandle
    slices: Sequence[FileSlice]
    schema: pa.Schema
    filter: RowFilter | None = None

    @classmethod
    def of(
        cls,
        table: TableHandle,
        columns: Iterable[str] | None = None,
        *,
        filters: object = None,
        partitions: Sequence[str] | None = None,
        as_of: object = None,
        meta: bool = True,
    ) -> "Scan":
        """Return the scan of the table's snapshot; files that the filter excludes are left out."""
        slices = [*slices_as_of(table, as_of, partitions, filters)]  # reads the properties first
        config, stored = table.config, stored_schema(table.schema)
        schema = _selected(stored, columns, meta=meta)
        if filters is None:
            return cls(table, slices, schema)
        single = not config.composite_key and not config.unwritable
        row_filter = RowFilter.of(filters, stored, config.record_key[0] if single else None)
        values = {
            p: partition_values(p, config, stored) for p in {s.partition_path for s in slices}
        }
        out = {path for path, known in values.items() if row_filter.excludes_values(known)}
        return cls(table, [s for s in slices if s.partition_path not in out], schema, row_filter)

    def rows(self, piece: FileSlice) -> Iterator[pa.Table]:
        """Yield the rows of one file in pieces; the rows of a table without columns are lost."""
        return file_rows(self.table.storage.fetch(piece.path), self.schema, self.filter)

    def read(self) -> pa.Table:
        """Return all rows, in no defined order; files are read in parallel."""
        with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
            parts = pool.map(lambda piece: [*self.rows(piece)], self.slices)
            return pa.concat_tables(
                [self.schema.empty_table(), *(p for some in parts for p in some)]
            )

    def batches(self) -> pa.RecordBatchReader:
        """Return a reader that opens one file at a time and holds a piece of it."""
        found = (
            batch
            for piece in self.slices
            for rows in self.rows(piece)
            for batch in rows.to_batches(_BATCH_ROWS)
        )
        return pa.RecordBatchReader.from_batches(self.schema, found)


def _folders_kept(table: TableHandle, filters: object) -> Choice | None:
    """Return the choice of folders that may have rows that a filter keeps; None if all may.

    The paths of a table that this library has not written may be made in another way.
    """
    config, schema = table.config, stored_schema(table.schema)
    if not paths_have_values(config, schema) or table.storage.entry(RULES) is None:
        return None
    row_filter = RowFilter.of(filters, schema)
    return lambda folders: row_filter.folders(folders, config, schema)


def file_rows(path: str, schema: pa.Schema, kept: RowFilter | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a base file that the filter keeps, in pieces, with the given columns."""
    file = open_base_file(path)
    if kept is None:
        yield from iterate_rows(file, schema, path)
        return
    wanted = pa.schema({field.name: field for field in (*schema, *kept.needs)}.values())
    for rows in iterate_rows(file, wanted, path, kept.row_groups(file, path)):
        yield kept.kept(rows).select(schema.names)


def to_arrow(
    table: TableHandle, columns: Iterable[str] | None = None, **options: object
) -> pa.Table:
    """Return the snapshot as one Arrow table; see `Scan.of` for the options."""
    return Scan.of(table, columns, **options).read()  # type: ignore[arg-type] # checked there


def _selected(schema: pa.Schema, columns: Iterable[str] | None, *, meta: bool) -> pa.Schema:
    if columns is None:
        return pa.schema([f for f in schema if meta or f.name not in META_COLUMNS])
    columns = [columns] if isinstance(columns, str) else list(columns)
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidConfig(f"columns {missing} are not in the table; it has {schema.names}")
    return pa.schema([schema.field(name) for name in columns])
