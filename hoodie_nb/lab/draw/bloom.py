"""Picture of a bloom filter: its grid of bits, and the axes of false positives by size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hoodie_nb.lab.look import palette, svg

HEIGHT = 254
_SIZES = (26, 18, 14)
_SHOWN = 448
_TOP = 40
_X = 560
_Y = 212


@dataclass(frozen=True, slots=True)
class RatePoint:
    """False positives of a filter: bits per key, and the wanted and measured rates."""

    bits_a_key: float
    asked: float
    measured: float


def bloom(
    bits: Sequence[bool], probed: Sequence[bool], title: str, points: Sequence[RatePoint]
) -> str:
    """Return the bits (left), those of a probed key framed, and the rate by size (right)."""
    parts = [svg.heading(title), *_bits(bits, probed), *_rates(points)]
    filled = sum(bits) / max(1, len(bits))
    label = f"{title}: {filled:.0%} of {len(bits)} bits are set; {_legend(points)}"
    return svg.picture(HEIGHT, parts, label=label)


def _bits(bits: Sequence[bool], probed: Sequence[bool]) -> list[str]:
    parts = svg.legend(
        1,
        30,
        ("square", palette.BLUE, "a bit that is set"),
        ("frame", palette.LINE, "a bit that is not"),
        ("frame", palette.INK, "a bit of the looked up key"),
    )
    size = max([s for s in _SIZES if 450 // s * (204 // s) >= len(bits)], default=_SIZES[-1])
    across = 450 // size
    for place, (on, asked) in enumerate(zip(bits[:_SHOWN], probed, strict=False)):
        x = 1 + place % across * size
        y = _TOP + place // across * size
        edge = palette.INK if asked else palette.LINE
        fill = palette.BLUE if on else "none"
        width = 3 if asked else 1
        side = size - 4
        parts.append(svg.bar(x, y, side, side, fill=fill, stroke=edge, stroke_width=width))
    if len(bits) > _SHOWN:
        parts.append(svg.note(1, HEIGHT - 2, f"the first {_SHOWN} of {len(bits):,} bits"))
    return parts


def _rates(points: Sequence[RatePoint]) -> list[str]:
    """Draw the rates on a logarithmic scale from 1 down to a millionth."""
    parts = [svg.text(_X - 58, 12, _legend(points), weight="bold")]
    parts += svg.legend(
        _X - 58,
        30,
        ("dash", palette.GREY, "wanted"),
        ("disc", palette.BLUE, "measured with 20,000 absent keys"),
    )
    wide = svg.WIDTH - _X - 30
    most = max((p.bits_a_key for p in points), default=1)

    def at(point: RatePoint, rate: float) -> tuple[float, float]:
        depth = min(6.0, -math.log10(max(rate, 1e-9)))
        return _X + wide * point.bits_a_key / most, _TOP + (_Y - _TOP) * depth / 6

    for power in range(0, 7, 2):
        y = _TOP + (_Y - _TOP) * power / 6
        share = f"{10.0 ** (2 - power):g}%"
        parts.append(svg.line(_X, y, svg.WIDTH - 30, y, stroke_opacity=0.5))
        parts.append(svg.note(_X - 6, y + 4, share, anchor="end"))
    parts.append(svg.path([at(p, p.asked) for p in points], fill="none", stroke=palette.GREY))
    for point in points:
        caption = f"{point.bits_a_key:.1f} bits/key: {point.asked:g}, found {point.measured:g}"
        spot = at(point, point.measured)
        parts.append(svg.mark("disc", *spot, fill=palette.BLUE, size=4, title=caption))
        parts.append(svg.note(at(point, 1)[0], _Y + 16, f"{point.bits_a_key:.0f}", anchor="middle"))
    axes = "across: bits per key; up: share of absent keys answered with maybe"
    return [*parts, svg.note(_X, _Y + 34, axes)]


def _legend(points: Sequence[RatePoint]) -> str:
    """Return what the rates show: their range, in words."""
    least, most = (f"{point.bits_a_key:.0f}" for point in (points[0], points[-1]))
    return f"More bits per key, {least} to {most}, give fewer false positives"
