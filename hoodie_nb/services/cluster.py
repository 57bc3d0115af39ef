"""`table.cluster()`: merges small files, partition by partition; its dry run and result.

*Work flow*, under the table's lock: recover the table and commit what is prepared or sealed; plan
(`actions/cluster_plan.py`); write the new files, two at a time; one replacecommit with them, which
names the file groups that they replace. Without files to merge there is no instant.

*Semantics*: the rows do not change. They keep their commit times and sequence numbers, as with
Hudi's `hoodie.clustering.preserve.commit.metadata`, so `changes` and incremental queries report
none of them. Within a new file they are in order of their keys; copies of a key are kept. The old
files stay, for earlier snapshots and running readers, until they are cleaned. In a merge-on-read
table logs are merged with their base files on the way.

*Fault tolerance*: like any write. The instant has no plan that another engine would continue (its
requested file is empty, like that of an overwrite): the next writer, ours or Java's, rolls back a
pending one. If another engine commits in the meantime, this is noticed before our commit
(ConcurrentWriter, nothing is changed).

*Source:* Hudi's clustering: HoodieReplaceCommitMetadata with the operation CLUSTER.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from hoodie_nb.actions.cluster_plan import SmallFiles, plan_clustering
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan, file_id_of
from hoodie_nb.buckets.rewrite import write_group
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.display import counted
from hoodie_nb.events import Emit, EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.files.base_file import open_base_file
from hoodie_nb.index.file_keys import KeysToIndex
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.joining import joined_rows
from hoodie_nb.local.settling import settled
from hoodie_nb.machine import threads
from hoodie_nb.reading.read import slices_as_of
from hoodie_nb.services.result import Result
from hoodie_nb.timeline.commits import CLUSTER, WriteStatus


@dataclass(frozen=True, slots=True)
class ClusteredPartition:
    """A partition: its small files, their bytes, and how many files they become."""

    path: str
    files: int
    size_bytes: int
    new_files: int

    def __str__(self) -> str:
        name = f"{self.path}: " if self.path else ""
        return (
            f"{name}{counted(self.files, 'file')}, {self.size_bytes:,} bytes -> {self.new_files:,}"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Clustered(Result):
    """What a clustering has merged, or would merge, by partition.

    `requested_time` is that of its instant: None if it was a plan only, or nothing was to be done.
    """

    files: int
    size_bytes: int
    new_files: int
    partitions: tuple[ClusteredPartition, ...]
    requested_time: str | None = None
    labels: ClassVar = {**Result.labels, "files": ("files merged", "files to merge")}

    @classmethod
    def of(cls, plan: Sequence[SmallFiles]) -> "Clustered":
        """Return the summary of a plan."""
        merges: dict[str, list[SmallFiles]] = {}
        for small in plan:
            merges.setdefault(small.partition_path, []).append(small)
        found = tuple(
            ClusteredPartition(
                path,
                sum(len(small.pieces) for small in its),
                sum(small.size_bytes for small in its),
                len(its),
            )
            for path, its in merges.items()
        )
        files = sum(partition.files for partition in found)
        return cls(files, sum(small.size_bytes for small in plan), len(plan), found)


def cluster(
    table: TableHandle, events: EventLog, *, partitions: Sequence[str] | None, dry_run: bool
) -> Clustered:
    """Merge the small files of all or some partitions, or return the plan."""
    with table.timeline.listed_once():
        coordinator = settled(table, events, dry_run=dry_run)
        groups = table.file_groups() if dry_run else table.groups_to_write()
        slices = groups.slices
        if partitions is not None:  # unknown ones are refused
            chosen = slices_as_of(table, None, partitions).slices
            slices = {path: groups.partition(path) for path in chosen}
        plan = plan_clustering(table.storage, slices, table.options)
        planned = Clustered.of(plan)
        if dry_run or not plan:
            return planned
        return replace(planned, requested_time=_execute(coordinator, events, plan, planned))


def _execute(
    coordinator: WriteCoordinator, events: EventLog, plan: Sequence[SmallFiles], planned: Clustered
) -> str | None:
    """Write and commit the new files; return the time of the instant."""
    began = time.perf_counter()
    table = coordinator.table
    facts = {"files": planned.files, "bytes": planned.size_bytes, "new_files": planned.new_files}
    events.emit("clustering_planned", **facts)
    intake = Intake(table.config, table.schema, CLUSTER)
    intake.check(table.schema)
    replaced: dict[str, list[str]] = {}
    for small in plan:
        ids = replaced.setdefault(small.partition_path, [])
        ids += [piece.file_id for piece in small.pieces]
    with (
        coordinator.committing(intake) as work,
        ThreadPoolExecutor(threads(table.options.max_file_bytes)) as pool,
    ):
        work.replaced = replaced
        merged = pool.map(partial(_merged, work.plan, events.emit), plan, range(len(plan)))
        work.statuses = [status for status in merged if status.rows]
    done = None if work.instant is None else work.instant.requested_time
    written = sum(status.bytes_written for status in work.statuses)
    seconds = round(time.perf_counter() - began, 6)
    events.emit("files_clustered", instant=done, **facts, new_bytes=written, seconds=seconds)
    return done


def _merged(plan: WritePlan, emit: Emit, small: SmallFiles, number: int) -> WriteStatus:
    """Write one file, the `number`-th of the instant, and return its status."""
    partition = small.partition_path
    paths = (plan.storage.fetch(s.base_path, s.size_bytes) for s in small.pieces)
    count = sum(open_base_file(path).metadata.num_rows for path in paths)
    file_id = file_id_of(f"{plan.instant_time}/{partition}/clustered/{number}")
    rows = joined_rows(plan, small.pieces, f"clustered{number}")
    keys = KeysToIndex(plan, partition, None)
    attempt = TaskAttempt(task=number)
    status = write_group(plan, (partition, file_id), attempt, rows, expected_rows=count, keys=keys)
    logs = sum(len(piece.logs) for piece in small.pieces)  # they may delete rows, not add any
    assert status.rows == count or (logs and status.rows < count)  # old files will be deleted
    emit("file_written", task=number, **status.facts, merged_logs=logs)
    return status
