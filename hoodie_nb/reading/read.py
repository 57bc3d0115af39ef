"""`to_arrow`: the slices as of a moment, the columns returned, the scan of base files.

Files are read in parallel and cast to the table's schema, so slices written before a column was
added have nulls in it. A filter is applied to each piece of a file after that; see `filters` for
the files and row groups that it leaves out.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from hoodie_nb.actions.clean_records import cleaned_files, refuse_cleaned
from hoodie_nb.definition.keys import partition_values, paths_have_values
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.folding import LogMerge
from hoodie_nb.machine import threads
from hoodie_nb.reading.filters import RowFilter
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.storage.walk import Choice
from hoodie_nb.timeline.timeline import Instant
from hoodie_nb.types.avro_file import decode
from hoodie_nb.types.schema import META_COLUMNS
from hoodie_nb.view.file_groups import Commits, FileGroups, FileSlice, table_folders
from hoodie_nb.view.moments import parse_time
from hoodie_nb.view.read_handle import ReadHandle
from hoodie_nb.view.views import reading, steadily, until_true

_BATCH_ROWS = 65_536


def slices_as_of(
    table: ReadHandle, as_of: object = None, partitions: Sequence[str] | None = None
) -> FileGroups:
    """Return the slices of the snapshot as of a moment (None: now), of all or some partitions.

    Raises InvalidConfig if files of that snapshot were cleaned away, or if one of the `partitions`,
    given as paths, is not in the table.
    """
    table.reload()  # another engine may have upgraded the table and its timeline
    time17, paths = _asked(table, as_of, partitions)
    look = functools.partial(_listed, table, time17, paths)
    return steadily(table, look, lambda found: found.instants, whole=True)


def snapshot_as_of(
    table: ReadHandle,
    as_of: object = None,
    partitions: Sequence[str] | None = None,
    filters: object = None,
    *,
    read_optimized: bool = False,
) -> tuple[FileGroups, pa.Schema]:
    """Return the slices, as `slices_as_of`, and the table's columns as stored in base files.

    Both are those of one moment. Partitions in which `filters` keeps no row may be left out.
    `read_optimized`: the newest base files, without logs.
    """
    table.reload()
    time17, paths = _asked(table, as_of, partitions)
    whole = filters is None or time17 is not None or paths is not None

    def look() -> tuple[FileGroups, pa.Schema]:
        stored = stored_schema(table.schema)
        keep = None if whole else _folders_kept(table, filters, stored)
        return _listed(table, time17, paths, keep, logs=not read_optimized), stored

    return steadily(table, look, lambda found: found[0].instants, whole=True)


def _asked(
    table: ReadHandle, as_of: object, partitions: Sequence[str] | None
) -> tuple[str | None, list[str] | None]:
    """Return the time and the paths that a reader asks for (None: now, all)."""
    time17 = None if as_of is None else parse_time(as_of, table.config)
    return time17, _paths(partitions)


def _listed(
    table: ReadHandle,
    time17: str | None,
    paths: list[str] | None,
    keep: Choice | None = None,
    *,
    logs: bool = True,
) -> FileGroups:
    """Return the slices as of a time.

    While a restore is pending, some files of the newest commits that it has left may have been
    cleaned away, as for any earlier time. The snapshot of now is then the one that it goes back to.
    """
    listing = table.timeline.listing
    restores = listing.pending_of("restore")
    if time17 is None and restores and listing.commits:
        with contextlib.suppress(InvalidConfig):
            return _listed(table, listing.commit_times[-1], paths, logs=logs)
        time17 = _target(table, restores[0])
    found = without_cleaned(table, table.view(time17, keep, logs=logs).listed(paths))
    if time17 is not None:
        refuse_cleaned(table, found, time17, paths)
    _refuse_unknown(table, [path for path in paths or () if path not in found.slices])
    return found


def without_cleaned(table: ReadHandle, found: FileGroups) -> FileGroups:
    """Return the slices without missing logs that a clean has deleted.

    Of a table that was upgraded from version 6 and then copied, older logs may seem to belong to
    the newest slice.
    """
    missing = {log.path for piece in found for log in piece.logs if log.missing_of}
    cleaned = missing & cleaned_files(table)[0] if missing else missing
    if not cleaned:
        return found
    kept = dict[str, dict[str, FileSlice]]()
    for piece in found:
        left = replace(piece, logs=tuple(log for log in piece.logs if log.path not in cleaned))
        if left.paths:
            kept.setdefault(piece.partition_path, {})[piece.file_id] = left
    return replace(found, slices=kept)


def _target(table: ReadHandle, restore: Instant) -> str | None:
    """Return the newest commit that a pending restore leaves; None if its plan is damaged."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        plan = decode(table.timeline.read(restore.requested))
        oldest = min(undone["commitTime"] for undone in plan["instantsToRollback"])
        return max((t for t in table.timeline.listing.commit_times if t < oldest), default=None)
    return None


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


