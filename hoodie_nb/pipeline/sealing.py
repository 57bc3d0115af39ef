"""Sealed checkpoints: with `commit_interval` a checkpoint keeps its records and nothing else.

*On disk*: the records of a checkpoint as sorted runs (Arrow files of keyed rows) in the staging
area, and `.hoodie/.hoodie_nb/sealed/<batch>-<fingerprint>.json`, put-if-absent, which names them.
Sealed is durable: the checkpoint may succeed, and its runs are never rolled back. At the interval
all runs are applied as one instant that rewrites each touched file group once.

*Semantics*: the outcome is that of one commit a checkpoint. A delete at 5 followed by an insert at
3 in a later checkpoint must leave the insert, so runs are not simply folded: each key carries a
threshold, the greatest ordering value its rows have beaten so far, and what is stored is replaced
if it is not newer than that.

| before | then | becomes |
| --- | --- | --- |
| row at v, threshold t | row or delete at o ≥ v | that row or delete, threshold max(t, o) |
| row at v, threshold t | row or delete at o < v | as before: it comes late |
| delete, threshold t | row or delete at o | that row or delete, threshold max(t, o) |

**Caveats**: the runs of one interval are composed in the driver's memory. *Source:* design of
spanning instants, RFC-24 STEP3.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb import failpoints
from hoodie_nb.errors import InvalidTable
from hoodie_nb.pipeline.folding import Mask, fold_partitions, not_older
from hoodie_nb.pipeline.intake import DELETE_ALWAYS, OP, STORE, STORE_ALWAYS, THRESHOLD
from hoodie_nb.pipeline.progress import Checkpoint
from hoodie_nb.table.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.table.storage import OURS, STAGED, LocalStorage

FOLDER = f"{OURS}/sealed"


@dataclass(frozen=True, slots=True)
class Sealed:
    """One sealed checkpoint: its identity and the paths of its runs."""

    checkpoint: Checkpoint
    runs: tuple[str, ...]
    sealed_at_ms: int

    @property
    def path(self) -> str:
        """Return where the record lies; names sort in the order of the checkpoints."""
        return f"{FOLDER}/{self.checkpoint.batch_id:012d}-{run_name(self.checkpoint)}.json"


def run_name(checkpoint: Checkpoint) -> str:
    """Return the name under which a checkpoint's runs are staged."""
    return checkpoint.fingerprint[:16]


class SealedRecords:
    """The sealed checkpoints of one table."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage

    def all(self) -> list[Sealed]:
        """Return the sealed checkpoints in their order."""
        found = []
        for entry in self._storage.list_folder(FOLDER):
            path = f"{FOLDER}/{entry.name}"
            try:
                raw = json.loads(self._storage.read_bytes(path))
                checkpoint = Checkpoint(**raw["checkpoint"])
                found.append(Sealed(checkpoint, tuple(raw["runs"]), int(raw["sealed_at_ms"])))
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidTable(
                    f"{path} cannot be read ({error}): restore it; deleting it loses a checkpoint "
                    "that its stream counts as done"
                ) from None
        return found

    def put(self, record: Sealed) -> None:
        """Make a checkpoint sealed, durable."""
        failpoints.hit("coord.seal.pre")
        self._storage.make_folder(FOLDER)
        self._storage.put_if_absent(record.path, json.dumps(asdict(record)).encode())
        failpoints.hit("coord.seal.post")

    def remove(self, records: Sequence[Sealed]) -> None:
        """Forget checkpoints that are prepared or committed by now, and delete their runs."""
        for record in records:
            self._storage.remove(record.path)
        if records:
            self._storage.sync_folder(FOLDER)
        names = {run_name(record.checkpoint) for record in records}
        for entry in self._storage.list_folder(STAGED):
            if entry.name.split("-")[0] in names:
                self._storage.remove_tree(f"{STAGED}/{entry.name}")

    def rows(self, record: Sealed) -> pa.Table:
        """Return a checkpoint's records: keyed rows, one a key."""
        paths = [self._storage.local_path(path) for path in record.runs]
        return pa.concat_tables([pa.ipc.open_file(pa.memory_map(p)).read_all() for p in paths])


def save_run(keyed: pa.Table, ordering: str | None, path: str) -> None:
    """Write keyed rows (in order of partition) as a run, one a key, durable; `path` is local."""
    folded = fold_partitions(keyed, ordering)
    with open(path, "xb") as sink:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, folded.schema, options=options) as writer:
            writer.write_table(folded)
        sink.flush()
        os.fsync(sink.fileno())


def composed(runs: Sequence[pa.Table], ordering: str | None) -> pa.Table:
    """Return the rows of several checkpoints as one set, one row a key, with thresholds."""
    together = with_threshold(runs[0], ordering)
    for run in runs[1:]:
        together = _compose(together, with_threshold(run, ordering), ordering)
    return together


def with_threshold(rows: pa.Table, ordering: str | None) -> pa.Table:
    """Return keyed rows with the threshold they start with: their own ordering value."""
    own = pa.nulls(rows.num_rows, pa.int8()) if ordering is None else rows.column(ordering)
    return rows.append_column(THRESHOLD, own)


def _compose(earlier: pa.Table, later: pa.Table, ordering: str | None) -> pa.Table:
    """Apply the rows of a later checkpoint to those of earlier ones, key by key."""
    position = pc.index_in(_names(later), value_set=_names(earlier))
    again = np.flatnonzero(position.is_valid().to_numpy(zero_copy_only=False))
    at = position.drop_null().combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
    before, after = earlier.take(pa.array(at)), later.take(pa.array(again))
    wins = _wins(before, after, ordering)
    after = _raised(before, after, ordering).filter(pa.array(wins))
    untouched = np.ones(earlier.num_rows, dtype=bool)
    untouched[at[wins]] = False
    new = np.ones(later.num_rows, dtype=bool)
    new[again] = False
    parts = [earlier.filter(pa.array(untouched)), after, later.filter(pa.array(new))]
    return pa.concat_tables(parts).combine_chunks()


def _names(rows: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(rows.column(PARTITION_PATH), rows.column(RECORD_KEY), "\0")


def _operation(rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.int8]]":
    return np.asarray(rows.column(OP).to_numpy(), dtype=np.int8)


def _wins(before: pa.Table, after: pa.Table, ordering: str | None) -> Mask:
    """Return which later rows count: not older than the row before, or behind a delete."""
    if ordering is None:
        return np.ones(after.num_rows, dtype=bool)
    kind = _operation(before)
    deleted = (kind != STORE) & (kind != STORE_ALWAYS)
    newer = not_older(_array(after, ordering), _array(before, ordering))
    return np.asarray(deleted | newer | (_operation(after) == DELETE_ALWAYS), dtype=bool)


def _raised(before: pa.Table, after: pa.Table, ordering: str | None) -> pa.Table:
    """Return the later rows with the threshold of both; what was beaten always stays beaten."""
    always = np.isin(_operation(before), (DELETE_ALWAYS, STORE_ALWAYS))
    stores = np.isin(_operation(after), (STORE, STORE_ALWAYS))
    kind = np.where(always, np.where(stores, STORE_ALWAYS, DELETE_ALWAYS), _operation(after))
    after = after.set_column(after.schema.get_field_index(OP), OP, pa.array(kind, pa.int8()))
    if ordering is None:
        return after
    higher = pa.array(not_older(_array(after, THRESHOLD), _array(before, THRESHOLD)))
    raised = pc.if_else(higher, _array(after, THRESHOLD), _array(before, THRESHOLD))
    return after.set_column(after.schema.get_field_index(THRESHOLD), THRESHOLD, raised)


def _array(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks()
