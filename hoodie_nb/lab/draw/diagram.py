"""Picture of the pipeline: boxes of operators, arrows of shuffles, bars of rows per task.

Bars in a box count the rows of each of its tasks in the newest batch: large differences mean that
the shuffle before it is skewed.
"""

import textwrap
from dataclasses import replace

from hoodie_nb.buckets.pipelines import PIPELINES, Operator
from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_parts import OperatorState
from hoodie_nb.lab.run.run_state import RunState

HEIGHT = 146
_TOP = 58
_BOX = 84
_CHAR = 6.8  # the mean width of a small letter, in the widest font
_ROOMY = 250
_SEEN = {"WriteProcess": "BucketWriter"}
_FIRST = ("InstantGenerator", "KeyRouter", "FileIdAssigner", "BucketWriter")


def diagram(state: RunState) -> str:
    """Return the diagram; STEP3's if the events do not name the pipeline."""
    pipeline = PIPELINES.get(state.pipeline, PIPELINES["step3"])
    routed = pipeline.routed and state.placement != "driver"  # which looks keys up in one place
    pipeline = replace(pipeline, index=state.index or pipeline.index, routed=routed)
    driver = [o for o in pipeline.operators if o.parallelism == "driver"]
    row = [o for o in pipeline.operators if o.parallelism != "driver"]
    gap = 96
    width = (svg.WIDTH - 2 - gap * (len(row) - 1)) / len(row)
    parts = []
    for place, operator in enumerate(row):
        x = 1 + place * (width + gap)
        parts += _box(operator, _state_of(operator, state), state, x, width)
        if place < len(row) - 1:
            parts += _arrow(x + width, gap, operator.sends_by)
    for operator in driver:
        parts += _coordinator(operator, state, width)
    text = f"Pipeline {pipeline.name}: " + " to ".join(o.name for o in row)
    return svg.picture(HEIGHT, parts, label=text)


def _state_of(operator: Operator, state: RunState) -> OperatorState:
    names = _FIRST if operator.name == "Source" else (_SEEN.get(operator.name, operator.name),)
    found = [state.operators[name] for name in names if name in state.operators]
    return found[0] if found else OperatorState()


def _box(
    operator: Operator, progress: OperatorState, state: RunState, x: float, width: float
) -> list[str]:
    over = state.over
    elapsed = max(1, state.now_ms - state.began_ms) / 1000
    rate = progress.flow.total / elapsed if over else progress.flow.rate(state.now_ms)
    tasks = str(state.tasks or "n") if operator.parallelism == "n" else operator.parallelism
    where = f" x {tasks}"
    if state.placement == "driver" and operator.name != "Source":
        where = " (driver)"
    serial = operator.name == "InstantGenerator"
    edge = palette.RED if serial else palette.BLUE if rate else palette.LINE
    total = f"{svg.short(progress.flow.total)} rows"
    thick = 1 if over or not rate else 2
    parts = [
        svg.bar(x, _TOP, width, _BOX, fill="none", stroke=edge, stroke_width=thick, rx=6),
        svg.text(x + 10, _TOP + 18, operator.name + where, weight="bold", size=13),
        svg.note(x + width - 10, _TOP + 18, total, anchor="end"),
        svg.text(x + 10, _TOP + 74, svg.short(rate), size=16),
        svg.note(x + 62, _TOP + 74, "rows/s, mean" if over else "rows/s"),
    ]
    fits = int((width - 20) / _CHAR)
    for line, text in enumerate(textwrap.wrap(operator.does, fits, break_on_hyphens=False)):
        parts.append(svg.note(x + 10, _TOP + 34 + 13 * line, text))
    if operator.name == "Source":
        return parts
    most = max(progress.tasks.values(), default=0) or 1
    shown = sorted(progress.tasks.items())[:8]
    if shown and width > _ROOMY:
        end = x + width - 14 - 9 * len(shown)
        parts.append(svg.note(end, _TOP + 74, "rows by task", anchor="end"))
    for place, (task, rows) in enumerate(shown):
        left = x + width - 10 - 9 * (len(shown) - place)
        high = 24 * rows / most
        text = f"task {task}: {rows:,.0f} rows in this batch"
        parts.append(
            svg.bar(
                left, _TOP + 76 - high, 7, high, fill=edge if serial else palette.BLUE, title=text
            )
        )
    return parts


def _arrow(x: float, gap: float, sends_by: str) -> list[str]:
    y = _TOP + _BOX / 2
    end = x + gap - 5
    return [
        svg.line(x + 5, y, end - 6, y, stroke=palette.FAINT, stroke_width=1.5),
        svg.path([(end - 8, y - 5), (end, y), (end - 8, y + 5)], closed=True, fill=palette.FAINT),
        svg.note(x + gap / 2 - 3, y - 8, f"by {sends_by}", anchor="middle"),
    ]


def _coordinator(operator: Operator, state: RunState, width: float) -> list[str]:
    """Draw the coordinator at the top, with the newest instant and lines to the writers."""
    x = svg.WIDTH - width / 2
    newest = next(reversed(state.instants.values()), None)
    text = f"{operator.name} ({operator.parallelism}): {operator.does}"
    parts = [
        svg.bar(1, 2, svg.WIDTH - 2, 28, fill="none", stroke=palette.LINE, rx=6),
        svg.text(11, 20, text, weight="bold", size=13),
        svg.line(x - 30, 30, x - 30, _TOP, stroke=palette.FAINT, stroke_dasharray="4 3"),
        svg.line(x + 30, 30, x + 30, _TOP, stroke=palette.FAINT, stroke_dasharray="4 3"),
        svg.note(x - 36, 48, "↓ the instant, ↑ what was written for it", anchor="end"),
    ]
    if newest is not None:
        parts.append(svg.state_mark(newest.state, svg.WIDTH - 250, 16))
        parts.append(svg.text(svg.WIDTH - 236, 20, f"{newest.time} {newest.state}"))
    return parts
