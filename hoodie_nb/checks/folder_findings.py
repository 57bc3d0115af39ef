"""What `fsck` finds in the folders of a table: files of no commit, and folders of others.

A base file of no commit is either an orphan or the only copy of a lost commit's rows; the traces of
its commit decide which (see `lost`).
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from hoodie_nb.checks.findings import MOVE, REPAIR, Finding
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.lost import traces
from hoodie_nb.storage.storage import joined, read_bytes
from hoodie_nb.storage.walk import other_table
from hoodie_nb.view.file_groups import (
    PARTITION_METADATA,
    BaseFileName,
    Commits,
    Folder,
    table_folders,
)

InCommit = tuple[int | None, int | None]  # the bytes and rows of a file in its commit


def in_commit(stat: Mapping[str, Any]) -> InCommit:
    """Return the size of a file as its commit says it."""
    return stat.get("fileSizeInBytes"), stat.get("numWrites")


def named_files(table: TableHandle) -> dict[str, InCommit]:
    """Return the base files that the commits of the active timeline name."""
    return {
        path: in_commit(stat)
        for instant in table.timeline.completed_commits()
        for path, stat in table.commit_metadata(instant).files.items()
    }


def folder_findings(table: TableHandle, named: Collection[str]) -> Iterator[Finding]:
    """Compare the folders with the files that the commits have `named`."""
    known = Commits.of(table.timeline)
    strays: dict[str, BaseFileName | None] = {}
    times = set[str]()
    for folder in table_folders(table.storage, known):
        what = _not_a_partition(table, folder)
        if what is not None:
            yield what
            continue
        if not folder.marked:
            yield Finding(
                f"partition {folder.path!r} has no {PARTITION_METADATA}: Java reads no rows there",
                REPAIR,
                "lost-partition-metadata",
            )
        elif not _fits(table, folder):
            path = joined(folder.path, PARTITION_METADATA)
            yield Finding(
                f"{path} is damaged: Java may not find the table from there",
                f"delete that file, then {REPAIR}",
                "damaged-partition-metadata",
                path,
            )
        times |= _older_times(folder, known)
        strays |= _strays(folder, known, named)
    yield from _denied(table, times)
    times = {name.instant_time for name in strays.values() if name is not None}
    found = traces(table, times - known.completed - known.pending)
    for path, name in strays.items():
        yield Finding(f"{path} is in no commit", *_cure(table, path, name, known, found), path)


def _older_times(folder: Folder, known: Commits) -> set[str]:
    """Return the instants of the base files that are older than the timeline."""
    times = {name.instant_time for _, name in folder.base_files()} - known.completed
    return {time17 for time17 in times if known.archived(time17)}


def _denied(table: TableHandle, times: Collection[str]) -> Iterator[Finding]:
    """Find instants of visible files that were neither archived nor are on the timeline."""
    with suppress(InvalidTable):  # the archive is damaged: a finding of its own
        for time17 in sorted(times):
            if table.timeline.archive.lacks(time17):
                yield Finding(
                    f"base files *_{time17}.parquet are older than the timeline, but the archive "
                    f"does not have their commit {time17}: readers may show what it had replaced",
                    f"restore the files {table.timeline.layout.folder}/{time17}.* from a backup; "
                    "if that commit was undone, move these base files out of the table",
                    "lost-commit",
                )


def _not_a_partition(table: TableHandle, folder: Folder) -> Finding | None:
    other = other_table(table.storage, folder.path)
    if other is not None:
        return Finding(
            f"folder {folder.path!r} is part of another table, {other!r}",
            "move that table out of this one: readers may show its rows here",
            "other-table",
        )
    if folder.is_partition:
        return None
    return Finding(
        f"folder {folder.path!r} has copies of base files of another partition",
        "move it out of the table: other readers may show their rows",
        "copied-partition",
    )


def _fits(table: TableHandle, folder: Folder) -> bool:
    """Whether the metadata file of a partition says how deep it is, as Java writes it."""
    if all(entry.is_folder or entry.name != PARTITION_METADATA for entry in folder.entries):
        return True  # it is in another format
    content = read_bytes(table.storage, joined(folder.path, PARTITION_METADATA))
    depth = len(folder.path.split("/")) if folder.path else 0
    lines = content.decode(errors="replace").splitlines()
    return f"partitionDepth={depth}" in (line.replace(" ", "") for line in lines)


def _strays(
    folder: Folder, known: Commits, named: Collection[str]
) -> dict[str, BaseFileName | None]:
    """Return the Parquet files of no commit, with the parts of their names."""
    found: dict[str, BaseFileName | None] = {}
    for entry in folder.entries:
        path = joined(folder.path, entry.name)
        name = BaseFileName.parse(entry.name)
        archived = name is not None and known.archived(name.instant_time)
        data = entry.name.endswith(".parquet") and not entry.name.startswith(".")
        if data and path not in named and not archived:
            found[path] = name
    return found


def _cure(
    table: TableHandle,
    path: str,
    name: BaseFileName | None,
    known: Commits,
    found: Mapping[str, str],
) -> tuple[str, str]:
    """Return the fix and the code of a file of no commit; `found` are traces of lost commits."""
    if name is None:
        return MOVE, "foreign-file"
    time17 = name.instant_time
    if time17 in known.pending:
        return f"see the finding about its instant {time17}", "unfinished-file"
    done = table.timeline.completed(time17) if time17 in known.completed else None
    if done is not None:
        commit = table.commit_metadata(done)
        group = f"{path.removesuffix(str(name))}{name.file_id}_"
        if commit.verified or any(held.startswith(group) for held in commit.files):
            return "a failed write left this file: delete it, readers may show it", "orphan-file"
        where = table.timeline.path(done)
        return (
            f"if {where} is damaged, restore it from a backup; otherwise a failed write left this "
            "file: move it out of the table and keep it, readers may show its rows"
        ), "unnamed-file"
    if time17 not in found:
        return MOVE, "orphan-file"
    folder = table.timeline.layout.folder
    return (
        f"restore the files {folder}/{time17}.* from a backup, since {found[time17]}; if the "
        "commit was removed on purpose, move this file out of the table, which gives its rows up"
    ), "lost-commit"
