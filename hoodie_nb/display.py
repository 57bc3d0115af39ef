"""How a value of a lower floor shows itself in a notebook: by whoever can draw it.

The lower floors know no widgets. The package's top puts a function into `maker` that returns the
view of a value (the laboratory's, loaded when something is first shown); without the notebook
packages there is none and the text remains.
"""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Protocol


class View(Protocol):
    """What shows a value: a widget."""

    def _ipython_display_(self) -> None: ...

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, Any]: ...


maker: Callable[[object], View | None] = lambda value: None  # noqa: E731 -- a slot, not a function


def view(value: object) -> View | None:
    """Return a new view of the value, None if there is nobody to draw it."""
    return maker(value)


def shown(value: object, known: View | None = None) -> View | None:
    """Show the value by the view known, or by a new one; return it. Without one print its text."""
    found = known or view(value)
    if found is None:
        print(repr(value))
    else:
        found._ipython_display_()
    return found


def bundle(value: object, known: View | None) -> dict[str, Any]:
    """Return the value's forms by MIME type: its text at least."""
    return known._repr_mimebundle_() if known else {"text/plain": repr(value)}


def card(title: str, facts: Mapping[str, object]) -> str:
    """Return a small HTML table of facts; numbers get their commas."""
    told = {k: f"{v:,}" if isinstance(v, int) else str(v) for k, v in facts.items()}
    rows = (
        f"<tr><th style='text-align:left'>{escape(k)}</th>"
        f"<td style='text-align:left'>{escape(v)}</td></tr>"
        for k, v in told.items()
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{''.join(rows)}</table>"
