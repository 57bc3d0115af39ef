"""Reading a snapshot without Spark: the latest slices as one Arrow table.

Files are read in parallel and cast to the table's schema, so slices written before a column was
added have nulls in it.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from hoodie_nb.clock import instant_ms, instant_time
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.table.base_file import read_rows, stored_schema
from hoodie_nb.table.file_groups import FileGroups, load_file_groups
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.schema import META_COLUMNS


def parse_time(moment: object) -> str:
    """Return the 17 digits of 17 digits, ISO text, a datetime (naive: UTC), a commit or instant."""
    from datetime import UTC, datetime

    moment = getattr(moment, "requested_time", moment)
    try:
        if isinstance(moment, str) and moment.isdigit():
            return instant_time(instant_ms(moment))
        when = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        when = None
    if not isinstance(when, datetime) or str(when) == "NaT":  # pandas: not a time, but a datetime
        raise InvalidConfig(
            f"{moment!r} is not a time: give 17 digits, ISO text, a datetime or a commit"
        )
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    seconds = int(when.replace(microsecond=0).timestamp())
    return instant_time(seconds * 1000 + when.microsecond // 1000)


def slices_as_of(
    table: TableHandle, as_of: object = None, partitions: Sequence[str] | None = None
) -> FileGroups:
    """Return the slices of the snapshot as of a moment (None: now), of all or some partitions."""
    table.reload()  # another engine may have upgraded the table and its timeline
    time17 = None if as_of is None else parse_time(as_of)
    partitions = [partitions] if isinstance(partitions, str) else partitions
    return load_file_groups(table.storage, table.timeline, as_of=time17, partitions=partitions)


def to_arrow(
    table: TableHandle,
    columns: Sequence[str] | None = None,
    as_of: object = None,
    *,
    meta: bool = True,
) -> pa.Table:
    """Return the snapshot as one Arrow table (row order is not defined)."""
    slices = slices_as_of(table, as_of)  # reads the properties first
    schema = _selected(stored_schema(table.schema), columns, meta=meta)
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        parts = pool.map(lambda s: read_rows(table.storage.fetch(s.path), schema), slices)
        return pa.concat_tables([schema.empty_table(), *parts])


def _selected(schema: pa.Schema, columns: Iterable[str] | None, *, meta: bool) -> pa.Schema:
    if columns is None:
        return pa.schema([f for f in schema if meta or f.name not in META_COLUMNS])
    columns = [columns] if isinstance(columns, str) else list(columns)
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidConfig(f"columns {missing} are not in the table; it has {schema.names}")
    return pa.schema([schema.field(name) for name in columns])
