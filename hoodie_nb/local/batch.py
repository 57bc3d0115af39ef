"""Batch writes in this process: `upsert`, `insert`, `delete` of rows; `Commit`, their result."""

from dataclasses import dataclass, fields

import pyarrow as pa

from hoodie_nb.actions.quarantine import COUNT_KEY
from hoodie_nb.display import card
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.bad_rows import BadRows
from hoodie_nb.intake.input import arrow_rows, is_stream, reader_of
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_as_arrived, saved, write_in_process
from hoodie_nb.local.settling import settled
from hoodie_nb.timeline.commits import OVERWRITES, CommitMetadata
from hoodie_nb.timeline.timeline import Instant


@dataclass(frozen=True, slots=True)
class Commit:
    """A completed commit: times of 17 digits, counts in rows, bytes of the files it wrote.

    `quarantined`: how many rows it refused (see `Table.quarantine`).
    """

    requested_time: str
    completion_time: str
    operation: str
    inserts: int
    updates: int
    deletes: int
    bytes_written: int
    files: int
    quarantined: int = 0

    @classmethod
    def of(cls, table: TableHandle, instant: Instant) -> "Commit":
        """Return the commit in the completed file of `instant`."""
        metadata: CommitMetadata = table.commit_metadata(instant)
        return cls(
            requested_time=instant.requested_time,
            completion_time=table.timeline.completion_time(instant) or instant.requested_time,
            operation=metadata.operation.lower(),
            inserts=metadata.total("numInserts"),
            updates=metadata.total("numUpdateWrites"),
            deletes=metadata.total("numDeletes"),
            bytes_written=metadata.total("totalWriteBytes"),
            files=len(metadata.files),
            quarantined=int(metadata.extra.get(COUNT_KEY, 0)),
        )

    def _repr_html_(self) -> str:
        facts = {f.name.replace("_", " "): getattr(self, f.name) for f in fields(self)}
        return card(f"{self.operation} at {self.requested_time}", facts)


def completed(table: TableHandle, instant: Instant | None) -> Commit | None:
    """Return the commit of an instant that was just completed; None if there was none."""
    return None if instant is None else Commit.of(table, instant)


def write_arrow(
    table: TableHandle,
    data: object,
    operation: str,
    events: EventLog,
    *,
    quarantines: bool = False,
    merges: bool = False,
) -> Commit | None:
    """Write rows of a kind that `input` knows in this process; None if nothing was written.

    `merges`: the table gets the new columns of the rows, and their wider types.
    """
    intake = Intake(table.config, table.schema, operation, quarantines=quarantines)
    bad = BadRows() if quarantines else None
    if merges and is_stream(data):
        reader = reader_of(data)
        data = reader
        intake = intake.merging(reader.schema)
    rows = arrow_rows(data, intake.schema, intake.check, bad)
    if merges:
        intake = intake.merging(rows.schema)
    intake.check_names(rows.schema)
    return write_keyed(table, keyed_as_arrived(rows, intake, bad=bad), intake, bad, events)


def write_keyed(
    table: TableHandle, keyed: pa.Table, intake: Intake, bad: BadRows | None, events: EventLog
) -> Commit | None:
    """Write keyed rows as they arrived, in this process; None if nothing was written."""
    if keyed.num_rows == 0 and not bad and intake.operation != OVERWRITES["table"]:
        return None
    coordinator = settled(table, events)
    with coordinator.committing(intake) as work:
        work.quarantined = saved(bad, work.plan)
        work.statuses = write_in_process(keyed, work.plan, events, arrived=True)
    return completed(table, work.instant)
