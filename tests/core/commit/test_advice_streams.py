"""The advice of errors about streams, followed: each row is in the table once afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from core.writes import run_checkpoint
from damages import cut
from test_clean_plan import make, upsert
from test_journal import OURS, SCHEMA, Life, committed, life, rows, upsert_elsewhere
from test_restore_streams import OURS as OTHER_ROW
from test_restore_streams import rewind, table_of, times
from test_review_files import backup_of
from test_savepoints import times as times_of

from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.on_spark.sources import ChangeStream
from hoodie_nb.reading.changes import changes_schema
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import Interval

__all__ = ["life"]  # a fixture
BATCHES = [(("a", 1, 1, False), ("b", 1, 1, False)), (("a", 2, 2, False),), (("b", 3, 0, True),)]
MODEL = {"a": (2, 2)}
SEALS = Interval(checkpoints=1000)


def run(one: Life, batches: list[tuple]) -> None:
    """Run batches, each in a checkpoint."""
    for batch in batches:
        one.checkpoint(*batch)


def start_again(one: Life, query: str = "new") -> None:
    """Start the stream with a new checkpoint folder, so that it reads its source again."""
    one.source, one.number = Source(), 0
    one.job = LocalJob(
        one.handle(),
        index="bloom+state",
        query_id=query,
        source=one.source,
        interval=one.interval,
    )
    run(one, BATCHES)
    one.job.checkpointing.complete()


def drop_folders(one: Life, text: str) -> None:
    """Delete the folders that an error names."""
    assert "delete the folders sealed, prepared and staged in .hoodie/.hoodie_nb" in text
    for name in ("sealed", "prepared", "staged"):
        shutil.rmtree(one.path / OURS / name, ignore_errors=True)


def newest(pattern: str) -> Callable[[Life], Path]:
    """Return the search for the newest file of a pattern in our folder."""
    return lambda one: max(one.path.glob(f"{OURS}/{pattern}"), key=lambda f: f.stat().st_mtime_ns)


LOST: dict[str, tuple[Interval | None, Callable[[Life], Path]]] = {
    "sealed record": (SEALS, newest("sealed/*.json")),
    "sealed run": (SEALS, newest("staged/*/*.arrow")),
    "prepared record": (None, newest("prepared/*.json")),
    "staged file": (None, newest("staged/*/*.staged")),
}


@pytest.mark.parametrize("committed_before", [0, 1], ids=["none", "one"])
@pytest.mark.parametrize("kind", LOST)
def test_what_a_stream_has_lost_is_read_again(life, kind: str, committed_before: int) -> None:
    """Without a backup the three folders are deleted, and a new checkpoint folder starts over."""
    interval, file = LOST[kind]
    one = life(interval)
    for batch in BATCHES[:committed_before]:
        run(one, [batch])
        one.job.checkpointing.complete()
    run(one, BATCHES[committed_before:])
    cut(file(one))
    with pytest.raises(InvalidTable, match="start the stream with a new checkpoint") as refused:
        one.start()
        one.job.checkpointing.complete()
    drop_folders(one, str(refused.value))
    start_again(one)
    assert one.rows_by_key() == MODEL and fsck(one.path) == []


def test_seals_of_another_stream_are_not_lost_silently(life) -> None:
    """Deleted with the folders, its batches are refused at its next start, then read again."""
    one = life(SEALS)
    run(one, BATCHES)
    mine = one.source, one.number
    one.source, one.number = Source(), 0
    one.job = LocalJob(
        one.handle(), index="bloom+state", query_id="second", source=one.source, interval=SEALS
    )
    one.keeps_seals = True
    one.checkpoint(("second", 1, 1, False))
    second, (one.source, one.number) = one.source, mine
    cut(newest("sealed/*.json")(one))
    with pytest.raises(InvalidTable, match="delete the folders") as refused:
        one.start()
    drop_folders(one, str(refused.value))
    start_again(one)
    with pytest.raises(InvalidTable, match="or start the stream with a new checkpoint folder"):
        LocalJob(one.handle(), query_id="second", source=second, interval=SEALS)
    assert one.rows_by_key() == MODEL
    one.source, one.number = Source(), 0
    one.job = LocalJob(one.handle(), query_id="third", source=one.source, interval=SEALS)
    one.checkpoint(("second", 1, 1, False))
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {**MODEL, "second": (1, 1)} and fsck(one.path) == []


@pytest.mark.parametrize("cure", ["folder back", "new folder", "table forward"])
def test_a_stream_that_is_ahead_of_its_table(life, cure: str) -> None:
    """After a restore each of the ways that the error names ends with each row once."""
    one = life()
    for batch in BATCHES:
        run(one, [batch])
        one.job.checkpointing.complete()
    whole = one.path.with_name("whole")
    shutil.copytree(one.path, whole)
    table_of(one).restore(times(one)[0])
    with pytest.raises(InvalidTable, match=r"Restore the other to the same moment.* whose number"):
        one.start()
    if cure == "folder back":
        rewind(one, 0)
        one.start()
        for _ in BATCHES[1:]:
            one.checkpoint()
        one.job.checkpointing.complete()
    elif cure == "new folder":
        start_again(one)
    else:
        shutil.rmtree(one.path)
        whole.rename(one.path)
        one.start()
    assert one.rows_by_key() == MODEL and fsck(one.path) == []


@pytest.mark.parametrize("cure", ["restore", "delete"])
def test_the_record_of_a_streams_progress(life, cure: str) -> None:
    """Restored or deleted, the stream goes on, and nothing is repeated."""
    one = life()
    for batch in BATCHES[:2]:
        run(one, [batch])
        one.job.checkpointing.complete()
    backup_of(one)
    path = one.path / OURS / "progress/local.json"
    cut(path)
    with pytest.raises(InvalidTable, match="or delete it: the newest commit names"):
        one.start()
    path.unlink()
    if cure == "restore":
        shutil.copy(one.path.with_name("backup") / "progress/local.json", path)
    commits = committed(one)
    one.start()
    assert committed(one) == commits
    run(one, BATCHES[2:])
    one.job.checkpointing.complete()
    assert one.rows_by_key() == MODEL and fsck(one.path) == []


def write(one: Life, number: int, data: pa.Table, operation: str, query: str = "q") -> None:
    """Write a batch of a stream that commits at once, in a new process."""
    table, events = one.handle(), EventLog()
    coordinator = WriteCoordinator(table, events)
    settle(coordinator)
    intake = Intake(table.config, table.schema, operation)
    checkpointing = Checkpointing(coordinator, intake, Shape(), IN_PROCESS, commit_on="write")
    keyed = keyed_in_order(data, intake)
    mark = f"{data.column('ts')[0].as_py():02x}" * 32
    run_checkpoint(
        checkpointing,
        Checkpoint(query, number, mark),
        None,
        lambda plan: write_in_process(keyed, plan, events),
    )


@pytest.mark.parametrize("cure", ["upsert", "new folder"])
def test_a_batch_that_was_inserted_with_other_data(life, cure: str) -> None:
    """With upserts its rows replace those of before; a new folder goes on with new data."""
    one = life()
    write(one, 0, rows(("a", 1, 1, False), ("b", 1, 1, False)), "insert")
    other = rows(("a", 2, 2, False), ("c", 2, 2, False))
    with pytest.raises(InvalidConfig, match=r"use operation='upsert'.* new checkpoint folder"):
        write(one, 0, other, "insert")
    if cure == "upsert":
        write(one, 0, other, "upsert")
        expected = {"a": (2, 2), "b": (1, 1), "c": (2, 2)}
    else:
        write(one, 0, rows(("c", 2, 2, False)), "insert", "new")
        expected = {"a": (1, 1), "b": (1, 1), "c": (2, 2)}
    assert one.rows_by_key() == expected and fsck(one.path) == []
    assert to_arrow(one.handle()).num_rows == len(expected)


@pytest.mark.parametrize("name", ["_hoodie_nb_progress", "_hoodie_nb_last_arrival"])
def test_what_the_newest_commit_carries(life, name: str) -> None:
    """If it cannot be read, the commit is restored from a backup, and the stream goes on."""
    one = life(SEALS)
    run(one, BATCHES[:2])
    one.job.checkpointing.complete()
    (path,) = one.path.glob(".hoodie/*.commit")
    whole = path.read_text()
    text = whole.replace(f'"{name}"', f'"{name}": "?", "other"')
    path.write_text(text.replace('"_hoodie_nb_checksum"', '"not_a_checksum"'))
    with pytest.raises(InvalidTable, match="restore the commit from a backup"):
        one.start()
    path.write_text(whole)
    one.start()
    run(one, BATCHES[2:])
    one.job.checkpointing.complete()
    assert one.rows_by_key() == MODEL and fsck(one.path) == []


def test_another_tables_records_are_deleted_or_restored(tmp_path: Path) -> None:
    """Our folder from the backup of this table ends the refusal, and nothing of the other stays."""
    one, other = Life(tmp_path / "one", None), Life(tmp_path / "other", None)
    run(one, BATCHES)
    other.checkpoint(("mine", 1, 1, False))
    other.job.checkpointing.complete()
    backup_of(other)
    for name in ("prepared", "staged"):
        shutil.copytree(one.path / OURS / name, other.path / OURS / name, dirs_exist_ok=True)
    with pytest.raises(InvalidTable, match="or restore that folder from a backup of this table"):
        other.start()
    shutil.rmtree(other.path / OURS)
    shutil.copytree(tmp_path / "backup", other.path / OURS)
    other.start()
    table_of(other).upsert(OTHER_ROW)
    assert set(other.rows_by_key()) == {"mine", "ours"} and fsck(other.path) == []


@pytest.mark.parametrize("cure", ["columns", "earlier state"])
@pytest.mark.parametrize("interval", [None, SEALS], ids=["prepared", "sealed"])
def test_a_column_that_another_engine_has_dropped(life, cure: str, interval) -> None:
    """Added again, or with the table as it was before, the rows that wait are written."""
    one = life(interval)
    run(one, BATCHES if interval else BATCHES[:1])
    earlier = one.path.with_name("earlier")
    shutil.copytree(one.path, earlier)
    narrow = pa.schema([field for field in SCHEMA if field.name != "v"])
    upsert_elsewhere(one, narrow, {"id": "f", "part": "p", "ts": 1})
    with pytest.raises(
        InvalidTable, match="engine add them again, or restore the table from a backup"
    ):
        one.start()
        one.job.checkpointing.complete()
    with pytest.raises(InvalidTable, match="let that engine add them again"):  # this one cannot
        table_of(one).add_columns({"v": SCHEMA.field("v").type})
    expected = MODEL if interval else {"a": (1, 1), "b": (1, 1)}
    if cure == "columns":
        upsert_elsewhere(one, SCHEMA, {"id": "g", "part": "p", "ts": 1, "v": 1})
        expected = {**expected, "f": (1, None), "g": (1, 1)}
    else:
        shutil.rmtree(one.path)
        earlier.rename(one.path)
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == expected and fsck(one.path) == []


@pytest.mark.parametrize("cure", ["earliest", "a commit"])
def test_a_stream_of_changes_starts_again(tmp_path: Path, cure: str) -> None:
    """From the earliest it gives all rows for an empty target; from a commit the later changes."""
    table = make(tmp_path / "t")
    for number in range(3):
        upsert(table, number, [number])
    columns = changes_schema(open_table(table.path))
    first, second, third = times_of(table)
    stream = ChangeStream(table.path, columns, "earliest")
    table.rollback()
    with pytest.raises(InvalidConfig, match="Or start it with a new checkpoint folder: starting="):
        stream.partitions({"instant": third}, stream.latestOffset({"instant": ""}, None))
    upsert(table, 9, [1])
    starting = "earliest" if cure == "earliest" else second
    again = ChangeStream(table.path, columns, starting)
    begin = again.initialOffset()
    end = again.latestOffset(begin, None)
    found = [
        row
        for part in again.partitions(begin, end)
        for batch in again.read(part)
        for row in batch.to_pylist()
    ]
    changed = table.changes(since=cure if cure == "earliest" else second).to_pylist()
    assert sorted(map(str, found)) == sorted(map(str, changed))
    assert len(found) == (2 if cure == "earliest" else 1) and first < second
