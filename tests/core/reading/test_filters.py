"""Reads with `filters`, `partitions` and `columns`: all the right rows, from fewer files."""

from __future__ import annotations

import datetime as dt
import operator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from counted_storage import CountedStorage
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tables import canonical, without_meta

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition.keys import partition_values
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.files.base_file import MAX_KEY, MIN_KEY, ROW_GROUP, open_base_file
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.reading.filters import RowFilter
from hoodie_nb.reading.read import Scan, to_arrow

OLD = pa.schema(
    {
        "id": pa.string(),
        "p": pa.string(),
        "n": pa.int32(),
        "f": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "d": pa.decimal128(6, 2),
        "b": pa.bool_(),
        "r": pa.float32(),
    }
)
NEW = pa.schema(
    [
        *(f for f in OLD if f.name not in ("n", "d", "r")),
        *(pa.field("n", pa.int64()), pa.field("d", pa.decimal128(9, 3))),
        *(pa.field("r", pa.float64()), pa.field("late", pa.string())),
    ]
)
DAY = dt.datetime(2026, 3, 29, 1, tzinfo=dt.UTC)
POOLS: dict[str, list[Any]] = {
    "id": ["k00", "k03", "k07", "k11", "k15", "zz", "\uffff", "😀"],
    "p": ["x", "y y", "10", "", "z"],
    "n": [-5, 0, 1, 2, 7, 2**40],
    "f": [-1.0, -0.0, 0.0, 1.5, 9.0],
    "at": [DAY, DAY + dt.timedelta(hours=1), DAY + dt.timedelta(days=400)],
    "d": [Decimal("-1.10"), Decimal("0.00"), Decimal("7.125")],
    "b": [True, False],
    "r": [0.1, 0.5, -2.0],
    "late": ["a", "b"],
}
COMPARE = {
    **{"=": operator.eq, "==": operator.eq, "!=": operator.ne},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
}


def value(column: str, number: int) -> Any:
    """Return a value of the column; every fifth is null, and some floats are NaN."""
    if number % 5 == 4 and column not in ("id", "p"):
        return None
    if column in ("f", "r") and number % 5 == 3:
        return float("nan")
    pool = POOLS[column]
    return pool[number % len(pool)]


