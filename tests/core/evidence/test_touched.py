"""Large tables: a write lists and checks the partitions that it touches, and finds their damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archives import FEW, archived
from tables import hudi_rows, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import META, Entry
from hoodie_nb.view.partitions import Partitions

SCHEMA = schema_of()
MANY = [f"p{number:02d}" for number in range(60)]


class Listed(LocalStorage):
    """A storage that notes which folders of the data are listed, and which files are read."""

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self.folders: list[str] = []
        self.files: list[str] = []

    def list_folder(self, folder: str) -> list[Entry]:
        """Note, then list."""
        self.folders += [folder] * (not folder.startswith(META))
        return super().list_folder(folder)

    def file_names(self, folder: str) -> list[str]:
        """Note, then list."""
        self.folders += [folder] * (not folder.startswith(META))
        return super().file_names(folder)

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Note the file, if it has rows."""
        self.files += [path] * path.endswith(".parquet")
        return super().fetch(path, size_bytes)


def rows(value: int, *at: tuple[str, str]) -> pa.Table:
    """Return rows of (partition, key)."""
    held = [{"id": k, "p": p, "ts": value, "v": value} for p, k in at]
    return pa.Table.from_pylist(held, SCHEMA)


def make(path: Path, partitions: list[str], **options: Any) -> Table:
    """Return a table with a key `a` in each partition, written by an earlier process."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    table = Table.create(path, schema=SCHEMA, options=options, **keys)
    table.upsert(rows(1, *((p, "a") for p in partitions)))
    table.upsert(rows(2, ("p01", "a")))
    moved = path.rename(path.with_suffix(".moved"))  # nothing that this process knows is used
    return Table.open(moved)


def newest(table: Table, partition: str) -> Path:
    """Return the newest base file of a partition."""
    return max(Path(table.path, partition).glob("*.parquet"), key=lambda f: f.stem[-17:])


WRITES: dict[str, Callable[[Table], object]] = {
    "upsert": lambda table: table.upsert(rows(3, ("p01", "a"))),
    "insert": lambda table: table.insert(rows(3, ("p01", "b"))),
    "delete": lambda table: table.delete(rows(3, ("p01", "a"))),
    "bulk insert": lambda table: table.bulk_insert(rows(3, ("p01", "b"))),
    "overwrite": lambda table: table.insert_overwrite(rows(3, ("p01", "b"))),
}


@pytest.mark.parametrize("how", WRITES)
def test_the_first_write_lists_no_other_partition(tmp_path: Path, how: str) -> None:
    """It lists and reads as much of a table with 60 partitions as of one with 6."""
    counts = []
    for number in (6, 60):
        storage = Listed(make(tmp_path / f"t{number}", MANY[:number]).path)
        WRITES[how](Table.open(storage))
        counts.append((len(storage.folders), len(storage.files)))
        assert {"p20", "p59"}.isdisjoint(storage.folders)
    assert counts[0] == counts[1] and counts[0][0] <= 12


def test_a_table_without_partitions_is_checked_as_a_whole(tmp_path: Path) -> None:
    """A partition in it is another engine's, wherever it is."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    for number in range(6):
        table.bulk_insert(rows(1, ("p01", f"k{number}")))
    other = make(tmp_path / "o", MANY[:1])
    shutil.copytree(Path(other.path, "p01"), Path(table.path, "p01"))
    time17 = table.timeline()["requested_time"][0]
    for file in Path(table.path, "p01").glob("*.parquet"):
        file.rename(file.with_name(file.name.replace(file.stem[-17:], time17)))
    with pytest.raises(InvalidTable, match="'p01', whose levels"):
        Table.open(table.path).upsert(rows(2, ("p01", "k0")))


def test_damage_in_other_partitions_is_found_when_they_are_touched(tmp_path: Path) -> None:
    """A write elsewhere succeeds; `fsck` and whatever asks for the damaged partition name the file.

    So does a write of the same process, later.
    """
    table = make(tmp_path / "t", MANY[:9])
    lost = newest(table, "p05")
    kept = lost.read_bytes()
    lost.unlink()
    table.upsert(rows(3, ("p01", "a"), ("p00", "b")))
    assert lost.name in " ".join(finding.what for finding in table.fsck())
    whole: dict[str, Callable[[Table], object]] = {
        "upsert": lambda table: table.upsert(rows(4, ("p05", "b"))),
        "bulk insert": lambda table: table.bulk_insert(rows(4, ("p05", "b"))),
        "partition": lambda table: table.insert_overwrite(rows(4, ("p05", "b"))),
        "table": lambda table: table.insert_overwrite(rows(4, ("p00", "b")), scope="table"),
        "condition": lambda table: table.delete(where=[("v", "=", 3)]),
        "compact": lambda table: table.cluster(),
        "archive": lambda table: table.archive(),
    }
    for how, use in whole.items():
        for opened in (table, Table.open(table.path)):
            with pytest.raises(InvalidTable, match=lost.name):
                raise AssertionError(f"{how} was not refused: {use(opened)}")
    lost.write_bytes(kept)
    table.upsert(rows(5, ("p05", "a")))
    expected = [(p, "a") for p in ("p02", "p03", "p04", "p06", "p07", "p08")]
    model = [rows(1, *expected), rows(3, ("p01", "a"), ("p00", "b")), rows(5, ("p05", "a"))]
    wanted = without_meta(pa.concat_tables([*model, rows(1, ("p00", "a"))]))
    assert table.fsck() == [] and hudi_rows(table.path) == wanted


