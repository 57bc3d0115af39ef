"""The archive of versions 8 and 9: Hudi's rows, few files, and nothing lost by a crash."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archives import FEW, active, archived, listed, lsm_rows
from faults import Crash, Fault, FaultyStorage
from tables import hudi_rows, pending_names, timeline_folder, timeline_names, without_meta
from test_clean_plan import make, upsert

from hoodie_nb import Table, failpoints
from hoodie_nb.clock import SystemClock
from hoodie_nb.errors import HoodieError
from hoodie_nb.table import properties
from hoodie_nb.table.handle import TableHandle

HISTORY = ".hoodie/timeline/history"
POINTS = [name for name in failpoints.NAMES if name.startswith("archive.")]
Rows = list[dict[str, object]]


def rows(keys: list[int], number: int) -> Rows:
    """Return the rows that `upsert` writes, for the model."""
    return [{"id": f"k{k}", "p": "ab"[k % 2], "ts": number} for k in keys]


def seen(path: Path | str) -> list[str]:
    """Return the rows that both readers see."""
    found = without_meta(Table.open(path).to_arrow())
    assert hudi_rows(path) == found
    return found


def names(root: Path | str) -> list[str]:
    """Return the names of the archive's files."""
    return sorted(file.name for file in Path(root, HISTORY).iterdir())


def test_a_row_has_the_bytes_of_an_instants_files(tmp_path: Path) -> None:
    """The completed file, a clean's plan, and both times, as Java writes them."""
    table, files = make(tmp_path / "t", 9, **FEW), dict[str, bytes]()
    for number in range(8):
        folder = timeline_folder(table.path)
        files |= {name: (folder / name).read_bytes() for name in timeline_names(table.path)}
        upsert(table, number, [0, 1])
    found = lsm_rows(table.path)
    assert {row["action"] for row in found} == {"commit", "clean"}
    for row in found:
        time, action = row["instantTime"], row["action"]
        assert row["metadata"] == files[f"{time}_{row['completionTime']}.{action}"]
        assert row["plan"] == (files[f"{time}.clean.requested"] if action == "clean" else None)
        assert row["version"] == 1


def test_many_archivings_leave_few_files(tmp_path: Path) -> None:
    """Ten files of a level become one of the next; the files of three manifests are kept."""
    table, most = make(tmp_path / "t", 8, **FEW, **{"hoodie.clean.automatic": False}), 0
    for number in range(230):
        upsert(table, number, [number % 2])
        most = max(most, len(names(table.path)) if archived(table.path) else 0)
    levels = [int(re.split("[_.]", name)[2]) for name in listed(table.path)]
    assert sorted(levels, reverse=True) == [2, 1, *[0] * (levels.count(0))] and len(levels) <= 11
    assert most < 45
    assert [*archived(table.path), *active(table.path)] == sorted(
        {*archived(table.path), *active(table.path)}
    )
    assert len(archived(table.path)) + len(active(table.path)) == 230
    assert len(list(table.to_arrow().to_pylist())) == 2 and table.fsck() == []


# --- crashes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(new_folder: Callable[[], Path]) -> Path:
    """A table whose next archiving fills a level: it adds the tenth file, and merges them."""
    table = make(new_folder() / "t", 9, **FEW)
    number = 0
    while len(listed(table.path)) < 9 or len(active(table.path)) < 3:
        upsert(table, number := number + 1, [0, 1])
    return Path(table.path)


def faulty(root: Path, fault: Fault | None = None) -> Table:
    """Return a new process's table, through a storage that may fail."""
    storage = FaultyStorage(root, fault)
    return Table(TableHandle(storage, SystemClock(), properties.load(storage)))


def whole(root: Path, commits: int) -> None:
    """Each commit is archived once, or on the timeline; all readers see the newest rows."""
    known = {*archived(root), *active(root)}
    assert len(known) == commits
    assert sorted(known)[-len(active(root)) :] == active(root)
    assert not {name.split()[0] for name in pending_names(root)} & {*archived(root)}
    assert len(seen(root)) == 2


def trials(source: Path, folder: Path, how: str) -> Iterator[Path]:
    """Yield the table of each trial of an archiving that fails at another operation."""
    for at in itertools.count(1):
        root = Path(shutil.copytree(source, folder / f"{how}-{at}"))
        table = faulty(root, Fault(at, how))
        with contextlib.suppress(HoodieError, OSError, KeyboardInterrupt, Crash):
            table.archive()
        storage = table._handle.storage
        assert isinstance(storage, FaultyStorage)
        if storage.fired is None:
            return
        yield root
        shutil.rmtree(root)


@pytest.mark.parametrize("how", ["before", "after", "torn", "error", "interrupt"])
def test_a_failure_anywhere_in_a_merge_loses_nothing(full: Path, tmp_path: Path, how: str) -> None:
    """At any operation of an archiving that merges a level; later writers archive and merge."""
    commits, counted = len({*archived(full), *active(full)}), 0
    for root in trials(full, tmp_path, how):
        whole(root, commits)
        table = Table.open(root)
        for number in range(1000, 1006):
            upsert(table, number, [0, 1])
        whole(root, commits + 6)
        assert len(listed(root)) < 10 and table.fsck() == [] and pending_names(root) == []
        counted += 1
    assert counted > 15


@pytest.mark.parametrize("point", [p for p in POINTS if p.startswith("archive.lsm.")])
@pytest.mark.parametrize("hit", [1, 2])
def test_what_a_crash_left_does_not_count(full: Path, tmp_path: Path, point: str, hit: int) -> None:
    """Of the first and the second file of an archiving; nothing is archived twice or missed."""
    root = Path(shutil.copytree(full, tmp_path / "t"))
    before, commits = archived(root), len({*archived(root), *active(root)})
    failpoints.arm(f"{point}=raise:EIO@{hit}")
    try:
        with pytest.raises(OSError, match="Input/output"):
            Table.open(root).archive()
    finally:
        failpoints.arm("")
    if (point, hit) in [("archive.lsm.file", 1), ("archive.lsm.manifest", 1)]:
        assert archived(root) == before
    whole(root, commits)
    upsert(Table.open(root), 1000, [0, 1])
    upsert(Table.open(root), 1001, [0, 1])
    whole(root, commits + 2)
