"""Cleaning a large table: it looks at what has changed, and deletes nothing beside a lost file."""

from __future__ import annotations

import shutil
from pathlib import Path

from test_touched import MANY, Listed, make, newest, rows

from hoodie_nb import Table

ONE = {"hoodie.clean.commits.retained": 1}
NEVER = {**ONE, "hoodie.clean.automatic": "false"}


def test_a_clean_by_hand_lists_no_other_partition(tmp_path: Path) -> None:
    """It lists as many folders of a table with 60 partitions as of one with 6."""
    counts = []
    for number in (6, 60):
        table = make(tmp_path / f"t{number}", MANY[:number], **ONE)
        for value in (3, 4, 5):
            table.upsert(rows(value, ("p01", "a")))
        assert table.events.records("files_cleaned")
        table._handle.options = table._handle.options.updated(NEVER)
        table.upsert(rows(6, ("p01", "a")))
        storage = Listed(table.path)
        done = Table.open(storage).clean()
        assert len(done.files) == 1
        assert {"p20", "p59"}.isdisjoint(storage.folders)
        counts.append(len(storage.folders))
        assert Table.open(table.path).fsck() == []
    assert counts[0] == counts[1] <= 12


def test_a_number_makes_a_clean_look_at_everything(tmp_path: Path) -> None:
    """Files that somebody has put back are found."""
    table = make(tmp_path / "t", MANY[:6], **ONE)
    old = newest(table, "p03")
    kept = shutil.copy(old, tmp_path / "kept")
    for value in (3, 4, 5, 6):
        table.upsert(rows(value, ("p03", "a"), ("p01", "a")))
    for value in (7, 8, 9):
        table.upsert(rows(value, ("p01", "a")))
    assert not old.exists()
    shutil.copy(kept, old)
    assert not any("p03" in path for path in table.clean().files)
    assert table.clean(commits=1).files == (f"p03/{old.name}",)


def test_no_clean_deletes_what_a_lost_file_has_replaced(tmp_path: Path) -> None:
    """A write elsewhere succeeds, and its clean waits until the file is restored."""
    table = make(tmp_path / "t", MANY[:6], **ONE)
    before = newest(table, "p05")
    table.insert_overwrite(rows(3, ("p05", "a"), ("p05", "b")))
    lost = newest(table, "p05")
    kept = lost.read_bytes()
    lost.unlink()
    opened = Table.open(table.path)
    for value in (4, 5, 6, 7):
        opened.upsert(rows(value, ("p01", "a")))
    assert before.exists()
    why = {event.values["why"] for event in opened.events.records("clean_postponed")}
    assert len(why) == 1 and lost.name in why.pop()
    assert not opened.events.records("files_cleaned")
    lost.write_bytes(kept)
    opened.upsert(rows(8, ("p01", "a")))
    assert not before.exists() and opened.events.records("files_cleaned")
    assert opened.fsck() == [] and opened.to_arrow().num_rows == 7
