"""The README says in one screen what this is, and its pictures, commands and links are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_code import ROOT, blocks

README = (ROOT / "README.md").read_text()
SCREEN = README.partition("\n## ")[0]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += [
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("how-to/*.md")),
    *(ROOT / n / "README.md" for n in ("notebooks", "benchmarks")),
]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page to files or headings that do not exist."""
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    found = []
    for link in (first or second for first, second in links):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if re.match(r"https?:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def test_the_readme_is_short_and_begins_with_what_a_stranger_asks():
    """At most 120 lines; first a sentence, a picture, two commands, ten lines, and what else is."""
    assert len(README.splitlines()) <= 120
    (commands,) = blocks("sh", SCREEN)
    (code,) = blocks("python", SCREEN)
    sentence = SCREEN.split("\n\n")[1]
    assert sentence.endswith(".") and sentence.count(". ") == 0
    assert SCREEN.count("<picture>") == 1 and re.search(r'<img alt="[^"]{40,}"', SCREEN)
    assert len(commands.splitlines()) == 2
    assert len([line for line in code.splitlines() if line]) <= 10
    table = SCREEN.partition("| you want | use |")[2]
    others = ("hudi-rs", "Hudi on Spark", "Hudi on Flink", "delta-rs")
    assert [other for other in others if f"| [{other}](https://" not in table] == []


def test_strangers_run_the_commands_of_the_readme():
    """`make strangers` runs each command of make in the README's first screen."""
    script = (ROOT / ".ci" / "strangers").read_text()
    commands = re.findall(r"\bmake [a-z]+", SCREEN)
    assert {"make demo", "make lab"} == {*commands}
    assert all(re.search(rf"^    {command}\b", script, re.MULTILINE) for command in commands)


def test_the_pictures_are_those_of_the_recorded_run(tmp_path):
    """docs/images/draw.py draws the README's pictures, each of at most 150 KB, and finds others."""
    images = tmp_path / "images"
    images.mkdir()
    for path in (DOCS / "images").iterdir():
        if path.is_file():
            (images / path.name).write_bytes(path.read_bytes())
            assert path.stat().st_size <= 150 << 10
    command = [sys.executable, str(images / "draw.py"), "--check"]
    setting = {**os.environ, "PYTHONPATH": str(ROOT)}

    def check() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=setting)
        return done.returncode, done.stdout + done.stderr

    assert check() == (0, "")
    light = images / "dashboard-light.svg"
    assert "var(" not in light.read_text()  # a picture in a page has no theme
    light.write_text(light.read_text().replace("running", "walking"))
    assert check() == (
        1,
        "dashboard-light.svg is not what is drawn now: run docs/images/draw.py\n",
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Each relative link of a page is a file, and its anchor a heading."""
    assert broken(page, page.read_text()) == []


def test_a_broken_link_is_found():
    """The check above knows files, headings, pictures and the addresses that it leaves alone."""
    text = '[a](docs/none.md) [b](docs/types.md#none) <img src="none.svg"> [c](https://a.b/c)'
    text += " [d](docs/types.md#times) [e](#licence) [f](#none)"
    assert broken(ROOT / "README.md", text) == [
        "docs/none.md",
        "docs/types.md#none",
        "none.svg",
        "#none",
    ]


def test_the_list_of_pages_is_complete():
    """docs/README.md links each page of docs."""
    linked = set(re.findall(r"\]\(((?:how-to/)?[\w-]+\.md)\)", (DOCS / "README.md").read_text()))
    pages = [*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md")]
    assert linked == {page.relative_to(DOCS).as_posix() for page in pages} - {"README.md"}
