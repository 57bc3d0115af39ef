"""Follower: the thread that redraws a widget; how often, and how a run's last picture is drawn.

It draws at most `hz` times per second, and at once when it is woken; drawing may set traits but
must not print. When the run ends it draws a last time and calls `ended`; the job's own thread waits
a few seconds for that, so that a cell which awaits the job ends with the last picture.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import Event, EventLog
from hoodie_nb.lab.run.run_state import RunState, Trouble

_PATIENCE_S = 5.0  # how long an ended job waits for its last picture


class Follower:
    """Follows a log from its first event to the end of its job, or to `close`.

    `cost` is the share of one core that the thread used.
    """

    def __init__(
        self,
        log: EventLog,
        draw: Callable[[RunState], None],
        ended: Callable[[], None] = lambda: None,
        *,
        hz: float = 4,
        pipeline: str = "",
    ) -> None:
        if not 0 < hz <= 10:
            raise InvalidConfig(f"hz={hz}: give at most 10 redraws per second")
        self.state = RunState(pipeline)
        self.cost = 0.0
        self._log = log
        self._draw = draw
        self._ended = ended
        self._hz = hz
        self._position = 0
        self._wake, self._closing, self._done = (threading.Event() for _ in range(3))
        self._turn()
        log.listen(self._on_event)
        self.thread = threading.Thread(target=self._run, name="hoodie-drawing", daemon=True)
        self.thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still follows the log."""
        return not self._done.is_set()

    def wake(self) -> None:
        """Draw now."""
        self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._wake.set()
        self._done.wait(_PATIENCE_S)

    def _run(self) -> None:
        began = time.perf_counter()
        cpu = time.thread_time()
        try:
            while not self._closing.is_set() and not self.state.over:
                self._wake.wait(1 / self._hz)
                self._wake.clear()
                self._turn()
                self.cost = (time.thread_time() - cpu) / (time.perf_counter() - began)
            if not self._closing.is_set():
                self._ended()
        except Exception as error:  # shown in the dashboard; the job continues
            self.state.trouble = Trouble(f"drawing has ended: {error!r}", "Display it again.")
        finally:
            self._done.set()

    def _turn(self) -> None:
        events, self._position = self._log.since(self._position)
        self.state.take(events)
        if self.state.began_ms and not self.state.over:
            self.state.take((), now_ms=time.time_ns() // 1_000_000)
        self._draw(self.state)

    def _on_event(self, event: Event) -> None:
        if event.kind in ("job_stopped", "job_failed"):
            self._wake.set()
            self._done.wait(_PATIENCE_S)
