"""Commits whose completed file is gone: they are neither rolled back nor deleted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tables import schema_of, tree

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob

SCHEMA = schema_of()


def rows(value: int, partition: str) -> pa.Table:
    """Return one row."""
    return pa.Table.from_pylist([{"id": "a", "p": partition, "ts": value, "v": value}], SCHEMA)


def commits(path: Path) -> list[Path]:
    """Return the completed files, the newest last."""
    return sorted((path / ".hoodie").glob("*.commit"))


def forget(path: Path) -> None:
    """Delete our records of commits, and create the markers of the newest one again."""
    shutil.rmtree(path / ".hoodie/.hoodie_nb/index", ignore_errors=True)
    shutil.rmtree(path / ".hoodie/.hoodie_nb/progress", ignore_errors=True)
    instant = commits(path)[-1].name[:17]
    for file in path.glob(f"*/*_{instant}.parquet"):
        marker = path / f".hoodie/.temp/{instant}/{file.parent.name}/{file.name}.marker.CREATE"
        marker.parent.mkdir(parents=True)
        marker.touch()


def batch(path: Path, value: int, partition: str = "x") -> None:
    """Commit a row by a call."""
    Table.open(path).upsert(rows(value, partition))


def stream(path: Path) -> None:
    """Commit a row by a checkpoint of a job."""
    job = LocalJob(open_table(path), source=Source())
    job.write(rows(2, "x"))
    job.checkpoint(1)
    job.complete(1)


def keep_only(path: Path, folder: str) -> None:
    """Leave only one of our folders as evidence of the newest commit."""
    ours = path / ".hoodie/.hoodie_nb"
    shutil.copytree(ours / folder, path.parent / folder)
    forget(path)
    shutil.copytree(path.parent / folder, ours / folder)


def by_progress(path: Path) -> Path:
    """Commit by a job; only its progress is left."""
    stream(path)
    keep_only(path, "progress")
    return commits(path)[-1]


def by_index(path: Path) -> Path:
    """Commit by a call; only the index is left."""
    batch(path, 2)
    keep_only(path, "index")
    return commits(path)[-1]


def by_files(path: Path) -> Path:
    """Commit by a call; base files exist without markers."""
    batch(path, 2)
    forget(path)
    shutil.rmtree(path / ".hoodie/.temp")
    return commits(path)[-1]


def by_newer(path: Path, progress: bool) -> Path:
    """Commit twice; the newer commit is built on the other, or carries its checkpoint."""
    (stream if progress else lambda p: batch(p, 2))(path)
    forget(path)
    if progress:
        batch(path, 3, "y")
        text = json.loads(commits(path)[-1].read_bytes())
        del text["extraMetadata"]["_hoodie_nb_checksum"]
        text["extraMetadata"]["_hoodie_nb_progress"] = json.dumps(
            {"local": [1, "f", commits(path)[-2].name[:17]]}
        )
        commits(path)[-1].write_text(json.dumps(text))
    else:
        batch(path, 3)
    shutil.rmtree(path / ".hoodie/.hoodie_nb/index")
    return commits(path)[-2]


TRACES: dict[str, Callable[[Path], Path]] = {
    "progress": by_progress,
    "index": by_index,
    "files without markers": by_files,
    "prevCommit": lambda path: by_newer(path, progress=False),
    "progress in a newer commit": lambda path: by_newer(path, progress=True),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a table with one commit."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    Table.create(tmp_path / "t", schema=SCHEMA, **keys).upsert(rows(1, "x"))
    return tmp_path / "t"


@pytest.mark.parametrize("case", TRACES)
def test_a_commit_whose_completed_file_is_lost_is_not_rolled_back(path: Path, case: str) -> None:
    """Any evidence of completion stops writers; `fsck` reports it and does not say "delete"."""
    done = TRACES[case](path)
    content = done.read_bytes()
    done.unlink()
    before = tree(path)
    with pytest.raises(InvalidTable, match="was completed") as refused:
        batch(path, 9, "z")
    for word in (done.name, "Restore it from a backup", "removed on purpose", "gives its rows up"):
        assert word in str(refused.value)
    findings = [str(finding) for finding in Table.open(path).fsck(repair=True)]
    assert any("was completed" in finding and done.name in finding for finding in findings)
    assert not any(": delete it" in finding for finding in findings)
    assert {k: v for k, v in tree(path).items() if "/progress" not in k} == {
        k: v for k, v in before.items() if "/progress" not in k
    }
    done.write_bytes(content)
    batch(path, 9, "z")
    assert Table.open(path).fsck() == []


def test_a_commit_without_a_trace_is_rolled_back(path: Path) -> None:
    """A pending instant without evidence of completion is rolled back, as after a crash."""
    batch(path, 2)
    forget(path)
    commits(path)[-1].unlink()
    batch(path, 9, "z")
    found = {(r["p"], r["v"]) for r in Table.open(path).to_arrow().to_pylist()}
    assert found == {("x", 1), ("z", 9)}
    assert Table.open(path).fsck() == []


def test_a_commit_undone_by_hand_is_settled_as_the_error_recommends(path: Path) -> None:
    """Without its other files the table is written as if it had never existed."""
    instant = by_files(path).name[:17]
    for file in [*path.glob(f".hoodie/{instant}.*"), *path.glob(f"*/*_{instant}.parquet")]:
        file.unlink()
    batch(path, 9, "z")
    found = {(r["p"], r["v"]) for r in Table.open(path).to_arrow().to_pylist()}
    assert found == {("x", 1), ("z", 9)}
    assert Table.open(path).fsck() == []


@pytest.mark.parametrize("case", ["progress", "index", "prevCommit", "progress in a newer commit"])
def test_files_of_a_commit_that_left_the_timeline_are_not_to_be_deleted(
    path: Path, case: str
) -> None:
    """If all its files on the timeline are gone, `fsck` names both possibilities."""
    instant = TRACES[case](path).name[:17]
    for file in path.glob(f".hoodie/{instant}.*"):
        file.unlink()
    (fix,) = [f.fix for f in Table.open(path).fsck() if f"_{instant}.parquet is in no" in f.what]
    assert fix.startswith(f"restore the files .hoodie/{instant}.*") and "on purpose" in fix


@pytest.mark.parametrize("later", [False, True], ids=["newest", "followed"])
@pytest.mark.parametrize("deleted", [False, True], ids=["no rows", "deletes only"])
def test_an_overwrite_without_files_is_not_rolled_back(
    path: Path, deleted: bool, later: bool
) -> None:
    """The rows that it has removed do not return."""
    gone = rows(2, "x").append_column("_hoodie_is_deleted", pa.array([True]))
    Table.open(path).insert_overwrite(gone if deleted else gone.slice(1), scope="table")
    (done,) = (path / ".hoodie").glob("*.replacecommit")
    content = done.read_bytes()
    if later:
        batch(path, 3, "y")
    expected = Table.open(path).to_arrow()
    done.unlink()
    for write in (batch, lambda path, value: stream(path)):
        with pytest.raises(InvalidTable, match=f"{done.name} is missing"):
            write(path, 4)
    assert "replacecommit is missing" in str(Table.open(path).fsck())
    done.write_bytes(content)
    assert Table.open(path).to_arrow() == expected
    assert Table.open(path).fsck() == []
