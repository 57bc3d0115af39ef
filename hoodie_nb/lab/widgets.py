"""Which widget shows which value; loaded when something is first displayed in a notebook."""

from hoodie_nb.display import View
from hoodie_nb.lab.dashboard import Dashboard
from hoodie_nb.runners.job import Job


def view(value: object) -> View | None:
    """Return a new widget that shows the value; None if there is none."""
    return Dashboard(value) if isinstance(value, Job) else None
