"""The WriteCoordinator: opens an instant, commits what the writers report, undoes what fails.

*Work flow* of one checkpoint: `recover` → `begin` (REQUESTED and INFLIGHT stand before any writer
starts) → writers stage files and report → `commit` (publish, completed file, progress record,
sweep). Without a written file the instant leaves the timeline again and only the progress is
recorded.

*Semantics*: the completed file is the point of no return. Before it a failure rolls back and raises
"not applied"; behind it everything left is repeated by whoever comes next.

*Fault tolerance*: at most one pending commit per table. `recover` finishes begun rollbacks, rolls
back the pending commit (unless another engine's heartbeat is fresh), records progress that a crash
kept from being recorded, and sweeps what dead runs staged. It may be repeated and may crash itself.

**Caveats**: the coordinator sees statuses, never records. Java's EAGER writers roll back a live
instant of ours: one engine at a time. *Source:* RFC-24 STEP1, StreamWriteOperatorCoordinator.
"""

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hoodie_nb import failpoints
from hoodie_nb.errors import CommitFailed, ConcurrentWriter, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.pipeline.instants import pending_commit
from hoodie_nb.pipeline.intake import Intake
from hoodie_nb.pipeline.plan import WritePlan
from hoodie_nb.pipeline.profile import average_record_bytes
from hoodie_nb.pipeline.progress import EXTRA_KEY, Checkpoint, ProgressRecords
from hoodie_nb.pipeline.stages import PIPELINES, Pipeline
from hoodie_nb.table.commits import WriteStatus, encode_commit
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.publish import publish_commit, staged_folder, sweep, sweep_all
from hoodie_nb.table.rollback import finish_rollbacks, roll_back
from hoodie_nb.table.schema import to_avro
from hoodie_nb.table.storage import META
from hoodie_nb.table.timeline import COMMITS, Instant, State

_HEARTBEAT_MS = 120_000
_RETRIES = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """How a write runs: its pipeline, index and number of tasks."""

    pipeline: Pipeline = PIPELINES["step3"]
    index: str = "bloom"
    tasks: int = 1
    state_folder: str = ""


