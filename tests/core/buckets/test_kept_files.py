"""Files that this process has just written are kept in memory, and merged as if they were read."""

import random

import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.buckets import kept_files
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import HoodieError
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.files.base_file import Inherited, open_base_file
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.lock import writing
from hoodie_nb.records.progress import Checkpoint

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
_read: list[str] = []


@pytest.fixture(autouse=True)
def _noted(monkeypatch):
    """Note which base files the writer reads."""

    def noted(path, *rest):
        _read.append(path)
        return open_base_file(path, *rest)

    monkeypatch.setattr(kept_files, "open_base_file", noted)


class Writer:
    """A table that is written as a stream on the driver writes it."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        keys = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
        self.table = hn.Table.create(path, schema=SCHEMA, **keys)
        self.kept, self._handle = KeptFiles(limit_bytes), open_table(path)
        self._coordinator = WriteCoordinator(self._handle, EventLog())

    def write(self, rows: list[tuple[str, str, int]], operation: str = "upsert") -> list[str]:
        """Write rows; return the base files that were read for it."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        intake = Intake(self._handle.config, SCHEMA, operation)
        with writing(self._handle.storage):
            self._coordinator.recover()
            keyed = keyed_in_order(pa.table(columns, schema=SCHEMA), intake)
            _read.clear()
            with self._coordinator.committing(intake) as work:
                work.statuses = write_in_process(keyed, work.plan, EventLog(), self.kept)
        return [*_read]

    def rows(self) -> list[dict[str, object]]:
        """Return what a reader sees, with the meta columns that do not depend on the instant."""
        assert self.table.fsck() == []
        names = ["_hoodie_record_key", "_hoodie_partition_path", *SCHEMA.names]
        return self.table.to_arrow().select(names).sort_by("id").to_pylist()


def test_a_file_that_was_just_written_is_not_read(tmp_path):
    """A write onto files of the write before decodes none of them, with the same rows."""
    kept, plain = Writer(str(tmp_path / "kept"), 1 << 20), Writer(str(tmp_path / "plain"), 0)
    chance = random.Random(1)
    for number in range(12):
        rows = [(f"k{chance.randrange(40)}", f"p{n % 3}", number) for n in range(30)]
        rows = [(f"{part} {key}", part, ts) for key, part, ts in rows]
        operation = "delete" if number % 4 == 3 else "upsert"
        read = [writer.write(rows, operation) for writer in (plain, kept)]
        assert read[1] == [] and bool(read[0]) == bool(number)
        assert kept.rows() == plain.rows()


def test_the_oldest_files_make_room(tmp_path):
    """Above the limit the files that were written first are read again."""
    writer = Writer(str(tmp_path / "t"), 1000)
    for number in range(20):
        writer.write([("k", f"p{number:02d}", number)])
    assert writer.write([("k", "p19", 20)]) == []
    assert len(writer.write([("k", "p00", 21)])) == 1


def test_files_that_are_rewritten_in_turn_do_not_displace_each_other(tmp_path):
    """If only half of the files fit, that half is not read; later files displace the abandoned."""
    rows = [(f"k{n:02d}", f"p{n:02d}", 0) for n in range(16)]
    unlimited = Writer(str(tmp_path / "unlimited"), 1 << 20)
    unlimited.write(rows)
    writer = Writer(str(tmp_path / "t"), unlimited.kept.size // 2)
    writer.write(rows)
    for number in range(1, 4):
        kept = len(writer.kept._files)
        assert kept > 4
        assert len(writer.write([(key, part, number) for key, part, _ in rows])) == 16 - kept
    for number in range(4, 8):
        read = writer.write([("other", "q", number)])
    assert read == [] and writer.kept.size <= writer.kept.limit_bytes


def test_a_kept_file_does_not_keep_its_batch():
    """What is kept of a large batch holds only its own bytes, and nothing after the job's end."""
    batch = pa.table({"text": [f"text {n}" for n in range(100_000)]})
    kept = KeptFiles(1 << 20)
    kept.put("part/file.parquet", [batch.slice(500, 100)], Inherited(None, None), 0)
    rows = kept._files["part/file.parquet"].rows
    assert rows.equals(batch.slice(500, 100))
    assert rows.get_total_buffer_size() < 2 * rows.nbytes < batch.nbytes // 100
    kept.clear()
    assert (kept.size, kept._files) == (0, {})


def test_a_write_that_failed_reads_the_file(tmp_path):
    """A failed write takes a kept file out: the next one merges with the file on disk."""
    writer = Writer(str(tmp_path / "t"), 1 << 20)
    writer.write([("a", "p", 1), ("b", "p", 1)])

    def fail() -> None:
        raise OSError("no space")

    failpoints.call("writer.data.post", fail, 1)
    try:
        with pytest.raises(HoodieError):
            writer.write([("a", "p", 2), ("c", "p", 2)])
    finally:
        failpoints.arm("")
    assert len(writer.write([("b", "p", 3)])) == 1
    assert [(row["id"], row["ts"]) for row in writer.rows()] == [("a", 1), ("b", 3)]


def test_a_kept_file_that_is_damaged_on_disk_is_not_used(tmp_path):
    """The next write refuses the file, as it does without kept files."""
    writer = Writer(str(tmp_path / "t"), 1 << 20)
    writer.write([("a", "p", 1), ("b", "p", 1)])
    next(tmp_path.glob("t/p/*.parquet")).write_bytes(b"damaged")
    with pytest.raises(HoodieError, match="cannot be read"):
        writer.write([("a", "p", 2)])


def test_the_rows_of_a_failed_checkpoint_are_not_merged(tmp_path):
    """Two checkpoints write the same path of one instant; only what was committed counts."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="part")
    handle, events, kept = open_table(tmp_path / "t"), EventLog(), KeptFiles(1 << 20)
    coordinator = WriteCoordinator(handle, events)
    settle(coordinator)
    intake = Intake(handle.config, handle.schema)
    job = Checkpointing(coordinator, intake, Shape(), IN_PROCESS, given=SCHEMA)

    def write(number: int, key: str, error: Exception | None = None) -> None:
        rows = pa.table([[key], ["p"], [number]], schema=SCHEMA)
        previous = f"{number - 1:064d}" if number else None
        with job.running(Checkpoint("q", number, f"{number:064d}"), previous) as work:
            keyed = keyed_in_order(rows, job.intake)
            work.statuses = write_in_process(keyed, work.plan, events, kept)
            if error is not None:
                raise error

    with writing(handle.storage):
        write(0, "a")
        job.notify(0)
        write(1, "b")
        job.hold_open(1)
        with pytest.raises((HoodieError, OSError)):
            write(2, "never applied", OSError("no space"))
        job.complete()
        write(2, "c")
        job.notify(2)
    assert sorted(table.to_arrow()["id"].to_pylist()) == ["a", "b", "c"]
