"""Checkpointing: what happens to one query's checkpoints, from their start to their commit.

*Work flow* (`commit_on="checkpoint"`, the RFC's mode): a checkpoint starts → it is skipped if
the table holds it already → what earlier checkpoints prepared is committed → the writers run → the
result is *prepared* (durable) and the checkpoint may succeed → the success notification commits it.
With `commit_on="write"` prepare and commit are one step inside the checkpoint.

*Semantics*: a lost notification leaves the instant open: the next checkpoint joins it, on top of
its staged files (the overlay), and the next notification commits both. One base file a file group.

With a `commit_interval` a checkpoint is only *sealed* (see `sealing`), and the interval's end
writes, prepares and commits all of them as one instant.

*Fault tolerance*: nothing prepared is ever rolled back. Before the first file is published the
timeline is compared with the one the files were built on; if another writer moved it, the winners
of the instant (the rows it wrote) are applied anew under a new instant.

*Source:* RFC-24 STEP3 "Fault Tolerance", TestStreamWriteOperatorCoordinator.
"""

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb import failpoints
from hoodie_nb.errors import WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.pipeline.coordinator import Shape, Write, WriteCoordinator
from hoodie_nb.pipeline.in_process import in_order, write_in_process
from hoodie_nb.pipeline.intake import OP, SEQ, STORE, Intake
from hoodie_nb.pipeline.plan import WritePlan
from hoodie_nb.pipeline.prepared import Prepared, drop_torn, merged
from hoodie_nb.pipeline.progress import Checkpoint
from hoodie_nb.pipeline.sealing import Sealed, SealedRecords, composed, run_name
from hoodie_nb.table.base_file import conform
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.schema import COMMIT_TIME
from hoodie_nb.table.storage import STAGED
from hoodie_nb.table.timeline import Instant, State

Seal = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class Interval:
    """How long checkpoints are only sealed: a number of them, or milliseconds."""

    checkpoints: int | None = None
    duration_ms: int | None = None

    def over(self, records: Sequence[Sealed], now_ms: int) -> bool:
        """Whether the sealed checkpoints are to be committed now."""
        if not records:
            return False
        if self.checkpoints is not None:
            return len(records) >= self.checkpoints
        return now_ms - records[0].sealed_at_ms >= (self.duration_ms or 0)


