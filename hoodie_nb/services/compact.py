"""`table.compact()`: merges the logs of a merge-on-read table into base files; its plan and result.

*Work flow*, under the table's lock: recover the table; list the slices that have logs; write each
slice's merged rows to a new base file of its file group, two at a time; commit all of them as one
delta commit with the operation `compact`. Without logs there is no instant.

*Semantics*: the rows do not change, and keep their commit times and sequence numbers, so `changes`
and incremental queries report none of them. The old files stay for earlier snapshots and running
readers. Logs of other engines are merged, too, by the rules of a read: afterwards all their keys
are in base files, which every index reads, so this library can write these partitions again.

*Fault tolerance*: that of a write which merges slices that are due. A pending compaction of Hudi
(a plan, which other writers go on beside) would not be: Java attaches later logs to a slice that
does not count yet. A delta commit is rolled back by the next writer, ours or Java's; if another
engine commits in the meantime, ConcurrentWriter is raised and nothing is changed.

A checkpoint that is prepared is committed first, as before any write. If another commit has
overtaken it, it stays prepared, and its stream writes it again on top of the new base files: doing
so now could be refused, because of the very logs that are to be merged.

*Source:* HoodieCompactor; RFC-24 has no compaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.display import counted
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settle
from hoodie_nb.reading.read import slices_as_of
from hoodie_nb.services.result import Result
from hoodie_nb.storage.storage import joined
from hoodie_nb.view.file_groups import FileSlice


@dataclass(frozen=True, slots=True)
class CompactedSlice:
    """A file slice: the bytes of its base file (0: it has none), and its logs."""

    partition_path: str
    file_id: str
    size_bytes: int
    logs: int
    log_bytes: int

    def __str__(self) -> str:
        name = joined(self.partition_path, self.file_id)
        logs = f"{counted(self.logs, 'log')} of {self.log_bytes:,} bytes"
        return f"{name}: {self.size_bytes:,} bytes and {logs}"


@dataclass(frozen=True, slots=True, repr=False)
class Compacted(Result):
    """Which slices a compaction has merged with their logs, or would merge.

    `requested_time` is that of its instant: None if it was a plan only, or nothing was to be done.
    """

    slices: tuple[CompactedSlice, ...]
    logs: int
    log_bytes: int
    requested_time: str | None = None
    labels: ClassVar = {
        "slices": ("slices merged", "slices to merge"),
        "logs": ("log files", "log files"),
        "log_bytes": ("bytes of logs", "bytes of logs"),
    }

    @classmethod
    def of(cls, pieces: Sequence[FileSlice]) -> "Compacted":
        """Return the summary of the slices that have logs."""
        found = tuple(
            CompactedSlice(
                piece.partition_path,
                piece.file_id,
                piece.size_bytes,
                len(piece.logs),
                piece.total_bytes - piece.size_bytes,
            )
            for piece in pieces
        )
        return cls(found, sum(s.logs for s in found), sum(s.log_bytes for s in found))


def compact(
    table: TableHandle, events: EventLog, *, partitions: Sequence[str] | None, dry_run: bool
) -> Compacted:
    """Merge the logs of all or some partitions, or return the plan."""
    with table.timeline.listed_once():
        coordinator = _recovered(table, events, dry_run=dry_run)
        groups = table.file_groups() if dry_run else table.groups_to_write(folds_logs=True)
        if partitions is not None:  # unknown ones are refused
            chosen = slices_as_of(table, None, partitions).slices
            groups = replace(groups, slices={path: groups.partition(path) for path in chosen})
        pieces = [piece for piece in groups if piece.logs]
        planned = Compacted.of(pieces)
        if dry_run or not pieces:
            return planned
        done = coordinator.compact(pieces)
        return replace(planned, requested_time=done.requested_time if done else None)


def _recovered(table: TableHandle, events: EventLog, *, dry_run: bool) -> WriteCoordinator:
    """Return the coordinator of the table, with what is prepared committed unless overtaken."""
    coordinator = WriteCoordinator(table, events)
    if dry_run:
        table.reload()
        return coordinator
    coordinator.recover()
    records = coordinator.open_records()
    if not records or coordinator.is_current(records):
        settle(coordinator)
    return coordinator
