"""Rows and options that cannot be stored are refused with name and fix, without a change."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tables import hudi_rows, tree, without_meta

from hoodie_nb import Table, write_stream
from hoodie_nb.definition.keys import NULL_PARTITION
from hoodie_nb.definition.properties import load_options
from hoodie_nb.errors import HoodieError, InvalidConfig, InvalidInput, InvalidTable
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.types.schema import META_COLUMNS

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("price", pa.decimal128(7, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
GOOD: dict[str, Any] = {
    "id": "a",
    "p": "par1",
    "ts": NOON,
    "n": 1,
    "x": 0.5,
    "price": Decimal("9.50"),
    "tags": ["t"],
}


def data(**columns: Any) -> pa.Table:
    """Return two good rows with some columns replaced (None: left out), added ones last."""
    rows = pa.Table.from_pylist([GOOD, {**GOOD, "id": "b"}], schema=SCHEMA)
    for name, values in columns.items():
        if values is None:
            rows = rows.drop_columns([name])
        elif name in rows.column_names:
            rows = rows.set_column(rows.column_names.index(name), name, values)
        else:
            rows = rows.append_column(name, values)
    return rows


def partitions(*values: str | None) -> pa.Table:
    """Return two rows in the given partitions."""
    return data(p=pa.array(values, pa.string()))


def renamed(old: str, new: str) -> pa.Table:
    """Return good rows with a column under another name."""
    return data().rename_columns([new if n == old else n for n in SCHEMA.names])


NS = pa.array([1, 2000], pa.timestamp("ns", "UTC"))
OFFSETS = pa.py_buffer((0).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\x02\0\0\0")
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 2, [None, OFFSETS, pa.py_buffer(b"\xffb")])
LONG = "é" * 150

BEYOND = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array([True]), safe=False)

# input → what the message must contain: the column, the values and what to do
REFUSED: dict[str, tuple[pa.Table, list[str]]] = {
    "flag beyond its dictionary": (
        data(_hoodie_is_deleted=BEYOND),
        ["'_hoodie_is_deleted'", "do not fit bool", "out of bounds"],
    ),
    "key column missing": (data(id=None), ["'id'", "missing"]),
    "partition column missing": (data(p=None), ["'p'", "missing"]),
    "other column missing": (data(n=None), ["'n'", "missing", "add"]),
    "null key": (data(id=pa.array(["a", None])), ["'id'", "null or empty", "1 row", "None", "fix"]),
    "empty key": (data(id=pa.array(["", ""])), ["'id'", "2 rows", "''", "fix"]),
    "partition ..": (partitions("par1", ".."), ["'p'", "'..'", "outside the table", "fix"]),
    "partition .": (partitions(".", "par1"), ["'p'", "'.'", "outside the table"]),
    "partition ../x": (partitions("../x", "par1"), ["'p'", "'../x'", "url_encode"]),
    "partition /abs": (partitions("/abs", "par1"), ["'p'", "'/abs'", "url_encode"]),
    "partition x/y": (partitions("x/y", "par1"), ["'p'", "'x/y'", "url_encode"]),
    "partition .hoodie": (partitions(".hoodie", "par1"), ["'p'", "'.hoodie'", "hidden"]),
    "partition .h": (partitions(".h", "par1"), ["'p'", "'.h'", "hidden"]),
    "partition _x": (partitions("_x", "par1"), ["'p'", "'_x'", "hidden"]),
    "partition of 300 bytes": (partitions(LONG, "par1"), ["'p'", "éé", "255 bytes"]),
    "partition named as null": (
        partitions(NULL_PARTITION, "par1"),
        ["'p'", NULL_PARTITION, "null"],
    ),
    "partition with NUL": (partitions("a\0b", "par1"), ["'p'", r"'a\x00b'", "url_encode"]),
    "partition with = ": (partitions("k=v", "par1"), ["'p'", "'k=v'", "url_encode"]),
    "partition with %": (partitions("50% off", "par1"), ["'p'", "'50% off'", "url_encode"]),
    "key not UTF-8": (data(id=NOT_UTF8), ["'id'", "UTF-8"]),
    "value not UTF-8": (data(p=NOT_UTF8), ["'p'", "UTF-8"]),
    "string for int": (data(n=pa.array(["1", "2"])), ["'n'", "string", "int32", "cast"]),
    "int for string key": (data(id=pa.array([1, 2])), ["'id'", "int64", "string", "cast"]),
    "half for int": (data(n=pa.array([1.0, 2.5])), ["'n'", "double", "int32", "row 1", "2.5"]),
    "long for int": (data(n=pa.array([1, 2**40])), ["'n'", "int64", "int32", "row 1", str(2**40)]),
    "list for int": (data(n=pa.array([[1], [2]])), ["'n'", "list", "int32", "cast"]),
    "long that no double holds": (
        data(x=pa.array([2**53 + 1, 0], pa.int64())),
        ["'x'", "9007199254740993", "cast"],
    ),
    "wider decimal": (
        data(price=pa.array([Decimal("1.234"), None], pa.decimal128(9, 3))),
        ["'price'", "decimal128(9, 3)", "decimal128(7, 2)", "cast"],
    ),
    "decimal of 256 bits": (
        data(price=pa.array([None, Decimal(10**6)], pa.decimal256(50, 2))),
        ["'price'", "decimal256", "row 1", "cast"],
    ),
    "nanoseconds": (data(ts=NS), ["'ts'", "timestamp[us", "cast"]),
    "time zone missing": (
        data(ts=pa.array([0, 1], pa.timestamp("us"))),
        ["'ts'", "timestamp[us]", "UTC", "cast"],
    ),
    "same name, ignoring case": (data(N=pa.array([1, 2])), ["'N'", "'n'", "rename"]),
    "same name twice": (renamed("x", "n"), ["'n'", "rename"]),
    "meta column": (
        data(_hoodie_commit_time=pa.array(["1", "2"])),
        ["_hoodie_commit_time", "drop"],
    ),
    "column of ours": (data(_hoodie_nb_seq=pa.array([1, 2])), ["_hoodie_nb_seq", "drop"]),
    "meta column in another case": (
        data(_Hoodie_Commit_Time=pa.array(["1", "2"])),
        ["'_Hoodie_Commit_Time'", "belong to Hudi", "drop"],
    ),
    "column of ours in another case": (
        data(_HOODIE_NB_SEQ=pa.array([1, 2])),
        ["'_HOODIE_NB_SEQ'", "belong to Hudi", "drop"],
    ),
    "delete flag in another case": (
        data(_Hoodie_Is_Deleted=pa.array([True, False])),
        ["'_Hoodie_Is_Deleted'", "'_hoodie_is_deleted'", "rename"],
    ),
    "unknown column": (data(extra=pa.array([1, 2])), ["'extra'", "not in the table", "drop"]),
    "unsigned 64": (data(n=pa.array([1, 2**63], pa.uint64())), ["'n'", "uint64", "row 1", "cast"]),
    "duration": (data(n=pa.array([1, 2], pa.duration("s"))), ["'n'", "duration", "cast"]),
    "time of day": (data(n=pa.array([1, 2], pa.time32("s"))), ["'n'", "time32", "cast"]),
    "float key": (data(id=pa.array([1.5, 2.5])), ["'id'", "double", "string", "cast"]),
    "delete flag that is text": (
        data(_hoodie_is_deleted=pa.array(["no", "maybe"])),
        ["_hoodie_is_deleted", "string", "bool"],
    ),
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A partitioned table with one row in it."""
    made = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    made.upsert(data().slice(0, 1))
    return made


