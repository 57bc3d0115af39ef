"""`Knob`: an experiment with one slider; each position runs it again.

Each position of the slider runs the experiment again, in this process and without Spark.
"""

from __future__ import annotations

import ipywidgets as W
import pandas as pd

from hoodie_nb.lab.experiments import experiments
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.compare import SIDES, Sides
from hoodie_nb.lab.widgets.frame import Frame


class Knob(Frame):
    """The experiment `name`, one of `Knob.names()`; `turn` does what moving its slider does.

    `result` has a row per run, with its measurements and the rows that are stored in the end.
    """

    names = staticmethod(experiments.names)

    def __init__(self, name: str, position: str | None = None) -> None:
        self._name = name
        self._experiment = experiments.named(name)
        self.positions = list(self._experiment.positions)
        self.slider = W.SelectionSlider(
            options=self.positions,
            value=position or self.positions[-1],
            description=self._experiment.knob,
            continuous_update=False,
            style={"description_width": "initial"},
            layout={"width": "600px"},
        )
        self.slider.add_class("hoodie-knob")
        runs = self._run()
        self._sides = Sides(SIDES[: len(runs)], self._experiment.drawn)
        about = W.HTML(f"<b>{self._experiment.run.__doc__}</b>")
        super().__init__(self._sides, above=[about, self.slider])
        self._show(runs)
        self.slider.observe(lambda _: self._show(self._run()), "value")

    @property
    def summary(self) -> str:
        """Return one line: the experiment and the position of its knob."""
        return f"Knob {self._name}: {self._experiment.knob}, {self.slider.value}"

    def turn(self, position: str) -> pd.DataFrame:
        """Move the slider to one of `positions`, which runs the experiment; return the result."""
        self.slider.value = position
        return self.result

    def _run(self) -> list[experiments.Run]:
        return self._experiment.run(self._experiment.positions[self.slider.value])

    def _show(self, runs: list[experiments.Run]) -> None:
        titles = [run.title.partition(";")[0] for run in runs]
        self.result = pd.DataFrame([dict(run.facts) for run in runs], index=titles)
        for side, run in zip(SIDES, runs, strict=False):
            figures = self._experiment.caption.format(**run.facts)
            self._sides.put(side, run.title, figures, RunState.of(run.events))
        self.keep()
