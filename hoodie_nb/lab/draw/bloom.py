"""Picture of a bloom filter: its grid of bits, and the axes of false positives by size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hoodie_nb.lab.draw import svg

HEIGHT = 236
_ACROSS = 32
_SIZE = 14
_SHOWN = 448
_X = 540
_Y = 200


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
    return svg.picture(HEIGHT, parts, label=f"{title}: {filled:.0%} of {len(bits)} bits are set")


def _bits(bits: Sequence[bool], probed: Sequence[bool]) -> list[str]:
    parts = []
    for place, (on, asked) in enumerate(zip(bits[:_SHOWN], probed, strict=False)):
        x = 1 + place % _ACROSS * _SIZE
        y = 22 + place // _ACROSS * _SIZE
        edge = (svg.GREEN if on else svg.RED) if asked else svg.LINE
        fill = svg.BLUE if on else "none"
        width = 3 if asked else 1
        side = _SIZE - 4
        parts.append(svg.bar(x, y, side, side, fill=fill, stroke=edge, stroke_width=width))
    if len(bits) > _SHOWN:
        parts.append(svg.note(1, HEIGHT - 2, f"the first {_SHOWN} of {len(bits):,} bits"))
    return parts


def _rates(points: Sequence[RatePoint]) -> list[str]:
    """Draw the rates on a logarithmic scale from 1 down to a millionth."""
    parts = [svg.text(_X - 44, 12, "False positives by bits per key", size=11, weight="bold")]
    wide = svg.WIDTH - _X - 30
    most = max((p.bits_a_key for p in points), default=1)

    def at(point: RatePoint, rate: float) -> tuple[float, float]:
        depth = min(6.0, -math.log10(max(rate, 1e-9)))
        return _X + wide * point.bits_a_key / most, 28 + (_Y - 28) * depth / 6

    for power in range(0, 7, 2):
        y = 28 + (_Y - 28) * power / 6
        parts.append(svg.line(_X, y, svg.WIDTH - 30, y, stroke_opacity=0.5))
        parts.append(svg.note(_X - 6, y + 4, f"{10.0**-power:g}", anchor="end"))
    parts.append(svg.path([at(p, p.asked) for p in points], fill="none", stroke=svg.GREY))
    for point in points:
        caption = f"{point.bits_a_key:.1f} bits/key: {point.asked:g}, found {point.measured:g}"
        spot = at(point, point.measured)
        parts.append(svg.mark("disc", *spot, fill=svg.BLUE, size=4, title=caption))
        parts.append(svg.note(at(point, 1)[0], _Y + 16, f"{point.bits_a_key:.0f}", anchor="middle"))
    parts.append(
        svg.note(_X, _Y + 32, "line: wanted, ● measured with 20,000 absent keys; 0 is below")
    )
    return parts
