"""The process thread of a job without Spark; its source: rows, barriers, identities.

*Source:* RFC-24 STEP1 to STEP3, StreamWriteFunctionWrapper of Hudi's tests.
"""

import hashlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.index_port import Index
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order
from hoodie_nb.local.operators import assign, index_of, write
from hoodie_nb.records.prepared import Prepared
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.timeline.commits import WriteStatus


@dataclass(slots=True)
class Source:
    """The source of a job, which outlives it: all rows, and the positions of the checkpoints.

    `rows` are the pieces in order of arrival; `barriers` counts the pieces before each checkpoint,
    by its number; `sealed` lists the ends of the written checkpoints, `succeeded` is the number of
    those that are known to have succeeded, `taken_back` each number to which it was taken back.
    """

    rows: list[pa.Table] = field(default_factory=list)
    barriers: dict[int, int] = field(default_factory=dict)
    sealed: list[int] = field(default_factory=list)
    succeeded: int = 0
    taken_back: list[int] = field(default_factory=list)

    def take_back(self, known: int) -> None:
        """Forget all but the first `known` checkpoints, as if Spark's files were deleted."""
        self.succeeded = min(self.succeeded, known)
        del self.sealed[known:]
        self.taken_back.append(known)

    def start(self, batch_id: int) -> int:
        """Return the start of a checkpoint, in pieces."""
        return self.sealed[batch_id - 1] if batch_id else 0

    def identity(self, query_id: str, batch_id: int) -> Checkpoint:
        """Return a written checkpoint's identity: the same if it is run again, as in Spark.

        A later one under its number has another identity, even with the same piece of the source.
        """
        earlier = sum(known <= batch_id for known in self.taken_back)
        text = f"{query_id} {self.start(batch_id)} {self.sealed[batch_id]} {earlier}"
        return Checkpoint(query_id, batch_id, hashlib.sha256(text.encode()).hexdigest())


class RecentIndex:
    """The index `inner`, except that a key keeps the first file id that it was given.

    If rows reach the assigner as they arrive, and not sorted by key at the end, a key can occur
    twice before any file contains it. The inner index is asked once per key: its second answer
    could differ for a key that shares its hash with others.
    """

    def __init__(self, inner: Index) -> None:
        self._inner = inner
        self.counts = inner.counts
        self.copies = inner.copies
        self.save = inner.save
        self._placed: dict[str, list[tuple[pa.Array, pa.Array]]] = {}

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null for a new key."""
        known = pa.nulls(len(keys), pa.string())
        for placed, file_ids in self._placed.get(partition, []):
            known = pc.coalesce(known, file_ids.take(pc.index_in(keys, value_set=placed)))
        new = pc.is_null(known)
        asked = keys.filter(new)
        found = self._inner.locate(partition, asked)
        self._note(partition, asked.filter(pc.is_valid(found)), found.drop_null())
        return pc.replace_with_mask(known, new, found)

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Record the file ids of new keys."""
        self._note(partition, keys, file_ids)
        self._inner.remember(partition, keys, file_ids)

    def _note(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        self._placed.setdefault(partition, []).append((keys, file_ids))


class ProcessThread:
    """The writers of one checkpoint, fed piece by piece; they build on `records`."""

    def __init__(
        self, coordinator: WriteCoordinator, intake: Intake, shape: Shape, records: list[Prepared]
    ) -> None:
        self._coordinator = coordinator
        self._shape = shape
        self.records = records
        self.intake = intake
        self._pieces: queue.Queue[pa.Table | BaseException | None] = queue.Queue()
        self._taken = threading.Semaphore(0)
        self._result: Prepared | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="process", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            steps = self._coordinator.writing(self.intake, self._shape, None, self.records)
            with steps as work:
                work.statuses = self._write(work.plan)
            self._result = work.result
        except BaseException as error:
            self._error = error
        finally:
            self._taken.release()

    def _write(self, plan: WritePlan) -> list[WriteStatus]:
        emit = self._coordinator.events.emit
        assigned = assign(plan, self._input(), 0, emit, RecentIndex(index_of(plan)))
        return list(write(plan, assigned, TaskAttempt(), emit))

    def _input(self) -> Iterator[pa.Table]:
        arrived = 0
        while True:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            if piece is None:
                return
            yield keyed_in_order(piece, self.intake, arrived)
            arrived += piece.num_rows
            self._taken.release()

    def put(self, rows: pa.Table) -> None:
        """Pass rows on and return when they are in the buffer; raise if the task has failed."""
        self._pieces.put(rows)
        self._taken.acquire()
        if self._error is not None:
            raise self._error

    def end(self, failure: BaseException | None = None) -> Prepared | None:
        """End the input, with a task failure if given, and return the result."""
        self._pieces.put(failure)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result
