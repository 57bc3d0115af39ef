"""How columns are stored: compressed where that makes them smaller; every reader sees the rows."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.files import column_storage
from hoodie_nb.files.base_file import iterate_rows, open_base_file

COUNT = 33_000
INNER = pa.struct([("text", pa.string()), ("number", pa.int64())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("random", pa.string()),
        ("inner", INNER),
        ("list", pa.list_(pa.string())),
    ]
)


def table_of(folder: Path, rows: int, codec: str = "snappy") -> tuple[Table, pa.Table]:
    """Return a table with one file, and its rows: regular names, random texts."""
    texts = [secrets.token_urlsafe(30) for _ in range(rows)]
    columns = [
        pa.array(range(rows)),
        pa.array([f"name of {n}" for n in range(rows)]),
        pa.array(texts),
        pa.array([{"text": text, "number": 7} for text in texts], INNER),
        pa.array([[text] for text in texts]),
    ]
    given = pa.Table.from_arrays(columns, schema=SCHEMA)
    options = {"hoodie.parquet.compression.codec": codec}
    table = Table.create(folder / "t", schema=SCHEMA, record_key="id", options=options)
    table.upsert(given)
    return table, given


def codecs(table: Table) -> dict[str, str]:
    """Return the codec of each column in the table's only file."""
    (file,) = Path(table.path).glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column.compression for column in columns}


def test_columns_that_a_codec_does_not_shrink_are_not_compressed(tmp_path: Path) -> None:
    """Random texts (also inside other columns) are plain; others are not."""
    table, given = table_of(tmp_path, COUNT)
    found = codecs(table)
    plain = {"random", "inner.text", "list.list.element"}
    assert {name for name in plain if found.pop(name) == "UNCOMPRESSED"} == plain
    compressed = {"_hoodie_commit_seqno", "_hoodie_record_key", "id", "name"}
    assert {name for name in compressed if found[name] == "SNAPPY"} == compressed
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) == without_meta(given)


@pytest.mark.parametrize(
    ("rows", "codec", "wanted"), [(100, "snappy", "SNAPPY"), (COUNT, "none", "UNCOMPRESSED")]
)
def test_small_files_have_the_codec_of_the_table_throughout(
    tmp_path: Path, rows: int, codec: str, wanted: str
) -> None:
    """A file too small for a sample is compressed, and a table without a codec never."""
    table, given = table_of(tmp_path, rows, codec)
    assert {*codecs(table).values()} == {wanted}
    assert without_meta(table.to_arrow()) == without_meta(given)


def test_a_codec_that_shrinks_random_text_is_used_for_it(tmp_path: Path) -> None:
    """Zstandard stores six bits of such a character, so it compresses what snappy does not."""
    table, _ = table_of(tmp_path, COUNT, "zstd")
    assert codecs(table)["random"] == "ZSTD"


def test_a_column_that_is_empty_at_first_is_compressed_later() -> None:
    """The oldest rows come first in a file: that they lack a value decides nothing."""
    texts = [secrets.token_urlsafe(30) for _ in range(COUNT)]
    rows = pa.table({"late": pa.nulls(COUNT, pa.string()), "random": texts})
    assert column_storage.codecs(rows, "snappy", []) == {"late": "snappy", "random": "none"}


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_files_of_others_are_read_with_the_dictionaries_that_arrow_can_make(
    tmp_path: Path, encoding: str
) -> None:
    """A column in a delta encoding is read as texts, and one that is not there is no error."""
    texts = pa.table({"_hoodie_record_key": ["k1", "k2"], "part": ["p", "p"], "v": ["x", "x"]})
    path = str(tmp_path / "file.parquet")
    pq.write_table(texts, path, use_dictionary=["v"], column_encoding={"part": encoding})
    file = open_base_file(path, ["part", "v", "missing"])
    dictionary = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("part", dictionary), ("v", dictionary), ("missing", pa.string())])
    (found,) = iterate_rows(file, schema, path)
    assert found.schema == schema
    assert found.to_pylist() == [{"part": "p", "v": "x", "missing": None}] * 2
