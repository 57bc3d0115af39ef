"""What happened, as records: the one stream that widgets, scenarios and races read.

An actor is given an `EventLog` (or its `tell`) and says what it did in the past tense. Events
inform; nothing that must be right depends on one arriving. Operators that run in Spark tasks tell
a log of their own, whose records reach the driver when the task ends.

Kinds: `instant_requested, instant_inflight, instant_committed, instant_abandoned,
instant_rolled_back, batch_started, batch_skipped, batch_ended, bucket_assigned,
buffer_flushed, file_written, index_looked_up, job_started, job_stopped, job_failed`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


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
        self._listeners: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()

    def tell(self, kind: str, **values: object) -> None:
        """Record that `kind` happened just now."""
        self.add(Event(kind, time.time_ns() // 1_000_000, values))

    def add(self, event: Event) -> None:
        """Record an event that was made elsewhere (a task of another process)."""
        with self._lock:
            self._events.append(event)
        for listener in self._listeners:
            listener(event)

    def extend(self, events: Iterable[Event]) -> None:
        """Record several events in order."""
        for event in events:
            self.add(event)

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with each event from now on, in the thread that tells it."""
        self._listeners.append(listener)

    def records(self, kind: str | None = None) -> list[Event]:
        """Return the events kept, oldest first, of one kind if asked."""
        with self._lock:
            return [e for e in self._events if kind is None or e.kind == kind]
