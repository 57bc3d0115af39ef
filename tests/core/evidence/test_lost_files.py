"""Lost base files: no write builds on an older file as if nothing were missing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import log_elsewhere
from tables import edited_elsewhere, hudi_rows, schema_of, tree, without_meta
from test_growth import commit_elsewhere
from test_replaced import replaced_elsewhere

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.evidence.lost import lost_files
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.view.file_groups import BaseFileName

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
@pytest.mark.parametrize("how", ["upsert", "insert", "delete", "stream", "in process"])
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
        elif how == "delete":
            opened.delete(rows(3, "b"))
        else:
            given = rows(3, "b") if how != "insert" else rows(3, "d").slice(0, 1)
            getattr(opened, "insert" if how == "insert" else "upsert")(given)

    before = all_files(table)
    with pytest.raises(InvalidTable) as refused:
        write()
    instant = lost.stem.rpartition("_")[2]
    for word in (lost.name, f"commit {instant}", "from a backup", 'repair="accept_loss"'):
        assert word in str(refused.value)
    assert all_files(table) == before
    shutil.copytree(tmp_path / "backup", table.path, dirs_exist_ok=True)
    write()
    assert Table.open(table.path).fsck() == []
    found = {r["id"]: r["v"] for r in Table.open(table.path).to_arrow().to_pylist()}
    assert found["a"] == 2


@pytest.mark.parametrize("which", ["newest", "all"])
def test_a_loss_that_is_accepted_leaves_a_clean_table(table: Table, which: str) -> None:
    """`fsck(repair="accept_loss")` continues with the other files, and the table can be written."""
    lose(table, which)
    assert any('repair="accept_loss"' in finding.fix for finding in table.fsck())
    Table.open(table.path).fsck(repair="accept_loss")
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
        edited_elsewhere(instant, content)
    Table.open(path).upsert(rows(3, "b"))
    assert Table.open(path).to_arrow().num_rows == 2


def test_a_torn_base_file_is_moved_out_then_its_loss_is_accepted(table: Table) -> None:
    """The fix that fsck names works: the group continues with the rows of the other files."""
    (*_, newest) = files(table, "x")
    newest.write_bytes(newest.read_bytes()[:100])
    assert any("move it out of the table, then call" in str(finding) for finding in table.fsck())
    newest.unlink()
    table.fsck(repair="accept_loss")
    assert Table.open(table.path).fsck() == []
    kept = {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}
    assert kept == {"a": 1, "b": 1, "c": 2}


def attempt_of(table: Table) -> tuple[Path, Path]:
    """Give the newest commit another engine's file in x, and a zombie of it with fewer rows.

    Returns the file that the commit names and the zombie, whose name sorts first.
    """
    (*_, newest) = files(table, "x")
    parts = BaseFileName.parse(newest.name)
    assert parts is not None
    good = newest.with_name(str(replace(parts, write_token="0-1-1")))
    zombie = newest.with_name(str(replace(parts, write_token="0-1-0")))
    content = pq.read_table(newest)
    newest.unlink()
    pq.write_table(content, good)
    pq.write_table(content.slice(0, 1), zombie)
    commit = Path(table.path, ".hoodie", f"{parts.instant_time}.commit")
    text = commit.read_text().replace(newest.name, good.name)
    said = json.loads(text)
    (stat,) = said["partitionToWriteStats"]["x"]
    stat["fileSizeInBytes"] = good.stat().st_size
    edited_elsewhere(commit, said)
    return good, zombie


def test_of_two_files_of_one_instant_the_one_in_the_commit_counts(table: Table) -> None:
    """A zombie attempt of another engine is neither read nor built on; fsck says: delete it."""
    good, zombie = attempt_of(table)
    again = Table.open(table.path)
    assert without_meta(again.to_arrow()) == without_meta(
        pa.concat_tables([rows(2, "a"), rows(1, "b").slice(0, 1)])
    )
    (finding,) = again.fsck()
    assert zombie.name in finding.what and "delete it" in finding.fix
    again.upsert(rows(3, "d"))
    held = {row["id"]: row["v"] for row in Table.open(table.path).to_arrow().to_pylist()}
    assert held == {"a": 2, "b": 1, "c": 3, "d": 3}
    zombie.unlink()
    assert Table.open(table.path).fsck() == [] and good.exists()


def test_no_write_builds_on_a_file_that_the_commit_does_not_name(table: Table) -> None:
    """If only the zombie is left, the file of the commit is missing, and writers are refused."""
    good, _ = attempt_of(table)
    kept = good.read_bytes()
    good.unlink()
    with pytest.raises(InvalidTable, match=f"{good.name}.* is missing"):
        Table.open(table.path).upsert(rows(3, "d"))
    good.write_bytes(kept)
    Table.open(table.path).upsert(rows(3, "d"))


def test_two_files_of_one_instant_that_no_commit_names_are_refused(table: Table) -> None:
    """Which of them has the rows is not known: the error names both."""
    good, zombie = attempt_of(table)
    third = good.rename(good.with_name(good.name.replace("_0-1-1_", "_0-1-2_")))
    for use in (Table.to_arrow, lambda t: t.upsert(rows(3, "d"))):
        with pytest.raises(InvalidTable, match=f"{zombie.name} and x/{third.name}.*none of them"):
            use(Table.open(table.path))
    assert zombie.name in Table.open(table.path).fsck()[0].what


@pytest.mark.parametrize("damage", ["path", "partition"])
def test_a_newer_file_that_no_commit_names_is_not_built_on(
    table: Table, tmp_path: Path, damage: str
) -> None:
    """If another engine's commit does not name a file, no write builds on it or drops its rows."""
    moved = shutil.copytree(table.path, tmp_path / "moved")  # nothing is cached about it
    (*_, newest) = files(Table.open(moved), "x")
    commit = Path(moved, ".hoodie", f"{newest.stem.rpartition('_')[2]}.commit")
    whole = commit.read_bytes()
    said = json.loads(whole)
    if damage == "path":  # one bit of it
        (stat,) = said["partitionToWriteStats"]["x"]
        stat["path"] = f"x/{chr(ord(newest.name[0]) ^ 1)}{newest.name[1:]}"
    else:
        del said["partitionToWriteStats"]["x"]
    edited_elsewhere(commit, said)
    problem = rf"is missing|is older than x/{newest.name}, which no commit names"
    with pytest.raises(InvalidTable, match=problem):
        Table.open(moved).upsert(rows(3, "d"))
    fixes = [f.fix for f in Table.open(moved).fsck() if newest.name in f.what]
    assert ["keep it" in fix and "delete" not in fix for fix in fixes] == [True]
    commit.write_bytes(whole)
    Table.open(moved).upsert(rows(3, "d"))
    assert Table.open(moved).fsck() == []


