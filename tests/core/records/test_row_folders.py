"""Row folders of Spark's format: which of them the recovery before a write deletes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from core.tables import schema_of

from hoodie_nb import Table
from hoodie_nb.clock import ManualClock, SystemClock
from hoodie_nb.definition import properties
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.lock.process import process_identity
from hoodie_nb.records.row_folders import new_row_folder, remove_row_folders
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import STAGED

ROW = [{"id": "a", "p": "p", "ts": 1, "v": 1}]


def table_at(path: Path) -> Table:
    """Return an empty table."""
    return Table.create(path, schema=schema_of(), record_key="id", partition_by="p", ordering="ts")


def staged(table: Table, *names: str) -> set[str]:
    """Make folders with a file in the staging area, write a row, and return what is left there."""
    for name in names:
        folder = Path(table.path, STAGED, name)
        folder.mkdir(parents=True)
        (folder / "0-0-0.0.arrow").touch()
    Table.open(table.path).upsert(ROW)
    return set(os.listdir(Path(table.path, STAGED)))


def test_rows_of_a_running_job_are_spared_and_those_of_an_ended_one_deleted(tmp_path):
    """A write deletes the staged rows of a process that has ended, not those of one that runs."""
    mine = new_row_folder(SystemClock()).rpartition("/")[2]
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _, pid, began = process_identity(child.pid) or ["", "", ""]
    parts = mine.split(".")
    theirs = ".".join([*parts[:2], pid, began, *parts[4:]])
    table = table_at(tmp_path / "t")
    assert staged(table, mine, theirs) == {mine, theirs}
    child.communicate(b"\n")
    assert staged(table) == {mine}


def test_rows_of_another_machine_are_spared_for_a_day(tmp_path):
    """What another machine staged is deleted when it is a day old, and an unknown name at once."""
    new = f"rows.00000000.1.1.{int(time.time()) - 80_000}.batch.aa"
    old = f"rows.00000000.1.1.{int(time.time()) - 90_000}.batch.bb"
    assert staged(table_at(tmp_path / "t"), new, old, "rows.x") == {new}


def test_a_process_that_goes_on_writing_deletes_them_after_ten_minutes(tmp_path):
    """A driver that dies beside a long stream: its rows go, those of a running one stay."""
    path, clock = table_at(tmp_path / "t").path, ManualClock()
    table = Table(TableHandle(LocalStorage(path), clock, properties.load(LocalStorage(path))))
    table.upsert(ROW)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = new_row_folder(clock).rpartition("/")[2]
    parts = mine.split(".")
    theirs = ".".join([*parts[:2], *(process_identity(child.pid) or [""])[1:], *parts[4:]])
    for name in (mine, theirs):
        Path(path, STAGED, name).mkdir()
    clock.sleep(660)
    table.upsert(ROW)
    assert {*os.listdir(Path(path, STAGED))} == {mine, theirs}
    child.communicate(b"\n")
    table.upsert(ROW)
    clock.sleep(660)
    table.upsert(ROW)
    assert os.listdir(Path(path, STAGED)) == [mine]


class Beginning(LocalStorage):
    """A disk on which another job begins right after the staging area was listed."""

    begun: list[str]

    def list_folder(self, path):
        """Return the entries, and make a row folder of a running job behind them."""
        found = super().list_folder(path)
        if path == STAGED:
            self.begun.append(new_row_folder(SystemClock()))
            self.make_folder(self.begun[-1])
        return found


def test_a_job_that_begins_beside_a_recovery_keeps_its_rows(tmp_path):
    """Its folder is made between two looks at the staging area; it is not taken for a dead one."""
    path = table_at(tmp_path / "t").path
    storage = Beginning(path)
    storage.begun = []
    Table(TableHandle(storage, SystemClock(), properties.load(storage))).upsert(ROW)
    assert storage.begun
    assert all(Path(path, folder).is_dir() for folder in storage.begun)


def test_a_query_deletes_the_rows_of_all_its_attempts(tmp_path):
    """The folders of one query go together; those of other writes stay."""
    storage = LocalStorage(str(tmp_path))
    folders = [new_row_folder(SystemClock(), owner) for owner in ("q-1", "q-1", "q-2", "batch")]
    for folder in folders:
        storage.make_folder(folder)
    remove_row_folders(storage, "q-1")
    assert sorted(os.listdir(tmp_path / STAGED)) == sorted(
        f.rpartition("/")[2] for f in folders[2:]
    )
