"""A stream's checkpoints: prepared, sealed, committed, redone; whether an interval is over.

*Work flow* (`commit_on="checkpoint"`, the RFC's mode): a checkpoint starts → it is skipped if it is
already in the table → instants prepared by earlier checkpoints are committed → the writers run →
the result is *prepared* (durable) and the checkpoint may succeed → the success notification commits
it. With `commit_on="write"` prepare and commit are one step inside the checkpoint; a failure is
rolled back.

*Semantics*: a lost notification leaves the instant open: the next checkpoint joins it, on top of
its staged files (the overlay), and the next notification commits both, with one base file per file
group.

With a `commit_interval` a checkpoint is only *sealed* (see `sealing`), and the interval's end
writes, prepares and commits all of them as one instant.

*Fault tolerance*: nothing prepared is ever rolled back. Before the first file is published, the
timeline is compared with the one that the files were built on. If another writer has changed it,
the instant is written again (see `redo`). All files are verified before they are published or read
again.

*Source:* RFC-24 STEP3 "Fault Tolerance", TestStreamWriteOperatorCoordinator.
"""

import contextlib
import functools
import itertools
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from hoodie_nb import failpoints
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.clock import Age
from hoodie_nb.commit.admission import Admission
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.rewriter import Rewriter
from hoodie_nb.errors import InvalidTable, WriteFailed
from hoodie_nb.intake.intake import Intake
from hoodie_nb.records.prepared import Prepared, Writing, archived, merged, verify
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import FOLDER as SEALED
from hoodie_nb.records.sealing import STAGES, Interval, Sealed
from hoodie_nb.storage.checksums import LOST, StoredFile
from hoodie_nb.storage.storage import STAGED
from hoodie_nb.timeline.timeline import Instant


