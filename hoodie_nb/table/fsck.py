"""fsck: what is wrong with a table, and the cure.

Checked: every base file of the snapshot is there with the size and rows its commit tells; no file
in a partition that no completed commit names; no pending instant, marker or staged file left; every
partition is known to listings; the bloom of every file knows every key in it and the key range
holds them all. Nothing is changed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import HoodieError
from hoodie_nb.table.base_file import open_base_file, read_footer, read_keys
from hoodie_nb.table.file_groups import (
    PARTITION_METADATA,
    BaseFileName,
    Commits,
    Folder,
    table_folders,
)
from hoodie_nb.table.handle import TableHandle, open_table
from hoodie_nb.table.key_range import KeyRange
from hoodie_nb.table.storage import META, SCRATCH, STAGED

Told = tuple[int | None, int | None]  # the bytes and rows that a commit tells of a file


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a table, and what to do about it."""

    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}: {self.cure}"


def fsck(path: str | os.PathLike[str]) -> list[Finding]:
    """Return all findings, none if the table is clean."""
    try:
        table = open_table(path)
        return [*_leftovers(table), *_files(table), *_keys(table)]
    except HoodieError as error:
        return [Finding(str(error), "nothing more could be checked")]


def _leftovers(table: TableHandle) -> Iterator[Finding]:
    next_write = "the next write recovers it; if nothing is writing, start one"
    for instant in table.timeline.pending():
        yield Finding(f"instant {instant} is pending", next_write)
    for folder in (STAGED, SCRATCH, f"{META}/.temp"):
        for entry in table.storage.list_folder(folder):
            yield Finding(f"{folder}/{entry.name} is left over", next_write)


def _files(table: TableHandle) -> Iterator[Finding]:
    """Compare the partitions with what the commits of the active timeline tell."""
    told: dict[str, Told] = {}
    commits = table.timeline.completed_commits()
    for instant in commits:
        for stats in table.commit_metadata(instant).stats.values():
            for stat in stats:
                told[stat["path"]] = (stat.get("fileSizeInBytes"), stat.get("numWrites"))
    known = Commits.of(table.timeline.instants())
    for folder in table_folders(table.storage, known):
        yield from _one_folder(folder, known, set(told))
    latest = {s.path for s in table.file_groups()}
    newest = {(s.partition_path, s.file_id): s.instant_time for s in table.file_groups()}
    for path in sorted(told):
        yield from _one_file(table, path, told[path], latest, newest)


def _one_folder(folder: Folder, known: Commits, told: set[str]) -> Iterator[Finding]:
    if not folder.is_partition:
        yield Finding(
            f"folder {folder.path!r} holds copies of base files that belong elsewhere",
            "move it out of the table: other readers may show their rows",
        )
        return
    if not folder.marked:
        yield Finding(
            f"partition {folder.path!r} lost its {PARTITION_METADATA}: Java reads no rows there",
            "the next write puts it back",
        )
    for entry in folder.entries:
        path = f"{folder.path}/{entry.name}" if folder.path else entry.name
        name = BaseFileName.parse(entry.name)
        archived = name is not None and known.archived(name.instant_time)
        data = entry.name.endswith(".parquet") and not entry.name.startswith(".")
        if data and path not in told and not archived:
            yield Finding(f"{path} is in no commit", "delete it: readers may show its rows")


def _one_file(
    table: TableHandle,
    path: str,
    told: Told,
    latest: set[str],
    newest: dict[tuple[str, str], str],
) -> Iterator[Finding]:
    (size, rows) = told
    folder, _, file_name = path.rpartition("/")
    name = BaseFileName.parse(file_name)
    if not table.storage.exists(path):
        if name is not None and newest.get((folder, name.file_id), "") <= name.instant_time:
            yield Finding(f"{path} is missing, readers show an older slice", "restore it")
        return
    found = table.storage.size(path)
    if size is not None and found != size:
        yield Finding(f"{path} has {found} bytes, its commit tells {size}", "restore it")
    elif path in latest:
        stored = open_base_file(table.storage.local_path(path)).metadata.num_rows
        if rows is not None and stored != rows:
            yield Finding(f"{path} has {stored} rows, its commit tells {rows}", "restore it")


def _keys(table: TableHandle) -> Iterator[Finding]:
    seen: dict[str, list[pa.Array]] = {}
    rewrite = "upsert its rows again so that the file is rewritten"
    for piece in table.file_groups():
        local = table.storage.local_path(piece.path)
        try:
            footer, keys = read_footer(open_base_file(local)), read_keys(local)
        except HoodieError as error:
            yield Finding(str(error), "restore the file")
            continue
        seen.setdefault(piece.partition_path, []).append(keys)
        bloom = footer.bloom()
        if bloom is not None and len(keys) and not bloom.might_contain(keys).all():
            yield Finding(f"the bloom of {piece.path} misses keys", rewrite)
        held, low, high = KeyRange.of(keys), footer.min_key, footer.max_key
        if held and low is not None and high is not None and not held.within(low, high):
            yield Finding(f"the key range of {piece.path} leaves out some of its keys", rewrite)
    for partition, parts in seen.items():
        keys = pa.concat_arrays(parts)
        doubled = len(keys) - len(pc.unique(keys))
        if doubled:
            yield Finding(f"partition {partition!r} has {doubled} keys twice", rewrite)
