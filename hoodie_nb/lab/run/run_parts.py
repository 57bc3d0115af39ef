"""Parts of a run's state: rows, operators, task spans, buffers, checkpoints, lookups, notes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from hoodie_nb.events import Event

STEP_MS = 500
_STEPS = 240


def as_number(value: object) -> float:
    """Return a value of an event as a number, 0 if it is not one."""
    return value if isinstance(value, int | float) else 0


def number(event: Event, name: str) -> float:
    """Return one of an event's values as a number, 0 if it has none."""
    return as_number(event.values.get(name))


@dataclass(slots=True)
class Flow:
    """Rows over time, in steps of half a second."""

    total: float = 0.0
    steps: dict[int, float] = field(default_factory=dict)

    def add(self, rows: float, begin_ms: float, end_ms: float) -> None:
        """Spread rows evenly over a time span."""
        self.total += rows
        last = int(end_ms // STEP_MS)
        first = min(last, max(int(begin_ms // STEP_MS), last - _STEPS + 1))
        for step in range(first, last + 1):
            self.steps[step] = self.steps.get(step, 0.0) + rows / (last - first + 1)
        while len(self.steps) > 2 * _STEPS:
            del self.steps[min(self.steps)]

    def rates(self, now_ms: float, window_ms: int) -> list[tuple[float, float]]:
        """Return (ms, rows per second) of every finished step in the window."""
        last = int(now_ms // STEP_MS)
        steps = range(last - window_ms // STEP_MS, last)
        return [(s * STEP_MS, self.steps.get(s, 0.0) * 1000 / STEP_MS) for s in steps]

    def rate(self, now_ms: float, window_ms: int = 3000) -> float:
        """Return the rows per second of the last few seconds."""
        rates = self.rates(now_ms + STEP_MS, window_ms)
        return sum(rate for _, rate in rates) / len(rates)


@dataclass(slots=True)
class OperatorState:
    """The rows of an operator: `tasks` counts the rows of each task in the newest batch."""

    flow: Flow = field(default_factory=Flow)
    tasks: dict[int, float] = field(default_factory=dict)
    stale: bool = False
    reported_ms: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def update(self, event: Event) -> None:
        """Count the rows since the task's last event."""
        at_ms = event.at_ms
        if self.stale:
            self.tasks = {}
            self.reported_ms = {}
            self.stale = False
        task = int(number(event, "task"))
        rows = number(event, "rows")
        before = self.tasks.get(task, 0.0)
        if task in self.ended or rows < before:  # a new attempt
            before = 0.0
            self.ended.discard(task)
            self.reported_ms.pop(task, None)
        took = number(event, "seconds") + number(event, "waiting_seconds")
        began = self.reported_ms.get(task, at_ms - (1000 * took or STEP_MS))
        self.flow.add(rows - before, began, at_ms)
        self.tasks[task] = rows
        self.reported_ms[task] = at_ms
        if event.kind == "operator_ran":
            self.ended.add(task)


@dataclass(slots=True)
class BucketState:
    """A bucket of the newest checkpoint: bytes in its buffer, flushes, its file.

    `merged` is the number of logs that this file, a new base file, has folded.
    """

    partition: str
    file_id: str
    bytes: float = 0.0
    flushes: int = 0
    written: float = 0.0
    is_log: bool = False
    merged: int = 0


@dataclass(slots=True)
class BuffersState:
    """The writers' buffers: bytes over time, flushes as (ms, file id, bytes), and the buckets.

    `logs` has the logs of each file group since its base file was written, as far as the run shows.
    """

    levels: dict[int, float] = field(default_factory=dict)
    history: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=1000))
    flushes: deque[tuple[int, str, float]] = field(default_factory=lambda: deque(maxlen=200))
    buckets: dict[str, BucketState] = field(default_factory=dict)
    limit: float = 0.0
    peak: float = 0.0
    stale: bool = False
    logs: Counter[str] = field(default_factory=Counter)

    @property
    def total_limit(self) -> float:
        """Return the limit of all tasks together, 0 if there is none."""
        return self.limit * max(1, len(self.levels))

    @property
    def shown(self) -> list[BucketState]:
        """Return the buckets that views show: the first 16 by partition and file id."""
        ordered = sorted(self.buckets.values(), key=lambda b: (b.partition, b.file_id))
        return ordered[:_BUCKETS]

    def bucket(self, partition: object = "", file_id: object = "?", **_: object) -> BucketState:
        """Return the bucket that an event's values name."""
        if self.stale:
            self.buckets = {}
            self.stale = False
        return self.buckets.setdefault(str(file_id), BucketState(str(partition), str(file_id)))

    def record_level(self, event: Event) -> None:
        """Record the fill level of a task's buffer."""
        task = int(number(event, "task"))
        level = number(event, "bytes")
        self.limit = max(self.limit, number(event, "limit_bytes"))
        self._set(task, level, event.at_ms)
        for bucket in self.buckets.values():
            if bucket.written or not level:
                bucket.bytes = 0.0
        for partition, file_id, size in event.values.get("buckets") or ():
            self.bucket(partition, file_id).bytes = as_number(size)

    def _set(self, task: int, level: float, at_ms: int) -> None:
        self.levels[task] = level
        self.history.append((at_ms, sum(self.levels.values())))
        self.peak = max(self.peak, self.history[-1][1])

    def record_flush(self, event: Event) -> None:
        """Record that a bucket was flushed."""
        bucket = self.bucket(**event.values)
        bucket.flushes = bucket.flushes + 1
        bucket.bytes = 0.0
        self.flushes.append((event.at_ms, bucket.file_id, number(event, "bytes")))

    def record_file(self, event: Event) -> None:
        """Record that a bucket's file is written."""
        bucket = self.bucket(**event.values)
        bucket.bytes = 0.0
        bucket.written = number(event, "bytes")
        bucket.is_log = bool(event.values.get("log"))
        bucket.merged = int(number(event, "merged_logs"))
        self.logs[bucket.file_id] += 1
        if not bucket.is_log:
            del self.logs[bucket.file_id]

    def record_end(self, event: Event) -> None:
        """Record that a writer has ended."""
        self.peak = max(self.peak, number(event, "peak_bytes"))
        task = int(number(event, "task"))
        if self.levels.get(task):
            self._set(task, 0.0, event.at_ms)


@dataclass(frozen=True, slots=True)
class Span:
    """What a task did from `begin_ms` to `end_ms`: an operator ran, flushed, or wrote a file.

    In the last `blocked_ms` of a writer the checkpoint waits for its files.
    """

    kind: str
    operator: str
    task: int
    begin_ms: float
    end_ms: float
    blocked_ms: float = 0.0

    @classmethod
    def of(cls, event: Event) -> Span:
        """Return the span that ends with an event."""
        took = 1000 * (number(event, "seconds") + number(event, "waiting_seconds"))
        blocked = 1000 * number(event, "blocked_seconds")
        operator = str(event.values.get("operator", "BucketWriter"))
        task = int(number(event, "task"))
        return cls(event.kind, operator, task, event.at_ms - took, event.at_ms, blocked)


@dataclass(slots=True)
class InstantState:
    """An instant, the time of each of its states (ms), and its commit event."""

    time: str
    state: str = "requested"
    at_ms: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class CheckpointState:
    """A checkpoint: running, prepared, done, sealed, skipped, empty, timed out or rolled back."""

    number: int
    state: str = "running"
    instant: str = ""


@dataclass(slots=True)
class Backlog:
    """Checkpoints that are sealed and not visible yet, by the time (ms) at which each was sealed.

    `ages` has the age of the oldest one over time, as (ms, seconds).
    """

    sealed: dict[int, int] = field(default_factory=dict)
    ages: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=400))
    peak: float = 0.0

    def age(self, now_ms: float) -> float:
        """Return the age of the oldest one in seconds, 0 if none waits."""
        return max(0.0, now_ms - min(self.sealed.values(), default=now_ms)) / 1000

    def seal(self, number: int, at_ms: int) -> None:
        """Record that a checkpoint is sealed."""
        self.sealed.setdefault(number, at_ms)
        self._note(at_ms)

    def show(self, last: int, at_ms: int) -> None:
        """Record that all checkpoints up to the last one are visible."""
        self._note(at_ms)
        self.sealed = {number: ms for number, ms in self.sealed.items() if number > last}
        self._note(at_ms)

    def _note(self, at_ms: int) -> None:
        self.ages.append((at_ms, self.age(at_ms)))
        self.peak = max(self.peak, self.ages[-1][1])


@dataclass(slots=True)
class Lookups:
    """The index lookups of one checkpoint, summed over its tasks."""

    values: Counter[str] = field(default_factory=Counter)
    tasks: set[int] = field(default_factory=set)

    def count(self, name: str) -> float:
        """Return one of the counts, 0 if no event had it."""
        return self.values[name]


_NOTES = {
    "fault_injected": "Fault: {fault}",
    "fault_fired": "The fault fires: {fault}",
    "job_started": "The query starts",
    "job_restarted": "The query is restarted: {why}",
    "job_stopped": "The job has stopped",
    "job_failed": "The job has failed: {why}",
    "task_failed": "A task failed: {why}",
    "batch_started": "Batch {batch} begins",
    "batch_skipped": "Batch {batch} is skipped: it is already in the table",
    "eager_rows_repeated": "{rows} rows are sent again",
    "checkpoint_timed_out": "Checkpoint {batch} timed out after {seconds} s",
    "instant_prepared": "Instant {instant} is prepared: from now on it is always completed",
    "instant_rolled_back": "Instant {instant} is rolled back",
    "instant_redone": "Instant {instant} is applied again as {as_instant}",
    "instant_committed": "Instant {instant} is committed, checkpoints: {checkpoints}",
    "commit_failed": "The commit failed; the instant stays prepared: {why}",
    "commit_retried": "The commit of {instant} is retried: {why}",
    "settling_postponed": "The next checkpoint cleans up after {instant}",
    "instant_written_ahead": "Written before its turn as {instant}; published as it is: {fits}",
    "turn_taken": "Other processes have had a turn: the job has the table again after {seconds} s",
}
_ROUTINE = ("batch_started", "job_started")
_BAD = ("failed", "restarted", "rolled_back", "timed_out", "fault", "repeated", "postponed")
_GOOD = ("committed", "skipped", "prepared", "redone", "stopped")
_STORY = 9
_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a run's history: time (ms), the event's kind, its meaning."""

    at_ms: int
    kind: str
    text: str

    @property
    def tone(self) -> str:
        """Return "bad", "good", "routine" (a batch or a query starts), or "" for anything else."""
        if any(word in self.kind for word in _BAD):
            return "bad"
        if any(word in self.kind for word in _GOOD):
            return "good"
        return "routine" if self.kind in _ROUTINE else ""


def noted(event: Event, instants: dict[str, InstantState]) -> Note | None:
    """Return the note of an event, None if it has none; a stop names the instant it leaves open."""
    if event.kind not in _NOTES:
        return None
    text = _NOTES[event.kind].format_map(defaultdict(lambda: "?", event.values))
    for left in instants.values() if event.kind == "job_stopped" else ():
        if left.state in ("requested", "inflight", "prepared"):
            text += f"; instant {left.time} is still {left.state}: the next start settles it"
            return Note(event.at_ms, "left_open", text)
    return Note(event.at_ms, event.kind, text)


@dataclass(slots=True)
class Story:
    """A fault and the first notes after it, without routine; `more` counts the later ones.

    `waits` is the name of a fault that has not fired yet; it has no notes.
    """

    fault: Note
    waits: str = ""
    after: list[Note] = field(default_factory=list)
    more: int = 0

    def add(self, note: Note) -> None:
        """Add the next note of the run."""
        if note.tone == "routine":
            return
        if len(self.after) < _STORY:
            self.after.append(note)
        else:
            self.more += 1

    @property
    def outcome(self) -> str:
        """Return what came of the fault, in a few words."""
        kinds = dict.fromkeys(note.kind.removeprefix("instant_") for note in self.after)
        kinds.pop("fault_fired", None)
        return ", ".join(kinds).replace("_", " ") or ("waits" if self.waits else "nothing yet")
