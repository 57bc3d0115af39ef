"""Any operation of an archiving may fail in any way, as in `test_crash_cleaning`.

One trial: a table that keeps two commits has the first batches and a file of no commit; a process
runs the next batch, whose commit archives two older ones, and its n-th operation on the disk fails;
readers read; a new process recovers and replays. The snapshot is always that of the commits, no
instant looks unfinished, and in the end each instant is in the archive once or on the timeline.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import FEW, active, archived, plant, points
from each_fault import each_fault, operation_of
from faults import Crash, Fault
from lives import BATCHES, COMMITS, MODELS, dying_at, kill_at, live, make, opened, runs
from tables import hudi_rows, pending_names, without_meta

from hoodie_nb import Table
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.reading import read


@pytest.fixture(scope="module", params=[6, 9])
def prepared(new_folder: Callable[[], Path], request: pytest.FixtureRequest) -> Path:
    """A table with all batches but the last, and a file of no commit."""
    root = make(new_folder() / f"v{request.param}", request.param, **FEW)
    live(opened(root), 1)
    plant(root, active(root)[0])
    later = opened(root)
    later.clock.sleep(1)
    live(later, len(BATCHES) - 1)
    assert archived(root) == []
    return root


def check(root: Path) -> None:
    """Both readers see the completed commits, archived or not; none looks open or is missing."""
    expected = COMMITS[len({*active(root), *archived(root)})]
    assert without_meta(read.to_arrow(open_table(root))) == expected == hudi_rows(root)
    assert not {name.split()[0] for name in pending_names(root)} & {*archived(root)}
    assert sorted({*archived(root), *active(root)})[-len(active(root)) :] == active(root)


def check_end(root: Path) -> None:
    """After the replay and two more commits nothing is lost, doubled, pending or stray."""
    check(root)
    assert without_meta(read.to_arrow(open_table(root))) == MODELS[-1]
    known = {*active(root), *archived(root)}
    table = Table(opened(root))
    for ts in (30, 31):
        table.upsert([{"id": "k0", "p": "par0", "ts": ts, "v": 1}])
    assert len(active(root)) <= 3 and len(known) == len(COMMITS) - 1
    assert {*archived(root), *active(root)} >= known
    assert not {*archived(root)} & {*active(root)}
    assert hudi_rows(root) == without_meta(table.to_arrow())
    assert pending_names(root) == [] and [str(f) for f in table.fsck()] == []
    assert list(root.glob("*/00000000-*")) == []


@pytest.mark.parametrize("how", ["before", "after", "torn", "error", "error_after", "interrupt"])
def test_a_failure_anywhere_in_an_archiving_loses_nothing(prepared: Path, how: str) -> None:
    """After a failure at any operation readers see the commits, and a later writer archives."""
    first = operation_of(prepared, runs(), "clean.completed.post") + 1
    for root, _ in each_fault(prepared, runs(), how, first=first, at_least=8, raises=OSError):
        check(root)
        live(opened(root))
        check_end(root)


def test_a_second_failure_during_the_archiving(prepared: Path, tmp_path: Path) -> None:
    """What a dead process has archived is not archived twice, if the next one dies as well."""
    doubled = 0
    reached = points(int(prepared.name[1:]))
    for point in reached:
        source = tmp_path / point
        shutil.copytree(prepared, source)
        with dying_at(point):
            live(opened(source))
        for at in range(1, 40, 6):
            root = tmp_path / f"{point}-{at}"
            shutil.copytree(source, root)
            with contextlib.suppress(Crash):
                live(opened(root, Fault(at, "before")))
            check(root)
            live(opened(root))
            check_end(root)
            doubled += 1
    assert doubled == 7 * len(reached)


def live_at(root: Path) -> None:
    """Run all batches in a new process."""
    live(opened(root))


@pytest.mark.kills
@pytest.mark.parametrize("point", points(9))
def test_a_process_that_is_killed_in_an_archiving(
    prepared: Path, tmp_path: Path, point: str
) -> None:
    """SIGKILL in an archiving: readers see all commits, and a new process gives the model."""
    if point not in points(int(prepared.name[1:])):
        return
    root = Path(shutil.copytree(prepared, tmp_path / "t"))
    kill_at(point, live_at, root)
    check(root)
    live(opened(root))
    check_end(root)
