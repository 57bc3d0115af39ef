"""The keys of a new base file, as its writer reports them to the index.

If the previous slice is loaded, only the new keys are reported; otherwise all keys are, and the
file counts as loaded without being read. All keys are also reported again for a file group with
many deleted keys, so that their entries are dropped at the next merge, and for one whose runs are
damaged.

*Source:* RFC-24 "new index"; Hudi's IndexWriter, which also gets its rows from the writers.
"""

import json
from dataclasses import astuple

import numpy as np
import pyarrow as pa

from hoodie_nb.index.hashing import Hashes, hash64
from hoodie_nb.index.loading import is_damaged
from hoodie_nb.index.lookup import manifest_of
from hoodie_nb.index.run import DamagedRun, Entries, Section, SectionView, write_run
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.file_groups import FileSlice
from hoodie_nb.table.storage import Storage
from hoodie_nb.writer.plan import WritePlan

_DEAD_SHARE = 0.25


class KeysToIndex:
    """The keys that the writer of one base file reports."""

    def __init__(self, plan: WritePlan, partition: str, old: FileSlice | None) -> None:
        self._plan, self._partition = plan, partition
        self._hashes: list[Hashes] = []
        self._listens = plan.index == "bloom+state"
        state = manifest_of(plan).partition(partition) if self._listens and old else None
        known = state.loaded(old) if state is not None and old is not None else None
        self.complete = known is None or known.dead > _DEAD_SHARE * known.entries
        if not self.complete and self._listens:
            self.complete = is_damaged(plan.storage, plan.staged, partition)

    def add(self, keys: pa.ChunkedArray, new_keys: pa.Array) -> None:
        """Add the keys of a piece of the file; `new_keys` were not in the previous slice."""
        reported = keys if self.complete else new_keys
        if self._listens and len(reported):
            self._hashes.append(hash64(reported))

    def stage(self, staged: str, file_id: str) -> str | None:
        """Save the keys with the staged file; return their path, for the write status."""
        if not self._listens:
            return None
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        entries = Entries.of(self._partition, file_id, hashes)
        plan, path = self._plan, f"{staged}-keys"
        try:
            section = write_run(plan.storage, path, plan.instant_time, [entries])[0]
        except OSError:  # the file counts as not loaded
            return None
        return json.dumps(astuple(section))


def reported_keys(storage: Storage, status: WriteStatus) -> Entries | None:
    """Return the keys that a file's writer reported; None if there are none or they are damaged."""
    if status.keys is None:
        return None
    section = Section(*json.loads(status.keys))
    try:
        return SectionView(storage.fetch(section.run), section).entries()
    except DamagedRun:
        return None
