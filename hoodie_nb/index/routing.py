"""KeyRouter: keys are looked up before the shuffle (pipeline `direct`); to which task a row goes.

*Work flow*: each row gets the file id of its key, null for a new key. A known key goes to the task
of its file group, a new key to a task by the hash of its text. That task alone assigns the new key,
to one of its small files or to a new bucket. Both choices are functions of the plan and the key,
so all rows of a key reach one task. A delete is sent to every file group that has its key.

*Source:* beyond RFC-24, whose STEP2 shuffles twice: by record key, then by file id.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from hoodie_nb.buckets.index_port import Copies, Index, LookupCounts
from hoodie_nb.buckets.plan import WritePlan, balanced_tasks
from hoodie_nb.index.file_keys import hash64
from hoodie_nb.rows.columns import FILE_ID, is_delete
from hoodie_nb.rows.taking import Indices, take_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY


class KeyRouter:
    """One task's router: keyed rows in any order, out by task, with their file ids."""

    def __init__(self, plan: WritePlan, index: Index) -> None:
        self._plan = plan
        self._index = index
        self._inserts = plan.intake.adds
        self._tasks_of = balanced_tasks(plan.groups, plan.shape.tasks)

    def route(self, keyed: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield (task, rows) for keyed rows; the rows have a column with the file id, or null."""
        names = keyed.column(PARTITION_PATH).combine_chunks().dictionary_encode()
        codes = names.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        begins = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1))
        keys = keyed.column(RECORD_KEY).combine_chunks()
        deletes = is_delete(keyed)
        found = [
            self._routed(name, keys, order[begins[n] : begins[n + 1]], deletes)
            for n, name in enumerate(names.dictionary.to_pylist())
        ]
        rows, ids, tasks = zip(*found, strict=True)
        together = np.concatenate(tasks)
        by_task = np.argsort(together, kind="stable")
        taken = take_rows(keyed, pa.array(np.concatenate(rows)[by_task]))
        ids = pa.concat_arrays(ids).take(pa.array(by_task))
        ends = np.searchsorted(together[by_task], np.arange(self._plan.shape.tasks + 1))
        for task in range(self._plan.shape.tasks):
            count = ends[task + 1] - ends[task]
            if count:
                own = ids.slice(ends[task], count).dictionary_encode()
                yield task, taken.slice(ends[task], count).append_column(FILE_ID, own)

    def _routed(
        self, partition: str, keys: pa.Array, rows: Indices, deletes: np.ndarray
    ) -> tuple[Indices, pa.Array, Indices]:
        """Return row numbers, file ids and tasks for the rows of one partition."""
        own = keys.take(pa.array(rows))
        if self._inserts:  # every row is a new record
            return rows, pa.nulls(len(rows), pa.string()), self._by_hash(own)
        ids = self._index.locate(partition, own)
        tasks = self._by_hash(own)
        known = ids.is_valid().to_numpy(zero_copy_only=False)
        tasks[known] = self._by_file_group(partition, ids.drop_null())
        removed = np.flatnonzero(deletes[rows])
        if len(removed) == 0:
            return rows, ids, tasks
        mine = pa.array(removed)
        at, copies = self._index.copies(partition, own.take(mine), ids.take(mine))
        others = pa.array(copies, pa.string())
        return (
            np.append(rows, rows[removed[at]]),
            pa.concat_arrays([ids, others]),
            np.append(tasks, self._by_file_group(partition, others)),
        )

    def _by_hash(self, keys: pa.Array) -> Indices:
        return (hash64(keys) % np.uint64(self._plan.shape.tasks)).astype(np.int64)

    def _by_file_group(self, partition: str, ids: pa.Array) -> Indices:
        encoded = ids.dictionary_encode()
        numbers = [self._tasks_of[partition, i] for i in encoded.dictionary.to_pylist()]
        tasks: Indices = np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy()]
        return tasks


class Routed(Index):
    """The index after the shuffle: a key without a file id is new."""

    def __init__(self) -> None:
        self.counts = LookupCounts()

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return null for each key."""
        return pa.nulls(len(keys), pa.string())

    def copies(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> Copies:
        """Return nothing: the deletes of copies have been routed."""
        return np.empty(0, np.int64), []
