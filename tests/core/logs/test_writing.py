"""Writing log files: what was written is what is read, block by block."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from every_type import TYPES

from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.records import log_rows
from hoodie_nb.logs.writing import LogWriter, rows_in_log
from hoodie_nb.rows.columns import DELETE, DELETE_ALWAYS, OP
from hoodie_nb.storage.checksums import ChecksummedFile
from hoodie_nb.types.log_blocks import BlockType, Header, read_blocks
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

T = "20300101000000000"
EVERY_TYPE = pa.schema([(f"c{n}", kind) for n, (kind, _) in enumerate(TYPES.values())])
KEYS = ["k1", "ключ", "😀", ""]


def written(path: Path, schema: pa.Schema, *, rows=None, deletes=None, ordering=None) -> str:
    """Write a log file and return its path."""
    with ChecksummedFile(path.open("wb")) as sink:
        writer = LogWriter(sink, schema, table="t", instant_time=T, codec="snappy")
        for block in rows or ():
            writer.write_rows(block)
        if deletes is not None:
            writer.write_deletes(deletes, ordering)
    return str(path)


def deletes_of(kind: pa.DataType) -> pa.Table:
    """Return keyed deletes: by value, and without."""
    columns = {
        RECORD_KEY: pa.array(KEYS),
        PARTITION_PATH: pa.array(["a/b"] * 4),
        OP: pa.array([DELETE, DELETE_ALWAYS, DELETE, DELETE_ALWAYS], pa.int8()),
        "ts": pa.array([-5, None, 2**31 - 1, 7], kind),
    }
    return pa.table(columns)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_deletes_keep_the_value_and_type_of_their_order(tmp_path: Path, kind: pa.DataType) -> None:
    """Deletes by value have it in the column's type; the others have the int 0, as in Java."""
    schema = pa.schema([("id", pa.string()), ("ts", kind)])
    path = written(tmp_path / "log", schema, deletes=deletes_of(kind), ordering="ts")
    (block,) = read_blocks("log", path)
    assert (block.kind, block.instant_time) == (BlockType.DELETE, T)
    keyed = pa.schema([(RECORD_KEY, pa.string()), ("ts", kind)])
    found = log_rows(block, keyed, schema.field("ts")).to_pydict()
    assert found[RECORD_KEY] == KEYS
    none = 0 if kind == pa.int32() else None
    assert found["ts"] == [-5, none, 2**31 - 1, none]
    assert found[OP] == [DELETE, DELETE_ALWAYS, DELETE, DELETE_ALWAYS]


def test_rows_of_every_type_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Two blocks of rows, then one of deletes: each is found in its place."""
    stored = stored_schema(EVERY_TYPE)
    values = {f"c{n}": values for n, (_, values) in enumerate(TYPES.values())}
    records = [
        {RECORD_KEY: f"k{n}", "_hoodie_commit_time": T, **{c: v[n] for c, v in values.items()}}
        for n in range(3)
    ]
    rows = pa.Table.from_pylist(records, stored)
    path = written(tmp_path / "log", EVERY_TYPE, rows=[rows, rows.slice(1)])
    blocks = [*read_blocks("log", path)]
    assert [b.kind for b in blocks] == [BlockType.PARQUET_DATA] * 2
    assert blocks[0].header[Header.SCHEMA] == blocks[1].header[Header.SCHEMA]
    assert log_rows(blocks[0], stored, None).drop_columns(OP).to_pylist() == rows.to_pylist()
    assert [t.num_rows for t in rows_in_log("log", path)] == [3, 2]


def test_a_block_says_its_length_before_and_after(tmp_path: Path) -> None:
    """A reader that skips blocks by their lengths ends at the end of the file."""
    schema = pa.schema([("id", pa.string())])
    rows = pa.Table.from_pylist([{RECORD_KEY: "k"}], stored_schema(schema))
    content = Path(
        written(tmp_path / "log", schema, rows=[rows], deletes=deletes_of(pa.int64()))
    ).read_bytes()
    at = 0
    for _ in range(2):
        assert content[at : at + 6] == b"#HUDI#"
        after = int.from_bytes(content[at + 6 : at + 14], "big")
        end = at + 14 + after
        assert int.from_bytes(content[end - 8 : end], "big") == end - at - 8
        at = end
    assert at == len(content)
