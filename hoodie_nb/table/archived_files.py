"""The base files that archived commits wrote, and that the table still needs.

Most files of an old table are named by archived commits only: the newest one of each file group
that no commit has replaced must be there, or its rows are lost and no reader notices.

**Caveats**: only `fsck` and `repair` read the archive for this, writes do not. Records that were
cleared from it, or cannot be read, prove nothing. *Source:* HoodieArchivedMetaEntry, LSMTimeline.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.archive_log import Record, read_blocks
from hoodie_nb.table.archived import is_commit
from hoodie_nb.table.commits import CommitMetadata
from hoodie_nb.table.file_groups import BaseFileName, Commits
from hoodie_nb.table.folder_findings import InCommit
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.instant import COMMITS
from hoodie_nb.table.lost import Group
from hoodie_nb.table.storage import read_bytes

_FIELDS = ("hoodieCommitMetadata", "hoodieReplaceCommitMetadata")
Stats = Mapping[str, Sequence[Mapping[str, Any]]]
Replaced = Mapping[str, Sequence[str]]


def archived_files(table: TableHandle) -> dict[str, InCommit]:
    """Return the newest base file of each file group that archived commits wrote, with its facts.

    Empty if the archive cannot be read.
    """
    known, newest = Commits.of(table.timeline), dict[Group, tuple[BaseFileName, str, InCommit]]()
    gone: set[Group] = set()
    try:
        refuse_damaged(table)
        commits = [*_commits(table)]
    except (InvalidTable, ValueError, FileNotFoundError):
        return {}
    for time17, stats, replaced in commits:
        if not known.archived(time17):
            continue
        for stat in (stat for each in stats.values() for stat in each or ()):
            folder, _, file_name = str(stat["path"]).rpartition("/")
            name = BaseFileName.parse(file_name)
            before = newest.get((folder, name.file_id)) if name else None
            if name and (before is None or before[0].instant_time <= name.instant_time):
                facts = (stat.get("fileSizeInBytes"), stat.get("numWrites"))
                newest[folder, name.file_id] = name, str(stat["path"]), facts
        gone |= {(folder, file_id) for folder, ids in replaced.items() for file_id in ids or ()}
    return {path: facts for group, (_, path, facts) in newest.items() if group not in gone}


def refuse_damaged(table: TableHandle) -> None:
    """Raise InvalidTable if a file of the archive is damaged or missing."""
    why = table.timeline.archive.commits()[1]
    if why:
        raise InvalidTable(why)


def lost_groups(table: TableHandle) -> set[Group]:
    """Return the file groups whose newest file was written by an archived commit and is lost."""
    groups, found = table.file_groups(), set[Group]()
    for path in archived_files(table):
        folder, _, file_name = path.rpartition("/")
        name = BaseFileName.parse(file_name)
        if name is not None and (folder, name.file_id) not in groups.replaced:
            piece = groups.partition(folder).get(name.file_id)
            if piece is None or piece.instant_time < name.instant_time:
                found.add((folder, name.file_id))
    return found


def _commits(table: TableHandle) -> Iterator[tuple[str, Stats, Replaced]]:
    """Yield time, write statistics and replaced file groups of each archived commit."""
    for path in table.timeline.archive.files():
        if path.endswith(".parquet"):
            local = table.storage.fetch(path)
            with suppress(pa.ArrowException):  # an archive without the content is no evidence
                columns = ["instantTime", "action", "metadata"]
                yield from _history(pq.read_table(local, columns=columns))
        else:
            yield from _logged(read_blocks(read_bytes(table.storage, path)))


def _logged(records: Iterable[Record]) -> Iterator[tuple[str, Stats, Replaced]]:
    for record in records:
        content = next((record[f] for f in _FIELDS if record.get(f)), None)
        if content is not None and is_commit(record):
            stats = content.get("partitionToWriteStats") or {}
            gone = content.get("partitionToReplaceFileIds") or {}
            yield record["commitTime"], stats, gone


def _history(found: pa.Table) -> Iterator[tuple[str, Stats, Replaced]]:
    for row in found.to_pylist():
        if row["action"] in COMMITS and row["metadata"]:
            where = f"{row['instantTime']}.{row['action']}"
            with suppress(InvalidTable):
                commit = CommitMetadata.parse(row["metadata"], where)
                yield row["instantTime"], commit.stats, commit.replaced