def test_a_newer_file_that_no_commit_names_may_be_accepted(table: Table) -> None:
    """`fsck(repair="accept_loss")` continues with its rows."""
    (*_, newest) = files(table, "x")
    commit = Path(table.path, ".hoodie", f"{newest.stem.rpartition('_')[2]}.commit")
    said = json.loads(commit.read_bytes())
    del said["partitionToWriteStats"]["x"]
    edited_elsewhere(commit, said)
    table.fsck(repair="accept_loss")
    again = Table.open(table.path)
    assert {r["id"]: r["v"] for r in again.to_arrow().to_pylist()} == {"a": 2, "b": 1, "c": 2}
    again.upsert(rows(3, "d"))


def test_a_commit_that_is_archived_in_the_middle_of_a_check_is_no_error(
    table: Table, tmp_path: Path
) -> None:
    """The check goes on with the commits that are left, and still finds their lost files."""
    moved = Path(shutil.copytree(table.path, tmp_path / "moved"))  # nothing is cached about it
    handle = open_table(moved)
    groups, commits = handle.file_groups(), handle.timeline.completed_commits()
    first = commits[0].requested_time
    log_elsewhere(moved, first)
    for file in moved.glob(f".hoodie/{first}.*"):
        file.unlink()
    assert lost_files(handle, groups, commits) == []
    (*_, newest) = files(Table.open(moved), "x")
    newest.unlink()
    found = lost_files(handle, open_table(moved).file_groups(), commits)
    assert [str(name) for _, name in found] == [newest.name]
