"""Picture of a table's timeline: how many of its newest instants; a line and a bar for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from hoodie_nb.clock import instant_ms
from hoodie_nb.lab.look import palette, svg

_LINES = 14
_LEFT = 270
_RIGHT = 690
_LEGEND = (
    ("square", palette.GREEN, "a bar: from its request to its completion"),
    ("frame", palette.INK, "still pending"),
)
_ACTIONS = {"commit": palette.GREEN, "replacecommit": palette.PURPLE, "rollback": palette.RED}


@dataclass(frozen=True, slots=True)
class InstantFacts:
    """An instant with the counts of its completed file; None where it has none."""

    requested_time: str
    action: str
    state: str
    completion_time: str | None = None
    operation: str = ""
    files: int | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def wrote(self) -> str:
        """Return a short description of what was written."""
        if self.files is None:
            return self.state if self.completion_time is None else ""
        size = svg.size_of(self.bytes or 0)
        rows = svg.counted(self.rows or 0, "row")
        files = svg.counted(self.files, "file")
        return f"{self.operation} {rows} in {files}, {size}"


def height(instants: int) -> int:
    """Return the height of the picture for this number of instants."""
    return 58 + 20 * min(_LINES, instants)


def timeline(instants: Sequence[InstantFacts]) -> str:
    """Return the newest 14 instants, oldest first."""
    shown = instants[-_LINES:]
    begins = [instant_ms(i.requested_time) for i in shown]
    ends = [instant_ms(i.completion_time) for i in shown if i.completion_time]
    first = min(begins, default=0)
    last = max([*begins, *ends], default=1)
    scale = (_RIGHT - _LEFT - 6) / max(1, last - first)
    caption = f", the newest {_LINES} shown" if len(instants) > _LINES else ""
    pending = sum(instant.completion_time is None for instant in instants)
    state = f"{pending} of them pending" if pending else "all completed"
    title = f"{svg.counted(len(instants), 'instant')}, {state}{caption}"
    parts = [svg.heading(title), *svg.legend(_RIGHT - 160, 12, *_LEGEND)]
    for place, (instant, begin) in enumerate(zip(shown, begins, strict=True)):
        y = 26 + 20 * place
        x = _LEFT + (begin - first) * scale
        took = instant_ms(instant.completion_time) - begin if instant.completion_time else None
        parts.append(svg.group(_line(instant, x, y, took, scale), title=_caption(instant, took)))
    y = 40 + 20 * len(shown)
    parts.append(svg.note(_LEFT, y, "0"))
    parts.append(svg.note((_LEFT + _RIGHT) / 2, y, "time since the first instant", anchor="middle"))
    parts.append(svg.note(_RIGHT, y, _span(last - first), anchor="end"))
    return svg.picture(height(len(instants)), parts, label=f"Timeline: {title}")


def _line(instant: InstantFacts, x: float, y: float, took: int | None, scale: float) -> list[str]:
    colour = _ACTIONS.get(instant.action, palette.BLUE)
    state = "completed" if took is not None else instant.state
    parts = [
        svg.state_mark(state, 8, y + 8, size=5),
        svg.text(20, y + 12, instant.requested_time),
        svg.note(166, y + 12, instant.action),
        svg.line(_LEFT, y + 18, _RIGHT, y + 18, stroke_opacity=0.4),
    ]
    if took is None:
        parts.append(svg.bar(x, y + 2, _RIGHT - x, 12, fill="none", stroke=palette.INK))
    else:
        parts.append(svg.bar(x, y + 2, max(5, took * scale), 12, fill=colour))
    return [*parts, svg.note(_RIGHT + 12, y + 12, instant.wrote, max_chars=42)]


def _caption(instant: InstantFacts, took: int | None) -> str:
    end = "pending" if took is None else f"completed after {took} ms"
    return f"{instant.requested_time} {instant.action}, {end}. {instant.wrote}"


def _span(ms: int) -> str:
    seconds = ms / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