class Checkpointing(Admission):
    """The checkpoints of one query into one table; its caller holds the table's mutex.

    `given` is the schema of the query's rows; they are checked again when the table's schema
    changes.
    """

    def __init__(
        self,
        coordinator: WriteCoordinator,
        intake: Intake,
        shape: Shape,
        rewriter: Rewriter,
        *,
        commit_on: str = "checkpoint",
        interval: Interval | None = None,
        given: pa.Schema | None = None,
    ) -> None:
        super().__init__(coordinator, intake, given)
        self.shape = shape
        self._rewriter = rewriter
        self._commit_on = commit_on
        self._interval = interval
        self._age = Age()
        self._lost: set[int] = set()
        self.let_finish: Callable[[], None] | None = None  # waits for what applies in background
        self.fault_fires: Callable[[str], bool] = lambda fault: False  # the lab replaces it

    # --- commit_interval ------------------------------------------------------------------------

    def sealing(self, checkpoint: Checkpoint, previous: str | None) -> str | None:
        """Begin to seal a checkpoint; None if it is already in the table.

        Returns a folder (a path from the table's root) for the runs that `keep` takes.
        """
        with self.table.timeline.listed_once():
            if not self._admits(checkpoint, previous):
                return None
            if self.due() and self.let_finish is not None:
                self.let_finish()
                self.look_again()
            if self.due():
                self.complete()
            return self.new_folder()

    def new_folder(self) -> str:
        """Make the folder of a checkpoint's runs."""
        folder = f"{STAGED}/{STAGES}{uuid.uuid4().hex}"
        self.table.storage.make_folder(folder)
        return folder

    def keep(
        self,
        checkpoint: Checkpoint,
        folder: str,
        runs: Sequence[StoredFile],
        partitions: Collection[str],
        quarantined: Sequence[StoredFile] = (),
    ) -> None:
        """Make a checkpoint's records durable: its files in a folder from `new_folder`.

        Rows are refused here (InvalidInput), since they cannot be at the end of the interval.
        """
        storage = self.table.storage
        self._crash("crash_after_files")
        self.check_folders(partitions)
        if not runs and not quarantined:
            storage.remove(folder, tree=True)
        else:
            storage.sync_folder(folder)
        self._coordinator.notes.take_mark()  # a commit since the last recovery has changed it
        now = self.table.clock.now_ms()
        paths = sorted(partitions)
        self._sealed.add(checkpoint, runs, now, partitions=paths, quarantined=quarantined)
        self._coordinator.progress.forget_undone([checkpoint])  # not before it is durable
        size = sum(run.size_bytes for run in runs)
        values = {"batch": checkpoint.batch_id, "runs": len(runs), "bytes": size}
        self._events.emit("checkpoint_sealed", **values)
        self._crash("crash_before_commit")

    def due(self) -> bool:
        """Whether the interval of the sealed checkpoints is over."""
        records = self._sealed.all()
        interval = self._interval
        if not records or interval is None:
            return False
        size = sum(run.size_bytes for record in records for run in record.runs)
        if interval.background and size >= self.table.options.task_max_bytes // 8:
            return True
        if interval.checkpoints is not None:
            return len(records) >= interval.checkpoints
        now = self.table.clock.now_ms()
        return self._age.elapsed_ms(records[0].sealed_at_ms, now) >= (interval.duration_ms or 0)

    def _apply_sealed(self) -> Instant | None:
        """Apply all sealed checkpoints as one instant; runs stay if that fails."""
        instant = None
        last = max((s.arrival for s in self._unapplied()), default=-1)
        while (records := self._unapplied()) and records[0].arrival <= last:
            if self.intake.rule.fills:  # one by one; empty ones go with the next one that has rows
                first = next((n for n, r in enumerate(records) if r.runs), len(records) - 1)
                records = records[: first + 1]
            else:
                records = [record for record in records if record.arrival <= last]
            instant = self._apply(records) or instant
            self._coordinator.notes.take_mark()
        return instant

    def _unapplied(self) -> list[Sealed]:
        applied = self._prepared()
        return [s for s in self._sealed.all() if s.checkpoint not in applied]

    def _apply(self, records: list[Sealed]) -> Instant | None:
        coordinator = self._coordinator
        checkpoints = tuple(record.checkpoint for record in records)
        refused = tuple(file for record in records for file in record.quarantined)
        if not refused and not any(record.runs for record in records):
            coordinator.progress.record(checkpoints, None)
            self._sealed.remove(checkpoints)
            return None
        result = self._rewriter.write_sealed(coordinator, self.intake, records)
        result = replace(result, checkpoints=checkpoints, from_seals=True, quarantined=refused)
        coordinator.prepare(result)
        return self.commit_prepared()

    # --- a checkpoint ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(
        self,
        checkpoint: Checkpoint,
        previous: str | None,
        *,
        tasks: int | None = None,
        has_rows: Callable[[], bool] = lambda: True,
    ) -> Iterator[Writing | None]:
        """Let the caller write one checkpoint; None if it is already in the table.

        `previous` is the fingerprint of the previous checkpoint, as the source reports it now. When
        the caller has finished, the result is prepared, or committed; see `Writing`. `has_rows` is
        called before an instant is opened.
        """
        with self.table.timeline.listed_once():
            if not self._admits(checkpoint, previous):
                yield None
                return
            if not self.held_open():
                self.commit_prepared()
            self.check_state(checkpoint.query_id, self.shape)
            self._events.emit("batch_started", batch=checkpoint.batch_id)
            if not has_rows():
                self._coordinator.record_empty(checkpoint)
                yield None
                return
            records = [] if self._commit_on == "write" else self._coordinator.open_records()
            shape = replace(self.shape, tasks=tasks or self.shape.tasks)
            with self._coordinator.writing(self.intake, shape, checkpoint, records) as work:
                yield work
                self._crash("crash_after_files")
            if work.result is not None:
                work.instant = self._written(work.result)

    def _written(self, result: Prepared) -> Instant:
        """Commit what a checkpoint wrote, or make it durable until the notification."""
        if self._commit_on == "write":
            crash = functools.partial(self._crash, "crash_before_commit")
            return self._coordinator.commit(result, self.intake, crash)
        self._coordinator.prepare(result)
        self._crash("crash_before_commit")
        if self.fault_fires("lose_success"):
            self._lost.add(result.checkpoints[-1].batch_id)
        return result.pending

    def _crash(self, fault: str) -> None:
        """Crash the coordinator without cleanup, as if its process died, if so injected."""
        if self.fault_fires(fault):
            self._coordinator.dead = True
            raise WriteFailed(f"the injected fault {fault!r} crashed the coordinator")

    def held_open(self) -> bool:
        """Whether the newest prepared checkpoint's notification was lost, with no write since.

        If the table has changed, a key may be in two places, one of them in the open instant.
        """
        records = self._coordinator.open_records()
        done = self.table.timeline.listing.commit_times
        lost = bool(records) and records[-1].checkpoints[-1].batch_id in self._lost
        return lost and records[-1].base == done

    def hold_open(self, batch_id: int) -> None:
        """Treat the notification of a checkpoint as lost: its instant stays open."""
        self._lost.add(batch_id)

    # --- the success notification -----------------------------------------------------------------

    def notify(self, batch_id: int) -> Instant | None:
        """Commit prepared instants when a checkpoint succeeds, unless its notification is lost."""
        waits = self._interval is not None and not self.due()
        return None if waits or batch_id in self._lost else self.complete()

    def complete(self) -> Instant | None:
        """Commit everything that is prepared or sealed; idempotent."""
        with self.table.timeline.listed_once():
            instant = self.commit_prepared()
            return self._apply_sealed() or instant

    def commit_prepared(self) -> Instant | None:
        """Commit everything that is prepared; idempotent."""
        self._lost.clear()
        with self.table.timeline.listed_once():
            self.take_over()
            prepared = self._coordinator.prepared.all()
            instant = None
            for _, records in itertools.groupby(prepared, key=lambda record: record.instant_time):
                instant = self._commit(list(records)) or instant
            return instant

    def _commit(self, records: list[Prepared]) -> Instant | None:
        coordinator = self._coordinator
        if self.table.timeline.completed(records[0].instant_time) is None:
            done = archived(coordinator.table, records)
            if done is not None:
                return coordinator.complete(records, self.intake, done)
            coordinator.finish_rollbacks()
            current = coordinator.is_current(records)
            try:
                verify(merged(records), coordinator.table.storage)
            except InvalidTable:
                if not records[0].from_seals:
                    raise
                current = False  # its rows are still in the sealed runs
            if not current and records[0].from_seals:
                return self._apply_again(records[0].instant_time)
            if not current:
                self.look_again()  # another engine may have added columns
                again = self._rewriter.redo(coordinator, self.intake, records)
                return self._commit([again])  # another engine may have committed meanwhile
        return coordinator.complete(records, self.intake)

    def _apply_again(self, old: str) -> Instant | None:
        """Apply the seals of an instant again: the table has changed, or its files are damaged.

        Raises InvalidTable if one of them is lost.
        """
        coordinator = self._coordinator
        for lost in coordinator.lost_seals():
            raise InvalidTable(
                f"instant {old} has to be written again, but the seal of batch {lost.batch_id} of "
                f"query {lost.query_id} is missing from {self.table.storage.root}/{SEALED}; {LOST}"
            )
        coordinator.prepared.remove(old)  # from now on the seals count again
        failpoints.hit("coord.reapply.post")
        for pending in coordinator.pending(old):
            coordinator.roll_back(pending)
        self.look_again()  # for the columns of the table as it is now
        return self._apply_sealed()
