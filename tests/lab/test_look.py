"""How pictures look: contrast, colours for colour-blind readers, text sizes, words, no overlaps."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import test_draw
from matplotlib import colors
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from runs import make_events

from hoodie_nb.lab.draw import index
from hoodie_nb.lab.draw.file_groups import GroupFacts, file_groups
from hoodie_nb.lab.draw.timeline import InstantFacts, timeline
from hoodie_nb.lab.experiments.race import RaceResult
from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.player.page import page
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.run.run_state import RunState
from hoodie_nb.lab.widgets.bloom_view import BloomView

ROOT = Path(__file__).parents[2]
DRAWN = {**test_draw.DRAWN, "lookups": index.lookups, "index": index.index}
COLOURS = [
    *(palette.BLUE, palette.AMBER, palette.GREEN, palette.RED, palette.PURPLE, palette.GREY),
    palette.DARK["blue"],
]
JUPYTER_LIGHT = {
    "--jp-ui-font-color1": "rgba(0, 0, 0, 0.87)",
    "--jp-ui-font-color2": "rgba(0, 0, 0, 0.54)",
    "--jp-layout-color1": "#ffffff",
    "--jp-layout-color2": "#eeeeee",
    "--jp-border-color0": "#bdbdbd",
}
JUPYTER_DARK = {
    "--jp-ui-font-color1": "rgba(255, 255, 255, 0.87)",
    "--jp-ui-font-color2": "rgba(255, 255, 255, 0.54)",
    "--jp-layout-color1": "#212121",
    "--jp-layout-color2": "#424242",
    "--jp-border-color0": "#616161",
}
PAGES = {  # what a page defines, as in JupyterLab and VS Code; Colab defines neither
    "no variables": {},
    "VS Code, light": {
        "--vscode-editor-foreground": "#3b3b3b",
        "--vscode-editor-background": "#ffffff",
    },
    "VS Code, dark": {
        "--vscode-editor-foreground": "#cccccc",
        "--vscode-editor-background": "#1f1f1f",
    },
    "JupyterLab, light": JUPYTER_LIGHT,
    "JupyterLab, dark": JUPYTER_DARK,
}
# a simulation of deuteranopia in linear RGB: Machado, Oliveira and Fernandes, 2009
DEUTERANOPE = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


# --- measures ------------------------------------------------------------------------------------


def channels(colour: str, paper: str = "#ffffff") -> np.ndarray:
    """Return sRGB from 0 to 1 of a colour, `#rrggbb` or `rgba(…)`, on paper."""
    if colour.startswith("rgba"):
        *channel, alpha = map(float, re.findall(r"[\d.]+", colour))
        return np.array(channel) / 255 * alpha + channels(paper) * (1 - alpha)
    return np.array(colors.to_rgb(colour))


def linear(srgb: np.ndarray) -> np.ndarray:
    """Return linear RGB."""
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(colour: str, paper: str) -> float:
    """Return WCAG's contrast, 1 to 21, of a colour on paper."""
    lights = sorted(XYZ[1] @ linear(channels(each, paper)) for each in (colour, paper))
    return float((lights[1] + 0.05) / (lights[0] + 0.05))


def seen(colour: str) -> np.ndarray:
    """Return CIELAB of a colour as a deuteranope sees it."""
    rgb = np.clip(DEUTERANOPE @ linear(channels(colour)), 0, 1)
    x, y, z = (
        np.cbrt(v) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116
        for v in XYZ @ rgb / XYZ.sum(axis=1)
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str) -> float:
    """Return ΔE (1976) of two colours for a deuteranope."""
    return float(np.linalg.norm(seen(one) - seen(other)))


def resolved(colour: str, variables: dict[str, str]) -> str:
    """Return what a browser makes of `var(--hn-a)`, which is `var(--b,var(--c,#rrggbb))`."""
    defined = dict(part.split(":", 1) for part in palette.THEME.split(";"))
    colour = defined[colour.removeprefix("var(").removesuffix(")")]
    for name in re.findall(r"var\((--[\w-]+)", colour):
        if name in variables:
            return variables[name]
    return re.findall(r"#\w+", colour)[0]


