"""Repairs that rewrite base files: a wrong bloom filter or key range, duplicate keys, lost rows.

*Work flow*: one commit rewrites each base file whose footer index is wrong (a bloom filter or key
range that misses keys of its file would let an upsert store them again) and, with `deduplicate`,
each file that has a losing row of a duplicated key. All other rows stay unchanged, including their
meta columns. With `accept_loss`, a file group whose newest file is lost continues with the rows of
the previous file, or with none.

*Semantics*: of the rows of one key in a partition (in the table, if its keys are global), the one
with the greatest ordering value is kept; of equal ones, the one committed last. A table with unique
keys loses no row.

*Fault tolerance*: like any write: it recovers the table first, and a crash rolls it back.

**Caveats**: the keys of one partition (of the table, if they are global) are in memory at a time.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hoodie_nb.buckets.merge import MergeCounts
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan
from hoodie_nb.buckets.rewrite import rewrite
from hoodie_nb.checks.archived_files import lost_groups
from hoodie_nb.checks.fsck import index_objection
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.lost import lost_files
from hoodie_nb.files.base_file import (
    open_base_file,
    read_footer,
    read_keys,
    read_rows,
    stored_schema,
)
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.settling import settled
from hoodie_nb.rows.columns import SEQ
from hoodie_nb.rows.merge_rule import WholeRow
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import COMMIT_TIME, RECORD_KEY
from hoodie_nb.view.file_groups import FileSlice, Group

Rows = npt.NDArray[np.int64]
_NONE: Rows = np.empty(0, np.int64)
_ROW = "_hoodie_nb_row"  # no column of a table begins like that


def repair(
    table: TableHandle, events: EventLog, *, deduplicate: bool = False, accept_loss: bool = False
) -> None:
    """Recover the table and rewrite what is wrong."""
    table.fitness.accepts_loss = accept_loss
    table.forget_file_groups()
    try:
        coordinator = settled(table, events)
        intake = Intake(table.config, table.schema)
        intake.check(table.schema)
        lost = set[Group]()
        if accept_loss:
            found = lost_files(table, table.file_groups(), table.timeline.listing.commits)
            lost = {(folder, name.file_id) for folder, name in found} | lost_groups(table)
            lost |= {(s.partition_path, s.file_id) for s in table.file_groups() if _lacks(s)}
        with coordinator.committing(intake) as work:
            work.statuses = list(_rewritten(work.plan, deduplicate, lost))
    finally:
        table.fitness.accepts_loss = False


def _rewritten(plan: WritePlan, deduplicate: bool, lost: set[Group]) -> Iterator[WriteStatus]:
    number = 0
    whole = plan.intake.config.global_keys
    for _, each in itertools.groupby(plan.groups, lambda s: "" if whole else s.partition_path):
        pieces = list(each)
        based = [piece for piece in pieces if piece.file_name]
        keys = {p.base_path: read_keys(plan.storage.fetch(p.base_path)) for p in based}
        losers = _losers(plan, pieces, keys) if deduplicate else {}
        for piece in pieces:
            path = piece.base_path
            gone = losers.get(path, _NONE)
            wrong = (piece.partition_path, piece.file_id) in lost
            if piece.file_name:
                footer = read_footer(open_base_file(plan.storage.fetch(path)))
                wrong = wrong or index_objection(footer, keys[path]) is not None
            if len(gone) or wrong:
                yield _rewrite(plan, piece, number, gone)
                number += 1
    for partition, file_id in sorted(lost):
        if file_id not in plan.groups.partition(partition):
            empty = FileSlice(partition, file_id, "", "", 0)
            yield _rewrite(plan, empty, number, _NONE)
            number += 1


def _lacks(piece: FileSlice) -> bool:
    """Whether a log of a slice is lost."""
    return any(log.missing_of for log in piece.logs)


def _losers(
    plan: WritePlan, pieces: list[FileSlice], keys: Mapping[str, pa.Array]
) -> dict[str, Rows]:
    """Return by path the positions of rows that lose against another row of their key."""
    together = pa.concat_arrays([keys[piece.path] for piece in pieces])
    codes = together.dictionary_encode().indices.to_numpy()
    doubled = np.flatnonzero(np.bincount(codes, minlength=1)[codes] > 1)
    if len(doubled) == 0:
        return {}
    rows = pa.concat_tables(_versions(plan, piece) for piece in pieces)
    rows = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows))).take(pa.array(doubled))
    rows = rows.sort_by([(COMMIT_TIME, "ascending"), (_ROW, "ascending")])
    rows = rows.append_column(SEQ, pa.array(np.arange(rows.num_rows)))
    lost = np.setdiff1d(doubled, WholeRow(plan.intake.ordering).fold(rows).column(_ROW).to_numpy())
    begins = np.cumsum([0, *(len(keys[piece.path]) for piece in pieces)])
    return {
        piece.path: lost[(lost >= begin) & (lost < end)] - begin
        for piece, begin, end in zip(pieces, begins[:-1], begins[1:], strict=True)
    }


def _versions(plan: WritePlan, piece: FileSlice) -> pa.Table:
    """Return the columns that decide between rows: key, commit time, ordering value."""
    names = filter(None, [RECORD_KEY, COMMIT_TIME, plan.intake.ordering])
    schema = pa.schema([stored_schema(plan.intake.schema).field(name) for name in names])
    return read_rows(plan.storage.fetch(piece.path), schema)


def _rewrite(plan: WritePlan, piece: FileSlice, number: int, lost: Rows) -> WriteStatus:
    """Rewrite a file without the rows at the positions `lost`, with a new footer index."""
    position = 0
    counts = MergeCounts(deletes=len(lost))
    piece = replace(piece, logs=tuple(log for log in piece.logs if not log.missing_of))

    def kept(rows: pa.Table) -> pa.Table:
        nonlocal position
        keep = ~np.isin(np.arange(position, position + rows.num_rows), lost)
        position += rows.num_rows
        return rows.filter(pa.array(keep))

    return rewrite(plan, piece, TaskAttempt(task=number), kept, counts=counts)
