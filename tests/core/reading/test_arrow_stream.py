"""A table as an Arrow stream: what other programs read without our help (docs/reading.md)."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from counted_storage import CountedStorage
from tables import canonical, without_meta

from hoodie_nb import Table

PAGE = Path(__file__).parents[3] / "docs" / "reading.md"
SCHEMA = pa.schema({"id": pa.string(), "p": pa.string(), "n": pa.int64()})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of three files."""
    made = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    made.upsert(pa.table([["a", "b", "c"], ["x", "y", "z"], [1, 2, None]], schema=SCHEMA))
    return made


def snippet(word: str) -> str:
    """Return the one example of the page that contains a word."""
    (found,) = [t for t in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if word in t]
    return found


def test_polars_and_duckdb_read_a_table_as_the_page_shows(table: Table) -> None:
    """Both get every row of the snapshot from the object itself, and another table, too."""
    names = {"board": table}
    exec(compile(snippet("import duckdb"), str(PAGE), "exec"), names)
    assert without_meta(names["frame"].to_arrow()) == without_meta(table.to_arrow())
    assert names["frame"].columns == table.schema.names
    assert names["rows"] == [("x", 1), ("y", 2), ("z", None)]
    table.upsert(pa.table([["d"], ["z"], [4]], schema=SCHEMA))
    assert len(pl.DataFrame(table)) == len(_counted(table)) == 4  # of now
    assert pl.DataFrame(table, schema_overrides={"n": pl.Int32}).schema["n"] == pl.Int32
    copy = Table.create(Path(table.path, "../copy"), schema=SCHEMA, record_key=["id", "p"])
    copy.upsert(table)
    assert without_meta(copy.to_arrow()) == without_meta(table.to_arrow())


def _counted(board: Table) -> list[tuple[int]]:
    return duckdb.sql("select n from board").fetchall()


def test_a_stream_opens_one_file_at_a_time(table: Table) -> None:
    """A file is opened when its first row is asked for, so memory does not grow with the table."""
    storage = CountedStorage(table._handle.storage)
    table._handle.storage = storage
    reader = pa.RecordBatchReader.from_stream(table)
    opened = storage.requests["GET"]
    counts = []
    for batch in reader:
        assert batch.num_rows == 1
        counts.append(storage.requests["GET"] - opened)
    assert counts == [1, 2, 3]


def test_a_stream_has_the_snapshot_of_its_start(table: Table) -> None:
    """Commits after the call are not in the stream, not even in files that it opens later."""
    reader = pa.RecordBatchReader.from_stream(table)
    first = reader.read_next_batch().to_pylist()
    before = without_meta(table.to_arrow())
    table.upsert(pa.table([["c", "d"], ["z", "z"], [30, 40]], schema=SCHEMA))
    rows = pa.Table.from_batches([*reader]).to_pylist()
    assert canonical(first + rows) == before
    assert without_meta(pa.table(table)) != before


def test_a_stream_is_cast_to_the_schema_that_is_asked_for(table: Table) -> None:
    """`requested_schema` may change types, as the protocol allows."""
    wanted = pa.RecordBatchReader.from_stream(table).schema
    wanted = wanted.set(wanted.get_field_index("n"), pa.field("n", pa.float64()))
    rows = pa.RecordBatchReader.from_stream(table, schema=wanted).read_all()
    assert rows.schema == wanted
    assert rows.sort_by("id")["n"].to_pylist() == [1.0, 2.0, None]


def test_an_error_in_the_middle_of_a_stream_names_the_file(table: Table) -> None:
    """A file that is gone stops the stream with the error of a read."""
    reader = pa.RecordBatchReader.from_stream(table)
    reader.read_next_batch()
    (path,) = Path(table.path, "y").glob("*.parquet")
    path.unlink()
    with pytest.raises(Exception, match=path.name):
        reader.read_next_batch()


def test_an_empty_table_has_columns_for_every_reader(tmp_path: Path) -> None:
    """A table without rows is an empty frame with the right columns."""
    board = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    assert pl.DataFrame(board).shape == (0, 3)
    assert duckdb.sql("select count(id) from board").fetchall() == [(0,)]
