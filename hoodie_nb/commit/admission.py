"""Admission: may a checkpoint run, or does the table hold it already, or something that forbids it?

*Semantics*: properties, schema and timeline are those of the checkpoint, never those of the job's
start: another engine may change the table in between. Columns that it has added are null in rows
that lack them.

*Source:* RFC-24 STEP3 "Fault Tolerance".
"""

import contextlib

import pyarrow as pa

from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.neighbours import refuse_neighbours
from hoodie_nb.commit.prepared import checkpoints_of
from hoodie_nb.commit.progress import Checkpoint
from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.table.vanished import refuse_vanished
from hoodie_nb.writer.intake import Intake


class Admission:
    """What one query's checkpoints find when they begin; `given` is the schema of its rows."""

    def __init__(
        self,
        coordinator: WriteCoordinator,
        intake: Intake,
        events: EventLog,
        given: pa.Schema | None,
    ) -> None:
        self._coordinator, self.intake, self._events = coordinator, intake, events
        self.table, self._sealed, self._given = coordinator.table, coordinator.sealed, given
        self._noted: str | None = None

    def recover(self) -> None:
        """Recover the table, and take over what another engine has changed in it."""
        self._coordinator.recover()
        self._adopt()

    def take_over(self) -> None:
        """Read the table's properties, and let the intake follow what has changed in them."""
        self._coordinator.look_again()
        self.table.reload()
        refuse_neighbours(self.table, self._coordinator.prepared.instant_times())
        self._adopt()

    def _adopt(self) -> None:
        """Let the intake have the table's configuration and schema, as they were last read."""
        table = self.table
        intake = self.intake.on(table.config, table.schema)
        if intake != self.intake and self._given is not None:
            intake.check(self._given)
        self.intake = intake

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether the table holds this checkpoint already: committed, prepared or sealed."""
        table = self.table
        known = table.timeline.listing.commit_times
        return self._coordinator.progress.holds(checkpoint, known) or checkpoint in self._kept()

    def _prepared(self) -> set[Checkpoint]:
        return {*checkpoints_of(self._coordinator.prepared.all())}

    def _kept(self) -> set[Checkpoint]:
        """Return the checkpoints that are prepared or sealed."""
        return self._prepared() | {record.checkpoint for record in self._sealed.all()}

    def _admits(self, checkpoint: Checkpoint, previous: str | None) -> bool:
        """Recover the table and return whether the checkpoint is new; raise if it cannot be."""
        self.recover()  # first: it records what a commit held and a failure kept out
        if self.holds(checkpoint):
            self._events.tell("batch_skipped", batch=checkpoint.batch_id)
            return False
        self._check(checkpoint, previous)
        self.note_columns(checkpoint.query_id)
        return True

    def note_columns(self, query_id: str) -> None:
        """Keep the columns that a query begins with, once a job (if that fails, a next time)."""
        if self._noted != query_id:
            given = None if self.intake.operation == "delete" else self._given  # keys may do there
            names = (given or self.intake.schema).names
            with contextlib.suppress(OSError):
                self._coordinator.progress.note_columns(query_id, names)
                self._noted = query_id

    def _check(self, checkpoint: Checkpoint, previous: str | None) -> None:
        if self.intake.operation == "insert":
            self._coordinator.progress.check_insert(checkpoint)
        self.check_held(Checkpoint(checkpoint.query_id, checkpoint.batch_id - 1, previous or ""))

    def check_held(self, checkpoint: Checkpoint) -> None:
        """Raise InvalidTable if a checkpoint that has succeeded is not in the table."""
        if checkpoint.batch_id >= 0:
            table, kept = self.table, checkpoint in self._kept()
            known = table.timeline.listing.commit_times
            try:
                self._coordinator.progress.check_position(checkpoint, known, kept=kept)
            except InvalidTable:
                for pending in table.timeline.pending():
                    refuse_vanished(table, pending)  # it says more
                raise


def intake_of(coordinator: WriteCoordinator, operation: str, query_id: str | None) -> Intake:
    """Return what a query's rows must look like; one that goes on may lack columns added since."""
    table = coordinator.table
    began_with = None if query_id is None else coordinator.progress.columns(query_id)
    gained = frozenset(table.schema.names).difference(began_with or table.schema.names)
    return Intake(table.config, table.schema, operation, optional=gained)
