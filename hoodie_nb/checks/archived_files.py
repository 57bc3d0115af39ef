"""fsck, archive: base files of archived commits that the table still needs and that are lost.

Most files of an old table are named by archived commits only: the newest one of each file group
that no commit has replaced must be there, or its rows are lost and no reader notices.

**Caveats**: only `fsck` and `repair` read the archive for this, writes do not. Records that were
cleared from it, or cannot be read, prove nothing. *Source:* HoodieArchivedMetaEntry, LSMTimeline.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.timeline.instant import COMMITS
from hoodie_nb.view.file_groups import Commits, Group, base_files_at
from hoodie_nb.view.history import FileFacts, History

_STATS = "partitionToWriteStats"
_REPLACED = "partitionToReplaceFileIds"


def archived_files(table: TableHandle) -> dict[str, FileFacts]:
    """Return the newest base file of each file group that archived commits wrote, with its facts.

    Empty if the archive cannot be read.
    """
    known = Commits.of(table.timeline)
    try:
        refuse_damaged(table)
        commits = [*_commits(table)]
    except (InvalidTable, ValueError, FileNotFoundError):
        return {}
    history = History()
    for time17, commit in commits:
        if known.archived(time17):
            history.add(time17, commit)
    newest = (path for group, (_, path) in history.newest.items() if group not in history.replaced)
    return {path: history.facts[path] for path in newest}


def refuse_damaged(table: TableHandle) -> None:
    """Raise InvalidTable if a file of the archive is damaged or missing."""
    why = table.timeline.archive.commits()[1]
    if why:
        raise InvalidTable(why)


def lost_groups(table: TableHandle) -> set[Group]:
    """Return the file groups whose newest file was written by an archived commit and is lost."""
    groups = table.file_groups()
    found = set[Group]()
    for _, group, name in base_files_at(archived_files(table)):
        piece = groups.partition(group[0]).get(group[1])
        if piece is None or piece.instant_time < name.instant_time:
            found.add(group)
    return found - groups.replaced


def _commits(table: TableHandle) -> Iterator[tuple[str, CommitMetadata]]:
    """Yield the time of each archived commit, and what it wrote."""
    archive = table.timeline.archive
    for path in archive.files():
        with suppress(pa.ArrowException):  # an archive without the content is no evidence
            for time17, action, content in archive.entries(path, content=True):
                if action in COMMITS and content:
                    with suppress(InvalidTable):
                        yield time17, _decoded(content, f"{time17}.{action}")


def _decoded(content: bytes | Mapping[str, Any], where: str) -> CommitMetadata:
    if isinstance(content, bytes):
        return CommitMetadata.parse(content, where)
    stats = content.get(_STATS) or {}
    gone = content.get(_REPLACED) or {}
    named = {p: [s for s in some or () if s.get("path")] for p, some in stats.items()}
    return CommitMetadata("", named, replaced={p: ids or [] for p, ids in gone.items()})
