"""A new file group's file grows while input arrives, and is not written a second time."""

import pyarrow as pa
import pyarrow.parquet as pq

import hoodie_nb as hn

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