def pictures() -> dict[str, str]:
    """Return pictures by name: of no event, of each recording at two times, of tables."""
    found = {f"{name} of nothing": draw(RunState()) for name, draw in DRAWN.items()}
    for run in recordings.names():
        events = recordings.recorded(run)
        for share in (0.6, 1):
            state = RunState.of(events[: round(share * len(events))])
            found |= {f"{name} of {run}, {share}": draw(state) for name, draw in DRAWN.items()}
    failed = {"why": "column flight_id is missing", "error": "InvalidInput"}
    sealed = ["checkpoint_sealed", {"batch": 0}, "checkpoint_sealed", {"batch": 1}]
    state = RunState.of(make_events(*sealed, "job_failed", failed))
    found |= {f"{name} of a failure": draw(state) for name, draw in DRAWN.items()}
    done = InstantFacts("20261121080000000", "commit", "completed", "20261121080001000", "upsert")
    open_one = InstantFacts("20261121080007000", "replacecommit", "inflight")
    found["timeline"] = timeline([done, open_one] * 9)
    groups = [GroupFacts(f"2013-01-{n:02}", f"f{n}", str(n % 2), 900, n, (9,) * n) for n in (1, 2)]
    found["file groups"] = file_groups(groups, 10**8, "1", 2)
    found["many file groups"] = file_groups(groups[:1] * 9, 10**8, "1", 1)
    view = BloomView(keys=32, fpp=0.03)
    for key in ("key-1", "other-1"):
        view.ask(key)
        found[f"bloom of {key}"] = view.pictures.shown("bloom")
    return found


PICTURES = pictures()


def parsed(picture: str) -> ElementTree.Element:
    """Return a picture as a tree, its names without their namespace."""
    root = ElementTree.fromstring(picture)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


# --- colours -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_text_is_readable_in_every_notebook(page):
    """Ink comes with its paper: their contrast is at least 4.5, whatever the page defines."""
    paper = resolved(palette.PAPER, PAGES[page])
    for ink in (palette.INK, palette.FAINT):
        assert contrast(resolved(ink, PAGES[page]), paper) >= 4.5, (page, ink)


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_text_is_readable_in_the_themes_of_pages_and_files(theme):
    """Pages of the player and saved pictures have a contrast of 4.5, also on shaded ground."""
    for ink, paper in itertools.product(("ink", "faint"), ("paper", "shade")):
        assert contrast(theme[ink], theme[paper]) >= 4.5, (ink, paper)


@pytest.mark.parametrize("paper", ["#ffffff", "#212121", palette.DARK["paper"]])
def test_what_is_drawn_stands_out_from_its_paper(paper):
    """Colours have a contrast of at least 3; amber has an edge, light blue is for dark pages."""
    drawn = [*COLOURS[:-1]] if paper == "#ffffff" else COLOURS
    assert [c for c in drawn if contrast(c, paper) < 3 and c != palette.AMBER] == []


def test_colours_differ_for_a_deuteranope():
    """Any two colours of the palette are at least ΔE 10 apart, also without red and green cones."""
    near = {
        (one, other): distance(one, other)
        for one, other in itertools.combinations(COLOURS, 2)
        if distance(one, other) < 10
    }
    assert near == {}
    assert distance("#2a9d5c", "#d1495b") < 4  # a green and a red that look alike


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_the_colours_of_the_palette_only(name):
    """Each is of the palette; amber has an outline; text is ink on the picture's own paper."""
    root = parsed(PICTURES[name])
    assert f"{palette.THEME};" in root.get("style")
    assert f"background:{palette.PAPER}" in root.get("style")
    themed = {palette.INK, palette.FAINT, palette.PAPER, palette.SHADE, palette.LINE}
    for element in root.iter():
        fill, stroke = element.get("fill", "none"), element.get("stroke", "none")
        assert {fill, stroke} <= {*COLOURS, *themed, "none"}
        assert fill != palette.AMBER or stroke == palette.INK
        assert stroke != palette.AMBER
        if element.tag == "text":
            assert fill in (palette.INK, palette.FAINT)


