"""Operators as functions that each runner calls; which index class an `index` name means.

Each emits `operator_progress` while it runs and `operator_ran` when it ends: rows, seconds of work,
seconds of waiting for input, seconds in which only files were written (the checkpoint waits for
those), peak bytes buffered.

*Source:* RFC-24, the operators of its pipelines.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import pyarrow as pa

from hoodie_nb.buckets.assigner import FileIdAssigner
from hoodie_nb.buckets.bucket_writer import BucketWriter
from hoodie_nb.buckets.buffer import NO_LIMIT
from hoodie_nb.buckets.index_port import Index
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan
from hoodie_nb.buckets.profile import with_record_bytes
from hoodie_nb.events import Emit, Pace
from hoodie_nb.index.bloom import BloomIndex
from hoodie_nb.index.file_keys import KeysToIndex
from hoodie_nb.index.job_keys import StateIndex
from hoodie_nb.index.living import LivingIndex
from hoodie_nb.index.lookup import BloomStateIndex
from hoodie_nb.index.routing import KeyRouter, Routed
from hoodie_nb.timeline.commits import WriteStatus


@dataclass(slots=True)
class Waiting:
    """Counts an operator's rows and the seconds it waited for input, and reports its progress."""

    emit: Emit
    operator: str
    task: int
    rows: int = 0
    seconds: float = 0.0
    ended_at: float = 0.0
    began_at: float = field(default_factory=time.perf_counter)
    pace: Pace = field(default_factory=Pace)

    def on(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the pieces, counting."""
        source = iter(pieces)
        while True:
            asked = time.perf_counter()
            piece = next(source, None)
            self.ended_at = time.perf_counter()
            self.seconds += self.ended_at - asked
            if piece is None:
                return
            self.rows += piece.num_rows
            if self.pace.due():
                self._emit("operator_progress", waiting=round(self.seconds, 6))
            yield piece

    def end(self, **more: object) -> None:
        """Report that the operator has ended."""
        own = time.perf_counter() - self.began_at - self.seconds
        waited = round(self.seconds, 6)
        self._emit("operator_progress", waiting=waited)
        self._emit("operator_ran", seconds=round(own, 6), waiting_seconds=waited, **more)

    def _emit(self, kind: str, **more: object) -> None:
        self.emit(kind, operator=self.operator, task=self.task, rows=self.rows, **more)


def assign(
    plan: WritePlan, pieces: Iterable[pa.Table], task: int, emit: Emit, index: Index | None = None
) -> Iterator[pa.Table]:
    """Run one FileIdAssigner task over sorted keyed rows; `index` is that of the plan, or given."""
    waiting = Waiting(emit, "FileIdAssigner", task)
    index = index or index_of(plan)
    yield from FileIdAssigner(plan, index, task, emit).assign(waiting.on(pieces))
    index.save(f"{plan.instant_time}.{plan.ordinal}-{task}")
    _end_lookups(waiting, plan, index)


def route(
    plan: WritePlan, pieces: Iterable[pa.Table], task: int, emit: Emit
) -> Iterator[tuple[int, pa.Table]]:
    """Run one KeyRouter task over keyed rows: yield rows for a task, with the known file ids."""
    waiting = Waiting(emit, "KeyRouter", task)
    index = index_of(plan, strict=True)
    router = KeyRouter(plan, index)
    for piece in waiting.on(pieces):
        yield from router.route(piece)
    _end_lookups(waiting, plan, index)


def _end_lookups(waiting: Waiting, plan: WritePlan, index: Index) -> None:
    if waiting.rows:
        counts = asdict(index.counts)
        waiting.emit("index_looked_up", task=waiting.task, index=plan.shape.index, **counts)
        waiting.end()


def assign_routed(
    plan: WritePlan, pieces: Iterable[pa.Table], task: int, emit: Emit
) -> Iterator[pa.Table]:
    """Assign the new keys of routed rows that are sorted; `record_bytes` may be theirs."""
    plan, pieces = with_record_bytes(plan, pieces)
    yield from FileIdAssigner(plan, Routed(), task, emit).assign(pieces)


def index_of(plan: WritePlan, *, strict: bool = False) -> Index:
    """Return the index of one task."""
    if plan.shape.index == "state":
        return StateIndex(plan.shape.state_folder, plan.groups.replaced, plan.groups.moved)
    bloom = plan.shape.index == "bloom"
    index = BloomIndex(plan) if bloom else BloomStateIndex(plan, strict=strict)
    return LivingIndex(index, plan) if plan.intake.config.merge_on_read else index


def write(
    plan: WritePlan,
    pieces: Iterable[pa.Table],
    attempt: TaskAttempt,
    emit: Emit,
    *,
    threads: int = 1,
    kept: KeptFiles | None = None,
) -> Iterator[WriteStatus]:
    """Run one BucketWriter task over assigned rows."""
    waiting = Waiting(emit, "BucketWriter", attempt.task)
    keys = partial(KeysToIndex, plan)
    writer = BucketWriter(_flushing(plan), attempt, emit, keys, threads=threads, kept=kept)
    yield from writer.write(waiting.on(pieces))
    if waiting.rows:
        blocked = time.perf_counter() - waiting.ended_at
        waiting.end(
            blocked_seconds=round(blocked, 6),
            peak_bytes=writer.buffer.peak_bytes,
            spilled_bytes=writer.buffer.spilled_bytes,
        )


def _flushing(plan: WritePlan) -> WritePlan:
    """Return the plan with limits that never flush, for pipelines that buffer to the end."""
    if plan.shape.pipeline.mini_batches:
        return plan
    never = replace(plan.options, batch_bytes=NO_LIMIT, task_max_bytes=NO_LIMIT)
    return replace(plan, options=never)


def assign_and_write(
    plan: WritePlan, pieces: Iterable[pa.Table], attempt: TaskAttempt, emit: Emit
) -> Iterator[WriteStatus]:
    """Run index, bucketing and writing in one task, as before STEP2."""
    return write(plan, assign(plan, pieces, attempt.task, emit), attempt, emit)
