"""Any operation of a restore may fail in any way, as in `test_crash_loop`.

One trial: a process restores a table to its second commit, and its n-th operation on the disk
fails; readers read; a new process recovers, and replays the stream. If the plan was durable, the
table is that of the second commit, else nothing has changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from each_fault import each_fault
from lives import (
    BATCHES,
    COMMITS,
    QUERY,
    assert_at_rest,
    assert_finished,
    assert_whole_prefix,
    commits,
    dying_at,
    fingerprint,
    kill_at,
    live,
    make,
    opened,
)
from tables import timeline_names
from test_savepoints import times

from hoodie_nb import Table, failpoints
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.local.settling import settle
from hoodie_nb.records.progress import Checkpoint, ProgressRecords

POINTS = [name for name in failpoints.NAMES if name.startswith("restore.")]
TARGET = 2  # the number of commits after the restore
LAST = 2  # the last batch in the table then: the third one commits nothing


@pytest.fixture(scope="module")
def finished(new_folder: Callable[[], Path]) -> dict[int, Path]:
    """Tables with the whole workload, by version."""
    found = {}
    for version in (6, 9):
        found[version] = make(new_folder() / "t", version)
        live(opened(found[version]))
    return found


def restore(table: Table) -> None:
    """Restore to the second commit."""
    table.restore(table.history()["requested_time"].iloc[TARGET - 1])


def settled(table: Table) -> None:
    """Recover a table that is open, without a write."""
    settle(WriteCoordinator(table._handle, EventLog()))


def recover(root: Path) -> None:
    """Recover the table in a new process, without a write."""
    settled(Table(opened(root)))


def check(root: Path, *, planned: bool) -> None:
    """Readers see the table after one of its commits; after the recovery it is the right one."""
    assert_whole_prefix(root)
    assert TARGET <= commits(root) < len(COMMITS)
    recover(root)
    assert commits(root) == (TARGET if planned else len(COMMITS) - 1)
    assert_whole_prefix(root)
    assert_at_rest(root)
    known = ProgressRecords(open_table(root).storage)
    there = open_table(root).timeline.commits_in_table()
    held = [
        known.contains(Checkpoint(QUERY, n, fingerprint(n)), there) for n in range(len(BATCHES))
    ]
    assert held == [True] * TARGET + [n == 2 or not planned for n in range(TARGET, len(BATCHES))]
    live(opened(root), last=LAST if planned else None)
    assert_finished(root)


def is_planned(root: Path) -> bool:
    """Whether the restore is on the timeline, read from the names alone."""
    return any(".restore" in name for name in timeline_names(root))


@pytest.mark.parametrize(
    ("version", "how"),
    [
        *((6, how) for how in ("before", "after", "torn", "error", "error_after", "interrupt")),
        *((9, how) for how in ("before", "error")),
    ],
)
def test_a_failure_anywhere_in_a_restore_leaves_a_state_of_the_past(
    finished: dict[int, Path], version: int, how: str
) -> None:
    """The next writer completes what was planned, and the stream writes again what was undone."""
    planned = []
    faults = {"every": 1 if how == "before" else 2, "at_least": 21, "raises": OSError}
    for root, _ in each_fault(finished[version], restore, how, **faults):
        planned.append(is_planned(root))
        check(root, planned=planned[-1])
    assert True in planned


@pytest.mark.parametrize("how", ["error", "error_after", "before"])
def test_a_failure_while_a_checkpoint_is_prepared_does_not_bring_it_back(
    tmp_path: Path, how: str
) -> None:
    """The prepared checkpoint is settled first; if that is postponed, nothing is restored."""
    source, last = make(tmp_path / "t"), len(BATCHES) - 1
    live(opened(source), commit_on="checkpoint", notified=last)
    assert commits(source) == len(COMMITS) - 2
    planned = []
    for root, _ in each_fault(source, restore, how, at_least=31, raises=OSError):
        planned.append(is_planned(root))
        check(root, planned=planned[-1])
    assert True in planned and False in planned


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("how", ["error", "error_after"])
def test_a_restore_that_fails_says_how_it_is_completed(
    finished: dict[int, Path], version: int, how: str
) -> None:
    """Who does what the error says has the target; an error after the completed file is none."""
    to, failed = str(times(Table(opened(finished[version])))[TARGET - 1]), list[bool]()

    def restored(table: Table) -> None:
        failed.append(True)
        table.restore(to)
        failed[-1] = False

    for root, _ in each_fault(finished[version], restored, how, every=2):
        done = [n for n in timeline_names(root) if n.endswith(".restore")] != []
        assert how == "error_after" or done is not failed[-1]
        table = Table(opened(root))
        if failed[-1]:
            table.fsck(repair=True)
        if len(times(table)) == len(COMMITS) - 1:
            table.restore(to)
        assert times(table)[-1] == to and table.fsck() == []
        live(opened(root), last=LAST)
        assert_finished(root)
    assert failed.count(True) > 5 < failed.count(False)


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_inside_the_completion_of_a_restore(
    finished: dict[int, Path], tmp_path: Path, point: str
) -> None:
    """A second process that dies while it completes the restore of the first one harms nothing."""
    source, least = tmp_path / "source", 0 if point == "restore.completed.post" else 6
    shutil.copytree(finished[6], source)
    with dying_at(point):
        restore(Table(opened(source)))
    for root, _ in each_fault(source, settled, "before", every=2, at_least=least):
        check(root, planned=True)


def restore_at(root: Path) -> None:
    """Restore in a new process."""
    restore(Table(opened(root)))


@pytest.mark.kills
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_killed_in_a_restore(
    finished: dict[int, Path], tmp_path: Path, point: str
) -> None:
    """SIGKILL in a restore: the next process completes it."""
    root = tmp_path / "t"
    shutil.copytree(finished[6], root)
    kill_at(point, restore_at, root)
    check(root, planned=True)
