"""Any operation of a clustering may fail in any way: no row is lost, doubled or changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from each_fault import each_fault
from lives import assert_at_rest, kill_at
from tables import hudi_rows, pending_names, upgrade, without_meta

from hoodie_nb import Table, failpoints
from hoodie_nb.types.schema import FILE_NAME

ROWS = [{"id": f"k{i}", "p": "xy"[i % 2], "v": i} for i in range(8)]
SKIPPED = ("coord.prepare", "coord.reapply", "coord.redo", "coord.seal")  # of checkpoints
POINTS = [n for n in failpoints.NAMES if n.startswith(("coord.", "writer.data"))]
POINTS = [n for n in POINTS if not n.startswith(SKIPPED)]


def table_of(path: Path, version: int = 6) -> Path:
    """Return the folder of a table with four small files in each of two partitions."""
    options = {"hoodie.parquet.small.file.limit": 0}
    table = Table.create(
        path / "t",
        schema=pa.Table.from_pylist(ROWS).schema,
        record_key="id",
        partition_by="p",
        options=options,
    )
    for number in range(4):
        table.bulk_insert(ROWS[2 * number : 2 * number + 2])
        if number == 0 and version != 6:
            upgrade(table.path, version)
    return Path(table.path)


def rows_of(root: Path) -> list[str]:
    """Return the rows as hudi-rs reads them, which must be those that this library reads."""
    assert hudi_rows(root) == without_meta(Table.open(root).to_arrow())
    return hudi_rows(root)


def times_of(root: Path) -> list[object]:
    """Return key, commit time and sequence number of each row."""
    rows = Table.open(root).to_arrow().drop_columns([FILE_NAME]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.parametrize(
    ("how", "version"),
    [("before", 6), ("torn", 6), ("error", 6), ("interrupt", 6), ("before", 9)],
)
def test_a_crash_at_any_operation_changes_no_row(tmp_path: Path, how: str, version: int) -> None:
    """Readers see the old files or the new ones; the next write recovers, and nothing is left."""
    source = table_of(tmp_path, version)
    rows, times, undone = rows_of(source), times_of(source), set[bool]()
    trials = each_fault(source, Table.cluster, how, at_least=20)
    for number, (root, _) in enumerate(trials):
        assert rows_of(root) == rows
        assert times_of(root) == times
        undone.add(len(Table.open(root).file_groups()) == 8)
        if number % 2 == 0:
            Table.open(root).fsck(repair=True)
        else:
            Table.open(root).cluster()
            assert len(Table.open(root).file_groups()) == 2
        assert rows_of(root) == rows
        assert times_of(root) == times
        assert_at_rest(root)
        Table.open(root).upsert([{**row, "v": -1} for row in ROWS])
        assert len(rows_of(root)) == len(ROWS)
        assert {row["v"] for row in Table.open(root).to_arrow().to_pylist()} == {-1}
    assert undone == {True, False}


def cluster_at(root: Path) -> None:
    """Cluster in a new process."""
    Table.open(root).cluster()


@pytest.mark.kills
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_killed_in_a_clustering(tmp_path: Path, point: str) -> None:
    """SIGKILL at any step: the rows are the same, the next write recovers and knows all keys."""
    root = table_of(tmp_path)
    rows, times = rows_of(root), times_of(root)
    kill_at(point, cluster_at, root)
    assert rows_of(root) == rows
    assert times_of(root) == times
    Table.open(root).upsert(ROWS)
    assert rows_of(root) == rows
    assert pending_names(root) == []
    assert_at_rest(root)
