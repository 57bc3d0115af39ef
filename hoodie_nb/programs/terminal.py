"""The terminal output of a stream: the progress line, and the handling of stop signals.

*Work flow.* `Progress` is computed from a job's event records whenever it is shown, so it needs no
state. `Screen` refreshes one line on a terminal and prints a line from time to time elsewhere.
`StopRequest` turns SIGINT and SIGTERM into a stop request that is honoured between two batches.

**Caveats.** The work of operators reaches the records only when their task ends.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

from hoodie_nb.display import counted
from hoodie_nb.events import Event

_RECENT = 10  # commits used to compute the rate
_INSTANT = tuple(
    f"instant_{state}"
    for state in ("requested", "inflight", "prepared", "committed", "rolled_back")
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """SIGINT, SIGTERM: a stop request while `patient`; else, or the second time, an interrupt."""

    def __init__(self) -> None:
        self.signal = 0
        self.patient = False
        self._process = os.getpid()

    @property
    def exit_code(self) -> int:
        """Return 128 + the signal's number, as shells do."""
        return 128 + (self.signal or signal.SIGINT)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        again = self.signal
        self.signal = number
        if os.getpid() != self._process:  # a child that has not begun its own program yet
            os._exit(self.exit_code)
        if again or not self.patient:
            raise KeyboardInterrupt(self.exit_code)

    @contextmanager
    def handlers(self) -> Iterator[StopRequest]:
        """Install this as the handler, and restore the old ones at the end."""
        before = [(number, signal.signal(number, self)) for number in _SIGNALS]
        try:
            yield self
        finally:
            for number, handler in before:
                signal.signal(number, handler)


# --- the progress line ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stream, computed from a job's event records alone."""

    events: int = 0
    total: int = 0
    per_second: float = 0.0
    instant: str = ""
    commits: int = 0
    files: int = 0
    flushes: int = 0
    rolled_back: int = 0

    @classmethod
    def of(cls, records: Sequence[Event], ends: Sequence[int]) -> Progress:
        """Count the records; `ends` are the events delivered at the end of each batch."""
        count = Counter(record.kind for record in records)
        batches = [r for r in records if r.kind == "batch_ended"]
        states = [r for r in records if r.kind in _INSTANT]
        return cls(
            events=_delivered(records, ends),
            total=ends[-1] if ends else 0,
            per_second=_rate(batches[-_RECENT:], ends),
            instant=_instant(states[-1]) if states else "",
            commits=count["instant_committed"],
            files=count["file_written"],
            flushes=count["buffer_flushed"],
            rolled_back=count["instant_rolled_back"],
        )

    def __str__(self) -> str:
        share = self.events / self.total if self.total else 0.0
        left = self.total - self.events
        pace = [
            f"{share:4.0%} {self.events:,} events",
            f"{self.per_second:,.0f}/s" if self.per_second else "",
            f"{left / self.per_second:.0f} s left" if left and self.per_second else "",
        ]
        made = [
            counted(self.commits, "commit"),
            counted(self.files, "file"),
            counted(self.flushes, "flush", "es") if self.flushes else "",
            f"{self.rolled_back} rolled back" if self.rolled_back else "",
        ]
        parts = [", ".join(filter(None, these)) for these in (pace, made)]
        return " · ".join([*parts, f"instant {self.instant}"] if self.instant else parts)


def _delivered(records: Sequence[Event], ends: Sequence[int]) -> int:
    """Return the events of all batches up to the newest ended one, earlier runs included."""
    before = {"batch_ended": 0, "batch_skipped": 0, "batch_started": 1}
    done = (r.values["batch"] - before[r.kind] for r in records if r.kind in before)
    newest = max(done, default=-1)
    return ends[min(newest, len(ends) - 1)] if newest >= 0 and ends else 0


def _rate(batches: Sequence[Event], ends: Sequence[int]) -> float:
    """Return events per second between the first and the last of these commits."""
    if len(batches) < 2:
        return 0.0
    first, last = (min(r.values["batch"], len(ends) - 1) for r in (batches[0], batches[-1]))
    return float(ends[last] - ends[first]) * 1000 / max(batches[-1].at_ms - batches[0].at_ms, 1)


def _instant(record: Event) -> str:
    """Return `inflight (09:30:12.345)`."""
    digits = str(record.values["instant"])
    state = record.kind.removeprefix("instant_").replace("_", " ")
    return f"{state} ({digits[8:10]}:{digits[10:12]}:{digits[12:14]}.{digits[14:]})"


class Screen:
    """Text output: one line that is refreshed on a terminal, else a line from time to time."""

    def __init__(self, out: TextIO, every_s: float = 5.0) -> None:
        self._out = out
        self._every_s = every_s
        self._live = out.isatty()
        self._shown = ""
        self._shown_at = float("-inf")

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._out.write(("\r\x1b[K" if self._live and self._shown else "") + text + "\n")
        self._out.flush()
        self._shown = ""

    def show(self, line: str, now: float) -> None:
        """Show the progress at `now` (seconds); less often if the output is not a terminal."""
        if line == self._shown or (not self._live and now - self._shown_at < self._every_s):
            return
        self._shown = line
        self._shown_at = now
        width = shutil.get_terminal_size().columns - 1
        self._out.write(f"\r\x1b[K{line[:width]}" if self._live else line + "\n")
        self._out.flush()
