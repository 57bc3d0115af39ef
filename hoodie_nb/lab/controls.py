"""Settings for a run, and a comparison of the last run with the new one.

Nothing runs until Run is pressed. With a Spark session a run is a real stream; without one it is an
in-process job: one task, the same operators, the same events.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from hoodie_nb.lab.draw import buffers, progress, svg
from hoodie_nb.lab.follower import Follower
from hoodie_nb.lab.frame import Frame, Pictures
from hoodie_nb.lab.race import Generated
from hoodie_nb.lab.run_state import RunState
from hoodie_nb.lab.trial import Trial
from hoodie_nb.writer.pipelines import PIPELINES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hoodie_nb.events import EventLog

_TITLE = 64
_SIZES = ("32 KB", "128 KB", "512 KB", "2 MB", "32 MB")
_PACES = {"none": 0.0, "0.5 s": 0.5, "1 s": 1.0, "2 s": 2.0}


class Controls(Frame):
    """Choose settings, press Run, compare: the last run is on the left, the new one on the right.

    `spark`: the session to run on; `rows`: rows per run, in `batches` micro-batches.
    """

    def __init__(
        self, spark: SparkSession | None = None, *, rows: int = 40_000, batches: int = 4
    ) -> None:
        self._spark, self._rows, self._batches = spark, rows, batches
        self._runs: list[tuple[str, RunState]] = []
        self._ended = threading.Event()
        self.knobs = _knobs(on_spark=spark is not None)
        self.button = W.Button(description="Run", button_style="primary", icon="play")
        self.button.add_class("hoodie-run")
        self.button.on_click(lambda _: self.run())
        half, sides = progress.HALF, ("last", "new")
        rows_of = {"title": _TITLE, "throughput": progress.HEIGHT, "buffers": progress.HEIGHT}
        pictures = Pictures(
            *({f"{side} {what}": (half, high) for side in sides} for what, high in rows_of.items())
        )
        grid = W.GridBox(
            list(self.knobs.values()),
            layout={"grid_template_columns": "repeat(3, minmax(0, 1fr))", "max_width": "960px"},
        )
        super().__init__(pictures, above=[grid, self.button])
        self._show("last", None)
        self._show("new", None)

    @property
    def trial(self) -> Trial:
        """Return the trial for the current settings."""
        chosen: dict[str, Any] = {name: knob.value for name, knob in self.knobs.items()}
        names = ("partitions", "skew", "update_share", "record_bytes")
        made = Generated(self._rows, self._batches, **{name: chosen.pop(name) for name in names})
        return Trial(**chosen, input=made)

    @property
    def summary(self) -> str:
        """Return a summary of each run."""
        lines = [f"{title}: {_figures(state)}" for title, state in self._runs[-2:]]
        return "; ".join(lines) or "Controls: nothing has run yet"

    def run(self) -> None:
        """Start a run with the current settings; the previous run moves to the left."""
        if self.button.disabled:
            return
        self.button.disabled = True
        self._ended.clear()
        threading.Thread(target=self._run, args=(self.trial,), daemon=True).start()

    def wait(self) -> None:
        """Return when the run has ended."""
        self._ended.wait()

    def _run(self, trial: Trial) -> None:
        title = str(trial)

        def started(events: EventLog) -> None:
            if self._runs:
                self._show("last", self._runs[-1])
            self._runs.append((title, RunState()))
            self.follower = Follower(events, self._draw, self.keep, pipeline=trial.pipeline)

        try:
            trial.run(started, self._spark)
        except Exception as error:
            drawn = svg.text(1, 30, f"{type(error).__name__}: {error}", fill=svg.RED, max_chars=70)
            picture = svg.picture(_TITLE, [drawn], label="error", width=progress.HALF)
            self.pictures.show("new title", picture)
        finally:
            self.button.disabled = False
            self._ended.set()

    def _draw(self, state: RunState) -> None:
        self._runs[-1] = (self._runs[-1][0], state)
        self._show("new", self._runs[-1])

    def _show(self, side: str, run: tuple[str, RunState] | None) -> None:
        title, state = run or ("no run yet", RunState())
        first, _, second = title.partition("; ")
        parts = [svg.heading(f"{side.capitalize()}: {first}"), svg.note(1, 30, second)]
        parts.append(svg.text(1, 52, _figures(state), size=14, fill=svg.BLUE))
        drawn = svg.picture(_TITLE, parts, label=f"{side} run: {title}", width=progress.HALF)
        self.pictures.show(f"{side} title", drawn)
        self.pictures.show(f"{side} throughput", progress.throughput(state))
        self.pictures.show(f"{side} buffers", buffers.buffers(state))


def _figures(state: RunState) -> str:
    if not state.began_ms:
        return ""
    seconds = (state.now_ms - state.began_ms) / 1000
    rate = svg.short(state.written.total / max(seconds, 0.001))
    peak = svg.size_of(state.buffers.peak)
    return f"{state.status}: {seconds:.1f} s, {rate} rows/s, peak buffer {peak}"


def _knobs(*, on_spark: bool) -> dict[str, W.Widget]:
    def slider(label: str, value: float, low: float, high: float) -> W.Widget:
        kind = W.IntSlider if isinstance(value, int) else W.FloatSlider
        step = {} if isinstance(value, int) else {"step": 0.05}
        return kind(value, min=low, max=high, description=label, **step)

    indexes = {"its own": "", "bloom+state": "bloom+state", "bloom": "bloom", "state": "state"}
    knobs = {
        "pipeline": W.Dropdown(options=list(PIPELINES), value="step3", description="pipeline"),
        "index": W.Dropdown(options=indexes, value="", description="index"),
        "batch_size": W.Dropdown(options=_SIZES, value="128 KB", description="buffer"),
        "writers": slider("writers", 2 if on_spark else 1, 1, 4),
        "partitions": slider("partitions", 4, 1, 32),
        "skew": slider("skew", 0.0, 0.0, 1.0),
        "update_share": slider("updates", 0.3, 0.0, 1.0),
        "record_bytes": slider("row bytes", 200, 20, 1000),
        "pace_s": W.Dropdown(options=_PACES, value=0.0, description="pace"),
    }
    knobs["writers"].disabled = not on_spark
    for knob in knobs.values():
        knob.layout.width = "auto"
    return knobs
