"""Head line of a run, picture of its rows per second, its last error; how long a time is shown."""

from collections.abc import Callable

from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_parts import STEP_MS
from hoodie_nb.lab.run.run_state import RunState

WINDOW_MS = 30_000
WHOLE_MS = 240_000
HEAD = 44
HEAD_WIDTH = 830
HEIGHT = 134
TOP = 38
BASE = 100
HALF = 472
TROUBLE = 40
_CHIPS = {
    "starting": ("ring", palette.GREY),
    "running": ("disc", palette.GREEN),
    "restarting": ("triangle", palette.AMBER),
    "stopping": ("triangle", palette.AMBER),
    "stopped": ("square", palette.BLUE),
    "failed": ("cross", palette.RED),
}


def head(state: RunState, done: float | None = None) -> str:
    """Return status, rows per second, rows, commits, time; `done` (0 to 1) is drawn as a bar."""
    shape, colour = _CHIPS.get(state.status, _CHIPS["running"])
    elapsed = max(0, state.now_ms - state.began_ms) / 1000
    average = state.written.total / elapsed if elapsed else 0.0
    rate = average if state.over else state.written.rate(state.now_ms)
    facts = [
        (150, svg.short(rate), "rows/s on average" if state.over else "rows/s"),
        (290, f"{state.rows:,}", "rows committed"),
        (430, f"{state.committed:,}", "commit" if state.committed == 1 else "commits"),
        (540, _clock(elapsed), "elapsed"),
    ]
    parts = [
        svg.bar(1, 7, 126, 28, fill="none", stroke=palette.FAINT, rx=14),
        svg.mark(shape, 18, 21, fill=colour),
        svg.text(34, 26, state.status, size=14, weight="bold"),
    ]
    for x, number, unit in facts:
        parts += [svg.text(x, 22, number, size=18), svg.note(x, 37, unit)]
    if done is not None:
        parts += _done(min(1.0, max(0.0, done)), elapsed, over=state.over)
    commits = svg.counted(state.committed, "commit")
    caption = f"Job {state.status}: {rate:.0f} rows per second, {commits}"
    return svg.picture(HEAD, parts, label=caption, width=HEAD_WIDTH)


def _done(share: float, elapsed: float, *, over: bool) -> list[str]:
    left = elapsed / share - elapsed if share else 0.0
    caption = f"{share:.0%} of the input"
    if share and not over and share < 1:
        caption += f", about {_clock(left)} left"
    return [
        svg.bar(640, 10, 180, 10, fill=palette.SHADE, stroke=palette.LINE, rx=5),
        svg.bar(640, 10, 180 * share, 10, fill=palette.BLUE, rx=5),
        svg.note(640, 37, caption),
    ]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def throughput(state: RunState) -> str:
    """Return the writers' rows per second in the last 30 seconds; of the run when it is over."""
    begin = window(state)
    wide = span(state)

    def x(at_ms: float) -> float:
        return 56 + (HALF - 66) * max(0.0, min(1.0, (at_ms - begin) / wide))

    now = state.now_ms + (STEP_MS if state.over else 0)  # an unfinished step would look low
    rates = [(ms, rate) for ms, rate in state.written.rates(now, WHOLE_MS) if ms > begin - STEP_MS]
    most = max((rate for _, rate in rates), default=0.0)
    points = [(x(ms), _y(rate, most)) for ms, rate in rates]
    flow = "got " if state.over else f"get {svg.short(state.written.rate(state.now_ms))}, "
    title = f"The writers {flow}at most {svg.short(most)} rows a second"
    parts = [svg.heading(title), *_axes(most), *times(state, 56, HALF - 10)]
    if points:
        ends = [(points[-1][0], _y(0, 1)), (points[0][0], _y(0, 1))]
        parts.append(svg.path([*points, *ends], closed=True, fill=palette.BLUE, fill_opacity=0.25))
        parts.append(svg.path(points, fill="none", stroke=palette.BLUE, stroke_width=1.5))
    for instant in state.instants.values():
        at = instant.at_ms.get("completed", 0)
        if at >= begin:
            caption = f"instant {instant.time} committed"
            parts.append(svg.mark("disc", x(at), BASE, fill=palette.GREEN, size=3.5, title=caption))
    parts += _freshness(state, x, begin)
    return svg.picture(HEIGHT, parts, label=title, width=HALF)


def _freshness(state: RunState, x: Callable[[float], float], begin: float) -> list[str]:
    """Return a curve: how long the oldest sealed row has been waiting for its commit."""
    backlog = state.backlog
    if not backlog.ages:
        return []
    now = backlog.age(state.now_ms)
    most = max(backlog.peak, now)
    shown = [(ms, age) for ms, age in [*backlog.ages, (state.now_ms, now)] if ms >= begin]
    caption = f"oldest sealed row: {now:.1f} s, at most {most:.1f} s"
    points = [(x(ms), _y(age, most)) for ms, age in shown]
    return [
        svg.path(points, fill="none", stroke=palette.INK, stroke_dasharray="4 2", title=caption),
        *svg.legend(130, 28, ("dash", palette.INK, f"dashed: {caption}")),
    ]


def window(state: RunState) -> float:
    """Return the start of the shown time: it fills from the left, then it moves.

    When the run is over, all of it is shown, at most four minutes.
    """
    if state.over:
        return max(state.began_ms, state.now_ms - WHOLE_MS)
    return max(state.began_ms - state.began_ms % STEP_MS, state.now_ms - WINDOW_MS)


def span(state: RunState) -> float:
    """Return the length of the shown time: 30 seconds while it runs, then that of the run."""
    return max(500, state.now_ms - window(state)) if state.over else WINDOW_MS


def _y(rate: float, most: float) -> float:
    return BASE - (BASE - TOP) * rate / (most or 1)


def _axes(most: float) -> list[str]:
    return [
        svg.line(56, TOP, HALF - 10, TOP, stroke_dasharray="2 4"),
        svg.note(50, TOP + 4, svg.short(most), anchor="end"),
        svg.note(50, BASE + 4, "0", anchor="end"),
        svg.note(50, (TOP + BASE) / 2 + 4, "rows/s", anchor="end"),
        *svg.legend(56, 28, ("disc", palette.GREEN, "a commit")),
    ]


def times(state: RunState, left: float, right: float, y: float = BASE) -> list[str]:
    """Return the axis of the shown time, from `left` to `right`, with its line at `y`."""
    first = max(0.0, window(state) - state.began_ms) / 1000
    last = first + span(state) / 1000
    return [
        svg.line(left, y, right, y),
        svg.note(left, y + 17, svg.short(first)),
        svg.note((left + right) / 2, y + 17, "seconds of the run", anchor="middle"),
        svg.note(right, y + 17, svg.short(last), anchor="end"),
    ]


def trouble(state: RunState) -> str:
    """Return the last error and its fix, in two lines."""
    found = state.trouble
    if found is None:
        parts = [svg.note(1, 14, "No errors.")]
        return svg.picture(TROUBLE, parts, label="No errors so far")
    parts = [
        svg.mark("cross", 8, 10, fill=palette.RED),
        svg.text(22, 14, found.what, weight="bold", max_chars=120, title=found.what),
        svg.text(22, 32, found.fix, max_chars=140, title=found.fix),
    ]
    return svg.picture(TROUBLE, parts, label=f"Error: {found.what}")
