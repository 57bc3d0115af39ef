"""FileIdAssigner: a file id for each row: the known key's, or a small or new file with room.

*Work flow*: keyed rows arrive sorted by partition and key. Each key is looked up once in the index:
known → its file group; new → a small file of this task while it has room, else the task's open new
bucket until that is full, else a new file id. The output rows have `_hoodie_nb_file_id` and the
number of the task that writes that file group.

*Semantics*: a pure function of (set of rows, write profile, instant, task). A new file id is
generated from the instant, partition, task and a counter, until one hashes to this task. So no two
tasks feed the same file group, and a repeated task makes the same choices. With random ids, Spark
aborts the job when it has to repeat a stage.

**Caveats**: a delete of an unknown key takes up room like an insert; the writer drops it.
*Source:* RFC-24 STEP2, BucketAssignFunction, BucketAssigner.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb import failpoints
from hoodie_nb.buckets.index_port import Index
from hoodie_nb.buckets.plan import WritePlan, balanced_tasks, file_id_of, task_of
from hoodie_nb.buckets.profile import ASSUMED_BYTES, SmallFile, small_files
from hoodie_nb.events import Emit
from hoodie_nb.rows.columns import FILE_ID, TASK, is_delete
from hoodie_nb.rows.ordering import encoded, first_of_run, runs_of
from hoodie_nb.rows.taking import take_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY


def assigned_schema(plan: WritePlan) -> pa.Schema:
    """Return the output columns of the assigner."""
    extra = [pa.field(FILE_ID, pa.string()), pa.field(TASK, pa.int32())]
    return pa.schema([*plan.intake.keyed_schema, *extra])


class BucketAssigner:
    """One task's room: its small files and its open new bucket in each partition."""

    def __init__(self, plan: WritePlan, task: int, emit: Emit) -> None:
        self._plan = plan
        self._task = task % plan.id_tasks
        self._emit = emit
        self._record_bytes = plan.record_bytes or ASSUMED_BYTES
        self._open: dict[str, list[SmallFile]] = {}
        self._drawn = 0
        routed = plan.shape.pipeline.routed  # the task that draws a file id also writes the file
        self._tasks_of = balanced_tasks(plan.groups, plan.shape.tasks) if routed else {}

    def take(self, partition: str, records: int) -> Iterator[tuple[str, int]]:
        """Yield (file id, rows) until `records` new rows are assigned."""
        if partition not in self._open:
            self._open[partition] = list(self._small_files(partition))
        buckets = self._open[partition]
        while records > 0:
            if not buckets:
                buckets.append(self._new_bucket(partition))
            given = min(records, buckets[0].room)
            buckets[0].room -= given
            records -= given
            yield buckets[0].file_id, given
            if buckets[0].room == 0:
                buckets.pop(0)

    def _small_files(self, partition: str) -> Iterator[SmallFile]:
        plan = self._plan
        found = plan.groups.partition(partition).values()
        slices = [piece for piece in found if not plan.may_append(piece)]
        if plan.shape.pipeline.routed:
            mine = (s for s in slices if self._tasks_of[partition, s.file_id] == self._task)
            return small_files(mine, plan.options, self._record_bytes, 0, 1)
        return small_files(slices, plan.options, self._record_bytes, self._task, plan.id_tasks)

    def _new_bucket(self, partition: str) -> SmallFile:
        while True:
            plan = self._plan
            name = f"{plan.instant_time}.{plan.ordinal}/{partition}/{self._task}/{self._drawn}"
            self._drawn += 1
            file_id = file_id_of(name)
            if plan.shape.pipeline.routed or task_of(file_id, plan.id_tasks) == self._task:
                break
        self._emit("bucket_assigned", partition=partition, file_id=file_id, task=self._task)
        room = max(1, self._plan.options.max_file_bytes // self._record_bytes)
        return SmallFile(file_id, room)


class FileIdAssigner:
    """One assigner task: rows in, rows with file ids out."""

    def __init__(self, plan: WritePlan, index: Index, task: int, emit: Emit) -> None:
        self._plan = plan
        self._index = index
        self._buckets = BucketAssigner(plan, task, emit)
        self._last: tuple[str, str, str] | None = None
        failpoints.hit("assigner.start")

    def assign(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield each piece of keyed rows (in order of partition and key) with its file ids."""
        schema = assigned_schema(self._plan)
        for piece in pieces:
            if piece.num_rows:
                ids = self._file_ids(piece)
                piece = piece.select(self._plan.intake.keyed_schema.names)
                for rows, theirs in ((piece, ids), self._deletes_of_copies(piece, ids)):
                    if rows.num_rows:
                        columns = [*rows.columns, theirs, self._tasks(theirs)]
                        yield pa.Table.from_arrays(columns, schema=schema)

    def _deletes_of_copies(self, piece: pa.Table, ids: pa.Array) -> tuple[pa.Table, pa.Array]:
        """Return the deletes of keys that other file groups have, too, with those file ids."""
        deletes = np.flatnonzero(is_delete(piece))
        if len(deletes) == 0 or self._plan.intake.adds:
            return piece.slice(0, 0), ids[:0]
        rows = [np.empty(0, np.int64)]
        theirs = list[str]()
        chosen = piece.select([PARTITION_PATH, RECORD_KEY]).take(pa.array(deletes))
        partitions, keys = (column.combine_chunks() for column in chosen.columns)
        for a, b in runs_of(partitions):
            mine = ids.take(pa.array(deletes[a:b]))
            at, found = self._index.copies(partitions[a].as_py(), keys[a:b], mine)
            rows.append(deletes[a:b][at])
            theirs += found
        return take_rows(piece, pa.array(np.concatenate(rows))), pa.array(theirs, pa.string())

    def _file_ids(self, piece: pa.Table) -> pa.Array:
        """Return the file ids of all rows; routed rows of known keys have theirs."""
        if FILE_ID not in piece.column_names:
            return self._located(piece)
        given = piece.column(FILE_ID).combine_chunks().cast(pa.string())
        if given.null_count == 0:
            return given
        new = pc.is_null(given)
        return pc.replace_with_mask(given, new, self._located(piece.filter(new)))

    def _located(self, piece: pa.Table) -> pa.Array:
        partitions = piece.column(PARTITION_PATH).combine_chunks()
        keys = piece.column(RECORD_KEY).combine_chunks()
        if self._plan.intake.adds:
            first = np.ones(len(keys), dtype=bool)  # every row is a separate record
        else:
            first = first_of_run(partitions, keys)
        if first.all():
            ids = self._of_keys(partitions, keys)
        else:
            begins = pa.array(np.flatnonzero(first))
            located = self._of_keys(partitions.take(begins), keys.take(begins))
            ids = located.take(pa.array(np.cumsum(first) - 1))
        self._last = (partitions[-1].as_py(), keys[-1].as_py(), ids[-1].as_py())
        return ids

    def _of_keys(self, partitions: pa.Array, keys: pa.Array) -> pa.Array:
        """Return the file ids of distinct keys, partition by partition."""
        runs = runs_of(partitions)
        found = [self._of_partition(partitions[a].as_py(), keys[a:b]) for a, b in runs]
        return pa.concat_arrays(found)

    def _of_partition(self, partition: str, keys: pa.Array) -> pa.Array:
        if self._last and not self._plan.intake.adds:
            last_partition, last_key, last_id = self._last
            if partition == last_partition and keys[0].as_py() == last_key:
                rest = keys[1:]
                tail = self._of_partition_new(partition, rest) if len(rest) else keys[:0]
                return pa.concat_arrays([pa.array([last_id], pa.string()), tail])
        return self._of_partition_new(partition, keys)

    def _of_partition_new(self, partition: str, keys: pa.Array) -> pa.Array:
        if self._plan.intake.adds:
            located = pa.nulls(len(keys), pa.string())
        else:
            located = self._index.locate(partition, keys)
        if located.null_count == 0:
            return located
        taken = list(self._buckets.take(partition, located.null_count))
        ids = pa.array([file_id for file_id, _ in taken], pa.string())
        repeats = np.repeat(np.arange(len(taken)), [rows for _, rows in taken])
        placed = ids.take(pa.array(repeats))
        if len(placed) == len(keys):
            self._index.remember(partition, keys, placed)
            return placed
        new = pc.is_null(located)
        self._index.remember(partition, keys.filter(new), placed)
        return pc.replace_with_mask(located, new, placed)

    def _tasks(self, ids: pa.Array) -> pa.Array:
        distinct, codes = encoded(ids)
        tasks = [task_of(file_id, self._plan.id_tasks) for file_id in distinct.to_pylist()]
        return pa.array(np.array(tasks, dtype=np.int32)[codes])
