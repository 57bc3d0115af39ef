"""Recovery before a write, after a crash: what is rolled back, kept as prepared, swept away.

*Fault tolerance*: `recover` finishes pending restores before anything else, then pending rollbacks,
rolls back the pending commit (unless another engine's heartbeat is fresh), records progress that a
crash left unrecorded, and deletes the staged files of dead runs. It is idempotent and may crash
itself.

*Source:* RFC-24 STEP1 "Fault Tolerance", StreamWriteOperatorCoordinator.
"""

import uuid
from collections.abc import Collection
from dataclasses import replace

from hoodie_nb.actions.publish import sweep_all
from hoodie_nb.actions.restore_plan import notes_by, restores, undone_by
from hoodie_nb.actions.rollback import (
    drop_late,
    finish_rollbacks,
    planned_rollbacks,
    roll_back,
)
from hoodie_nb.actions.savepoints import drop_pending_savepoints
from hoodie_nb.commit.archiving import finish_archiving
from hoodie_nb.commit.cleaning import finish_cleans
from hoodie_nb.commit.instant_generator import own_commits
from hoodie_nb.commit.publishing import folder_of
from hoodie_nb.commit.restoring import finish_restores
from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.lost import refuse_vanished
from hoodie_nb.evidence.other_engines import refuse_other_engines, refuse_unwritable
from hoodie_nb.forked import renew_in_child
from hoodie_nb.lock.lock import in_use
from hoodie_nb.lock.waiting import noted
from hoodie_nb.records.notes import CommitNotes
from hoodie_nb.records.prepared import Prepared, PreparedRecords, checkpoints_of, quarantined
from hoodie_nb.records.progress import Checkpoint, ProgressRecords
from hoodie_nb.records.row_folders import row_folders_in_use
from hoodie_nb.records.sealing import SealedRecords
from hoodie_nb.storage.storage import STAGED
from hoodie_nb.timeline.timeline import COMMITS, Instant, State


