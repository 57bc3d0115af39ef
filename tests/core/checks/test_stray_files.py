"""Foreign files in folders that we list have no effect."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tables import schema_of
from test_journal import OURS, Life

from hoodie_nb import Table
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import InvalidTable
from hoodie_nb.records.sealing import Interval

SCHEMA = schema_of()
METADATA = ".hoodie_partition_metadata"


def rows(*partitions: str) -> pa.Table:
    """Return one row in each partition."""
    return pa.Table.from_pylist([{"id": "a", "p": p, "ts": 1, "v": 1} for p in partitions], SCHEMA)


@pytest.mark.parametrize("name", [f"{METADATA}_0", f"{METADATA}.tmp", f"{METADATA}x"])
def test_a_temporary_metadata_file_is_not_a_partition(tmp_path: Path, name: str) -> None:
    """Java's temporary metadata file does not count: fsck reports the file, a write creates it."""
    table = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p", ordering="ts"
    )
    table.upsert(rows("x"))
    marked = Path(table.path, "x", METADATA)
    marked.rename(marked.with_name(name))
    assert [METADATA in str(found) for found in fsck(table.path)] == [True]
    Table.open(table.path).upsert(rows("y"))
    assert marked.exists()
    assert fsck(table.path) == []


@pytest.mark.parametrize("kind", ["", ".parquet", ".orc"])
def test_a_metadata_file_of_each_format_makes_a_partition(tmp_path: Path, kind: str) -> None:
    """A metadata file in a format of base files counts as one: the table stays clean."""
    table = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="p", ordering="ts"
    )
    table.upsert(rows("x"))
    marked = Path(table.path, "x", METADATA)
    marked.rename(marked.with_name(METADATA + kind))
    assert fsck(table.path) == []


@pytest.mark.parametrize("name", [".nfs0001", ".DS_Store", "._a.json", "notes.txt", ".json", "~"])
@pytest.mark.parametrize(
    "folder", ["progress", "sealed", "prepared", "staged", "tmp", "index", "index/runs"]
)
@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)], ids=["each", "interval"])
def test_a_stray_file_in_our_folders_is_ignored(
    tmp_path: Path, folder: str, name: str, interval: Interval | None
) -> None:
    """A file that another program left in one of our folders stops no start and no commit."""
    one = Life(tmp_path / "t", interval)
    one.checkpoint(("a", 1, 1, False))
    stray = one.path / OURS / folder / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"x")
    one.start()
    one.checkpoint(("b", 1, 2, False))
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1), "b": (1, 2)}
    assert fsck(one.path) == []


def test_a_stray_file_among_the_markers_is_swept(tmp_path: Path) -> None:
    """A file among the marker folders is deleted with the leftovers of dead runs."""
    one = Life(tmp_path / "t", None)
    one.checkpoint(("a", 1, 1, False))
    stray = one.path / ".hoodie/.temp/.DS_Store"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"x")
    one.start()
    one.job.checkpointing.complete()
    assert fsck(one.path) == []


@pytest.mark.parametrize("folder", ["tmp", "staged"])
def test_a_stray_folder_that_is_not_empty_is_swept(tmp_path: Path, folder: str) -> None:
    """It blocks neither the next write nor a repair."""
    one = Life(tmp_path / "t", None)
    one.checkpoint(("a", 1, 1, False))
    (one.path / OURS / folder / "x" / "y").mkdir(parents=True)
    one.start().checkpointing.complete()
    assert fsck(one.path) == []
    (one.path / OURS / folder / "x" / "y").mkdir(parents=True)
    Table.open(one.path).fsck(repair=True)
    assert fsck(one.path) == []


@pytest.mark.parametrize("name", ["rules.json", "options.json", "progress/local.json"])
def test_a_folder_in_the_place_of_a_record_is_refused(tmp_path: Path, name: str) -> None:
    """The error names it with its fix, and without the folder the table goes on."""
    one = Life(tmp_path / "t", None)
    one.checkpoint(("a", 1, 1, False))
    one.job.checkpointing.complete()
    record = one.path / OURS / name
    record.unlink()
    record.mkdir()
    with pytest.raises(InvalidTable, match=rf"{name} (is damaged|cannot be read).* delete it"):
        one.start()
    record.rmdir()
    one.start()
    one.checkpoint(("b", 1, 2, False))
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1), "b": (1, 2)}
