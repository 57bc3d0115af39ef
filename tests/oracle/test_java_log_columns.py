"""Columns that are added or made wider in merge-on-read tables, where older logs lack them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hoodie_nb import Table

from .client import Judge
from .readers import Cells, java, ours, rust
from .tables import LAYOUTS, Model, appending
from .test_java_appends import agree_but_names, create, logs_of
from .test_java_columns import WIDER
from .test_java_merge_on_read import COMPACTS

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("many_logs")]
SIMPLE = LAYOUTS["simple"]
KEYS: dict[str, Any] = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
NEW = pa.field("new", pa.string())
_SMALL, _LARGE = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.string())])
KINDS: dict[str, tuple[pa.DataType, Any, pa.DataType]] = {
    **WIDER,
    "items": (pa.list_(_SMALL), [{"a": 1}], pa.list_(_LARGE)),
    "values": (pa.map_(pa.string(), _SMALL), [("k", {"a": 1})], pa.map_(pa.string(), _LARGE)),
}


def with_new(given: pa.Table, value: str) -> pa.Table:
    """Return rows with the new column."""
    return given.append_column(NEW, pa.array([value] * len(given)))


def told(cells: Cells) -> Cells:
    """Return rows without nulls and without the names of files, which readers make up for logs."""
    own = [{k: v for k, v in row.items() if v is not None} for row in cells]
    return [{k: v for k, v in row.items() if k != "_hoodie_file_name"} for row in own]


@pytest.mark.parametrize("version", [8, 9])
def test_java_reads_columns_that_older_logs_lack(
    judge: Judge, tmp_path: Path, version: int
) -> None:
    """Before and after a log with the column; Java goes on, compacts, and undoes the commit."""
    table, model = create(tmp_path / "t", SIMPLE, version), Model(SIMPLE)
    table.upsert(model.upsert(range(60), 2))
    table.upsert(model.upsert(range(0, 60, 3), 3))
    assert logs_of(table) > 0
    commit = table.upsert(with_new(model.upsert(range(0, 60, 4), 4), "ours"), schema="merge")
    assert commit is not None
    found = agree_but_names(judge, table)
    assert sum(row["new"] == "ours" for row in found) == 15 and len(found) == 60
    table.add_columns({"more": pa.int64()})
    assert len(agree_but_names(judge, table)) == 60
    more = with_new(model.upsert(range(0, 70, 5), 5), "more")
    table.upsert(more.append_column("more", pa.array([5] * len(more))))
    found = agree_but_names(judge, table)
    assert sum(row["more"] == 5 for row in found) == 14
    for as_of in table.history()["requested_time"]:  # columns of then or of now, by the reader
        held, *others = (told(read) for read in (ours(table, as_of), java(judge, table, as_of)))
        assert others == [held] and told(rust(table, as_of)) == held
    theirs = with_new(model.upsert(range(0, 75, 7), 6), "java")
    wide = theirs.append_column("more", pa.array([7] * len(theirs)))
    judge.write(table.path, wide, {**appending(SIMPLE, version), **COMPACTS}, "append")
    table = Table.open(table.path)
    found = agree_but_names(judge, table)
    assert sum(row["more"] == 7 for row in found) == 11 and logs_of(table) == 0
    assert table.fsck() == []


@pytest.mark.parametrize("version", [8, 9])
def test_java_undoes_the_log_that_adds_a_column(judge: Judge, tmp_path: Path, version: int) -> None:
    """The column goes with the commit."""
    table, model = create(tmp_path / "t", SIMPLE, version), Model(SIMPLE)
    table.upsert(model.upsert(range(60), 2))
    held = agree_but_names(judge, table)
    more = with_new(Model(SIMPLE).upsert(range(0, 60, 4), 4), "ours")
    commit = table.upsert(more, schema="merge")
    assert commit is not None and logs_of(table) > 0
    judge.rollback(table.path, commit.requested_time, appending(SIMPLE, version))
    table = Table.open(table.path)
    assert table.schema.equals(SIMPLE.schema) and logs_of(table) == 0
    assert agree_but_names(judge, table) == held


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("name", KINDS)
def test_java_reads_older_logs_with_our_wider_type(
    judge: Judge, tmp_path: Path, version: int, name: str
) -> None:
    """A base file of the old type, a log of the new one, and the snapshots of before."""
    old, value, new = KINDS[name]
    schema = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64()), ("v", old)])
    table = Table.create(
        tmp_path / "t",
        schema=schema,
        table_type="merge_on_read",
        table_version=version,
        options={"hoodie_nb.append.above.bytes": 0},
        **KEYS,
    )

    def write(keys: str, ts: int, value: Any) -> None:
        rows = [{"id": key, "part": "x", "ts": ts, "v": value} for key in keys]
        table.upsert(pa.Table.from_pylist(rows, table.schema))

    write("abcd", 1, value)
    write("bc", 2, value)
    table.compact()
    table.add_columns({"v": new})
    first = agree_but_names(judge, table)
    write("cd", 3, None)
    assert logs_of(table) == 1
    found = agree_but_names(judge, table)
    assert found[:2] == first[:2] and [row["v"] for row in found[2:]] == [None, None]
    time17 = table.history()["requested_time"].iloc[1]  # with a log of the old type
    past = [ours(table, time17), java(judge, table, time17)]
    for read in past:
        assert [(r["id"], r["ts"]) for r in read] == [("a", 1), ("b", 2), ("c", 2), ("d", 1)]
