"""WriteCoordinator: begins an instant, plans it, commits; an overtaken batch write is refused.

*Work flow* of one checkpoint: `recover` → `writing` (the instant is inflight before any writer
starts; a runner follows the plan and reports) → `commit` at once, or `prepare` makes the result
durable and `complete` commits it later (publish, completed file, progress record, cleanup). If no
file was written, the instant is removed from the timeline and only the progress is recorded.

*Semantics*: the completed file is the point of no return. A failure before it is rolled back and
raises "not applied". After a crash, a prepared instant is never rolled back; the next start
completes it. After the completed file, the next start repeats all unfinished steps.

*Fault tolerance*: at most one pending commit per table; see `recovery`.

**Caveats**: the coordinator sees write statuses, never records. Java's EAGER writers roll back a
live instant of ours: one engine at a time. *Source:* RFC-24 STEP1, StreamWriteOperatorCoordinator.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hoodie_nb import failpoints
from hoodie_nb.actions.publish import staged_folder, staged_of, sweep
from hoodie_nb.actions.quarantine import COUNT_KEY
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.buckets.profile import average_record_bytes
from hoodie_nb.clock import instant_ms, instant_time
from hoodie_nb.commit.archiving import tidy_after_commit
from hoodie_nb.commit.compacting import fold, idle_slices
from hoodie_nb.commit.overwriting import completed_file, groups_to_keep, replaced_groups
from hoodie_nb.commit.publishing import completed_by, emit_committed, not_published, publish
from hoodie_nb.commit.recovery import Recovery
from hoodie_nb.definition.keys import refuse_colliding_folders
from hoodie_nb.errors import CommitFailed, ConcurrentWriter, HoodieError, InvalidTable, WriteFailed
from hoodie_nb.evidence.other_engines import refuse_older_types
from hoodie_nb.index.job_keys import add_instant
from hoodie_nb.index.manifest import newest_manifest
from hoodie_nb.index.upkeep import learn
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lock.waiting import noted
from hoodie_nb.records.prepared import (
    Prepared,
    Writing,
    checkpoints_of,
    merged,
    refuse_conflicts,
    refuse_moved,
    refuse_other_instants,
    verify,
)
from hoodie_nb.records.progress import Checkpoint, quarantine_of
from hoodie_nb.timeline.commits import COMPACT, WriteStatus, action_of
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.view.file_groups import FileSlice


class WriteCoordinator(Recovery):
    """The only actor that writes the timeline of a table; its caller holds the writer lock."""

    # --- one checkpoint -----------------------------------------------------------------------

    def begin(self, after: str = "", action: str = "commit", at: str = "") -> Instant:
        """Create a new inflight instant on the timeline, later than `after`, or `at` a time.

        If others that wait have staged files, it is earlier than their instants, if possible. Where
        logs merge by completion times, it is later than all of these.
        """
        failpoints.hit("coord.requested.pre")
        before = "" if at else self._first_noted()
        later = self.table.config.merge_on_read or not before
        instant = self.table.timeline.request(
            action, after=after, before=before, completed=later, at=at
        )
        self.begun = instant.requested_time
        self.events.emit("instant_requested", instant=instant.requested_time)
        failpoints.hit("coord.requested.post")
        instant = self.table.timeline.begin(instant)
        self.events.emit("instant_inflight", instant=instant.requested_time)
        failpoints.hit("coord.inflight.post")
        return instant

    def _first_noted(self) -> str:
        """Return the first instant of others that wait, less a millisecond for each before it.

        Of a stopped process it may be long ago: it does not count.
        """
        waiting = noted(self.table.storage, asleep=False)
        first = min(filter(None, waiting), default="")
        return first and instant_time(instant_ms(first) - waiting.index(first))

    def plan(
        self,
        instant: Instant | None,
        intake: Intake,
        shape: Shape,
        records: Sequence[Prepared] = (),
        checkpoint: Checkpoint | None = None,
    ) -> WritePlan:
        """Return the plan for the writers of this instant, and create its staging folder.

        Without an instant the InstantGenerator creates both; `staged` is then the nonce only.
        `records` are the instant's prepared checkpoints: the writers build on their files.
        """
        table = self.table
        staged = self._nonce
        if instant is not None:
            staged = staged_folder(instant.requested_time, self._nonce)
            table.storage.make_folder(staged)
        folds = intake.operation == COMPACT
        groups = groups_to_keep(table.groups_to_write(folds_logs=folds), intake.operation)
        if records:
            open_time = records[0].instant_time
            earlier = merged(records)
            refuse_moved(records, groups.instants)
            verify(earlier, table.storage)
            groups = groups.with_commit(open_time, earlier, staged=True)
        newest_first = map(table.commit_metadata, reversed(table.timeline.completed_commits()))
        return WritePlan(
            storage=table.storage,
            intake=intake,
            options=table.options,
            instant_time=instant.requested_time if instant else "",
            staged=staged,
            groups=groups,
            record_bytes=average_record_bytes(newest_first, table.options),
            shape=shape,
            manifest=newest_manifest(table.storage),
            ordinal=len(records),
            layout=table.timeline.layout,
            quarantine=quarantine_of(intake, staged, table.clock, checkpoint),
        )

    @contextlib.contextmanager
    def writing(
        self,
        intake: Intake,
        shape: Shape,
        checkpoint: Checkpoint | None = None,
        records: Sequence[Prepared] = (),
        *,
        keep_empty: bool = False,
        ahead: WritePlan | None = None,
    ) -> Iterator[Writing]:
        """Make a plan, let the caller write with it, and collect what the writers report.

        The instant is that of `records` (held open), else a new one; `keep_empty` keeps it even if
        no file is written. `ahead`: the plan by which all is staged (see `local.ahead`), whose
        time the instant gets. A failure, here or in the caller, is rolled back.
        """
        instant = None
        refuse_older_types(self.table, intake.schema)
        try:
            if records:
                instant = records[0].pending
            elif not shape.pipeline.serial_instant:
                action = action_of(intake.operation, merge_on_read=intake.config.merge_on_read)
                instant = self.begin(action=action, at=ahead.instant_time if ahead else "")
            if ahead is not None:
                plan = replace(ahead, groups=self.table.groups_to_write())
            else:
                plan = self.plan(instant, intake, shape, records, checkpoint)
            work = Writing(plan)
            yield work
            instant = instant or next(iter(self._own()), None)
            work.result = self._reported(work, instant, checkpoint, keep_empty)
        except BaseException as error:
            message = self._roll_back_failed(error)
            if isinstance(error, OSError):
                raise WriteFailed(f"the batch was not applied: {message}") from error
            raise

    def _reported(
        self,
        work: Writing,
        instant: Instant | None,
        checkpoint: Checkpoint | None,
        keep_empty: bool,
    ) -> Prepared | None:
        """Return what was written; without a file the instant leaves the timeline again."""
        plan = work.plan
        statuses = work.statuses
        refuse_conflicts(statuses)
        refuse_other_instants(statuses, instant.requested_time if instant else "", self._nonce)
        groups = self.table.checked_groups
        paths = {s.partition_path for s in statuses}
        refuse_colliding_folders(plan.storage, paths, groups.slices, plan.groups.slices)
        failpoints.hit("coord.statuses.pre")
        replaced = work.replaced or replaced_groups(
            groups, plan.intake.operation, statuses, refused=bool(work.quarantined)
        )
        keep = keep_empty or bool(replaced or work.quarantined)
        keep = keep or any(s.file_name for s in statuses)
        if instant is not None and (keep or self._missed(statuses, plan)):
            add_instant(plan, instant.requested_time)
            return Prepared(
                instant.requested_time,
                plan.ordinal,
                () if checkpoint is None else (checkpoint,),
                plan.intake.operation,
                plan.groups.instants,
                tuple(statuses),
                replaced=replaced,
                quarantined=tuple(work.quarantined),
                merge_on_read=plan.intake.config.merge_on_read,
            )
        if instant is not None and not plan.ordinal:
            self.table.timeline.remove(instant)
            sweep(self.table.storage, {instant.requested_time})
            self.events.emit("instant_abandoned", instant=instant.requested_time)
        if checkpoint is not None:
            self.record_empty(checkpoint)
        return None

    def _missed(self, statuses: Sequence[WriteStatus], plan: WritePlan) -> bool:
        """Whether unmatched deletes may match a row now: the table has changed since the plan."""
        return bool(statuses) and self.table.timeline.refresh().commit_times != plan.groups.instants

    @contextlib.contextmanager
    def committing(
        self,
        intake: Intake,
        shape: Shape | None = None,
        checkpoint: Checkpoint | None = None,
        ahead: WritePlan | None = None,
    ) -> Iterator[Writing]:
        """Like `writing`, and commit the result at once."""
        with self.writing(intake, shape or Shape(), checkpoint, ahead=ahead) as work:
            yield work
        if work.result is not None:
            work.instant = self.commit(work.result, intake)

    def commit(
        self, result: Prepared, intake: Intake, prepared: Callable[[], None] = lambda: None
    ) -> Instant:
        """Commit a result at once, or roll it back.

        The result of a checkpoint is prepared first, and `prepared` is called: a crash after the
        completed file leaves a record that names the checkpoint, even if the commit is archived.
        """
        try:
            try:
                verify(merged([result]), self.table.storage, "write the data again")
            except InvalidTable as error:
                raise WriteFailed(f"the batch was not applied: {error}") from error
            if not self.is_current([result]):
                raise ConcurrentWriter(
                    f"another writer changed {self.table.storage.root} while instant "
                    f"{result.instant_time} was open: it was rolled back, write the data again"
                )
            if result.checkpoints:
                self.prepare(result)
                prepared()
            return self.complete([result], intake)
        except BaseException as error:
            unknown = isinstance(error, CommitFailed) and not error.retryable
            if not unknown and self.table.timeline.completed(result.instant_time) is None:
                message = self._roll_back_failed(error, result)
                if isinstance(error, CommitFailed):
                    raise CommitFailed(message, retryable=True) from error
            raise

    def prepare(self, result: Prepared) -> None:
        """Make a checkpoint's result durable: from now on it is always completed."""
        failpoints.hit("coord.prepare.pre")
        try:
            self.prepared.put(result)
        except OSError as error:
            if result not in self.prepared.all():
                message = self._roll_back_failed(error)
                raise WriteFailed(f"the batch was not applied: {message}") from error
        failpoints.hit("coord.prepare.post")
        values = {"instant": result.instant_time, "checkpoint": result.ordinal}
        self.events.emit("instant_prepared", **values)

    # --- the commit ---------------------------------------------------------------------------

    def is_current(self, records: Sequence[Prepared]) -> bool:
        """Whether the instant is still inflight on the timeline that its files were built on."""
        listing = self.table.timeline.refresh()
        commits = listing.commit_times
        time17 = records[0].instant_time
        ours = [i.state for i in listing.pending if i.requested_time == time17]
        newest = max(commits, default="")  # a newer commit's slices would hide our files
        return commits == records[0].base and newest < time17 and ours == [State.INFLIGHT]

    def complete(
        self, records: Sequence[Prepared], intake: Intake, done: Instant | None = None
    ) -> Instant:
        """Commit the checkpoints of one instant; all steps are idempotent.

        `done`: the instant, if it is known to have completed but is no longer on the timeline.
        """
        time17 = records[0].instant_time
        last = records[-1]
        began = time.perf_counter()
        statuses = merged(records)
        done = done or self.table.timeline.completed(time17)
        whole = done is None or self.notes.ends_with(time17, records)
        if done is None:
            notes = self.notes.of(records, intake)
            content = completed_file(self.table, last, statuses, notes)
            try:
                done = publish(self.table, self.events, records, statuses, content)
            except OSError as error:
                raise not_published(self.table, time17, error) from error
            failpoints.hit("coord.commit.post")
            if COUNT_KEY in notes:
                self.events.emit("rows_quarantined", instant=time17, rows=int(notes[COUNT_KEY]))
        held = self._settle(done, records, statuses if whole else [])  # files hold all parts
        emit_committed(self.events, records, statuses, time.perf_counter() - began)
        if held and intake.operation != COMPACT and not self.table.timeline.pending():
            self._compact_idle()
        return done

    def _settle(
        self, done: Instant, records: Sequence[Prepared], statuses: Sequence[WriteStatus]
    ) -> bool:
        """Do the steps after the point of no return; `recover` and `complete` repeat them.

        Returns whether something holds back the archive.
        """
        held = False
        time17 = done.requested_time
        table = self.table
        same = records[0].base == table.cached_file_groups.instants
        if statuses and same and not records[-1].replaced:
            table.remember(time17, statuses)
        try:
            self.progress.record(completed_by(records), time17)
            failpoints.hit("coord.progress.post")
            times = self.prepared.chain(time17)
            staged = staged_of(table.storage, times)
            emit = self.events.emit
            learn(table, time17, statuses, staged, emit)
            self.sealed.remove(checkpoints_of(records))
            failpoints.hit("coord.unseal.post")
            self.prepared.remove(time17)
            sweep(table.storage, times, staged)
            held = tidy_after_commit(table, self.prepared.instant_times(), emit)
            table.mark_swept()
            failpoints.hit("coord.sweep.post")
        except (OSError, HoodieError) as error:  # the commit is valid; the next writer goes on
            self.events.emit("settling_postponed", instant=time17, why=str(error))
        return held

    # --- merging logs -------------------------------------------------------------------------

    def compact(self, pieces: Sequence[FileSlice]) -> Instant | None:
        """Merge slices with their logs into new base files, as one instant."""
        began = time.perf_counter()
        intake = Intake(self.table.config, self.table.schema, COMPACT)
        intake.check(self.table.schema)
        with self.committing(intake) as work:
            work.statuses = fold(work.plan, self.events.emit, pieces)
        self.events.emit(
            "slices_compacted",
            instant=work.instant.requested_time if work.instant else None,
            slices=len(pieces),
            logs=sum(len(piece.logs) for piece in pieces),
            bytes=sum(piece.total_bytes - piece.size_bytes for piece in pieces),
            new_bytes=sum(status.bytes_written for status in work.statuses),
            seconds=round(time.perf_counter() - began, 6),
        )
        return work.instant

    def _compact_idle(self) -> None:
        """Merge idle slices, so that a later commit can archive those that wrote their logs."""
        try:
            pieces, more = idle_slices(self.table)
            if pieces:
                self.compact(pieces)
            if more:
                self.table.archive_at = 0  # the next commit goes on
        except (OSError, HoodieError) as error:  # the commit is valid; a later one tries again
            self.events.emit("archive_postponed", why=str(error))
