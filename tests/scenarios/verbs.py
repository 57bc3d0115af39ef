"""The verbs of the scenarios: a job, its source, its disk and other writers, run step by step.

Each line is one verb. A row is written `key=partition:value@ts`; a `-` before it deletes. Without a
value it has the number of its `write`, without a ts the number of the row, so that the newer
arrival wins. A crash is a process that stops: its storage refuses every operation.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from core.faults import Crash, FaultyStorage
from scenarios.event_texts import ACTIONS, ACTORS, EVENT_TEXTS, Names
from scenarios.other_writers import OtherWriters
from scenarios.tables import SCHEMA
from scenarios.views import Views

from hoodie_nb import failpoints
from hoodie_nb.clock import ManualClock
from hoodie_nb.definition import properties
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.events import Event, EventLog
from hoodie_nb.evidence.handle import TableHandle, create_table
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.lock.job import JobHold
from hoodie_nb.records.prepared import FOLDER
from hoodie_nb.records.sealing import Interval

OPTIONS = {
    "batch_size": "write.batch.size",
    "task_size": "write.task.max.size",
    "small_file": "hoodie.parquet.small.file.limit",
    "max_file": "hoodie.parquet.max.file.size",
    "record_size": "hoodie.copyonwrite.record.size.estimate",
}
_ROW = re.compile(r"(-?)(\w+)=(\w*)(?::(-?\d+))?(?:@(-?\d+))?")


class World:
    """One table, its job, and everything that can happen to them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "table"
        self.clock, self.names = ManualClock(), Names()
        self.settings: dict[str, str] = {}
        self.source, self.job = Source(), None
        self.hold: JobHold | None = None
        self.storage: FaultyStorage | None = None
        self.crashed_at = ""
        self.actors = (self, OtherWriters(self), Views(self))
        self.shown: set[str] = ACTORS
        self.events: list[Event] = []
        self.flushes: list[Event] = []
        self.writes = self.rows_written = 0

    def run(self, line: str) -> Iterator[str]:
        """Run one line; yield the events and the output of the verb or of its failure."""
        verb, *words = line.split()
        self.clock.ms += 1000
        try:
            method = next(getattr(a, f"do_{verb}") for a in self.actors if hasattr(a, f"do_{verb}"))
            printed = list(method(*words) or [])
        except Crash:
            printed = [f"crash at {self.crashed_at}"]
            failpoints.arm("")
            self._die()
        except Exception as error:
            printed = [f"error: {type(error).__name__}: {error}".replace(str(self.path), "<table>")]
        ordered, self.events = self._in_order(verb), []
        for kind, group in itertools.groupby(ordered, key=lambda e: e.kind):
            lines = [self.names.short(EVENT_TEXTS[kind].format(**e.values)) for e in group]
            if self._shows(kind):
                yield from sorted(lines) if kind in ("buffer_flushed", "file_written") else lines
        yield from (self.names.short(text) for text in printed)

    def _in_order(self, verb: str) -> list[Event]:
        """Return the events; flushes, which end at any time, are shown with their checkpoint."""
        ordered = []
        for event in self.events:
            if event.kind == "buffer_flushed":
                self.flushes.append(event)
            elif event.kind in ("task_failed", "instant_requested", "instant_committed"):
                self.flushes.clear()
            if event.kind in EVENT_TEXTS and event.kind != "buffer_flushed":
                ordered.append(event)
        if verb == "checkpoint":
            ordered, self.flushes = [*self.flushes, *ordered], []
        return ordered

    def _shows(self, kind: str) -> bool:
        """Return whether the scenario shows events of this kind; hidden ones still get names."""
        return not self.shown.isdisjoint(EVENT_TEXTS[kind].split()[:2])

    def do_show(self, *words: str) -> None:
        """Show only the events of these actors (`writer`) or actions (`commits`) from here on."""
        unknown = set(words) - ACTORS - ACTIONS
        if unknown or not words:
            raise ValueError(f"show {', '.join(sorted(unknown))}: neither an actor nor an action")
        self.shown = set(words)

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
        events.listen(lambda event: self.events.append(event))
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
        """End the process: its later operations do not reach the disk."""
        if self.storage is not None:
            self.storage.dead = True
        if self.job is not None:
            with contextlib.suppress(Crash):
                self.job.task_fails()
        if self.hold is not None:
            self.hold.release()
        self.job = self.hold = None

    def do_restart_coordinator(self) -> None:
        """End the process and start a new one over the same table and source."""
        self._die()
        self.events.clear()
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

    def do_write_without(self, column: str) -> None:
        """Let a row arrive that lacks a column."""
        self.job.write(self._rows(("id1=par1",)).drop_columns([column]))

    def do_barrier(self, number: str) -> None:
        """Begin a checkpoint."""
        self.job.barrier(int(number))

    def do_checkpoint(self, number: str) -> list[str]:
        """End the writers of a checkpoint and make their result durable."""
        instant = self.job.checkpoint(int(number))
        return [] if instant else ["empty"]

    def do_complete(self, number: str) -> None:
        """Deliver the success notification of a checkpoint."""
        self.job.complete(int(number))

    def do_lose(self, number: str) -> None:
        """Lose the success notification of a checkpoint."""
        self.job.lose(int(number))

    def do_fail(self, number: str) -> None:
        """Let a checkpoint fail in another task, without a notification."""

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
        """Restore an older checkpoint folder: the source has only `number` checkpoints."""
        self._die()
        self.source.take_back(int(number))

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
        """Back up the table."""
        shutil.copytree(self.path, self.folder / "backup")

    def do_restore(self) -> None:
        """Restore the table from the backup."""
        self._die()
        shutil.rmtree(self.path)
        shutil.copytree(self.folder / "backup", self.path)

    def do_uncommit(self) -> None:
        """Remove the newest completed file."""
        timeline = self.handle().timeline
        (self.path / timeline.path(timeline.completed_commits()[-1])).unlink()

    def do_lose_part(self, part: str) -> None:
        """Delete the prepared record of a checkpoint of the open instant."""
        (record,) = self.path.glob(f"{FOLDER}/*.{part}.json")
        record.unlink()

    def do_lose_index(self) -> None:
        """Delete the job's index state."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)

    def close(self) -> None:
        """End the job and disarm the failpoints."""
        failpoints.arm("")
        self._die()
