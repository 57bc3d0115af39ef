"""Names of base files, file slices, whether a file counts by its instant; partition folders.

A base file counts if its instant is a completed commit, or is older than the first completed commit
and not pending (its commit was archived, while older rollbacks and cleans may remain). The newest
such file of a group is its slice. If there are two of one instant (another engine's attempt ran on
after the commit), the one that the commit names counts; if that is not clear, the table is refused.
Groups replaced by a replacecommit are gone from that instant on, with anything written into them
later: every engine ignores their file ids.

A partition is a folder with a metadata file, as for every Hudi reader. A folder that has lost this
file is one too, if it has base files that count and their rows, if there are any, name the folder.
Such rows are read, so that no upsert treats them as new, and the next write restores the metadata
file. Copies of base files in other folders are not read.

*On disk*: `<partition>/<fileId>_<writeToken>_<instant>.parquet`, exactly two `_`.

*Source:* HoodieTableFileSystemView, HoodieFileGroup.isFileSliceCommitted, isBeforeTimelineStarts.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from hoodie_nb.errors import InvalidTable
from hoodie_nb.files.base_file import first_row
from hoodie_nb.logs.log_name import LogFile, LogFileName
from hoodie_nb.storage.storage import Entry, Storage, joined
from hoodie_nb.storage.walk import Choice, walk_folders
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.timeline.instant import ENDS_AS
from hoodie_nb.timeline.timeline import COMMITS, Listing, Timeline
from hoodie_nb.types.on_demand import updated
from hoodie_nb.types.schema import PARTITION_PATH

PARTITION_METADATA = ".hoodie_partition_metadata"
METADATA_NAMES = frozenset(PARTITION_METADATA + kind for kind in ("", ".parquet", ".orc"))
Group = tuple[str, str]  # partition path and file id
Groups = frozenset[Group]
_NAME = re.compile(r"([^_/\ud800-\udfff]+)_([^_/\ud800-\udfff]+)_(\d{14}|\d{17})\.parquet")


@dataclass(frozen=True, slots=True)
class BaseFileName:
    """The three parts of a base file's name."""

    file_id: str
    write_token: str
    instant_time: str

    def __str__(self) -> str:
        return f"{self.file_id}_{self.write_token}_{self.instant_time}.parquet"

    @classmethod
    def parse(cls, name: str) -> "BaseFileName | None":
        """Return the parts of `name`; None if it is not the name of a base file."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(match[1], match[2], match[3])


def data_file_name(name: str) -> BaseFileName | LogFileName | None:
    """Return the parts of the name of a base file or log; None if it is of neither."""
    return BaseFileName.parse(name) or LogFileName.parse(name)


def base_files_at(paths: Iterable[str]) -> Iterator[tuple[str, Group, BaseFileName]]:
    """Yield those of the paths that are base files, with file group and parts of the name."""
    for path in paths:
        folder, _, file_name = path.rpartition("/")
        name = BaseFileName.parse(file_name)
        if name is not None:
            yield path, (folder, name.file_id), name


@dataclass(frozen=True, slots=True)
class Commits:
    """The instants whose files count: commits on the active timeline, and archived ones."""

    completed: frozenset[str]
    pending: frozenset[str]
    start: str

    @classmethod
    def of(cls, timeline: Timeline, listing: Listing | None = None) -> "Commits":
        """Return the commits of the active timeline, or of a listing of it."""
        listing = listing or timeline.listing
        writes = (*COMMITS, *ENDS_AS)
        pending = {i.requested_time for i in listing.pending if i.action in writes}
        return cls(frozenset(listing.commit_times), frozenset(pending), timeline.start(listing))

    def archived(self, instant_time: str) -> bool:
        """Whether a file of that instant is older than the active timeline."""
        return instant_time < self.start and instant_time not in self.pending

    def count(self, instant_time: str) -> bool:
        """Whether a file of that instant counts."""
        return instant_time in self.completed or self.archived(instant_time)

    def standing(self, instant_time: str) -> "Standing":
        """Return what a file of that instant is."""
        if instant_time in self.completed:
            return Standing.COUNTS
        if instant_time in self.pending:
            return Standing.PENDING
        return Standing.OLDER if self.archived(instant_time) else Standing.STRAY


class Standing(Enum):
    """What a base file is by its instant; the first two count for readers."""

    COUNTS = "a commit on the timeline wrote it"
    OLDER = "a commit that was archived wrote it"
    PENDING = "its instant has not completed"
    STRAY = "of no commit: its instant was undone, or its commit is lost"


@dataclass(frozen=True, slots=True)
class FileSlice:
    """One version of a file group: its base file (size in bytes) and the instant that wrote it.

    `staged_path` is the file's path while its instant is open: the index, assigner and writer of
    the instant's next checkpoint use it. `logs` of a merge-on-read table belong to it (see `logs`);
    without a base file, `file_name` is empty and `instant_time` that of the first log.
    """

    partition_path: str
    file_id: str
    instant_time: str
    file_name: str
    size_bytes: int
    staged_path: str | None = None
    logs: tuple[LogFile, ...] = ()

    @property
    def path(self) -> str:
        """Return the base file's path, relative to the table's root; InvalidTable if it has logs.

        Then its rows are not those of the slice: see `reading.slice_rows`.
        """
        if self.logs:
            raise InvalidTable(
                f"{self.paths[0]} belongs to a slice with log files, which this call does not "
                "merge: read the table with to_arrow, to_pandas or to_spark"
            )
        return self.base_path

    @property
    def base_path(self) -> str:
        """Return the base file's path, whether there are logs or not."""
        return self.staged_path or joined(self.partition_path, self.file_name)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the base file, if there is one, and of the logs."""
        there = self.staged_path or self.file_name
        return (*([self.base_path] if there else []), *(log.path for log in self.logs))

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the base file and the logs."""
        return self.size_bytes + sum(log.size_bytes for log in self.logs)


