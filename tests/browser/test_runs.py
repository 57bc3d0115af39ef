"""The site's pages of recorded runs, opened from files, and pictures on pages without variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.widgets.replay import Replay

from .test_player import SMALLEST

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
NAMES = ("tour", "failure", "race", "race-step1", "race-step2")
LIGHT = ["rgb(31, 35, 40)", "rgb(255, 255, 255)"]  # of the palette
VARIABLES = "--vscode-editor-foreground: #ccc; --vscode-editor-background: #1f1f1f"
INK_AND_PAPER = """() => {
  const text = document.querySelector('svg text[font-weight=bold]');
  return [getComputedStyle(text).fill, getComputedStyle(text.ownerSVGElement).backgroundColor];
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the pages, written as `make docs` writes them."""
    made = tmp_path_factory.mktemp("runs")
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "run_pages.py", made], check=True)
    return made


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_the_site_works_from_its_file(page, folder, axe, pictures, name, theme):
    """It plays without a server, axe-core finds no barrier, no text is below 11 px."""
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.emulate_media(color_scheme=theme)
    page.goto((folder / f"{name}.html").as_uri())
    page.evaluate(axe)
    found = page.evaluate("() => axe.run({iframes: false})")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
    assert float(page.evaluate(SMALLEST)) >= 11
    for frame in page.frames if name == "race" else [page]:
        if frame is page.main_frame:
            continue
        frame.click("#begin")
        assert frame.text_content("#clock").startswith("0.0 of ")
        frame.click("#next")
        assert not frame.text_content("#now").startswith("The query starts")
    assert len(page.frames) == (3 if name == "race" else 1)
    assert said == []
    page.screenshot(path=pictures / f"run-{name}-{theme}.png", full_page=True)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [("", LIGHT), (VARIABLES, ["rgb(204, 204, 204)", "rgb(31, 31, 31)"])],
    ids=["Colab", "VS Code"],
)
def test_ink_does_not_vanish_on_a_dark_page(page, variables, expected):
    """Where JupyterLab's variables are missing, a picture has both ink and paper of one theme."""
    drawn = Replay(recordings.recorded("step3")).pictures.placed()
    style = f":root {{ {variables} }} body {{ background: #1f1f1f }}"
    page.set_content(f"<style>{style}</style>{''.join(text for _, _, text in drawn)}")
    assert page.evaluate(INK_AND_PAPER) == expected
