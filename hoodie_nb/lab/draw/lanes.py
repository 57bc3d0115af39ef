"""Picture of tasks over time: a lane per task and one for the coordinator; bars and colours.

A pale bar is an operator from its start to its end, a solid one a file; a line below it is a flush,
a red one the time in which the checkpoint waits for files.
"""

from hoodie_nb.lab.draw import svg
from hoodie_nb.lab.draw.progress import HALF, span, window
from hoodie_nb.lab.run.run_parts import InstantState, Span
from hoodie_nb.lab.run.run_state import RunState

_LANES = 9
_LEFT = 96
_STEP = 14
HEIGHT = 18 + _STEP * (_LANES + 1) + 24
_SERIAL = "InstantGenerator"
_LEGEND = "solid: a file; amber, below: a flush; red, above: the checkpoint waits"
_COLOURS = {_SERIAL: svg.AMBER, "FileIdAssigner": svg.PURPLE, "KeyRouter": svg.PURPLE}


def lanes(state: RunState) -> str:
    """Return the lanes of at most eight tasks, and of the serial task if there is one."""
    names = sorted({_lane(each) for each in state.spans}, key=lambda name: (name != _SERIAL, name))
    shown = names[:_LANES]
    begin = window(state)
    wide = span(state)
    scale = (HALF - _LEFT - 4) / wide
    caption = f"What the tasks did in {svg.short(wide / 1000)} s"
    more = f", {len(names) - _LANES} more not shown" if len(names) > _LANES else ""
    parts = [svg.heading(caption + more)]
    for line, name in enumerate(["coordinator", *shown]):
        y = 32 + _STEP * line
        parts.append(svg.note(_LEFT - 6, y, name, anchor="end"))
        parts.append(svg.line(_LEFT, y + 4, HALF - 4, y + 4, stroke_opacity=0.5))
    parts += [_instant(instant, begin, scale) for instant in state.instants.values()]
    for each in state.spans:
        if _lane(each) in shown and each.end_ms >= begin:
            line = 1 + shown.index(_lane(each))
            parts += _span(each, 32 + _STEP * line, begin, scale)
    parts.append(svg.note(1, HEIGHT - 4, _LEGEND))
    label = f"{caption}: {len(names)} tasks, {len(state.spans)} spans"
    return svg.picture(HEIGHT, parts, label=label, width=HALF)


def _lane(span: Span) -> str:
    return _SERIAL if span.operator == _SERIAL else f"task {span.task}"


def _instant(instant: InstantState, begin: float, scale: float) -> str:
    times = instant.at_ms.values()
    colour = svg.STATES.get(instant.state, ("", svg.GREY))[1]
    first = max(begin, min(times, default=begin))
    last = max(times, default=begin)
    x = _LEFT + (first - begin) * scale
    wide = max(2.0, (last - first) * scale)
    title = f"instant {instant.time}: {instant.state}"
    return svg.bar(x, 26, wide, 6, fill=colour, fill_opacity=0.6, title=title)


def _span(span: Span, y: float, begin: float, scale: float) -> list[str]:
    first = max(begin, span.begin_ms)
    x = _LEFT + (first - begin) * scale
    wide = max(1.0, (span.end_ms - first) * scale)
    colour = _COLOURS.get(span.operator, svg.BLUE)
    title = f"{span.end_ms - span.begin_ms:.0f} ms"
    if span.kind == "file_written":
        return [svg.bar(x, y - 8, wide, 9, fill=colour, stroke=svg.PAPER, title=f"file, {title}")]
    if span.kind == "buffer_flushed":
        return [svg.bar(x, y + 2, wide, 2, fill=svg.AMBER, title=f"flush, {title}")]
    named = f"{span.operator}, {title}"
    parts = [svg.bar(x, y - 8, wide, 9, fill=colour, fill_opacity=0.5, title=named)]
    if span.blocked_ms:
        long = span.blocked_ms * scale
        parts.append(svg.bar(x + wide - long, y - 10, long, 2, fill=svg.RED))
    return parts