def _refuse_unknown(table: ReadHandle, paths: Sequence[str]) -> None:
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

    table: ReadHandle
    slices: Sequence[FileSlice]
    schema: pa.Schema
    filter: RowFilter | None = None
    merge: LogMerge = field(default_factory=LogMerge)

    @classmethod
    def of(
        cls,
        table: ReadHandle,
        columns: Sequence[str] | None = None,
        *,
        filters: object = None,
        partitions: Sequence[str] | None = None,
        as_of: object = None,
        meta: bool = True,
        read_optimized: bool = False,
    ) -> "Scan":
        """Return the scan of the table's snapshot; files that the filter excludes are left out."""
        found, stored = snapshot_as_of(
            table, as_of, partitions, filters, read_optimized=read_optimized
        )
        slices = [*found]
        config = table.config
        merge = merge_of(table, found, stored)
        schema = _selected(stored, columns, meta=meta)
        if filters is None:
            return cls(table, slices, schema, merge=merge)
        single = not config.composite_key and not config.unwritable
        row_filter = RowFilter.of(filters, stored, config.record_key[0] if single else None)
        values = {
            p: partition_values(p, config, stored) for p in {s.partition_path for s in slices}
        }
        out = {path for path, known in values.items() if row_filter.excludes_values(known)}
        slices = [s for s in slices if s.partition_path not in out]
        return cls(table, slices, schema, row_filter, merge)

    def rows(self, piece: FileSlice) -> Iterator[pa.Table]:
        """Yield the rows of one slice in pieces; the rows of a table without columns are lost.

        Raises UndoneMeanwhile if the file cannot be read because its commit was undone.
        """
        storage = self.table.storage
        with reading(storage, *piece.paths):
            yield from slice_rows(storage, piece, self.schema, self.filter, self.merge)

    def read(self) -> pa.Table:
        """Return all rows, in no defined order; files are read in parallel."""
        with ThreadPoolExecutor(threads()) as pool:
            parts = pool.map(lambda piece: [*self.rows(piece)], self.slices)
            return pa.concat_tables(
                [self.schema.empty_table(), *(p for some in parts for p in some)]
            )


def batches(table: ReadHandle) -> pa.RecordBatchReader:
    """Return a reader of the snapshot's rows, without meta columns.

    It opens one file at a time and holds a piece of it. If a commit is undone before the first
    batch, it reads again, with the same columns.
    """
    scan = Scan.of(table, meta=False)
    return pa.RecordBatchReader.from_batches(scan.schema, _batches(scan))


def _batches(first: Scan) -> Iterator[pa.RecordBatch]:
    later = (Scan.of(first.table, meta=False) for _ in itertools.repeat(None))
    scans = itertools.chain([first], later)

    def begin() -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        scan = replace(next(scans), schema=first.schema)
        rows = itertools.chain.from_iterable(map(scan.rows, scan.slices))
        found = (batch for piece in rows for batch in piece.to_batches(_BATCH_ROWS))
        return [*itertools.islice(found, 1)], found

    begun, others = until_true(begin)
    yield from begun
    yield from others


def merge_of(table: ReadHandle, found: FileGroups, stored: pa.Schema) -> LogMerge:
    """Return how the logs of a snapshot are merged, whose columns are `stored`."""
    config = table.config
    if not any(piece.logs for piece in found.unordered()):
        return LogMerge()
    ordered = config.merge_mode == "event_time" and config.ordering is not None
    if ordered and config.ordering not in stored.names:
        raise InvalidTable(
            f"{table.storage.root} has no column {config.ordering!r}, by which its log files are "
            "to be merged: restore the newest commit from a backup"
        )
    ordering = stored.field(config.ordering) if ordered else None
    counts = found.counted if config.version == "6" else None
    return LogMerge(ordering, int(config.version), counts)


def _folders_kept(table: ReadHandle, filters: object, schema: pa.Schema) -> Choice | None:
    """Return the choice of folders that may have rows that a filter keeps; None if all may.

    The paths of a table that this library has not written may be made in another way.
    """
    config = table.config
    if not paths_have_values(config, schema) or table.storage.entry(RULES) is None:
        return None
    row_filter = RowFilter.of(filters, schema)
    return lambda folders: row_filter.folders(folders, config, schema)


def to_arrow(
    table: ReadHandle, columns: Iterable[str] | None = None, **options: object
) -> pa.Table:
    """Return the snapshot as one Arrow table; see `Scan.of` for the options."""
    names = columns if columns is None or isinstance(columns, str) else [*columns]
    return until_true(lambda: Scan.of(table, names, **options).read())  # type: ignore[arg-type]


def _selected(schema: pa.Schema, columns: Sequence[str] | None, *, meta: bool) -> pa.Schema:
    if columns is None:
        return pa.schema([f for f in schema if meta or f.name not in META_COLUMNS])
    columns = [columns] if isinstance(columns, str) else list(columns)
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidConfig(f"columns {missing} are not in the table; it has {schema.names}")
    return pa.schema([schema.field(name) for name in columns])