def test_a_commit_with_a_lost_file_is_not_archived(tmp_path: Path) -> None:
    """Writes elsewhere go on, but its commit stays on the timeline: the loss is not forgotten."""
    table = make(tmp_path / "t", MANY[:9], **FEW)
    first = table.timeline()["requested_time"][0]
    lost = newest(table, "p05")
    kept = lost.read_bytes()
    lost.unlink()
    for value in range(3, 12):
        table.upsert(rows(value, ("p01", "a")))
    assert archived(table.path) == [] and first in set(table.timeline()["requested_time"])
    why = {event.values["why"] for event in table.events.records("archive_postponed")}
    assert len(why) == 1 and lost.name in why.pop()
    lost.write_bytes(kept)
    Table.open(table.path).upsert(rows(12, ("p05", "a")))
    assert archived(table.path)[0] == first and Table.open(table.path).fsck() == []


@pytest.mark.parametrize("how", ["upsert", "bulk insert"])
def test_before_a_partition_is_created_the_levels_of_all_are_compared(
    tmp_path: Path, how: str
) -> None:
    """The rows of the new partition may be in a path of another depth: they would be doubled."""
    table = make(tmp_path / "t", MANY[:9])
    Path(table.path, "z").mkdir()
    Path(table.path, "p08").rename(Path(table.path, "z", "p08"))
    WRITES[how](table)
    write = table.upsert if how == "upsert" else table.bulk_insert
    for opened in (table, Table.open(table.path)):
        for _ in range(2):
            with pytest.raises(InvalidTable, match="'z/p08', whose levels"):
                getattr(opened, write.__name__)(rows(4, ("p08", "a")))


def test_partitions_that_are_touched_late_are_seen_as_they_are(tmp_path: Path) -> None:
    """They are listed long after the timeline: after archiving, cleaning, and unseen commits."""
    table = make(tmp_path / "t", MANY[:9], **FEW)
    table.upsert(rows(3, ("p01", "a")))
    for value in range(4, 24):
        table.bulk_insert(rows(value, ("p04", f"k{value}")))
        table.upsert(rows(value, ("p02", "a")))
    assert len(archived(table.path)) > 30
    late = table.upsert(rows(50, ("p07", "a"), ("p04", "a"), ("p04", "k4"), ("p04", "k23")))
    assert late is not None and (late.inserts, late.updates) == (0, 4)
    assert table.fsck() == [] and hudi_rows(table.path) == without_meta(table.to_arrow())
    assert table.to_arrow().num_rows == 9 + 20


def test_threads_find_the_partitions_that_one_listing_finds(tmp_path: Path) -> None:
    """Whichever thread lists a partition, alone or in the walk over all, each is found once."""
    table = open_table(make(tmp_path / "t", MANY).path)
    wanted = Partitions(table.storage, table.timeline).listed()
    for _ in range(5):
        groups = Partitions(table.storage, table.timeline).on_demand()
        with ThreadPoolExecutor(8) as pool:
            walks = [pool.submit(list, groups) for _ in range(4)]
            found = list(pool.map(groups.partition, [*MANY, "p99"]))
        assert found == [*(wanted.slices[p] for p in MANY), {}]
        assert all(walk.result() == [*wanted] for walk in walks)


class Interrupted(Listed):
    """A storage that fails to list a folder once."""

    def list_folder(self, folder: str) -> list[Entry]:
        """Fail at the first look at p05."""
        if folder == "p05" and "p05" not in self.folders:
            self.folders.append(folder)
            raise OSError(5, "input/output error", folder)
        return super().list_folder(folder)


def test_a_listing_that_failed_starts_again(tmp_path: Path) -> None:
    """No partition is missing afterwards."""
    table = open_table(make(tmp_path / "t", MANY[:9]).path)
    groups = Partitions(Interrupted(table.storage.root), table.timeline).on_demand()
    with pytest.raises(OSError, match="input/output"):
        list(groups)
    assert sorted(groups.slices) == MANY[:9]
