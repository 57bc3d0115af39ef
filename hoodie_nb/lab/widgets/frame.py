"""The frame of every widget: boxes of fixed height, the PNG and text saved in a notebook.

*Work flow.* `Pictures` has one `HTML` widget per picture and sends only changes. `Frame` adds
controls around them. Its MIME bundle has the live view, a PNG of the pictures and a line of text,
so that a notebook is also readable on GitHub. It is displayed under a display id: `keep` replaces
the PNG once, when a run has ended.

**Caveats**: a Frame inside another widget is live but saves no PNG.
"""

import base64
import contextlib
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as W

from hoodie_nb.lab.run.follower import Follower
from hoodie_nb.lab.run.run_state import RunState

_VIEW = "application/vnd.jupyter.widget-view+json"
_GAP = 8
_SAID = re.compile(r'aria-label="(.*?)"|<title>(.*?)</title>')


class Pictures:
    """Pictures by name, in rows; each has a width in drawing units and a height in pixels."""

    def __init__(self, *rows: Mapping[str, tuple[int, int]]) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._htmls: dict[str, W.HTML] = {}
        self.width = max(sum(w for w, _ in row.values()) + _GAP * (len(row) - 1) for row in rows)
        self.ends: dict[str, int] = {}  # where the row of a picture ends, in pixels
        boxes = []
        top = 0
        for row in rows:
            x = 0
            high = max(h for _, h in row.values())
            for name, (width, height) in row.items():
                self._places[name] = (x, top)
                self.ends[name] = top + high + _GAP
                self._htmls[name] = _html(width, height)
                x += width + _GAP
            boxes.append(_row([self._htmls[name] for name in row], self.width, high))
            top += high + _GAP
        self.box = W.VBox(boxes, layout={"max_width": "100%", "overflow": "auto hidden"})

    def show(self, name: str, picture: str) -> None:
        """Show a picture; nothing is sent if it has not changed."""
        if self._htmls[name].value != picture:
            self._htmls[name].value = picture

    def shown(self, name: str) -> str:
        """Return the current picture."""
        return str(self._htmls[name].value)

    def png(self) -> bytes:
        """Return all pictures as one PNG."""
        from hoodie_nb.lab.look.still import png

        height = max(end for name, end in self.ends.items() if self.shown(name))
        return png(self.placed(), self.width, height)

    def words(self) -> list[str]:
        """Return the labels of the pictures and of their parts, as HTML."""
        shown = "".join(text for _, _, text in self.placed())
        return [label or title for label, title in _SAID.findall(shown)]

    def placed(self) -> list[tuple[int, int, str]]:
        """Return the pictures, each with the x and y of its top left corner."""
        return [(*at, self.shown(n)) for n, at in self._places.items() if self.shown(n)]


def _html(width: int, height: int) -> W.HTML:
    layout = {"width": f"{width}px", "height": f"{height}px", "margin": "0"}
    return W.HTML(layout={**layout, "overflow": "hidden", "flex": "0 0 auto"})


def _row(children: Sequence[W.Widget], width: int, height: int) -> W.HBox:
    layout = {"width": f"{width}px", "height": f"{height + _GAP}px", "flex": "0 0 auto"}
    return W.HBox(children, layout={**layout, "justify_content": "space-between"})


class Frame(W.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Controls and pictures with a static form (PNG); `summary` is the text form."""

    def __init__(
        self, pictures: Pictures, *, above: Sequence[W.Widget] = (), below: Sequence[W.Widget] = ()
    ) -> None:
        self._words = W.HTML()
        self.as_text = W.ToggleButton(False, description="Show as text")
        self.as_text.observe(lambda _: self._put_in_words(), "value")
        super().__init__([*above, pictures.box, *below, self.as_text, self._words])
        self.pictures = pictures
        self.add_class("hoodie-frame")
        self.followers: list[Follower] = []
        self._display_id = f"hoodie-{uuid.uuid4().hex[:12]}"
        self._displayed = False

    @property
    def summary(self) -> str:
        """Return one line that describes the content."""
        return type(self).__name__

    @property
    def follower(self) -> Follower | None:
        """Return the newest follower; None if nothing is live."""
        return self.followers[-1] if self.followers else None

    def follow(self, source: Any, draw: Callable[[RunState], None], *, hz: float = 4) -> None:  # noqa: ANN401 -- has events, or is some
        """Draw a run while it is running, or recorded events as of their end."""
        log = getattr(source, "events", None)
        if log is None:
            draw(RunState.of(source))
        else:
            self.followers.append(Follower(log, draw, self.keep, hz=hz))

    def _put_in_words(self) -> None:
        """Write what the pictures say, also what they show on hover, as a list; or remove it."""
        items = "".join(f"<li>{said}</li>" for said in self.pictures.words())
        self._words.value = f"<ul>{items}</ul>" if self.as_text.value else ""

    def close(self) -> None:
        """Stop drawing and remove the widget from the page."""
        for follower in getattr(self, "followers", ()):  # missing if the constructor failed
            follower.close()
        super().close()

    def __repr__(self) -> str:
        return f"<{self.summary}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        with contextlib.suppress(ImportError):  # without resvg the text remains
            bundle["image/png"] = base64.b64encode(self.pictures.png()).decode()
        if self.comm is not None:
            bundle[_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return bundle

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._displayed = True
        self._show_forms(display)

    def keep(self) -> None:
        """Replace the PNG saved in the notebook by the current pictures."""
        if self._displayed:
            from IPython.display import update_display

            self._show_forms(update_display)

    def _show_forms(self, show: Callable[..., object]) -> None:
        """Send all forms to the notebook, with a text for those who cannot see the PNG."""
        alternative = {"image/png": {"alt": self.summary}}
        show(self._repr_mimebundle_(), raw=True, metadata=alternative, display_id=self._display_id)
