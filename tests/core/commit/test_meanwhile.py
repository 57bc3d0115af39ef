"""Changes between a crash and the next start: archived commits, restored folders, rows."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from core.faults import Crash
from core.writes import run_checkpoint
from test_journal import OURS, SCHEMA, Life, committed, forget, life, rows, upsert_elsewhere

from hoodie_nb import Table, failpoints
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import HoodieError, InvalidTable, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import MARK_KEY, Interval

__all__ = ["life"]  # a fixture


# --- commit_on="write" --------------------------------------------------------------------------


def write_batch(one: Life, number: int, key: str) -> None:
    """Insert a row, in a new process, as batch `number` of a stream that commits in its batches."""
    table, events = one.handle(), EventLog()
    one.job.table = table  # the process that dies
    coordinator = WriteCoordinator(table, events)
    settle(coordinator)
    intake = Intake(table.config, table.schema, "insert")
    checkpointing = Checkpointing(coordinator, intake, Shape(), IN_PROCESS, commit_on="write")
    keyed = keyed_in_order(rows((key, 1, number, False)), intake)
    before = f"{number - 1:064x}" if number else None
    run_checkpoint(
        checkpointing,
        Checkpoint("q", number, f"{number:064x}"),
        before,
        lambda plan: write_in_process(keyed, plan, events),
    )


@pytest.mark.parametrize(
    "failpoint", ["coord.prepare.post", "coord.commit.pre", "coord.commit.post"]
)
def test_a_batch_that_commits_at_once_is_known_after_its_commit_was_archived(life, failpoint):
    """After a kill around the completed file another engine archives; no row is duplicated."""
    one = life()
    write_batch(one, 0, "a")
    one.die(failpoint, lambda: write_batch(one, 1, "b"))
    ours = committed(one)
    if failpoint == "coord.commit.post":
        upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 7})
        forget(one, *ours)
    write_batch(one, 1, "b")  # Spark's replay
    write_batch(one, 2, "c")
    found = sorted(row["id"] for row in to_arrow(one.handle()).to_pylist())
    assert found == ["a", "b", "c", *(["f"] if failpoint == "coord.commit.post" else [])]
    assert list(one.path.glob(f"{OURS}/prepared/*")) == []
    assert fsck(one.path) == []


@pytest.mark.parametrize("broken", ["coord.prepare.post", "coord.publish", "coord.commit.pre"])
def test_a_batch_that_commits_at_once_and_fails_leaves_nothing_prepared(life, broken):
    """An error before the completed file undoes the batch, its prepared record included."""
    one = life()
    write_batch(one, 0, "a")

    def breaks() -> None:
        raise WriteFailed("by the test")

    failpoints.call(broken, breaks)
    with pytest.raises(HoodieError):
        write_batch(one, 1, "b")
    failpoints.arm("")
    assert list(one.path.glob(f"{OURS}/prepared/*")) == []
    assert one.handle().timeline.pending() == []
    write_batch(one, 1, "b")
    assert sorted(one.rows_by_key()) == ["a", "b"]


# --- a folder of ours from a backup -------------------------------------------------------------


def interval_with_backup(one: Life) -> Path:
    """Apply an interval of a row, its delete and an update; return a copy of our folder before."""
    one.checkpoint(("back", 1, 1, False), ("kept", 1, 1, False))
    one.checkpoint(("back", 2, 0, True))
    one.checkpoint(("kept", 1, 2, False))
    backup = one.path.with_name("backup")
    shutil.copytree(one.path / OURS, backup)
    one.job.checkpointing.complete()
    return backup


def put_back(one: Life, backup: Path, folder: str) -> None:
    """Restore our folder, or one inside it, from the backup."""
    shutil.rmtree(one.path / OURS / folder, ignore_errors=True)
    shutil.copytree(backup / folder, one.path / OURS / folder)


def disown(one: Life) -> None:
    """Remove our notes from the newest commit: another engine's has none."""
    path = one.path / ".hoodie" / f"{committed(one)[-1]}.commit"
    content = json.loads(path.read_bytes())
    notes = content["extraMetadata"]
    content["extraMetadata"] = {k: v for k, v in notes.items() if not k.startswith("_hoodie_nb_")}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("folder", [".", "sealed"])
@pytest.mark.parametrize("foreign", [False, True])
def test_seals_of_a_backup_that_are_applied_are_not_applied_again(life, folder, foreign):
    """A backup of our folder restores applied seals, but no deleted key or older row returns."""
    one = life(Interval(checkpoints=1000))
    backup = interval_with_backup(one)
    one.checkpoint(("kept", 1, 3, False))
    one.job.checkpointing.complete()
    if foreign:
        upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 7})
        disown(one)
    before = one.rows_by_key()
    put_back(one, backup, folder)
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == before == {"kept": (1, 3), **({"f": (1, 7)} if foreign else {})}
    assert list(one.path.glob(f"{OURS}/s*ed/*")) == []
    one.checkpoint(("kept", 1, 4, False))
    one.checkpoint(("new", 1, 1, False))
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {**before, "kept": (1, 4), "new": (1, 1)}


