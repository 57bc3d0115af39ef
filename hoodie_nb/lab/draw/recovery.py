"""The recovery from the last fault: the events since then, one line each.

Starts of batches and queries are left out. Recovery comes right after the fault, so the first lines
are kept; later ones are only counted.
"""

from collections.abc import Sequence

from hoodie_nb.lab.draw import svg
from hoodie_nb.lab.run_state import Note, RunState

HEIGHT, _LINES = 196, 9
_BAD = ("failed", "restarted", "rolled_back", "timed_out", "fault", "repeated", "postponed")
_ROUTINE = ("batch_started", "job_started")
_GOOD = ("committed", "skipped", "prepared", "redone", "stopped")


def recovery(state: RunState) -> str:
    """Return the last fault and the first events after it; without a fault, the newest events."""
    faults = [n for n, note in enumerate(state.notes) if note.kind == "fault_injected"]
    story: Sequence[Note] = state.notes
    if faults:
        story = [note for note in state.notes[faults[-1] :] if note.kind not in _ROUTINE]
    shown = story[:_LINES] if faults else story[-_LINES:]
    begin = shown[0].at_ms if shown else 0
    title = "The recovery" if faults else "No fault yet: the job's newest events"
    parts = [svg.heading(title)]
    for line, note in enumerate(shown):
        y = 32 + 18 * line
        shape, colour = "ring", svg.GREY
        if any(word in note.kind for word in _BAD):
            shape, colour = "cross", svg.RED
        elif any(word in note.kind for word in _GOOD):
            shape, colour = "disc", svg.GREEN
        since = f"+{(note.at_ms - begin) / 1000:.1f} s"
        parts.append(svg.note(52, y, since, anchor="end"))
        parts.append(svg.mark(shape, 66, y - 4, fill=colour, size=5))
        parts.append(svg.text(80, y, note.text, max_chars=130))
    hidden = len(story) - len(shown)
    if hidden > 0:
        caption = f"{hidden} {'later' if faults else 'earlier'} not shown"
        parts.append(svg.note(svg.WIDTH - 4, 12, caption, anchor="end"))
    return svg.picture(HEIGHT, parts, label=f"{title}: {len(story)} events")
