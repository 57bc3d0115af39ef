"""`Dashboard` of a job: which pictures, and in which rows; its Stop button.

*Fault tolerance.* The dashboard only reads; its Stop button calls `job.stop` in a separate thread.
An error while drawing ends the drawing and does not affect the job.

**Caveats.** Clicks are handled only while the kernel is idle or awaits (`await job`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import ipywidgets as W

from hoodie_nb.display import counted
from hoodie_nb.errors import HoodieError
from hoodie_nb.lab.draw import buffers, diagram, index, instants, progress, writers
from hoodie_nb.lab.look.svg import WIDTH
from hoodie_nb.lab.run.follower import Follower
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.frame import Frame, Pictures
from hoodie_nb.lock.writers import Watch
from hoodie_nb.storage.storage import is_remote

_PICTURES = {
    "diagram": diagram.diagram,
    "throughput": progress.throughput,
    "buffers": buffers.buffers,
    "instants": instants.strip,
    "index": index.lookups,
}


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
            {"writers": (WIDTH, writers.HEIGHT)},
        )
        self._drawn = (-1, -1)

    def draw(self, state: RunState, done: float | None = None) -> None:
        """Draw the pictures again; unchanged ones are not sent."""
        if self._drawn != (state.event_count, state.now_ms // 500):
            self._drawn = (state.event_count, state.now_ms // 500)
            for name, drawn in _PICTURES.items():
                self.show(name, drawn(state))
        self.show("head", progress.head(state, done))
        self.show("trouble", progress.trouble(state))
        self.show("writers", writers.writers(state))
        self.box.children[-1].layout.display = "flex" if self.shown("writers") else "none"


class Dashboard(Frame):
    """The dashboard of a job, or of a table's batch calls; it ends with `close()` or the job.

    Once others write the table, too, they are shown: a look each second, on a store each ten.

    `hz`: redraws per second, at most 10. `total_rows`: the number of input rows, for the progress
    bar; with `trigger="available_now"` over files, progress is computed from the files read.
    """

    def __init__(self, job: Any, *, hz: float = 4, total_rows: int | None = None) -> None:  # noqa: ANN401 -- a Job or a LocalJob
        self.job = job
        self._total = total_rows
        self._files = _FileShare(job)
        self._others = _Others(job)
        self._pictures = RunPictures()
        self._stop = W.Button(description="Stop", button_style="danger", icon="stop")
        self._stop.add_class("hoodie-stop")
        self._stop.layout = {"width": "110px", "margin": "4px 0 0 0"}
        self._stop.on_click(self._on_stop)
        super().__init__(self._pictures)
        head = self.pictures.box.children[0]
        head.children = (*head.children, self._stop)
        self._live = Follower(job.events, self._draw, self.keep, hz=hz, pipeline=_pipeline(job))
        self.followers.append(self._live)

    @property
    def state(self) -> RunState:
        """Return the state of the run that is drawn."""
        return self._live.state

    @property
    def summary(self) -> str:
        """Return one line: status, rows, commits."""
        state = self.state
        others = "; ".join(filter(None, (writers.title(state), state.writers.ahead)))
        return (
            f"Dashboard {state.pipeline}: {state.status}, {counted(state.rows, 'row')} in "
            f"{counted(state.committed, 'commit')}{others and f'; {others}'}"
        )

    def _draw(self, state: RunState) -> None:
        if state.over:
            self._stop.disabled = True
            self._stop.description = "Stopped"
        elif self._stop.disabled:
            state.status = "stopping"
        self._others.look(state)
        done = state.written.total / self._total if self._total else None
        self._pictures.draw(state, done or self._files.done(state.committed))

    def _on_stop(self, _: object) -> None:
        self._stop.disabled = True
        self._stop.description = "Stopping"
        self._live.wake()
        stop: Callable[[], None] | None = getattr(self.job, "stop", None)
        if stop is not None:
            threading.Thread(target=quietly, args=(stop,), daemon=True).start()


def view(value: object) -> Dashboard | None:
    """Return a new dashboard of a job; None for anything else, which has no widget."""
    from hoodie_nb.stream.job import Job

    return Dashboard(value) if isinstance(value, Job) else None


def quietly(stop: Callable[[], None]) -> None:
    """Stop a job in a thread of its own, whose errors nobody would see."""
    with contextlib.suppress(Exception):  # errors are shown in the error panel
        stop()


def _pipeline(job: Any) -> str:  # noqa: ANN401 -- a Job or a LocalJob
    settings = getattr(job, "settings", None)
    shape = getattr(job, "shape", None)
    return settings.pipeline if settings else shape.pipeline.name if shape else ""


class _Others:
    """The other writers of a job's table, or of a table; a look that fails shows those before."""

    def __init__(self, job: Any) -> None:  # noqa: ANN401 -- a Job, a LocalJob or a Table
        table = getattr(job, "table", job)
        storage = getattr(getattr(table, "_handle", table), "storage", None)
        self._watch = Watch(storage) if storage is not None else None
        self._every_s = 10.0 if storage is not None and is_remote(storage.root) else 1.0
        self._next_s = 0.0

    def look(self, state: RunState) -> None:
        if self._watch is None or time.monotonic() < self._next_s:
            return
        with contextlib.suppress(HoodieError, OSError):
            state.writers = replace(state.writers, found=tuple(self._watch.look()))
        self._next_s = time.monotonic() + self._every_s


class _FileShare:
    """The committed share of the input files, for a job over all existing files.

    Spark records in `sources/0` of the checkpoint which files each batch reads; the other input
    files are in the same folder.
    """

    def __init__(self, job: Any) -> None:  # noqa: ANN401 -- a Job or a LocalJob
        settings = getattr(job, "settings", None)
        self._log: Path | None = None
        if settings is not None and settings.trigger.get("availableNow"):
            self._log = Path(settings.checkpoint, "sources", "0")
        self._asked = -1
        self._known: float | None = None

    def done(self, commits: int) -> float | None:
        """Return the share, None if unknown; computed again after each commit."""
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