def commit(path: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    """Commit rows with the schema of a writer that has changed it."""
    handle = open_table(path)
    intake = Intake(handle.config, schema)
    keyed = keyed_in_order(pa.Table.from_pylist(rows, schema=schema), intake)
    coordinator = WriteCoordinator(handle, EventLog())
    with coordinator.writing(intake, Shape(index="bloom")) as work:
        work.statuses = write_in_process(keyed, work.plan, EventLog())
    coordinator.complete([work.result], intake)


@pytest.fixture(scope="module")
def evolved(new_folder) -> Table:
    """A table of many small files: the older ones lack a column and have narrower types."""
    folder = new_folder() / "t"
    options = {"hoodie.parquet.small.file.limit": 0}
    Table.create(
        folder, schema=OLD, record_key="id", partition_by="p", url_encode=True, options=options
    )
    for part in range(6):
        schema = OLD if part < 3 else NEW
        small = {"n": 3, "d": 2}  # what the older types can hold
        rows = [
            {
                c: value(c, (key * 3 + part) % (small.get(c, 99) if part < 3 else 99))
                for c in schema.names
            }
            | {"id": f"k{part * 3 + key:02}", "p": value("p", part + key // 2)}
            for key in range(3)
        ]
        commit(folder, schema, rows)
    commit(folder, NEW, [{"id": "😀", "p": "x", "n": 1}, {"id": "\uffff", "p": None, "n": 2}])
    return Table.open(folder)


def holds(row: dict[str, Any], clause: tuple[str, str, Any]) -> bool:
    """Return whether a condition is true for a row; a comparison with null is not."""
    column, word, wanted = clause
    held = row[column]
    if word in ("in", "not in"):
        return (held in wanted) == (word == "in")
    return held is not None and bool(COMPARE[word](held, wanted))


@st.composite
def clauses(draw: Any) -> tuple[str, str, Any]:
    """Return a condition on one column."""
    column = draw(st.sampled_from(sorted(POOLS)))
    word = draw(st.sampled_from([*COMPARE, "in", "not in"]))
    word = word if column != "b" or word in ("=", "!=", "in") else "="
    values = st.sampled_from(POOLS[column])
    if (column, word) in (("f", "in"), ("f", "not in")):
        values = values.filter(bool)  # Arrow's `isin` does not count -0.0 as 0.0
    if word in ("in", "not in"):
        return column, word, draw(st.lists(values, min_size=1, max_size=3, unique=True))
    return column, word, draw(values)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(clauses(), min_size=1, max_size=3), min_size=1, max_size=3))
@example([[("f", "!=", 1.5)]])
@example([[("p", "=", "")]])
@example([[("r", "=", 0.1)]])
@example([[("n", "not in", [0, 1, 2])]])
def test_a_filter_keeps_what_a_dict_keeps(evolved: Table, either: Any) -> None:
    """Lists of conditions keep the right rows, for every type and after a change of the type."""
    rows = evolved.to_arrow(meta=False).to_pylist()
    kept = [r for r in rows if any(all(holds(r, c) for c in every) for every in either)]
    assert without_meta(evolved.to_arrow(filters=either)) == canonical(kept)


@settings(max_examples=20, deadline=None)
@given(clauses(), clauses())
def test_an_expression_keeps_what_it_keeps_of_all_rows(evolved: Table, one: Any, two: Any) -> None:
    """Negated and null-aware expressions keep the rows of filtering the whole table."""
    first, second = (pc.field(c) if w == "in" else _expression(c, w, v) for c, w, v in (one, two))
    first = first.is_null() if one[1] == "in" else first
    second = second.is_valid() if two[1] == "in" else second
    every = evolved.to_arrow()
    for filters in (~first, first & ~second, ~(first | second), first.is_null() | second):
        wanted = canonical(every.filter(filters).to_pylist())
        assert canonical(evolved.to_arrow(filters=filters).to_pylist()) == wanted


def _expression(column: str, word: str, wanted: Any) -> pc.Expression:
    if word == "not in":
        return ~pc.field(column).isin([*wanted, None])
    return COMPARE[word](pc.field(column), wanted)


def opened(path: str | Path, **options: Any) -> tuple[int, int]:
    """Return how many base files a read opens, and how many rows it returns."""
    handle = open_table(path)
    assert handle.schema.names  # has read the newest commit
    storage = CountedStorage(handle.storage)
    handle.storage = storage
    rows = to_arrow(handle, **options).num_rows
    return storage.requests["GET"] - 1, rows  # hoodie.properties is read, too


def test_partitions_that_cannot_match_are_not_opened(tmp_path: Path) -> None:
    """A filter on a partition column, or `partitions`, opens only the files that it names."""
    schema = pa.schema({"id": pa.string(), "day": pa.date32(), "n": pa.int32(), "v": pa.int64()})
    keys = {"record_key": ["id", "v"], "partition_by": ["day", "n"], "hive_style": True}
    table = Table.create(tmp_path / "t", schema=schema, **keys)
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]
    rows = [{"id": f"{d}{n}", "day": d, "n": n, "v": n} for d in days for n in (1, 2, 10)]
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    assert opened(table.path) == (9, 9)
    assert opened(table.path, filters=[("day", "=", days[0])]) == (6, 3)  # 3 files of null days
    assert opened(table.path, filters=pc.field("n") > 2) == (3, 3)
    assert opened(table.path, filters=pc.field("day").is_null()) == (3, 3)
    assert opened(table.path, filters=(pc.field("n") == 1) & (pc.field("v") > 5)) == (3, 0)
    assert opened(table.path, filters=[("n", "=", 77)]) == (0, 0)
    assert opened(table.path, partitions=["day=2026-01-01/n=1", "day=2026-01-02/n=2"]) == (2, 2)
    both = {"partitions": ["day=2026-01-01/n=1"], "filters": [("n", "!=", 1)]}
    assert opened(table.path, **both) == (0, 0)


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        ("2026-01-02", pa.date32(), dt.date(2026, 1, 2)),
        ("a%2Fb", pa.string(), "a/b"),
        ("7", pa.int32(), 7),
        ("true", pa.bool_(), True),
        ("007", pa.int32(), None),
        ("7", pa.float64(), None),
        ("a/b", pa.string(), None),
        ("default", pa.string(), None),
        ("__HIVE_DEFAULT_PARTITION__", pa.string(), None),
        ("x", pa.int64(), None),
    ],
)
def test_a_path_gives_a_value_only_if_it_determines_it(text, kind, found):
    """Texts of null, and texts that the value would not have, say nothing about the rows."""
    config = TableConfig("t", ("id",), ("p",), url_encode=True)
    values = partition_values(text, config, pa.schema({"p": kind}))
    assert {n: v.as_py() for n, v in values.items()} == ({} if found is None else {"p": found})
    other = TableConfig("t", ("id",), ("p",), unwritable="its keys have another form")
    assert partition_values(text, other, pa.schema({"p": kind})) == {}