class Recovery:
    """The records and the recovery of one table; the caller holds the writer lock."""

    def __init__(self, table: TableHandle, events: EventLog) -> None:
        self.table = table
        self.progress = ProgressRecords(table.storage, table.rules)
        self.prepared = PreparedRecords(table.storage, table.rules)
        self.sealed = SealedRecords(table.storage, table.rules, self.progress.find)
        self.events = events
        self._restored: set[str] = set()  # restores whose checkpoints are marked
        self._undone: set[str] = set()  # the commits that they have undone
        self._nonce = uuid.uuid4().hex[:12]
        self.begun = ""
        self.notes = CommitNotes(table, self.progress, self.sealed)
        self.dead = False  # no cleanup: a forked child, or the simulation of a dead process
        self.applies = ""  # the row folder, query or instant whose staged files this write applies
        renew_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: clean nothing up; the instant is its parent's."""
        self.dead = True

    def pending(self, instant_time: str) -> list[Instant]:
        """Return the pending instants of that time: one or none."""
        pending = self.table.timeline.pending()
        return [instant for instant in pending if instant.requested_time == instant_time]

    def forget_records(self) -> None:
        """Clear the cache of records; another holder of the lock may have changed them."""
        self.table.rules.refresh()
        self.prepared.refresh()
        self.sealed.refresh()

    def open_records(self) -> list[Prepared]:
        """Return the prepared checkpoints of the open instant, which the next one joins.

        Records of a completed instant may remain if the cleanup failed.
        """
        done = self.table.timeline.listing.commit_times
        return [r for r in self.prepared.all() if r.instant_time not in done]

    def lost_seals(self) -> list[Checkpoint]:
        """Return the checkpoints of the open instant whose seals, which it needs, are lost."""
        sealed = {record.checkpoint for record in self.sealed.all()}
        applied = checkpoints_of(r for r in self.open_records() if r.from_seals)
        missing = (checkpoint for checkpoint in applied if checkpoint not in sealed)
        return [c for c in missing if self.progress.find(c) is None]  # else it was applied before

    def record_empty(self, checkpoint: Checkpoint) -> None:
        """Record a checkpoint without rows durably, after its query's earlier ones.

        If one of them is prepared, this one joins its instant: recorded as progress, it would hide
        the loss of that record, since a query's newest checkpoint stands for all before it.
        """
        records = [r for r in self.open_records() if not r.from_seals]  # seals are enough
        if any(c.query_id == checkpoint.query_id for r in records for c in r.checkpoints):
            last = records[-1]
            ordinal = records[-1].ordinal + 1
            empty = replace(last, statuses=(), quarantined=(), replaces=None)
            self.prepared.put(replace(empty, ordinal=ordinal, checkpoints=(checkpoint,)))
            self.events.emit("instant_prepared", instant=last.instant_time, checkpoint=ordinal)
        else:
            self.progress.record([checkpoint], None)

    def catch_up(self) -> None:
        """Read the table's properties, and record progress that a crash left unrecorded.

        Records of commits that another engine's restore undid are removed. Checkpoints that a
        restore undid, and that are prepared or sealed again, are not undone.
        """
        table = self.table
        table.reload_to_write()
        finish_archiving(table)
        drop_late(table)
        self._finish_restores()
        refuse_other_engines(table, self.prepared.instant_times())
        self.notes.catch_up()
        self._drop_undone()
        again = [*checkpoints_of(r for r in self.prepared.all() if not r.from_seals)]
        self.progress.forget_undone([*again, *(seal.checkpoint for seal in self.sealed.all())])

    def _finish_restores(self) -> None:
        """Complete pending restores, and mark the checkpoints that restores have undone."""
        table = self.table
        if table.timeline.listing.pending_of("restore"):
            refuse_unwritable(table)
            table.drop_metadata_table()
            finish_restores(table, self.events.emit)
        self._note_undone()

    def _note_undone(self) -> None:
        for restore in restores(self.table):
            done = restore.state is State.COMPLETED
            if restore.requested_time not in self._restored:
                self.sealed.take_undone(notes_by(self.table, restore))
            if done and restore.requested_time not in self._restored:
                undone = dict.fromkeys(self._undone_by(restore), restore.requested_time)
                if undone:
                    self._record_prepared(undone)
                    self.progress.note_undone(undone)
                self._restored.add(restore.requested_time)
                self._undone |= undone.keys()

    def _record_prepared(self, undone: Collection[str]) -> None:
        """Record the checkpoints of undone commits whose writer died before it could do so."""
        for record in self.prepared.all():
            if record.instant_time in undone:
                new = [c for c in record.checkpoints if self.progress.find(c) is None]
                self.progress.record(new, record.instant_time)

    def _drop_undone(self) -> None:
        """Remove what another engine's restore left of undone commits: they do not come back.

        Their streams send the rows again; ours settles what is prepared before it undoes anything.
        """
        for time17 in sorted(self.prepared.instant_times() & self._undone):
            records = [r for r in self.prepared.all() if r.instant_time == time17]
            self.sealed.remove(checkpoints_of(r for r in records if r.from_seals))
            self.prepared.remove(time17)

    def _undone_by(self, restore: Instant) -> frozenset[str]:
        """Return what was undone; nothing for a rollback that cannot be read.

        Its checkpoints are not in the table nevertheless: the timeline and the archive say so.
        """
        try:
            return undone_by(self.table, restore)
        except InvalidTable:
            if restore.action == "rollback":
                return frozenset()
            raise

    def recover(self) -> None:
        """Recover the table: afterwards only prepared and sealed work is pending or staged."""
        self.forget_records()
        self.catch_up()
        self.tidy_up()

    def tidy_up(self) -> None:
        """Do what `recover` does once the records are caught up."""
        self.notes.drop_applied(self.prepared)
        table = self.table
        used = in_use(self.table.storage)
        kept = self.prepared.instant_times() | used
        self.sealed.drop_applied()
        sealed = {name for seal in self.sealed.all() for name in seal.folders}
        self._drop_metadata_table(kept)
        self.finish_rollbacks()
        for pending in self._abandoned(kept):
            refuse_vanished(table, pending)
            self.roll_back(pending)
        table.make_writable(self.events.emit)
        drop_pending_savepoints(table)
        finish_cleans(table, self.events.emit)
        swept = table.is_swept()
        if not used and not swept and not self.lost_seals():  # else files in use would be deleted
            others = (pending.requested_time for pending in table.timeline.pending())
            refused = {folder_of(file) for file in quarantined(self.prepared.all())}
            staged = [entry.name for entry in table.storage.list_folder(STAGED)]
            rows = {self.applies, *row_folders_in_use(staged, table.clock, self.applies)}
            rows |= {*noted(table.storage)} - {""}
            keep = {*kept, *others, *sealed, *refused, *rows}
            self.sealed.note_swept(name for name in staged if name not in keep)
            sweep_all(table.storage, staged, keep=keep)

    def _abandoned(self, kept: Collection[str]) -> list[Instant]:
        pending = self.table.timeline.pending()
        return [i for i in pending if i.action in COMMITS and i.requested_time not in kept]

    def _drop_metadata_table(self, kept: Collection[str]) -> None:
        """Drop it before any rollback, which it would miss, but after all that may be refused."""
        table = self.table
        if table.drops_metadata_table:
            undone = {plan.instant.requested_time for plan in planned_rollbacks(table)}
            for pending in self._abandoned({*kept, *undone}):
                refuse_vanished(table, pending)
            table.drop_metadata_table()

    def finish_rollbacks(self) -> None:
        """Complete all pending rollbacks."""
        for undone in finish_rollbacks(self.table):
            self.events.emit("instant_rolled_back", instant=undone.requested_time)
        self._note_undone()

    def roll_back(self, instant: Instant, *, keep_staged: bool = False) -> None:
        """Roll back a pending commit; `keep_staged` keeps its files to apply them again."""
        published = roll_back(self.table, instant, keep_staged=keep_staged)
        self.events.emit("instant_rolled_back", instant=instant.requested_time, published=published)

    def undo_unprepared(self) -> None:
        """Roll back the pending commit of a failed checkpoint, unless others share it."""
        if self.dead:
            return
        kept = self.prepared.instant_times()
        own = self._own()
        for pending in self.table.timeline.pending():
            mine = pending.requested_time == self.begun or pending in own
            if mine and pending.requested_time not in kept:
                self.roll_back(pending)

    def _own(self) -> list[Instant]:
        return own_commits(self.table.storage, self.table.timeline, self._nonce)

    def _roll_back_failed(self, error: BaseException, result: Prepared | None = None) -> str:
        """Roll back a failed write as far as possible; return the error message.

        The record of `result` is deleted first: the next start would complete it.
        """
        then = "it was rolled back"
        try:
            if result is not None and result.checkpoints and not self.dead:
                self.prepared.remove(result.instant_time)
            self.undo_unprepared()
        except OSError as second:
            then = f"the rollback failed too ({second}) and is left to the next write"
        return f"{error}; {then}, write the data again when the cause is fixed"
