"""A checkpoint's start: recovers the table, adds new columns, skips what was committed before.

*Semantics*: properties, schema and timeline are read at each checkpoint, not at the job's start:
another engine may change the table in between. Columns that it has added are null in rows that lack
them.

*Source:* RFC-24 STEP3 "Fault Tolerance".
"""

import contextlib
from collections.abc import Collection

import pyarrow as pa

from hoodie_nb.actions.rollback import being_undone
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition.keys import ignores_case, refuse_colliding_folders
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.lost import refuse_vanished
from hoodie_nb.evidence.other_engines import refuse_other_engines
from hoodie_nb.index.job_keys import check_instants
from hoodie_nb.intake.intake import Intake
from hoodie_nb.records.prepared import checkpoints_of
from hoodie_nb.records.progress import UNDONE, Checkpoint


class Admission:
    """The checks at the start of one query's checkpoints; `given` is the schema of its rows."""

    def __init__(
        self, coordinator: WriteCoordinator, intake: Intake, given: pa.Schema | None
    ) -> None:
        self._coordinator = coordinator
        self.intake = intake
        self._events = coordinator.events
        self.table = coordinator.table
        self._sealed = coordinator.sealed
        self._given = given
        self._noted: str | None = None

    def recover(self) -> None:
        """Recover the table, and adopt the changes that another engine made to it."""
        self._coordinator.recover()
        self._adopt()

    def take_over(self) -> None:
        """Read the table's properties, and update the intake if they have changed."""
        self._coordinator.forget_records()
        self.table.reload()
        refuse_other_engines(self.table, self._coordinator.prepared.instant_times())
        self.table.drop_metadata_table()
        self._coordinator.notes.take_mark()  # others in this process may have applied seals
        self._adopt()

    def look_again(self) -> None:
        """List the timeline again and take over what others have changed meanwhile."""
        self.table.timeline.refresh()
        self.take_over()

    def _adopt(self) -> None:
        """Update the intake with the table's configuration and schema, as last read."""
        table = self.table
        intake = self.intake.on(table.config, table.schema)
        if intake != self.intake and self._given is not None:
            intake.check(self._given)
        self.intake = intake

    def contains(self, checkpoint: Checkpoint) -> bool:
        """Whether this checkpoint is already in the table: committed, prepared or sealed."""
        commits = self.table.timeline.commits_in_table()
        recorded = self._coordinator.progress.contains(checkpoint, commits)
        return recorded or checkpoint in self.durable()

    def _prepared(self) -> set[Checkpoint]:
        return {*checkpoints_of(self._coordinator.prepared.all())}

    def durable(self) -> set[Checkpoint]:
        """Return the checkpoints that are prepared or sealed."""
        return self._prepared() | {record.checkpoint for record in self._sealed.all()}

    def oldest_ms(self) -> int | None:
        """Return when the oldest checkpoint that waits was sealed; None if there is none."""
        return next((record.sealed_at_ms for record in self._sealed.all()), None)

    def seals_of(self, query_id: str | None) -> bool:
        """Whether there are sealed checkpoints, all of that query."""
        queries = {record.checkpoint.query_id for record in self._sealed.all()}
        return queries == {query_id}

    def _admits(self, checkpoint: Checkpoint, previous: str | None) -> bool:
        """Recover the table and return whether the checkpoint is new; raise if it cannot be."""
        self.recover()  # first: it records progress that a failure left out
        if self.contains(checkpoint):
            self._events.emit("batch_skipped", batch=checkpoint.batch_id)
            return False
        if self.intake.operation == "insert":
            self.check_insert(checkpoint)
        self.check_held(Checkpoint(checkpoint.query_id, checkpoint.batch_id - 1, previous or ""))
        self.note_columns(checkpoint.query_id)
        return True

    def note_columns(self, query_id: str) -> None:
        """Save the columns with which a query starts, once per job (retried after a failure)."""
        if self._noted != query_id:
            given = None if self.intake.operation == "delete" else self._given  # keys suffice
            names = (given or self.intake.schema).names
            with contextlib.suppress(OSError):
                self._coordinator.progress.note_columns(query_id, names)
                self._noted = query_id

    def check_held(self, checkpoint: Checkpoint) -> None:
        """Raise InvalidTable if a successful checkpoint is not in the table."""
        if checkpoint.batch_id >= 0:
            progress = self._coordinator.progress
            durable = self.durable()
            try:
                commits = self.table.timeline.commits_in_table()
                progress.check_position(checkpoint, commits, durable=durable)
            except InvalidTable:
                undone = being_undone(self.table)
                for pending in self.table.timeline.pending():
                    if pending.requested_time not in undone:
                        refuse_vanished(self.table, pending)  # its message is more specific
                raise

    def check_insert(self, checkpoint: Checkpoint) -> None:
        """Raise InvalidConfig if a new checkpoint could insert rows of a later one again."""
        commits = self.table.timeline.commits_in_table()
        durable = self.durable()
        self._coordinator.progress.check_insert(checkpoint, commits, durable=durable)

    def check_state(self, query_id: str, shape: Shape) -> None:
        """Raise InvalidTable if `index="state"` lacks keys that this query has written."""
        if shape.index == "state":
            entries = self._coordinator.progress.entries(query_id)
            written = [e.instant_time for e in entries if e.instant_time is not None]
            undone = next((time for time in written if time.startswith(UNDONE)), None)
            if undone:
                raise InvalidTable(
                    f"{self.table.storage.root}: batches of this query were {undone}, and the "
                    "state of index='state' does not know where their keys are now: continue "
                    "with index='bloom+state'"
                )
            check_instants(shape.state_folder, written)

    def check_folders(self, partitions: Collection[str]) -> None:
        """Raise InvalidInput if rows to be sealed could not be published with the other rows."""
        known = {path for seal in self._sealed.all() for path in seal.partitions}
        if not known.issuperset(partitions) and ignores_case(self.table.storage):
            stored = self.table.file_groups().slices
            refuse_colliding_folders(self.table.storage, partitions, known, stored)


def intake_of(
    coordinator: WriteCoordinator,
    operation: str,
    query_id: str | None,
    *,
    quarantines: bool = False,
) -> Intake:
    """Return a query's intake; a resumed query may lack columns that were added since."""
    table = coordinator.table
    began_with = None if query_id is None else coordinator.progress.columns(query_id)
    gained = frozenset(table.schema.names).difference(began_with or table.schema.names)
    return Intake(table.config, table.schema, operation, optional=gained, quarantines=quarantines)
