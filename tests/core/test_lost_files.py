"""Lost base files: no write builds on an older file as if nothing were missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tables import hudi_rows, schema_of, tree, without_meta
from test_growth import commit_elsewhere
from test_replaced import replaced_elsewhere

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.runners.process_thread import Source
from hoodie_nb.runners.rfc_job import LocalJob
from hoodie_nb.table.handle import open_table

SCHEMA = schema_of()


def rows(value: int, *keys: str) -> pa.Table:
    """Return a row for each key in partition x, and one in partition y."""
    held = [{"id": k, "p": "x", "ts": value, "v": value} for k in keys]
    return pa.Table.from_pylist([*held, {"id": "c", "p": "y", "ts": value, "v": value}], SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with two slices of one file group in each of two partitions."""
    made = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p", ordering="ts"
    )
    made.upsert(rows(1, "a", "b"))
    made.upsert(rows(2, "a"))
    return made


def files(table: Table, partition: str) -> list[Path]:
    """Return the base files of a partition, the newest last."""
    found = Path(table.path, partition).glob("*.parquet")
    return sorted(found, key=lambda p: p.stem.rpartition("_")[2])


def lose(table: Table, which: str) -> list[Path]:
    """Delete base files of partition x; return them, the newest last."""
    gone = files(table, "x")[-1:] if which == "newest" else files(table, "x")
    for file in gone:
        file.unlink()
    return gone


def all_files(table: Table) -> dict[str, bytes | None]:
    """Return all files of a table except the record of a job's columns."""
    return {k: v for k, v in tree(table.path).items() if "/progress" not in k}


@pytest.mark.parametrize("which", ["newest", "all"])
@pytest.mark.parametrize("how", ["upsert", "insert", "delete", "repair", "stream", "in process"])
def test_no_write_builds_on_a_group_whose_newest_file_is_lost(
    table: Table, tmp_path: Path, which: str, how: str
) -> None:
    """Every kind of write names the file, its commit and the fix, and works once it is restored."""
    shutil.copytree(table.path, tmp_path / "backup")
    (*_, lost) = lose(table, which)
    if how == "in process":
        commit_elsewhere(Path(table.path))  # so that the open table is listed again

    def write() -> None:
        opened = table if how == "in process" else Table.open(table.path)
        if how == "stream":
            job = LocalJob(open_table(table.path), source=Source())
            job.write(rows(3, "b"))
            job.checkpoint(1)
            job.complete(1)
        elif how == "repair":
            opened.repair()
        elif how == "delete":
            opened.delete(rows(3, "b"))
        else:
            given = rows(3, "b") if how != "insert" else rows(3, "d").slice(0, 1)
            getattr(opened, "insert" if how == "insert" else "upsert")(given)

    before = all_files(table)
    with pytest.raises(InvalidTable) as refused:
        write()
    instant = lost.stem.rpartition("_")[2]
    for word in (lost.name, f"commit {instant}", "from a backup", "accept_loss=True"):
        assert word in str(refused.value)
    assert all_files(table) == before
    shutil.copytree(tmp_path / "backup", table.path, dirs_exist_ok=True)
    write()
    assert Table.open(table.path).fsck() == []
    found = {r["id"]: r["v"] for r in Table.open(table.path).to_arrow().to_pylist()}
    assert found["a"] == 2


@pytest.mark.parametrize("which", ["newest", "all"])
def test_a_loss_that_is_accepted_leaves_a_clean_table(table: Table, which: str) -> None:
    """`repair(accept_loss=True)` continues with the other files; the table can be written again."""
    lose(table, which)
    assert any("accept_loss=True" in finding.fix for finding in table.fsck())
    Table.open(table.path).repair(accept_loss=True)
    again = Table.open(table.path)
    held = rows(1, "a", "b").slice(0, 2) if which == "newest" else rows(1).slice(0, 0)
    left = pa.concat_tables([held, rows(2)])
    assert again.fsck() == []
    assert without_meta(again.to_arrow()) == hudi_rows(table.path) == without_meta(left)
    again.upsert(rows(3, "a", "b"))
    assert without_meta(again.to_arrow()) == without_meta(rows(3, "a", "b"))
    assert Table.open(table.path).fsck() == []


def test_what_a_cleaner_removes_is_not_lost(table: Table) -> None:
    """Older files, and all files of replaced groups, may be deleted."""
    files(table, "x")[0].unlink()
    replaced_elsewhere(Path(table.path), "y")
    for file in files(table, "y"):
        file.unlink()
    Table.open(table.path).upsert(rows(3, "b"))
    found = {r["id"]: r["v"] for r in Table.open(table.path).to_arrow().to_pylist()}
    assert found == {"a": 2, "b": 3, "c": 3}


@pytest.mark.parametrize("same", [True, False])
def test_what_was_rolled_back_is_not_lost(table: Table, same: bool) -> None:
    """The files of a commit that another engine rolled back are no longer expected."""
    opened = table if same else Table.open(table.path)
    instant = files(table, "x")[-1].stem.rpartition("_")[2]
    for partition in ("x", "y"):
        files(table, partition)[-1].unlink()
    for file in Path(table.path, ".hoodie").glob(f"{instant}.*"):
        file.unlink()
    opened.upsert(rows(3, "b"))
    found = {r["id"]: r["v"] for r in Table.open(table.path).to_arrow().to_pylist()}
    assert found == {"a": 1, "b": 3, "c": 3}


def test_a_table_made_again_at_the_same_path_is_another(table: Table) -> None:
    """The cache for a table's files is not used for another table at the same path."""
    path, instants = Path(table.path), sorted(Path(table.path, ".hoodie").glob("*.commit"))
    for partition in ("x", "y"):
        shutil.rmtree(path / partition)
    for instant in instants:
        content = json.loads(instant.read_bytes()) | {"partitionToWriteStats": {}}
        instant.write_text(json.dumps(content))
    Table.open(path).upsert(rows(3, "b"))
    assert Table.open(path).to_arrow().num_rows == 2


def test_a_torn_base_file_is_deleted_then_its_loss_is_accepted(table: Table) -> None:
    """The fix that fsck names works: the group continues with the rows of the other files."""
    (*_, newest) = files(table, "x")
    newest.write_bytes(newest.read_bytes()[:100])
    assert any("delete it, then call" in str(finding) for finding in table.fsck())
    newest.unlink()
    table.repair(accept_loss=True)
    assert Table.open(table.path).fsck() == []
    kept = {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}
    assert kept == {"a": 1, "b": 1, "c": 2}