def assert_refused(table: Table, rows: pa.Table | pd.DataFrame, words: list[str]) -> None:
    """Check that InvalidInput has these words, and that the disk is unchanged."""
    before = tree(table.path)
    with pytest.raises(InvalidInput) as caught:
        table.upsert(rows)
    for word in words:
        assert word in str(caught.value)
    assert tree(table.path) == before


@pytest.mark.parametrize("case", REFUSED)
def test_bad_rows_are_refused_and_nothing_changes(table: Table, case: str) -> None:
    """The batch raises InvalidInput that names column, values and fix; the disk is unchanged."""
    assert_refused(table, *REFUSED[case])


FRAMES: dict[str, tuple[pd.DataFrame, list[str]]] = {
    "two types": (data().to_pandas().assign(id=["a", 1]), ["'id'", "Arrow cannot convert", "int"]),
    "any objects": (data().to_pandas().assign(n=[object()] * 2), ["'n'", "Arrow cannot convert"]),
    "a large integer": (data().to_pandas().assign(n=[2**70] * 2), ["'n'", "Arrow cannot convert"]),
    "complex numbers": (data().to_pandas().assign(x=[1j, 2j]), ["'x'", "Arrow cannot convert"]),
    "an integer without a text": (
        data().to_pandas().assign(n=pd.Series([1, 10**5000], dtype=object)),
        ["'n'", "row 1", "a value without a text of type int"],
    ),
    "half a character in strings": (
        data().to_pandas().assign(id=pd.array(["a", "a\ud800"], dtype=pd.StringDtype("python"))),
        ["'id'", "row 1", r"'a\ud800'", "UTF-8"],
    ),
    "half a character in categories": (
        data().to_pandas().assign(id=pd.Categorical(pd.Series(["a", "a\ud800"], dtype=object))),
        ["'id'", "row 1", r"'a\ud800'", "UTF-8"],
    ),
    "half a character": (
        data().to_pandas().assign(id=pd.Series(["a\ud800"] * 2, dtype=object)),
        ["'id'", "UTF-8"],
    ),
    "sparse": (
        data().to_pandas().assign(n=pd.arrays.SparseArray([1, 2])),
        ["'n'", "Sparse", "cast"],
    ),
    "one name twice": (
        pd.concat([data().to_pandas(), data().to_pandas()[["n"]]], axis=1),
        ["['n']", "same name", "rename or drop"],
    ),
}


