"""Partial updates, judged by Java: one table each, then each engine onto the other's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hoodie_nb import Table

from .client import BLOOM, Judge
from .readers import agree, cells

pytestmark = pytest.mark.oracle
_WRITE = "hoodie.datasource.write."
OPTIONS = BLOOM | {
    f"{_WRITE}recordkey.field": "id",
    f"{_WRITE}partitionpath.field": "p",
    f"{_WRITE}precombine.field": "ts",
    f"{_WRITE}payload.class": "org.apache.hudi.common.model.PartialUpdateAvroPayload",
}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("a", pa.int64()),
        ("b", pa.string()),
        ("l", pa.list_(pa.int64())),
    ]
)


def batch(draw: random.Random) -> pa.Table:
    """Return upserts of some of 40 keys, each once, with nulls in any column but the key's."""

    def row(key: int) -> dict[str, Any]:
        return {
            "id": f"k{key}",
            "p": "xy"[key % 2],
            "ts": draw.randrange(30),
            "a": draw.choice([None, draw.randrange(100)]),
            "b": draw.choice([None, "", "text"]),
            "l": draw.choice([None, [], [1, draw.randrange(9)]]),
        }

    return pa.Table.from_pylist([row(key) for key in draw.sample(range(40), 25)], SCHEMA)


def make_table(path: Path) -> Table:
    """Return an empty table of ours with merge mode `partial`."""
    return Table.create(
        path,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        merge_mode="partial",
    )


def test_partial_updates_as_java_makes_them(judge: Judge, tmp_path: Path) -> None:
    """The same upserts, by Java into its table and by us into ours, give the same rows."""
    draw, ours, path = random.Random(5), make_table(tmp_path / "ours"), tmp_path / "java"
    for number in range(5):
        rows = batch(draw)
        ours.upsert(rows)
        judge.write(path, rows, OPTIONS, mode="append" if number else "overwrite")
        theirs = Table.open(path)
        assert cells(ours.to_arrow(), meta=False) == cells(theirs.to_arrow(), meta=False)
    agree(judge, ours)


def test_partial_updates_of_both_in_one_table(judge: Judge, tmp_path: Path) -> None:
    """We and Java write a table in turn; it ends with the same rows as a table of ours alone."""
    draw, alone, path = random.Random(6), make_table(tmp_path / "alone"), tmp_path / "java"
    shared = make_table(tmp_path / "shared")
    for number in range(6):
        rows = batch(draw)
        alone.upsert(rows)
        if number % 2:
            Table.open(path).upsert(rows)
            judge.write(shared.path, rows, OPTIONS)
        else:
            judge.write(path, rows, OPTIONS, mode="append" if number else "overwrite")
            Table.open(shared.path).upsert(rows)
        for table in (Table.open(path), Table.open(shared.path)):
            assert table._handle.config.merge_mode == "partial"
            assert cells(table.to_arrow(), meta=False) == cells(alone.to_arrow(), meta=False)
