"""`Replay` of a recorded run: play, speed, step, back; how its state is made again.

The slider is the time since the first event; a step goes to the next event. Moving forward applies
the events in between; moving back applies them again from the start.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W

from hoodie_nb.display import counted
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import Event, EventLog
from hoodie_nb.lab.look.palette import INK, PAPER, THEME
from hoodie_nb.lab.player.page import save_page
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.dashboard import RunPictures
from hoodie_nb.lab.widgets.frame import Frame

_TICK_MS = 100


class Replay(Frame):
    """The dashboard of a recording: `play`, `step`, `back`, `go(ms)`; it starts at the end.

    `run` is a job, or its events; `pipeline` if they do not name it. `save(path)` writes a page
    that plays the run without a kernel.
    """

    def __init__(self, run: Any, pipeline: str = "") -> None:  # noqa: ANN401 -- has events, or is some
        log = getattr(run, "events", run)
        events: Iterable[Event] = log.records() if isinstance(log, EventLog) else log
        self._events = sorted(events, key=lambda event: event.at_ms)
        if not self._events:
            raise InvalidConfig("there are no events to replay: give job.events.records()")
        self._pipeline = pipeline or RunState.of(self._events).pipeline or "step2"
        self._begin = self._events[0].at_ms
        self.duration_ms = self._events[-1].at_ms - self._begin
        self.state = RunState(self._pipeline)
        self._taken = 0
        wide = {"width": "420px"}
        top = max(1, self.duration_ms)
        self._play = W.Play(value=top, max=top, step=_TICK_MS, interval=_TICK_MS)
        self._slider = W.IntSlider(max=top, step=1, readout=False, layout=wide)
        self._speed = W.Dropdown(
            options={"1/4 x": 25, "1 x": 100, "4 x": 400}, value=100, layout={"width": "80px"}
        )
        W.jslink((self._play, "value"), (self._slider, "value"))
        self._slider.observe(lambda change: self._move(change["new"]), "value")
        W.dlink((self._speed, "value"), (self._play, "step"))
        self._line = W.HTML(layout={"height": "24px", "overflow": "hidden"})
        buttons = [_button("step-backward", self.back), _button("step-forward", self.step)]
        above = W.HBox([self._play, *buttons, self._slider, self._speed])
        self._run = RunPictures()
        super().__init__(self._run, above=[above], below=[self._line])
        self.go(self.duration_ms)

    @property
    def summary(self) -> str:
        """Return one line: the position of the replay."""
        state = self.state
        return (
            f"Replay {self._pipeline}: {self.position_ms / 1000:.1f} of "
            f"{self.duration_ms / 1000:.1f} s, {self._taken} of {len(self._events)} events, "
            f"{counted(state.rows, 'row')} in {counted(state.committed, 'commit')}"
        )

    @property
    def position_ms(self) -> int:
        """Return the time since the first event."""
        return int(self._slider.value)

    def play(self) -> None:
        """Play from here, or from the start if this is the end (in the browser)."""
        if self.position_ms >= self.duration_ms:
            self.go(0)
        self._play.playing = True

    def step(self) -> None:
        """Go to the next event, and those of the same millisecond."""
        if self._taken < len(self._events):
            self.go(self._events[self._taken].at_ms - self._begin)

    def back(self) -> None:
        """Go back to just before the newest event."""
        now = self._events[max(0, self._taken - 1)].at_ms
        earlier = [e.at_ms for e in self._events if e.at_ms < now]
        self.go(earlier[-1] - self._begin if earlier else 0)

    def go(self, ms: int) -> None:
        """Show the run as of so many milliseconds after the first event."""
        # else the page has its own
        ms = max(0, min(int(ms), self.duration_ms))
        self._play.value = ms
        if ms == self._slider.value:
            self._move(ms)
        else:
            self._slider.value = ms

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file (UTF-8) that plays the run in any browser, without a network."""
        save_page(Path(path), self._events, self._pipeline)

    def _move(self, ms: int) -> None:
        now = self._begin + ms
        if now < self.state.now_ms:
            self.state = RunState(self._pipeline)
            self._taken = 0
        taken = bisect_right(self._events, now, key=lambda event: event.at_ms)
        self.state.take(self._events[self._taken : taken], now_ms=now)
        self._taken = taken
        self._run.draw(self.state)
        self._line.value = _line_of(self._events[self._taken - 1], self._taken, len(self._events))


def _button(icon: str, does: Any) -> W.Button:  # noqa: ANN401 -- a method without arguments
    button = W.Button(icon=icon, layout={"width": "40px"}, tooltip=icon.replace("-", " "))
    button.on_click(lambda _: does())
    return button


def _line_of(event: Event, taken: int, of: int) -> str:
    style = f"{THEME};color:{INK};background:{PAPER};white-space:nowrap"
    return f'<code style="{style}">event {taken} of {of}: {escape(str(event)[:220])}</code>'
