"""A new file group's file grows while input arrives, and is not written a second time."""

import pyarrow as pa
import pyarrow.parquet as pq

import hoodie_nb as hn
from hoodie_nb.files.base_file import ROW_GROUP

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64())])


def upserted(path, ids):
    """Upsert ids in tiny flushes into an empty table; return it and its one file's path."""
    options = {"write.batch.size": 1, "write.task.max.size": "4 KB"}
    table = hn.Table.create(path, schema=SCHEMA, record_key="id", ordering="ts", options=options)
    rows = pa.table({"id": ids, "ts": pa.array(range(len(ids)), pa.int64())})
    table.upsert(rows)
    (name,) = table.file_groups()["file_name"]
    return table, path / name


def test_what_was_flushed_is_not_written_again(tmp_path):
    """If all rows were flushed, the row groups of the flushes are kept, not rewritten."""
    table, file = upserted(tmp_path / "t", [f"k{n:04d}" for n in range(500)])
    flushed = table.events.records("buffer_flushed")
    assert len(flushed) > 2 and all(event.values["appended"] for event in flushed)
    assert pq.ParquetFile(file).metadata.num_row_groups == len(flushed)
    assert len(table.to_arrow()) == 500 and table.fsck() == []


def test_a_flush_of_whole_row_groups_adds_no_empty_one(tmp_path):
    """A million rows for one file arrive in flushes that fill their row groups; all are there."""
    count = 1_000_000
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", ordering="ts")
    ids = pa.array(range(10**7, 10**7 + count), pa.int64()).cast(pa.string())
    table.insert(pa.table({"id": ids, "ts": pa.array(range(count), pa.int64())}))
    rows = [event.values["rows"] for event in table.events.records("buffer_flushed")]
    assert any(number % ROW_GROUP == 0 for number in rows)
    (name,) = table.file_groups()["file_name"]
    metadata = pq.ParquetFile(tmp_path / "t" / name).metadata
    groups = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert sum(groups) == count and min(groups) > 0
    assert table.to_arrow(["id"])["id"].combine_chunks().sort() == ids