@pytest.mark.parametrize("case", FRAMES)
def test_bad_columns_of_pandas_are_refused_by_name(table: Table, case: str) -> None:
    """A column that Arrow cannot hold raises InvalidInput that names it; the disk is unchanged."""
    assert_refused(table, *FRAMES[case])


@pytest.mark.parametrize(
    "name", ["_HOODIE_RECORD_KEY", "_Hoodie_Commit_Time", "_HOODIE_NB_SEQ", "_Hoodie_Is_Deleted"]
)
def test_no_table_has_a_column_that_is_hudis_own_but_for_case(tmp_path: Path, name: str) -> None:
    """Spark ignores case and would confuse it with Hudi's, so it is refused by name."""
    schema = pa.schema([("id", pa.string()), (name, pa.string())])
    with pytest.raises(InvalidInput, match=name):
        Table.create(tmp_path / "t", schema=schema, record_key="id")
    assert not (tmp_path / "t").exists()


def test_a_struct_may_have_fields_named_as_hudis_columns(tmp_path: Path) -> None:
    """A row of another Hudi table is stored as a struct and returned by both readers."""
    kind = pa.struct([("_HOODIE_RECORD_KEY", pa.string()), ("_hoodie_commit_time", pa.string())])
    schema = pa.schema([("id", pa.string()), ("before", kind)])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    before = {"_HOODIE_RECORD_KEY": "k", "_hoodie_commit_time": "1"}
    table.upsert(pa.table({"id": ["a"], "before": [before]}, schema=schema))
    found = table.to_arrow(meta=False)
    assert found.to_pylist() == [{"id": "a", "before": before}]
    assert hudi_rows(table.path) == without_meta(found)


def test_at_most_five_offending_values_are_shown(table: Table) -> None:
    """A message shows five distinct values of at most 80 characters and counts all bad rows."""
    names = [f"_{i}" + "x" * 200 for i in range(9)] * 2
    rows = pa.concat_tables([data().slice(0, 1)] * 18).set_column(1, "p", pa.array(names))
    with pytest.raises(InvalidInput, match="in 18 rows") as caught:
        table.upsert(rows)
    assert len(re.findall(r"'_\d", str(caught.value))) == 5
    assert "x" * 81 not in str(caught.value)


