"""How a table, a commit or a list of findings is displayed in a notebook.

The lower packages do not import widgets. The top-level package sets `maker` to a function that
returns the widget for a value (from `lab`, loaded on first display). Without the notebook packages
there is no widget, and the value's text is shown.
"""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Protocol


class View(Protocol):
    """A widget that shows a value."""

    def _ipython_display_(self) -> None: ...

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, Any]: ...


maker: Callable[[object], View | None] = lambda value: None  # noqa: E731 -- a slot, not a function


def view(value: object) -> View | None:
    """Return a new view of the value; None without the notebook packages."""
    return maker(value)


def shown(value: object, known: View | None = None) -> View | None:
    """Show the value in the given or a new view and return it; without one, print the text."""
    found = known or view(value)
    if found is None:
        print(repr(value))
    else:
        found._ipython_display_()
    return found


def bundle(value: object, known: View | None) -> dict[str, Any]:
    """Return the value's representations by MIME type, at least text."""
    return known._repr_mimebundle_() if known else {"text/plain": repr(value)}


def card(title: str, facts: Mapping[str, object]) -> str:
    """Return a small HTML table of facts; numbers get their commas."""
    texts = {k: f"{v:,}" if isinstance(v, int) else str(v) for k, v in facts.items()}
    rows = (
        f"<tr><th style='text-align:left'>{escape(k)}</th>"
        f"<td style='text-align:left'>{escape(v)}</td></tr>"
        for k, v in texts.items()
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{''.join(rows)}</table>"


def counted(count: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun.

    >>> counted(1, "file"), counted(1200, "row")
    ('1 file', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else plural}"
