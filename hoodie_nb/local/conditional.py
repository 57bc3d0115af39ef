"""Executing `update`, `delete`, `merge`: finds files with matches, rewrites them in one commit.

*Work flow*, under the table's lock: the columns of the conditions (and the keys, if rows of a
source are compared with them) are read, file by file; each file that has rows to change is
rewritten as a whole, a few at a time, in one commit. New rows of a merge are then added to small
files or new ones, as in a second checkpoint of the instant: onto the rewritten files, whose earlier
version is not published. If nothing changes there is no instant.

*Semantics*: as in SQL, a row for which the condition is null does not match. A row is changed where
it is stored, without the index and the merge rule. So it changes whatever its ordering value is,
and keeps that value unless it is set; setting a column to null replaces its value (even with
`merge_mode="partial"`); and if a key was inserted twice, only the matching rows change. A text in
`set` is always SQL, never stored as it is: `"'x'"` is the string x, and `"x"` the column x.

*Fault tolerance*: like any write. No other writer can commit between the read and the commit: a
change by an engine that does not know the lock is noticed before the commit (ConcurrentWriter).

In a merge-on-read table the rows are those of the merged slices, which become base files.

**Caveats**: a small file with changed rows that also takes new rows is written twice. *Source:*
Hudi's DeleteHoodieTableCommand, UpdateHoodieTableCommand, MergeIntoHoodieTableCommand.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.merge import MergeCounts
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan, log_merge_of
from hoodie_nb.buckets.rewrite import rewrite
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import InvalidInput
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.files.base_file import open_base_file, read_footer, stored_schema
from hoodie_nb.index.file_keys import KeysToIndex
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.batch import Commit, completed
from hoodie_nb.local.clauses import Clause, NewValues, Numbers, chosen
from hoodie_nb.local.in_process import keyed_in_order, write_pieces
from hoodie_nb.local.settling import settled
from hoodie_nb.machine import threads
from hoodie_nb.reading.filters import RowFilter
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.records.prepared import one_per_file
from hoodie_nb.rows.columns import with_column
from hoodie_nb.rows.ordering import Mask, runs_of
from hoodie_nb.rows.taking import PART_ROWS, parts_of
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import COMMIT_TIME, PARTITION_PATH, RECORD_KEY, SEQNO
from hoodie_nb.view.file_groups import FileGroups, FileSlice

_NO_ROWS = pa.schema([(RECORD_KEY, pa.string()), (PARTITION_PATH, pa.string())]).empty_table()
_ALL_FILES = ("not_matched_by_source", "any")


def change_rows(
    table: TableHandle, where: object, values: Mapping[str, Any] | None, events: EventLog
) -> Commit | None:
    """Delete the rows for which `where` is true, or set `values` in them; None if there are none.

    The caller holds the table. Raises InvalidConfig for a condition or columns that do not fit,
    InvalidInput for a value that does not.
    """
    coordinator = settled(table, events)
    intake = Intake(table.config, table.schema, "delete" if values is None else "upsert")
    intake.check(intake.schema)
    stored = stored_schema(intake.schema)
    condition = RowFilter.of(where, stored)
    new = None if values is None else NewValues.of(values, intake, stored)
    return apply(coordinator, Changes(intake, [Clause("any", condition, new)]))


def apply(coordinator: WriteCoordinator, changes: "Changes") -> Commit | None:
    """Rewrite the files with rows to change and add new rows, in one commit; None for neither."""
    table = coordinator.table
    with ThreadPoolExecutor(threads(table.options.max_file_bytes)) as pool:
        pieces = changes.pieces(table.groups_to_write())
        hits = pool.map(partial(changes.concern, table.storage), pieces)
        found = [piece for piece, hit in zip(pieces, hits, strict=True) if hit]
        new = changes.new_rows()
        if not found and not new.num_rows:
            return None
        with coordinator.committing(changes.intake) as work:
            rewritten = partial(changes.rewritten, work.plan)
            work.statuses = list(pool.map(rewritten, found, range(len(found))))
            if new.num_rows:
                work.statuses = _with_rows(work.plan, work.statuses, new, coordinator.events)
    return completed(table, work.instant)


def _with_rows(
    plan: WritePlan, written: Sequence[WriteStatus], keyed: pa.Table, events: EventLog
) -> list[WriteStatus]:
    """Add new rows to the table that an instant's files make, and return all its statuses."""
    groups = plan.groups.with_commit(plan.instant_time, written, staged=True)
    logs = plan.intake.config.merge_on_read  # a file may still have a key that its logs delete
    intake = replace(plan.intake, operation="upsert" if logs else "insert")  # no row has their keys
    plan = replace(plan, intake=intake, groups=groups, ordinal=plan.ordinal + 1)
    return one_per_file([*written, *write_pieces(parts_of(keyed, PART_ROWS), plan, events)])


