"""The live picture of a running job.

*Work flow.* One thread asks the job's event log for what is new, folds it into a `RunState` and
draws what has changed, `hz` times a second; it only sets traits, never prints. When the job ends it
draws once more and replaces the picture that the notebook keeps; the job waits for that (a moment),
so that a cell which awaits the job ends with the last picture.

*Fault tolerance.* The dashboard reads, and the Stop button calls `job.stop`. If drawing fails it
says so in the error panel and ends; the job does not notice.

**Caveats.** Until a kernel is idle or awaits (`await job`), clicks are not handled.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import ipywidgets as W

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import Event
from hoodie_nb.lab.draw import buffers, diagram, index, instants, progress
from hoodie_nb.lab.draw.svg import WIDTH
from hoodie_nb.lab.frame import Frame, Pictures
from hoodie_nb.lab.run_state import RunState, Trouble

_PATIENCE_S = 5.0  # how long an ended job waits for its last picture


class RunPictures(Pictures):
    """The pictures of a run, whether it is live or recorded."""

    def __init__(self) -> None:
        half = (progress.HALF, progress.HEIGHT)
        super().__init__(
            {"head": (progress.HEAD_WIDTH, progress.HEAD)},
            {"diagram": (WIDTH, diagram.HEIGHT)},
            {"throughput": half, "buffers": (WIDTH - half[0] - 8, half[1])},
            {
                "instants": (instants.WIDE, instants.HEIGHT),
                "index": (WIDTH - instants.WIDE - 8, instants.HEIGHT),
            },
            {"trouble": (WIDTH, progress.TROUBLE)},
        )
        self._drawn: tuple[int, int] = (-1, -1)

    def draw(self, state: RunState, done: float | None = None) -> None:
        """Draw what may have changed since the last time."""
        seen, moved = self._drawn
        now = state.now_ms // 500
        if seen != state.seen or moved != now:
            self.show("diagram", diagram.diagram(state))
            self.show("throughput", progress.throughput(state))
            self.show("buffers", buffers.buffers(state))
        if seen != state.seen:
            self.show("instants", instants.strip(state))
            self.show("index", index.lookups(state))
        self.show("head", progress.head(state, done))
        self.show("trouble", progress.trouble(state))
        self._drawn = (state.seen, now)


class Dashboard(Frame):
    """The dashboard of a job; `close()` ends it, the end of the job does, too.

    `hz`: drawings a second, at most 10. `total_rows`: how many rows the input has, for the progress
    bar; with `trigger="available_now"` over files it is told from the files taken.
    """

    def __init__(self, job: Any, *, hz: float = 4, total_rows: int | None = None) -> None:  # noqa: ANN401 -- a Job or a LocalJob
        if not 0 < hz <= 10:
            raise InvalidConfig(f"hz={hz}: give at most 10 drawings a second")
        self.job, self.state = job, RunState(_pipeline(job))
        self._hz, self._total = hz, total_rows
        self._position, self._files = 0, _FileShare(job)
        self._wake, self._closing, self._done = (threading.Event() for _ in range(3))
        self.frames, self.cpu_seconds, self.seconds = 0, 0.0, 0.0
        self._stop = W.Button(description="Stop", button_style="danger", icon="stop")
        self._stop.add_class("hoodie-stop")
        self._stop.layout = {"width": "110px", "margin": "4px 0 0 0"}
        self._stop.on_click(self._on_stop)
        self._run_pictures = RunPictures()
        super().__init__(self._run_pictures)
        head = self.pictures.box.children[0]
        head.children = (*head.children, self._stop)
        self._turn()
        job.events.listen(self._on_event)
        self._thread = threading.Thread(target=self._run, name="hoodie-dashboard", daemon=True)
        self._thread.start()

    @property
    def summary(self) -> str:
        """Return one line: status, rows, commits."""
        state = self.state
        return (
            f"Dashboard {state.pipeline}: {state.status}, {state.rows:,} rows in "
            f"{state.committed} commits"
        )

    @property
    def alive(self) -> bool:
        """Whether the dashboard still follows its job."""
        return not self._done.is_set()

    def close(self) -> None:
        """Stop drawing and take the widget off the page."""
        if hasattr(self, "_done"):  # else it was refused as it was made
            self._closing.set()
            self._wake.set()
            self._done.wait(_PATIENCE_S)
        super().close()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            while not self._closing.is_set() and not self.state.over:
                self._wake.wait(1 / self._hz)
                self._wake.clear()
                self._turn()
                self.cpu_seconds = time.thread_time() - cpu
                self.seconds = time.perf_counter() - began
            if not self._closing.is_set():
                self.keep()
        except Exception as error:  # told where it is looked for; the job goes on
            self.state.trouble = Trouble(f"the dashboard has ended: {error!r}", "Show it again.")
            with contextlib.suppress(Exception):
                self.pictures.show("trouble", progress.trouble(self.state))
        finally:
            self._done.set()

    def _turn(self) -> None:
        """Take in what is new, and draw."""
        events, self._position = self.job.events.since(self._position)
        for event in events:
            self.state.see(event)
        state = self.state
        if not state.over:
            if state.began_ms:
                state.now_ms = max(state.now_ms, time.time_ns() // 1_000_000)
            if self._stop.disabled:
                state.status = "stopping"
        else:
            self._stop.disabled, self._stop.description = True, "Stopped"
        self._run_pictures.draw(state, self._share())
        self.frames += 1

    def _share(self) -> float | None:
        if self._total:
            return min(1.0, self.state.written.total / self._total)
        return self._files.done(self.state.committed)

    def _on_event(self, event: Event) -> None:
        """Let the job's thread wait for the last picture before it says that it has ended."""
        if event.kind in ("job_stopped", "job_failed"):
            self._wake.set()
            self._done.wait(_PATIENCE_S)

    # --- the button ------------------------------------------------------------------------------

    def _on_stop(self, _: object) -> None:
        self._stop.disabled = True
        self._stop.description = "Stopping"
        self._wake.set()
        stop: Callable[[], None] | None = getattr(self.job, "stop", None)
        if stop is not None:
            threading.Thread(target=_quietly, args=(stop,), daemon=True).start()