# input → rows as they are read
ACCEPTED: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "int8 into int": (data(n=pa.array([1, 2], pa.int8())), {"n": 1}),
    "uint16 into int": (data(n=pa.array([65535, 2], pa.uint16())), {"n": 65535}),
    "int into double": (data(x=pa.array([7, 2], pa.int32())), {"x": 7.0}),
    "float into double": (data(x=pa.array([0.5, 2], pa.float32())), {"x": 0.5}),
    "dictionary": (data(p=pa.array(["par1", "par1"]).dictionary_encode()), {"p": "par1"}),
    "large string": (data(id=pa.array(["a", "b"], pa.large_string())), {"id": "a"}),
    "large list": (data(tags=pa.array([["u"], None], pa.large_list(pa.string()))), {"tags": ["u"]}),
    "nothing but nulls": (data(tags=pa.nulls(2), n=pa.nulls(2)), {"tags": None, "n": None}),
    "narrower decimal": (
        data(price=pa.array([Decimal("1.2"), None], pa.decimal128(3, 1))),
        {"price": Decimal("1.20")},
    ),
    "whole microseconds": (
        data(ts=pa.array([1_767_268_800_000_000_000, None], pa.timestamp("ns", "UTC"))),
        {"ts": NOON},
    ),
    "another zone": (
        data(ts=pa.array([NOON, None], pa.timestamp("us", "America/New_York"))),
        {"ts": NOON},
    ),
    "NUL in a key": (data(id=pa.array(["a\0z", "b"])), {"id": "a\0z"}),
    "a long key": (data(id=pa.array(["k" * 10_000, "b"])), {"id": "k" * 10_000}),
    "no delete flag": (data(_hoodie_is_deleted=pa.array([None, True])), {"id": "a"}),
    "columns in another order": (data().select(SCHEMA.names[::-1]), {"id": "a"}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_values_that_fit_are_cast(tmp_path: Path, case: str) -> None:
    """Values that fit a column without loss are cast, stored and returned by both readers."""
    rows, expected = ACCEPTED[case]
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p")
    table.upsert(rows)
    found = table.to_arrow(meta=False)
    assert found.schema == SCHEMA
    first = next(r for r in found.to_pylist() if r["id"] != "b")
    assert {name: first[name] for name in expected} == expected
    assert hudi_rows(table.path) == without_meta(found)


def test_int_goes_into_long_and_stays_long(tmp_path: Path) -> None:
    """An int column is cast to a long one, also if another batch has longs."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert(pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([2], pa.int8())}))
    table.upsert(pa.table({"id": [2**40], "n": [2**50]}))
    rows = table.to_arrow(meta=False).sort_by("id")
    assert rows.to_pylist() == [{"id": 1, "n": 2}, {"id": 2**40, "n": 2**50}]
    assert rows.schema == schema


def test_a_batch_without_rows_changes_nothing(table: Table) -> None:
    """An empty batch of any operation makes no commit and touches no file."""
    before = tree(table.path)
    for write in (table.upsert, table.insert, table.delete):
        assert write(data().slice(0, 0)) is None
    assert tree(table.path) == before


def test_parts_of_a_composite_key_may_be_null_but_not_all(tmp_path: Path) -> None:
    """Null and empty parts have Hudi's placeholders; a key of only such parts is refused."""
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.int32())])
    table = Table.create(tmp_path / "t", schema=schema, record_key=["a", "b"])
    table.upsert(pa.table({"a": [None, "", "x"], "b": [1, 2, None], "v": [1, 2, 3]}, schema=schema))
    keys = table.to_arrow(["_hoodie_record_key"]).column(0).to_pylist()
    assert sorted(keys) == ["a:__empty__,b:2", "a:__null__,b:1", "a:x,b:__null__"]
    before = tree(table.path)
    with pytest.raises(InvalidInput, match="'a, b' are all null or empty in 1 row"):
        table.upsert(pa.table({"a": [None], "b": [None], "v": [1]}, schema=schema))
    assert tree(table.path) == before


