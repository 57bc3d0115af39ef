"""`Controls`: a run's settings, Run and Stop, the last run beside the new one.

Nothing runs until Run is pressed; Stop ends the run after its micro-batch. With a Spark session a
run is a real stream; without one its tasks are threads: the same operators, the same events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.lab.experiments.race import Generated
from hoodie_nb.lab.experiments.trial import Trial
from hoodie_nb.lab.run.follower import Follower
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.compare import Sides, figures
from hoodie_nb.lab.widgets.dashboard import quietly
from hoodie_nb.lab.widgets.frame import Frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hoodie_nb.events import EventLog

_SIZES = ("32 KB", "128 KB", "512 KB", "2 MB", "32 MB")
_PACES = {"none": 0.0, "0.5 s": 0.5, "1 s": 1.0, "2 s": 2.0}


class Controls(Frame):
    """Choose settings, press Run, compare: the last run is on the left, the new one on the right.

    `spark`: the session to run on; `rows`: rows per run, in `batches` micro-batches.
    """

    def __init__(
        self, spark: SparkSession | None = None, *, rows: int = 40_000, batches: int = 4
    ) -> None:
        self._spark = spark
        self._rows = rows
        self._batches = batches
        self._runs: list[tuple[str, RunState]] = []
        self._ended = threading.Event()
        self._stop_run: Callable[[], None] = self._ended.set  # nothing to stop yet
        self.knobs = _knobs()
        self.button = W.Button(description="Run", button_style="primary", icon="play")
        self.button.add_class("hoodie-run")
        self.button.on_click(lambda _: self.run())
        self.stop_button = W.Button(
            description="Stop", button_style="danger", icon="stop", disabled=True
        )
        self.stop_button.add_class("hoodie-stop-run")
        self.stop_button.on_click(lambda _: self.stop())
        self._sides = Sides(("last", "new"), ("lanes", "buffers"))
        grid = W.GridBox(
            list(self.knobs.values()),
            layout={"grid_template_columns": "repeat(3, minmax(0, 1fr))", "max_width": "960px"},
        )
        super().__init__(self._sides, above=[grid, W.HBox([self.button, self.stop_button])])
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
        lines = [f"{title}: {figures(state)}" for title, state in self._runs[-2:]]
        return "; ".join(lines) or "Controls: nothing has run yet"

    def run(self) -> None:
        """Start a run with the current settings; the previous run moves to the left."""
        if self.button.disabled:
            return
        self.button.disabled = True
        self._ended.clear()
        threading.Thread(target=self._run, args=(self.trial,), daemon=True).start()

    def stop(self) -> None:
        """Stop the run after its micro-batch, in a separate thread: a stream takes a while."""
        self.stop_button.disabled = True
        threading.Thread(target=quietly, args=(self._stop_run,), daemon=True).start()

    def wait(self) -> None:
        """Return when the run has ended."""
        self._ended.wait()

    def _run(self, trial: Trial) -> None:
        def started(events: EventLog, stop: Callable[[], None]) -> None:
            if self._runs:
                self._show("last", self._runs[-1])
            self._runs.append((str(trial), RunState()))
            self._stop_run = stop
            self.stop_button.disabled = False
            live = Follower(events, self._draw, self.keep, pipeline=trial.pipeline)
            self.followers[:] = [live]

        try:
            trial.run(started, self._spark)
        except Exception as error:
            self._sides.put("new", str(trial), f"{type(error).__name__}: {error}", RunState())
        finally:
            self.button.disabled = False
            self.stop_button.disabled = True
            self._ended.set()

    def _draw(self, state: RunState) -> None:
        self._runs[-1] = (self._runs[-1][0], state)
        self._show("new", self._runs[-1])

    def _show(self, side: str, run: tuple[str, RunState] | None) -> None:
        title, state = run or ("no run yet", RunState())
        self._sides.put(side, f"{side.capitalize()}: {title}", figures(state), state)


def _knobs() -> dict[str, W.Widget]:
    def slider(label: str, value: float, low: float, high: float) -> W.Widget:
        kind = W.IntSlider if isinstance(value, int) else W.FloatSlider
        step = {} if isinstance(value, int) else {"step": 0.05}
        return kind(value, min=low, max=high, description=label, **step)

    indexes = {"the default": "", "bloom+state": "bloom+state", "bloom": "bloom", "state": "state"}
    knobs = {
        "pipeline": W.Dropdown(options=list(PIPELINES), value="step3", description="pipeline"),
        "index": W.Dropdown(options=indexes, value="", description="index"),
        "batch_size": W.Dropdown(options=_SIZES, value="128 KB", description="buffer"),
        "writers": slider("writers", 2, 1, 4),
        "partitions": slider("partitions", 4, 1, 32),
        "skew": slider("skew", 0.0, 0.0, 1.0),
        "update_share": slider("updates", 0.3, 0.0, 1.0),
        "record_bytes": slider("row bytes", 200, 20, 1000),
        "pace_s": W.Dropdown(options=_PACES, value=0.0, description="pace"),
    }
    for knob in knobs.values():
        knob.layout.width = "auto"
    return knobs
