"""The write buffer: when a bucket is flushed or spilled to disk, by `batch_size`, `task_max_size`.

*Work flow*: `add` sorts rows into buckets. A bucket above `batch_bytes` is flushed; if all buckets
together exceed `task_max_bytes`, the largest one is flushed. A flush folds the bucket's rows and,
in the background, appends them to the open file of a new file group or spills them as a sorted
run in the staging folder (at most `OPEN_FILES` new files are open at a time); `drain` returns the
content of each bucket.

*Semantics*: bytes count as buffered until their run is on disk, and `add` waits when the limit is
reached, so memory stays below it for any input. Deletes stay in the runs until the end of the
checkpoint: the winning row must not depend on when a buffer was flushed.

*Source:* RFC-24 STEP3, StreamWriteFunction, `write.batch.size`, `write.task.max.size`.
"""

import functools
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hoodie_nb import failpoints
from hoodie_nb.buckets.new_file import NewFile
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.events import Emit, Pace
from hoodie_nb.rows.columns import FILE_ID, SEQ
from hoodie_nb.rows.ordering import ranked
from hoodie_nb.rows.spilling import save_local_run
from hoodie_nb.rows.taking import sort_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

OPEN_FILES = 64  # new files that a task keeps open; a process can often open only 256 or 1,024
NO_LIMIT = 1 << 62
_SHOWN_BUCKETS = 16
AppendNew = Callable[["Bucket", pa.Table], bool]


@dataclass(slots=True)
class Bucket:
    """The rows of one file group in this checkpoint; `runs` are local paths of spilled rows."""

    partition_path: str
    file_id: str
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    runs: list[str] = field(default_factory=list)
    new_file: NewFile | None = None
    flush: "Future[None] | None" = None  # the last one


