"""Any operation of a clean may fail in any way, as in `test_crash_loop`.

One trial: a table that retains one commit has the first batches; a process runs the next one, whose
commit deletes older files, and its n-th operation on the disk fails; readers read; a new process
recovers and replays. The retained snapshots are those of the model, and in the end exactly the
files that the cleans on the timeline name are gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from each_fault import each_fault, operation_of
from lives import (
    BATCHES,
    COMMITS,
    MODELS,
    assert_at_rest,
    assert_finished,
    assert_whole_prefix,
    commits,
    dying_at,
    kill_at,
    live,
    make,
    opened,
    runs,
)
from tables import data_files, hudi_rows, without_meta

from hoodie_nb import failpoints
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.reading import read

ONE = {"hoodie.clean.commits.retained": 1}
POINTS = [name for name in failpoints.NAMES if name.startswith("clean.")]


@pytest.fixture(scope="module")
def prepared(new_folder: Callable[[], Path]) -> dict[tuple[int, int], Path]:
    """Tables, by version and number, that hold the first n batches."""
    found = {}
    for version in (6, 9):
        root = make(new_folder() / "t", version, **ONE)
        for number in range(len(BATCHES)):
            live(opened(root), number)
            found[version, number] = root.with_name(f"after{number}")
            shutil.copytree(root, found[version, number])
    return found


def trials(source: Path, number: int, how: str, **more: int) -> Iterator[Path]:
    """Yield the table after each failure from the operation that writes the plan on."""
    first = operation_of(source, runs(number + 1), "clean.plan.post") or 1
    act = runs(number + 1)
    for root, _ in each_fault(source, act, how, first=first, raises=OSError, **more):
        yield root


def check_retained(root: Path) -> None:
    """The snapshots of the last two commits are those of the model; hudi-rs reads them too."""
    assert_whole_prefix(root)
    times = [i.requested_time for i in open_table(root).timeline.completed_commits()]
    for back in (1, 2):
        expected = COMMITS[commits(root) + 1 - back]
        assert without_meta(read.to_arrow(open_table(root), as_of=times[-back])) == expected
        assert hudi_rows(root, times[-back]) == expected


@pytest.mark.parametrize(
    ("version", "number", "how"),
    [
        *((6, 3, how) for how in ("before", "after", "torn", "error", "error_after", "interrupt")),
        *((6, 4, how) for how in ("before", "error")),
        *((9, 4, how) for how in ("before", "after", "error")),
    ],
)
def test_a_failure_anywhere_in_a_clean_loses_nothing(
    prepared: dict[tuple[int, int], Path], version: int, number: int, how: str
) -> None:
    """After a failure at any operation the retained snapshots are whole; the next writer cleans."""
    for root in trials(prepared[version, number], number, how, at_least=4):
        check_retained(root)
        live(opened(root), number + 1)
        check_retained(root)
        assert without_meta(read.to_arrow(open_table(root))) == MODELS[number + 1]
        assert_at_rest(root)


def test_a_crash_inside_the_completion_of_a_clean(
    prepared: dict[tuple[int, int], Path], tmp_path: Path
) -> None:
    """A second process that dies while it completes the clean of the first one loses nothing."""
    doubled = 0
    for point in POINTS[:-1]:
        source = tmp_path / point
        shutil.copytree(prepared[6, 4], source)
        with dying_at(point):
            live(opened(source))
        for root in trials(source, 3, "before", every=2):
            check_retained(root)
            live(opened(root))
            assert_finished(root)
            doubled += 1
    assert doubled > 5


def live_at(root: Path) -> None:
    """Run all batches in a new process."""
    live(opened(root))


@pytest.mark.kills
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_killed_in_a_clean(tmp_path: Path, point: str) -> None:
    """SIGKILL in a clean: the retained snapshots are whole, and a new process gives the model."""
    root = make(tmp_path / "t", **ONE)
    kill_at(point, live_at, root)
    check_retained(root)
    before = data_files(root)
    live(opened(root))
    check_retained(root)
    assert_finished(root)
    assert before - data_files(root)
