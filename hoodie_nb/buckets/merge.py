"""Merge of a bucket's rows with the stored rows of its file: updates, inserts, deletes.

Rows of the old slice keep their order, with updates in place and deleted rows left out; new rows
follow in key order. Unchanged rows keep their commit time and sequence number; every row gets the
new file's name.

*Source:* HoodieMergeHandle, HoodieCreateHandle.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.files.base_file import ROW_GROUP, stored_schema
from hoodie_nb.files.column_storage import FEW_VALUES
from hoodie_nb.intake.intake import Intake
from hoodie_nb.rows.columns import DELETE_ALWAYS, OP, STORE, STORE_ALWAYS, THRESHOLD
from hoodie_nb.rows.merge_rule import MergeRule, filled, not_older
from hoodie_nb.rows.ordering import Mask
from hoodie_nb.rows.taking import take_rows
from hoodie_nb.types.schema import (
    COMMIT_TIME,
    FILE_NAME,
    META_COLUMNS,
    PARTITION_PATH,
    RECORD_KEY,
    SEQNO,
)

RowNumbers = Callable[[int], int]
Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class MergeCounts:
    """The rows that a merge inserted, updated and deleted."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0


def merged_schema(intake: Intake) -> pa.Schema:
    """Return the stored schema, with dictionaries for the texts that have few values in a file.

    Those are meta columns and the columns of the partition. Rows are copied several times, and half
    of their bytes are in these columns.
    """
    stored = stored_schema(intake.schema)
    config = intake.config
    if intake.rule.fills:  # Arrow fills no nulls in dictionaries
        return stored
    few = {*FEW_VALUES, *(() if config.times else config.partition_by)} - {intake.ordering}
    kind = pa.dictionary(pa.int32(), pa.string())
    texts = {f.name for f in stored if _is_text(f)}
    return pa.schema([f.with_type(kind) if f.name in few & texts else f for f in stored])


def _is_text(field: pa.Field) -> bool:
    return bool(pa.types.is_string(field.type))


