"""The rows of a slice: order, filters, columns, copies of a key, deletes by flag, types."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from log_writer import (
    SCHEMA,
    WRAPPER,
    LoggedSlice,
    avro_block,
    delete_block,
    parquet_block,
    times,
)
from tables import hudi_table

from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.folding import LogMerge
from hoodie_nb.reading.filters import RowFilter
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.types.schema import FILE_NAME
from hoodie_nb.view.file_groups import FileSlice

BASE = [{"id": key, "ts": 4, "v": number} for number, key in enumerate("abcde")]


def logged(root: Path, rows: list[dict[str, Any]], **options: Any) -> LoggedSlice:
    """Return a slice with one log of these rows."""
    table = LoggedSlice(root, BASE, **options)
    (time17,) = times(1)
    table.log(time17, parquet_block(time17, [table.row(time17, row) for row in rows], SCHEMA))
    table.commit(time17)
    return table


def test_rows_keep_their_places(tmp_path: Path) -> None:
    """Updated rows are where the base has them, new ones are at the end."""
    new = [{"id": "x", "ts": 1, "v": 20}, {"id": "c", "ts": 5, "v": 21}]
    table = logged(tmp_path, new)
    assert [(row["id"], row["v"]) for row in table.read()] == [
        *(("a", 0), ("b", 1), ("c", 21), ("d", 3), ("e", 4), ("x", 20))
    ]


def test_a_slice_may_have_no_base_file(tmp_path: Path) -> None:
    """Then its rows are those of the logs."""
    table = logged(tmp_path, [{"id": "x", "ts": 1, "v": 20}])
    piece = FileSlice("", table.name.file_id, times(1)[0], "", 0, logs=tuple(table.logs))
    storage = LocalStorage(str(tmp_path))
    (found,) = slice_rows(storage, piece, SCHEMA, None, LogMerge(table.field))
    assert found.to_pylist() == [{"id": "x", "ts": 1, "v": 20}]


def test_a_filter_is_applied_to_merged_rows(tmp_path: Path) -> None:
    """A late log row does not show, although the statistics exclude the newer row of the base."""
    table = logged(tmp_path, [{"id": "a", "ts": 3, "v": 70}, {"id": "b", "ts": 5, "v": 71}])
    kept = RowFilter.of(pc.field("v") >= 70, stored_schema(SCHEMA), "id")
    only_v = pa.schema([SCHEMA.field("v")])
    assert table.read(kept, only_v) == [{"v": 71}]


def test_a_filter_of_the_key_leaves_row_groups_out(tmp_path: Path) -> None:
    """It returns the same rows, and a row group that it excludes is not even decoded."""
    table = logged(tmp_path, [{"id": "a", "ts": 5, "v": 70}, {"id": "x", "ts": 5, "v": 71}])
    rows = pq.read_table(table.base)
    pq.write_table(rows.sort_by("id"), table.base, row_group_size=1)
    group = pq.ParquetFile(table.base).metadata.row_group(4).column(0)
    content = bytearray(table.base.read_bytes())
    begin = group.dictionary_page_offset or group.data_page_offset
    content[begin : begin + 4] = b"\xff\xff\xff\xff"
    table.base.write_bytes(content)
    kept = RowFilter.of(pc.field("id") < "c", stored_schema(SCHEMA), "id")
    assert [row["v"] for row in table.read(kept)] == [70, 1]


def test_a_log_row_meets_the_first_copy_of_its_key(tmp_path: Path) -> None:
    """Copies that `insert` made stay, in the same piece of the base or a later one; as in Java."""
    table = logged(tmp_path, [{"id": "a", "ts": 5, "v": 70}, {"id": "b", "ts": 3, "v": 71}])
    rows = pq.read_table(table.base)
    pq.write_table(pa.concat_tables([rows] * 3), table.base)
    found = [row["v"] for row in table.read()]
    assert found == [70, 1, 2, 3, 4, *([0, 1, 2, 3, 4] * 2)]


def test_meta_columns_are_those_of_the_log(tmp_path: Path) -> None:
    """A log row names its instant, and the file group in place of a file; as in hudi-rs."""
    table = logged(tmp_path, [{"id": "a", "ts": 5, "v": 70}])
    found = table.read(None, stored_schema(SCHEMA))
    theirs = hudi_table(tmp_path)
    assert theirs is not None
    assert sorted(theirs.to_pylist(), key=lambda row: row["id"]) == found
    assert found[0]["_hoodie_commit_time"] == times(1)[0]
    assert found[0][FILE_NAME] == table.name.file_id
    assert found[1][FILE_NAME] == str(table.name)


@pytest.mark.parametrize("make", [avro_block, parquet_block])
@pytest.mark.parametrize(
    ("flag", "mark", "deleted"),
    [
        ("_hoodie_is_deleted", True, True),
        ("_hoodie_is_deleted", False, False),
        ("_hoodie_operation", "D", True),
        ("_hoodie_operation", "-U", True),
        ("_hoodie_operation", "U", False),
    ],
)
def test_a_row_may_be_a_delete(
    tmp_path: Path, make: Any, flag: str, mark: Any, *, deleted: bool
) -> None:
    """A flag or operation in the row makes it a delete with the row's ordering value."""
    kind = pa.bool_() if flag == "_hoodie_is_deleted" else pa.string()
    schema = SCHEMA.append(pa.field(flag, kind))
    table = LoggedSlice(tmp_path, BASE)
    (time17,) = times(1)
    new = [{"id": "a", "ts": 5, "v": 70, flag: mark}, {"id": "b", "ts": 3, "v": 71, flag: mark}]
    table.log(time17, make(time17, [table.row(time17, row) for row in new], schema))
    found = {row["id"]: row["v"] for row in table.read()}
    assert found == {**({} if deleted else {"a": 70}), "b": 1, "c": 2, "d": 3, "e": 4}


