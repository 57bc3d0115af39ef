"""Counts for `job.progress`: rows, batches, rows per second, out of the job's events.

An `EventLog` keeps only the newest events, so a job that runs for weeks counts all of them here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hoodie_nb.events import Event

_REPEATED = 1_000  # commits among which one may be reported again, when it is settled again


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What a job has done since it started; a batch is -1 before the first one.

    `state`: "running", "stopped" or "failed". `last_commit`: the requested time of the newest one.
    `rows`: inserts and updates, per second of the job's time until its last commit. `freshness_s`:
    the age of the oldest sealed checkpoint that is not visible; 0.0 if none waits.
    """

    state: str
    batch: int
    commits: int
    last_commit: str | None
    rows: int
    rows_per_s: float
    deletes: int
    refused_rows: int
    freshness_s: float
    restarts: int


class Tally:
    """A listener of a job's events."""

    def __init__(self) -> None:
        self.commits = 0
        self.rows = 0
        self.deletes = 0
        self.refused_rows = 0
        self.restarts = 0
        self.last_commit: str | None = None
        self._known = deque[object](maxlen=_REPEATED)
        self._began_ms = 0
        self._last_ms = 0

    def __call__(self, event: Event) -> None:
        """Count an event."""
        values = event.values
        if event.kind == "job_started":
            self._began_ms = self._began_ms or event.at_ms
        elif event.kind == "job_restarted":
            self.restarts += 1
        elif event.kind == "rows_quarantined":
            self.refused_rows += values["rows"]
        elif event.kind == "instant_committed" and values["instant"] not in self._known:
            self._known.append(values["instant"])
            self.commits += 1
            self.rows += values["inserts"] + values["updates"]
            self.deletes += values["deletes"]
            self.last_commit = values["instant"]
            self._last_ms = event.at_ms

    @property
    def rows_per_s(self) -> float:
        """Return the rows per second of the time from the start to the last commit."""
        passed_ms = self._last_ms - self._began_ms if self._began_ms else 0
        return self.rows / passed_ms * 1000 if passed_ms > 0 else 0.0
