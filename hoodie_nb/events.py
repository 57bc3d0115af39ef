"""What happened, as records: the one stream that widgets, scenarios and races read.

An actor is given an `EventLog` (or its `tell`) and says what it did in the past tense. Events
inform; nothing that must be right depends on one arriving. What operators in Spark tasks tell is
sent while the task runs and comes once more, for sure, when it ends; the log has it once. `at_ms`
is when it happened, by the clock of the machine where it did.

| kind | its values |
| --- | --- |
| `job_started` (each query) | query, pipeline, index, tasks |
| `job_stopped`, `job_failed`, `job_restarted` | why, and error (its class) |
| `batch_started`, `batch_skipped` (the table holds it) | batch |
| `batch_ended` | batch, instant (None: sealed, or nothing to write), seconds |
| `checkpoint_sealed` (with `commit_interval`) | batch, runs, bytes |
| `checkpoint_timed_out` | batch, seconds (its limit) |
| `fault_injected` (the laboratory) | fault |
| `instant_requested`, `instant_inflight`, `instant_abandoned` (nothing was written) | instant |
| `instant_prepared` | instant, checkpoint (its number within the instant, from 0) |
| `instant_committed` | instant, checkpoints, files, rows (in the files), inserts, updates, \
deletes, bytes, seconds; told again when a completed instant is settled again |
| `instant_rolled_back` | instant, published (whether files were) |
| `partition_metadata_restored` (something had deleted the file) | partition |
| `instant_redone` | instant, as_instant |
| `commit_failed` (stays prepared), `commit_retried`, `settling_postponed` | why, and instant |
| `operator_progress` (while it runs, and at its end) | operator, task, rows, waiting (seconds so \
far), all since its start |
| `operator_ran` | operator, task, rows, seconds (of its own), waiting_seconds; of a BucketWriter \
also blocked_seconds, peak_bytes, spilled_bytes |
| `index_looked_up` | task, index, and the counts of `LookupCounts` |
| `index_saved` (what a commit tells the index), `index_postponed` | instant, partitions, \
files, pure (is the whole table in the state), seconds, totals of the manifest; instant, why |
| `bucket_assigned` (a new file group) | partition, file_id, task |
| `buffer_level` (while rows come, when they have come, when all is written) | task, bytes (what \
is being flushed included), limit_bytes (None: buffers to the end), buckets: the 16 largest at \
most, each [partition, file_id, bytes] |
| `buffer_flushed` | task, partition, file_id, rows, bytes, appended (to a new file), seconds |
| `file_written` | task, partition, file_id, rows, bytes, seconds |
| `task_failed`, `eager_rows_repeated` (the job in one process) | why; rows |
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: its kind, when (ms since 1970) and plain values."""

    kind: str
    at_ms: int
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{k}={v}" for k, v in self.values.items())])


class EventLog:
    """The newest `capacity` events, readable while others are told."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._told = 0
        self._listeners: list[Callable[[Event], None]] = []
        self._failed: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()
        self._here = threading.local()

    @property
    def telling(self) -> bool:
        """Whether this thread is in a listener: who waits for the teller then waits for ever."""
        return getattr(self._here, "depth", 0) > 0

    def tell(self, kind: str, **values: object) -> None:
        """Record that `kind` happened just now."""
        self.add(Event(kind, time.time_ns() // 1_000_000, values))

    def add(self, event: Event, once: tuple[str, set[str]] | None = None) -> None:
        """Record an event that was made elsewhere; given its name, if that is not yet known."""
        with self._lock:
            if once is not None:
                name, known = once
                if name in known:
                    return
                known.add(name)
            self._events.append(event)
            self._told += 1
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            for listener in tuple(self._listeners):
                self._hear(listener, event)
        finally:
            self._here.depth -= 1

    def _hear(self, listener: Callable[[Event], None], event: Event) -> None:
        """Call a listener; what it raises is logged at its first time, and harms no teller."""
        try:
            listener(event)
        except Exception:
            if listener not in self._failed:
                self._failed.append(listener)
                _log.exception("a listener failed at the event %s; the writer goes on", event)

    def extend(self, events: Iterable[Event]) -> None:
        """Record several events in order."""
        for event in events:
            self.add(event)

    def __repr__(self) -> str:
        newest = f", the newest: {self._events[-1]}" if self._events else ""
        return f"<EventLog: {len(self._events):,} events{newest}>"

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with each event from now on, in the thread that tells it.

        What it raises is logged once and goes no further.
        """
        self._listeners.append(listener)

    def records(self, kind: str | None = None) -> list[Event]:
        """Return the events kept, oldest first, of one kind if asked."""
        with self._lock:
            return [e for e in self._events if kind is None or e.kind == kind]

    def since(self, position: int) -> tuple[list[Event], int]:
        """Return what was told after the first `position` events, as far as kept, and how many now.

        A reader that comes back with that number misses nothing and makes no teller wait.
        """
        with self._lock:
            new = max(0, min(self._told - position, len(self._events)))
            return list(islice(self._events, len(self._events) - new, None)), self._told


class Pace:
    """A limit for what would be told too often: due at most once in `seconds`, first after them."""

    def __init__(self, seconds: float = 0.25) -> None:
        self._seconds = seconds
        self._next = time.perf_counter() + seconds

    def due(self) -> bool:
        """Whether it may be told now; then it is not due again for a while."""
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
