"""Picture of recoveries: which events after a fault are shown, which are good or bad.

Starts of batches and queries are left out. Recovery comes right after the fault, so the first lines
are kept; later ones are only counted.
"""

from collections.abc import Sequence

from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_parts import Note
from hoodie_nb.lab.run.run_state import RunState

HEIGHT = 286
_LINES = 9
_EARLIER = 3
_LEGEND = (
    ("cross", palette.RED, "a fault, a failure or a rollback"),
    ("disc", palette.GREEN, "a step of the recovery"),
    ("ring", palette.GREY, "another event; left: seconds since the first line"),
)


def recovery(state: RunState) -> str:
    """Return the last fault and the first events after it; without a fault, the newest events."""
    shown = state.notes[-_LINES:]
    title = "No fault yet: the job's newest events"
    hidden = f"{len(state.notes) - _LINES} earlier" if len(state.notes) > _LINES else ""
    if state.stories:
        story = state.stories[-1]
        title = f"{story.fault.text}: {story.outcome}"
        shown = [story.fault, *story.after][:_LINES]
        later = len(story.after) + 1 - _LINES + story.more
        hidden = f"{later} later" if later > 0 else ""
    parts = [svg.heading(title), *svg.legend(61, 30, *_LEGEND), *_lines(shown), *_earlier(state)]
    if hidden:
        parts.append(svg.note(svg.WIDTH - 4, 30, f"{hidden} not shown", anchor="end"))
    label = f"{title}: {len(shown)} events, {len(state.stories)} faults"
    return svg.picture(HEIGHT, parts, label=label)


def _lines(shown: Sequence[Note]) -> list[str]:
    parts = []
    for line, note in enumerate(shown):
        y = 50 + 18 * line
        shape = "ring"
        colour = palette.GREY
        if note.tone == "bad":
            shape = "cross"
            colour = palette.RED
        elif note.tone == "good":
            shape = "disc"
            colour = palette.GREEN
        since = f"+{(note.at_ms - shown[0].at_ms) / 1000:.1f} s"
        parts.append(svg.note(52, y, since, anchor="end"))
        parts.append(svg.mark(shape, 66, y - 4, fill=colour, size=5))
        parts.append(svg.text(80, y, note.text, max_chars=120))
    return parts


def _earlier(state: RunState) -> list[str]:
    """Return a line for each of the faults before the last one, the newest first."""
    earlier = state.stories[-2::-1]
    top = 52 + 18 * _LINES
    more = f", the newest {_EARLIER} of {len(earlier)}" if len(earlier) > _EARLIER else ""
    parts = [svg.note(1, top, f"Other faults{more}")] if earlier else []
    for line, story in enumerate(earlier[:_EARLIER], 1):
        text = f"{story.fault.text}: {story.outcome}"
        parts.append(svg.mark("cross", 66, top + 18 * line - 4, fill=palette.GREY, size=5))
        parts.append(svg.text(80, top + 18 * line, text, max_chars=120))
    return parts
