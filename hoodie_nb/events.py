"""Events as records: the one stream that widgets, scenarios and races read.

Each actor gets an `EventLog` (or its `emit`) and records what it did, in the past tense. Events are
informative: correctness never depends on their arrival. Events of operators in Spark tasks are sent
while the task runs and again, reliably, when it ends; the log keeps each once. `at_ms` is the time
of the event by the clock of the machine where it happened.

| kind | its values |
| --- | --- |
| `job_started` (per query) | query, pipeline, index, tasks |
| `job_stopped`, `job_failed`, `job_restarted` | why, and error (its class) |
| `batch_started`, `batch_skipped` (already in the table) | batch |
| `batch_placed` (again if it is too large for the driver) | batch, placement ("driver" or \
"executors"), expected_bytes (None: unknown, or not asked) |
| `batch_ended` | batch, instant (None: sealed, or nothing to write), seconds, rows and bytes (as \
they came from the source) |
| `checkpoint_sealed` (with `commit_interval`) | batch, runs, bytes |
| `backlog_applied` (with `commit_interval="background"`) | freshness (age of its oldest \
checkpoint, in seconds), seconds |
| `checkpoint_timed_out` | batch, seconds (its limit) |
| `fault_injected`, `fault_fired` (by the lab; fired: one that waited) | fault; injected: waits \
(whether it fires later) |
| `instant_requested`, `instant_inflight`, `instant_abandoned` (nothing was written) | instant |
| `instant_prepared` | instant, checkpoint (its number within the instant, from 0) |
| `instant_committed` | instant, checkpoints, files, rows (in the files), inserts, updates, \
deletes, bytes, seconds; sent again when a completed instant is settled again |
| `rows_quarantined` (right before `instant_committed`) | instant, rows (that it refused) |
| `instant_rolled_back` | instant, published (whether files were published) |
| `partition_metadata_restored` (the file had been deleted) | partition |
| `instant_redone` | instant, as_instant |
| `commit_failed` (stays prepared), `commit_retried`, `settling_postponed` | why, and instant |
| `instant_written_ahead` (of a batch call, before its turn) | instant, fits (else the batch is \
written again) |
| `turn_taken` (the lock is the job's again, after other processes) | seconds (since it gave way) |
| `files_cleaned` (after a commit, or by `table.clean`) | instant, files, bytes, earliest (the \
first commit that is retained; None if versions count) |
| `clustering_planned` | files, bytes, new_files |
| `files_clustered` (by `table.cluster`) | instant, files, bytes, new_files, \
new_bytes, seconds |
| `slices_compacted` (after a commit: of idle ones; or by `table.compact`) | instant, slices, \
logs, bytes (of the logs), new_bytes, seconds |
| `clean_postponed` (the next commit tries again) | why |
| `table_restored` | instant, to (the newest commit now), commits (undone), files (deleted) |
| `commit_undone` (by `actions.rollback`) | instant, files (deleted) |
| `savepoint_created`, `savepoint_deleted` | instant (of the commit); created: files (it keeps) |
| `instants_archived` (after a commit, or by `table.archive`) | instants, start (the first commit \
that stays), orphans (files of no commit that were deleted) |
| `archive_postponed` (a later commit tries again) | why |
| `operator_progress` (while it runs, and at its end) | operator, task, rows, waiting (seconds so \
far), all since its start |
| `operator_ran` | operator, task, rows, seconds (of work), waiting_seconds; for a \
BucketWriter also blocked_seconds, peak_bytes, spilled_bytes |
| `index_looked_up` | task, index, and the counts of `LookupCounts` |
| `index_saved` (what a commit adds to the index), `index_postponed` | instant, partitions, \
files, pure (whether the state covers all partitions it has seen), seconds, totals of the \
manifest; instant, why |
| `bucket_assigned` (a new file group) | partition, file_id, task |
| `buffer_level` (while rows arrive, after the last row, after all files) | task, bytes \
(including rows being flushed), limit_bytes (None: no flush before the end), buckets: the 16 \
largest, each [partition, file_id, bytes] |
| `buffer_flushed` | task, partition, file_id, rows, bytes, appended (to a new file), seconds |
| `file_written` | task, partition, file_id, rows, bytes, seconds, log (whether it is a log of its \
slice, and no base file), merged_logs (those that a new base file folds) |
| `task_failed`, `eager_rows_repeated` (the job in one process) | why; rows |

The events of jobs and tables also go to Python's `logging`, in the process of the job's driver.
The loggers have the names of the folders of the code (docs/architecture.md):

| logger | its events | level |
| --- | --- | --- |
| `hoodie_nb.stream` | of jobs, batches, checkpoints, turns, faults | INFO; DEBUG: of batches |
| `hoodie_nb.lock` | that a write waits for another process (no event) | INFO |
| `hoodie_nb.commit` | of instants and commits | INFO; DEBUG: steps before a commit |
| `hoodie_nb.services` | of table services: cleaning, archiving, savepoints, … | INFO |
| `hoodie_nb.index`, `hoodie_nb.buckets` | of the index; of operators, buffers and files | DEBUG |

What failed, is retried or was postponed is a WARNING. The library sets no level and adds no handler
that prints.
"""

