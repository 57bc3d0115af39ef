"""Base files or instants that should exist and do not: a write is refused before it hides that.

*Base files.* A write builds on the newest slice of each file group. If that file is gone (deleted
by hand, a lost disk block), the previous slice looks like the newest, and the next version of the
group would permanently lack the rows of the lost file. So each write compares the partitions that
it touches with the commits of the active timeline (see `touched`): the slice of a group must be the
very file that the newest commit wrote for it, unless the group was replaced. Hudi's cleaner never
removes the newest slice of a live group, and instants that were rolled back or restored are no
longer on the timeline.

*Completed files.* A pending instant is rolled back, and a base file that no commit names should be
deleted. Both would be wrong if the instant was completed and only its completed file is lost: its
rows would be lost permanently. Evidence is searched for wherever a commit leaves a trace:

- a newer commit builds on it (`prevCommit`), or names it as the instant of a checkpoint;
- one of our records or the index names it: both are written only after the completed file;
- its base files are in the partitions without markers: markers are created before the files and
  deleted after the completed file, or after the files.

*Cost*: a process reads each commit once and keeps one path per file group, for the last `_TABLES`
tables. Evidence is searched only for instants that are about to be rolled back, and by `fsck`.

**Caveats**: readers do not check; archived commits are not read. *Source:* CleanPlanner,
HoodieTimelineArchiver, HoodieWriteStat.prevCommit, WriteMarkers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hoodie_nb.errors import InvalidTable
from hoodie_nb.forked import ProcessLock
from hoodie_nb.storage.storage import OURS, joined, read_bytes
from hoodie_nb.timeline.timeline import COMMITS, ArchivedMeanwhile, Instant, Listing, Timeline
from hoodie_nb.view.file_groups import (
    BaseFileName,
    Commits,
    FileGroups,
    FileSlice,
    base_files_at,
    table_folders,
)
from hoodie_nb.view.logs import data_files
from hoodie_nb.view.markers import marked_files
from hoodie_nb.view.read_handle import ReadHandle

_TABLES = 16
_RECORDS = tuple(f"{OURS}/{name}" for name in ("progress", "prepared", "index"))
ACCEPT = (
    'call Table.open(path).fsck(repair="accept_loss"), which continues with the rows in the '
    "other files"
)


@dataclass(slots=True)
class Written:
    """The newest base file that the commits read so far wrote for each file group."""

    commits: set[str] = field(default_factory=set)
    files: dict[str, dict[str, BaseFileName]] = field(default_factory=dict)  # by partition

    def add(self, instant_time: str, paths: Iterable[str]) -> None:
        """Add the base files of a commit."""
        self.commits.add(instant_time)
        for _, (folder, file_id), name in base_files_at(paths):
            newest = self.files.setdefault(folder, {})
            if file_id not in newest or newest[file_id].instant_time < name.instant_time:
                newest[file_id] = name

    def missing(self, groups: FileGroups, where: str | None) -> list[tuple[str, BaseFileName]]:
        """Return folder and name of each file that is not its group's slice.

        Only those in the partition `where`; if it is None, all partitions are listed.
        """
        found = []
        for folder in self.files if where is None else self.files.keys() & {where}:
            slices = groups.partition(folder)
            for file_id, name in self.files[folder].items():
                if (folder, file_id) not in groups.replaced and not _has(
                    slices.get(file_id), name, groups
                ):
                    found.append((folder, name))
        return found


def _has(piece: FileSlice | None, name: BaseFileName, groups: FileGroups) -> bool:
    """Whether a slice is this file, or that of a newer commit which is archived.

    Hudi can archive commits that are newer than a savepoint's, which stays on the timeline.
    """
    if piece is None or piece.file_name == str(name):
        return piece is not None
    return piece.instant_time > name.instant_time and piece.instant_time not in groups.instants


_written: OrderedDict[str, Written] = OrderedDict()
_writing = ProcessLock()  # several writer threads look for lost files


def lost_files(
    table: ReadHandle, groups: FileGroups, commits: Iterable[Instant], where: str | None = None
) -> list[tuple[str, BaseFileName]]:
    """Return folder and name of the base files that `commits` wrote and `groups` does not have.

    Only those in the partition `where`, if it is given.
    """
    root = table.storage.root
    at = {i.requested_time: i for i in commits}
    listed = [at[time17] for time17 in groups.instants if time17 in at]
    for written in (_written.setdefault(root, Written()), Written()):
        for instant in listed:
            if instant.requested_time not in written.commits:
                with contextlib.suppress(ArchivedMeanwhile):  # by another engine
                    written.add(instant.requested_time, table.commit_metadata(instant).files)
        with _writing.lock:
            _written[root] = written
            _written.move_to_end(root)
        found = written.missing(groups, where)
        if not found:
            break  # else commits were removed, or the table was replaced: read all again
    with _writing.lock:
        while len(_written) > _TABLES:
            _written.popitem(last=False)
    return sorted(found, key=str)


def note_written(root: str, instant_time: str, paths: Iterable[str]) -> None:
    """Add a commit of this process, so that its metadata need not be read."""
    written = _written.get(root)
    if written is not None:
        written.add(instant_time, paths)


def lost_message(root: str, lost: Sequence[tuple[str, BaseFileName]], groups: FileGroups) -> str:
    """Return the message of an InvalidTable for lost files."""
    folder, name = lost[0]
    count = len(lost)
    others = f" (and {count - 1} more)" if count > 1 else ""
    problem = "is missing"
    fix = "Restore it from a backup"
    piece = groups.partition(folder).get(name.file_id)
    if piece is not None and piece.instant_time > name.instant_time:
        problem = f"is older than {piece.base_path}, which no commit names"
        fix = f"Restore {piece.instant_time}.commit from a backup, if it is damaged; or move that "
        fix += "file out of the table"
    return (
        f"{root}/{joined(folder, str(name))}{others}, written by commit "
        f"{name.instant_time}, {problem}: a write would build on another file, and the rows of "
        f"this one would be lost permanently. {fix}, or {ACCEPT}"
    )


# --- completed files of the timeline --------------------------------------------------------------


def traces(table: ReadHandle, times: Collection[str]) -> dict[str, str]:
    """Return the commit or record that shows that an instant was completed, for each that was."""
    found: dict[str, str] = {}
    for time17, what in itertools.chain(_in_commits(table, times), _in_records(table, times)):
        found.setdefault(time17, what)
    return found


def refuse_vanished(table: ReadHandle, pending: Instant) -> None:
    """Raise InvalidTable if a pending commit was completed: it must not be rolled back."""
    objection = vanished(table, pending) if pending.action in COMMITS else None
    if objection:
        what, fix = objection
        raise InvalidTable(f"{what}; a rollback would delete its rows permanently. {fix}")


def vanished(table: ReadHandle, pending: Instant) -> tuple[str, str] | None:
    """Return the problem and the fix if a pending instant was completed; else None."""
    time17 = pending.requested_time
    found = traces(table, [time17]).get(time17) or next(_in_partitions(table, time17), None)
    if found is None:
        return None
    layout = table.timeline.layout
    completion = "_*" if layout.number == 2 else ""
    done = f"{table.storage.root}/{layout.folder}/{time17}{completion}.{pending.action}"
    return (
        f"instant {pending} was completed ({found}), but {done} is missing: it was lost, or "
        "it was deleted to remove the commit",
        "Restore it from a backup. If the commit was removed on purpose, move the other files "
        f"{layout.folder}/{time17}.* and its base files *_{time17}.parquet out of the table, too: "
        "this gives its rows up, except those that newer commits have written again",
    )


def refuse_archived_later(table: ReadHandle, strays: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidTable if files of archived commits do not count, as the timeline's start is old.

    `strays` are paths and instants of files of no commit that are newer than the start.
    Hudi can archive commits that are newer than a savepoint's. If the savepoint is deleted, its
    commit is the start of the timeline until the next archiving, and every engine ignores them.
    Instants on the timeline of now are not among them: they came after the strays were listed.
    """
    now = listed_now(table) if strays else Listing()
    known = {i.requested_time for i in now.instants if i.action in COMMITS}
    times = {time17: path for path, time17 in reversed(strays) if time17 not in known}
    start = table.timeline.start(now) if times else ""
    if not start or not table.timeline.archived():
        return
    for time17, found in sorted(traces(table, times).items()):
        raise InvalidTable(
            f"{table.storage.root}/{times[time17]} belongs to a commit that is not on the timeline "
            f"({found}), although {start} is older: the commit was lost or removed, or archived "
            "beyond a savepoint that is deleted. A write would not find its rows: restore the "
            f"commit's files from a backup, or let Hudi archive {start}; or move the commit's base "
            "files out of the table if its rows are not wanted"
        )