def test_null_and_empty_partitions_go_to_the_default_one(table: Table) -> None:
    """Null and empty partition values go to Hudi's default partition and keep their values."""
    table.upsert(partitions(None, ""))
    found = table.to_arrow(["id", "p", "_hoodie_partition_path"]).to_pylist()
    assert {(r["id"], r["p"]) for r in found if r["_hoodie_partition_path"] == NULL_PARTITION} == {
        ("a", None),
        ("b", ""),
    }


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("50% off", "50%25 off"),
        ("x/y", "x%2Fy"),
        ("a:b", "a%3Ab"),
        ("k=v", "k%3Dv"),
        ("ü中 \U0001f600", "ü中 \U0001f600"),
        ("a\\b", "a%5Cb"),
        ("{[]^}", "%7B%5B%5D%5E}"),
        ("\"#'*?\x7f", "%22%23%27%2A%3F%7F"),
        ("a\0\n", "a%00%0A"),
        ("a b+c&d~", "a b+c&d~"),
    ],
)
@pytest.mark.parametrize("hive_style", [False, True])
def test_unsafe_characters_are_encoded_as_hudi_does(
    tmp_path: Path, value: str, folder: str, hive_style: bool
) -> None:
    """With url_encode the folder has Hudi's name for the value; hudi-rs reads the value back."""
    table = Table.create(
        tmp_path / "t",
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        url_encode=True,
        hive_style=hive_style,
    )
    rows = partitions(value, value)
    table.upsert(rows)
    assert (Path(table.path) / (f"p={folder}" if hive_style else folder)).is_dir()
    assert hudi_rows(table.path) == without_meta(rows)
    table.upsert(rows)
    assert without_meta(table.to_arrow()) == without_meta(rows)


@pytest.mark.parametrize("value", [".", "..", NULL_PARTITION, "é" * 150, "%" * 90])
def test_encoding_does_not_make_every_value_a_folder(tmp_path: Path, value: str) -> None:
    """url_encode allows neither `..` nor a value whose name becomes too long."""
    table = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p", url_encode=True
    )
    before = tree(table.path)
    with pytest.raises(InvalidInput, match="'p' cannot be a partition path"):
        table.upsert(partitions(value, "par1"))
    assert tree(table.path) == before


def test_a_hudi_read_is_written_again_once_its_meta_columns_are_dropped(table: Table) -> None:
    """Writing a snapshot back is refused with the meta columns and works without them."""
    snapshot = table.to_arrow()
    with pytest.raises(InvalidInput, match="drop them"):
        table.upsert(snapshot)
    table.upsert(table.to_arrow(meta=False))
    assert without_meta(table.to_arrow()) == without_meta(snapshot)


def test_pandas_rows_are_checked_like_arrow_ones(table: Table) -> None:
    """A pandas frame with nanoseconds is refused by its column, one of microseconds is written."""
    frame = data().to_pandas()
    frame["ts"] = pd.to_datetime(frame["ts"], utc=True).astype("datetime64[ns, UTC]")
    frame["n"] = frame["n"].astype("int32")
    table.upsert(frame.assign(price=None))
    with pytest.raises(InvalidInput, match="'ts'"):
        table.upsert(frame.assign(ts=frame["ts"] + pd.Timedelta(1, "ns")))


@pytest.mark.parametrize("given", [[GOOD, 1], {"id": ["a"]}, None, "rows"])
def test_values_that_are_not_rows_are_refused(table: Table, given: object) -> None:
    """Other lists, dicts, None and text are not rows; the error says what is accepted."""
    with pytest.raises(InvalidConfig, match=r"pyarrow\.Table or a pandas DataFrame"):
        table.upsert(given)


# --- making and opening tables ----------------------------------------------------------------