class WriteCoordinator:
    """The one actor that writes the timeline of a table; its caller holds the writer lock."""

    def __init__(self, table: TableHandle, events: EventLog) -> None:
        self.table = table
        self.progress = ProgressRecords(table.storage)
        self._events = events
        self._nonce = uuid.uuid4().hex[:12]

    # --- recovery -----------------------------------------------------------------------------

    def recover(self) -> None:
        """Bring the table to rest: nothing pending, nothing staged, progress complete."""
        table = self.table
        table.reload()
        if table.config.metadata_partitions:
            raise InvalidTable(
                f"{table.storage.root} has a Hudi metadata table "
                f"({table.config.metadata_partitions}), which would miss our rows: switch it off "
                "with Hudi (hoodie.metadata.enable=false on one write) first"
            )
        for undone in finish_rollbacks(table.storage, table.timeline):
            self._events.tell("instant_rolled_back", instant=undone.requested_time)
        for pending in table.timeline.pending():
            if pending.action in COMMITS:
                self._refuse_foreign(pending)
                self.roll_back(pending)
        commits = table.timeline.completed_commits()
        for instant in reversed(commits):
            extra = table.commit_metadata(instant).extra
            if EXTRA_KEY in extra:
                self.progress.catch_up(extra)
                break
        sweep_all(table.storage)

    def _refuse_foreign(self, pending: Instant) -> None:
        path = f"{META}/.heartbeat"
        for entry in self.table.storage.list_folder(path):
            age = self.table.clock.now_ms() - entry.modified_ms
            if entry.name == pending.requested_time and age < _HEARTBEAT_MS:
                raise ConcurrentWriter(
                    f"another engine writes instant {pending.requested_time} of "
                    f"{self.table.storage.root} (heartbeat {age // 1000} s ago): wait until it ends"
                )
        if pending.action != "commit":
            raise ConcurrentWriter(
                f"{pending} of {self.table.storage.root} is another engine's plan: let that engine "
                "complete or cancel it"
            )

    def roll_back(self, instant: Instant) -> None:
        """Undo a pending commit."""
        published = roll_back(self.table.storage, self.table.timeline, instant)
        self._events.tell(
            "instant_rolled_back", instant=instant.requested_time, published=published
        )

    # --- one commit ---------------------------------------------------------------------------

    def begin(self) -> Instant:
        """Put a new instant on the timeline, inflight."""
        failpoints.hit("coord.requested.pre")
        instant = self.table.timeline.request()
        self._events.tell("instant_requested", instant=instant.requested_time)
        failpoints.hit("coord.requested.post")
        instant = self.table.timeline.begin(instant)
        self._events.tell("instant_inflight", instant=instant.requested_time)
        failpoints.hit("coord.inflight.post")
        return instant

    def plan(self, instant: Instant | None, intake: Intake, shape: Shape) -> WritePlan:
        """Return what the writers of this instant need, its staging folder made.

        Without an instant the InstantGenerator makes both; `staged` then holds the nonce only.
        """
        table = self.table
        staged = self._nonce
        if instant is not None:
            staged = staged_folder(instant.requested_time, self._nonce)
            table.storage.make_folder(staged)
        groups = table.file_groups()
        newest_first = (
            table.commit_metadata(i) for i in reversed(table.timeline.completed_commits())
        )
        return WritePlan(
            storage=table.storage,
            intake=intake,
            options=table.options,
            instant_time=instant.requested_time if instant else "",
            staged=staged,
            groups=groups,
            record_bytes=average_record_bytes(newest_first, table.options),
            tasks=shape.tasks,
            pipeline=shape.pipeline,
            index=shape.index,
            state_folder=shape.state_folder,
        )

    def run(
        self,
        intake: Intake,
        write: Callable[[WritePlan], list[WriteStatus]],
        *,
        shape: Shape | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Instant | None:
        """Write and commit one checkpoint; None if there was nothing to write."""
        shape = shape or Shape()
        instant = None if shape.pipeline.serial_instant else self.begin()
        try:
            plan = self.plan(instant, intake, shape)
            statuses = write(plan)
            failpoints.hit("coord.statuses.pre")
        except BaseException:
            pending = pending_commit(self.table.timeline)
            if pending is not None:
                self.roll_back(pending)
            raise
        instant = instant or pending_commit(self.table.timeline)
        if not statuses or instant is None:
            self._abandon(instant, checkpoint)
            return None
        return self.commit(instant, plan, statuses, checkpoint)

    def _abandon(self, instant: Instant | None, checkpoint: Checkpoint | None) -> None:
        """Take an instant without files off the timeline and record the empty checkpoint."""
        if instant is not None:
            self.table.timeline.remove(instant)
            sweep(self.table.storage, instant.requested_time)
            self._events.tell("instant_abandoned", instant=instant.requested_time)
        if checkpoint is not None:
            self.progress.record(checkpoint, None)

    def commit(
        self,
        instant: Instant,
        plan: WritePlan,
        statuses: Sequence[WriteStatus],
        checkpoint: Checkpoint | None = None,
    ) -> Instant:
        """Publish the statuses' files and complete the instant, or roll it back and raise."""
        schema = to_avro(plan.intake.schema, plan.intake.config.name)
        extra = {
            "schema": json.dumps(schema, separators=(",", ":")),
            EXTRA_KEY: self.progress.carried(checkpoint, instant.requested_time),
        }
        content = encode_commit(statuses, plan.intake.operation, extra)
        try:
            self._check_unchanged(instant, plan)
            completed = self._publish(instant, statuses, content)
        except BaseException as error:
            self.roll_back(instant)
            if isinstance(error, OSError):
                raise CommitFailed(
                    f"instant {instant.requested_time} was not applied: {error}; it is rolled "
                    "back, write the data again once the cause is gone",
                    retryable=True,
                ) from error
            raise
        self._settle(completed, plan, statuses, checkpoint)
        return completed

    def _check_unchanged(self, instant: Instant, plan: WritePlan) -> None:
        """Raise ConcurrentWriter if the timeline is not the one the files were built on."""
        timeline = self.table.timeline
        commits = tuple(i.requested_time for i in timeline.completed_commits())
        ours = [i for i in timeline.pending() if i.requested_time == instant.requested_time]
        if commits != plan.groups.instants or [i.state for i in ours] != [State.INFLIGHT]:
            raise ConcurrentWriter(
                f"another writer changed {self.table.storage.root} while instant "
                f"{instant.requested_time} was written: it is rolled back, write the data again"
            )

    def _publish(
        self, instant: Instant, statuses: Sequence[WriteStatus], content: bytes
    ) -> Instant:
        table = self.table
        for attempt in range(_RETRIES + 1):
            try:
                return publish_commit(table.storage, table.timeline, instant, statuses, content)
            except OSError as error:
                done = [i for i in table.timeline.completed_commits() if _same(i, instant)]
                if done:
                    return done[0]
                if attempt == _RETRIES or isinstance(error, FileExistsError):
                    raise
                self._events.tell("commit_retried", instant=instant.requested_time, why=str(error))
                table.clock.sleep(0.5 * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _settle(
        self,
        completed: Instant,
        plan: WritePlan,
        statuses: Sequence[WriteStatus],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Do what comes behind the point of no return; a crash in it is made good by `recover`."""
        failpoints.hit("coord.commit.post")
        time17 = completed.requested_time
        self.table.remember(plan.groups.with_commit(time17, statuses))
        if checkpoint is not None:
            self.progress.record(checkpoint, time17)
        failpoints.hit("coord.progress.post")
        sweep(self.table.storage, time17)
        failpoints.hit("coord.sweep.post")
        self._events.tell(
            "instant_committed",
            instant=time17,
            files=len(statuses),
            rows=sum(s.rows for s in statuses),
            inserts=sum(s.inserts for s in statuses),
            updates=sum(s.updates for s in statuses),
            deletes=sum(s.deletes for s in statuses),
            bytes=sum(s.bytes_written for s in statuses),
        )


def _same(a: Instant, b: Instant) -> bool:
    return (a.requested_time, a.action) == (b.requested_time, b.action)
