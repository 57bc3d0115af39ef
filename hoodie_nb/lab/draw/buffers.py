"""Picture of the writers' buffers: bytes over time, marks of flushes, which buckets are shown.

Below a bucket is a purple tick for each log of its file group; a new base file takes them away.
"""

from hoodie_nb.lab.draw import svg
from hoodie_nb.lab.draw.progress import HALF, HEIGHT, span, window
from hoodie_nb.lab.run.run_parts import BucketState, BuffersState
from hoodie_nb.lab.run.run_state import RunState

# the line's end, and the buckets' start
_LEFT = 230
_RIGHT = 262


def buffers(state: RunState) -> str:
    """Return the buffer's line (left) and its buckets (right)."""
    buffered = state.buffers
    begin = window(state)
    now = svg.size_of(sum(buffered.levels.values()))
    peak = svg.size_of(buffered.peak)
    title = f"Buffered {now}, at most {peak}"
    parts = [svg.heading(title), *_line(buffered, begin, span(state)), *_buckets(buffered)]
    flushes = sum(bucket.flushes for bucket in buffered.buckets.values())
    label = f"{title}; {len(buffered.buckets)} buckets, {flushes} flushes in this checkpoint"
    return svg.picture(HEIGHT, parts, label=label, width=HALF)


def _line(buffered: BuffersState, begin: float, wide: float) -> list[str]:
    limit = buffered.total_limit
    tasks = max(1, len(buffered.levels))
    most = max([buffered.peak, 1.0, *([limit] if buffered.peak * 4 > limit else [])])

    def x(at_ms: float) -> float:
        return 1 + (_LEFT - 1) * (at_ms - begin) / wide

    points = [(x(at), 94 - 62 * size / most) for at, size in buffered.history if at >= begin]
    parts = [svg.line(1, 94, _LEFT, 94)]
    if 0 < limit <= most:
        y = 94 - 62 * limit / most
        caption = f"limit of {svg.counted(tasks, 'task')}: {svg.size_of(limit)}"
        parts.append(svg.line(1, y, _LEFT, y, stroke=svg.RED, stroke_dasharray="4 3"))
        parts.append(svg.text(3, y - 3, caption, size=9, fill=svg.FAINT))
    if points:
        parts.append(svg.path(points, fill="none", stroke=svg.BLUE, stroke_width=1.5))
    for at, file_id, size in buffered.flushes:
        if at >= begin:
            caption = f"{file_id} flushed, {svg.size_of(size)}"
            parts.append(svg.mark("triangle", x(at), 99, fill=svg.AMBER, size=3.5, title=caption))
    parts.append(svg.note(1, 113, f"{svg.short(wide / 1000)} seconds; ▲ flush"))
    return parts


def _buckets(buffered: BuffersState) -> list[str]:
    shown = buffered.shown
    caption = svg.counted(len(buffered.buckets), "bucket")
    if len(shown) < len(buffered.buckets):
        caption += f", {len(shown)} shown"
    parts = [
        svg.line(_RIGHT, 94, HALF - 10, 94),
        svg.note(_RIGHT, 113, caption),
        svg.note(_RIGHT, 12, _legend(buffered)),
    ]
    most = max((max(b.bytes, b.written) for b in shown), default=0) or 1
    step = (HALF - 10 - _RIGHT) / max(6, len(shown))
    for place, bucket in enumerate(shown):
        parts += _bucket(
            bucket, _RIGHT + place * step, step, most, svg.BUCKETS[place % len(svg.BUCKETS)]
        )
        parts += _ticks(buffered.logs[bucket.file_id], _RIGHT + place * step + 2, step - 4)
    return parts


def _legend(buffered: BuffersState) -> str:
    if buffered.logs or any(bucket.merged for bucket in buffered.buckets.values()):
        return "frame: its file, below: its logs"
    return "frame: its file, number: its flushes"


def _ticks(logs: int, x: float, wide: float) -> list[str]:
    title = svg.counted(logs, "log")
    gap = min(4.0, wide / max(1, logs))
    return [
        svg.bar(x + n * gap, 96, min(2.0, gap / 2), 6, fill=svg.PURPLE, title=title)
        for n in range(logs)
    ]


def _bucket(bucket: BucketState, x: float, step: float, most: float, colour: str) -> list[str]:
    caption = (
        f"{bucket.partition or 'no partition'} / {bucket.file_id}: {svg.size_of(bucket.bytes)} "
        f"buffered, {svg.counted(bucket.flushes, 'flush', 'es')}, "
        f"{'log' if bucket.is_log else 'file'} of {svg.size_of(bucket.written)}"
    )
    if bucket.merged:
        caption += f", merged with {svg.counted(bucket.merged, 'log')}"
    full = 58 * bucket.bytes / most
    high = 58 * bucket.written / most
    parts = [svg.bar(x + 2, 94 - full, step - 4, full, fill=colour, title=caption)]
    if bucket.written:
        parts.append(
            svg.bar(x + 2, 94 - high, step - 4, high, fill="none", stroke=colour, title=caption)
        )
    if bucket.flushes:
        top = 94 - max(full, high, 2) - 3
        parts.append(
            svg.text(x + step / 2, top, bucket.flushes, size=9, anchor="middle", title=caption)
        )
    if not (full or high or bucket.flushes):
        parts.append(svg.line(x + 2, 93, x + step - 2, 93, stroke=svg.LINE))
    return parts
