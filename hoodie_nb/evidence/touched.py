"""Checks of each partition that a write touches: lost files, depth; restores its metadata file.

*Semantics*: a write is refused if it would make damage permanent: a lost base file, whose rows the
next version of its group would lack (see `lost`); files of a commit that was archived too early;
and, before a write creates a partition, a partition at another level, which may have the rows of
the new one. (A folder that was moved to another level may also have rows of an existing partition:
only the next write that creates a partition, or needs all of them, is refused.) A missing metadata
file is restored in all listed partitions: Java reads no rows of a partition without it.

Damage in other partitions is found when a write touches them, by anything that needs all of them
(an overwrite of the table, a condition, global keys, Spark tasks, a clustering), by archiving, and
by `fsck`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.fitness import Fitness
from hoodie_nb.evidence.lost import listed_now, lost_files, lost_message, refuse_archived_later
from hoodie_nb.timeline.timeline import Instant
from hoodie_nb.types.on_demand import OnDemand
from hoodie_nb.view.file_groups import FileGroups, FileSlice
from hoodie_nb.view.partitions import Partitions, mark_partition
from hoodie_nb.view.read_handle import ReadHandle


class TouchedPartitions:
    """The checks of one listing of a table; each partition is checked once.

    With `folds_logs` they are those of a write that merges all logs of the slices that it touches.
    """

    def __init__(
        self,
        table: ReadHandle,
        partitions: Partitions,
        fitness: Fitness,
        *,
        folds_logs: bool = False,
    ) -> None:
        self._table = table
        self.partitions = partitions
        self._fitness = fitness
        self._folds_logs = folds_logs
        self._lock = threading.RLock()
        self._done = set[str]()
        self._all_done = False

    def view(self, groups: FileGroups, commits: Sequence[Instant]) -> FileGroups:
        """Return a view that raises InvalidTable when a damaged partition is asked for.

        `commits` are those on the timeline that `groups` shows.
        """

        def find(path: str) -> Mapping[str, FileSlice] | None:
            self._check(groups, commits, path)
            return groups.slices.get(path)

        def names() -> Iterable[str]:
            self._check(groups, commits)
            return groups.slices

        return replace(groups, slices=OnDemand(find, names))

    def _check(
        self, groups: FileGroups, commits: Sequence[Instant], path: str | None = None
    ) -> None:
        """Check a partition, or all; what is missing may be restored, so it is listed again."""
        with self._lock:
            if self._all_done or path in self._done:
                return
            try:
                self._refuse(groups, commits, path)
            except InvalidTable:
                self._table.forget_file_groups()  # files may be restored or moved by hand
                if not self._is_overtaken(groups):
                    raise
            self.restore()

    def _refuse(self, groups: FileGroups, commits: Sequence[Instant], path: str | None) -> None:
        """Raise InvalidTable if a partition is damaged, or any; else note that it is checked.

        If another engine has committed or undone a commit since the view, files look wrong in it:
        the write is done again on a new view, which is checked.
        """
        table = self._table
        seen = self.partitions.seen(None if path is None else [path])
        if path is None or path not in groups.slices:
            self._fitness.refuse_unfit(table, groups, whole=True)
        if not self._folds_logs:
            here = groups.unordered() if path is None else groups.partition(path).values()
            _refuse_logs_of_others(table, commits, here)
        if not self._fitness.accepts_loss:
            root = table.storage.root
            lost = lost_files(table, groups, commits, path)
            if lost:
                raise InvalidTable(lost_message(root, lost, groups))
            refuse_archived_later(table, [s for p in seen.values() for s in p.strays])
            self._all_done = path is None
            self._done |= set() if path is None else {path}

    def _is_overtaken(self, groups: FileGroups) -> bool:
        """Whether a commit has completed, or was undone, since the view."""
        return listed_now(self._table).commit_times != groups.instants

    def restore(self) -> None:
        """Write the metadata files that were missing in partitions listed so far."""
        with self._lock:
            unmarked = self.partitions.unmarked
            for folder, oldest in sorted(unmarked.items()):
                if mark_partition(self._table.storage, folder, oldest):
                    self._fitness.emit("partition_metadata_restored", partition=folder)
                del unmarked[folder]


def _refuse_logs_of_others(
    table: ReadHandle, commits: Iterable[Instant], pieces: Iterable[FileSlice]
) -> None:
    """Raise InvalidTable for a log file of another engine: it may have keys that no index finds."""
    if not table.config.merge_on_read:
        return
    at = {instant.requested_time: instant for instant in commits}
    for log in itertools.chain.from_iterable(piece.logs for piece in pieces):
        done = at.get(log.name.instant_time)
        if done is None or not table.commit_metadata(done).verified:
            raise InvalidTable(
                f"{table.storage.root}/{log.path} is a log file of another engine, whose keys "
                "the index does not know, or one has archived its commit: call Table.compact, and "
                "write again"
            )