@pytest.mark.parametrize("make", [avro_block, parquet_block])
def test_a_log_may_be_older_than_a_column(tmp_path: Path, make: Any) -> None:
    """A column added since is null, a widened one is converted."""
    table = LoggedSlice(tmp_path, BASE)
    old = pa.schema([("id", pa.string()), ("ts", pa.int32()), ("v", pa.int32())])
    (time17,) = times(1)
    table.log(time17, make(time17, [table.row(time17, {"id": "a", "ts": 5, "v": 70})], old))
    wider = SCHEMA.append(pa.field("w", pa.string()))
    assert table.read(None, wider)[:2] == [
        {"id": "a", "ts": 5, "v": 70, "w": None},
        {"id": "b", "ts": 4, "v": 1, "w": None},
    ]


ORDERED = {  # ascending, as Java compares
    pa.int32(): [-7, 3, 9],
    pa.int64(): [-(2**63) + 1, 0, 2**63 - 1],
    pa.float64(): [-math.inf, -0.0, 0.0, 1.5, math.inf, math.nan],
    pa.string(): ["", "B", "a", "é", "\uffff", "\U0001f600"],
}


@pytest.mark.parametrize("kind", ORDERED, ids=str)
@pytest.mark.parametrize("among", ["logs", "base and log"])
@pytest.mark.parametrize("what", ["row", "delete"])
def test_ordering_values_of_every_type(
    tmp_path: Path, kind: pa.DataType, among: str, what: str
) -> None:
    """Of each pair of values, in either order, the greater one wins; a delete has its type."""
    schema = pa.schema([("id", pa.string()), ("ts", kind), ("v", pa.int64())])
    values = ORDERED[kind]
    pairs = {f"{m}-{n}": (a, b) for m, a in enumerate(values) for n, b in enumerate(values)}
    first = [{"id": key, "ts": old, "v": 1} for key, (old, _) in pairs.items()]
    base = [{"id": "-", "ts": values[0], "v": 0}] if among == "logs" else first
    table = LoggedSlice(tmp_path, base, schema=schema)
    older, newer = times(2)
    if among == "logs":
        table.log(older, parquet_block(older, [table.row(older, r) for r in first], schema))
    if what == "row":
        rows = [table.row(newer, {"id": k, "ts": v, "v": 2}) for k, (_, v) in pairs.items()]
        table.log(newer, parquet_block(newer, rows, schema))
    else:
        deletes = [(key, new) for key, (_, new) in pairs.items()]
        table.log(newer, delete_block(newer, deletes, WRAPPER[kind]))
    found = {row["id"]: row["v"] for row in table.read() if row["id"] != "-"}
    late = {key for key in pairs if int(key[0]) > int(key[2])}
    wanted = {key: 1 if key in late else 2 for key in pairs}
    if what == "delete":
        wanted = dict.fromkeys(late, 1)
    assert found == wanted


def test_a_delete_with_a_value_of_another_type_always_wins(tmp_path: Path) -> None:
    """Text or an int for a long, and the int 0, which Java writes for none, delete the row.

    So does Java among logs; hudi-rs compares an int with a long, and keeps the greater one.
    """
    table = LoggedSlice(tmp_path, BASE)
    first, second, third = times(3)
    table.log(first, delete_block(first, [("b", 0)], "IntWrapper"))
    table.log(second, delete_block(second, [("c", 1)], "LongWrapper"))
    table.log(third, delete_block(third, [("d", "1")], "StringWrapper"))
    for time17 in times(3):
        table.commit(time17)
    theirs = hudi_table(tmp_path)
    assert theirs is not None
    assert [row["id"] for row in table.read()] == ["a", "c", "e"]
    assert sorted(theirs.column("id").to_pylist()) == ["a", "c", "e"]
    last = times(4)[3]
    table.log(last, delete_block(last, [("a", 1)], "IntWrapper"))
    assert [row["id"] for row in table.read()] == ["c", "e"]