class Checkpointing:
    """The checkpoints of one query into one table; its caller holds the table's mutex."""

    def __init__(
        self,
        coordinator: WriteCoordinator,
        intake: Intake,
        shape: Shape,
        events: EventLog,
        *,
        commit_on: str = "checkpoint",
        interval: Interval | None = None,
    ) -> None:
        self._coordinator, self._intake, self._shape = coordinator, intake, shape
        self._events, self._commit_on, self._interval = events, commit_on, interval
        self._sealed = SealedRecords(coordinator.table.storage)
        self._lost: set[int] = set()
        self.faults: list[str] = []  # put in by the laboratory; each strikes once

    # --- commit_interval ------------------------------------------------------------------------

    def seal(self, checkpoint: Checkpoint, previous: str | None, seal: Seal) -> bool:
        """Keep a checkpoint's records for the interval's end; False if the table holds it already.

        `seal` writes runs below a folder (a path from the table's root) and returns their paths.
        """
        if not self._admits(checkpoint, previous):
            return False
        if self.due():
            self.complete()
        self.keep(checkpoint, seal)
        return True

    def keep(self, checkpoint: Checkpoint, seal: Seal) -> None:
        """Make a checkpoint's records durable as runs."""
        storage, table = self._coordinator.table.storage, self._coordinator.table
        folder = f"{STAGED}/{run_name(checkpoint)}-{uuid.uuid4().hex[:12]}"
        storage.make_folder(folder)
        runs = seal(folder)
        self._crash("crash_after_files")
        if not runs:
            storage.remove_tree(folder)
        else:
            storage.sync_folder(folder)
        self._sealed.put(Sealed(checkpoint, tuple(runs), table.clock.now_ms()))
        size = sum(storage.size(run) for run in runs)
        told = {"batch": checkpoint.batch_id, "runs": len(runs), "bytes": size}
        self._events.tell("checkpoint_sealed", **told)
        self._crash("crash_before_commit")

    def due(self) -> bool:
        """Whether the interval of the sealed checkpoints is over."""
        records = self._sealed.all()
        now = self._coordinator.table.clock.now_ms()
        return self._interval is not None and self._interval.over(records, now)

    def recover(self) -> None:
        """Recover the table, but for what is prepared or sealed."""
        kept = {run_name(record.checkpoint) for record in self._sealed.all()}
        self._coordinator.recover(keep=kept)

    def _apply_sealed(self) -> Instant | None:
        """Apply all sealed checkpoints as one instant; runs stay if that fails."""
        coordinator, records = self._coordinator, self._sealed.all()
        held = [r for r in records if coordinator.progress.find(r.checkpoint) is not None]
        self._sealed.remove(held)
        left = [r for r in records if r not in held]
        runs = [self._sealed.rows(r) for r in left if r.runs]
        checkpoints = tuple(record.checkpoint for record in left)
        result = self._write_composed(runs) if runs else None
        if result is not None:
            coordinator.prepare(replace(result, checkpoints=checkpoints))
            instant = self.commit_prepared()
        else:
            instant = None
            for checkpoint in checkpoints:
                coordinator.progress.record(checkpoint, None)
        self._sealed.remove(left)
        return instant

    def _write_composed(self, runs: Sequence[pa.Table]) -> Prepared | None:
        intake = replace(self._intake, operation="upsert", composed=True)
        rows = _in_order([composed(runs, intake.ordering)])
        return self._coordinator.write(
            intake, lambda plan: write_in_process(rows, plan, self._events), Shape()
        )

    # --- the start of a checkpoint ---------------------------------------------------------------

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether the table holds this checkpoint already: committed, prepared or sealed."""
        if self._coordinator.progress.find(checkpoint) is not None:
            return True
        return checkpoint in self._kept()

    def _kept(self) -> set[Checkpoint]:
        """Return the checkpoints that are prepared or sealed."""
        prepared = {c for record in self._coordinator.prepared.all() for c in record.checkpoints}
        return prepared | {record.checkpoint for record in self._sealed.all()}

    def run(self, checkpoint: Checkpoint, previous: str | None, write: Write) -> Instant | None:
        """Run one checkpoint; return its instant, None if it was empty or held already.

        `previous` is the fingerprint of the checkpoint before, as the source tells it now.
        """
        if not self._admits(checkpoint, previous):
            return None
        if not self.held_open():
            self.commit_prepared()
        self._events.tell("batch_started", batch=checkpoint.batch_id)
        if self._commit_on == "write":
            shape, write = self._shape, self._crashing(write, "crash_before_commit")
            return self._coordinator.run(self._intake, write, shape=shape, checkpoint=checkpoint)
        write, records = self._crashing(write), self.open_records()
        result = self._coordinator.write(self._intake, write, self._shape, checkpoint, records)
        if result is None:
            return None
        self._coordinator.prepare(result)
        self._crash("crash_before_commit")
        if self.strikes("lose_success"):
            self._lost.add(checkpoint.batch_id)
        return Instant(result.instant_time, "commit", State.INFLIGHT)

    # --- faults of the laboratory -----------------------------------------------------------------

    def strikes(self, fault: str) -> bool:
        """Whether that fault was put in; it is gone then."""
        if fault not in self.faults:
            return False
        self.faults.remove(fault)
        return True

    def _crash(self, *faults: str) -> None:
        """Let the coordinator die as its process would, tidying nothing up, if one was put in."""
        for fault in filter(self.strikes, faults):
            self._coordinator.dead = True
            raise WriteFailed(f"the coordinator was made to crash by the fault {fault!r}")

    def _crashing(self, write: Write, *more: str) -> Write:
        def crashing(plan: WritePlan) -> list[WriteStatus]:
            statuses = write(plan)
            self._crash("crash_after_files", *more)
            return statuses

        return crashing

    def _admits(self, checkpoint: Checkpoint, previous: str | None) -> bool:
        """Recover the table and return whether the checkpoint is new; raise if it cannot be."""
        self.recover()  # first: it records what a commit held and a failure kept out
        if self.holds(checkpoint):
            self._events.tell("batch_skipped", batch=checkpoint.batch_id)
            return False
        self._check(checkpoint, previous)
        return True

    def _check(self, checkpoint: Checkpoint, previous: str | None) -> None:
        progress = self._coordinator.progress
        if self._intake.operation == "insert":
            progress.check_insert(checkpoint)
        before = Checkpoint(checkpoint.query_id, checkpoint.batch_id - 1, previous or "")
        if before not in self._kept():
            timeline = self._coordinator.table.timeline
            known = [i.requested_time for i in timeline.completed_commits()]
            progress.check_position(checkpoint, previous, known)

    def open_records(self) -> list[Prepared]:
        """Return the prepared checkpoints of the open instant, which the next one joins.

        Those of a completed instant may still lie there, if tidying up has failed.
        """
        done = {i.requested_time for i in self._coordinator.table.timeline.completed_commits()}
        return [r for r in self._coordinator.prepared.all() if r.instant_time not in done]

    def held_open(self) -> bool:
        """Whether the newest prepared checkpoint's notification was lost."""
        records = self.open_records()
        return bool(records) and records[-1].checkpoints[-1].batch_id in self._lost

    def hold_open(self, batch_id: int) -> None:
        """Take the notification of a checkpoint for lost: its instant stays open."""
        self._lost.add(batch_id)

    # --- the success notification -----------------------------------------------------------------

    def notify(self, batch_id: int) -> Instant | None:
        """Commit what is prepared, now that a checkpoint succeeded; not if its news was lost."""
        waits = self._interval is not None and not self.due()
        return None if waits or batch_id in self._lost else self.complete()

    def complete(self) -> Instant | None:
        """Commit everything that is prepared or sealed; may be repeated."""
        instant = self.commit_prepared()
        return self._apply_sealed() or instant

    def seals_of(self, query_id: str | None) -> bool:
        """Whether something is sealed, and by that query alone."""
        queries = {record.checkpoint.query_id for record in self._sealed.all()}
        return queries == {query_id}

    def commit_prepared(self) -> Instant | None:
        """Commit everything that is prepared; may be repeated."""
        self._lost.clear()
        prepared, instant = self._coordinator.prepared.all(), None
        for _, records in itertools.groupby(prepared, key=lambda record: record.instant_time):
            instant = self._commit(list(records))
        return instant

    def _commit(self, records: list[Prepared]) -> Instant:
        coordinator = self._coordinator
        if coordinator.completed(records[0].instant_time) is None:
            coordinator.finish_rollbacks()
            if not coordinator.stands(records):
                records = self._redo(records)
        return coordinator.complete(records, self._intake)

    def _redo(self, records: Sequence[Prepared]) -> list[Prepared]:
        """Apply the rows of an instant whose base has moved under a new instant.

        Deletes first, the winners on top, as two checkpoints of the new instant. One record with
        all checkpoints and both their statuses replaces the old ones, so that it may be redone
        itself; a crash before it stands redoes again.
        """
        coordinator, old = self._coordinator, records[0].instant_time
        for pending in coordinator.table.timeline.pending():
            if pending.requested_time == old:
                coordinator.roll_back(pending, keep_staged=True)
        coordinator.table.reload()
        new: list[Prepared] = []
        instant = coordinator.begin(after=old)
        self._events.tell("instant_redone", instant=old, as_instant=instant.requested_time)
        last = records[-1]
        operation = "insert" if last.operation == "insert" else "upsert"
        intake = replace(self._intake, operation=operation)
        for rows in (self._deletes(records), self._winners(records)):
            plan = coordinator.plan(instant, intake, Shape(), new)
            statuses = write_in_process(rows, plan, self._events) if rows.num_rows else []
            redone = replace(
                last,
                instant_time=instant.requested_time,
                ordinal=len(new),
                base=plan.groups.instants,
                statuses=tuple(statuses),
            )
            new.append(redone)
        together = replace(
            new[-1],
            ordinal=0,
            statuses=tuple(status for record in new for status in record.statuses),
            checkpoints=tuple(c for record in records for c in record.checkpoints),
            replaces=old,
        )
        failpoints.hit("coord.redo.pre")
        coordinator.prepared.put(together)
        return [together]

    def _deletes(self, records: Sequence[Prepared]) -> pa.Table:
        """Return the instant's deletes as keyed rows in order."""
        storage, keyed = self._coordinator.table.storage, self._intake.keyed_schema
        paths = [s.deleted_path for r in records for s in r.statuses if s.deleted_path is not None]
        parts = [pa.ipc.open_file(pa.memory_map(storage.local_path(p))).read_all() for p in paths]
        return _in_order([keyed.empty_table(), *parts])

    def _winners(self, records: Sequence[Prepared]) -> pa.Table:
        """Return the rows that the instant wrote and that are still in its files, in order."""
        storage, keyed = self._coordinator.table.storage, self._intake.keyed_schema
        parts = []
        for status in merged(records):
            rows = pq.read_table(storage.local_path(status.staged_path), use_threads=False)
            mine = rows.filter(pc.equal(rows.column(COMMIT_TIME), records[0].instant_time))
            mine = mine.append_column(OP, pa.nulls(mine.num_rows, pa.int8()).fill_null(STORE))
            mine = mine.append_column(SEQ, pa.nulls(mine.num_rows, pa.int64()).fill_null(0))
            parts.append(conform(mine, keyed))
        return _in_order([keyed.empty_table(), *parts])


def settle(coordinator: WriteCoordinator, events: EventLog, *, sealing: str | None = None) -> None:
    """Bring a table to rest before a write: recover it, commit all that is prepared or sealed.

    What the query `sealing` has sealed stays for the end of its interval, if there is nothing else.
    """
    drop_torn(coordinator.table, {record.instant_time for record in coordinator.prepared.all()})
    intake = Intake(coordinator.table.config, coordinator.table.schema)
    checkpointing = Checkpointing(coordinator, intake, Shape(), events)
    checkpointing.recover()
    checkpointing.commit_prepared() if checkpointing.seals_of(sealing) else checkpointing.complete()


def _in_order(parts: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(parts)
    position = rows.schema.get_field_index(SEQ)
    return in_order(rows.set_column(position, SEQ, pa.array(range(rows.num_rows), pa.int64())))
