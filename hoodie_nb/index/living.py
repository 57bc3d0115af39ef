"""Of several file groups with a key, the one in which it lives: log files delete keys of others.

A delete in a log leaves the key in the base file, where both indexes find it. If `insert` has added
it again, it is in two base files, and only the log says in which it lives. A key that lives nowhere
stays where it was found: a new row of it replaces the delete there.

*Source:* none: Hudi's bloom index tags both, and doubles the row (as of 1.2).
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.index_port import Index
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.logs.folding import whole_blocks
from hoodie_nb.logs.log_name import LogFile
from hoodie_nb.logs.records import log_rows
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.rows.ordering import Mask
from hoodie_nb.types.log_blocks import BlockType
from hoodie_nb.types.schema import RECORD_KEY
from hoodie_nb.view.file_groups import FileSlice

_KEY = pa.field(RECORD_KEY, pa.string())


class LivingIndex:
    """The index `inner` of a merge-on-read table, which prefers file groups where a key lives."""

    def __init__(self, inner: Index, plan: WritePlan) -> None:
        self._inner = inner
        self._plan = plan
        self._deleted: dict[str, pa.Array] = {}
        self.counts = inner.counts
        self.copies = inner.copies
        self.remember = inner.remember
        self.save = inner.save

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null for a new key."""
        ids = self._inner.locate(partition, keys)
        slices = self._plan.groups.partition(partition)
        for file_id in ids.unique().drop_null().to_pylist():
            mine = np.flatnonzero(pc.equal(ids, file_id).fill_null(False))
            dead = mine[self._dead(slices.get(file_id), keys.take(pa.array(mine)))]
            if len(dead):
                ids = self._moved(partition, keys, ids, pa.array(dead))
        return ids

    def _moved(self, partition: str, keys: pa.Array, ids: pa.Array, dead: pa.Array) -> pa.Array:
        """Return the file ids with those of dead keys replaced, if they live elsewhere."""
        slices = self._plan.groups.partition(partition)
        found, others = self.copies(partition, keys.take(dead), ids.take(dead))
        others_of = np.array(others, dtype=object)
        for file_id in sorted(set(others)):
            at = dead.take(pa.array(found[others_of == file_id]))
            alive = pa.array(~self._dead(slices[file_id], keys.take(at)))
            moves = np.zeros(len(ids), dtype=bool)
            moves[at.filter(alive)] = True
            ids = pc.if_else(pa.array(moves), file_id, ids)
        return ids

    def _dead(self, piece: FileSlice | None, keys: pa.Array) -> Mask:
        """Return which keys of a base file the slice's logs have deleted."""
        merge = self._plan.log_merge
        none: Mask = np.zeros(len(keys), dtype=bool)
        if piece is None or not piece.logs:
            return none
        storage = self._plan.storage
        deleted = pa.concat_arrays([self._deletes(log) for log in piece.logs])
        if not pc.any(pc.is_in(keys, deleted)).as_py():
            return none
        live = [r.column(0) for r in slice_rows(storage, piece, pa.schema([_KEY]), None, merge)]
        gone = pc.invert(pc.is_in(keys, pa.chunked_array(live, pa.string()).combine_chunks()))
        return np.asarray(gone.to_numpy(zero_copy_only=False), dtype=np.bool_)

    def _deletes(self, log: LogFile) -> pa.Array:
        """Return the keys in the delete blocks of a log file, which never changes."""
        if log.path not in self._deleted:
            merge = self._plan.log_merge
            wanted = pa.schema([_KEY, *([merge.ordering] if merge.ordering else [])])
            blocks = whole_blocks(self._plan.storage, [log], merge)
            deletes = (block for block in blocks if block.kind is BlockType.DELETE)
            keys = (log_rows(block, wanted, merge.ordering).column(RECORD_KEY) for block in deletes)
            chunks = [chunk for column in keys for chunk in column.chunks]
            self._deleted[log.path] = pa.chunked_array(chunks, pa.string()).combine_chunks()
        return self._deleted[log.path]