@pytest.mark.parametrize("folder", [".", "sealed"])
@pytest.mark.parametrize("how", ["restore", "rollback"])
@pytest.mark.parametrize("dies", ["", "restore.withdrawn.post", "rollback.instant.post"])
def test_seals_of_a_backup_whose_commit_was_undone_are_not_applied(life, folder, how, dies):
    """Their rows do not come back, and no lost file of theirs is an error, after a death either."""
    one = life(Interval(checkpoints=1000))
    one.checkpoint(("first", 1, 1, False))
    one.job.checkpointing.complete()
    backup = interval_with_backup(one)
    one.job.table.storage.dead = True
    table = Table.open(one.path)
    undo = table.rollback
    if how == "restore":
        to = table.history()["requested_time"].iloc[0]
        undo = partial(table.restore, to)
    if dies:
        failpoints.call(dies, partial(_die, dies))
        with pytest.raises(Crash):
            undo()
        failpoints.arm("")
    else:
        undo()
    put_back(one, backup, folder)
    one.source, one.number = Source(), 0  # a new checkpoint folder
    one.job = LocalJob(one.handle(), index="bloom+state", query_id="new", source=one.source)
    one.checkpoint(("new", 1, 1, False))
    one.job.checkpointing.complete()
    one.start()
    assert one.rows_by_key() == {"first": (1, 1), "new": (1, 1)}
    assert list(one.path.glob(f"{OURS}/s*ed/*")) == [] and fsck(one.path) == []


def _die(name):
    raise Crash(name)


def test_arrival_numbers_never_start_over(life):
    """The first seal after an interval has a greater number than all that are applied."""
    one = life(Interval(checkpoints=1000))
    interval_with_backup(one)
    one.start()
    one.checkpoint(("a", 1, 1, False))
    (record,) = one.job.coordinator.sealed.all()
    assert record.arrival == 3


def test_a_seal_right_after_a_commit_of_the_same_process_counts(life):
    """The process that has just applied an interval numbers the next seal after it."""
    one = life(Interval(checkpoints=1000))
    interval_with_backup(one)
    one.checkpoint(("a", 1, 1, False))
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1), "kept": (1, 2)}


def test_seals_after_commits_of_an_older_version_are_applied(life):
    """Commits that do not say which seals are applied leave all seals to be applied."""
    one = life(Interval(checkpoints=1000))
    interval_with_backup(one)
    path = one.path / ".hoodie" / f"{committed(one)[-1]}.commit"
    content = json.loads(path.read_bytes())
    del content["extraMetadata"][MARK_KEY], content["extraMetadata"]["_hoodie_nb_checksum"]
    path.write_text(json.dumps(content))
    one.start()
    one.checkpoint(("kept", 1, 3, False))
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"kept": (1, 3)}


@pytest.mark.parametrize("mark", ["", "x", "-2", "9" * 30])
def test_a_mark_that_is_not_a_number_is_refused(life, mark):
    """A commit whose last arrival cannot be read is named, with the fix."""
    one = life(Interval(checkpoints=1000))
    interval_with_backup(one)
    path = one.path / ".hoodie" / f"{committed(one)[-1]}.commit"
    content = json.loads(path.read_bytes())
    content["extraMetadata"][MARK_KEY] = mark
    del content["extraMetadata"]["_hoodie_nb_checksum"]
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidTable, match="restore the commit"):
        one.start()


# --- base rows that are gone --------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 2])
def test_a_late_row_is_redone_if_the_row_it_lost_against_is_gone(life, lost):
    """A row loses against a stored row; another engine rolls that commit back; the row returns.

    `lost` counts the checkpoints of the instant, of which the first one has the late row.
    """
    one = life()
    one.checkpoint(("base", 1, 1, False))
    one.job.complete(one.number)
    upsert_elsewhere(one, SCHEMA, {"id": "k", "part": "p", "ts": 9, "v": 9})
    newer = committed(one)[-1]
    one.start()
    one.checkpoint(("k", 5, 5, False), ("b", 1, 1, False))
    if lost == 2:
        one.job.lose(one.number)
        one.checkpoint(("k", 4, 4, False), ("c", 1, 1, False))
    restore_away(one, newer)
    one.start()
    one.job.checkpointing.complete()
    kept = {"base": (1, 1), "b": (1, 1), "k": (5, 5)}
    assert one.rows_by_key() == {**kept, **({"c": (1, 1)} if lost == 2 else {})}
    assert fsck(one.path) == []


def test_a_late_row_that_loses_again_is_kept_for_the_next_redo(life):
    """A redo dies before its commit and the table changes again: lost rows still count."""
    one = life()
    one.checkpoint(("base", 1, 1, False))
    one.job.complete(one.number)
    upsert_elsewhere(one, SCHEMA, {"id": "k", "part": "p", "ts": 9, "v": 9})
    newer = committed(one)[-1]
    one.start()
    one.checkpoint(("k", 5, 5, False), ("b", 1, 1, False))
    upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 7})
    one.die("coord.commit.pre", one.job.checkpointing.complete)
    last = committed(one)[-1]
    restore_away(one, newer, last)
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"base": (1, 1), "b": (1, 1), "k": (5, 5)}


@pytest.mark.parametrize("failpoint", ["coord.requested.pre", "coord.redo.pre"])
def test_a_redo_is_repeated_after_a_crash_and_archiving(life, failpoint):
    """The instant is off the timeline, and its base is archived before the next start."""
    one = life()
    one.checkpoint(("base", 1, 1, False))
    one.job.complete(one.number)
    one.checkpoint(("k", 5, 5, False))
    upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 7})
    one.die(failpoint, one.job.checkpointing.complete)
    before = committed(one)
    upsert_elsewhere(one, SCHEMA, {"id": "g", "part": "p", "ts": 1, "v": 8})
    forget(one, *before)
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"base": (1, 1), "f": (1, 7), "g": (1, 8), "k": (5, 5)}
    assert fsck(one.path) == []


def restore_away(one: Life, *instants: str) -> None:
    """Remove commits as another engine's restore does: their base files and their instants."""
    for time17 in instants:
        for file in one.path.rglob(f"*_{time17}.parquet"):
            file.unlink()
    forget(one, *instants)