import functools
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

from hoodie_nb.forked import renew_in_child

Emit = Callable[..., None]  # `EventLog.emit`, or what calls it with some values

_log = logging.getLogger("hoodie_nb")
_log.addHandler(logging.NullHandler())  # else Python prints warnings if nobody logs
_AREAS = {
    "stream": re.compile(r"job_|batch_|checkpoint_|backlog_|fault_|turn_"),
    "commit": re.compile(r"instant_|commit_|settling_|partition_|rows_"),
    "index": re.compile(r"index_"),
    "buckets": re.compile(r"operator_|bucket_|buffer_|file_|task_|eager_"),
    "services": re.compile(r""),
}
_WARNS = re.compile(r".*_(failed|retried|restarted|postponed|timed_out)")
_DETAILS = re.compile(
    r"batch_|instant_(requested|inflight|prepared|abandoned)|index_|operator_|bucket_|buffer_|"
    r"file_|eager_"
)
_listening = threading.local()


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its kind, its time (ms since 1970) and plain values."""

    kind: str
    at_ms: int
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{k}={v}" for k, v in self.values.items())])


def _notifying() -> "list[EventLog]":
    """Return the logs whose listeners this thread is running, the innermost last."""
    logs: list[EventLog] = _listening.__dict__.setdefault("logs", [])
    return logs


def in_any_listener() -> bool:
    """Whether this thread is running a listener of some log."""
    return bool(_notifying())


class EventLog:
    """The newest `capacity` events, readable while new ones are recorded."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._recorded = 0
        self._listeners: list[Callable[[Event], None]] = []
        self._failed: list[Callable[[Event], None]] = []
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Forget the parent's lock."""
        self._lock = threading.Lock()

    @property
    def in_listener(self) -> bool:
        """Whether this thread is running a listener; waiting for the actor would then deadlock."""
        return self in _notifying()

    def emit(self, kind: str, **values: object) -> None:
        """Record an event of this kind with the current time."""
        self.add(Event(kind, time.time_ns() // 1_000_000, values))

    def add(self, event: Event, once: tuple[str, set[str]] | None = None) -> None:
        """Record an event created elsewhere; with `once`, only if its name is new."""
        with self._lock:
            if once is not None:
                name, known = once
                if name in known:
                    return
                known.add(name)
            self._events.append(event)
            self._recorded += 1
        _notifying().append(self)
        try:
            for listener in tuple(self._listeners):
                self._notify(listener, event)
        finally:
            _notifying().pop()

    def _notify(self, listener: Callable[[Event], None], event: Event) -> None:
        """Call a listener; its first exception is logged, and none reaches the actor."""
        try:
            listener(event)
        except Exception:
            if listener not in self._failed:
                self._failed.append(listener)
                _log.exception("a listener failed on the event %s; the writer continues", event)

    def __repr__(self) -> str:
        newest = f", the newest: {self._events[-1]}" if self._events else ""
        return f"<EventLog: {len(self._events):,} events{newest}>"

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with each event from now on, in the thread that records it.

        Its exceptions are logged once and not propagated.
        """
        self._listeners.append(listener)

    def records(self, kind: str | None = None) -> list[Event]:
        """Return the stored events, oldest first, optionally of one kind."""
        with self._lock:
            return [e for e in self._events if kind is None or e.kind == kind]

    def since(self, position: int) -> tuple[list[Event], int]:
        """Return the stored events after the first `position` ones, and the current total.

        A reader that passes this total next time misses nothing, and never blocks an actor.
        """
        with self._lock:
            new = max(0, min(self._recorded - position, len(self._events)))
            return list(islice(self._events, len(self._events) - new, None)), self._recorded


def log_events(events: EventLog, name: str) -> None:
    """Pass the events of a job or table to Python's `logging`, one line each (see above)."""

    def log(event: Event) -> None:
        logger, level = _logger_of(event.kind)
        if logger.isEnabledFor(level):
            logger.log(level, "%s: %s", name, " ".join(str(event).split()))

    events.listen(log)


@functools.cache
def _logger_of(kind: str) -> tuple[logging.Logger, int]:
    """Return the logger and the level of a kind of events."""
    area = next(area for area, kinds in _AREAS.items() if kinds.match(kind))
    level = logging.DEBUG if _DETAILS.match(kind) else logging.INFO
    return _log.getChild(area), logging.WARNING if _WARNS.fullmatch(kind) else level


class Pace:
    """A rate limit for frequent events: due at most once per `seconds`, first after that time."""

    def __init__(self, seconds: float = 0.25) -> None:
        self._seconds = seconds
        self._next = time.perf_counter() + seconds

    def due(self) -> bool:
        """Whether the event is due now; if so, it is not due again for `seconds`."""
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