KEYED: dict[str, Any] = {"schema": SCHEMA, "record_key": "id", "partition_by": "p"}
NOT_MADE: dict[str, tuple[dict[str, Any], type[HoodieError], str]] = {
    "key not in the schema": ({"record_key": "nope"}, InvalidInput, "'nope'.*missing"),
    "partition not in the schema": ({"partition_by": "nope"}, InvalidInput, "'nope'.*missing"),
    "ordering not in the schema": (
        {"ordering": "nope"},
        InvalidConfig,
        "'nope'.*not in the schema",
    ),
    "no key": ({"record_key": []}, InvalidConfig, "record_key is empty"),
    "float key": ({"record_key": "x"}, InvalidInput, "'x' has type double"),
    "list partition": ({"partition_by": "tags"}, InvalidInput, "'tags' has type list"),
    "unknown merge mode": (
        {"merge_mode": "newest"},
        InvalidConfig,
        "choose from .*'partial'",
    ),
    "event time of nothing": ({"merge_mode": "event_time"}, InvalidConfig, "set ordering="),
    "unknown option": ({"options": {"write.batch.sise": 1}}, InvalidConfig, "write.batch.size"),
    "bad size": ({"options": {"write.batch.size": "much"}}, InvalidConfig, "32 MB"),
    "batch above task": (
        {"options": {"write.batch.size": "2 MB", "write.task.max.size": "1 MB"}},
        InvalidConfig,
        "task_max_size",
    ),
    "unknown table version": ({"table_version": 99}, InvalidConfig, "table_version=99"),
    "partial updates in version 9": (
        {"table_version": 9, "merge_mode": "partial"},
        InvalidConfig,
        "needs table_version=6",
    ),
    "unknown if_exists": ({"if_exists": "maybe"}, InvalidConfig, "'error', 'open' or 'replace'"),
    "one key, two partitions": (
        {"partition_by": ["p", "n"]},
        InvalidConfig,
        "add a second key column",
    ),
    "unknown store": ({"path": "hdfs://bucket/t"}, InvalidConfig, "hdfs:// is not supported"),
    "empty path": ({"path": ""}, InvalidConfig, "empty"),
    "NUL in the path": ({"path": "a\0b"}, InvalidConfig, "NUL"),
    "unknown home": ({"path": "~nobody-of-this-name/t"}, InvalidConfig, "nobody-of-this-name"),
    "meta column": (
        {"schema": SCHEMA.append(pa.field("_hoodie_commit_time", pa.string()))},
        InvalidInput,
        "_hoodie_commit_time.*belong",
    ),
    "name that Avro has not": (
        {"schema": SCHEMA.append(pa.field("a b", pa.string()))},
        InvalidInput,
        "'a b'.*letters",
    ),
    "nested name that Avro has not": (
        {"schema": SCHEMA.append(pa.field("s", pa.struct([("a-b", pa.string())])))},
        InvalidInput,
        "'s.a-b'.*letters",
    ),
    "nothing but nulls": (
        {"schema": SCHEMA.append(pa.field("z", pa.null()))},
        InvalidInput,
        "'z' has type null",
    ),
    "empty struct": (
        {"schema": SCHEMA.append(pa.field("z", pa.struct([])))},
        InvalidInput,
        "'z' has type struct<>",
    ),
    "names that differ by case": (
        {"schema": SCHEMA.append(pa.field("ID", pa.string()))},
        InvalidInput,
        "'ID'.*rename",
    ),
    "name after a space": ({"name": " t"}, InvalidConfig, "name ' t' begins .* choose another"),
    "name before a space": ({"name": "t "}, InvalidConfig, "name 't ' begins or ends"),
    "name of half a character": ({"name": "\ud800"}, InvalidConfig, "cannot be printed"),
}


@pytest.mark.parametrize("case", NOT_MADE)
def test_an_impossible_table_is_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The error of Table.create says what is wrong, and no files are left."""
    monkeypatch.chdir(tmp_path)
    changed, error, words = NOT_MADE[case]
    path = changed.get("path", tmp_path / "t")
    options = {k: v for k, v in {**KEYED, **changed}.items() if k != "path"}
    with pytest.raises(error, match=words):
        Table.create(path, **options)
    assert list(tmp_path.iterdir()) == []


def edited(table: Table, **changes: str | None) -> Path:
    """Change lines of a table's properties (None: remove) and return its folder."""
    file = Path(table.path, ".hoodie/hoodie.properties")
    keys = {k.replace("_", "."): v for k, v in changes.items()}
    kept = [x for x in file.read_text().splitlines() if x.partition("=")[0] not in keys]
    file.write_text("\n".join([*kept, *(f"{k}={v}" for k, v in keys.items() if v is not None)]))
    return Path(table.path)


