"""A picture as PNG, for readers without a kernel: the same SVG, drawn once by matplotlib.

It knows the elements that `svg` makes and nothing more; theme colours become those of the light
theme. A drawing takes some 0.2 s, so it is made when a widget is first shown and when a run ends.
"""

import io
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

_VARIABLE = re.compile(r"var\([^,]+,\s*([^)]+)\)")
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}
Placed = Sequence[tuple[float, float, str]]


def png(pictures: Placed, width: float, height: float) -> bytes:
    """Return pictures, each with the x and y of its upper left corner, as one PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 100, height / 100), dpi=110, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for x, y, text in pictures:
        for order, element in enumerate(ElementTree.fromstring(text).iter()):
            _add(axes, element, x, y, order)
    sink = io.BytesIO()
    canvas.print_png(sink)  # type: ignore[no-untyped-call]  # matplotlib gives it no types
    return sink.getvalue()


def _add(axes: Any, element: Any, x: float, y: float, order: int) -> None:  # noqa: ANN401 -- untyped
    from matplotlib import patches

    name, told = element.tag.rpartition("}")[2], element.attrib
    style: dict[str, Any] = {
        "facecolor": _colour(told.get("fill", "black")),
        "edgecolor": _colour(told.get("stroke", "none")),
        "linewidth": 0.72 * float(told.get("stroke-width", 1)),
        "zorder": order,
    }

    def at(key: str) -> float:
        return float(told.get(key, 0))

    if name == "rect":
        size = at("width"), at("height")
        axes.add_patch(patches.Rectangle((x + at("x"), y + at("y")), *size, **style))
    elif name == "circle":
        axes.add_patch(patches.Circle((x + at("cx"), y + at("cy")), at("r"), **style))
    elif name in ("polygon", "polyline", "line"):
        points = _points(told)
        style["alpha"] = float(told.get("fill-opacity", 1))
        if told.get("stroke-dasharray"):
            style["linestyle"] = (0, (4, 3))
        places = [(x + u, y + v) for u, v in points]
        if len(places) > 1:
            axes.add_patch(patches.Polygon(places, closed=name == "polygon", **style))
    elif name == "text":
        _write(axes, element, x + at("x"), y + at("y"), order)


def _points(told: Any) -> list[tuple[float, float]]:  # noqa: ANN401 -- an element's attributes
    if "points" not in told:
        return [(float(told["x1"]), float(told["y1"])), (float(told["x2"]), float(told["y2"]))]
    pairs = [pair.split(",") for pair in told["points"].split()]
    return [(float(u), float(v)) for u, v in pairs]


def _write(axes: Any, element: Any, x: float, y: float, order: int) -> None:  # noqa: ANN401 -- untyped
    told = element.attrib
    shown = (element.text or "") + "".join(child.tail or "" for child in element)
    axes.text(
        x,
        y,
        shown.replace("$", r"\$"),
        fontsize=0.66 * float(told.get("font-size", 12)),
        color=_colour(told.get("fill", "black")),
        ha=_ANCHORS[told.get("text-anchor", "start")],
        va="baseline",
        weight=told.get("font-weight", "normal"),
        zorder=order,
    )


def _colour(value: str) -> str:
    found = _VARIABLE.fullmatch(value)
    return found[1] if found else value