def test_row_groups_and_files_are_left_out_by_keys_and_statistics(tmp_path: Path) -> None:
    """A key outside a file's range, and values outside a row group's statistics, are not read."""
    schema = pa.schema({"id": pa.string(), "n": pa.int64(), "f": pa.float64()})
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    count = 2 * ROW_GROUP + 10
    numbers = pa.array(range(count), pa.int64())
    ids = pc.utf8_lpad(pc.cast(numbers, pa.string()), 7, "0")
    table.insert(pa.table([ids, numbers, pc.cast(numbers, pa.float64())], schema=schema))
    handle = open_table(table.path)
    (piece,) = handle.file_groups()
    path = handle.storage.fetch(piece.path)
    file = open_base_file(path)
    assert file.num_row_groups == 3
    for filters, groups in {
        "id > '9'": (pc.field("id") > "9", []),
        "the record key's text": (pc.field("_hoodie_record_key").isin(["a", "b"]), []),
        "n": (pc.field("n") >= ROW_GROUP, [1, 2]),
        "both": ((pc.field("id") < "0000009") & (pc.field("n") > 3), [0]),
        "floats may be NaN": (pc.field("f") > count, [0, 1, 2]),
    }.values():
        scan = Scan.of(handle, filters=filters)
        assert [*scan.filter.row_groups(file, path)] == groups
        assert scan.read().num_rows == table.to_arrow().filter(filters).num_rows


def parquet(rows: pa.Table) -> pa.parquet.ParquetFile:
    """Return an open file with these rows and metadata."""
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(rows, sink)
    return pa.parquet.ParquetFile(pa.BufferReader(sink.getvalue()))


def test_statistics_of_another_type_are_not_used(tmp_path: Path) -> None:
    """Integers of a column that is text now are compared as text, so their range says nothing."""
    file, path = tmp_path / "f.parquet", str(tmp_path / "f.parquet")
    for held, groups in ((pa.array([10, 20]), [0]), (pa.array(["10", "20"]), [])):
        pa.parquet.write_table(pa.table({"v": held}), file)
        kept = RowFilter.of(pc.field("v") > "5", pa.schema({"v": pa.string()}))
        assert [*kept.row_groups(pa.parquet.ParquetFile(path), path)] == groups


def test_a_key_range_is_not_used_if_its_order_is_not_known() -> None:
    """Between U+E000 and U+FFFF a range of Java (UTF-16) holds keys that UTF-8 order excludes."""
    schema = pa.schema({"id": pa.string()})
    for high, excluded in (("b", True), ("\ufffd", False)):
        metadata = {MIN_KEY: "a", MAX_KEY: high}
        file = parquet(pa.table({"_hoodie_record_key": ["a"]}).replace_schema_metadata(metadata))
        known = RowFilter.of(pc.field("id") == "😀", schema, "id")
        assert known._excludes(known._key_range(file)) is excluded


def test_damaged_pages_are_found_behind_a_filter(tmp_path: Path) -> None:
    """A page that the filter needs is verified as in a read of all rows."""
    schema = pa.schema({"id": pa.string(), "n": pa.int64()})
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.insert(pa.table([["a", "b"], [1, 2]], schema=schema))
    (path,) = (tmp_path / "t").glob("*.parquet")
    file = open_base_file(str(path))
    column = file.metadata.row_group(0).column(file.schema_arrow.names.index("n"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidTable, match=path.name):
        table.to_arrow(filters=[("n", ">", 0)])


def test_what_does_not_exist_is_named_with_what_does(evolved: Table) -> None:
    """Unknown columns and partitions, and filters that are none, are refused with the choice."""
    for wrong, message in {
        "column": ({"columns": ["nope"]}, r"\['nope'\] are not in the table; it has .*'id'"),
        "partition": ({"partitions": ["nope"]}, r"\['nope'\] are not in the table .* it has \['"),
        "one of two": ({"partitions": ["x", "q"]}, r"partitions \['q'\] are not"),
        "filter": ({"filters": [("nope", "=", 1)]}, r"Name\(nope\).*its columns are .*id: string"),
        "number": ({"filters": pc.field(0) == "k00"}, "number of a column instead of its name"),
        "type": ({"filters": [("id", ">", 1)]}, "does not fit the table .*equal|greater"),
        "operator": ({"filters": [("id", "~", 1)]}, "is not a filter"),
        "empty": ({"filters": []}, "is not a filter"),
        "text": ({"filters": "n >"}, "is not a usable condition"),
        "not a condition": ({"filters": pc.field("n")}, "must evaluate to bool"),
    }.values():
        with pytest.raises(InvalidConfig, match=message):
            evolved.to_arrow(**wrong)
    first = evolved.history()["requested_time"][0]
    assert evolved.to_arrow(partitions=["z"], as_of=first).num_rows == 0  # it exists since later


def test_columns_of_the_filter_are_not_returned(evolved: Table) -> None:
    """The filter may name other columns than those that are returned, also Hudi's own."""
    found = evolved.to_arrow(["id"], filters=pc.field("_hoodie_record_key") == "k03")
    assert found.to_pydict() == {"id": ["k03"]}
    frame = evolved.to_pandas(filters=[("id", "in", ["k00", "k01"])], meta=False)
    assert sorted(frame["id"]) == ["k00", "k01"]
    assert list(frame.columns) == NEW.names
