"""Picture of the writers' buffers: bytes over time, marks of flushes, which buckets are shown.

Below a bucket is a purple tick for each log of its file group; a new base file takes them away.
"""

from hoodie_nb.lab.draw.progress import BASE, HALF, HEIGHT, TOP, span, times, window
from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_parts import BucketState, BuffersState
from hoodie_nb.lab.run.run_state import RunState

# the line, and the buckets
_X = 60
_LEFT = 226
_RIGHT = 300


def buffers(state: RunState) -> str:
    """Return the buffer's line (left) and its buckets (right)."""
    buffered = state.buffers
    now = svg.size_of(sum(buffered.levels.values()))
    title = f"Buffered {now}, at most {svg.size_of(buffered.peak)}"
    parts = [svg.heading(title), *_line(state), *_buckets(buffered)]
    flushes = sum(bucket.flushes for bucket in buffered.buckets.values())
    label = f"{title}; {len(buffered.buckets)} buckets, {flushes} flushes in this checkpoint"
    return svg.picture(HEIGHT, parts, label=label, width=HALF)


def _line(state: RunState) -> list[str]:
    buffered = state.buffers
    begin = window(state)
    limit = buffered.total_limit
    most = max([buffered.peak, 1.0, *([limit] if buffered.peak * 4 > limit else [])])
    marks = [("triangle", palette.AMBER, "a flush")]

    def x(at_ms: float) -> float:
        return _X + (_LEFT - _X) * (at_ms - begin) / span(state)

    def y(size: float) -> float:
        return BASE - (BASE - TOP) * size / most

    points = [(x(at), y(size)) for at, size in buffered.history if at >= begin]
    parts = [*times(state, _X, _LEFT), *_sizes(_X, TOP, most)]
    if 0 < limit <= most:
        tasks = svg.counted(max(1, len(buffered.levels)), "task")
        caption = f"limit of {tasks}: {svg.size_of(limit)}"
        marks.append(("dash", palette.RED, caption))
        parts.append(
            svg.line(_X, y(limit), _LEFT, y(limit), stroke=palette.RED, stroke_dasharray="4 3")
        )
    if points:
        parts.append(svg.path(points, fill="none", stroke=palette.BLUE, stroke_width=1.5))
    for at, file_id, size in buffered.flushes:
        if at >= begin:
            caption = f"{file_id} flushed, {svg.size_of(size)}"
            parts.append(
                svg.mark("triangle", x(at), BASE + 4, fill=palette.AMBER, size=3.5, title=caption)
            )
    return [*parts, *svg.legend(1, 28, *marks)]


def _buckets(buffered: BuffersState) -> list[str]:
    shown = buffered.shown
    caption = svg.counted(len(buffered.buckets), "bucket")
    if len(shown) < len(buffered.buckets):
        caption += f", {len(shown)} shown"
    most = max((max(b.bytes, b.written) for b in shown), default=0)
    parts = [
        svg.line(_RIGHT, BASE, HALF - 10, BASE),
        svg.text(_RIGHT - 50, 12, caption, weight="bold"),
        *svg.legend(
            _RIGHT - 50,
            28,
            ("square", palette.AMBER, "bytes waiting"),
            ("frame", palette.BLUE, "its file"),
        ),
        svg.note(_RIGHT - 50, BASE + 17, _legend(buffered)),
    ]
    parts += _sizes(_RIGHT, TOP + 14, most) if most else []
    step = (HALF - 10 - _RIGHT) / max(6, len(shown))
    for place, bucket in enumerate(shown):
        parts += _bucket(bucket, _RIGHT + place * step, step, most or 1)
        parts += _ticks(buffered.logs[bucket.file_id], _RIGHT + place * step + 2, step - 4)
    return parts


def _sizes(x: float, top: float, most: float) -> list[str]:
    ends = ((top, svg.size_of(most)), (BASE, "0"))
    return [svg.note(x - 6, y + 4, size, anchor="end") for y, size in ends]


def _legend(buffered: BuffersState) -> str:
    if buffered.logs or any(bucket.merged for bucket in buffered.buckets.values()):
        return "purple, below: a log of its file group"
    return "number: how often it was flushed"


def _ticks(logs: int, x: float, wide: float) -> list[str]:
    title = svg.counted(logs, "log")
    gap = min(4.0, wide / max(1, logs))
    return [
        svg.bar(x + n * gap, BASE + 2, min(2.0, gap / 2), 5, fill=palette.PURPLE, title=title)
        for n in range(logs)
    ]


def _bucket(bucket: BucketState, x: float, step: float, most: float) -> list[str]:
    caption = (
        f"{bucket.partition or 'no partition'} / {bucket.file_id}: {svg.size_of(bucket.bytes)} "
        f"buffered, {svg.counted(bucket.flushes, 'flush', 'es')}, "
        f"{'log' if bucket.is_log else 'file'} of {svg.size_of(bucket.written)}"
    )
    if bucket.merged:
        caption += f", merged with {svg.counted(bucket.merged, 'log')}"
    full = (BASE - TOP - 14) * bucket.bytes / most
    high = (BASE - TOP - 14) * bucket.written / most
    bars = (
        (full, palette.AMBER, palette.INK),
        (high if bucket.written else 0, "none", palette.BLUE),
    )
    parts = [
        svg.bar(
            x + 2,
            BASE - tall,
            step - 4,
            tall,
            fill=fill,
            stroke=edge,
            stroke_width=1,
            title=caption,
        )
        for tall, fill, edge in bars
        if tall
    ] or [svg.bar(x + 2, BASE - 2, step - 4, 2, fill=palette.LINE, title=caption)]
    if bucket.flushes:
        top = BASE - max(full, high, 2) - 3
        parts.append(svg.note(x + step / 2, top, bucket.flushes, anchor="middle", title=caption))
    return parts