@dataclass(frozen=True, slots=True)
class FileGroups:
    """The latest slices by partition path and file id, as of the completed instants.

    `slices` may list a partition when it is asked for (see `partitions`). `replaced` are the file
    groups that a replacecommit removed, `moved` those whose rows it put into other groups. Of a
    merge-on-read table, `counted` says whether what an instant wrote counts.
    """

    slices: Mapping[str, Mapping[str, FileSlice]] = field(default_factory=dict)
    instants: tuple[str, ...] = ()
    replaced: Groups = frozenset()
    moved: Groups = frozenset()
    counted: Callable[[str], bool] | None = None

    def __iter__(self) -> Iterator[FileSlice]:
        for partition in sorted(self.slices):
            yield from (s for _, s in sorted(self.slices[partition].items()))

    def unordered(self) -> Iterator[FileSlice]:
        """Yield the slices in any order; partitions are listed one after the other."""
        for slices in self.slices.values():
            yield from slices.values()

    def listed(self) -> "FileGroups":
        """Return the view with all partitions listed, which can be sent to other processes."""
        return replace(self, slices=dict(self.slices))

    def partition(self, path: str) -> Mapping[str, FileSlice]:
        """Return the slices of one partition by file id."""
        return self.slices.get(path, {})

    def with_commit(
        self, instant_time: str, statuses: Iterable[WriteStatus], *, staged: bool = False
    ) -> "FileGroups":
        """Return the view after a commit of `statuses`, without reading the disk.

        With `staged` the commit is still open: the files are staged, the instants do not change.
        """
        changed: dict[str, Mapping[str, FileSlice]] = {}
        for status in statuses:
            path = status.partition_path
            file_id = status.file_id
            size = status.bytes_written
            at = status.staged_path if staged else None
            known = changed.get(path) or self.partition(path)
            name = LogFileName.parse(status.file_name)
            if name is None:
                piece = FileSlice(path, file_id, instant_time, status.file_name, size, at)
            else:
                old = known[file_id]
                log = LogFile(at or status.path, name, size, crc=status.crc)
                piece = replace(old, logs=(*old.logs, log))
            changed[path] = {**known, file_id: piece}
        instants = self.instants if staged else (*self.instants, instant_time)
        return replace(self, slices=updated(self.slices, changed), instants=instants)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A base file in a folder of the table, whatever its standing (it is found when asked for)."""

    path: str
    name: BaseFileName
    size_bytes: int
    commits: Commits

    @property
    def standing(self) -> Standing:
        """Return what the file is by its instant."""
        return self.commits.standing(self.name.instant_time)

    @property
    def counts(self) -> bool:
        """Whether readers use the file."""
        return self.commits.count(self.name.instant_time)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, its base files, and whether it has a metadata file and is a partition."""

    path: str
    entries: Sequence[Entry]
    files: Sequence[BaseFile]
    marked: bool
    is_partition: bool

    def counted(self) -> Iterator[BaseFile]:
        """Yield the base files that count."""
        return (file for file in self.files if file.counts)


def table_folders(
    storage: Storage,
    commits: Commits,
    paths: Iterable[str] | None = None,
    keep: Choice | None = None,
    *,
    every: bool = False,
) -> Iterator[Folder]:
    """Yield the folders with base files that count, or a metadata file; or `every` folder.

    Only those of `paths`, if given; else those that `keep` chooses in `walk_folders`.
    """
    given = None if paths is None else ((path, storage.list_folder(path)) for path in paths)
    for path, entries in walk_folders(storage, keep) if given is None else given:
        files = [
            BaseFile(joined(path, entry.name), name, entry.size_bytes, commits)
            for entry in entries
            if not entry.is_folder and (name := BaseFileName.parse(entry.name))
        ]
        marked = any(entry.name in METADATA_NAMES for entry in entries)
        counts = any(file.counts for file in files)
        if counts or marked:
            _must_be_text(storage, path)
        if counts or marked or every:
            belongs = marked or (counts and _rows_name(storage, path, files))
            yield Folder(path, entries, files, marked, belongs)


def _must_be_text(storage: Storage, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidTable(
            f"folder {os.fsencode(path)!r} of the table at {storage.root} has base files or "
            "partition metadata, but its name is not UTF-8, so no row can name it: move it out "
            "of the table, or give it the name that its rows have"
        ) from None


def _rows_name(storage: Storage, folder: str, files: Iterable[BaseFile]) -> bool:
    """Whether the rows of the base files that count, if there are any, name the folder."""
    for file in files:
        row = first_row(storage.fetch(file.path), [PARTITION_PATH]) if file.counts else None
        if row is not None:
            return str(row.column(0)[0].as_py()) == folder
    return True  # no rows: all were deleted
