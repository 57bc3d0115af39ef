"""The verbs of other users of the table: another engine, a second job, other tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from core.writes import write_and_commit, write_uncommitted
from scenarios.tables import CONFIG, SCHEMA

from hoodie_nb.actions.rollback import roll_back
from hoodie_nb.buckets.assigner import BucketAssigner
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan, task_of
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.operators import assign_and_write
from hoodie_nb.lock.job import JobHold
from hoodie_nb.records.prepared import Prepared
from hoodie_nb.timeline.commits import WriteStatus

if TYPE_CHECKING:
    from scenarios.verbs import World


class OtherWriters:
    """Actions of others on the table of a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def do_foreign_commit(self, *words: str) -> list[str]:
        """Commit rows from another engine, which does not know this job."""
        handle = self._world.handle()
        keyed = keyed_in_order(self._world._rows(words, every_column=True), Intake(CONFIG, SCHEMA))
        coordinator, intake = WriteCoordinator(handle, EventLog()), Intake(CONFIG, SCHEMA)
        result = write_uncommitted(
            coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog()), Shape()
        )
        assert isinstance(result, Prepared)
        coordinator.complete([result], intake)
        return [f"another engine commits {result.instant_time}"]

    def do_foreign_rollback(self, *traceless: str) -> None:
        """Let Java roll back pending instants, as it does before each of its own writes."""
        handle = self._world.handle()
        for pending in handle.timeline.pending():
            if traceless:
                roll_back(handle, pending, keep_staged=True)
                continue
            rollback = handle.timeline.begin(handle.timeline.request("rollback"))
            roll_back(handle, pending, keep_staged=True)
            handle.timeline.complete(rollback, b"Java's")

    def do_clock(self, seconds: str) -> None:
        """Set the clock forward or back."""
        self._world.clock.ms += 1000 * int(seconds)

    def do_foreign_begins(self, *heartbeat: str) -> None:
        """Leave another engine's commit inflight, with a heartbeat so many seconds old."""
        timeline = self._world.handle().timeline
        instant = timeline.begin(timeline.request())
        for age in heartbeat:
            beat = self._world.path / ".hoodie/.heartbeat" / instant.requested_time
            beat.parent.mkdir(exist_ok=True)
            beat.touch()
            at = self._world.clock.ms / 1000 - int(age)
            os.utime(beat, (at, at))

    def do_two_tasks(self, *words: str) -> None:
        """Let two tasks write one instant without a shuffle: `rows / rows`."""
        middle = words.index("/")
        intake = Intake(CONFIG, SCHEMA)
        parts = [
            keyed_in_order(self._world._rows(w), intake)
            for w in (words[:middle], words[middle + 1 :])
        ]

        def write(plan: WritePlan) -> list[WriteStatus]:
            return [
                status
                for task, part in enumerate(parts)
                for status in assign_and_write(plan, [part], TaskAttempt(task), EventLog().emit)
            ]

        job = self._world.job
        write_and_commit(job.coordinator, job.intake, write, job.shape)

    def do_second_job(self) -> None:
        """Start another job on the table while this one runs."""
        JobHold(self._world.handle().storage, "job two")

    def do_assign(self, task: str, tasks: str, *words: str) -> Iterator[str]:
        """Let one of several assigner tasks assign rows: `partition=rows`."""
        coordinator, job = WriteCoordinator(self._world.handle(), EventLog()), self._world.job
        shape = replace(job.shape, tasks=int(tasks))
        plan = replace(coordinator.plan(None, job.intake, shape), instant_time=f"{0:017d}")
        assigner = BucketAssigner(plan, int(task), EventLog().emit)
        for word in words:
            partition, _, rows = word.partition("=")
            for file_id, count in assigner.take(partition, int(rows)):
                own = task_of(file_id, plan.id_tasks) == int(task)
                whose = "of the task" if own else "of ANOTHER task"
                yield f"{partition}: {count} rows into {file_id} {whose}"
