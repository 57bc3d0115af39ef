"""The first file of a new file group: flushes append to it while rows still arrive.

If a bucket has no previous slice, a flush appends a row group here instead of spilling a run. The
flush must have no deletes, and only keys that the file does not have yet. Other flushes are spilled
and merged with this file at the end. The bloom filter is built at the end from the keys, which stay
in memory.

*Source:* RFC-24 STEP3, FlinkCreateHandle.
"""

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb import failpoints
from hoodie_nb.buckets.index_port import WrittenKeys
from hoodie_nb.buckets.merge import Merge
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.rows.columns import OP, STORE
from hoodie_nb.storage.checksums import ChecksummedFile, StoredFile
from hoodie_nb.types.schema import RECORD_KEY


class NewFile:
    """The open staged file `staged` (path from the table's root) of a new group, later `name`.

    `written_keys` receives the keys that are written to it.
    """

    def __init__(self, plan: WritePlan, staged: str, name: str, written_keys: WrittenKeys) -> None:
        self._plan = plan
        self.staged = staged
        self.written_keys = written_keys
        self._sink = ChecksummedFile(plan.storage.open_new(staged))
        self._writer = plan.base_file(self._sink, name)
        self._keys: list[pa.Array] = []
        self.rows = 0

    def accepts(self, folded: pa.Table) -> bool:
        """Whether rows can be appended: no deletes, and no key that is in the file already."""
        if self._plan.intake.adds or folded.num_rows == 0:
            return True
        if not pc.all(pc.equal(folded.column(OP), STORE)).as_py():
            return False
        keys = folded.column(RECORD_KEY)
        first = keys[0].as_py()  # both are sorted
        earlier = (seen for seen in self._keys if seen[-1].as_py() >= first)
        return not any(pc.any(pc.is_in(keys, value_set=seen)).as_py() for seen in earlier)

    def append(self, merge: Merge) -> None:
        """Write rows (a merge without a previous slice) as a separate row group."""
        if merge.incoming.num_rows == 0:
            return
        for rows, keys in merge.pieces(iter(())):
            self._writer.write(rows)
            self._keys.append(keys)
            self.written_keys.add(rows.column(RECORD_KEY), keys)
        self._writer.write_group()
        self.rows = self._writer.rows

    def close(self) -> StoredFile:
        """Write the footer and return the file, durable."""
        self._writer.close()
        self._sink.close()
        failpoints.hit("writer.data.post")
        return self._sink.stored(self.staged)

    def abandon(self) -> None:
        """Close the file unfinished, after its task has failed."""
        self._writer.abandon()
        self._sink.abandon()
