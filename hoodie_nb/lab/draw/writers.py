"""Picture of a table's writers: nothing for one that never met another; who is this process."""

import os
from collections import Counter

from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lock.writers import Writer

HEIGHT = 134
_LINES = 4
_MARKS = {  # by state: shape, colour, words
    "writes": ("disc", palette.GREEN, "writes the table"),
    "waits": ("ring", palette.GREY, "waits in line"),
    "pauses": ("square", palette.BLUE, "between two turns"),
    "died": ("cross", palette.RED, "has died"),
}


def title(state: RunState) -> str:
    """Return how many writers are in which state; empty if this process has met no other."""
    found = state.writers.found
    if all(map(_is_own, found)) and not state.writers.ahead and not state.turns:
        return ""
    counts = Counter(_MARKS[writer.state][2] for writer in found)
    return ", ".join(f"{n} {words}" for words, n in counts.items()) or "nobody writes the table"


def writers(state: RunState) -> str:
    """Return a line for each writer, and how batches fared that were written before their turn."""
    heading = title(state)
    if not heading:
        return ""
    found = state.writers.found
    more = f", {len(found) - _LINES} more are not shown" if len(found) > _LINES else ""
    parts = [svg.heading(f"Writers: {heading}{more}")]
    parts += svg.legend(1, 30, *_MARKS.values())
    for line, writer in enumerate(found[:_LINES]):
        shape, colour, _ = _MARKS[writer.state]
        shown = str(writer)
        if _is_own(writer):
            shown = shown.replace(writer.who, "this process", 1)
        parts.append(svg.mark(shape, 8, 46 + 18 * line, fill=colour, size=5))
        parts.append(svg.text(22, 50 + 18 * line, shown, max_chars=140))
    turns = f"the stream gave way {svg.counted(state.turns, 'time')}" if state.turns else ""
    note = ", ".join(filter(None, (state.writers.ahead, turns)))
    if note:
        parts.append(svg.text(1, 50 + 18 * len(found[:_LINES]), f"In this process: {note}"))
    return svg.picture(HEIGHT, parts, label=f"Writers: {heading}")


def _is_own(writer: Writer) -> bool:
    return writer.process == os.getpid()
