"""`IndexView` and `FaultPanel`: a job's lookups; a button per fault, its recovery."""

from __future__ import annotations

import threading
from typing import Any

import ipywidgets as W

from hoodie_nb.lab.draw import index, recovery
from hoodie_nb.lab.experiments import faults
from hoodie_nb.lab.look.svg import WIDTH
from hoodie_nb.lab.run.run_state import RunState, Trouble
from hoodie_nb.lab.widgets.frame import Frame, Pictures


class IndexView(Frame):
    """The index lookups of a job, of a table's batch writes, or of recorded events."""

    def __init__(self, source: Any, *, hz: float = 4) -> None:  # noqa: ANN401 -- has events, or is some
        super().__init__(Pictures({"index": (WIDTH, index.TALL)}))
        self.state = RunState()
        self.follow(source, self._draw, hz=hz)

    def _draw(self, state: RunState) -> None:
        self.state = state
        self.pictures.show("index", index.index(state))

    @property
    def summary(self) -> str:
        """Return one line: how the keys have been looked up so far."""
        found = index.totals(self.state)
        counts = ", ".join(f"{name} {count:,.0f}" for name, count in found.items())
        return f"IndexView {self.state.index}: {counts}"


class FaultPanel(Frame):
    """A button for each fault of `hn.faults`, and what came of those that were injected.

    The last one's recovery is shown line by line, also when the run has gone on or has ended.
    Recorded events are shown without buttons.
    """

    def __init__(self, job: Any, *, hz: float = 4) -> None:  # noqa: ANN401 -- a Job, or recorded events
        self._job = job
        self.state = RunState()
        live = hasattr(job, "events")
        self.buttons = {n: self._button(n, does) for n, does in faults.names().items() if live}
        row = W.HBox(list(self.buttons.values()), layout={"flex_flow": "row wrap"})
        pictures = Pictures({"recovery": (WIDTH, recovery.HEIGHT)})
        super().__init__(pictures, above=[row] if live else [])
        self.follow(job, self._draw, hz=hz)

    def _button(self, name: str, tooltip: str) -> W.Button:
        button = W.Button(description=name.replace("_", " "), tooltip=tooltip, icon="bolt")
        button.add_class(f"hoodie-fault-{name}")
        button.layout = {"width": "auto"}
        button.on_click(lambda _: self.inject(name))
        return button

    def inject(self, name: str) -> None:
        """Inject a fault into the job, in a separate thread, since some wait for the job."""
        threading.Thread(target=self._inject, args=(name,), daemon=True).start()

    def _inject(self, name: str) -> None:
        try:
            faults.inject(self._job, name)
        except Exception as error:
            self.state.trouble = Trouble(f"the fault {name} was not injected: {error}")
        if self.follower is not None:
            self.follower.wake()

    def _draw(self, state: RunState) -> None:
        self.state = state
        for button in self.buttons.values():
            button.disabled = state.over
        self.pictures.show("recovery", recovery.recovery(state))

    @property
    def summary(self) -> str:
        """Return one line: each fault and what came of it, or the newest note."""
        stories = [f"{s.fault.text[7:]}: {s.outcome}" for s in self.state.stories]
        notes = [note.text for note in self.state.notes[-1:]]
        return f"FaultPanel: {'; '.join(stories or notes) or 'nothing has happened yet'}"
