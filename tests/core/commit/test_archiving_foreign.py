"""Archiving deletes files of no commit only in partitions of this table."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from archives import FEW, active, archived, plant
from tables import Model, without_meta
from test_archiving import rows, seen
from test_clean_plan import make, upsert

from hoodie_nb import Table
from hoodie_nb.actions.archive_plan import plan_archive
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.archive_log import append, record_of
from hoodie_nb.timeline.instant import Instant, State


def files(folder: Path) -> dict[str, bytes]:
    """Return the base files below a folder."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*.parquet")}


def another(tmp_path: Path, table: Table, kind: str) -> Path:
    """Put files of another table into the table's folder; return the folder of them."""
    if kind == "a table":
        other = make(tmp_path / "other")
        upsert(other, 1, [0, 1, 2])
        Path(table.path, "sub").mkdir()
        return Path(shutil.move(other.path, Path(table.path, "sub/other")))
    other = make(tmp_path / "other")
    upsert(other, 1, [1, 3])
    folder = Path(table.path, "backup/b")
    shutil.copytree(Path(other.path, "b"), folder)
    if kind == "a backup":
        (folder / ".hoodie_partition_metadata").unlink()
    return folder


@pytest.mark.parametrize("kind", ["a table", "a backup", "a backup with metadata"])
def test_other_tables_and_backups_are_never_deleted(tmp_path: Path, kind: str) -> None:
    """They survive, no reader shows them, and the event says what keeps the commits."""
    table, model = make(tmp_path / "t", **FEW), Model()
    for number in range(2):
        upsert(table, number, [0, 1])
        model.upsert(rows([0, 1], number))
    orphan = plant(table.path, active(table.path)[0])
    folder = another(tmp_path, table, kind)
    before = files(folder)
    for number in range(2, 52):
        upsert(table, number, [0])
        model.upsert(rows([0], number))
    assert before and files(folder) == before
    assert seen(table) == model.snapshot() == without_meta(Table.open(table.path).to_arrow())
    assert archived(table.path) and not orphan.exists() and len(active(table.path)) > 45
    (why,) = {e.values["why"] for e in table.events.records("archive_postponed")}
    assert str(folder.relative_to(table.path)).partition("/")[0] in why
    assert "Move it out of the table" in why
    shutil.move(folder, tmp_path / "elsewhere")
    table.archive()
    assert (
        len(active(table.path)) == 2 and seen(table) == model.snapshot() and fsck(table.path) == []
    )


def test_fsck_reports_another_table_in_the_folder(tmp_path: Path) -> None:
    """Its files are not to be deleted: the remedy is to move that table."""
    table = make(tmp_path / "t")
    upsert(table, 0, [0])
    another(tmp_path, table, "a table")
    stray = plant(table.path, active(table.path)[0])
    found = [str(finding) for finding in fsck(table.path)]
    assert [f for f in found if "another table, 'sub/other': move that table out" in f]
    assert [f for f in found if f"{stray.name} is in no commit: move it out" in f]
    assert not [f for f in found if "sub/other" in f and "delete it" in f]


def test_orphans_of_a_first_write_into_a_partition_are_deleted(tmp_path: Path) -> None:
    """A job that died left a partition with its metadata file, and a file that is damaged."""
    table, model = make(tmp_path / "t", **FEW), Model()
    upsert(table, 0, [0])
    model.upsert(rows([0], 0))
    folder = Path(table.path, "b")
    folder.mkdir()
    shutil.copy(Path(table.path, "a/.hoodie_partition_metadata"), folder)
    orphan = plant(table.path, active(table.path)[0])
    damaged = folder / orphan.name
    damaged.write_bytes(b"PAR1")
    for number in range(1, 8):
        upsert(table, number, [0])
        model.upsert(rows([0], number))
    assert not damaged.exists() and not orphan.exists()
    assert archived(table.path) and seen(table) == model.snapshot() and fsck(table.path) == []


class Counted:
    """A storage that counts how often each file of the timeline is read."""

    def __init__(self, inner: Storage) -> None:
        self._inner, self.root = inner, inner.root
        self.read: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch(self, path: str) -> str:
        """Return where a file can be read."""
        self.read[path] += path.endswith(".commit")
        return self._inner.fetch(path)


def test_many_orphans_cost_one_pass_over_the_commits(tmp_path: Path) -> None:
    """Each commit is read a few times, however many files of no commit there are."""
    table = make(tmp_path / "t", **{"hoodie.archive.automatic": "false"})
    for number in range(80):
        upsert(table, number, [number % 5])
    done = [int(time17) for time17 in active(table.path)]
    free = [time for time in range(done[0], done[0] + 60) if time + 1 not in done][:40]
    orphans = [plant(table.path, str(time)) for time in free]
    reader = Table.open(table.path)
    handle = reader._handle
    handle.storage = handle.timeline._storage = counted = Counted(handle.storage)
    plan = plan_archive(handle)
    assert {*plan.orphans} == {f"{file.parent.name}/{file.name}" for file in orphans}
    assert len(counted.read) >= 79 and max(counted.read.values()) <= 3


def test_what_a_crash_left_in_a_large_file_is_not_added_twice(tmp_path: Path) -> None:
    """The newest files are asked whatever their size, also after a second crash."""
    storage = LocalStorage(tmp_path)

    def record(number: int, size: int = 0) -> dict[str, Any]:
        text = f'{{"partitionToWriteStats": {{}}, "extraMetadata": {{"pad": "{"x" * size}"}}}}'
        done = Instant(f"2026112107000000{number}", "commit", State.COMPLETED, None)
        return record_of(done, text.encode(), "here")

    for numbers in ([1, 2], [1, 2], [1, 2, 3], [1, 2, 3, 4]):
        append(storage, ".hoodie/archived", [record(n, 700_000) for n in numbers], 10)
    assert archived(tmp_path) == [f"2026112107000000{n}" for n in (1, 2, 3, 4)]
    assert len({*tmp_path.glob(".hoodie/archived/.commits*")}) == 2
