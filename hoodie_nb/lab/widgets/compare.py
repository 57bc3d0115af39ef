"""`Compare`: two runs side by side on one time axis; which figures stand above them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hoodie_nb.lab.draw import buffers, index, instants, lanes, progress, recovery
from hoodie_nb.lab.look import svg
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.frame import Frame, Pictures

SIDES = ("left", "right")
_TITLE = 64
_DRAWN: dict[str, tuple[Callable[[RunState], str], int, str]] = {
    "lanes": (lanes.lanes, lanes.HEIGHT, "what each task does, over time"),
    "throughput": (progress.throughput, progress.HEIGHT, "the rows that reach the writers"),
    "buffers": (buffers.buffers, progress.HEIGHT, "the bytes in the writers' buffers, over time"),
    "index": (index.lookups, instants.HEIGHT, "how the index finds the keys"),
    "recovery": (recovery.recovery, recovery.HEIGHT, "faults, and how the job recovers"),
}


class Sides(Pictures):
    """The pictures of one or two runs, one column each; `drawn` names the pictures."""

    def __init__(self, sides: Sequence[str], drawn: Sequence[str]) -> None:
        wide = progress.HALF if len(sides) > 1 else svg.WIDTH
        rows = {"title": _TITLE, **{name: _DRAWN[name][1] for name in drawn}}
        super().__init__(
            *({f"{side} {what}": (wide, high) for side in sides} for what, high in rows.items())
        )
        self._drawn = drawn
        self._wide = wide
        self._runs = {side: (f"{side.capitalize()}: no run yet", "", RunState()) for side in sides}

    def put(self, side: str, title: str, figures: str, state: RunState) -> None:
        """Show a run on a side; `title` and what follows its `; ` are shown above `figures`."""
        self._runs[side] = (title, figures, state)
        runs = [run for _, _, run in self._runs.values()]
        longest = max(run.now_ms - run.began_ms for run in runs)
        if not all(run.over for run in runs):
            longest = -(-longest // 1000) * 1000  # redrawn once a second, not at each frame
        for name, (title, figures, state) in self._runs.items():
            first, _, second = title.partition("; ")
            parts = [svg.heading(first), svg.note(1, 30, second)]
            parts.append(svg.text(1, 52, figures, size=14, title=figures))
            self.show(f"{name} title", svg.picture(_TITLE, parts, label=title, width=self._wide))
            then = copy.copy(state)  # as if it were over: from its start, not the last seconds
            then.now_ms = state.began_ms + longest
            then.status = "stopped"
            for what in self._drawn:
                draw, high, shown = _DRAWN[what]
                empty = svg.picture(high, [svg.note(1, 12, f"A run shows {shown}")], label=shown)
                self.show(f"{name} {what}", draw(then) if state.event_count else empty)


class Compare(Frame):
    """Two runs side by side on the same time axis: jobs, live, or recorded events."""

    def __init__(self, left: Any, right: Any, *, hz: float = 4) -> None:  # noqa: ANN401 -- jobs, or recorded events
        self._sides = Sides(SIDES, ("lanes", "throughput", "buffers"))
        self._states = {side: RunState() for side in SIDES}
        super().__init__(self._sides)
        for side, source in zip(SIDES, (left, right), strict=True):
            self.follow(source, partial(self._draw, side), hz=hz)

    def _draw(self, side: str, state: RunState) -> None:
        self._states[side] = state
        title = f"{state.pipeline}, index {state.index}, {svg.counted(state.tasks, 'task')}"
        self._sides.put(side, title, figures(state), state)

    @property
    def summary(self) -> str:
        """Return one line: both runs."""
        lines = [f"{s.pipeline}: {s.rows:,} rows, {s.status}" for s in self._states.values()]
        return f"Compare {' | '.join(lines)}"


def figures(state: RunState) -> str:
    """Return the seconds, rate and peak buffer of a run in one line."""
    if not state.began_ms:
        return ""
    seconds = (state.now_ms - state.began_ms) / 1000
    rate = svg.short(state.written.total / max(seconds, 0.001))
    peak = svg.size_of(state.buffers.peak)
    return f"{state.status}: {seconds:.1f} s, {rate} rows/s, peak buffer {peak}"
