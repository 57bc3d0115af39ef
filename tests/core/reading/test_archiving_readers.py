"""Reads beside archiving: the rows of one snapshot, whenever instants leave the timeline."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archives import FEW, active, archived, listed
from tables import timeline_folder, without_meta
from test_clean_plan import make, upsert

from hoodie_nb import Table
from hoodie_nb.errors import HoodieError
from hoodie_nb.storage.storage import Storage


class Torn:
    """A storage; one listing of the timeline has the oldest files, and the others as of later.

    A folder that changes while it is listed looks like this.
    """

    def __init__(self, inner: Storage, meanwhile: Callable[[], None], at: int) -> None:
        self._inner, self._meanwhile, self._at = inner, meanwhile, at
        self.root, self.listed = inner.root, 0
        self._timeline = str(timeline_folder(inner.root).relative_to(inner.root))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def file_names(self, folder: str) -> list[str]:
        """List a folder; what happens meanwhile removes all but the oldest commit's names."""
        names = self._inner.file_names(folder)
        self.listed += folder == self._timeline
        if folder == self._timeline and self.listed == self._at:
            first = min(name[:17] for name in names if name.endswith(".commit"))
            self._meanwhile()
            now = self._inner.file_names(folder)
            return sorted({*now, *(name for name in names if name.startswith(first))})
        return names


def torn(table: Table, meanwhile: Callable[[], None], at: int) -> Table:
    """Return a second reader of a table, one of whose listings of the timeline is torn."""
    reader = Table.open(table.path)
    handle = reader._handle
    handle.storage = handle.timeline._storage = Torn(handle.storage, meanwhile, at)
    return reader


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("at", [1, 2])
def test_a_listing_with_a_gap_is_not_used(tmp_path: Path, at: int, version: int) -> None:
    """If the oldest commit was seen before it was archived, the commits after it are not missed.

    The second listing is compared with the first: what is archived since then was not undone.
    """
    table = make(tmp_path / "t", version, **FEW, **{"hoodie.clean.automatic": False})
    for number in range(3):
        upsert(table, number, [0, 1])
    before = without_meta(table.to_arrow())

    def write() -> None:
        upsert(table, 3, [3])
        for number in range(4, 8):
            upsert(table, number, [1])

    reader = torn(table, write, at)
    found = without_meta(reader.to_arrow())
    assert reader._handle.storage.listed > at and len(archived(table.path)) > 3
    assert found == (without_meta(table.to_arrow()) if at == 1 else before)


@pytest.mark.parametrize("version", [6, 9])
def test_an_instant_that_is_archived_before_it_is_read(tmp_path: Path, version: int) -> None:
    """What reads the files of commits begins again when they are archived meanwhile."""
    reads = itertools.cycle(["to_arrow", "changes", "history", "fsck", "file_groups"])
    table = make(tmp_path / "t", version, **FEW)
    for number in range(3):
        upsert(table, number, [0, 1])
    writer, stop, failed = Table.open(table.path), threading.Event(), []

    def write() -> None:
        number = 3
        while not stop.is_set():
            upsert(writer, number, [0, 1])
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while len(archived_or_none(table.path)) < 80:
            reader, read = Table.open(table.path), next(reads)
            given = {"since": "earliest"} if read == "changes" else {}
            try:
                found = getattr(reader, read)(**given)
            except HoodieError as error:  # that it was cleaned is an answer
                failed += [] if "cleaned away" in str(error) else [f"{read}: {error}"]
                continue
            if read != "fsck" and (len(found) < 2 or (read != "history" and len(found) > 2)):
                failed.append(f"{read}: {found}")
    finally:
        stop.set()
        thread.join()
    assert failed == []
    assert len(active(table.path)) <= 3


def archived_or_none(path: str) -> list[str]:
    """Return what is archived."""
    try:
        return archived(path)
    except (AssertionError, FileNotFoundError):  # the file is replaced meanwhile
        return []


class Merging:
    """A storage; what happens meanwhile deletes the first file of the archive that is read."""

    def __init__(self, inner: Storage, meanwhile: Callable[[Path], None]) -> None:
        self._inner, self._meanwhile, self.root = inner, meanwhile, inner.root
        self.gone = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch(self, path: str) -> str:
        """Return the local path of a file, which may be gone."""
        found = self._inner.fetch(path)
        if not self.gone and path.endswith(".parquet"):
            self.gone = Path(path).name
            self._meanwhile(Path(found))
        return found


def test_an_archive_that_is_merged_while_it_is_read(tmp_path: Path) -> None:
    """Where a file of layout 2 is merged and deleted, the reader takes the files of now."""
    table, number = make(tmp_path / "t", 9, **FEW, **{"hoodie.clean.automatic": False}), 0
    while not listed(table.path):
        upsert(table, number := number + 1, [0])

    def write(file: Path) -> None:
        later = number
        while file.exists():
            upsert(table, later := later + 1, [0])

    handle = Table.open(table.path)._handle
    storage = Merging(handle.storage, write)
    handle.timeline.archive._storage = storage
    before = archived(table.path)
    found, why = handle.timeline.archive.commits()
    assert storage.gone and storage.gone not in listed(table.path)
    assert sorted(found) == archived(table.path) > before and why == ""
