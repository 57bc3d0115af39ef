"""Changes replayed onto an older snapshot, for tests: the result must be the newer snapshot."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.reading.changes import changes
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.types.schema import FILE_NAME, PARTITION_PATH, RECORD_KEY

Row = dict[str, Any]


def listed(rows: pa.Table) -> list[Row]:
    """Return rows with meta columns, but without the name of their file, which merges change."""
    found = rows.drop_columns(FILE_NAME).to_pylist()
    return [settled(row) for row in found]


def settled(value: Any) -> Any:
    """Return a value with the entries of maps in order of their keys: Java does not keep theirs."""
    if isinstance(value, dict):
        return {name: settled(inner) for name, inner in value.items()}
    if isinstance(value, list):
        found = [settled(inner) for inner in value]
        pairs = found and all(isinstance(inner, tuple) for inner in found)
        return sorted(found, key=lambda pair: pair[0]) if pairs else found
    return tuple(map(settled, value)) if isinstance(value, tuple) else value


def identity(row: Row) -> tuple[str, str]:
    """Return partition path and key."""
    return row[PARTITION_PATH], row[RECORD_KEY]


def replayed(before: list[Row], changed: pa.Table) -> Counter[str]:
    """Return the rows after the changes, counted; each change must fit the rows before it.

    A deleted row must be there exactly as it was; an update replaces the row of its key.
    """
    rows = Counter(map(repr, before))
    of_key: dict[tuple[str, str], list[Row]] = {}
    for row in before:
        of_key.setdefault(identity(row), []).append(row)
    for row in listed(changed):
        kind = row.pop("_change")
        if kind == "delete":
            assert rows[repr(row)] > 0, f"deleted, but never there: {row}"
            rows[repr(row)] -= 1
            continue
        if kind == "update":
            (old,) = of_key[identity(row)]  # keys that have several rows are never updated
            rows[repr(old)] -= 1
        else:
            assert kind == "insert"
        rows[repr(row)] += 1
    return +rows


def check_replay(table: TableHandle, since: str | None, until: str | None) -> Counter[str]:
    """Assert that the changes lead from one snapshot to the other; return how many of each kind."""
    before = listed(to_arrow(table, as_of=since)) if since else []
    changed = changes(table, since, until)
    after = listed(to_arrow(table, as_of=until))
    assert replayed(before, changed) == Counter(map(repr, after)), f"from {since} to {until}"
    known, late = Counter(map(identity, before)), Counter(map(identity, after))
    new = {identity(row) for row in changed.to_pylist() if row["_change"] == "insert"}
    several = {key for key in new if max(known[key], late[key]) > 1}  # inserts add rows to a key
    assert not new & known.keys() - several, "an insert of a key that was there"
    return Counter(changed["_change"].to_pylist())
