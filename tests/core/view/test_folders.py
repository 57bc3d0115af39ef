"""Partition folders that were changed from outside: copied, or without their metadata file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import hudi_rows, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.clock import ManualClock
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.records.sealing import Interval

SCHEMA = schema_of()


def create(path: Path, **options: object) -> Table:
    """Return an empty table with key `id`, partition `p`, ordering `ts`."""
    return Table.create(
        path, schema=SCHEMA, record_key="id", partition_by="p", ordering="ts", **options
    )


def rows(*given: tuple[str, str, int]) -> pa.Table:
    """Return rows from (id, p, ts); `v` is ten times `ts`."""
    return pa.Table.from_pylist(
        [{"id": k, "p": p, "ts": ts, "v": ts * 10} for k, p, ts in given], schema=SCHEMA
    )


def copied_partition(path: Path) -> None:
    """Create a table whose partition `y` is a copy of the folder `x`, with the same file ids."""
    table = create(path / "t")
    table.upsert(rows(("a", "x", 1), ("b", "x", 1)))
    shutil.copytree(path / "t" / "x", path / "t" / "y")


UPDATE = (("a", "x", 2), ("c", "x", 2), ("b", "y", 3), ("d", "y", 3))
HELD = {"x": {"a": 2, "b": 1, "c": 2}, "y": {"a": 1, "b": 3, "d": 3}}


def ordering_values(path: Path) -> dict[str, dict[str, int]]:
    """Return the ordering value of each key, by the folder whose newest files have it."""
    found: dict[str, dict[str, int]] = {}
    for piece in Table.open(path).file_groups().itertuples():
        keys = found.setdefault(piece.partition_path, {})
        for row in pq.ParquetFile(path / piece.partition_path / piece.file_name).read().to_pylist():
            assert keys.setdefault(row["_hoodie_record_key"], row["ts"]) == row["ts"]
    return found


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1)])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_one_file_id_in_two_partitions_is_two_buckets(
    tmp_path: Path, pipeline: str, interval: Interval | None
) -> None:
    """Rows of a copied partition stay in their folder, in every pipeline."""
    copied_partition(tmp_path)
    table = open_table(tmp_path / "t", ManualClock())
    job = LocalJob(table, pipeline=pipeline, index="bloom", interval=interval)
    job.write(rows(*UPDATE))
    job.checkpoint(1)
    job.complete(1)
    assert ordering_values(tmp_path / "t") == HELD


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_a_batch_into_a_copied_partition(tmp_path: Path, batch_bytes: int) -> None:
    """A batch of both partitions changes each folder's own rows, flushed early or not."""
    copied_partition(tmp_path)
    table = open_table(tmp_path / "t")
    table.options = table.options.updated({"batch_bytes": batch_bytes})
    Table(table).upsert(rows(*UPDATE))
    assert ordering_values(tmp_path / "t") == HELD
    Table(table).delete(rows(("a", "x", 9), ("d", "y", 9)))
    assert ordering_values(tmp_path / "t") == {"x": {"b": 1, "c": 2}, "y": {"a": 1, "b": 3}}


# --- a lost .hoodie_partition_metadata -----------------------------------------------------------


METADATA = ".hoodie_partition_metadata"
BOTH = rows(("a", "x", 1), ("b", "x", 1), ("c", "y", 1))


def lost_metadata(path: Path, *, archived: bool = False) -> Table:
    """Return a table whose partition `x` has lost its metadata file; its commit may be archived."""
    table = create(path / "t")
    table.upsert(BOTH)
    if archived:
        table.upsert(rows(("c", "y", 1)))
        oldest = min(table.timeline()["requested_time"])
        for file in Path(table.path, ".hoodie").glob(f"{oldest}*"):
            file.unlink()
    Path(table.path, "x", METADATA).unlink()
    return Table.open(table.path)


@pytest.mark.parametrize("archived", [False, True])
def test_rows_without_partition_metadata_are_read_and_not_duplicated(
    tmp_path: Path, archived: bool
) -> None:
    """Rows of a partition that lost its metadata file are read; the next write restores it."""
    table = lost_metadata(tmp_path, archived=archived)
    assert without_meta(table.to_arrow()) == without_meta(BOTH)
    (finding,) = [f for f in table.fsck() if METADATA in f.what]
    assert "'x'" in finding.what
    table.upsert(rows(("c", "y", 2)))
    assert Path(table.path, "x", METADATA).exists()
    assert [e["partition"] for e in emitted(table, "partition_metadata_restored")] == ["x"]
    assert table.fsck() == []
    commit = table.upsert(rows(("a", "x", 2), ("b", "x", 2)))
    assert commit is not None
    assert (commit.inserts, commit.updates) == (0, 2)
    expected = without_meta(rows(("a", "x", 2), ("b", "x", 2), ("c", "y", 2)))
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == expected


