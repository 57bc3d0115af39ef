"""Three readers of one table: ours, Java's and the Rust one, each giving the same form of rows."""

from __future__ import annotations

from typing import Any

import hudi
import pyarrow as pa
from core.replay import settled

from hoodie_nb import Table
from hoodie_nb.types.schema import META_COLUMNS

from .client import Judge
from .tables import Model

Cells = list[dict[str, Any]]
_KEY, _PATH, _TIME = META_COLUMNS[2], META_COLUMNS[3], META_COLUMNS[0]
INCREMENTAL = "hoodie.datasource.query.type"
BEGIN, END = "hoodie.datasource.read.begin.instanttime", "hoodie.datasource.read.end.instanttime"


def cells(table: pa.Table, *, meta: bool = True) -> Cells:
    """Return the rows as dicts in a fixed order, with Hudi's meta columns or without."""
    found = [settled(row) for row in table.to_pylist()]
    found = sorted(found, key=lambda row: (row[_PATH], row[_KEY]))
    if meta:
        return found
    plain = [{k: v for k, v in row.items() if k not in META_COLUMNS} for row in found]
    return sorted(plain, key=lambda row: row["id"])


def ours(table: Table, as_of: str | None = None, since: str | None = None) -> Cells:
    """Return what this library reads; `since` is exclusive."""
    found = cells(table.to_arrow(as_of=as_of))
    return [row for row in found if since is None or row[_TIME] > since]


def java(judge: Judge, table: Table, as_of: str | None = None, since: str | None = None) -> Cells:
    """Return what Java reads."""
    if since is not None:
        until = {END: as_of} if as_of else {}
        options = {INCREMENTAL: "incremental", BEGIN: since, **until}
    else:
        options = {"as.of.instant": as_of} if as_of else {}
    return cells(judge.read(table.path, **options))


def rust(table: Table, as_of: str | None = None, since: str | None = None) -> Cells:
    """Return what hudi-rs reads, from a new table object, since it keeps the timeline."""
    options = hudi.HudiReadOptions()
    if since is not None:
        options = options.with_query_type(hudi.HudiQueryType.Incremental)
        options = options.with_start_timestamp(since)
        options = options.with_end_timestamp(as_of) if as_of else options
    elif as_of is not None:
        options = options.with_as_of_timestamp(as_of)
    batches = hudi.HudiTableBuilder.from_base_uri(table.path).build().read(options)
    return cells(pa.Table.from_batches(pa.record_batch(b) for b in batches)) if batches else []


def agree(judge: Judge, table: Table, *, rust_too: bool = True) -> Cells:
    """Assert that all readers see the same snapshot, meta columns included; return it without."""
    seen = ours(table)
    assert java(judge, table) == seen
    assert not rust_too or rust(table) == seen
    return cells(table.to_arrow(), meta=False)


def check(judge: Judge, table: Table, model: Model) -> None:
    """Assert that all readers return the model's rows, and that no leftovers exist."""
    seen = agree(judge, table, rust_too=not model.layout.local_times)
    assert seen == model.cells()
    assert table.fsck() == []


def agree_on_the_past(judge: Judge, table: Table) -> list[int]:
    """Assert that all readers see the same as of each commit; return the numbers of rows."""
    counts = []
    for as_of in table.history()["requested_time"]:
        seen = ours(table, as_of)
        assert java(judge, table, as_of) == seen
        assert rust(table, as_of) == seen
        counts.append(len(seen))
    return counts
