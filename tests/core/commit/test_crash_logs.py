"""Any operation on a merge-on-read table may fail in any way, as in `test_crash_loop`.

Slices are never too small for log files here, so batches leave logs, and slices that are merged and
rewritten because a log has deletes. hudi-rs reads after each crash what this library reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from each_fault import each_fault
from faults import Crash
from lives import (
    BATCHES,
    assert_finished,
    assert_whole_prefix,
    finish,
    live,
    make,
    opened,
    runs,
)

from hoodie_nb.buckets import plan

both_modes = pytest.mark.parametrize("commit_on", ["write", "checkpoint"])
APPENDS = {"hoodie_nb.append.above.bytes": 0}


@pytest.fixture(scope="module", autouse=True)
def _many_logs() -> object:
    """Let logs be as large as base files: of a few rows they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LOGS_PER_BASE", 10)
        yield


@pytest.fixture(scope="module")
def prepared(new_folder: Callable[[], Path]) -> dict[int, Path]:
    """Merge-on-read tables that hold the first n batches."""
    root = make(new_folder() / "t", 9, merge_on_read=True, **APPENDS)
    found = {}
    for number in range(len(BATCHES)):
        live(opened(root), number)
        found[number] = root.with_name(f"after{number}")
        shutil.copytree(root, found[number])
    return found


def logs(root: Path) -> list[Path]:
    """Return the log files in the partitions of a table."""
    return sorted(root.glob("par*/.*.log.*"))


def test_the_workload_leaves_logs_and_rewritten_slices(prepared: dict[int, Path]) -> None:
    """The second batch updates by logs, the fourth deletes by logs, the last rewrites slices."""
    assert [len(logs(prepared[number])) for number in (1, 2, 4)] == [0, 2, 4]
    root = prepared[4]
    live(opened(shutil.copytree(root, root.with_name("last"))))
    assert_finished(root.with_name("last"))
    assert len(logs(root.with_name("last"))) == 5


@pytest.mark.parametrize("number", [0, 1, 3, 4])
@pytest.mark.parametrize(
    ("how", "commit_on"), [("before", "write"), ("torn", "write"), ("after", "checkpoint")]
)
def test_a_crash_at_any_operation_is_recovered(
    prepared: dict[int, Path], number: int, how: str, commit_on: str
) -> None:
    """After a kill at any operation readers see whole commits; a new process gives the model."""
    act = runs(number + 1, commit_on=commit_on)
    for root, error in each_fault(prepared[number], act, how, at_least=10, raises=OSError):
        assert isinstance(error, Crash)
        assert_whole_prefix(root)
        finish(root, number)


@pytest.mark.parametrize("number", [1, 4])
@both_modes
def test_a_crash_inside_the_recovery_is_recovered(
    prepared: dict[int, Path], number: int, commit_on: str
) -> None:
    """After a kill at any operation of the recovery the next process still gives the model."""
    act = runs(number + 1, commit_on=commit_on)
    for crashed, _ in each_fault(prepared[number], act, "before", every=3):
        for root, _ in each_fault(crashed, act, "before", every=3, at_least=0):
            assert_whole_prefix(root)
            finish(root, number)


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("how", ["error", "error_after"])
@both_modes
def test_an_error_of_the_disk_is_reported_and_repeated(
    prepared: dict[int, Path], number: int, how: str, commit_on: str
) -> None:
    """After an error the batch is in the table or not, and the next try ends well."""
    act = runs(number + 1, commit_on=commit_on)
    for root, _ in each_fault(prepared[number], act, how, every=2, raises=OSError):
        assert_whole_prefix(root)
        finish(root, number)
