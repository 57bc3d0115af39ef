"""What changes between a crash and the next start: archived commits, restored folders, rows."""

from __future__ import annotations

import pytest
from test_journal import OURS, SCHEMA, Life, committed, forget, life, rows, upsert_elsewhere

from hoodie_nb import failpoints
from hoodie_nb.errors import HoodieError, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.pipeline.checkpointing import Checkpointing, settle
from hoodie_nb.pipeline.coordinator import Shape, WriteCoordinator
from hoodie_nb.pipeline.in_process import keyed_in_order, write_in_process
from hoodie_nb.pipeline.intake import Intake
from hoodie_nb.pipeline.progress import Checkpoint
from hoodie_nb.table.fsck import fsck
from hoodie_nb.table.read import to_arrow

__all__ = ["life"]  # a fixture


# --- commit_on="write" --------------------------------------------------------------------------


def write_batch(one: Life, number: int, key: str) -> None:
    """Let a process insert a row as batch `number` of a stream that commits inside its batches."""
    table, events = one.handle(), EventLog()
    one.job.table = table  # the process that dies
    coordinator = WriteCoordinator(table, events)
    settle(coordinator, events)
    intake = Intake(table.config, table.schema, "insert")
    checkpointing = Checkpointing(coordinator, intake, Shape(), events, commit_on="write")
    keyed = keyed_in_order(rows((key, 1, number, False)), intake)
    before = f"{number - 1:064x}" if number else None
    checkpointing.run(
        Checkpoint("q", number, f"{number:064x}"),
        before,
        lambda plan: write_in_process(keyed, plan, events),
    )


@pytest.mark.parametrize(
    "failpoint", ["coord.prepare.post", "coord.commit.pre", "coord.commit.post"]
)
def test_a_batch_that_commits_at_once_is_known_after_its_commit_was_archived(life, failpoint):
    """Killed around its completed file; another engine commits and archives: no row is doubled."""
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
    assert sorted(one.found()) == ["a", "b"]
