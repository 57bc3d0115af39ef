"""Values of any source become the table's types, equal, or are refused with column, row, remedy."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tables import hudi_rows, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidInput
from hoodie_nb.types.conversion import convertible

MAP, LIST = pa.map_(pa.string(), pa.int32()), pa.list_(pa.int32())
STRUCT = pa.struct([("a", pa.int32()), ("when", pa.date32()), ("tags", pa.list_(pa.string()))])
MOMENT, NAIVE, DAY = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
PRICE = pa.decimal128(7, 2)
MIDNIGHT, NOON = dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 12)
UTC_NOON = NOON.replace(tzinfo=dt.UTC)
PARIS = UTC_NOON.astimezone(dt.timezone(dt.timedelta(hours=1)))
STAMP = pd.Timestamp("2026-01-01 12:00:00.000000001")
GIVEN = tuple[Any, pa.DataType, list[Any] | str]


def objects(*values: Any) -> pd.Series:
    """Return a pandas column of Python objects."""
    return pd.Series([*values], dtype=object)


def small(*values: Any) -> pa.Array:
    """Return values in a dictionary of large strings."""
    return pa.array(values, pa.large_string()).dictionary_encode()


# source, table type → the values (as Python has them), or the words of the refusal
PAIRS: dict[str, GIVEN] = {
    # integers
    "int64, in range": (pd.Series([1, -(2**31)]), pa.int32(), [1, -(2**31)]),
    "int64, too large": (pd.Series([1, 2**31]), pa.int32(), "row 1 .*2147483648.*not in range"),
    "uint64": (pa.array([2**63 - 1], pa.uint64()), pa.int64(), [2**63 - 1]),
    "uint64, too large": (
        pa.array([2**63], pa.uint64()),
        pa.int64(),
        "row 0 .*9223372036854775808",
    ),
    "int with nulls in pandas": (pd.Series([1, None, 3]), pa.int32(), [1, None, 3]),
    "pandas Int64": (pd.Series([1, None], dtype="Int64"), pa.int32(), [1, None]),
    "floats with fractions": (pd.Series([1.0, 2.5]), pa.int64(), "row 1 .* 2.5 .*truncated"),
    "float beyond long": (pd.Series([2.0**63]), pa.int64(), "row 0 .*truncated"),
    "NaN in Arrow": (pa.array([1.0, math.nan]), pa.int32(), "row 1 .*nan"),
    "whole decimals": (objects(Decimal("2.00"), None), pa.int32(), [2, None]),
    "decimals with fractions": (objects(Decimal("2.50")), pa.int32(), "row 0 .*2.50.*lose|loss"),
    "objects": (objects(1, None, np.int8(3)), pa.int32(), [1, None, 3]),
    "object too large": (objects(1, 2**70), pa.int64(), "row 1 .*1180591620717411303424"),
    "texts of numbers": (objects("1", "2"), pa.int32(), "row 0 .*'1'.*cannot become"),
    "booleans for int": (pd.Series([True]), pa.int32(), "row 0 .*bool cannot become int32.*cast"),
    # floats
    "long, exact": (pd.Series([2**53]), pa.float64(), [2.0**53]),
    "long, inexact": (pd.Series([0, 2**53 + 1]), pa.float64(), "row 1 .*9007199254740993"),
    "double, exact": (pd.Series([0.5, None, np.inf]), pa.float32(), [0.5, None, math.inf]),
    "double, inexact": (pd.Series([0.5, 0.1]), pa.float32(), "row 1 .* 0.1 .*exactly.*round"),
    "double, too large": (pd.Series([1e300]), pa.float32(), "row 0 .*1e.300"),
    "half floats": (pa.array([0.5], pa.float16()), pa.float64(), [0.5]),
    "decimals for double": (objects(Decimal("0.5")), pa.float64(), "row 0 .*cannot become"),
    # decimals
    "python decimals": (objects(Decimal("1.5"), None), PRICE, [Decimal("1.50"), None]),
    "decimals and ints": (objects(Decimal("1.5"), 2), PRICE, [Decimal("1.50"), Decimal("2.00")]),
    "ints for decimal": (pd.Series([1, 99999]), PRICE, [Decimal("1.00"), Decimal("99999.00")]),
    "int with 6 digits": (pd.Series([1, 100000]), PRICE, "row 1 .* 100000 .*precision 7"),
    "too many digits": (objects(Decimal("1.234")), PRICE, "row 0 .*1.234.*data loss"),
    "of 256 bits": (pa.array([Decimal(1)], pa.decimal256(50, 4)), PRICE, [Decimal("1.00")]),
    "floats for decimal": (pd.Series([9.5]), PRICE, "row 0 .* 9.5 .*cannot become"),
    # text and bytes
    "categories": (pd.Series(["a", None], dtype="category"), pa.string(), ["a", None]),
    "a dictionary": (small("a", None), pa.string(), ["a", None]),
    "a dictionary of views": (
        pa.DictionaryArray.from_arrays(
            pa.array([1, None, 0], pa.uint32()), pa.array(["a", "b" * 20], pa.string_view())
        ),
        pa.string(),
        ["b" * 20, None, "a"],
    ),
    "a view": (pa.array(["a", "b" * 99], pa.string_view()), pa.string(), ["a", "b" * 99]),
    "pandas string": (pd.Series(["a", None], dtype="string"), pa.string(), ["a", None]),
    "text and numbers": (
        objects("a", 1),
        pa.string(),
        "row 1 .* 1 of type int.*integers and texts.*use one",
    ),
    "a surrogate": (objects("a", "\ud800"), pa.string(), "row 1 .*UTF-8"),
    "numbers for text": (pd.Series([1]), pa.string(), "row 0 .*int64 cannot become string.*cast"),
    "bytes": (objects(b"\xff", None), pa.binary(), [b"\xff", None]),
    "text for bytes": (objects(b"\xff", "a"), pa.binary(), "text is not bytes.*encode"),
    "bytes for text": (objects(b"a"), pa.string(), "row 0 .*cannot become"),
    "pandas boolean": (pd.Series([True, None], dtype="boolean"), pa.bool_(), [True, None]),
    "object booleans": (objects(True, None), pa.bool_(), [True, None]),
    "numbers for booleans": (pd.Series([0, 1]), pa.bool_(), "row 0 .*cannot become"),
    # dates and times
    "datetime64 at midnight": (pd.Series([MIDNIGHT, None]), DAY, [MIDNIGHT.date(), None]),
    "datetime64 at noon": (pd.Series([MIDNIGHT, NOON]), DAY, "row 1 .*time of day.*floor"),
    "moments for dates": (pd.Series([UTC_NOON]), DAY, "row 0 .*time zone"),
    "python dates": (objects(MIDNIGHT.date(), None, pd.NaT), DAY, [MIDNIGHT.date(), None, None]),
    "date64": (pa.array([MIDNIGHT.date()], pa.date64()), DAY, [MIDNIGHT.date()]),
    "dates and datetimes": (
        objects(MIDNIGHT.date(), NOON),
        DAY,
        "row 1 .*dates and times.*use one",
    ),
    "nanoseconds": (pd.Series([NOON, STAMP]), NAIVE, "row 1 .*lose data"),
    "objects of nanoseconds": (objects(NOON, STAMP), NAIVE, "row 1 .*nanoseconds.*floor"),
    "another zone": (pd.Series([PARIS, None]), MOMENT, [UTC_NOON, None]),
    "objects of a zone": (objects(PARIS, None), MOMENT, [UTC_NOON, None]),
    "naive for moments": (objects(None, NOON), MOMENT, "row 1 .*time zone.*choosing"),
    "moments for naive": (objects(UTC_NOON), NAIVE, "row 0 .*time zone.*choosing"),
    "both": (objects(UTC_NOON, NOON), MOMENT, "row 1 .*have a time zone, others do not"),
    "beyond microseconds": (pa.array([10**13], pa.timestamp("s")), NAIVE, "row 0 .*out of bounds"),
    "texts of dates": (objects("2026-01-01"), DAY, "row 0 .*cannot become|other values"),
    # lists, structs and maps
    "lists": (objects([1, None], None, [], (3,)), LIST, [[1, None], None, [], [3]]),
    "arrays": (objects(np.array([1, 2]), None), LIST, [[1, 2], None]),
    "list of longs": (objects([1], [2**40]), LIST, "row 1 .*1099511627776"),
    "no list": (objects([1], 2), LIST, "row 1 .*int is not a list.*give a list"),
    "fixed lists": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), LIST, [[1, 2], None]),
    "dicts": (
        objects({"a": 1, "when": MIDNIGHT, "tags": ["x"]}, None, {"a": None}),
        STRUCT,
        [
            {"a": 1, "when": MIDNIGHT.date(), "tags": ["x"]},
            None,
            {"a": None, "when": None, "tags": None},
        ],
    ),
    "dict with noon": (objects({"when": MIDNIGHT}, {"when": NOON}), STRUCT, "row 1 .*time of day"),
    "dict with a field too many": (objects({"a": 1}, {"b": 2}), STRUCT, r"row 1 .*\['b'\].*drop"),
    "Arrow's structs": (
        pa.array([{"a": 2**40, "b": None}, None]),
        STRUCT,
        "row 0 .*1099511627776",
    ),
    "lists of dicts": (
        objects([{"a": 1}, {"a": None}], None, []),
        pa.list_(pa.struct([("a", pa.int64())])),
        [[{"a": 1}, {"a": None}], None, []],
    ),
    "pairs": (objects([("k", 1)], None, (("l", 2),)), MAP, [[("k", 1)], None, [("l", 2)]]),
    "dicts for maps": (objects({"k": 1, "l": None}, {}), MAP, [[("k", 1), ("l", None)], []]),
    "pair with a float": (objects([("k", 1)], [("k", 1.5)]), MAP, "row 1 .*1.5.*truncated"),
    "null key": (objects([(None, 1)]), MAP, "row 0 .*key of a map is null"),
    "key twice": (objects([("k", 1)], [("l", 1), ("l", 2)]), MAP, "row 1 .*has a key twice.*keep"),
    "key twice in Arrow": (
        pa.array([[("k", 1), ("l", 2)], None, [("k", 1), ("k", 1)]], MAP),
        MAP,
        "row 2 .*has a key twice",
    ),
    "key twice inside lists": (
        pa.array([[[("k", 1)], [("k", 1)]], [[("k", 1), ("k", 2)]]], pa.list_(MAP)),
        pa.list_(MAP),
        "row 1 .*has a key twice",
    ),
    "no pairs": (objects([("k", 1, 2)]), MAP, "row 0 .*pairs of a key and a value"),
    "lists of structs for maps": (
        pa.array([[{"key": "k", "value": 1}], None]),
        MAP,
        [[("k", 1)], None],
    ),
    "maps of longs": (
        pa.array([[("k", 1)], None, [("l", 2**40)]], pa.map_(pa.string(), pa.int64())),
        MAP,
        "row 2 .*1099511627776",
    ),
}
# only nulls, of any type, for any type
EMPTY = [pd.Series([None, None]), pd.Series([np.nan] * 2), pd.Series([pd.NaT] * 2), pa.nulls(2)]
EMPTY += [pa.nulls(2, pa.duration("s")), pa.nulls(2, pa.list_(pa.int8())), objects(pd.NA, None)]


def rows_of(column: Any) -> Any:
    """Return a frame or an Arrow table with the column and keys."""
    keys = [f"k{n}" for n in range(len(column))]
    if isinstance(column, pd.Series):
        return pd.DataFrame({"id": keys, "c": column})
    return pa.table({"id": keys, "c": column})


def table_of(path: Path, kind: pa.DataType) -> Table:
    """Return an empty table with a column `c` of the type."""
    schema = pa.schema([("id", pa.string()), ("c", kind)])
    return Table.create(path / "t", schema=schema, record_key="id")


def values_of(table: Table) -> list[Any]:
    """Return the column's values in the order of the keys."""
    return table.to_arrow(meta=False).sort_by("id").column("c").to_pylist()