NOT_OPENED: dict[str, tuple[dict[str, str | None], str]] = {
    "version 99": ({"hoodie_table_version": "99"}, "version 99"),
    "no version": ({"hoodie_table_version": None}, r"version \(none\)"),
    "merge on read by a rule of its own": (
        {"hoodie_table_type": "MERGE_ON_READ", "hoodie_compaction_payload_class": "a.Payload"},
        "log files of a merge-on-read table",
    ),
    "bad checksum": ({"hoodie_table_checksum": "1"}, "checksum does not match"),
    "checksum of letters": ({"hoodie_table_checksum": "abc"}, "checksum does not match"),
    "no name": ({"hoodie_table_name": None}, r"no hoodie\.table\.name"),
    "ORC files": ({"hoodie_table_base_file_format": "ORC"}, "ORC"),
    "no meta columns": ({"hoodie_populate_meta_fields": "false"}, "meta"),
    "no schema text": ({"hoodie_table_create_schema": "{"}, "schema"),
}


@pytest.mark.parametrize("case", NOT_OPENED)
def test_a_table_of_another_kind_is_not_opened(table: Table, case: str) -> None:
    """Table.open refuses tables it cannot read correctly, with file and reason; nothing changes."""
    changes, words = NOT_OPENED[case]
    root = edited(table, **changes)
    before = tree(root)
    with pytest.raises(InvalidTable, match=words) as caught:
        Table.open(root)
    assert "hoodie.properties" in str(caught.value)
    assert tree(root) == before


@pytest.mark.parametrize("content", [b"", b"hoodie.table.name", b"\xff\xfe", b"\\u12"])
def test_a_folder_with_broken_properties_is_not_a_table(table: Table, content: bytes) -> None:
    """An empty, truncated or binary hoodie.properties raises InvalidTable."""
    Path(table.path, ".hoodie/hoodie.properties").write_bytes(content)
    with pytest.raises(InvalidTable, match=r"hoodie\.properties"):
        Table.open(table.path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b'{"write', b"\xff", b"[]", b"[1]", b'""', b"null"),
        *(b'{"write.batch.sise": 1}', b'{"write.batch.size": {}}'),
    ],
)
def test_broken_options_stop_writers_only(table: Table, content: bytes) -> None:
    """A damaged options file is an error for writers that names it; readers do not need it."""
    before = table.to_arrow()
    Path(table.path, ".hoodie/.hoodie_nb/options.json").write_bytes(content)
    again = Table.open(table.path)
    assert again.to_arrow().equals(before)
    with pytest.raises(InvalidTable, match=r"options\.json.*delete it"):
        again.upsert(before.drop_columns(META_COLUMNS))


def test_a_pipe_in_place_of_the_options_stops_writers(table: Table) -> None:
    """It is refused as a damaged file is; nobody waits for what it may say."""
    path = Path(table.path, ".hoodie/.hoodie_nb/options.json")
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as threads:
        refused = threads.submit(load_options, LocalStorage(table.path))
        try:
            error = refused.exception(timeout=20)
        finally:
            with suppress(OSError):  # nobody reads it
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    assert isinstance(error, InvalidTable)
    assert "options.json cannot be read" in str(error)


