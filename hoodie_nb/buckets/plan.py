"""WritePlan: what all tasks share: file ids, tasks; which slices take a log or are merged.

It is created on the driver after the instant, is immutable, and is sent to every task.
"""

import heapq
import uuid
import zlib
from dataclasses import dataclass

from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.config import WriteOptions
from hoodie_nb.files.base_file import BaseFileWriter, Inherited
from hoodie_nb.intake.bad_rows import Quarantine
from hoodie_nb.intake.intake import Intake
from hoodie_nb.logs.folding import LogMerge
from hoodie_nb.logs.writing import LogWriter
from hoodie_nb.storage.checksums import ChecksummedFile
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.instant import LAYOUT_1, Layout
from hoodie_nb.view.file_groups import FileGroups, FileSlice

LOGS_PER_BASE = 1.0  # bytes of log files, above which a slice is rewritten
_IDS = uuid.UUID("5f0c1a52-6f2c-5c39-9a5e-1f1d7f3a9b24")


@dataclass(frozen=True, slots=True)
class WritePlan:
    """One instant's write: table, schema, slices to merge with, number of tasks.

    `record_bytes` is the average size of a stored row, None if it is not known; `staged` is the
    folder for this run's files, which only the driver creates and deletes. The index "bloom+state"
    uses `manifest`; `ordinal` is the number of earlier checkpoints of the instant; `quarantine`,
    where tasks put rows that they refuse.
    """

    storage: Storage
    intake: Intake
    options: WriteOptions
    instant_time: str
    staged: str
    groups: FileGroups
    record_bytes: int | None
    shape: Shape = Shape()  # noqa: RUF009 -- frozen
    manifest: str = ""
    ordinal: int = 0
    layout: Layout = LAYOUT_1
    quarantine: Quarantine | None = None

    def base_file(
        self,
        sink: ChecksummedFile,
        name: str,
        expected_rows: int | None = None,
        inherited: Inherited | None = None,
    ) -> BaseFileWriter:
        """Return a writer of one base file of this instant; see `BaseFileWriter`."""
        return BaseFileWriter(
            sink,
            self.intake.schema,
            name=name,
            table=self.intake.config.name,
            codec=self.options.codec,
            bloom_fpp=self.options.bloom_fpp,
            expected_rows=expected_rows,
            inherited=inherited,
            finds_copies=self.intake.config.merge_on_read,
        )

    def log_file(self, sink: ChecksummedFile) -> LogWriter:
        """Return a writer of one log file of this instant."""
        return LogWriter(
            sink,
            self.intake.schema,
            table=self.intake.config.name,
            instant_time=self.instant_time,
            codec=self.options.codec,
        )

    def may_append(self, piece: FileSlice) -> bool:
        """Whether known keys of a slice may go to a log file; new ones never do, see `profile`.

        If not, the slice is written again: it is small, due, or of an open checkpoint. Slices are
        due after different numbers of commits, so that not all are rewritten at once; and if their
        oldest log keeps commits from being archived.
        """
        if not self.intake.config.merge_on_read:
            return False
        opened = piece.staged_path or any(
            log.name.instant_time == self.instant_time for log in piece.logs
        )
        most = self.options.compact_commits
        most -= zlib.crc32(piece.file_id.encode()) % (most // 3 + 1)
        in_logs = piece.total_bytes - piece.size_bytes
        large = piece.total_bytes > self.options.append_above_bytes
        light = in_logs <= piece.size_bytes * LOGS_PER_BASE and len(piece.logs) < most
        newest = self.groups.instants[-self.options.keep_max :]
        old = bool(piece.logs and newest) and piece.logs[0].name.instant_time < newest[0]
        return large and light and not opened and not old

    @property
    def log_merge(self) -> LogMerge:
        """Return how the logs of a slice are merged."""
        return log_merge_of(self.intake)

    @property
    def id_tasks(self) -> int:
        """Return the number of tasks that share file groups; 1 if shuffled by partition."""
        return self.shape.tasks if self.shape.pipeline.shuffle == "file id" else 1


def log_merge_of(intake: Intake) -> LogMerge:
    """Return how the logs of a table of this library are merged."""
    ordering = intake.ordering
    return LogMerge(intake.schema.field(ordering) if ordering else None)


@dataclass(frozen=True, slots=True)
class SealPlan:
    """A checkpoint that only saves its records, as runs in `folder`."""

    storage: Storage
    intake: Intake
    folder: str
    tasks: int
    quarantine: Quarantine | None = None


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """A task attempt, which gives the write token in the names of its files."""

    task: int = 0
    stage: int = 0
    attempt: int = 0

    @property
    def token(self) -> str:
        """Return `task-stage-attempt`."""
        return f"{self.task}-{self.stage}-{self.attempt}"


def balanced_tasks(groups: FileGroups, tasks: int) -> dict[tuple[str, str], int]:
    """Return a task for each file group, so that all tasks have about the same number of bytes.

    Large files come first in each partition, and the sums carry over to the next partition.
    """
    loads = [(0, task) for task in range(tasks)]
    found = dict[tuple[str, str], int]()
    for partition in sorted(groups.slices):
        pieces = groups.partition(partition).values()
        for piece in sorted(pieces, key=lambda s: (-s.size_bytes, s.file_id)):
            size, task = loads[0]
            found[partition, piece.file_id] = task
            heapq.heapreplace(loads, (size + piece.size_bytes, task))
    return found


def file_id_of(name: str) -> str:
    """Return the id of a new file group, the same for the same name."""
    return f"{uuid.uuid5(_IDS, name)}-0"


def task_of(file_id: str, tasks: int) -> int:
    """Return the one task that assigns rows to a file group and writes it."""
    return zlib.crc32(file_id.encode()) % tasks
