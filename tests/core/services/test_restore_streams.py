"""Streams over a restore: no batch is skipped that is no longer in the table, none is repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from lives import BATCHES, QUERY, fingerprint, live, opened
from lives import make as make_workload
from test_journal import Life, life
from test_meanwhile import write_batch

from hoodie_nb import Table
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.restoring import plan_restore, restore
from hoodie_nb.errors import InvalidTable
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.progress import Checkpoint, ProgressRecords
from hoodie_nb.records.sealing import Interval
from hoodie_nb.timeline.timeline import CommitsInTable

__all__ = ["life"]  # a fixture
OURS = pa.table({"id": ["ours"], "part": ["p"], "ts": [1], "v": [1]})


def table_of(one: Life) -> Table:
    """Return the table as a new process sees it."""
    return Table(one.handle())


def times(one: Life) -> list[str]:
    """Return the times of the completed commits."""
    return list(table_of(one).history()["requested_time"])


@pytest.mark.parametrize("then", ["committed", "empty", "prepared", "sealed"])
def test_a_stream_whose_batches_were_undone_continues_where_the_error_says(life, then: str) -> None:
    """The error names the last batch in the table; taken back to it, each row arrives once."""
    one = life(Interval(checkpoints=1000) if then == "sealed" else None)
    for number in range(3):
        one.checkpoint((f"k{number}", 1, number, False))
        one.job.checkpointing.complete()
    to = times(one)[1]
    if then != "committed":
        one.checkpoint(*([] if then == "empty" else [("k1", 2, 9, False)]))
    restored = table_of(one).restore(to)  # commits what is prepared or sealed, and undoes it
    assert len(restored.commits) == (2 if then in ("prepared", "sealed") else 1)
    assert set(one.rows_by_key()) == {"k0", "k1"} and one.rows_by_key()["k1"] == (1, 1)
    for _ in range(2):
        with pytest.raises(InvalidTable, match="restored or replaced") as refused:
            one.start()
    cure = re.search(r"whose number is above (\d+)", str(refused.value))
    assert cure is not None and int(cure[1]) == 1
    rewind(one, int(cure[1]))
    one.start()
    while one.number < len(one.source.barriers):
        one.checkpoint()
    one.job.checkpointing.complete()
    found = {"k0": (1, 0), "k1": (1, 1), "k2": (1, 2)}
    assert one.rows_by_key() == (
        found if then in ("committed", "empty") else {**found, "k1": (2, 9)}
    )
    assert fsck(one.path) == []


def test_undone_batches_stay_undone_if_the_progress_record_is_lost(life) -> None:
    """A later commit names the last checkpoint before them, not an empty one after them."""
    one = life()
    for number in range(3):
        one.checkpoint((f"k{number}", 1, number, False))
        one.job.checkpointing.complete()
    one.checkpoint()
    table_of(one).restore(times(one)[1])
    table_of(one).upsert(OURS)
    (record,) = one.path.glob(".hoodie/.hoodie_nb/progress/*.json")
    record.unlink()
    with pytest.raises(InvalidTable, match=r"above 1\b"):
        one.start()
    assert set(one.rows_by_key()) == {"k0", "k1", "ours"}
    rewind(one, 1)
    one.start()
    one.checkpoint()
    one.job.checkpointing.complete()
    assert set(one.rows_by_key()) == {"k0", "k1", "k2", "ours"}


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)], ids=["prepared", "sealed"])
@pytest.mark.parametrize("point", ["", "coord.prepare.post", "coord.seal.post"])
def test_undone_batches_that_are_durable_again_are_not_undone(life, interval, point: str) -> None:
    """A start before their commit, also after a crash right after they became durable, goes on."""
    one = life(interval)
    one.keeps_seals = True
    undo_last(one)
    if ("seal" in point) == (interval is not None) and point:
        one.die(point, one.checkpoint)
        one.source.succeeded = len(one.source.sealed)
    else:
        one.checkpoint()
    one.start()
    one.checkpoint()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {f"k{n}": (1, n) for n in range(4)}
    assert fsck(one.path) == []


def undo_last(one: Life) -> None:
    """Commit four batches, undo the last two, and take the checkpoint folder back to the second."""
    one.start()
    for number in range(4):
        one.checkpoint((f"k{number}", 1, number, False))
        one.job.checkpointing.complete()
    table_of(one).restore(times(one)[1])
    rewind(one, 1)
    one.start()


def test_a_lost_seal_of_a_batch_that_was_undone_before_is_noticed(life) -> None:
    """That a progress record names an undone batch does not mean that its seal was applied."""
    one = life(Interval(checkpoints=1000))
    one.keeps_seals = True
    undo_last(one)
    one.checkpoint()
    one.checkpoint()
    lost = min(one.path.glob(".hoodie/.hoodie_nb/sealed/*.json"))
    content = lost.read_bytes()
    lost.unlink()
    for write in (one.start, table_of(one).clean):
        with pytest.raises(InvalidTable, match=r"is missing|is not in the table"):
            write()
    assert set(one.rows_by_key()) == {"k0", "k1"}
    lost.write_bytes(content)
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {f"k{n}": (1, n) for n in range(4)}


@pytest.mark.parametrize("point", ["coord.unseal.post", "coord.progress.post"])
def test_seals_that_another_engine_has_undone_are_not_lost(life, point: str) -> None:
    """A crash after their commit, then the restore of another engine: the table can be written."""
    one = life(Interval(checkpoints=1000))
    one.keeps_seals = True
    one.start()
    one.checkpoint(("base", 1, 1, False))
    one.job.checkpointing.complete()
    one.checkpoint(("k0", 1, 0, False))
    one.checkpoint(("k1", 1, 1, False))
    one.die(point, one.job.checkpointing.complete)
    handle, to = one.handle(), times(one)[0]
    commit = next(i for i in handle.timeline.completed_commits() if i.requested_time == to)
    restore(handle, plan_restore(handle, commit), lambda *given, **values: None, {})
    table_of(one).upsert(OURS)
    rewind(one, 0)
    one.start()
    one.checkpoint()
    one.checkpoint()
    one.job.checkpointing.complete()
    assert set(one.rows_by_key()) == {"base", "k0", "k1", "ours"}
    assert fsck(one.path) == []


def rewind(one: Life, last: int) -> None:
    """Take the checkpoint folder back to a batch, as the error recommends."""
    one.number = last + 1
    one.source.take_back(last + 1)


def test_an_insert_stream_repeats_exactly_the_batches_that_were_undone(life) -> None:
    """Batches that are in the table are skipped, undone ones are inserted once, also as replays."""
    one = life()
    for number in range(4):
        write_batch(one, number, f"k{number}")
    table_of(one).restore(times(one)[1])
    for _ in range(2):  # without files in `commits`, but with all in `offsets`
        for number in range(4):
            write_batch(one, number, f"k{number}")
    assert sorted(row["id"] for row in to_arrow(one.handle()).to_pylist()) == [
        "k0",
        "k1",
        "k2",
        "k3",
    ]
    assert fsck(one.path) == []


def test_undone_batches_stay_unknown_after_their_time_is_archived(life) -> None:
    """An instant that is older than the timeline counts as archived, but not if it was undone."""
    one = life()
    for number in range(3):
        write_batch(one, number, f"k{number}")
    first, second, third = times(one)
    table_of(one).restore(first)
    known = ProgressRecords(one.handle().storage)
    all_archived = CommitsInTable((), "9", one.handle().timeline.archive)
    held = [known.contains(Checkpoint("q", n, f"{n:064x}"), all_archived) for n in range(3)]
    assert held == [True, False, False]
    write_batch(one, 1, "k1")
    there = one.handle().timeline.commits_in_table()
    assert known.contains(Checkpoint("q", 1, f"{1:064x}"), there)
    assert not known.contains(Checkpoint("q", 2, f"{2:064x}"), all_archived)
    assert (second, third) != tuple(times(one)[1:])


@pytest.mark.parametrize("version", [6, 9])
def test_a_restore_of_another_engine_is_taken_over(tmp_path: Path, version: int) -> None:
    """Batches that it has undone are marked by our next writer, which then runs them again."""
    root = make_workload(tmp_path / "t", version)
    live(opened(root))
    table = Table(opened(root))
    progress = ProgressRecords(table._handle.storage)
    before = progress.entries(QUERY)
    table.restore(table.history()["requested_time"].iloc[0])
    folder = root / ".hoodie/.hoodie_nb/progress"
    marked = (folder / f"{QUERY}.json").read_bytes()
    progress.record([entry.checkpoint(QUERY) for entry in before[:1]], before[0].instant_time)
    for entry in before[1:]:  # as it was before the restore
        progress.record([entry.checkpoint(QUERY)], entry.instant_time)
    assert [e.instant_time for e in progress.entries(QUERY)] == [e.instant_time for e in before]
    table = Table(opened(root))
    table.clean()
    assert [e.instant_time for e in progress.entries(QUERY)][1:2] != [before[1].instant_time]
    assert (folder / f"{QUERY}.json").read_bytes() == marked
    live(opened(root))
    assert table.fsck() == []
    there = table._handle.timeline.commits_in_table()
    found = [Checkpoint(QUERY, n, fingerprint(n)) for n in range(len(BATCHES))]
    assert all(progress.contains(checkpoint, there) for checkpoint in found)
