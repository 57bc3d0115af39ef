"""Columns that this library adds, and types that it makes wider, by a call or with a batch."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tables import hudi_table, kind_of, rows_by, tree

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidInput

pytestmark = pytest.mark.usefixtures("many_logs")
SCHEMA = pa.schema(
    [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int32())],
)
FIRST = [{"id": k, "p": "xy"[n % 2], "ts": 1, "v": n} for n, k in enumerate("abcd")]
VERSIONS = pytest.mark.parametrize("version", [6, 8, 9, "8 logs", "9 logs"])


def made(path: Path, version: int | str = 6, schema: pa.Schema = SCHEMA, **more: Any) -> Table:
    """Return a new table, with or without rows."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", **kind_of(version), **more}
    return Table.create(path / "t", schema=schema, **keys)


def with_nulls(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Return rows with these columns, null where a row has none."""
    return [{**dict.fromkeys(names), **row} for row in rows]


@VERSIONS
def test_columns_are_added_without_a_file(tmp_path: Path, version: int | str) -> None:
    """One instant, no rewritten file; rows have nulls, and later upserts keep what is stored."""
    table = made(tmp_path, version)
    table.upsert(FIRST)
    before = {n for n in tree(table.path) if n.endswith(".parquet")}
    commit = table.add_columns({"w": pa.large_string(), "day": pa.date32()})
    assert commit is not None and (commit.operation, commit.files) == ("alter_schema", 0)
    assert {n for n in tree(table.path) if n.endswith(".parquet")} == before
    new = [pa.field("w", pa.string()), pa.field("day", pa.date32())]
    assert table.schema.equals(pa.schema([*SCHEMA, *new]))
    wanted = with_nulls(FIRST, "w", "day")
    assert rows_by(table, "id") == wanted
    wanted[0] = {**wanted[0], "ts": 2, "w": "new"}
    table.upsert(wanted[:1])
    wanted[2] = {**wanted[2], "ts": 3}
    table.upsert(wanted[2:3])  # rewrites the file of the row with the value
    assert rows_by(table, "id") == wanted
    assert table.fsck() == []


@VERSIONS
def test_columns_of_a_table_without_rows(tmp_path: Path, version: int | str) -> None:
    """The first instant of a table may be one that adds columns."""
    table = made(tmp_path, version)
    table.add_columns({"w": pa.string()})
    assert hudi_table(table.path) is None and table.fsck() == []
    table.insert(with_nulls(FIRST, "w"))
    assert rows_by(table, "id") == with_nulls(FIRST, "w")


def test_columns_that_exist_are_not_added_again(tmp_path: Path) -> None:
    """A cell that runs again changes nothing, also if it creates the table with either schema."""
    table = made(tmp_path)
    assert table.add_columns({"w": pa.string(), "v": pa.int64()}) is not None
    held = tree(table.path)
    assert table.add_columns({"w": pa.large_string()}) is None
    assert table.add_columns(table.schema) is None
    assert tree(table.path) == held
    for schema in (SCHEMA, table.schema):
        assert made(tmp_path, schema=schema, if_exists="open").schema.equals(table.schema)
    with pytest.raises(InvalidConfig, match="is a different table: schema"):
        made(tmp_path, schema=SCHEMA.append(pa.field("z", pa.int64())), if_exists="open")


STRICT = pa.schema([pa.field("q", pa.int64(), nullable=False)])
REFUSED: list[tuple[Any, type[Exception], str]] = [
    ({}, InvalidConfig, "no columns are given"),
    ({"v": pa.bool_()}, InvalidInput, "'v' has type int32 in the table, .* cannot become bool"),
    ({"V": pa.int32()}, InvalidInput, r"\['V', 'v'\] have the same name, ignoring case"),
    ({"w": pa.int32(), "W": pa.int32()}, InvalidInput, "ignoring case"),
    ({"ts": pa.float64()}, InvalidInput, r"\['ts'\] are part of record key, partition or order"),
    ({"_hoodie_file_name": pa.string()}, InvalidInput, "belong to Hudi"),
    (STRICT, InvalidInput, r"\['q'\] are NOT NULL"),
    ({"a b": pa.int64()}, InvalidInput, "that Avro does not allow"),
    ({"q": pa.null()}, InvalidInput, "has type null, which Hudi cannot store"),
    ({"q": int}, InvalidConfig, "must be pyarrow types"),
    (5, InvalidConfig, "give a pyarrow.Schema, a dict"),
]


@pytest.mark.parametrize(("columns", "error", "text"), REFUSED)
def test_what_cannot_be_added_is_named(
    tmp_path: Path, columns: Any, error: type[Exception], text: str
) -> None:
    """The error names the column and both types, and the table stays as it was."""
    table = made(tmp_path)
    held = tree(table.path)
    with pytest.raises(error, match=text):
        table.add_columns(columns)
    assert table.schema.equals(SCHEMA)
    assert {n for n in tree(table.path) if n.endswith("commit")} <= {*held}


@pytest.mark.parametrize("name", ["id", "p", "ts"])
def test_key_partition_and_ordering_columns_stay_as_they_are(tmp_path: Path, name: str) -> None:
    """Their types cannot become wider, by the call or with a batch."""
    schema = pa.schema([(f.name, pa.int32()) for f in SCHEMA])
    table = made(tmp_path, schema=schema)
    with pytest.raises(InvalidInput, match=rf"\['{name}'\] are part of"):
        table.add_columns({name: pa.int64()})
    wide = schema.set(schema.get_field_index(name), pa.field(name, pa.int64()))
    row = dict.fromkeys(schema.names, 1)
    assert table.upsert(pa.Table.from_pylist([row], wide), schema="merge") is not None
    assert table.schema.equals(schema) and rows_by(table, "id") == [row]


FLOAT, DOUBLE, TEXT = pa.float32(), pa.float64(), pa.string()
SMALL, LARGE = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", TEXT)])
WIDER: list[tuple[pa.DataType, Any, pa.DataType, Any]] = [
    (pa.int32(), 5, pa.int64(), 5),
    (pa.int32(), 5, FLOAT, 5.0),
    (pa.int32(), 5, DOUBLE, 5.0),
    (pa.int32(), 5, TEXT, "5"),
    (pa.int64(), 5, FLOAT, 5.0),
    (pa.int64(), 5, DOUBLE, 5.0),
    (pa.int64(), 5, TEXT, "5"),
    (FLOAT, 0.1, DOUBLE, 0.1),
    (pa.decimal128(4, 2), Decimal("1.10"), pa.decimal128(8, 2), Decimal("1.10")),
    (pa.decimal128(4, 2), Decimal("1.10"), pa.decimal128(8, 3), Decimal("1.100")),
    (SMALL, {"a": 1}, LARGE, {"a": 1, "b": None}),
    (pa.list_(SMALL), [{"a": 1}], pa.list_(LARGE), [{"a": 1, "b": None}]),
    (pa.map_(TEXT, pa.int32()), [("k", 1)], pa.map_(TEXT, pa.int64()), [("k", 1)]),
    # an integer that is rounded, beside a change that is not
    (
        pa.struct([("a", pa.decimal128(4, 2)), ("n", pa.int64())]),
        {"a": Decimal("1.10"), "n": 2**53 + 1},
        pa.struct([("a", pa.decimal128(20, 4)), ("n", DOUBLE)]),
        {"a": Decimal("1.1000"), "n": 2.0**53},
    ),
    (
        pa.struct([("a", pa.int32()), ("n", pa.int64())]),
        {"a": -5, "n": 2**53 + 1},
        pa.struct([("a", TEXT), ("n", DOUBLE)]),
        {"a": "-5", "n": 2.0**53},
    ),
]


@VERSIONS
@pytest.mark.parametrize(("old", "value", "new", "wanted"), WIDER)
def test_a_type_becomes_wider_by_the_call(
    tmp_path: Path, version: int | str, old: pa.DataType, value: Any, new: pa.DataType, wanted: Any
) -> None:
    """Older files are read with the new type, and an upsert into them keeps their values."""
    schema = SCHEMA.set(3, pa.field("v", old))
    table = made(tmp_path, version, schema)
    row = {"id": "a", "p": "x", "ts": 1, "v": value}
    table.upsert(pa.table({n: pa.array([row[n]], schema.field(n).type) for n in schema.names}))
    table.add_columns({"v": new})
    stored = {**row, "v": wanted}
    assert table.schema.field("v").type == new
    assert rows_by(table, "id") == [stored]
    more = {"id": "b", "p": "x", "ts": 1, "v": None}
    table.upsert([more])
    assert rows_by(table, "id") == [stored, more] and table.fsck() == []


NOT_WIDER = [
    (pa.int64(), pa.int32()),
    (DOUBLE, FLOAT),
    (DOUBLE, pa.int64()),
    (FLOAT, TEXT),
    (TEXT, pa.int64()),
    (TEXT, pa.binary()),
    (pa.binary(), TEXT),
    (pa.date32(), pa.timestamp("us")),
    (pa.decimal128(4, 2), pa.decimal128(5, 4)),
    (pa.decimal128(38, 0), pa.decimal128(38, 2)),
    (pa.struct([("a", DOUBLE)]), pa.struct([("a", pa.int32())])),
    (pa.list_(TEXT), TEXT),
]


@pytest.mark.parametrize(("old", "new"), NOT_WIDER)
def test_other_changes_of_type_are_refused(
    tmp_path: Path, old: pa.DataType, new: pa.DataType
) -> None:
    """A type that cannot hold all values, or shows them otherwise, is refused."""
    table = made(tmp_path, schema=SCHEMA.set(3, pa.field("v", old)))
    with pytest.raises(InvalidInput, match=r"'v' has type .* cannot become"):
        table.add_columns({"v": new})


# --- schema="merge" -----------------------------------------------------------------------------


WRITES = ["upsert", "insert", "bulk_insert", "insert_overwrite"]
WIDE = SCHEMA.set(3, pa.field("v", pa.int64())).append(pa.field("w", pa.string()))
NEW = [{"id": "n", "p": "x", "ts": 2, "v": 2**40, "w": "new"}]


def given_as(kind: str) -> Any:
    """Return the new row with a new column and a wider one, as one kind of data."""
    rows = pa.Table.from_pylist(NEW, WIDE)
    if kind == "stream":
        return rows.to_reader()
    return {"arrow": rows, "batch": rows.to_batches()[0], "pandas": rows.to_pandas()}[kind]


@VERSIONS
@pytest.mark.parametrize("write", WRITES)
def test_a_batch_brings_its_columns(tmp_path: Path, version: int | str, write: str) -> None:
    """Rows, new columns and wider types are one instant, in each kind of write."""
    table = made(tmp_path, version)
    table.upsert(FIRST)
    getattr(table, write)(given_as("arrow"), schema="merge")
    kept = [r for r in FIRST if write != "insert_overwrite" or r["p"] != "x"]
    assert table.schema.equals(WIDE) and len(table.history()) == 2
    assert rows_by(table, "id") == [*with_nulls(kept, "w"), *NEW]
    assert table.fsck() == []


@pytest.mark.parametrize("kind", ["arrow", "batch", "stream", "pandas"])
def test_every_kind_of_data_brings_its_columns(tmp_path: Path, kind: str) -> None:
    """A stream of batches is asked for its columns before it is read."""
    table = made(tmp_path)
    table.upsert(given_as(kind), schema="merge")
    assert table.schema.equals(WIDE) and rows_by(table, "id") == NEW


def test_python_objects_bring_new_columns_in_the_tables_types(tmp_path: Path) -> None:
    """Dicts have no types of their own: columns that exist keep theirs."""
    table = made(tmp_path)
    row = {**FIRST[0], "w": "new", "f": 0.5}
    table.upsert([row], schema="merge")
    new = [pa.field("w", pa.string()), pa.field("f", pa.float64())]
    assert table.schema.equals(pa.schema([*SCHEMA, *new])) and rows_by(table, "id") == [row]
    with pytest.raises(InvalidInput, match="'v' has values that do not fit int32"):
        table.upsert([{**row, "v": 2**40}], schema="merge")


def test_integers_stay_integers(tmp_path: Path) -> None:
    """The floats of pandas for integers with nulls, or texts, change no column of integers."""
    table = made(tmp_path, schema=SCHEMA.set(3, pa.field("v", pa.int64())))
    frame = pd.DataFrame(FIRST).astype({"v": "float64"})
    frame.loc[0, "v"] = None
    table.upsert(frame, schema="merge")
    assert table.schema.field("v").type == pa.int64()
    assert [r["v"] for r in rows_by(table, "id")] == [None, 1, 2, 3]
    with pytest.raises(InvalidInput, match=r"'v' has .* fit int64"):
        table.upsert(frame.assign(v=0.5), schema="merge")


def test_a_refused_or_empty_batch_leaves_the_columns(tmp_path: Path) -> None:
    """A batch with a bad value, and one without rows, make no instant."""
    table = made(tmp_path)
    bad = pa.Table.from_pylist([{**NEW[0], "id": None}], WIDE)
    with pytest.raises(InvalidInput):
        table.upsert(bad, schema="merge")
    assert table.upsert(WIDE.empty_table(), schema="merge") is None
    assert table.schema.equals(SCHEMA) and table.history().empty
    with pytest.raises(InvalidConfig, match=r"choose from \['fixed', 'merge'\]"):
        table.upsert(FIRST, schema="other")


def test_a_commit_without_files_adds_the_columns(tmp_path: Path) -> None:
    """A batch whose rows are all in quarantine does, and an overwrite of the table without rows."""
    table = made(tmp_path)
    table.upsert(FIRST)
    assert table.insert_overwrite(WIDE.empty_table(), schema="merge") is None
    assert table.schema.equals(SCHEMA)
    bad = pa.Table.from_pylist([{**NEW[0], "id": None}], WIDE)
    commit = table.upsert(bad, schema="merge", on_bad_record="quarantine")
    assert commit is not None and commit.files == 0 and table.schema.equals(WIDE)
    assert rows_by(table, "id") == with_nulls(FIRST, "w")
    wider = WIDE.append(pa.field("y", pa.int64()))
    table.insert_overwrite(wider.empty_table(), scope="table", schema="merge")
    assert table.schema.equals(wider) and table.to_arrow().num_rows == 0


def test_other_columns_must_still_be_given(tmp_path: Path) -> None:
    """A batch that lacks a column of the table is refused: it would set values to null."""
    table = made(tmp_path)
    lacking = pa.Table.from_pylist(NEW, WIDE).drop_columns("ts")
    with pytest.raises(InvalidInput, match=r"\['ts'\] of the table are missing"):
        table.upsert(lacking, schema="merge")


def test_the_flag_of_deletes_is_no_new_column(tmp_path: Path) -> None:
    """`_hoodie_is_deleted` deletes rows, and does not become a column of the table."""
    table = made(tmp_path)
    table.upsert(FIRST)
    rows = [{**FIRST[0], "ts": 2, "w": None, "_hoodie_is_deleted": True}]
    rows += [{**FIRST[1], "ts": 2, "w": "kept", "_hoodie_is_deleted": False}]
    table.upsert(rows, schema="merge")
    assert table.schema.names == [*SCHEMA.names, "w"]
    wanted = with_nulls(FIRST[1:], "w")
    wanted[0] |= {"ts": 2, "w": "kept"}
    assert rows_by(table, "id") == wanted


def test_quarantined_rows_of_a_batch_with_new_columns(tmp_path: Path) -> None:
    """A bad row is set aside with its new column, and the others are written."""
    table = made(tmp_path)
    rows = pa.Table.from_pylist([{**NEW[0], "id": None}, *NEW], WIDE)
    commit = table.upsert(rows, schema="merge", on_bad_record="quarantine")
    assert commit is not None and commit.quarantined == 1
    assert json.loads(table.quarantine()["row"][0].as_py())["w"] == "new"
    assert rows_by(table, "id") == NEW


# --- what the errors advise ---------------------------------------------------------------------


@pytest.mark.parametrize("cure", ["merge", "add_columns"])
def test_an_unknown_column_is_added_as_the_error_says(tmp_path: Path, cure: str) -> None:
    """Both ways that the error names write the rows."""
    table, rows = made(tmp_path), [{**FIRST[0], "w": "new"}]
    with pytest.raises(InvalidInput, match=r'schema="merge" in a batch write, or table.add_col'):
        table.upsert(rows)
    if cure == "merge":
        table.upsert(rows, schema="merge")
    else:
        table.add_columns({"w": pa.string()})
        table.upsert(rows)
    assert rows_by(table, "id") == rows


def test_a_wider_column_is_written_as_the_error_says(tmp_path: Path) -> None:
    """A type that never fits, but can be that of the column, is made so by the call."""
    table, rows = (
        made(tmp_path),
        pa.Table.from_pylist([{**FIRST[0], "v": "5"}], SCHEMA.set(3, pa.field("v", TEXT))),
    )
    with pytest.raises(InvalidInput, match=r"call table.add_columns\({'v': \.\.\.}\)"):
        table.upsert(rows.to_reader())
    table.add_columns({"v": rows.schema.field("v").type})
    table.upsert(rows.to_reader())
    assert rows_by(table, "id") == rows.to_pylist()
