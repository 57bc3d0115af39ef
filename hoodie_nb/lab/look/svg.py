"""What all pictures are made of: text, marks, legends, how numbers are shortened.

A picture has its own paper, and keeps its width and height in pixels: a notebook does not jump, and
text does not shrink in a narrow cell, which scrolls.
"""

from collections.abc import Iterable, Sequence
from html import escape

from hoodie_nb.display import counted as counted
from hoodie_nb.lab.look import palette

WIDTH = 960

# a state of an instant: its shape and its colour
STATES = {
    "requested": ("ring", palette.GREY),
    "inflight": ("triangle", palette.AMBER),
    "prepared": ("square", palette.BLUE),
    "completed": ("disc", palette.GREEN),
    "rolled back": ("cross", palette.RED),
    "abandoned": ("dash", palette.GREY),
}
_LETTER = 6.3  # the mean width of a small letter
_NAMES = {"size": "font_size", "weight": "font_weight", "anchor": "text_anchor"}


def tag(name: str, title: str = "", /, **attributes: object) -> str:
    """Return an element; attribute names have `_` for `-`, or are short; numbers are rounded.

    >>> tag("rect", "all", x=1.0, fill="red", stroke_width=2)
    '<rect x="1" fill="red" stroke-width="2"><title>all</title></rect>'
    """
    caption = " ".join(
        f'{_NAMES.get(k, k).replace("_", "-")}="{_value(v)}"' for k, v in attributes.items()
    )
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f"<{name} {caption}>{inside}</{name}>"


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))


def picture(height: int, parts: Iterable[str], *, label: str, width: int = WIDTH) -> str:
    """Return the whole picture; `label` is for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="{palette.THEME};display:block;background:{palette.PAPER}" '
        f'font-family="system-ui, sans-serif" stroke-width="0.7">'
        f"{''.join(parts)}</svg>"
    )


def text(
    x: float, y: float, content: object, *, max_chars: int = 1000, title: str = "", **more: object
) -> str:
    """Return a line of text; `anchor` and `weight` are SVG's; `max_chars` limits the characters."""
    shown = str(content)
    if len(shown) > max_chars:
        shown, title = shown[: max_chars - 1] + "…", title or shown
    element = tag("text", title, x=x, y=y, **{"size": palette.TEXT_PX, "fill": palette.INK, **more})
    return element.replace("</text>", f"{escape(shown)}</text>")


def note(x: float, y: float, content: object, **more: object) -> str:
    """Return a line of small, faint text."""
    return text(x, y, content, **{"size": palette.NOTE_PX, "fill": palette.FAINT, **more})  # type: ignore[arg-type]


def heading(content: object) -> str:
    """Return the heading of a picture."""
    return text(1, 12, content, weight="bold")


def bar(
    x: float, y: float, width: float, height: float, /, *, title: str = "", **more: object
) -> str:
    """Return a rectangle, outlined; a negative size counts as 0. `title` is shown on hover."""
    size = {"width": max(0.0, width), "height": max(0.0, height), "stroke": palette.INK}
    return tag("rect", title, x=x, y=y, **{**size, **more})


def line(x1: float, y1: float, x2: float, y2: float, /, **more: object) -> str:
    """Return a straight line, thin and grey by default."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **{"stroke": palette.LINE, **more})


def path(
    points: Iterable[tuple[float, float]], *, closed: bool = False, title: str = "", **more: object
) -> str:
    """Return a line through points, or a closed shape."""
    caption = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("polygon" if closed else "polyline", title, points=caption, **more)


def mark(shape: str, x: float, y: float, /, *, fill: str, size: float = 6, title: str = "") -> str:
    """Return a small mark with an outline: disc, triangle, square, cross, dash; ring and frame."""
    s = size
    look: dict[str, object] = {"fill": fill, "stroke": palette.INK}
    if shape in ("ring", "frame"):
        look = {"fill": "none", "stroke": fill, "stroke_width": 2}
    if shape in ("ring", "disc"):
        return tag("circle", title, cx=x, cy=y, r=s - 1 if shape == "ring" else s, **look)
    ends: Sequence[tuple[float, float]]
    if shape == "triangle":
        ends = [(x - s, y + s * 0.8), (x + s, y + s * 0.8), (x, y - s)]
    elif shape in ("square", "frame"):
        ends = [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)]
    elif shape == "dash":
        ends = [(x - s, y - 1.5), (x + s, y - 1.5), (x + s, y + 1.5), (x - s, y + 1.5)]
    else:
        a = s
        b = s * 0.35
        half = [(-a, -a + b), (-a + b, -a), (0, -b), (a - b, -a), (a, -a + b), (b, 0)]
        ends = [(x + u, y + v) for u, v in half + [(-u, -v) for u, v in half]]
    return path(ends, closed=True, title=title, **look)


def state_mark(state: str, x: float, y: float, /, *, size: float = 6) -> str:
    """Return the mark of an instant's state."""
    shape, colour = STATES.get(state, ("ring", palette.GREY))
    return mark(shape, x, y, fill=colour, size=size)


def legend(x: float, y: float, *entries: tuple[str, str, str]) -> list[str]:
    """Return a line of marks with their meaning: (shape, colour, words)."""
    parts = []
    for shape, colour, words in entries:
        parts += [mark(shape, x + 5, y - 4, fill=colour, size=4.5), note(x + 14, y, words)]
        x += 26 + _LETTER * len(words)
    return parts


def group(parts: Iterable[str], *, title: str) -> str:
    """Return parts that share a title on hover."""
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def short(number: float) -> str:
    """Return a number in few characters.

    >>> [short(n) for n in (0, 7.25, 999, 12_345, 3_400_000)]
    ['0', '7.2', '999', '12.3k', '3.4M']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{number:,.0f}"


def size_of(count: float) -> str:
    """Return a number of bytes as text.

    >>> size_of(1_500), size_of(33_554_432)
    ('1.5 KB', '33.6 MB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
