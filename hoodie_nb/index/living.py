"""The place of a key whose row a log has deleted, in merge-on-read tables.

An index looks into base files, and may find a key where a log has deleted its row. If `insert` has
put another row of that key into another file group, an upsert must change that one: the deleted row
would come back beside it. So for keys that a log of their place deletes, the other file groups with
the key are asked; the first in which the key has a row, if there is one, is its place.

Only the delete blocks of slices with logs are read, and rows only of such keys with copies.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.index_port import Copies, Index, LookupCounts
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.logs.folding import whole_blocks
from hoodie_nb.logs.records import log_rows
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.types.log_blocks import BlockType
from hoodie_nb.types.schema import RECORD_KEY
from hoodie_nb.view.file_groups import FileSlice


class LivingIndex(Index):
    """The index `inner` of one task, without places in which a log has deleted the key."""

    def __init__(self, inner: Index, plan: WritePlan) -> None:
        self._inner = inner
        self._plan = plan
        self._deleted: dict[tuple[str, str], pa.Array] = {}
        self.counts: LookupCounts = inner.counts
        self.copies = inner.copies
        self.remember = inner.remember
        self.save = inner.save

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null for a new key."""
        found = self._inner.locate(partition, keys)
        slices = self._plan.groups.partition(partition)
        at = np.array(
            [
                row
                for file_id, piece in slices.items()
                if piece.logs
                for row in self._buried(piece, keys, found, file_id)
            ],
            dtype=np.int64,
        )
        if not len(at):
            return found
        asked = keys.take(pa.array(at))
        mine = found.take(pa.array(at))
        copies: Copies = self._inner.copies(partition, asked, mine)
        places = mine.to_pylist()
        rows, others = copies
        for row in {*rows.tolist()}:
            ids = {places[row], *(o for r, o in zip(rows, others, strict=True) if r == row)}
            alive = [i for i in sorted(ids) if self._has(slices[i], asked[row])]
            places[row] = alive[0] if alive else places[row]
        moved = found.to_pylist()
        for row, place in zip(at, places, strict=True):
            moved[row] = place
        return pa.array(moved, pa.string())

    def _buried(self, piece: FileSlice, keys: pa.Array, found: pa.Array, file_id: str) -> list[int]:
        """Return the positions of the keys with that place that its logs delete."""
        group = (piece.partition_path, file_id)
        if group not in self._deleted:
            schema = pa.schema([pa.field(RECORD_KEY, pa.string())])
            merge = self._plan.log_merge
            blocks = whole_blocks(self._plan.storage, piece.logs, merge)
            schema = schema if merge.ordering is None else schema.append(merge.ordering)
            deletes = (b for b in blocks if b.kind is BlockType.DELETE)
            parts = [log_rows(b, schema, merge.ordering).column(RECORD_KEY) for b in deletes]
            chunks = [chunk for part in parts for chunk in part.chunks]
            self._deleted[group] = pa.concat_arrays([pa.array([], pa.string()), *chunks])
        here = pc.fill_null(pc.equal(found, file_id), False)
        gone = pc.and_(here, pc.is_in(keys, value_set=self._deleted[group]))
        return np.flatnonzero(gone.to_numpy(zero_copy_only=False)).tolist()

    def _has(self, piece: FileSlice, key: pa.Scalar) -> bool:
        """Whether a key has a row in a slice."""
        schema = pa.schema([pa.field(RECORD_KEY, pa.string())])
        pieces = slice_rows(self._plan.storage, piece, schema, None, self._plan.log_merge)
        return any(pc.any(pc.equal(rows.column(0), key)).as_py() for rows in pieces)