class _Flushes:
    """Flushes in `threads` threads, oldest first, and the bytes of the rows that they hold."""

    def __init__(self, threads: int) -> None:
        self.count = 0
        self.size_bytes = 0
        self._threads = threads
        self._waiting: list[tuple[Future[None], int]] = []
        self._pool: ThreadPoolExecutor | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def start(self, work: Callable[[], None], size_bytes: int) -> "Future[None]":
        """Begin a flush of rows with these bytes."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="bucket-flush")
        self.count += 1
        self.size_bytes += size_bytes
        flush = self._pool.submit(work)
        self._waiting.append((flush, size_bytes))
        return flush

    def let_one_end(self) -> None:
        """Wait for one of the newest if more than two a thread go on: their rows are in memory."""
        newest = [flush for flush, _ in self._waiting[-2 * self._threads - 1 :]]
        if len(newest) > 2 * self._threads:
            wait(newest, return_when=FIRST_COMPLETED)

    def end_oldest(self) -> None:
        """Wait for the oldest; raises its error."""
        flush, size_bytes = self._waiting.pop(0)
        flush.result()
        self.size_bytes -= size_bytes

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class _Level:
    """The events that say how full a buffer is."""

    def __init__(self, plan: WritePlan, emit: Emit) -> None:
        self.pace = Pace()
        self._limit = plan.options.task_max_bytes
        self._emit = emit
        self._last = dict[str, object]()

    def show(self, size_bytes: int, buckets: Iterable[Bucket]) -> None:
        """Emit the level if it has changed."""
        held = (bucket for bucket in buckets if bucket.waiting_bytes)
        largest = heapq.nlargest(_SHOWN_BUCKETS, held, key=lambda bucket: bucket.waiting_bytes)
        level: dict[str, object] = {
            "bytes": size_bytes,
            "limit_bytes": self._limit if self._limit < NO_LIMIT else None,
            "buckets": [[b.partition_path, b.file_id, b.waiting_bytes] for b in largest],
        }
        if level != self._last:
            self._last = level
            self._emit("buffer_level", **level)


class WriteBuffer:
    """The buckets of one task, flushed by `threads` threads; close it to stop them."""

    def __init__(
        self, plan: WritePlan, name: str, emit: Emit, append_new: AppendNew, threads: int = 1
    ) -> None:
        self._plan = plan
        self._name = name
        self._emit = emit
        self._append_new = append_new
        self._buckets: dict[tuple[str, str], Bucket] = {}  # a copied folder repeats file ids
        self._flushes = _Flushes(threads)
        self._lock = threading.Lock()
        self._level = _Level(plan, emit)
        self.peak_bytes = 0
        self.spilled_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes in memory, including rows being flushed."""
        waiting = sum(bucket.waiting_bytes for bucket in self._buckets.values())
        return waiting + self._flushes.size_bytes

    def add(self, rows: pa.Table) -> None:
        """Sort assigned rows into their buckets and flush buckets that are too large."""
        quarters = -(-4 * rows.nbytes // self._plan.options.task_max_bytes)
        step = max(1, -(-rows.num_rows // max(1, quarters)))  # a piece may be above the limit
        for start in range(0, rows.num_rows, step):
            self._add(rows.slice(start, step), whole=step >= rows.num_rows)

    def _add(self, rows: pa.Table, *, whole: bool) -> None:
        rows = rows.combine_chunks()
        partitions, ids = (rows.column(name).combine_chunks() for name in (PARTITION_PATH, FILE_ID))
        ranks, bits = ranked(ids)
        numbers = (ranked(partitions)[0] << np.uint64(bits)) | ranks
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        begins = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(ids)]
        mine = rows.select(self._plan.intake.keyed_schema.names)
        plain = mine
        for start, end in itertools.pairwise(begins):
            if len(begins) > 2 or not whole:  # a copy: a slice would keep the whole piece
                mine = plain.take(pa.array(order[start:end]))
            first = int(order[start])
            self._append((partitions[first].as_py(), ids[first].as_py()), mine)
        self.peak_bytes = max(self.peak_bytes, self.buffered_bytes)
        while self.buffered_bytes > self._plan.options.task_max_bytes:
            self._make_room()
        self._show(self._level.pace.due())

    def _show(self, due: bool) -> None:
        if due:
            self._level.show(self.buffered_bytes, self._buckets.values())

    def _append(self, name: tuple[str, str], rows: pa.Table) -> None:
        bucket = self._buckets.setdefault(name, Bucket(*name))
        bucket.waiting.append(rows)
        bucket.waiting_bytes += rows.nbytes
        if bucket.waiting_bytes > self._plan.options.batch_bytes:
            self._flush(bucket)
            self._flushes.let_one_end()

    def _make_room(self) -> None:
        if self._flushes:
            self._flushes.end_oldest()
        else:
            self._flush(max(self._buckets.values(), key=lambda b: b.waiting_bytes))

    def _flush(self, bucket: Bucket) -> None:
        """Spill the bucket's rows in the background; they count as buffered until then."""
        folder = self._plan.storage.local_folder(self._plan.staged)
        path = f"{folder}/{self._name}-run{self._flushes.count}.arrow"
        rows = bucket.waiting
        size = bucket.waiting_bytes
        bucket.waiting = []
        bucket.waiting_bytes = 0
        work = functools.partial(self._write_out, bucket, rows, path, bucket.flush)
        bucket.flush = self._flushes.start(work, size)

    def _write_out(
        self, bucket: Bucket, rows: list[pa.Table], path: str, earlier: "Future[None] | None"
    ) -> None:
        """Append the rows to the bucket's open new file if possible, else spill them."""
        if earlier is not None:
            earlier.result()  # started before this one, so it ends
        failpoints.hit("writer.flush")
        began = time.perf_counter()
        run = self.fold(pa.concat_tables(rows))
        appended = not bucket.runs and self._append_new(bucket, run)
        written = 0 if appended else self._spill(bucket, run, path)
        self._emit(
            "buffer_flushed",
            partition=bucket.partition_path,
            file_id=bucket.file_id,
            rows=run.num_rows,
            bytes=written or run.nbytes,
            appended=appended,
            seconds=round(time.perf_counter() - began, 6),
        )

    def _spill(self, bucket: Bucket, run: pa.Table, path: str) -> int:
        written = save_local_run([run], path)
        with self._lock:
            self.spilled_bytes += written
        bucket.runs.append(path)
        return written

    def fold(self, rows: pa.Table) -> pa.Table:
        """Return rows sorted by key: one per key, but all rows for the operation `insert`.

        All rows are also returned if they fill one another: the result depends on each of them.
        """
        if self._plan.intake.adds or self._plan.intake.rule.fills:
            return sort_rows(rows, (RECORD_KEY, SEQ))
        return self._plan.intake.rule.fold(rows)

    def drain(self) -> Iterator[Bucket]:
        """Yield every bucket once, by file id, when all flushes have ended."""
        self._show(bool(self._buckets))
        while self._flushes:
            self._flushes.end_oldest()
        for name in sorted(self._buckets, key=lambda name: name[::-1]):
            yield self._buckets.pop(name)
            self._show(self._level.pace.due() or not self._buckets)

    def close(self) -> None:
        """Stop the flush threads."""
        self._flushes.close()
