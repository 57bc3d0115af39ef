"""Partition folders: listed, each group's newest slice chosen, the partition metafile written.

A write into some partitions of a large table lists only these. A partition that is listed later is
read by the timeline of the first listing: files of newer commits are ignored. The writer holds the
lock, and cleans keep the newest files, so the files of that time still exist.

On a case-insensitive file system two names can be one folder, so all partitions are listed first.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NamedTuple

from hoodie_nb.clock import instant_ms
from hoodie_nb.definition.keys import ignores_case
from hoodie_nb.errors import InvalidTable
from hoodie_nb.logs.log_name import LogFile
from hoodie_nb.storage.storage import Storage, is_remote, joined
from hoodie_nb.storage.walk import Choice
from hoodie_nb.timeline.commits import CLUSTER
from hoodie_nb.timeline.split import refuse_split_timeline
from hoodie_nb.timeline.timeline import COMMITS, Instant, Timeline
from hoodie_nb.types.on_demand import OnDemand
from hoodie_nb.view.file_groups import (
    PARTITION_METADATA,
    Commits,
    FileGroups,
    FileSlice,
    Folder,
    Group,
    Groups,
    Standing,
    table_folders,
)
from hoodie_nb.view.logs import Counted, Logs


@dataclass(frozen=True, slots=True)
class Partition:
    """What a folder has: the latest slices by file id, and its strays.

    These are paths and instants of base files of no commit that are newer than the timeline's
    start.
    """

    slices: Mapping[str, FileSlice] = field(default_factory=dict)
    strays: tuple[tuple[str, str], ...] = ()


class Partitions:
    """The partitions as of the timeline's listing now, and of `as_of` (17 digits; None: now).

    `deltas` returns the logs that a delta commit names; None: slices have no logs.
    `unmarked` are those listed so far that have lost their metadata file, each with the oldest
    instant of its slices.
    """

    def __init__(
        self,
        storage: Storage,
        timeline: Timeline,
        as_of: str | None = None,
        keep: Choice | None = None,
        *,
        deltas: Callable[[Instant], Sequence[LogFile]] | None = None,
    ) -> None:
        listing = timeline.listing
        refuse_split_timeline(storage, timeline.layout)
        self._storage = storage
        self._timeline = timeline
        self._as_of = as_of
        commits = Commits.of(timeline, listing)
        self._commits = commits
        self._visible = _Visible.of(timeline, commits, as_of)
        counted = Counted(commits, as_of)
        self._logs = Logs(timeline, listing, counted, deltas) if deltas else None
        self.unmarked = dict[str, str]()
        self._known = dict[str, Partition]()
        self._paths = list[str]()
        self._lock = threading.RLock()
        self._keep = keep
        self._walk: Iterator[Folder] | None = self._folders()

    def on_demand(self) -> FileGroups:
        """Return the file groups; a partition is listed when it is asked for."""
        if not is_remote(self._storage.root) and ignores_case(self._storage):
            return self.listed()
        return self._groups(OnDemand(lambda path: self._find(path).slices, self._with_slices))

    def listed(self, paths: Iterable[str] | None = None) -> FileGroups:
        """Return the file groups of these partitions (None: of all), listed now."""
        found = {path: seen.slices for path, seen in self.seen(paths).items() if seen.slices}
        return self._groups(found)

    def seen(self, paths: Iterable[str] | None = None) -> dict[str, Partition]:
        """Return these partitions (None: all) by path, empty ones included."""
        if paths is None:
            while self._list_next():
                pass
            return dict(self._known)
        return {path: self._find(path) for path in paths}

    def _groups(self, slices: Mapping[str, Mapping[str, FileSlice]]) -> FileGroups:
        counted = self._logs.counted if self._logs is not None else None
        return FileGroups(slices, *self._visible, counted)

    def _find(self, path: str) -> Partition:
        with self._lock:
            if path not in self._known and self._walk is not None:
                folders = [*table_folders(self._storage, self._commits, [path])]
                self._note(path, next(map(self._seen, folders or self._lost([path])), Partition()))
            return self._known.get(path) or Partition()

    def _with_slices(self) -> Iterator[str]:
        """Yield the paths of the partitions with slices; those not known are listed meanwhile."""
        at = 0
        while at < len(self._paths) or self._list_next():
            if self._known[self._paths[at]].slices:
                yield self._paths[at]
            at += 1

    def _list_next(self) -> bool:
        """List the next partition that is not known; False if there is none."""
        with self._lock:
            try:
                for folder in self._walk or ():
                    if folder.path not in self._known:
                        self._note(folder.path, self._seen(folder))
                        return True
            except BaseException:
                self._walk = self._folders()
                raise
            self._walk = None  # the whole table is listed
            return False

    def _folders(self) -> Iterator[Folder]:
        """Yield the folders of the table, and at the end those of its logs that are none."""
        yield from table_folders(self._storage, self._commits, keep=self._keep)
        if self._logs is not None and self._keep is None:
            yield from self._lost([path for path in self._logs.named if path not in self._known])

    def _lost(self, paths: Iterable[str]) -> Iterator[Folder]:
        """Yield those of some folders that have logs but neither base files nor a metadata file."""
        for path in paths:
            if self._logs is not None and path in self._logs.named:
                yield Folder(path, self._storage.list_folder(path), (), False, True)

    def _note(self, path: str, partition: Partition) -> None:
        self._known[path] = partition
        self._paths.append(path)

    def _seen(self, folder: Folder) -> Partition:
        found = _latest(folder, self._as_of) if folder.is_partition else {}
        kept = {
            file_id: newest[0] if len(newest) == 1 else self._named(newest)
            for file_id, newest in found.items()
            if (folder.path, file_id) not in self._visible.replaced
        }
        if self._logs is not None and folder.is_partition:
            kept = self._logs.attached(folder, kept, self._visible.replaced)
        if kept and not folder.marked:
            self.unmarked[folder.path] = min(piece.instant_time for piece in kept.values())
        strays = (f for f in folder.files if f.standing is Standing.STRAY)
        return Partition(kept, tuple((f.path, f.name.instant_time) for f in strays))

    def _named(self, pieces: Sequence[FileSlice]) -> FileSlice:
        """Return the one of several files of a group and instant that its commit names."""
        storage = self._storage
        timeline = self._timeline
        done = timeline.completed(pieces[0].instant_time, COMMITS)
        where = timeline.path(done) if done else ""
        paths: Collection[str] = timeline.commit(done).files if done else ()
        named = [piece for piece in pieces if piece.path in paths]
        if len(named) == 1:
            return named[0]
        files = " and ".join(p.path for p in pieces)
        commit = f"its commit {where}"
        raise InvalidTable(
            f"{storage.root} has {len(pieces)} base files of one file group and instant, "
            f"{files}, and {len(named) or 'none'} of them in "
            f"{commit if done else 'a commit (it was archived)'}: restore what the commit wrote "
            "from a backup, or move the files with fewer rows out of the table"
        )


def _latest(folder: Folder, as_of: str | None) -> dict[str, list[FileSlice]]:
    """Return the newest files of each group: one, unless several have the same instant."""
    latest: dict[str, list[FileSlice]] = {}
    for file in folder.counted():
        name = file.name
        if as_of is not None and name.instant_time > as_of:
            continue
        known = latest.setdefault(name.file_id, [])
        if known and known[0].instant_time < name.instant_time:
            known.clear()
        if not known or known[0].instant_time == name.instant_time:
            where = (folder.path, name.file_id, name.instant_time)
            known.append(FileSlice(*where, str(name), file.size_bytes))
    return latest


class _Visible(NamedTuple):
    """The commits that a reader sees, by time; the file groups replaced, and those only moved."""

    times: tuple[str, ...]
    replaced: Groups
    moved: Groups

    @classmethod
    def of(cls, timeline: Timeline, commits: Commits, as_of: str | None) -> "_Visible":
        """Return those as of a moment (None: now)."""
        times = {time17 for time17 in commits.completed if as_of is None or time17 <= as_of}
        found = dict[Group, bool]()
        for done in timeline.listing.commits:
            if done.action == "replacecommit" and done.requested_time in times:
                commit = timeline.commit(done)
                found |= dict.fromkeys(commit.replaced_groups, commit.operation.lower() == CLUSTER)
        moved = frozenset(group for group, moves in found.items() if moves)
        return cls(tuple(sorted(times)), frozenset(found), moved)


def mark_partition(storage: Storage, folder: str, instant_time: str) -> bool:
    """Write the partition's metadata file: without it Java reads none of its rows.

    Returns whether it was missing.
    """
    path = joined(folder, PARTITION_METADATA)
    if storage.entry(path):
        return False
    storage.make_folder(folder)
    depth = len(PurePosixPath(folder).parts)
    moment = datetime.fromtimestamp(instant_ms(instant_time) / 1000, UTC)
    text = (
        f"#partition metadata\n#{moment:%a %b %d %H:%M:%S} UTC {moment:%Y}\n"
        f"commitTime={instant_time}\npartitionDepth={depth}\n"
    )
    storage.put(path, text.encode(), new=True)
    for parent in PurePosixPath(folder).parents:
        storage.sync_folder("" if str(parent) == "." else str(parent))
    return True
