"""Picture of instants over checkpoints: columns, lanes of states, marks, how many are shown.

A column is a checkpoint; an instant is drawn over its checkpoints. It has several if a success
notification was lost or if an interval commits them together.
"""

from collections.abc import Sequence

from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_parts import CheckpointState, InstantState
from hoodie_nb.lab.run.run_state import RunState

HEIGHT = 128
WIDE = 620
SHOWN = 20
_LANES = ("completed", "prepared", "inflight", "requested")
_LEFT = 90
CHECKPOINTS = {
    "running": ("ring", palette.GREY),
    "prepared": ("square", palette.BLUE),
    "done": ("disc", palette.GREEN),
    "sealed": ("square", palette.GREY),
    "skipped": ("dash", palette.GREY),
    "empty": ("ring", palette.GREY),
    "timed out": ("cross", palette.AMBER),
    "rolled back": ("cross", palette.RED),
}


def strip(state: RunState) -> str:
    """Return the newest 20 checkpoints and their instants."""
    shown = state.checkpoints[-SHOWN:]
    done = sum(checkpoint.state == "done" for checkpoint in shown)
    title = f"{done} of {svg.counted(len(shown), 'checkpoint')} committed"
    ends = (
        ("cross", palette.RED, "rolled back"),
        ("dash", palette.GREY, "abandoned: nothing to write"),
    )
    parts = [svg.heading(title), *svg.legend(WIDE - 310, 12, *ends)]
    for lane, name in enumerate(_LANES):
        y = _lane(lane)
        parts.append(svg.note(_LEFT - 18, y + 4, name, anchor="end"))
        parts.append(svg.line(_LEFT - 12, y, WIDE - 4, y, stroke_opacity=0.5))
    parts.append(svg.note(_LEFT - 18, 110, "checkpoint", anchor="end"))
    places: dict[str, list[float]] = {}
    step = (WIDE - _LEFT - 12) / max(8, len(shown))
    for place, checkpoint in enumerate(shown):
        x = _LEFT + place * step
        parts += _checkpoint(checkpoint, x)
        places.setdefault(checkpoint.instant, []).append(x)
    for time17, xs in places.items():
        if time17 in state.instants:
            parts += _instant(state.instants[time17], xs)
    label = f"{len(shown)} checkpoints, {done} of them committed"
    return svg.picture(HEIGHT, parts, label=label, width=WIDE)


def _lane(lane: int) -> float:
    return 28 + 18 * lane


def _checkpoint(checkpoint: CheckpointState, x: float) -> list[str]:
    shape, colour = CHECKPOINTS.get(checkpoint.state, ("ring", palette.GREY))
    caption = f"checkpoint {checkpoint.number}: {checkpoint.state}"
    return [
        svg.mark(shape, x, 102, fill=colour, size=5, title=caption),
        svg.note(x, 120, checkpoint.number, anchor="middle", title=caption),
    ]


def _instant(instant: InstantState, xs: Sequence[float]) -> list[str]:
    """Draw the states of an instant, one above the other, and its final state."""
    middle = (xs[0] + xs[-1]) / 2
    caption = _caption(instant)
    ends = {"rolled back": _lane(0), "abandoned": _lane(1)}
    marks = [(name, _lane(lane)) for lane, name in enumerate(_LANES) if name in instant.at_ms]
    if instant.state in ends:
        marks.insert(0, (instant.state, ends[instant.state]))
    parts = (
        [svg.line(middle, marks[0][1], middle, 92, stroke=palette.LINE, stroke_width=1.5)]
        if marks
        else []
    )
    if len(xs) > 1:
        parts.append(svg.line(xs[0] - 5, 92, xs[-1] + 5, 92, stroke=palette.FAINT, stroke_width=2))
    for name, y in marks:
        now = name == instant.state
        size = 6 if now else 3.5
        parts.append(svg.state_mark(name, middle, y, size=size))
    return [svg.group(parts, title=caption)]


def _caption(instant: InstantState) -> str:
    begin = min(instant.at_ms.values(), default=0)
    since = [f"{name} +{at - begin} ms" for name, at in instant.at_ms.items()]
    wrote = [f"{k} {v:,}" for k, v in instant.values.items() if isinstance(v, int)]
    return f"instant {instant.time}, {instant.state}: {', '.join([*since, *wrote])}"