def _quietly(stop: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):  # what went wrong stands in the error panel
        stop()


def _pipeline(job: Any) -> str:  # noqa: ANN401 -- a Job or a LocalJob
    settings, shape = getattr(job, "settings", None), getattr(job, "shape", None)
    return settings.pipeline if settings else shape.pipeline.name if shape else ""


class _FileShare:
    """The share of its files that a job over all files present has committed.

    Spark notes in `sources/0` of the checkpoint which files each batch takes; where those lie, the
    others lie, too.
    """

    def __init__(self, job: Any) -> None:  # noqa: ANN401 -- a Job or a LocalJob
        settings = getattr(job, "settings", None)
        self._log: Path | None = None
        if settings is not None and settings.trigger.get("availableNow"):
            self._log = Path(settings.checkpoint, "sources", "0")
        self._asked = -1
        self._known: float | None = None

    def done(self, commits: int) -> float | None:
        """Return the share, None if it cannot be told; looked up anew after each commit."""
        if self._log is not None and commits != self._asked:
            self._asked = commits
            with contextlib.suppress(OSError, ValueError, KeyError):
                self._known = self._look(self._log)
        return self._known

    def _look(self, log: Path) -> float | None:
        lines = [line for p in log.glob("[0-9]*") for line in p.read_text().splitlines()[1:]]
        taken = {unquote(urlparse(json.loads(line)["path"]).path) for line in lines}
        folders = {Path(path).parent for path in taken}
        present = [p for f in folders for p in f.iterdir() if p.name[0] not in "._"]
        return len(taken) / len(present) if present else None
