"""Which entry of a key wins between logs and base, as Java decides; hudi-rs must agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from log_writer import (
    SCHEMA,
    LoggedSlice,
    avro_block,
    delete_block,
    parquet_block,
    rollback_block,
    times,
)
from tables import hudi_table

BLOCKS = {"avro": avro_block, "parquet": parquet_block}
BASE = {"id": "a", "ts": 4, "v": 0}
OTHER = {"id": "z", "ts": 4, "v": 0}  # a table without rows is None in hudi-rs


def theirs(table: LoggedSlice) -> list[dict[str, Any]]:
    """Return the rows that hudi-rs reads."""
    found = hudi_table(table.root)
    assert found is not None
    return sorted(found.select(SCHEMA.names).to_pylist(), key=lambda row: row["id"])


def ours(table: LoggedSlice) -> list[dict[str, Any]]:
    """Return the rows that `slice_rows` yields."""
    return sorted(table.read(), key=lambda row: row["id"])


def apply(table: LoggedSlice, events: list[tuple[str, Any]], kind: str) -> None:
    """Add a deltacommit per event on key `a`: `row` or `delete`, and the ordering value."""
    for number, (time17, (what, value)) in enumerate(zip(times(len(events)), events, strict=True)):
        if what == "row":
            row = table.row(time17, {"id": "a", "ts": value, "v": number + 1})
            content = BLOCKS[kind](time17, [row], SCHEMA)
        else:
            content = delete_block(time17, [("a", value)], "LongWrapper")
        table.log(time17, content)
        table.commit(time17)


CASES: dict[str, tuple[list[tuple[str, Any]], int | None]] = {  # the number of the event that shows
    "a newer row": ([("row", 5)], 1),
    "an equal row": ([("row", 4)], 1),
    "a late row": ([("row", 3)], 0),
    "a newer delete": ([("delete", 5)], None),
    "an equal delete": ([("delete", 4)], None),
    "a late delete": ([("delete", 3)], 0),
    "a delete without value": ([("delete", None)], None),
    "a late row after a delete": ([("delete", 6), ("row", 5)], None),
    "a newer row after a delete": ([("delete", 6), ("row", 7)], 2),
    "a row after a delete without value": ([("delete", None), ("row", 5)], 2),
    # the next two: what a delete without value removed, a late delete does not restore
    "a late delete after one without value": ([("delete", None), ("delete", 1)], None),
    "a delete without value after a late one": ([("delete", 1), ("delete", None)], None),
    "a row after both deletes": ([("delete", None), ("delete", 9), ("row", 5)], 3),
    "a late row after a delete without value": ([("delete", None), ("row", 3)], 0),
    "rows out of order": ([("row", 9), ("row", 5), ("row", 9), ("row", 1)], 3),
}


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("name", CASES)
def test_event_time(tmp_path: Path, name: str, version: int) -> None:
    """Each line of the table of rules holds, and hudi-rs reads the same."""
    events, shown = CASES[name]
    table = LoggedSlice(tmp_path, [BASE, OTHER], version)
    apply(table, events, "parquet")
    found = [row["v"] for row in ours(table) if row["id"] == "a"]
    assert found == ([] if shown is None else [shown])
    assert ours(table) == theirs(table)


def expected(
    base: dict[str, tuple[int, int]], logs: dict[str, list[tuple[str, Any, int]]], *, by_event: bool
) -> dict[str, int]:
    """Return the value of each key, one entry after the other, as Java's merger does."""
    rows = {}
    for key in {*base, *logs}:
        entry: tuple[str, Any, int] | None = None
        for new in logs.get(key, []):
            what, value, _ = new
            always = entry is not None and entry[0] == "delete" and entry[1] is None
            if not by_event or entry is None:
                entry = new
            elif always:
                entry = new if what == "row" else entry
            elif value is None or value >= entry[1]:
                entry = new
        stored = base.get(key)
        compared = by_event and stored is not None and entry is not None and entry[1] is not None
        if compared and entry[1] < stored[0]:
            entry = None
        if entry is None and stored is not None:
            rows[key] = stored[1]
        elif entry is not None and entry[0] == "row":
            rows[key] = entry[2]
    return rows


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("seed", range(12))
def test_random_histories(tmp_path: Path, seed: int, version: int) -> None:
    """Random logs over a base, rolled back ones among them, read as in a dict and in hudi-rs."""
    rng = random.Random(seed)
    by_event = seed % 3 > 0
    keys = [f"k{number}" for number in range(8)]
    base = {key: (rng.randrange(6), -number - 1) for number, key in enumerate(keys[:5])}
    rows = [{"id": key, "ts": ts, "v": v} for key, (ts, v) in base.items()]
    table = LoggedSlice(tmp_path, [*rows, OTHER], version, "ts" if by_event else None)
    logs: dict[str, list[tuple[str, Any, int]]] = {}
    for number, time17 in enumerate(times(10)):
        undone = rng.random() < 0.25
        content = b""
        entries: list[tuple[str, str, Any, int]] = []
        for part in range(rng.randrange(1, 3)):
            names = rng.sample(keys, rng.randrange(1, 5))
            if rng.random() < 0.6:
                new = [(k, "row", rng.randrange(6), 100 * number + 10 * part) for k in names]
                given = [table.row(time17, {"id": k, "ts": t, "v": v}) for k, _, t, v in new]
                content += BLOCKS[rng.choice(["avro", "parquet"])](time17, given, SCHEMA)
            else:
                new = [(k, "delete", rng.choice([None, rng.randrange(6)]), 0) for k in names]
                content += delete_block(time17, [(k, t) for k, _, t, _ in new], "LongWrapper")
            entries += new
        table.log(time17, content)
        if undone and version == 6:
            if rng.random() < 0.5:  # completed, and undone by a command; else only not committed
                table.commit(time17)
                table.log(time17, rollback_block(time17, time17))
            continue
        if undone:  # the view does not give such a file to the slice
            table.logs.pop()
            continue
        table.commit(time17)
        for key, what, value, v in entries:
            logs.setdefault(key, []).append((what, value, v))
    wanted = expected(base, logs, by_event=by_event)
    assert {row["id"]: row["v"] for row in ours(table)} == {**wanted, "z": 0}
    assert ours(table) == theirs(table)


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_rollback_block_removes_what_came_before_it(tmp_path: Path, place: str) -> None:
    """Blocks of the same instant that come after the command count."""
    table = LoggedSlice(tmp_path, [BASE, OTHER], 6)
    (time17,) = times(1)
    row = table.row(time17, {"id": "a", "ts": 5, "v": 1})
    parts = [parquet_block(time17, [row], SCHEMA), rollback_block(time17, time17)]
    for part in parts if place == "before" else reversed(parts):
        table.log(time17, part)
    table.commit(time17)
    assert ours(table)[0]["v"] == (0 if place == "before" else 1)
    assert ours(table) == theirs(table)
