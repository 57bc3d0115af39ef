"""A batch that is written while its process waits for its turn: in the turn it is only committed.

*Work flow*: a place in the line → the view of now, and an instant's time T, noted in the place →
files are staged for T without the lock → the turn begins, with recovery. If nothing has come since
but cleans, savepoints, and commits before T that left the slices of the batch's partitions as they
were, T is requested and its files are published. Else they are deleted, and the batch is written
again.

*Semantics*: nobody's writing overlaps with another one's commit, so instants complete in the order
of their times, and nothing is rolled back: T is not on the timeline before the turn. Where batches
meet in the same partitions, fewer and fewer are written ahead: the work would be in vain.

*Fault tolerance*: recovery spares the staged files of a place whose process lives, and deletes
those of others. Any error is left to the turn, which writes the batch again.

**Caveats**: on local disks, for rows that this process writes, not with global keys, and from
version 8 on: in layout 1 no completion time tells a reader at a time of day that T came later.
"""

import contextlib
from collections.abc import Callable, Mapping

import pyarrow as pa

from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import HoodieError
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.input import arrow_rows, is_stream
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_as_arrived, write_in_process
from hoodie_nb.local.settling import settle
from hoodie_nb.records.prepared import Writing
from hoodie_nb.rows.runs import partitions_of
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.timeline.commits import WriteStatus, action_of
from hoodie_nb.timeline.timeline import Instant, Listing, State
from hoodie_nb.view.file_groups import FileSlice

_OPERATIONS = ("upsert", "insert", "bulk_insert", "delete")
_WRITES = ("commit", "deltacommit")
_HARMLESS = ("clean", "savepoint")  # no row moves, and the newest slices stay
_LONGEST_PAUSE = 32
_LEFT = (
    *(HoodieError, OSError, pa.ArrowException, MemoryError, AssertionError),
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)


class Luck:
    """How often batches of one table are written ahead: less and less often if it is in vain."""

    def __init__(self) -> None:
        self._pause = 0
        self._next = 1

    def tries(self) -> bool:
        """Whether the next batch may be written ahead."""
        self._pause -= 1
        return self._pause < 0

    def note(self, *, fits: bool) -> None:
        """Note how it went."""
        self._pause = 0 if fits else self._next
        self._next = 1 if fits else min(2 * self._next, _LONGEST_PAUSE)


class Ahead:
    """One batch, which may be written before the turn of its process; at its end: `close`."""

    def __init__(
        self, table: TableHandle, data: object, operation: str, events: EventLog, luck: Luck
    ) -> None:
        self._table = table
        self._data = data
        self._operation = operation
        self._events = events
        self._luck = luck
        self._coordinator: WriteCoordinator | None = None
        self._time17 = ""
        self._plan: WritePlan | None = None
        self._seen = Listing()
        self._slices: dict[str, Mapping[str, FileSlice]] = {}  # by partition, and file id
        self._statuses: list[WriteStatus] = []
        self.intake: Intake | None = None  # once all is staged

    @property
    def is_possible(self) -> bool:
        """Whether this batch can be written ahead: its rows may be read again, if need be."""
        table = self._table
        again = not (is_stream(self._data) or hasattr(self._data, "__next__"))
        remote = is_remote(table.storage.root) or hasattr(self._data, "sparkSession")
        return again and not remote and self._operation in _OPERATIONS and self._luck.tries()

    def write(self, note: Callable[[str], None]) -> None:
        """Stage the batch, after `note` has got the 17 digits of its instant.

        What else a handler of a signal raises, such as a limit of time, would not come again.
        """
        try:
            self._write(note)
        except _LEFT as error:  # the turn writes the batch again, and raises
            if isinstance(error, TimeoutError) and error.errno is None:
                raise

    def _write(self, note: Callable[[str], None]) -> None:
        table = self._table
        table.reload()
        with table.timeline.listed_once():
            self._seen = table.timeline.refresh()
            intake = Intake(table.config, table.schema, self._operation)
            if table.config.global_keys or table.timeline.layout.number == 1:
                return
            if self._seen.pending_of("rollback", "restore"):
                return
            rows = arrow_rows(self._data, intake.schema, intake.check, None)
            intake.check_names(rows.schema)
            keyed = keyed_as_arrived(rows, intake)
            if keyed.num_rows == 0:
                return
            self._time17 = table.timeline.next_time()
            note(self._time17)
            action = action_of(self._operation, merge_on_read=table.config.merge_on_read)
            instant = Instant(self._time17, action)
            self._coordinator = WriteCoordinator(table, self._events)
            self._plan = self._coordinator.plan(instant, intake, Shape())
            groups = table.checked_groups  # a listener that writes gets others
            self._slices = {p: groups.partition(p) for p in partitions_of(keyed)}
            self._statuses = write_in_process(keyed, self._plan, self._events, arrived=True)
            self.intake = intake

    def commit(self) -> Writing | None:
        """In the turn: commit what is staged; None if the batch has to be written again."""
        plan = self._plan
        coordinator = self._coordinator
        if plan is None or coordinator is None or self.intake is None:
            self.close()  # what an error has left: the disk may be full
            return None
        coordinator.applies = self._time17  # recovery spares it
        settle(coordinator)
        fits = self.fits(plan, self.intake)
        self._luck.note(fits=fits)
        self._events.emit("instant_written_ahead", instant=self._time17, fits=fits)
        if not fits:
            self.close()
            return None
        with coordinator.committing(self.intake, ahead=plan) as work:
            work.statuses = self._statuses
        self._time17 = ""
        return work

    def fits(self, plan: WritePlan, intake: Intake) -> bool:
        """Whether the files are what the batch would write now."""
        table = self._table
        now = table.timeline.refresh()
        if (table.config, table.schema) != (intake.config, intake.schema):
            return False
        if not {*plan.groups.instants[-1:]} <= {*now.commit_times}:
            return False  # undone; or archived, perhaps with what came next
        new = [i for key, i in now.latest.items() if self._seen.latest.get(key) != i]
        commits = [i for i in new if i.action not in _HARMLESS]
        if any(i.action not in _WRITES or i.state is not State.COMPLETED for i in commits):
            return False
        if any(i.requested_time == self._time17 for i in now.instants):
            return False
        if max(now.commit_times, default="") > self._time17:
            return False
        groups = table.groups_to_write()
        if any(groups.partition(path) != known for path, known in self._slices.items()):
            return False
        staged = [status.staged_path for status in self._statuses]
        return all(table.storage.entry(path) for path in (plan.staged, *filter(None, staged)))

    def close(self) -> None:
        """Delete what was staged and is not committed; for errors, the next write does it."""
        if self._coordinator is None or self._coordinator.dead:
            return
        if self._time17 and self._plan is not None:
            with contextlib.suppress(HoodieError, OSError):
                self._table.storage.remove(self._plan.staged, tree=True)
