"""Schedules: drawn by a seed, or listed: all with a few switches and deaths at coarse steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from writers.turns.trial import Process

GRANTS = (0, 0, 1, 2, 4, 8, 16, 40)  # steps without a stop
COARSE = frozenset(
    f"* coord.{point}"
    for point in (
        "requested.post",
        "inflight.post",
        "statuses.pre",
        "prepare.post",
        "publish.post",
        "commit.post",
        "index.pre",
        "sweep.post",
    )
)
Decisions = tuple[tuple[int, str], ...]


class Drawn:
    """A schedule that a seed draws."""

    stops: frozenset[str] = frozenset()

    def __init__(self, seed: int, deaths: int) -> None:
        self._draw = random.Random(f"schedule {seed}")
        self._deaths = deaths

    def next(self, living: list[Process]) -> Process:
        """Return one that is awake, and rather one that does not wait for the lock."""
        for process in living:
            process.resting = max(0, process.resting - 1)
        awake = [p for p in living if not p.resting] or living
        busy = [p for p in awake if not p.waits]
        return self._draw.choice(busy if busy and self._draw.random() < 0.9 else awake)

    def steps(self) -> int:
        """Return a number of steps."""
        return self._draw.choice(GRANTS)

    def after(self, process: Process, kind: str) -> str:
        """Let a process die or sleep at times, or rest while others go on."""
        if kind == "waits" and process.name == "f":
            process.resting = self._draw.randint(0, 8)  # else it mostly sees nothing new
        if kind != "step":
            return ""
        if self._deaths and self._draw.random() < 0.03:
            self._deaths -= 1
            process.resting = self._draw.choice((1, 5, 20))
            return "dies"
        if self._draw.random() < 0.03:
            process.resting = self._draw.randint(1, 40)
            return self._draw.choice(("", "", "sleeps"))
        return ""


class Listed:
    """A schedule in which processes go on until they wait, but for some decisions."""

    stops = COARSE

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = dict(decisions)
        self.stopped = 0  # how often a process stopped
        self._current: str | None = None
        self._tried: set[str] = set()  # they wait, and nothing has happened since

    def next(self, living: list[Process]) -> Process:
        """Return the one that goes on, or the next that may have something to do."""
        first = next((n for n, p in enumerate(living) if p.name == self._current), 0)
        order = living[first:] + living[:first]
        able = [process for process in order if process.name not in self._tried]
        if not able:  # all in turn
            self._tried.clear()
            able = order[1:] + order[:1]
        self._current = able[0].name
        return able[0]

    def steps(self) -> int:
        """Return 0: it stops at each coarse step."""
        return 0

    def after(self, process: Process, kind: str) -> str:
        """Do what was decided for this stop."""
        if kind == "waits":
            self._tried.add(process.name)
            return ""
        self._tried.clear()
        self.stopped += 1
        decision = self.decisions.get(self.stopped, "")
        if decision:
            self._tried.add(process.name)  # another one goes on
        return decision


def listed(
    run: Callable[[Listed], None], most: int, decisions: Decisions = ()
) -> Iterator[Decisions]:
    """Run all schedules with at most so many decisions, and yield each when it has run."""
    schedule = Listed(decisions)
    run(schedule)
    yield decisions
    if len(decisions) < most:
        last = decisions[-1][0] if decisions else 0
        for stop in range(last + 1, schedule.stopped + 1):
            for kind in ("switches", "dies"):
                if kind == "switches" or all(other != "dies" for _, other in decisions):
                    yield from listed(run, most, (*decisions, (stop, kind)))
