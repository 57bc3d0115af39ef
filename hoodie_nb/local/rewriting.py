"""Writes sealed checkpoints, and prepared ones again if the table has changed meanwhile.

*Redo*: if the table has changed since an instant was prepared, its rows are written under a new
instant.

Rows that are not in the instant's files (deletes, and rows that lost against the old slice) are
applied first, checkpoint by checkpoint. The winners (the rows of its commit time in its files) are
applied on top, each step as a checkpoint of the new instant. One record with all checkpoints and
all statuses replaces the old ones, so it can be redone itself; after a crash before that record
exists, the redo starts again.

*Sealed checkpoints*: their runs are composed and written as one instant; they are not redone from
files, since the runs still exist. With a `pause` the table's mutex is released while rows are
composed and files are written, so that a stream seals its next checkpoints meanwhile.

*Source:* TestStreamWriteOperatorCoordinator.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb import failpoints
from hoodie_nb.buckets.global_keys import own_partitions
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import WriteFailed
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import write_in_process
from hoodie_nb.logs.writing import rows_in_log
from hoodie_nb.records.prepared import Prepared, checkpoints_of, merged, quarantined
from hoodie_nb.records.sealing import Sealed
from hoodie_nb.rows.columns import OP, SEQ, STORE, is_delete, with_column
from hoodie_nb.rows.composing import composed
from hoodie_nb.rows.runs import fitted, load_rows
from hoodie_nb.rows.sorting import in_order
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import COMMIT_TIME

Pause = Callable[[str], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Writes rows for the protocol, in this process; see `Rewriter`.

    It can `pause` (`JobHold.paused`) while it reads runs and writes files, and what it writes is
    `kept` for its next instant.
    """

    pause: Pause = lambda name: contextlib.nullcontext()
    kept: KeptFiles | None = None

    def write_sealed(
        self, coordinator: WriteCoordinator, intake: Intake, records: Sequence[Sealed], /
    ) -> Prepared:
        """Write the rows of sealed checkpoints as one instant, even if that changes nothing.

        Raises InvalidTable if one of their runs is damaged.
        """
        storage = coordinator.table.storage
        keyed = intake.keyed_schema
        with self.pause("sealed runs"):
            runs = [
                pa.concat_tables(
                    [keyed.empty_table(), *(load_rows(storage, r, keyed) for r in record.runs)]
                )
                for record in records
            ]
            rows = composed(runs, intake.ordering)
        intake = replace(intake, operation="upsert", composed=True)
        with coordinator.writing(intake, Shape(), keep_empty=True) as work:
            with self.pause(coordinator.begun):
                work.statuses = write_in_process(rows, work.plan, coordinator.events, self.kept)
            if coordinator.dead:
                raise WriteFailed("the job was killed while it wrote sealed checkpoints")
        assert work.result is not None
        return work.result

    def redo(
        self, coordinator: WriteCoordinator, intake: Intake, records: Sequence[Prepared], /
    ) -> Prepared:
        """Write an instant again on the current table; `intake` has the current schema.

        Raises InvalidTable if one of its files is damaged; nothing is changed then.
        """
        old = records[0].instant_time
        last = records[-1]
        storage = coordinator.table.storage
        operation = "insert" if last.operation == "insert" else "upsert"
        intake = replace(intake, operation=operation)
        parts = [*_unwritten(storage, intake, records)]
        if not intake.rule.fills or not parts:  # else all rows of the instant are staged unchanged
            parts.append(_winners(storage, intake, records))
        for pending in coordinator.pending(old):
            coordinator.prepared.note_undone(records[0])
            coordinator.roll_back(pending, keep_staged=True)
        new: list[Prepared] = []
        instant = coordinator.begin(after=old, action=last.pending.action)
        coordinator.events.emit("instant_redone", instant=old, as_instant=instant.requested_time)
        for rows in parts:
            plan = coordinator.plan(instant, intake, Shape(), new)
            statuses = write_in_process(rows, plan, coordinator.events) if rows.num_rows else []
            redone = replace(
                last,
                instant_time=instant.requested_time,
                ordinal=len(new),
                base=plan.groups.instants,
                statuses=tuple(replace(status, part=len(new)) for status in statuses),
            )
            new.append(redone)
        together = replace(
            new[-1],
            ordinal=0,
            statuses=tuple(status for record in new for status in record.statuses),
            checkpoints=tuple(checkpoints_of(records)),
            replaces=old,
            quarantined=quarantined(records),
        )
        failpoints.hit("coord.redo.pre")
        coordinator.prepared.put(together)
        return together


def _unwritten(storage: Storage, intake: Intake, records: Sequence[Prepared]) -> Iterator[pa.Table]:
    """Yield the rows that are not in the instant's files, keyed and sorted, by checkpoint.

    A log that a later file of its group supersedes may have rows that lost there.
    """
    keyed = intake.keyed_schema
    time17 = records[0].instant_time
    published = {status.staged_path for status in merged(records)}
    for record in records:
        for _, part in itertools.groupby(record.statuses, key=lambda status: status.part):
            statuses = list(part)
            files = filter(None, (status.staged_deletes for status in statuses))
            parts = [own_partitions(load_rows(storage, f, keyed), intake) for f in files]
            gone = (s for s in statuses if s.is_log and s.staged_path not in published)
            parts += itertools.chain.from_iterable(_stored(storage, s, keyed, time17) for s in gone)
            yield _in_order([keyed.empty_table(), *parts])


def _stored(
    storage: Storage, status: WriteStatus, keyed: pa.Schema, time17: str
) -> Iterator[pa.Table]:
    """Yield the keyed rows of an instant in one of its staged files."""
    assert status.staged_file is not None
    status.staged_file.verify(storage)
    path = storage.fetch(status.staged_path)
    in_log = rows_in_log(status.path, path) if status.is_log else None
    for rows in [pq.read_table(path, use_threads=False)] if in_log is None else in_log:
        mine = rows.filter(pc.equal(rows.column(COMMIT_TIME), time17))
        mine = mine.append_column(OP, pa.repeat(pa.scalar(STORE, pa.int8()), mine.num_rows))
        mine = mine.append_column(SEQ, pa.repeat(pa.scalar(0, pa.int64()), mine.num_rows))
        yield fitted(mine, keyed, path)


def _winners(storage: Storage, intake: Intake, records: Sequence[Prepared]) -> pa.Table:
    """Return the rows that the instant wrote and that are still in its files, sorted."""
    keyed = intake.keyed_schema
    time17 = records[0].instant_time
    files = (_stored(storage, status, keyed, time17) for status in merged(records))
    parts = itertools.chain.from_iterable(files)
    return _in_order([keyed.empty_table(), *parts])


def _in_order(parts: list[pa.Table]) -> pa.Table:
    """Return rows sorted by key, each key's deletes first.

    A key with copies has a delete in the files of some of its file groups, and in another one the
    row that was folded from all its rows: that one was not older than any of the deletes.
    """
    rows = pa.concat_tables(parts)
    arrival = np.empty(rows.num_rows, dtype=np.int64)
    arrival[np.argsort(~is_delete(rows), kind="stable")] = np.arange(rows.num_rows)
    return in_order(with_column(rows, SEQ, arrival))