@pytest.mark.parametrize("case", PAIRS)
def test_a_value_is_stored_unchanged_or_refused_by_row(tmp_path: Path, case: str) -> None:
    """Each source becomes the table's type with equal values, or its first bad row is named."""
    column, kind, expected = PAIRS[case]
    table = table_of(tmp_path, kind)
    if isinstance(expected, list):
        table.upsert(rows_of(column))
        assert values_of(table) == expected
        assert table.to_arrow(meta=False).schema.field("c").type == kind
        return
    before = tree(table.path)
    with pytest.raises(InvalidInput, match=f"(?s)column 'c' .*{expected}"):
        table.upsert(rows_of(column))
    assert tree(table.path) == before


@pytest.mark.parametrize("kind", [pa.int32(), PRICE, DAY, MOMENT, pa.string(), LIST, STRUCT, MAP])
@pytest.mark.parametrize("column", EMPTY)
def test_a_column_of_nulls_fits_every_type(tmp_path: Path, kind: pa.DataType, column: Any) -> None:
    """A column without values is stored as nulls, whatever type its source has given it."""
    table = table_of(tmp_path, kind)
    table.upsert(rows_of(column))
    assert values_of(table) == [None, None]


ROWS = [
    {"id": "a", "n": 1, "day": MIDNIGHT.date(), "tags": {"x": 1}, "price": Decimal("1.50")},
    {"id": "b", "n": None, "day": None, "tags": None, "price": None},
]
SCHEMA = pa.schema(
    [("id", pa.string()), ("n", pa.int32()), ("day", DAY), ("tags", MAP), ("price", PRICE)]
)
WIDE = pa.schema(
    [
        ("id", pa.large_string()),
        ("n", pa.int64()),
        ("day", pa.timestamp("ms")),
        ("tags", pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.int64())]))),
        ("price", pa.decimal128(38, 18)),
    ]
)