@dataclass(slots=True)
class Changes:
    """The clauses of one statement, and what its rows have been found to match.

    `source` are the rows of a merge with key and partition path, one per key, sorted by partition
    and key (by key, if keys are global). `seen` are those whose key the table has.
    """

    intake: Intake
    clauses: Sequence[Clause]
    source: pa.Table = field(default_factory=lambda: _NO_ROWS)
    spans: Mapping[str, tuple[int, int]] = field(init=False)
    seen: Mask = field(init=False)

    def __post_init__(self) -> None:
        paths = self.source.column(PARTITION_PATH).combine_chunks()
        self.spans = {paths[a].as_py(): (a, b) for a, b in runs_of(paths)}
        self.seen = np.zeros(len(paths), dtype=bool)

    def pieces(self, groups: FileGroups) -> list[FileSlice]:
        """Return the slices that may have rows to change, or keys of the source."""
        if self._of(*_ALL_FILES) or self.intake.config.global_keys:
            return list(groups)
        slices = (groups.partition(path) for path in self.spans)
        return [piece for found in slices for _, piece in sorted(found.items())]

    def concern(self, storage: Storage, piece: FileSlice) -> bool:
        """Whether a file has rows to change; notes which rows of the source it has."""
        found = False
        needs = {n for clause in self.clauses for n in clause.needs}
        if not self._of(*_ALL_FILES) and not self._may_match(storage, piece):
            return False
        if self.source.num_rows or not needs:  # a constant needs no column
            needs.add(RECORD_KEY)
        columns = pa.schema([f for f in stored_schema(self.intake.schema) if f.name in needs])
        for rows in slice_rows(storage, piece, columns, None, log_merge_of(self.intake)):
            numbers = self._matches(piece, rows)
            self.seen[numbers[numbers >= 0]] = True
            for clause, at in self._changed(rows, numbers):
                found = True
                self._check_partition(clause, piece, numbers[at])
            if found and not self.source.num_rows:
                break
        return found

    def new_rows(self) -> pa.Table:
        """Return the rows to insert, keyed and sorted: those of keys that the table lacks."""
        found = self._chosen("not_matched", ~self.seen, np.arange(len(self.seen)))
        parts = [self._inserted(clause, numbers) for clause, numbers in found]
        rows = pa.concat_tables([self.intake.schema.empty_table(), *parts])
        return keyed_in_order(rows, self.intake) if parts else rows

    def rewritten(self, plan: WritePlan, piece: FileSlice, number: int) -> WriteStatus:
        """Return the status of a file's rewrite, the `number`-th of the instant."""
        attempt = TaskAttempt(task=number)
        counts = MergeCounts()
        whole = self.intake.config.merge_on_read  # keys that are gone must not be found
        keys = KeysToIndex(plan, piece.partition_path, None if whole else piece)

        def change(rows: pa.Table) -> pa.Table:
            order = np.arange(rows.num_rows)
            kept = np.ones(rows.num_rows, bool)
            parts = [rows]
            numbers = self._matches(piece, rows)
            for clause, at in self._changed(rows, numbers):
                if clause.values is None:
                    kept[at] = False
                    counts.deletes += len(at)
                    continue
                order[at] = sum(part.num_rows for part in parts) + np.arange(len(at))
                sides = {"target": (rows, at), "source": (self.source, numbers[at])}
                new = clause.values.onto(chosen(rows, at), clause.kind, sides).cast(rows.schema)
                self.intake.refuse_unordered(new)
                parts.append(_stamped(new, plan.instant_time, number, counts.updates))
                counts.updates += len(at)
            if kept.all() and len(parts) == 1:
                return rows
            return pa.concat_tables(parts).take(pa.array(order[kept]))

        return rewrite(plan, piece, attempt, change, counts=counts, keys=keys)

    def _changed(self, rows: pa.Table, numbers: Numbers) -> Iterator[tuple[Clause, Numbers]]:
        """Yield each clause with the positions of the rows that it changes."""
        yield from self._chosen("matched", numbers >= 0, numbers, rows)
        yield from self._chosen("not_matched_by_source", numbers < 0, numbers, rows)
        yield from self._chosen("any", numbers < 0, numbers, rows)

    def _chosen(
        self, kind: str, left: Mask, numbers: Numbers, rows: pa.Table = _NO_ROWS
    ) -> Iterator[tuple[Clause, Numbers]]:
        """Yield each clause with the positions, of those that are left, where it is first true.

        `numbers` are the rows of the source for each position, -1 for none.
        """
        at = np.flatnonzero(left)
        for clause in self._of(kind):
            if len(at):
                hit = clause.hits({"target": (rows, at), "source": (self.source, numbers[at])})
                if hit.any():
                    yield clause, at[hit]
                at = at[~hit]

    def _inserted(self, clause: Clause, numbers: Numbers) -> pa.Table:
        """Return rows of the source as rows of the table; columns that are not set are null."""
        assert clause.values is not None
        config = self.intake.config
        schema = self.intake.schema
        given = chosen(self.source, numbers)
        fixed = {*config.record_key, *config.partition_by}
        nulls = schema.empty_table().take(pa.nulls(len(numbers), pa.int64()))
        columns = [(given if name in fixed else nulls).column(name) for name in schema.names]
        rows = pa.Table.from_arrays(columns, schema=schema)
        return clause.values.onto(rows, clause.kind, {"source": (self.source, numbers)})

    def _check_partition(self, clause: Clause, piece: FileSlice, numbers: Numbers) -> None:
        """Raise InvalidInput if a whole row of the source would stay in another partition."""
        if clause.values is None or not clause.values.whole:
            return
        paths = self.source.column(PARTITION_PATH).take(pa.array(numbers))
        for at in numbers[pc.not_equal(paths, piece.partition_path).to_numpy()]:
            raise InvalidInput(
                f"when_matched_update: the row of key {self.source.column(RECORD_KEY)[at]} is in "
                f"another partition ({piece.partition_path}) than in the source: name the columns "
                "to set, or use upsert, which moves rows; nothing was written"
            )

    def _keys(self, partition: str) -> tuple[int, pa.Array]:
        """Return the keys of the source that may be in a partition, and the row of the first."""
        keys = self.source.column(RECORD_KEY).combine_chunks()
        anywhere = self.intake.config.global_keys
        begin, end = (0, len(keys)) if anywhere else self.spans.get(partition, (0, 0))
        return begin, keys[begin:end]

    def _matches(self, piece: FileSlice, rows: pa.Table) -> Numbers:
        """Return the number of the source's row with the key of each row, -1 for none."""
        begin, keys = self._keys(piece.partition_path)
        if not len(keys):
            return np.full(rows.num_rows, -1)
        found = pc.index_in(rows.column(RECORD_KEY), value_set=keys)
        numbers = pc.fill_null(found, -1).to_numpy().astype(np.int64)
        return np.where(numbers < 0, -1, numbers + begin)

    def _may_match(self, storage: Storage, piece: FileSlice) -> bool:
        """Whether a file's bloom filter admits a key of the source; its logs have no other keys."""
        _, keys = self._keys(piece.partition_path)
        path = storage.fetch(piece.base_path, piece.size_bytes)
        bloom = read_footer(open_base_file(path)).bloom()
        return bool(len(keys)) and (bloom is None or bool(bloom.might_contain(keys).any()))

    def _of(self, *kinds: str) -> list[Clause]:
        return [clause for clause in self.clauses if clause.kind in kinds]


def _stamped(rows: pa.Table, instant_time: str, task: int, first: int) -> pa.Table:
    """Return stored rows with the commit time and sequence numbers of this instant."""
    numbers = pc.cast(pa.array(np.arange(first, first + rows.num_rows)), pa.string())
    sequence = pc.binary_join_element_wise(f"{instant_time}_{task}_", numbers, "")
    rows = with_column(rows, COMMIT_TIME, pa.repeat(instant_time, rows.num_rows))
    return with_column(rows, SEQNO, sequence)