@dataclass(slots=True)
class Merge:
    """One bucket's merge. `incoming` is folded and sorted by key; `stored` the file's schema.

    `late` are the positions of the incoming rows that lost against a row of the old slice.
    """

    incoming: pa.Table
    stored: pa.Schema
    rule: MergeRule
    instant_time: str
    file_name: str
    seqno_prefix: str
    next_row: RowNumbers
    keep_all: bool = False
    counts: MergeCounts = field(default_factory=MergeCounts)
    late: list[Rows] = field(default_factory=list)

    @property
    def dictionaries(self) -> list[str]:
        """Return the columns of the old slice that are read as dictionaries."""
        return [f.name for f in self.stored if pa.types.is_dictionary(f.type)]

    def pieces(self, old: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Yield pieces of the new file, each with the keys that were not in the old slice."""
        seen = np.zeros(self.incoming.num_rows, dtype=bool)
        none = pa.array([], pa.string())
        for piece in old:
            yield self._onto(piece, seen), none
        stores = self._stores(np.arange(self.incoming.num_rows))
        fresh = np.flatnonzero(stores & ~seen)
        for start in range(0, len(fresh), ROW_GROUP):
            rows = self._new_rows(fresh[start : start + ROW_GROUP])
            self.counts.inserts += rows.num_rows
            yield rows, rows.column(RECORD_KEY).combine_chunks()

    def _onto(self, piece: pa.Table, seen: Mask) -> pa.Table:
        """Return an old piece with updates in place and without deleted rows."""
        renamed = self._renamed(piece)
        if self.keep_all:
            return renamed
        at, rows = _matches(piece.column(RECORD_KEY), self.incoming.column(RECORD_KEY))
        if len(at) == 0:
            return renamed
        seen[rows] = True
        wins = self._wins(piece, at, rows)
        if not wins.all():
            self.late.append(rows[~wins])
        fills = self._fills(piece, at[~wins], rows[~wins]) if self.rule.fills else None
        at = at[wins]
        rows = rows[wins]
        gone = ~self._stores(rows)
        self.counts.deletes += int(gone.sum())
        changed = at[~gone]
        new = self._new_rows(rows[~gone])
        if self.rule.fills:
            new = filled(new, take_rows(piece, pa.array(changed)))
        if fills is not None:
            changed = np.append(changed, fills[0])
            new = pa.concat_tables([new, fills[1]])
        self.counts.updates += len(changed)
        source = np.arange(piece.num_rows, dtype=np.int64)
        source[changed] = piece.num_rows + np.arange(len(changed))
        return self._chosen(renamed, new, np.delete(source, at[gone]), same=not gone.any())

    def _chosen(self, old: pa.Table, new: pa.Table, source: Rows, *, same: bool) -> pa.Table:
        """Return the rows at `source` among the old and new ones; `same`: keys stay in place."""
        kept = (RECORD_KEY, FILE_NAME) if same else ()
        names = [name for name in old.column_names if name not in kept]
        together = pa.concat_tables([old.select(names), new.select(names)]).combine_chunks()
        taken = take_rows(together, pa.array(source))
        columns = [(old if f.name in kept else taken).column(f.name) for f in self.stored]
        return pa.Table.from_arrays(columns, schema=self.stored)

    def _fills(self, piece: pa.Table, at: Rows, rows: Rows) -> tuple[Rows, pa.Table]:
        """Return the stored rows whose nulls late rows fill: their places, and what they become."""
        stores = self._stores(rows)
        at = at[stores]
        rows = rows[stores]
        late = take_rows(self.incoming, pa.array(rows))
        before = take_rows(piece, pa.array(at))
        changes = np.zeros(len(at), dtype=bool)
        own = [name for name in self.stored.names if name not in META_COLUMNS]
        for name in own:
            empty = before.column(name).is_null().to_numpy()
            changes |= empty & late.column(name).is_valid().to_numpy()
        at = at[changes]
        rows = rows[changes]
        new = self._new_rows(rows)
        values = filled(take_rows(piece, pa.array(at)).select(own), new.select(own))
        for name in own:
            new = new.set_column(new.schema.get_field_index(name), name, values.column(name))
        return at, new.cast(self.stored)

    def _stores(self, rows: Rows) -> Mask:
        return np.isin(self.incoming.column(OP).to_numpy()[rows], (STORE, STORE_ALWAYS))

    def _wins(self, piece: pa.Table, at: Rows, rows: Rows) -> Mask:
        always = self.incoming.column(OP).to_numpy()[rows] >= DELETE_ALWAYS
        ordering = self.rule.ordering
        if ordering is None:
            return np.ones_like(always)
        beats = THRESHOLD if THRESHOLD in self.incoming.column_names else ordering
        incoming = self.incoming.column(beats).take(pa.array(rows))
        stored = piece.column(ordering).take(pa.array(at))
        wins = always | not_older(incoming.combine_chunks(), stored.combine_chunks())
        return np.asarray(wins, dtype=bool)

    def _renamed(self, piece: pa.Table) -> pa.Table:
        position = piece.schema.get_field_index(FILE_NAME)
        return piece.set_column(
            position, self.stored.field(FILE_NAME), self._repeated(self.file_name, piece.num_rows)
        )

    def _repeated(self, text: str, count: int) -> pa.Array:
        """Return a meta column of one value, in its stored type."""
        same = pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int32), [text])
        return same.cast(self.stored.field(FILE_NAME).type)

    def _new_rows(self, rows: Rows) -> pa.Table:
        """Return incoming rows in stored form, with the meta columns of this instant."""
        count = len(rows)
        if count and rows[-1] - rows[0] == count - 1 and (np.diff(rows) == 1).all():
            chosen = self.incoming.slice(int(rows[0]), count)
            keys = chosen.column(RECORD_KEY).take(pa.array(np.arange(count)))
        else:  # the keys are kept until the file ends: those of a slice would keep all columns
            chosen = take_rows(self.incoming, pa.array(rows))
            keys = chosen.column(RECORD_KEY)
        partition = chosen.column(PARTITION_PATH)[0].as_py() if count else ""
        first = self.next_row(count)
        numbers = pc.cast(pa.array(np.arange(first, first + count)), pa.string())
        meta = {
            COMMIT_TIME: self._repeated(self.instant_time, count),
            SEQNO: pc.binary_join_element_wise(self.seqno_prefix, numbers, ""),
            RECORD_KEY: keys,
            PARTITION_PATH: self._repeated(partition, count),
            FILE_NAME: self._repeated(self.file_name, count),
        }
        columns = [meta[f.name] if f.name in meta else _typed(chosen, f) for f in self.stored]
        return pa.Table.from_arrays(columns, schema=self.stored)


def _matches(stored: pa.ChunkedArray, keys: pa.ChunkedArray) -> tuple[Rows, Rows]:
    """Return the positions of the stored keys that are among `keys`, and where they are there.

    `keys` are sorted: only those in the range of the stored ones are looked at.
    """
    ends = pc.min_max(stored).as_py()
    if ends["min"] is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = bisect_left(keys, ends["min"], key=str)
    end = bisect_right(keys, ends["max"], key=str)
    match = pc.index_in(stored, value_set=keys.slice(first, end - first))
    at = np.flatnonzero(match.is_valid().to_numpy(zero_copy_only=False))
    rows = match.drop_null().combine_chunks().to_numpy(zero_copy_only=False)
    return at, rows.astype(np.int64) + first


def _typed(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    column = rows.column(field.name)
    return column.dictionary_encode() if pa.types.is_dictionary(field.type) else column
