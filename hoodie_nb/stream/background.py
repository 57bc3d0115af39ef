"""`commit_interval="background"`: when the watcher's thread commits sealed checkpoints.

*Work flow.* Spark's thread seals checkpoints. The thread that watches the query applies all that
are sealed as one instant, then rests for as long as it worked; meanwhile the stream seals more.

*Fault tolerance.* A failed attempt leaves everything sealed and is repeated after a longer rest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hoodie_nb.errors import HoodieError
from hoodie_nb.stream.micro_batches import MicroBatches, recover_if_stale

if TYPE_CHECKING:
    from hoodie_nb.events import EventLog
    from hoodie_nb.lock.job import JobHold


class BackgroundCommits:
    """The commits that the watcher's thread makes, as one `MicroBatches` seals checkpoints."""

    def __init__(
        self, batches: MicroBatches, hold: JobHold, events: EventLog, max_restarts: int
    ) -> None:
        self._checkpointing = batches.background(hold)
        self._batches = batches
        self._hold = hold
        self._events = events
        # failed attempts in a row
        self._most_failures = max_restarts
        self._failures = 0
        self._rests_until = 0.0  # monotonic seconds

    @property
    def due(self) -> bool:
        """Whether something is sealed and the rest after the last attempt is over."""
        return time.monotonic() >= self._rests_until and self._batches.oldest_ms is not None

    def apply(self) -> None:
        """Apply what is sealed as one instant, or emit `commit_failed`.

        Raises the error when more than `max_restarts` attempts in a row fail.
        """
        began = time.perf_counter()
        again = self._failures > 0
        self._failures += 1
        try:
            with self._hold.writing():
                # again: also what a failed attempt could not roll back
                recover_if_stale(self._checkpointing, self._hold, self._events, again=again)
                oldest = self._batches.oldest_ms
                instant = self._checkpointing.complete()
                self._batches.oldest_ms = self._checkpointing.oldest_ms()
            self._failures = 0
        except (HoodieError, OSError) as error:
            self._events.emit("commit_failed", why=str(error))
            if self._failures > self._most_failures:
                raise
        seconds = time.perf_counter() - began
        self._rests_until = time.monotonic() + (10 * seconds + 1 if self._failures else seconds)
        if not self._failures and instant is not None and oldest is not None:
            age = max(0.0, (self._checkpointing.table.clock.now_ms() - oldest) / 1000)
            self._events.emit("backlog_applied", freshness=age, seconds=round(seconds, 3))