class Stream:
    """What Polars and others are to a writer: only `__arrow_c_stream__`, with their own types."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


def wide() -> pa.Table:
    """Return the rows in the types that Polars and DuckDB give."""
    pairs = [{"key": "x", "value": 1}]
    days = [MIDNIGHT, None]
    rows = [{**row, "day": d} for row, d in zip(ROWS, days, strict=True)]
    rows[0]["tags"] = pairs
    return pa.Table.from_pylist(rows, schema=WIDE)


SOURCES = {
    "dicts": lambda: ROWS,
    "dicts that lack a key": lambda: [ROWS[0], {"id": "b"}],
    "pandas": lambda: pd.DataFrame(ROWS),
    "Arrow": wide,
    "a batch": lambda: wide().to_batches()[0],
    "a reader": lambda: pa.RecordBatchReader.from_batches(WIDE, wide().to_batches(max_chunksize=1)),
    "a stream": lambda: Stream(wide()),
    "DuckDB": lambda: duckdb.from_arrow(wide()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_rows(tmp_path: Path, source: str) -> None:
    """Dicts, pandas, Arrow tables, batches, readers and streams are stored as equal rows."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    commit = table.upsert(SOURCES[source]())
    assert commit is not None and commit.inserts == 2
    wanted = [{**row, "tags": row["tags"] and [*row["tags"].items()]} for row in ROWS]
    found = table.to_arrow(meta=False)
    assert found.sort_by("id").to_pylist() == wanted
    assert found.schema == SCHEMA


