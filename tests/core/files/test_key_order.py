"""Key ranges in the two orders of text: Java compares UTF-16 code units, Arrow compares UTF-8.

Keys beyond the BMP (U+10000 on) sort before U+E000 to U+FFFF in the first order, after them in the
second. Each footer's range is written in one of the two, so a reader may trust neither alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import hudi_rows, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.files.base_file import MAX_KEY, MIN_KEY
from hoodie_nb.storage.storage import OURS

SCHEMA = schema_of()
ORDERS: dict[str, Callable[[str], bytes]] = {
    "UTF-16": lambda key: key.encode("utf-16-be"),
    "UTF-8": str.encode,
}
TEXT = st.text(
    st.sampled_from("a\u00e9\ud7ff\ue000\uffee\U00010000\U0001f600\U0010ffff"),
    min_size=1,
    max_size=4,
)


def create(path: Path, *, packed: bool = True) -> Table:
    """Return an empty table; with `packed` off, a key that is not found gets a new file group."""
    options = {} if packed else {"hoodie.parquet.small.file.limit": 0}
    return Table.create(
        path, schema=SCHEMA, record_key="id", partition_by="p", ordering="ts", options=options
    )


def rows(keys: list[str], ts: int) -> pa.Table:
    """Return one row per key in partition `x`."""
    return pa.Table.from_pylist([{"id": k, "p": "x", "ts": ts, "v": ts} for k in keys], SCHEMA)


def newest_file(table: Table) -> Path:
    """Return the one base file of the snapshot."""
    (name,) = table.file_groups()["file_name"]
    return Path(table.path, "x", name)


def set_range(file: Path, order: Callable[[str], bytes]) -> None:
    """Rewrite the file with the key range of a writer that uses that order, such as Java."""
    stored = pq.ParquetFile(file)
    keys = sorted(stored.read(["_hoodie_record_key"]).column(0).to_pylist(), key=order)
    entries = {**stored.metadata.metadata, MIN_KEY.encode(): keys[0], MAX_KEY.encode(): keys[-1]}
    content = stored.read()
    with pq.ParquetWriter(file, content.schema, store_schema=False) as writer:
        writer.write_table(content)
        writer.add_key_value_metadata(entries)


def forget_index(table: Table) -> None:
    """Delete the state index, so that lookups ask the files."""
    shutil.rmtree(Path(table.path, OURS, "index"), ignore_errors=True)


@pytest.mark.parametrize("order", ORDERS)
def test_ranges_of_either_order_are_read(new_folder: Callable[[], Path], order: str) -> None:
    """An upsert finds the keys of a file, whichever order its range was written in."""

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.lists(TEXT, min_size=2, max_size=6, unique=True))
    def check(keys: list[str]) -> None:
        table = create(new_folder() / "t", packed=False)
        table.upsert(rows(keys, 1))
        set_range(newest_file(table), ORDERS[order])
        forget_index(table)
        table = Table.open(table.path)
        assert [f.what for f in table.fsck() if "range" in f.what] == []
        commit = table.upsert(rows(keys, 2))
        assert commit is not None
        assert (commit.inserts, commit.updates) == (0, len(keys))
        assert hudi_rows(table.path) == without_meta(rows(keys, 2))

    check()


def test_the_range_we_write_is_right_in_both_orders(new_folder: Callable[[], Path]) -> None:
    """Every key of a file is inside its range in both orders; else the file has no range.

    Without a range Java asks the bloom of the file for every key.
    """

    @settings(max_examples=100, deadline=None, database=None)
    @given(st.lists(st.lists(TEXT, min_size=1, max_size=5), min_size=1, max_size=3))
    def check(batches: list[list[str]]) -> None:
        table = create(new_folder() / "t")
        for ts, keys in enumerate(batches):
            table.upsert(rows(keys, ts))
        stored = pq.ParquetFile(newest_file(table))
        found = {k.decode(): v.decode() for k, v in stored.metadata.metadata.items()}
        keys = stored.read(["_hoodie_record_key"]).column(0).to_pylist()
        ends = {(min(keys, key=order), max(keys, key=order)) for order in ORDERS.values()}
        written = (found[MIN_KEY], found[MAX_KEY]) if MIN_KEY in found else None
        assert written == (ends.pop() if len(ends) == 1 else None)
        assert (MAX_KEY in found) == (MIN_KEY in found)
        assert [str(f) for f in table.fsck()] == []

    check()


def test_a_range_that_excludes_keys_in_both_orders_is_a_finding(tmp_path: Path) -> None:
    """A range that excludes some keys in either order is a finding of fsck."""
    table = create(tmp_path / "t")
    table.upsert(rows(["a", "m", "z"], 1))
    set_range(newest_file(table), lambda key: {"m": b"0"}.get(key, key.encode()))
    assert [f.what for f in table.fsck() if "key range" in f.what] != []