def emitted(table: Table, kind: str) -> list[dict[str, object]]:
    """Return the events of a kind that the table's writes have reported."""
    return [dict(event.values) for event in table.events.records(kind)]


def test_rows_of_the_past_are_read_without_partition_metadata(tmp_path: Path) -> None:
    """A partition that was emptied later is still read as of a moment when it had rows."""
    table = create(tmp_path / "t")
    first = table.upsert(BOTH)
    assert first is not None
    table.delete(rows(("a", "x", 2), ("b", "x", 2)))
    Path(table.path, "x", METADATA).unlink()
    table = Table.open(table.path)
    assert without_meta(table.to_arrow(as_of=first.requested_time)) == without_meta(BOTH)
    assert without_meta(table.to_arrow()) == without_meta(rows(("c", "y", 1)))


def test_a_copy_of_files_without_metadata_is_not_a_partition(tmp_path: Path) -> None:
    """Copies of base files elsewhere in the table's folder are not read twice."""
    table = create(tmp_path / "t")
    table.upsert(BOTH)
    shutil.copytree(Path(table.path, "x"), Path(table.path, "backup", "x"))
    Path(table.path, "backup", "x", METADATA).unlink()
    table = Table.open(table.path)
    assert without_meta(table.to_arrow()) == without_meta(BOTH)
    table.upsert(BOTH)
    assert without_meta(table.to_arrow()) == without_meta(BOTH)
    assert not Path(table.path, "backup", "x", METADATA).exists()
    (finding,) = table.fsck()
    assert "'backup/x'" in finding.what  # hudi-rs reads its rows
    shutil.rmtree(Path(table.path, "backup"))
    assert table.fsck() == []


def test_replacing_a_table_deletes_lost_partitions_too(tmp_path: Path) -> None:
    """Replacing a table deletes the base files of a partition without metadata too."""
    table = lost_metadata(tmp_path)
    again = create(tmp_path / "t", if_exists="replace")
    assert list(Path(table.path).rglob("*.parquet")) == []
    again.upsert(rows(("z", "y", 1)))
    assert without_meta(again.to_arrow()) == without_meta(rows(("z", "y", 1)))


def test_an_unpartitioned_table_without_its_metadata_file(tmp_path: Path) -> None:
    """The same rule holds for a table without partitions, with one metadata file in its folder."""
    made = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    made.upsert(BOTH)
    Path(made.path, METADATA).unlink()
    table = Table.open(made.path)
    assert without_meta(table.to_arrow()) == without_meta(BOTH)
    table.upsert(BOTH)
    assert Path(made.path, METADATA).exists()
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == without_meta(BOTH)


def test_a_partition_whose_files_have_no_rows_needs_no_metadata(tmp_path: Path) -> None:
    """All rows deleted, older files cleaned, metadata lost: the partition is written as before."""
    table = create(tmp_path / "t")
    table.upsert(BOTH)
    table.delete(rows(("a", "x", 2), ("b", "x", 2)))
    table.clean(versions=1)
    Path(table.path, "x", METADATA).unlink()
    table = Table.open(table.path)
    (finding,) = table.fsck()
    assert f"partition 'x' has no {METADATA}" in finding.what
    table.upsert(rows(("d", "x", 3)))
    assert table.fsck() == []
    expected = without_meta(rows(("c", "y", 1), ("d", "x", 3)))
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == expected


@pytest.mark.parametrize("name", [b"\xff\xfe", b"x/\xff"])
def test_a_partition_whose_name_is_not_utf8_is_named(tmp_path: Path, name: bytes) -> None:
    """Every use refuses such a folder by name; without base files it is passed over."""
    table = create(tmp_path / "t")
    table.upsert(BOTH)
    folder = os.fsencode(table.path) + b"/" + name
    os.mkdir(folder)
    Path(os.fsdecode(folder), "notes.txt").touch()
    assert Table.open(table.path).fsck() == []
    shutil.copytree(os.fsencode(table.path) + b"/y", folder, dirs_exist_ok=True)
    for use in (Table.to_arrow, Table.file_groups, lambda t: t.upsert(BOTH)):
        with pytest.raises(InvalidTable, match=r"\\xff.*not UTF-8"):
            use(Table.open(table.path))
    (finding,) = Table.open(table.path).fsck()
    assert "not UTF-8" in finding.what
