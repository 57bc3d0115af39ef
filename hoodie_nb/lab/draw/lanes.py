"""Picture of tasks over time: a lane per task and one for the coordinator; bars and colours.

A pale bar is an operator from its start to its end, a solid one a file; a line below it is a flush,
a red one the time in which the checkpoint waits for files.
"""

from collections import defaultdict

from hoodie_nb.lab.draw.progress import HALF, span, times, window
from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_parts import InstantState, Span
from hoodie_nb.lab.run.run_state import RunState

_LANES = 9
_LEFT = 112
_TOP = 46
_ROOM = 140  # for all lanes
HEIGHT = _TOP + _ROOM + 20
_SERIAL = "InstantGenerator"
_LEGEND = (
    (
        ("square", palette.BLUE, "a file is written"),
        ("square", palette.PURPLE, "rows get their file group"),
        ("disc", palette.GREEN, "committed"),
    ),
    (
        ("dash", palette.AMBER, "below: a flush"),
        ("dash", palette.RED, "above: the checkpoint waits"),
        ("cross", palette.RED, "rolled back"),
    ),
)
_COLOURS = {_SERIAL: palette.GREY, "FileIdAssigner": palette.PURPLE, "KeyRouter": palette.PURPLE}


def lanes(state: RunState) -> str:
    """Return the lanes of at most eight tasks, and of the serial task if there is one."""
    names = sorted({_lane(each) for each in state.spans}, key=lambda name: (name != _SERIAL, name))
    shown = names[:_LANES]
    begin = window(state)
    wide = span(state)
    scale = (HALF - _LEFT - 4) / wide
    title = _title(state, names)
    step = min(34, _ROOM // (1 + len(shown)))
    y = {name: _TOP + step * line for line, name in enumerate(["coordinator", *shown], 1)}
    parts = [svg.heading(title), *svg.legend(1, 28, *_LEGEND[0]), *svg.legend(1, 43, *_LEGEND[1])]
    for name, base in y.items():
        parts.append(svg.note(_LEFT - 6, base - step / 2 + 5, name, anchor="end"))
        parts.append(svg.line(_LEFT, base, HALF - 4, base, stroke_opacity=0.5))
    for instant in state.instants.values():
        parts.append(_instant(instant, y["coordinator"], step, begin, scale))
    for each in state.spans:
        if _lane(each) in shown and each.end_ms >= begin:
            parts += _span(each, y[_lane(each)], step, begin, scale)
    parts += times(state, _LEFT, HALF - 4, _TOP + step * len(y))
    return svg.picture(HEIGHT, parts, label=f"{title}: {len(state.spans)} spans", width=HALF)


def _title(state: RunState, names: list[str]) -> str:
    """Return how long the checkpoints wait for the task that they wait for most."""
    waits: dict[str, float] = defaultdict(float)
    for each in state.spans:
        waits[_lane(each)] += each.blocked_ms
    most = max(waits.values(), default=0) / 1000
    more = f", {_LANES} shown" if len(names) > _LANES else ""
    return f"{svg.counted(len(names), 'task')}{more}: checkpoints wait {most:.1f} s for files"


def _lane(span: Span) -> str:
    return _SERIAL if span.operator == _SERIAL else f"task {span.task}"


def _instant(instant: InstantState, base: float, step: float, begin: float, scale: float) -> str:
    times = instant.at_ms.values()
    colour = svg.STATES.get(instant.state, ("", palette.GREY))[1]
    first = max(begin, min(times, default=begin))
    last = max(times, default=begin)
    x = _LEFT + (first - begin) * scale
    wide = max(2.0, (last - first) * scale)
    title = f"instant {instant.time}: {instant.state}"
    high = step / 2
    return svg.bar(x, base - high, wide, high, fill=colour, title=title)


def _span(span: Span, base: float, step: float, begin: float, scale: float) -> list[str]:
    first = max(begin, span.begin_ms)
    x = _LEFT + (first - begin) * scale
    wide = max(1.0, (span.end_ms - first) * scale)
    colour = _COLOURS.get(span.operator, palette.BLUE)
    title = f"{span.end_ms - span.begin_ms:.0f} ms"
    top = base - step + 4
    high = step - 7
    if span.kind == "file_written":
        return [
            svg.bar(x, top, wide, high, fill=colour, stroke=palette.PAPER, title=f"file, {title}")
        ]
    if span.kind == "buffer_flushed":
        return [svg.bar(x, base - 3, wide, 3, fill=palette.AMBER, title=f"flush, {title}")]
    named = f"{span.operator}, {title}"
    parts = [svg.bar(x, top, wide, high, fill=colour, fill_opacity=0.5, title=named)]
    if span.blocked_ms:
        long = span.blocked_ms * scale
        parts.append(svg.bar(x + wide - long, top - 3, long, 3, fill=palette.RED))
    return parts
