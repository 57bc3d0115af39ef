"""The rows of a file slice: those of its base file, merged with its logs.

*Work flow*: the logs are folded to one entry per key (see `logs.folding`). Then the base file is
read in pieces: a row whose key has an entry is replaced, removed or kept, by the table's merge
rule. The rows that are only in the logs come last. A filter is applied to merged rows.

*Semantics*: an entry meets the first copy of its key in the base only; `insert` may have made more.
A row group of the base may be left out only if what excludes it holds for every version of its
rows: a condition on the record key. Else the log's older row would show in place of a newer one.

*Source:* FileGroupRecordBuffer.hasNextBaseRecord, KeyBasedFileGroupRecordBuffer.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb.files.base_file import iterate_rows, open_base_file
from hoodie_nb.logs.folding import LogMerge, always_wins, folded, ordinal
from hoodie_nb.reading.filters import RowFilter
from hoodie_nb.rows.columns import OP, STORE
from hoodie_nb.rows.merge_rule import not_older
from hoodie_nb.rows.ordering import Mask
from hoodie_nb.rows.taking import take_rows
from hoodie_nb.storage.storage import Storage
from hoodie_nb.types.schema import RECORD_KEY
from hoodie_nb.view.file_groups import FileSlice


def slice_rows(
    storage: Storage,
    piece: FileSlice,
    schema: pa.Schema,
    kept: RowFilter | None,
    merge: LogMerge,
) -> Iterator[pa.Table]:
    """Yield the rows of a slice that the filter keeps, in pieces, with the given columns.

    The rows of a table without columns are lost. Raises InvalidTable naming the file if one is
    damaged, lost, or has what is not read.
    """
    if not piece.logs:
        yield from file_rows(storage.fetch(piece.path), schema, kept)
        return
    needed = [pa.field(RECORD_KEY, pa.string()), *([merge.ordering] if merge.ordering else [])]
    needs = kept.needs if kept is not None else []
    wanted = pa.schema({f.name: f for f in (*schema, *needs, *needed)}.values())
    entries = _Entries(*folded(storage, piece.logs, wanted, merge), merge)
    for rows in _merged(storage, piece, wanted, kept, entries):
        yield (rows if kept is None else kept.kept(rows)).select(schema.names)


def file_rows(path: str, schema: pa.Schema, kept: RowFilter | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a base file that the filter keeps, in pieces, with the given columns."""
    file = open_base_file(path)
    if kept is None:
        yield from iterate_rows(file, schema, path)
        return
    wanted = pa.schema({field.name: field for field in (*schema, *kept.needs)}.values())
    for rows in iterate_rows(file, wanted, path, kept.row_groups(file, path)):
        yield kept.kept(rows).select(schema.names)


def _merged(
    storage: Storage,
    piece: FileSlice,
    schema: pa.Schema,
    kept: RowFilter | None,
    entries: "_Entries",
) -> Iterator[pa.Table]:
    """Yield the rows of the base file after the merge, and those that are only in the logs."""
    if piece.file_name:
        path = storage.fetch(piece.base_path)
        file = open_base_file(path)
        for rows in iterate_rows(file, schema, path, _row_groups(file, path, kept)):
            yield entries.merged(rows)
    yield entries.left()


def _row_groups(file: pq.ParquetFile, path: str, kept: RowFilter | None) -> Sequence[int] | None:
    """Return the row groups to read: some of them if only the record key decides; None: all."""
    if kept is None or not {*kept.needs.names} <= {RECORD_KEY, kept.key}:
        return None
    return kept.row_groups(file, path)


class _Entries:
    """The newest entries of a slice's logs, and which of them have met a row of the base file.

    An entry is a number; `_places` says where in `_logs`, which has all rows of the logs, it is.
    """

    def __init__(self, logs: pa.Table, places: npt.NDArray[np.int64], merge: LogMerge) -> None:
        taken = pa.array(places)
        self._logs = logs.drop_columns(OP)
        self._places = places
        self._keys = logs.column(RECORD_KEY).take(taken).combine_chunks()
        self._ordering = merge.ordering
        self._stores = logs.column(OP).to_numpy()[places] == STORE
        self._always = always_wins(logs)[places]
        self._met: Mask = np.zeros(len(places), dtype=bool)

    def left(self) -> pa.Table:
        """Return the rows of keys that the base file does not have."""
        return take_rows(self._logs, pa.array(self._places[self._stores & ~self._met]))

    def merged(self, rows: pa.Table) -> pa.Table:
        """Return the next rows of the base file, in their order, as the entries change them."""
        found = pc.index_in(rows.column(RECORD_KEY), self._keys).combine_chunks()
        at = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        entries = found.drop_null().to_numpy().astype(np.int64)
        entries, first = np.unique(entries, return_index=True)
        at = at[first]
        new = ~self._met[entries]
        entries = entries[new]
        at = at[new]
        self._met[entries] = True
        wins = self._wins(rows, at, entries)
        return self._replaced(rows, at[wins], entries[wins])

    def _wins(
        self, rows: pa.Table, at: npt.NDArray[np.int64], entries: npt.NDArray[np.int64]
    ) -> Mask:
        """Return which of the entries win over the rows of the base at those positions."""
        if self._ordering is None:
            return np.ones(len(at), dtype=bool)
        name = self._ordering.name
        stored = rows.column(name).take(pa.array(at))
        incoming = self._logs.column(name).take(pa.array(self._places[entries]))
        newer = not_older(ordinal(incoming), ordinal(stored))
        return newer | self._always[entries]

    def _replaced(
        self, rows: pa.Table, at: npt.NDArray[np.int64], entries: npt.NDArray[np.int64]
    ) -> pa.Table:
        """Return the rows with those at some positions replaced by entries, or removed."""
        if not len(at):
            return rows
        takes = np.arange(rows.num_rows)
        logs = self._logs
        places = self._places[entries]
        if 2 * len(at) < logs.num_rows:  # the last take copies all of the rows that it takes from
            logs = take_rows(logs, pa.array(places))
            places = np.arange(len(at))
        takes[at] = np.where(self._stores[entries], rows.num_rows + places, -1)
        return take_rows(pa.concat_tables([rows, logs]), pa.array(takes[takes >= 0]))
