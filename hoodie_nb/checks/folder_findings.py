"""fsck, folders: orphan files, files of undone commits, and folders that are no partitions.

A base file of no commit is either an orphan or the only copy of a lost commit's rows; the traces of
its commit decide which (see `lost`). So it is with the logs of a merge-on-read table of this
library, which are named for the instant that wrote them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from hoodie_nb.checks.findings import MOVE, REPAIR, Finding
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.lost import traces
from hoodie_nb.storage.storage import joined, read_bytes
from hoodie_nb.storage.walk import other_table
from hoodie_nb.view.file_groups import (
    PARTITION_METADATA,
    Commits,
    Folder,
    Standing,
    table_folders,
)
from hoodie_nb.view.logs import DataFile, data_files


def folder_findings(
    table: TableHandle, named: Collection[str], *, logs: bool = False
) -> Iterator[Finding]:
    """Compare the folders with the files, also the `logs`, that the commits have `named`."""
    known = Commits.of(table.timeline)
    strays: dict[str, DataFile | None] = {}
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
        files = [*data_files(folder, logs=logs)]
        older = {f.path for f in files if known.archived(f.name.instant_time)}
        times |= {file.name.instant_time for file in files if file.path in older}
        strays |= _strays(folder, files, {*named, *older})
    yield from _denied(table, times)
    instants = {file.name.instant_time for file in strays.values() if file}
    found = traces(table, {t for t in instants if known.standing(t) is Standing.STRAY})
    for path, file in strays.items():
        yield Finding(f"{path} is in no commit", *_cure(table, file, known, found), path)


def _denied(table: TableHandle, times: Collection[str]) -> Iterator[Finding]:
    """Find instants of visible files that were neither archived nor are on the timeline."""
    with suppress(InvalidTable):  # the archive is damaged: a finding of its own
        for time17 in sorted(times):
            if table.timeline.archive.lacks(time17):
                yield Finding(
                    f"files *_{time17}.* are older than the timeline, but the archive does not "
                    f"have their commit {time17}: readers may show what it had replaced",
                    f"restore the files {table.timeline.layout.folder}/{time17}.* from a backup; "
                    "if that commit was undone, move its base and log files out of the table",
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
    folder: Folder, files: Sequence[DataFile], named: Collection[str]
) -> dict[str, DataFile | None]:
    """Return the data files that are not `named`; None for Parquet files of another kind."""
    known = {file.path: file for file in files}
    names = (e.name for e in folder.entries if e.name.endswith(".parquet") and e.name[0] != ".")
    paths = dict.fromkeys([*(joined(folder.path, name) for name in names), *known])
    return {path: known.get(path) for path in paths if path not in named}


def _cure(
    table: TableHandle, file: DataFile | None, known: Commits, found: Mapping[str, str]
) -> tuple[str, str]:
    """Return the fix and the code of a file of no commit; `found` are traces of lost commits."""
    if file is None:
        return MOVE, "foreign-file"
    time17 = file.name.instant_time
    standing = known.standing(time17)
    if standing is Standing.PENDING:
        return f"see the finding about its instant {time17}", "unfinished-file"
    done = table.timeline.completed(time17) if standing is Standing.COUNTS else None
    if done is not None:
        commit = table.commit_metadata(done)
        before = file.path.removesuffix(str(file.name))
        group = (f"{before}{file.name.file_id}_", f"{before}.{file.name.file_id}_")
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
