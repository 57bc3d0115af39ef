"""Recovery: a table is brought to rest before a write, and what a failed write left is undone.

*Fault tolerance*: `recover` finishes begun rollbacks, rolls back the pending commit (unless another
engine's heartbeat is fresh), records progress that a crash kept from being recorded, and sweeps
what dead runs staged. It may be repeated and may crash itself.

*Source:* RFC-24 STEP1 "Fault Tolerance", StreamWriteOperatorCoordinator.
"""

import uuid

from hoodie_nb.commit.instants import own_commit
from hoodie_nb.commit.neighbours import refuse_neighbours
from hoodie_nb.commit.notes import CommitNotes
from hoodie_nb.commit.prepared import Prepared, PreparedRecords
from hoodie_nb.commit.progress import ProgressRecords
from hoodie_nb.commit.sealing import SealedRecords
from hoodie_nb.events import EventLog
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.publish import sweep_all
from hoodie_nb.table.rollback import finish_rollbacks, roll_back
from hoodie_nb.table.timeline import COMMITS, Instant
from hoodie_nb.table.vanished import refuse_vanished


class Recovery:
    """The records of one table, and what brings it to rest; the caller holds the writer lock."""

    def __init__(self, table: TableHandle, events: EventLog) -> None:
        self.table = table
        self.progress = ProgressRecords(table.storage)
        self.prepared = PreparedRecords(table.storage)
        self.sealed = SealedRecords(table.storage)
        self._events = events
        self._nonce, self._begun = uuid.uuid4().hex[:12], ""
        self.notes = CommitNotes(table, self.progress, self.sealed)
        self.dead = False  # as its process would be: it tidies nothing up

    def completed(self, instant_time: str) -> Instant | None:
        """Return the completed instant of that time, None if there is none."""
        return self.table.timeline.completed(instant_time)

    def pending(self, instant_time: str) -> list[Instant]:
        """Return the pending instants of that time: one, or none."""
        pending = self.table.timeline.pending()
        return [instant for instant in pending if instant.requested_time == instant_time]

    def look_again(self) -> None:
        """Forget which records there are; whoever holds the lock may have changed them since."""
        self.prepared.refresh()
        self.sealed.refresh()

    def catch_up(self) -> None:
        """Read the table's properties, and record the progress that a crash kept out."""
        table = self.table
        table.reload(to_write=True)
        refuse_neighbours(table, self.prepared.instant_times())
        self.notes.catch_up()

    def recover(self) -> None:
        """Bring the table to rest: nothing is pending or staged but what is prepared or sealed."""
        self.look_again()
        self.catch_up()
        self.tidy_up()

    def tidy_up(self) -> None:
        """Do what `recover` does once the records are caught up."""
        self.notes.drop_applied(self.prepared)
        table, kept = self.table, self.prepared.instant_times()
        self.sealed.drop_applied()
        sealed = {name for seal in self.sealed.all() for name in seal.folders}
        self.finish_rollbacks()
        for pending in table.timeline.pending():
            if pending.action in COMMITS and pending.requested_time not in kept:
                refuse_vanished(table, pending)
                self.roll_back(pending)
        table.make_writable(self._events.tell)
        if not table.is_swept():
            others = (pending.requested_time for pending in table.timeline.pending())
            sweep_all(table.storage, keep={*kept, *others, *sealed})

    def finish_rollbacks(self) -> None:
        """Complete the rollbacks that somebody began."""
        for undone in finish_rollbacks(self.table.storage, self.table.timeline):
            self._events.tell("instant_rolled_back", instant=undone.requested_time)

    def roll_back(self, instant: Instant, *, keep_staged: bool = False) -> None:
        """Undo a pending commit; its staged files stay if they are to be applied anew."""
        table = self.table
        published = roll_back(table.storage, table.timeline, instant, keep_staged=keep_staged)
        self._events.tell(
            "instant_rolled_back", instant=instant.requested_time, published=published
        )

    def undo_unprepared(self) -> None:
        """Roll back the pending commit that a failed checkpoint left, unless others share it."""
        if self.dead:
            return
        kept = self.prepared.instant_times()
        own = self._own()
        for pending in self.table.timeline.pending():
            mine = pending.requested_time == self._begun or pending == own
            if mine and pending.requested_time not in kept:
                self.roll_back(pending)

    def _own(self) -> Instant | None:
        return own_commit(self.table.storage, self.table.timeline, self._nonce)

    def _undone(self, error: BaseException, result: Prepared | None = None) -> str:
        """Undo a failed write as far as the disk lets us; return the message that says so.

        The record of `result` goes first: what is prepared is completed by the next start.
        """
        then = "it is rolled back"
        try:
            if result is not None and result.checkpoints and not self.dead:
                self.prepared.remove(result.instant_time)
            self.undo_unprepared()
        except OSError as second:
            then = f"undoing it failed too ({second}) and is left to the next write"
        return f"{error}; {then}, write the data again once the cause is gone"