def test_a_reader_with_a_wrong_column_is_not_read(tmp_path: Path) -> None:
    """The columns of a stream are checked before its first batch is taken."""
    table, taken = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id"), []

    def batches() -> Iterator[pa.RecordBatch]:
        taken.append(1)
        yield from bad.to_batches()

    bad = wide().set_column(1, "n", pa.array(["1", "2"]))
    with pytest.raises(InvalidInput, match="'n' has type string, but the table has int32"):
        table.upsert(pa.RecordBatchReader.from_batches(bad.schema, batches()))
    assert taken == []


def test_a_stream_of_something_else_is_refused(tmp_path: Path) -> None:
    """A single column, as Polars gives a Series, is no table; the error says so."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    with pytest.raises(InvalidInput, match=r"the ChunkedArray has no columns.*give a table"):
        table.upsert(pa.chunked_array([["a"]]))


def test_the_row_of_a_bad_value_counts_all_batches(tmp_path: Path) -> None:
    """A bad value in a later batch of a stream is named by its row in the whole stream."""
    table = table_of(tmp_path, pa.int32())
    rows = pa.table({"id": [f"k{n}" for n in range(9)], "c": [*range(7), 2**40, 2**41]})
    with pytest.raises(InvalidInput, match=r"'c' .* row 7 \(from 0\) has 1099511627776"):
        table.upsert(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(2)))


def test_readers_and_json_of_an_api_come_through_hudi_rs(tmp_path: Path) -> None:
    """JSON objects with nested lists and dicts are stored as another reader returns them."""
    schema = pa.schema([("id", pa.int64()), ("c", pa.list_(pa.struct([("a", pa.float64())])))])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert(json.loads('[{"id": 1, "c": [{"a": 1}, {"a": null}]}, {"id": 2, "c": null}]'))
    assert hudi_rows(table.path) == without_meta(table.to_arrow())
    assert table.to_arrow(["c"]).column(0).to_pylist() == [[{"a": 1.0}, {"a": None}], None]


def test_types_without_a_common_value_are_refused_before_any_row() -> None:
    """A source that has a type only, such as a stream's schema, is refused by its type."""
    assert convertible(pa.int64(), pa.int32())
    assert convertible(pa.large_list(pa.int64()), LIST)
    assert not convertible(pa.list_(pa.string()), LIST)
    assert not convertible(pa.struct([("a", pa.string())]), STRUCT)
    assert not convertible(pa.map_(pa.string(), pa.string()), MAP)
    assert convertible(pa.dictionary(pa.int8(), pa.large_string()), pa.string())
