"""Merge-on-read tables that this library writes: Java and hudi-rs read our logs, Java goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable

from .client import Judge
from .readers import agree, agree_on_the_past, cells, java, ours
from .tables import LAYOUTS, Layout, Model, appending, rows
from .test_java_merge_on_read import COMPACTS

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("many_logs")]
APPENDS = {"hoodie_nb.append.above.bytes": 0}
SHAPES = [
    *((9, name) for name in ("simple", "composite", "url_encoded", "unpartitioned")),
    *((8, name) for name in ("simple", "without_ordering", "by_date")),
    (9, "without_ordering"),
]


def create(path: Path, layout: Layout, version: int) -> Table:
    """Create a merge-on-read table in which every slice may get logs."""
    options = {"table_type": "merge_on_read", "table_version": version}
    own = {**layout.options.get("options", {}), **APPENDS}
    return layout.create(path, **options) if not own else _with(layout, path, own, options)


def _with(layout: Layout, path: Path, own: dict, options: dict) -> Table:
    plain = {k: v for k, v in layout.options.items() if k != "options"}
    bare = Layout(layout.record_key, layout.partition_by, layout.ordering, plain, layout.parts)
    return bare.create(path, options=own, **options)


def logs_of(table: Table) -> int:
    """Return how many logs the slices have."""
    return sum(len(piece.logs) for piece in table._handle.file_groups())


def batches(table: Table, model: Model) -> Iterator[None]:
    """Write updates, late rows, new keys and deletes; yields after each write."""
    steps = [
        ("upsert", range(60), 2),
        ("upsert", range(0, 60, 3), 4),
        ("upsert", range(10, 30), 3),
        ("upsert", range(50, 75), 5),
        ("delete", range(5, 20, 5), 0),
        ("upsert", range(0, 60, 4), 6),
        ("upsert", range(2, 60, 7), 7),
    ]
    for operation, numbers, version in steps:
        if operation == "delete":
            table.delete(model.delete(numbers))
        else:
            table.upsert(model.upsert(numbers, version))
        yield


@pytest.mark.parametrize("version, name", SHAPES)
def test_java_and_hudi_rs_read_our_logs(
    judge: Judge, tmp_path: Path, version: int, name: str
) -> None:
    """After each write all readers see the model's rows, meta columns included."""
    layout = LAYOUTS[name]
    table, model = create(tmp_path / "t", layout, version), Model(layout)
    seen = set()
    for _ in batches(table, model):
        found = agree_but_names(judge, table)
        assert found == model.cells()
        seen.add(logs_of(table))
    assert max(seen) >= 3


def agree_but_names(judge: Judge, table: Table) -> list:
    """Return the rows as all readers see them; readers show their own names of files for logs."""
    seen = [ours(table), java(judge, table)]
    for found in seen:
        for row in found:
            del row["_hoodie_file_name"]
        found.sort(key=lambda row: (row["_hoodie_record_key"], row["_hoodie_commit_seqno"]))
    assert seen[0] == seen[1]
    return cells(table.to_arrow(), meta=False)


@pytest.mark.parametrize("version", [8, 9])
def test_java_goes_on_and_we_read(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java upserts onto our logs: no key twice; we read, and write again after its compaction."""
    layout = LAYOUTS["simple"]
    table, model = create(tmp_path / "t", layout, version), Model(layout)
    for _ in batches(table, model):
        pass
    theirs = appending(layout, version)
    judge.write(table.path, model.upsert(range(0, 80, 5), 8), theirs, "append")
    table = Table.open(table.path)
    assert agree_but_names(judge, table) == model.cells()
    with pytest.raises(InvalidTable, match="log file of another engine"):
        table.upsert(rows(range(3), layout, 9))
    judge.write(table.path, model.upsert(range(0, 80, 9), 9), {**theirs, **COMPACTS}, "append")
    table = Table.open(table.path)
    assert agree_but_names(judge, table) == model.cells()
    table.upsert(model.upsert(range(0, 90, 4), 10))
    assert agree_but_names(judge, table) == model.cells()


@pytest.mark.parametrize("version", [8, 9])
def test_deletes_by_key_alone(judge: Judge, tmp_path: Path, version: int) -> None:
    """They have no ordering value, which Java compares with those of rows in earlier logs."""
    layout = LAYOUTS["simple"]
    table, model = create(tmp_path / "t", layout, version), Model(layout)
    table.upsert(model.upsert(range(60), 2))
    table.upsert(model.upsert(range(0, 60, 2), 3))
    table.delete(model.delete(range(0, 60, 3)).select(["id", "part"]))
    assert logs_of(table) >= 3
    assert agree_but_names(judge, table) == model.cells()
    theirs = appending(layout, version)
    judge.write(table.path, model.upsert(range(0, 60, 4), 4), theirs, "append")
    assert agree_but_names(judge, Table.open(table.path)) == model.cells()


def test_earlier_snapshots(judge: Judge, tmp_path: Path) -> None:
    """Java and hudi-rs read each earlier snapshot as we do."""
    layout = LAYOUTS["simple"]
    table, model = create(tmp_path / "t", layout, 9), Model(layout)
    counts = []
    for _ in batches(table, model):
        counts.append(len(model.held))
    assert agree_on_the_past(judge, table) == counts
    assert len(agree(judge, table)) == counts[-1]


@pytest.mark.parametrize("version", [8, 9])
def test_java_reads_the_other_writes(judge: Judge, tmp_path: Path, version: int) -> None:
    """Inserts, overwrites, changes by condition and merges onto slices with logs."""
    layout = LAYOUTS["simple"]
    table, model = create(tmp_path / "t", layout, version), Model(layout)
    for _ in batches(table, model):
        pass
    assert logs_of(table) > 0
    count = table.to_arrow().num_rows
    kept = "_hoodie_record_key"
    one = table.to_arrow()[kept][0].as_py()
    writes = [
        lambda: table.insert(rows(range(90, 95), layout, 1)),
        lambda: table.insert(rows(range(0, 8), layout, 9)),  # keys twice
        lambda: table.bulk_insert(rows([95, 96, 95], layout, 1)),
        lambda: table.delete(where=f"{kept} = '{one}'"),
        lambda: table.upsert(rows(range(20, 60, 4), layout, 11)),
        lambda: table.update(where="open", set={"price": "price + 1"}),
        lambda: table.delete(rows(range(24, 40, 8), layout, 12)),
        lambda: (
            table.merge(rows(range(30, 44), layout, 12))
            .when_matched_update()
            .when_not_matched_insert()
            .execute()
        ),
        lambda: table.upsert(rows(range(40, 60), layout, 13)),
        lambda: table.insert_overwrite(rows(range(0, 3), layout, 1)),
    ]
    seen = []
    for write in writes:
        assert write() is not None
        agree_but_names(judge, table)
        seen.append(table.to_arrow().num_rows)
    assert seen[:3] == [count + 5, count + 13, count + 16]
    assert seen[-1] < seen[-2]
