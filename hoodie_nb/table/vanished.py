"""Vanished commits: evidence that an instant was completed although its completed file is gone.

A pending instant is rolled back, and a base file that no commit names should be deleted. Both would
be wrong if the instant was completed and only its completed file is lost: its rows would be lost
permanently. Evidence is searched wherever a commit leaves a trace:

- a newer commit builds on it (`prevCommit`), or names it as the instant of a checkpoint;
- one of our records or the index names it: both are written only after the completed file;
- its base files are in the partitions without markers: markers are created before the files and
  deleted after the completed file, or after the files.

*Cost*: checked only for instants that are about to be rolled back, and by `fsck`.

*Source:* HoodieWriteStat.prevCommit, WriteMarkers.
"""

import contextlib
from collections.abc import Iterator

from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.file_groups import BaseFileName, Commits, table_folders
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.markers import marked_files
from hoodie_nb.table.storage import META, OURS, read_bytes
from hoodie_nb.table.timeline import COMMITS, Instant

_RECORDS = tuple(f"{OURS}/{name}" for name in ("progress", "prepared", "index"))


def trace(table: TableHandle, time17: str) -> str | None:
    """Return the commit or record that shows that an instant was completed; None if none does."""
    return next(_in_commits(table, time17), None) or next(_in_records(table, time17), None)


def refuse_vanished(table: TableHandle, pending: Instant) -> None:
    """Raise InvalidTable if a pending commit was completed: it must not be rolled back."""
    objection = vanished(table, pending) if pending.action in COMMITS else None
    if objection:
        what, fix = objection
        raise InvalidTable(f"{what}; a rollback would delete its rows permanently. {fix}")


def vanished(table: TableHandle, pending: Instant) -> tuple[str, str] | None:
    """Return the problem and the fix if a pending instant was completed; else None."""
    time17 = pending.requested_time
    found = trace(table, time17) or next(_in_partitions(table, time17), None)
    if found is None:
        return None
    done = f"{table.storage.root}/{META}/{time17}.{pending.action}"
    return (
        f"instant {pending} was completed ({found}), but {done} is missing: it was lost, or "
        "it was deleted to remove the commit",
        "Restore it from a backup. If the commit was removed on purpose, delete the other files "
        f"{META}/{time17}.* and its base files *_{time17}.parquet, too: its rows are lost then",
    )


def _in_commits(table: TableHandle, time17: str) -> Iterator[str]:
    for newer in table.timeline.completed_commits():
        if newer.requested_time > time17:
            commit = table.commit_metadata(newer)
            stats = (stat for stats in commit.stats.values() for stat in stats)
            if any(stat.get("prevCommit") == time17 for stat in stats):
                yield f"commit {newer.requested_time} builds on it"
            if any(f'"{time17}"' in text for text in commit.extra.values()):
                yield f"commit {newer.requested_time} names it"


def _in_records(table: TableHandle, time17: str) -> Iterator[str]:
    for folder in _RECORDS:
        for entry in table.storage.list_folder(folder):
            path = f"{folder}/{entry.name}"
            if entry.is_folder or entry.name.startswith(time17):  # its own prepared record
                continue
            with contextlib.suppress(FileNotFoundError):  # a writer may be running during `fsck`
                if f'"{time17}"'.encode() in read_bytes(table.storage, path):
                    yield f"{path} names it"


def _in_partitions(table: TableHandle, time17: str) -> Iterator[str]:
    marked = {*marked_files(table.storage, time17)}
    for folder in table_folders(table.storage, Commits.of(table.timeline.listing.instants)):
        for entry in folder.entries:
            name, path = BaseFileName.parse(entry.name), f"{folder.path}/{entry.name}".lstrip("/")
            if name is not None and name.instant_time == time17 and path not in marked:
                yield f"its base file {path} no longer has a marker"