def test_other_folders_are_neither_opened_nor_overwritten(tmp_path: Path) -> None:
    """`open` refuses a foreign folder, a file and a missing path, `create` the non-empty ones."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    plain = tmp_path / "plain"
    plain.write_text("a file")
    before = tree(tmp_path)
    for path in (foreign, plain, plain / "below", tmp_path / "missing"):
        with pytest.raises(InvalidTable, match="not a Hudi table"):
            Table.open(path)
    for mode in ("error", "open", "replace"):
        with pytest.raises(InvalidTable, match=r"not a Hudi table.*thesis\.txt"):
            Table.create(foreign, **KEYED, if_exists=mode)
        with pytest.raises(InvalidTable, match="is a file"):
            Table.create(plain, **KEYED, if_exists=mode)
    assert tree(tmp_path) == before


def test_if_exists_opens_replaces_or_refuses_an_existing_table(table: Table) -> None:
    """if_exists: error refuses, open keeps the rows if the tables agree, replace empties it."""
    stray = Path(table.path, "par1", "notes.txt")
    stray.write_text("mine")
    before = tree(table.path)
    with pytest.raises(InvalidTable, match="has a table already"):
        Table.create(table.path, **KEYED)
    again = Table.create(table.path, **KEYED, if_exists="open")
    assert without_meta(again.to_arrow()) == without_meta(table.to_arrow())
    for other in ({"record_key": "p"}, {"hive_style": True}, {"ordering": "ts"}):
        with pytest.raises(InvalidConfig, match="is a different table") as caught:
            Table.create(table.path, **{**KEYED, **other}, if_exists="open")
        assert next(iter(other)) in str(caught.value)
    assert tree(table.path) == before
    empty = Table.create(table.path, **KEYED, if_exists="replace")
    assert empty.to_arrow().num_rows == 0
    assert stray.read_text() == "mine"
    empty.upsert(data())
    assert hudi_rows(table.path) == without_meta(data())


def test_an_interrupted_create_is_completed_by_the_next(tmp_path: Path) -> None:
    """After a killed Table.create the next one creates the table."""
    left: list[list[str]] = [[".hoodie"], [".hoodie/.hoodie_nb"], [".hoodie/.hoodie_nb/tmp"]]
    for number, folders in enumerate(left):
        root = tmp_path / f"t{number}"
        for folder in folders:
            (root / folder).mkdir(parents=True)
        table = Table.create(root, **KEYED)
        table.upsert(data())
        assert hudi_rows(root) == without_meta(data())


@pytest.mark.parametrize("name", ["sp ü%t", "a%20b", "x#y?z", "colon:x", "~tilde", "[1]*", "2026"])
@pytest.mark.parametrize("form", ["text", "path", "uri", "relative", "slash", "home"])
def test_every_form_of_a_path_names_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    """Text, Path, file: URI, relative path, trailing slash and ~ give the same folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / name
    path: str | os.PathLike[str] = {
        "text": str(root),
        "path": root,
        "uri": root.as_uri(),
        "relative": f"./{name}",
        "slash": f"{root}//",
        "home": f"~/{name}",
    }[form]
    table = Table.create(path, **KEYED)
    assert Table.open(path).path == table.path == str(root)
    table.upsert(data())
    assert without_meta(Table.open(root).to_arrow()) == without_meta(data())
    assert hudi_rows(root if form != "uri" else root.as_uri()) == without_meta(data())
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_moved_table_is_the_same_table(table: Table, tmp_path: Path) -> None:
    """A table has no absolute paths: after a move it can be read and written, and is clean."""
    moved = tmp_path / "elsewhere"
    os.rename(table.path, moved)
    again = Table.open(moved)
    again.upsert(data())
    assert hudi_rows(moved) == without_meta(data())
    assert [str(f) for f in again.fsck()] == []


def test_the_checksum_is_that_of_java(table: Table) -> None:
    """hoodie.table.checksum is the CRC-32 of `.` and the name, as Java has it without database."""
    text = Path(table.path, ".hoodie/hoodie.properties").read_text()
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert int(values["hoodie.table.checksum"]) == zlib.crc32(b".t")
    assert json.loads(values["hoodie.table.create.schema"].replace("\\", ""))["type"] == "record"


def test_an_interval_does_not_feed_the_index_of_one_job(tmp_path: Path) -> None:
    """Sealed rows never reach index="state", so asking for both is refused, not ignored."""
    table = Table.create(tmp_path / "t", **KEYED)
    with pytest.raises(InvalidConfig, match="would duplicate keys"):
        write_stream(None, table, checkpoint=tmp_path / "ck", index="state", commit_interval=2)
