"""Draw the README's pictures of the dashboard: `python docs/images/draw.py [--check]`.

They show the dashboard of a real run, while its fourth batch is written: `benchmarks/recordings.py`
recorded the run, with the default pipeline and a simulated object store, and its events ship with
the package. So a picture is the same on every machine. The widgets take their colours from
JupyterLab's theme; a picture has those of one theme. With `--check` nothing is written: exit code 1
if a picture is not as drawn.
"""

import argparse
import sys
from pathlib import Path

from hoodie_nb.lab.draw.progress import TROUBLE
from hoodie_nb.lab.look.palette import DARK, LIGHT, painted
from hoodie_nb.lab.look.svg import bar, tag
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.widgets.replay import Replay

HERE = Path(__file__).parent
RUN = "direct"
AT_MS = 69_700  # after the first event
MARGIN = 16
THEMES = {"dashboard-light.svg": LIGHT, "dashboard-dark.svg": DARK}


def drawn(colours: dict[str, str]) -> str:
    """Return the picture of the run, in the colours of a theme."""
    replay = Replay(recordings.recorded(RUN), RUN)
    replay.go(AT_MS)
    pictures = replay.pictures
    width = pictures.width + 2 * MARGIN
    height = pictures.ends["trouble"] - TROUBLE + MARGIN  # without what is empty: errors, writers
    paper = bar(0, 0, width, height, fill=colours["paper"], rx=8)
    parts = "\n".join(
        f'<g transform="translate({x + MARGIN} {y + MARGIN})">{text}</g>'
        for x, y, text in pictures.placed()
        if y < pictures.ends["index"]
    )
    whole = tag(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=replay.summary,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )
    text = whole.replace("</svg>", f"\n{paper}\n{parts}\n</svg>\n")
    return painted(text, colours)


def main() -> int:
    """Write the pictures, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if wrong")
    checks, wrong = parser.parse_args().check, 0
    for name, colours in THEMES.items():
        path, text = HERE / name, drawn(colours)
        if not checks:
            path.write_text(text)
        elif path.read_text() != text:
            print(f"{path.name} is not what is drawn now: run docs/images/draw.py")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