def test_a_painted_picture_has_no_variable_left():
    """What is saved as PNG or SVG has the colours of one theme, none of a page."""
    for theme in (palette.LIGHT, palette.DARK):
        drawn = palette.painted("".join(PICTURES.values()), theme)
        assert "var(" not in drawn and theme["ink"] in drawn and theme["blue"] in drawn


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PICTURES)
def test_text_is_large_enough_and_says_something(name):
    """Each text has 11 px or more, and is a number with its unit, or has a word."""
    root = parsed(PICTURES[name])
    assert len(root.get("aria-label")) > 10
    assert root.get("width") == root.get("viewBox").split()[2]  # it does not shrink with its cell
    for element in root.iter("text"):
        assert float(element.get("font-size")) >= 11
        bare = re.sub(r"[+\d.,:%-]+ ?(s|k|M|B|KB|MB|GB|min)?\b", "", "".join(element.itertext()))
        assert not bare.strip("+%") or re.search(r"[A-Za-z]{3}", bare), element.text


@cache
def width(text: str, weight: str) -> float:
    """Return the width of a text whose size is 1."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return float(TextPath((0, 0), text, size=100, prop=font).get_extents().width / 100)


def extent(element: ElementTree.Element) -> tuple[float, float]:
    """Return where a text begins and ends, in matplotlib's font, which is a wide one."""
    weight = element.get("font-weight", "normal")
    wide = width(element.text, weight) * float(element.get("font-size"))
    x = float(element.get("x"))
    share = {"end": 1, "middle": 0.5}.get(element.get("text-anchor"), 0)
    return x - share * wide, x + (1 - share) * wide


@pytest.mark.parametrize("name", [name for name in PICTURES if not name.startswith("recovery")])
def test_texts_neither_overlap_nor_leave_the_picture(name):
    """Each text is within the picture, and no two of a line cover one another."""
    root = parsed(PICTURES[name])
    texts = [e for e in root.iter("text") if e.text]
    for element in texts:
        begin, end = extent(element)
        assert begin >= -1 and end <= float(root.get("width")) + 1, element.text
        assert 8 <= float(element.get("y")) <= float(root.get("height")), element.text
    for one, other in itertools.combinations(texts, 2):
        if abs(float(one.get("y")) - float(other.get("y"))) < 9:
            (a, b), (c, d) = extent(one), extent(other)
            assert b <= c + 1 or d <= a + 1, (one.text, other.text)


def test_the_race_is_drawn_with_axes_and_large_text():
    """Each panel names what it shows, with its unit; no text is below 11 points."""
    row = {"repeat": 0, "records_per_s": 7e3, "write_s": 1.0, "blocked_s": 0.5}
    rows = [row | {"pipeline": name, "peak_buffer_mb": 3.5} for name in ("step1", "step2")]
    figure = RaceResult(pd.DataFrame(rows), "local").figure()
    figure.canvas.draw()
    shown = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in shown) >= 11
    assert all(axes.get_ylabel() for axes in figure.axes)
    assert "is fastest here" in figure.get_suptitle()


@pytest.mark.parametrize(
    "path",
    [
        *("benchmarks/scaling.svg", "benchmarks/upserts.svg"),
        *("docs/images/dashboard-dark.svg", "docs/images/dashboard-light.svg"),
    ],
)
def test_saved_pictures_have_large_text(path):
    """Text is text, and none is below 11 px."""
    found = []
    for element in parsed((ROOT / path).read_text()).iter("text"):
        style = element.get("style") or ""
        sizes = re.findall(r"([\d.]+)px", style) or [element.get("font-size")]
        found.append(float(sizes[0]))
    assert len(found) > 20 and min(found) >= 11


def test_the_player_has_large_text_and_the_colours_of_the_palette():
    """Its style has sizes of 11 px or more, and no colour that is not the palette's."""
    text = page(sorted(recordings.recorded("step2"), key=lambda event: event.at_ms))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert min(float(px) for px in re.findall(r"font[-\w]*: *(?:\d+ )?([\d.]+)px", style)) >= 11
    known = {*COLOURS, *palette.LIGHT.values(), *palette.DARK.values()}
    assert {*re.findall(r"#[0-9a-f]{6}\b", style)} <= known


def test_marks_of_different_meaning_have_different_shapes():
    """The states of an instant can be told apart without any colour."""
    shapes = {state: shape for state, (shape, _) in svg.STATES.items()}
    assert len({*shapes.values()}) == len(shapes)
