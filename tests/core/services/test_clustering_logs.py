"""`table.cluster()` on merge-on-read tables: small base files and their logs become one file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from each_fault import each_fault
from foreign_logs import log_elsewhere
from index_truth import index_gaps
from lives import SCHEMA, assert_at_rest
from replay import check_replay
from tables import Model, hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.types.schema import FILE_NAME

pytestmark = pytest.mark.usefixtures("many_logs")
FLAG = "_hoodie_is_deleted"


def row(key: int, ts: int, v: int = 0, p: str = "a", **more: Any) -> dict[str, Any]:
    """Return a row."""
    return {"id": f"k{key:02}", "p": p, "ts": ts, "v": v, **more}


def many_files(root: Path, version: int = 9, **options: Any) -> tuple[Table, Model]:
    """Return a table with three small files in a and two in b, some with logs, and its model."""
    table = Table.create(
        root,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        table_type="merge_on_read",
        table_version=version,
        options={"hoodie_nb.append.above.bytes": 0, **options},
    )
    model = Model()
    for batch in (
        [row(0, 10), row(3, 10), row(1, 10, p="b")],
        [row(4, 10), row(2, 10), row(5, 10, p="b")],
        [row(6, 10), row(0, 11, 1)],
        [row(0, 12, 2), row(4, 9, 3), row(5, 11, **{FLAG: True}, p="b")],
    ):
        table.upsert(batch)
        model.upsert(batch)
    assert sorted(table.file_groups()["logs"]) == [0, 0, 1, 1, 2]
    return table, model


def check(table: Table, model: Model) -> None:
    """This library and hudi-rs read the model's rows."""
    assert without_meta(Table.open(table.path).to_arrow()) == model.snapshot()
    assert hudi_rows(table.path) == model.snapshot()


def meta(rows: pa.Table) -> list[str]:
    """Return the rows with their meta columns but the file's name, sorted."""
    return sorted(map(repr, rows.drop_columns(FILE_NAME).to_pylist()))


@pytest.mark.parametrize("version", [8, 9])
def test_small_slices_become_one_file(tmp_path: Path, version: int) -> None:
    """With their logs; rows keep commit times; snapshots and changes are as they were."""
    table, model = many_files(tmp_path / "t", version)
    before = meta(table.to_arrow())
    times = [*table.history()["requested_time"]]
    past = {time: meta(table.to_arrow(as_of=time)) for time in times}
    planned = table.cluster(dry_run=True)
    done = table.cluster()
    assert (planned.files, done.files, done.new_files) == (5, 5, 2)
    groups = table.file_groups()
    assert [*groups["logs"]] == [0, 0]
    check(table, model)
    assert meta(table.to_arrow()) == before
    for time, rows in past.items():
        assert meta(table.to_arrow(as_of=time)) == rows
        assert hudi_rows(table.path, time) == without_meta(table.to_arrow(as_of=time))
    for since, until in itertools.combinations([*times, done.requested_time], 2):
        check_replay(table._handle, since, until)
    assert table.changes(since=times[-1]).num_rows == 0
    assert index_gaps(table._handle) == []
    assert table.cluster().requested_time is None
    for batch in ([row(3, 20, 9), row(4, 20, 8)], [row(5, 1, p="b"), row(7, 1)]):
        table.upsert(batch)
        model.upsert(batch)
        check(table, model)
    table.compact()
    check(table, model)
    assert_at_rest(tmp_path / "t")


def test_logs_count_as_bytes(tmp_path: Path) -> None:
    """A new file has room for base files and logs; one that had none stays as it is."""
    table, model = many_files(tmp_path / "t")
    listed = table.file_groups()
    sizes = (listed["size_bytes"] + listed["log_bytes"]).tolist()
    largest = max(sizes)
    two = sum(sorted(sizes)[:2])
    table, model = many_files(tmp_path / "u", **{"hoodie.parquet.max.file.size": two - 1})
    assert table.cluster().requested_time is None
    assert largest < two
    check(table, model)


def test_other_engines_logs_are_refused(tmp_path: Path) -> None:
    """They may have keys that the new file would have at a wrong place in its order."""
    table, model = many_files(tmp_path / "t")
    file_id = table.file_groups()["file_id"][0]
    rows = [row(9, 40, 40)]
    log_elsewhere(table.path, file_id, rows)
    model.upsert(rows)
    with pytest.raises(InvalidTable, match=r"call Table\.compact"):
        Table.open(table.path).cluster()
    Table.open(table.path).compact()
    Table.open(table.path).cluster()
    check(table, model)
    assert_at_rest(tmp_path / "t")


@pytest.mark.parametrize("how", ["before", "torn", "error_after"])
def test_a_crash_at_any_operation_changes_no_row(tmp_path: Path, how: str) -> None:
    """Readers see the old slices or the new files; the next writer recovers."""
    source, model = many_files(tmp_path / "t")
    before = meta(source.to_arrow())
    undone = set[bool]()
    trials = each_fault(source.path, Table.cluster, how, every=2, at_least=10)
    for root, _ in trials:
        table = Table.open(root)
        check(table, model)
        assert meta(table.to_arrow()) == before
        undone.add(len(table.file_groups()) == 5)
        table.cluster()
        check(table, model)
        assert meta(table.to_arrow()) == before
        table.upsert([row(0, 99, 99)])
        assert len(hudi_rows(root)) == len(before)
        assert_at_rest(root)
    assert undone == {True, False}