def listed_now(table: ReadHandle) -> Listing:
    """Return the timeline as it is now; the one that a write goes by stays as it is."""
    return Timeline(table.storage, table.clock, table.timeline.layout).refresh()


def _in_commits(table: ReadHandle, times: Collection[str]) -> Iterator[tuple[str, str]]:
    oldest = min(times, default="9")
    for newer in table.timeline.completed_commits():
        if newer.requested_time > oldest:
            commit = table.commit_metadata(newer)
            built_on = {stat.get("prevCommit") for stat in commit.files.values()}
            for time17 in (t for t in times if t < newer.requested_time):
                if time17 in built_on:
                    yield time17, f"commit {newer.requested_time} builds on it"
                if any(f'"{time17}"' in text for text in commit.extra.values()):
                    yield time17, f"commit {newer.requested_time} names it"


def _in_records(table: ReadHandle, times: Collection[str]) -> Iterator[tuple[str, str]]:
    for folder in _RECORDS:
        for entry in table.storage.list_folder(folder):
            path = f"{folder}/{entry.name}"
            if entry.is_folder or not times:
                continue
            with contextlib.suppress(FileNotFoundError):  # a writer may be running during `fsck`
                content = read_bytes(table.storage, path)
                named = (t for t in times if not entry.name.startswith(t))  # its prepared record
                yield from ((t, f"{path} names it") for t in named if f'"{t}"'.encode() in content)


def _in_partitions(table: ReadHandle, time17: str) -> Iterator[str]:
    marked = {*marked_files(table.storage, time17)}
    for folder in table_folders(table.storage, Commits.of(table.timeline)):
        for file in data_files(folder, logs=table.config.merge_on_read):
            if file.name.instant_time == time17 and file.path not in marked:
                yield f"its file {file.path} no longer has a marker"
