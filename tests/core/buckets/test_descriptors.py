"""Open files are bounded by a constant per task, for any partitions, flushes and runs."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.clock import ManualClock
from hoodie_nb.errors import WriteFailed
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.records.sealing import Interval

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
TINY = {"write.batch.size": 1, "write.task.max.size": "4 KB"}  # every piece is flushed
MANY, ROOM = 160, 100


def rows(count: int, parts: int, ts: int = 1) -> pa.Table:
    """Return rows of so many keys, distributed over so many partitions."""
    ids = [f"k{n:05d}" for n in range(count)]
    columns = [ids, [f"p{n % parts:04d}" for n in range(count)], [ts] * count]
    return pa.table(columns, schema=SCHEMA)


def make(path: os.PathLike[str], **options: object) -> hn.Table:
    """Make a table that flushes at once."""
    keys = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
    return hn.Table.create(path, schema=SCHEMA, **keys, options={**TINY, **options})


def count_open_files() -> int:
    """Return the number of this process's open files."""
    gc.collect()
    return len(os.listdir("/dev/fd"))


@contextmanager
def few_files(room: int = ROOM) -> Iterator[None]:
    """Let the process open only that many more files than it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count_open_files() + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def assert_rows(path: os.PathLike[str], wanted: pa.Table, files: int) -> None:
    """Assert that the table is clean and has these rows in so many files."""
    table = hn.Table.open(path)
    assert table.fsck() == []
    found = table.to_arrow(columns=["id", "part", "ts"], meta=False).sort_by("id")
    assert found.equals(wanted.sort_by("id"))
    assert len(table.file_groups()) == files


def test_more_new_buckets_are_flushed_than_files_may_be_open(tmp_path):
    """A batch of mini-batches into more new partitions than a process may open files is written."""
    table, data = make(tmp_path / "t"), rows(3 * MANY, MANY)
    before = count_open_files()
    with few_files():
        table.upsert(data)
    assert count_open_files() == before
    assert_rows(tmp_path / "t", data, MANY)
    flushed = [e.values["appended"] for e in table.events.records("buffer_flushed")]
    assert True in flushed and False in flushed


def test_a_job_flushes_more_new_buckets_than_files_may_be_open(tmp_path):
    """A streaming job whose checkpoint reaches more new partitions than that commits it."""
    make(tmp_path / "t")
    job, data = LocalJob(open_table(tmp_path / "t")), rows(2 * MANY, MANY)
    with few_files():
        for start in range(0, data.num_rows, MANY // 2):
            job.write(data.slice(start, MANY // 2))
        job.checkpoint(1)
        job.complete(1)
    assert_rows(tmp_path / "t", data, MANY)


def test_a_bucket_is_folded_from_more_runs_than_files_may_be_open(tmp_path):
    """A bucket that was flushed more often than a process may open files is still folded."""
    table, data = make(tmp_path / "t"), rows(40, 1)
    table.upsert(data)
    job = LocalJob(open_table(tmp_path / "t"))
    with few_files():
        for ts in range(2, MANY):
            data = rows(4, 1, ts)
            job.write(data)
        job.checkpoint(1)
        job.complete(1)
    assert_rows(tmp_path / "t", pa.concat_tables([data, rows(40, 1).slice(4)]), 1)


def test_an_interval_is_composed_from_more_runs_than_files_may_be_open(tmp_path):
    """The sealed runs of a long interval are read without leaving their files open."""
    make(tmp_path / "t")
    handle = open_table(tmp_path / "t", ManualClock())
    job = LocalJob(handle, index="bloom", interval=Interval(checkpoints=100))
    with few_files(60):
        for number in range(1, 101):
            job.write(rows(3, 1, number))
            job.checkpoint(number)
            job.complete(number)
    assert_rows(tmp_path / "t", rows(3, 1, 100), 1)


def test_a_job_of_many_checkpoints_keeps_no_file_of_its_keys_open(tmp_path):
    """The index `state` reads one file a checkpoint, more than a process may open."""
    make(tmp_path / "t")
    handle = open_table(tmp_path / "t")
    job = LocalJob(handle, pipeline="step2", index="state", state_folder=str(tmp_path / "state"))
    with few_files(60):
        for number in range(1, 81):
            job.write(rows(number, 1, number))
            job.checkpoint(number)
            job.complete(number)
    assert_rows(tmp_path / "t", rows(80, 1, 80).slice(0, 80), 1)


def test_lookups_and_reads_of_many_files_keep_none_open(tmp_path):
    """Blooms, key columns and snapshots of more files than a process may open are read."""
    table, data = make(tmp_path / "t"), rows(MANY, MANY)
    table.upsert(data)
    with few_files(60):
        for index in ("bloom", "bloom+state"):
            job = LocalJob(open_table(tmp_path / "t"), index=index)
            job.write(data)
            job.checkpoint(1)
            job.complete(1)
        assert table.rebuild_index().files == MANY
        assert_rows(tmp_path / "t", data, MANY)


def test_a_failed_write_leaves_no_file_open(tmp_path):
    """A task that dies while its new files are open closes them."""
    table, data = make(tmp_path / "t"), rows(50, 50)
    before = count_open_files()
    for place in ("writer.flush", "writer.data"):
        failpoints.arm(f"{place}=raise:EIO@20")
        with pytest.raises(WriteFailed):
            table.upsert(data)
        failpoints.arm("")
        assert count_open_files() == before
    assert fsck(tmp_path / "t") == []
    table.upsert(data)
    assert_rows(tmp_path / "t", data, 50)
