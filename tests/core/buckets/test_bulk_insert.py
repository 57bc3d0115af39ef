"""A bulk insert adds rows to new files, sorted by key, and rewrites none."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
from tables import data_files, hudi_rows, schema_of, without_meta

from hoodie_nb import Table

TINY = {"hoodie.parquet.max.file.size": 40_000, "hoodie.parquet.small.file.limit": 30_000}


def rows(keys: range, value: int) -> pa.Table:
    """Return rows of one partition, in an order that is not that of their keys."""
    given = [{"id": f"k{n:05d}", "p": "x", "ts": value, "v": value} for n in keys]
    return pa.Table.from_pylist(given[1::2] + given[::2], schema_of())


def test_files_are_new_sorted_and_of_the_right_size(tmp_path: Path) -> None:
    """Small files are left alone, the new ones have one key range each; upserts find the keys."""
    table = Table.create(
        tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p", options=TINY
    )
    table.upsert(rows(range(3), 0))
    before = data_files(table.path)
    first = table.bulk_insert(rows(range(3, 4000), 1))
    assert first is not None
    assert (first.operation, first.inserts, first.updates) == ("bulk_insert", 3997, 0)
    assert first.files > 1
    files = data_files(table.path)
    assert before < files
    assert len(files) == 1 + first.files
    keys = table.to_arrow(["_hoodie_record_key", "_hoodie_file_name"]).to_pylist()
    own = [key for key in keys if key["_hoodie_record_key"] > "k00002"]
    spans = {}
    for name, group in itertools.groupby(own, key=lambda key: key["_hoodie_file_name"]):
        spans[name] = [key["_hoodie_record_key"] for key in group]
    assert all(found == sorted(found) for found in spans.values())
    ends = sorted((found[0], found[-1]) for found in spans.values())
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ends))
    table.upsert(rows(range(10, 20), 2))
    found = table.to_arrow()
    assert found.num_rows == 4000
    assert hudi_rows(table.path) == without_meta(found)
    assert table.fsck() == []


def test_keys_are_not_looked_up(tmp_path: Path) -> None:
    """A key that exists is stored again, as by `insert`, and `repair` removes the older row."""
    table = Table.create(tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p")
    table.bulk_insert(rows(range(3), 1))
    table.bulk_insert(rows(range(2), 2))
    assert table.to_arrow().num_rows == 5
    table.fsck(repair="deduplicate")
    assert sorted(table.to_arrow(["v"]).column(0).to_pylist()) == [1, 2, 2]
