"""SVG to PNG, for readers without a kernel: by resvg, in the light theme, with one font.

The font is matplotlib's, so that every machine draws the same picture, also one without fonts.
"""

from collections.abc import Sequence

from hoodie_nb.lab.look.palette import LIGHT, painted
from hoodie_nb.lab.look.svg import tag

_SCALE = 1.1
Placed = Sequence[tuple[float, float, str]]


def png(pictures: Placed, width: float, height: float) -> bytes:
    """Return pictures, each with the x and y of its top left corner, as one PNG."""
    import resvg_py
    from matplotlib import get_data_path

    fonts = f"{get_data_path()}/fonts/ttf/DejaVuSans"
    parts = "".join(f'<g transform="translate({x} {y})">{text}</g>' for x, y, text in pictures)
    whole = tag("svg", xmlns="http://www.w3.org/2000/svg", width=width, height=height)
    return resvg_py.svg_to_bytes(
        svg_string=painted(whole.replace("</svg>", f"{parts}</svg>"), LIGHT),
        background=LIGHT["paper"],
        zoom=_SCALE,
        skip_system_fonts=True,
        sans_serif_family="DejaVu Sans",
        font_files=[f"{fonts}.ttf", f"{fonts}-Bold.ttf"],
    )
