"""The log files of a merge-on-read table: which count, and to which slice they belong.

| | versions 8 and 9 | version 6 |
| --- | --- | --- |
| instant in the name | that of the deltacommit that wrote it | that of the slice's base file |
| counts if | that instant does, as for a base file | its blocks do, each by its instant |
| belongs to the newest base file | up to the time at which its instant completed | of its instant |

While a compaction is pending, the logs of version 6 have its instant: they are merged with the
slice before. A file group without a base file is a slice of logs only. An archived instant is older
than any base file of the timeline; if there is an archived base file after it, the archive says
when it completed.

A log has the size that its commit says, if that commit is on the timeline, so that a reader notices
one that is too short. A log that such a commit names and its folder lacks belongs to its slice all
the same: who reads the slice gets an error. A log that a commit of this library does not name is
not merged: it is a copy, which `fsck` finds. Only folders of merge-on-read tables are looked at, in
the listing that there is; the delta commits of the timeline are read.

*Source:* HoodieFileGroup.getBaseInstantTime, AbstractTableFileSystemView.filterUncommittedLogs.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hoodie_nb.logs.log_name import LogFile, LogFileName
from hoodie_nb.storage.storage import joined
from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.timeline.timeline import Instant, Listing, Timeline
from hoodie_nb.view.file_groups import BaseFile, Commits, FileSlice, Folder, Group, Groups

DataFile = BaseFile | LogFile


@dataclass(frozen=True, slots=True)
class Counted:
    """Whether what an instant wrote counts, as of a moment (None: now)."""

    commits: Commits
    as_of: str | None

    def __call__(self, time17: str) -> bool:
        """Return it for the instant of that time."""
        return (self.as_of is None or time17 <= self.as_of) and self.commits.count(time17)


class Logs:
    """The logs of one view of a table: that of a listing of the timeline.

    `read` returns the logs that a delta commit names (see `logs_named`).
    """

    def __init__(
        self,
        timeline: Timeline,
        listing: Listing,
        counted: Counted,
        read: Callable[[Instant], Sequence[LogFile]],
    ) -> None:
        self.counted = counted
        self._timeline = timeline
        self._named_by_base = timeline.layout.number == 1
        self._done = {i.requested_time: i for i in listing.commits}
        deltas = listing.completed("deltacommit")
        self._deltas = [done for done in deltas if counted(done.requested_time)]
        self._read = read

    def attached(
        self, folder: Folder, slices: Mapping[str, FileSlice], replaced: Groups
    ) -> dict[str, FileSlice]:
        """Return the newest slices of a folder, by file id, with their logs."""
        found = dict[str, list[LogFile]]()
        known = self.named.get(folder.path, {})
        there = (log for log in logs_of(folder) if not self._stray(log, known))
        here = {log.path: self._sized(log) for log in there}
        for log in {**known, **here}.values():
            if (folder.path, log.name.file_id) not in replaced and not log.name.suffix:
                base = slices.get(log.name.file_id)
                if self.belongs(log.name, base.instant_time if base else ""):
                    found.setdefault(log.name.file_id, []).append(log)
        merged = dict(slices)
        for file_id, logs in found.items():
            first = min(log.name.instant_time for log in logs)
            base = slices.get(file_id)
            if base is not None or self.counted(first):
                base = base or FileSlice(folder.path, file_id, first, "", 0)
                ordered = sorted(logs, key=lambda log: log.name)
                merged[file_id] = replace(base, logs=tuple(ordered))
        return merged

    def belongs(self, name: LogFileName, base: str) -> bool:
        """Whether a log belongs to the slice of the instant `base`, or to a later one."""
        time17 = name.instant_time
        if self._named_by_base:
            return time17 >= base and (self.counted.as_of is None or time17 <= self.counted.as_of)
        if not self.counted(time17):
            return False
        return time17 >= base or self._completion(time17) >= base

    def _completion(self, time17: str) -> str:
        """Return when an instant completed; its own time if nothing says it."""
        done = self._done.get(time17)
        if done is not None:
            return done.completion_time or time17
        return self._archived.get(time17, time17)

    @functools.cached_property
    def _archived(self) -> Mapping[str, str]:
        return self._timeline.archive.completion_times()

    @functools.cached_property
    def named(self) -> Mapping[str, Mapping[str, LogFile]]:
        """Return the logs that delta commits name, by folder and path, as if all were missing."""
        found: dict[str, dict[str, LogFile]] = {}
        for done in self._deltas:
            for log in self._read(done):
                logs = found.setdefault(log.path.rpartition("/")[0], {})
                size = max(log.size_bytes, logs.get(log.path, log).size_bytes)
                logs[log.path] = replace(log, size_bytes=size)
        return found

    def _stray(self, log: LogFile, known: Mapping[str, LogFile]) -> bool:
        """Whether the commit of a log, of this library and so complete, does not name it."""
        return log.name.instant_time in self._complete and log.path not in known

    @functools.cached_property
    def _complete(self) -> frozenset[str]:
        """Return the delta commits that name all logs of theirs: those with checksums of logs."""
        named = (log for logs in self.named.values() for log in logs.values())
        return frozenset(log.name.instant_time for log in named if log.crc is not None)

    def _sized(self, log: LogFile) -> LogFile:
        """Return a log with the bytes that its commit says it has, if that is on the timeline."""
        known = self.named.get(log.path.rpartition("/")[0], {}).get(log.path)
        size = known.size_bytes if known else log.size_bytes
        if self._named_by_base:  # another commit may have appended to it
            size = max(size, log.size_bytes)
        return replace(log, size_bytes=size, crc=known.crc if known else None)


def logs_named(commit: CommitMetadata, time17: str) -> list[LogFile]:
    """Return the logs that the commit of an instant names, as missing ones."""
    found = []
    crcs = commit.log_crcs
    for path, stat in commit.files.items():
        name = LogFileName.parse(path.rpartition("/")[2])
        size = stat.get("fileSizeInBytes")
        if name is not None and size:
            found.append(LogFile(path, name, size, time17, crcs.get(path)))
    return found


def log_groups(paths: Iterable[str]) -> Iterator[Group]:
    """Yield the file groups of those of the paths that are logs."""
    for path in paths:
        folder, _, file_name = path.rpartition("/")
        name = LogFileName.parse(file_name)
        if name is not None:
            yield folder, name.file_id


def data_files(folder: Folder, *, logs: bool) -> Iterator[DataFile]:
    """Yield the base files of a folder and, of a merge-on-read table, its `logs`."""
    yield from folder.files
    if logs:
        yield from logs_of(folder)


def logs_of(folder: Folder) -> Iterator[LogFile]:
    """Yield the log files of a folder, with the sizes that the folder says."""
    for entry in folder.entries:
        name = LogFileName.parse(entry.name) if entry.name[0] == "." else None
        if name is not None and not entry.is_folder:
            yield LogFile(joined(folder.path, entry.name), name, entry.size_bytes)
