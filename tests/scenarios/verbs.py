"""The verbs of the scenarios: a job, its source, its disk and its neighbours, driven by hand.

One line is one verb. A row is written `key=partition:value@ts`; `-` before it deletes. Without a
value it carries the number of its `write`, without a ts the number of the row, so that the newer
arrival wins. A crash is a process that does nothing any more: its storage refuses every operation.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from core.faults import Crash, FaultyStorage

from hoodie_nb import failpoints
from hoodie_nb.clock import ManualClock
from hoodie_nb.events import Event, EventLog
from hoodie_nb.pipeline.assigner import BucketAssigner
from hoodie_nb.pipeline.checkpointing import Interval
from hoodie_nb.pipeline.coordinator import Shape, WriteCoordinator
from hoodie_nb.pipeline.in_process import keyed_in_order, write_in_process
from hoodie_nb.pipeline.intake import Intake
from hoodie_nb.pipeline.local import LocalJob, Source
from hoodie_nb.pipeline.lock import JobHold
from hoodie_nb.pipeline.operators import assign_and_write
from hoodie_nb.pipeline.plan import WritePlan, task_of
from hoodie_nb.pipeline.prepared import Prepared
from hoodie_nb.pipeline.writer import TaskAttempt
from hoodie_nb.table import properties
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.fsck import fsck
from hoodie_nb.table.handle import TableHandle, create_table
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.read import to_arrow
from hoodie_nb.table.rollback import roll_back

SCHEMA = pa.schema(
    [("id", pa.string()), ("part", pa.string()), ("ts", pa.int64()), ("v", pa.int64())]
)
CONFIG = TableConfig("t", ("id",), ("part",), "ts", merge_mode="event_time", schema=SCHEMA)
OPTIONS = {
    "batch_size": "write.batch.size",
    "task_size": "write.task.max.size",
    "small_file": "hoodie.parquet.small.file.limit",
    "max_file": "hoodie.parquet.max.file.size",
    "record_size": "hoodie.copyonwrite.record.size.estimate",
}
SAID = {
    "instant_requested": "coordinator requests {instant}",
    "instant_inflight": "coordinator begins {instant}",
    "checkpoint_sealed": "coordinator seals checkpoint {batch} runs={runs}",
    "instant_prepared": "coordinator prepares {instant} part={checkpoint}",
    "instant_committed": (
        "coordinator commits {instant} checkpoints={checkpoints} files={files} "
        "inserts={inserts} updates={updates} deletes={deletes}"
    ),
    "instant_abandoned": "coordinator abandons {instant}: nothing was written",
    "instant_rolled_back": "coordinator rolls back {instant}",
    "instant_redone": "coordinator applies {instant} anew as {as_instant}",
    "commit_retried": "coordinator tries {instant} again: {why}",
    "settling_postponed": "coordinator leaves the rest of {instant} to the next: {why}",
    "bucket_assigned": "assigner opens {file_id} in {partition}",
    "buffer_flushed": "writer flushes {file_id} rows={rows}",
    "file_written": "writer stages {file_id} of {partition} rows={rows}",
    "batch_skipped": "job skips checkpoint {batch}: the table holds it",
    "eager_rows_repeated": "job writes {rows} eager rows again",
    "task_failed": "task fails",
}
STAGING = (
    ".hoodie/.hoodie_nb/staged",
    ".hoodie/.temp",
    ".hoodie/.hoodie_nb/prepared",
    ".hoodie/.hoodie_nb/sealed",
)
_ROW = re.compile(r"(-?)(\w+)=(\w*)(?::(-?\d+))?(?:@(-?\d+))?")


class Names:
    """Stable short names, in order of appearance, for what the clock and the run decide."""

    def __init__(self) -> None:
        self._instants: dict[str, str] = {}
        self._groups: dict[str, str] = {}

    def short(self, text: str) -> str:
        """Return `text` with instants as 001, 002… and file ids as g1, g2…"""
        uuid = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-0"
        text = re.sub(uuid, lambda m: self._group(m[0]), text)
        text = re.sub(r"\d{17}", lambda m: self._instant(m[0]), text)
        return re.sub(r"-[0-9a-f]{12}\b", "-nonce", text)

    def _group(self, file_id: str) -> str:
        return self._groups.setdefault(file_id, f"g{len(self._groups) + 1}")

    def _instant(self, time17: str) -> str:
        return self._instants.setdefault(time17, f"{len(self._instants) + 1:03d}")


class World:
    """One table, the job that writes it, and everything that may happen to them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "table"
        self.clock, self.names = ManualClock(), Names()
        self.settings: dict[str, str] = {}
        self.source, self.job = Source(), None
        self.hold: JobHold | None = None
        self.storage: FaultyStorage | None = None
        self.crashed_at = ""
        self.said: list[Event] = []
        self.flushes: list[Event] = []
        self.writes = self.rows_written = 0

    def run(self, line: str) -> Iterator[str]:
        """Run one line; yield what the actors said and what the verb or its failure printed."""
        verb, *words = line.split()
        self.clock.ms += 1000
        try:
            printed = list(getattr(self, f"do_{verb}")(*words) or [])
        except Crash:
            printed = [f"crash at {self.crashed_at}"]
            failpoints.arm("")
            self._die()
        except Exception as error:
            printed = [f"error: {type(error).__name__}: {error}".replace(str(self.path), "<table>")]
        told, self.said = self._in_order(verb), []
        for kind, events in itertools.groupby(told, key=lambda e: e.kind):
            lines = [self.names.short(SAID[kind].format(**e.values)) for e in events]
            yield from sorted(lines) if kind in ("buffer_flushed", "file_written") else lines
        yield from (self.names.short(text) for text in printed)

    def _in_order(self, verb: str) -> list[Event]:
        """Return what was said; flushes, which end whenever they like, with their checkpoint."""
        told = []
        for event in self.said:
            if event.kind == "buffer_flushed":
                self.flushes.append(event)
            elif event.kind in ("task_failed", "instant_requested", "instant_committed"):
                self.flushes.clear()
            if event.kind in SAID and event.kind != "buffer_flushed":
                told.append(event)
        if verb == "checkpoint":
            told, self.flushes = [*self.flushes, *told], []
        return told

    # --- the job --------------------------------------------------------------------------------

    def do_job(self, *words: str) -> None:
        """Start a job; a later `job` starts another one over the same table."""
        self._die()
        given = dict(word.split("=", 1) for word in words)
        if given.get("query", "q1") != self.settings.get("query", "q1"):
            self.source = Source()
        self.settings |= given
        options = {OPTIONS[k]: v for k, v in self.settings.items() if k in OPTIONS}
        if not self.path.exists():
            mode = self.settings.get("merge", "event_time")
            config = TableConfig("t", ("id",), ("part",), "ts", merge_mode=mode, schema=SCHEMA)
            create_table(self.path, config, options=options, clock=self.clock)
        self._start()

    def _start(self) -> None:
        handle, events, given = self.handle(), EventLog(), self.settings
        events.listen(lambda event: self.said.append(event))
        self.storage = handle.storage
        self.hold = JobHold(handle.storage, "job one")
        self.job = LocalJob(
            handle,
            pipeline=given.get("pipeline", "step3"),
            index=given.get("index", "bloom"),
            operation=given.get("operation", "upsert"),
            query_id=given.get("query", "q1"),
            state_folder=str(self.folder / "state"),
            source=self.source,
            events=events,
            interval=Interval(int(given["interval"])) if "interval" in given else None,
        )

    def handle(self) -> TableHandle:
        storage = FaultyStorage(self.path)
        return TableHandle(storage, self.clock, properties.load(storage))

    def _die(self) -> None:
        """End the process: nothing it still tries reaches the disk."""
        if self.storage is not None:
            self.storage.dead = True
        if self.job is not None:
            with contextlib.suppress(Crash):
                self.job.task_fails()
        if self.hold is not None:
            self.hold.release()
        self.job = self.hold = None

    def do_restart_coordinator(self) -> None:
        """Start a new process over the same table and source; the old one is gone."""
        self._die()
        self.said.clear()
        self._start()

    # --- its verbs ------------------------------------------------------------------------------

    def do_write(self, *words: str) -> None:
        """Let rows arrive."""
        self.job.write(self._rows(words))

    def _rows(self, words: tuple[str, ...], *, every_column: bool = False) -> pa.Table:
        self.writes += 1
        made = []
        for word in words:
            deleted, key, partition, value, ts = _ROW.fullmatch(word).groups()
            self.rows_written += 1
            order = int(ts) if ts else self.rows_written
            made.append((key, partition or None, order, int(value or self.writes), bool(deleted)))
        types = [*SCHEMA.types, pa.bool_()]
        columns = [pa.array(c, t) for c, t in zip(zip(*made, strict=True), types, strict=True)]
        names = [*SCHEMA.names, "_hoodie_is_deleted"]
        if self.settings.get("operation") == "delete" and not every_column:
            names, columns = names[:3], columns[:3]
        return pa.Table.from_arrays(columns, names=names)

    def do_barrier(self, number: str) -> None:
        """Begin a checkpoint."""
        self.job.barrier(int(number))

    def do_checkpoint(self, number: str) -> list[str]:
        """End the writers of a checkpoint and make it durable."""
        instant = self.job.checkpoint(int(number))
        return [] if instant else ["empty"]

    def do_complete(self, number: str) -> None:
        """Notify the success."""
        self.job.complete(int(number))

    def do_lose(self, number: str) -> None:
        """Lose the notification of a success."""
        self.job.lose(int(number))

    def do_fail(self, number: str) -> None:
        """Let a checkpoint fail elsewhere: nobody is told anything."""

    def do_timeout(self, number: str) -> None:
        """Let a checkpoint time out."""
        self.job.time_out(int(number))

    def do_task_fails(self, task: str, attempt: str) -> None:
        """Let the task fail."""
        self.job.task_fails()

    def do_job_failover(self) -> None:
        """Let the job go back to its last successful checkpoint."""
        self.job.failover()

    def do_replay(self, number: str) -> list[str]:
        """Run a checkpoint again."""
        return [] if self.job.replay(int(number)) else ["not held"]

    def do_rewind(self, number: str) -> None:
        """Restore an older checkpoint folder: the source knows `number` checkpoints only."""
        self._die()
        self.source.succeeded = int(number)
        del self.source.sealed[int(number) :]

    # --- what goes wrong ------------------------------------------------------------------------

    def do_crash_at(self, failpoint: str) -> None:
        """Let the process die at a failpoint (`name@hit`)."""
        name, _, hit = failpoint.partition("@")

        def crash() -> None:
            self.storage.dead, self.crashed_at = True, name
            raise Crash(name)

        failpoints.call(name, crash, int(hit) if hit else None)

    def do_fail_at(self, failpoint: str) -> None:
        """Let the disk fail at a failpoint (`name=raise:EIO@hit`)."""
        failpoints.arm(failpoint)

    def do_repair(self) -> None:
        """Let the disk work again."""
        failpoints.arm("")

    def do_backup(self) -> None:
        """Copy the table away."""
        shutil.copytree(self.path, self.folder / "backup")

    def do_restore(self) -> None:
        """Put the copy in the table's place."""
        self._die()
        shutil.rmtree(self.path)
        shutil.copytree(self.folder / "backup", self.path)

    def do_lose_index(self) -> None:
        """Delete what the job keeps of its keys."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)

    def do_second_job(self) -> None:
        """Start another job on the table while this one runs."""
        JobHold(self.handle().storage, "job two")

    # --- another engine -------------------------------------------------------------------------

    def do_foreign_commit(self, *words: str) -> list[str]:
        """Commit rows from another engine, which knows nothing of this job."""
        handle = self.handle()
        keyed = keyed_in_order(self._rows(words, every_column=True), Intake(CONFIG, SCHEMA))
        coordinator, intake = WriteCoordinator(handle, EventLog()), Intake(CONFIG, SCHEMA)
        result = coordinator.write(
            intake, lambda plan: write_in_process(keyed, plan, EventLog()), Shape()
        )
        assert isinstance(result, Prepared)
        coordinator.complete([result], intake)
        return [f"another engine commits {result.instant_time}"]

    def do_foreign_rollback(self, *traceless: str) -> None:
        """Let Java roll back what is pending, as it does before each of its own writes."""
        handle = self.handle()
        for pending in handle.timeline.pending():
            if traceless:
                roll_back(handle.storage, handle.timeline, pending, keep_staged=True)
                continue
            rollback = handle.timeline.begin(handle.timeline.request("rollback"))
            roll_back(handle.storage, handle.timeline, pending, keep_staged=True)
            handle.timeline.complete(rollback, b"Java's")

    def do_clock(self, seconds: str) -> None:
        """Set the clock on or back."""
        self.clock.ms += 1000 * int(seconds)

    def do_foreign_begins(self, *heartbeat: str) -> None:
        """Leave another engine's commit inflight, its heartbeat so many seconds old."""
        timeline = self.handle().timeline
        instant = timeline.begin(timeline.request())
        for age in heartbeat:
            beat = self.path / ".hoodie/.heartbeat" / instant.requested_time
            beat.parent.mkdir(exist_ok=True)
            beat.touch()
            at = self.clock.ms / 1000 - int(age)
            os.utime(beat, (at, at))

    def do_two_tasks(self, *words: str) -> None:
        """Let two tasks write one instant, the rows not shuffled: `rows / rows`."""
        middle = words.index("/")
        intake = Intake(CONFIG, SCHEMA)
        parts = [keyed_in_order(self._rows(w), intake) for w in (words[:middle], words[middle + 1 :])]

        def write(plan: WritePlan) -> list[WriteStatus]:
            return [
                status
                for task, part in enumerate(parts)
                for status in assign_and_write(plan, [part], TaskAttempt(task), EventLog().tell)
            ]

        self.job.coordinator.run(self.job.intake, write, shape=self.job.shape)

    # --- what one sees --------------------------------------------------------------------------

    def do_read(self) -> list[str]:
        """Print the snapshot, a line a partition: key=value@ts."""
        parts: dict[str, list[str]] = {}
        for row in to_arrow(self.handle()).to_pylist():
            parts.setdefault(row["part"], []).append(f"{row['id']}={row['v']}@{row['ts']}")
        return [f"{p}: {' '.join(sorted(rows))}" for p, rows in sorted(parts.items())] or ["no rows"]

    def do_timeline(self) -> list[str]:
        """Print the instants and their states."""
        found = self.handle().timeline.instants()
        kinds = [("" if i.action == "commit" else f"{i.action}:") + i.state for i in found]
        return [f"{i.requested_time}:{k}" for i, k in zip(found, kinds, strict=True)] or ["empty"]

    def do_buffers(self) -> list[str]:
        """Print what no durable checkpoint holds yet."""
        return [f"rows={self.job.waiting_rows}"]

    def do_files(self) -> list[str]:
        """Print the latest slices."""
        return [
            f"{s.partition_path}/{s.file_id} of {s.instant_time}" for s in self.handle().file_groups()
        ]

    def do_staged(self) -> list[str]:
        """Print what lies staged, marked or prepared."""
        found = []
        for name in STAGING:
            folder = self.path / name
            for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
                name = re.split("[-.]", entry.name)[0]
                name = {16: "a run", 12: name.lstrip("0") or "0"}.get(len(name), name)
                found.append(f"{folder.name} {name}")
        return found or ["nothing"]

    def do_index(self) -> list[str]:
        """Print what the last lookup cost."""
        values = self.job.events.records("index_looked_up")[-1].values
        shown = ("keys", "found", "candidates", "false_positives")
        return [" ".join(f"{name}={values[name]}" for name in shown)]

    def do_assign(self, task: str, tasks: str, *words: str) -> Iterator[str]:
        """Ask one of several assigner tasks for room: `partition=rows`."""
        coordinator, job = WriteCoordinator(self.handle(), EventLog()), self.job
        shape = replace(job.shape, tasks=int(tasks))
        plan = replace(coordinator.plan(None, job.intake, shape), instant_time=f"{0:017d}")
        assigner = BucketAssigner(plan, int(task), EventLog().tell)
        for word in words:
            partition, _, rows = word.partition("=")
            for file_id, count in assigner.take(partition, int(rows)):
                own = task_of(file_id, plan.id_tasks) == int(task)
                yield f"{partition}: {count} rows into {file_id} {'of' if own else 'NOT OF'} the task"

    def do_write_without(self, column: str) -> None:
        """Let a row arrive whose table lost a column."""
        self.job.write(self._rows(("id1=par1",)).drop_columns([column]))

    def do_uncommit(self) -> None:
        """Take the newest completed file away."""
        done = self.handle().timeline.completed_commits()[-1]
        (self.path / done.path).unlink()

    def do_fsck(self) -> list[str]:
        """Print what fsck finds."""
        return [f.what for f in fsck(self.path)] or ["clean"]

    def close(self) -> None:
        """End the job and disarm what is left."""
        failpoints.arm("")
        self._die()
