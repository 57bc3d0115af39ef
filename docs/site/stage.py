"""Put the pages of the site together, for Sphinx: `python docs/site/stage.py FOLDER`.

Pages and notebooks keep their places, so that their links lead where they lead in the repository.
Added are a page for each part, and the reference, which is written from the code. Changed is what
only GitHub or JupyterLab understand: the README's picture, folded cells, anchors with capitals; and
the names of the pages in `build/site/runs`, which run_pages.py writes, are links.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from parts import HOME, LINK, LIST, ROOT, Part, all_pages, from_root, misplaced, parts
from reference import reference_pages

RUNS = "docs/runs.md"
_PICTURE = re.compile(
    r"<picture>.*?srcset=\"(.*?)\".*?alt=\"(.*?)\" src=\"(.*?)\".*?</picture>", re.S
)
_LISTED = re.compile(r"^\| `build/site/(runs/\w+\.html)` \| \*\*(.+?)\*\*", re.MULTILINE)
_RUN = re.compile(r"`build/site/(runs/(\w+\.html))`")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


class Stage:
    """The folder that Sphinx reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: set[str] = set()  # linked ones that are no pages

    def write(self, page: str, text: str) -> None:
        """Write a page, with its links as the site has them."""
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.linked(page, text))

    def linked(self, page: str, text: str) -> str:
        """Return a page's text whose links lead to the site's pages; note the files it links."""
        folder = str(Path(page).parent)

        def link(found: re.Match[str]) -> str:
            target, anchor = found[1], heading(found[2] or "")
            if "://" in target or target.startswith("mailto:"):
                return found[0]
            place = from_root(target, folder)
            up = "../" * len(Path(page).parent.parts)
            if place in (HOME, LIST):
                return f"]({up}index.md{anchor if place == HOME else '#the-four-parts'})"
            if place.endswith(".py"):
                self.files.add(place)
                return f"]({up}{place.removesuffix('.py')}.md)"
            if not place.endswith((".md", ".ipynb")):
                self.files.add(place)
            return f"]({target}{anchor})"

        text = _RUN.sub(rf'<a href="{"../" * len(Path(page).parent.parts)}\1">\2</a>', text)
        pieces = _FENCE.split(text)
        return "".join(p if p.startswith("```") else LINK.sub(link, p) for p in pieces)

    def notebook(self, page: str) -> None:
        """Write a notebook with its stored outputs; folded cells get the tag that folds them."""
        held = json.loads((ROOT / page).read_text())
        cells = held["cells"]
        for cell, after in zip(cells, [*cells[1:], None], strict=True):
            if cell["cell_type"] == "markdown":
                cell["source"] = self.linked(page, "".join(cell["source"]))
                continue
            if cell["metadata"].get("jupyter", {}).get("source_hidden"):
                cell["metadata"]["tags"] = ["hide-cell"]
            for output in cell["outputs"]:
                drawn(output.get("data", {}))
            cell["metadata"]["mystnb"] = {"image": {"alt": described(cell, after)}}
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(held))

    def copy_files(self) -> None:
        """Write a page for each linked module, and copy the other linked files and the pictures."""
        for place in sorted(self.files):
            path = self.folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / place, path)
            if place.endswith(".py"):
                include = f"```{{literalinclude}} {path.name}\n:language: python\n```\n"
                text = f"---\norphan: true\n---\n\n# `{place}`\n\n{include}"
                path.with_suffix(".md").write_text(text)


def drawn(data: dict[str, list[str] | str]) -> None:
    """Draw the chart of an output, which JupyterLab draws from its text, as boxes in a line."""
    chart = "".join(data.get("text/markdown", ""))
    if chart.startswith("```mermaid"):
        boxes = re.findall(r"\d+\[\"(.+?)\"\]", chart)
        arrows = re.findall(r"-->\|(.+?)\|", chart)
        line = [f"<span>{box}</span> {arrow} → " for box, arrow in zip(boxes, arrows, strict=False)]
        del data["text/markdown"]
        data["text/html"] = f'<p class="flow">{"".join(line)}<span>{boxes[-1]}</span></p>'


def described(cell: dict[str, Any], after: dict[str, Any] | None) -> str:
    """Return the text of a cell's picture for those who cannot see it: its caption, if it has one.

    A caption is a text in italics that begins the next cell.
    """
    caption = re.match(
        r"\*([^*].*?[^*])\*(\n\n|$)", "".join(after["source"]) if after else "", re.S
    )
    if caption:
        return re.sub(r"[`*_\n]+", " ", caption[1])
    texts = ["".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"]]
    return " ".join(text.strip("<>") for text in texts) or "the picture of this cell"


def heading(anchor: str) -> str:
    """Return the anchor of a heading, which JupyterLab spells with capitals and punctuation.

    >>> heading("#Which-row-wins?")
    '#which-row-wins'
    """
    return anchor[:1] + re.sub(r"[^\w-]", "", unquote(anchor[1:]).lower())


def home(found: list[Part]) -> str:
    """Return the first page: the README, its picture for both themes, and the parts."""
    text = (ROOT / HOME).read_text()

    def picture(match: re.Match[str]) -> str:
        dark, alt, light = match.groups()
        return "\n\n".join(
            f":::{{image}} {path}\n:class: only-{theme}\n:alt: {alt}\n:::"
            for theme, path in (("light", light), ("dark", dark))
        )

    text, count = _PICTURE.subn(picture, text)
    if count != 1:
        raise SystemExit(f"{HOME}: the picture was not found")
    runs = _LISTED.findall((ROOT / RUNS).read_text())
    played = [f'- <a href="{path}">{label.rstrip(".")}</a>' for path, label in runs]
    lines = [f"- [{part.name}]({part.slug}.md): {summary(part)}" for part in found]
    return (
        f"{text}\n## Runs to play\n\n[Recorded runs]({RUNS}) that play in this browser:\n\n"
        + "\n".join(played)
        + "\n\n## The four parts\n\n"
        + "\n".join(lines)
        + "\n\n"
        + toctree(f"{part.slug}.md" for part in found)
    )


def summary(part: Part) -> str:
    """Return the first sentence of a part, without its links."""
    sentence = part.text.split("\n")[0]
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence).partition(". ")[0].rstrip(".") + "."


def toctree(pages: object) -> str:
    """Return the directive that puts pages into the navigation."""
    return "```{toctree}\n:hidden:\n\n" + "\n".join(map(str, pages)) + "\n```\n"


def part_page(part: Part, generated: dict[str, str]) -> str:
    """Return the page of a part, which is in the root folder: its links start there."""

    def link(found: re.Match[str]) -> str:
        local = "://" not in found[1]
        return f"]({from_root(found[1]) if local else found[1]}{found[2] or ''})"

    opening, _, text = LINK.sub(link, part.text).partition("\n\n")
    if generated:
        lines = "\n".join(
            f"- [{title(page)}]({place}){names(page)}" for place, page in generated.items()
        )
        text = f"## Pages\n\n{text}"
        text = f"## From the code\n\nWritten from the code with each build.\n\n{lines}\n\n{text}"
    titles = numbered(part)
    pages = [f"{titles[page]} <{page}>" if page in titles else page for page in part.pages]
    return f"# {part.name}\n\n{opening}\n\n{text}\n{toctree([*generated, *pages])}"


def names(text: str) -> str:
    """Return the classes and functions that a generated page describes, after a colon."""
    heads = re.findall(r"^:+\{py:(?:class|function|exception)\} (\w+)", text, re.MULTILINE)
    return f": {', '.join(f'`{name}`' for name in dict.fromkeys(heads))}" if heads else ""


def numbered(part: Part) -> dict[str, str]:
    """Return the titles of the notebooks as the part's links have them, with their numbers."""
    found = re.findall(r"\[([^]]+)\]\(([^)]+\.ipynb)\)", part.text)
    return {from_root(target): text for text, target in found}


def title(text: str) -> str:
    """Return the first heading of a page."""
    return re.search(r"^# (.+)$", text, re.MULTILINE)[1]


def main() -> int:
    """Write all pages into a new folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = parts((ROOT / LIST).read_text())
    if wrong := misplaced(found, all_pages()):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    stage, generated = Stage(folder), reference_pages()
    stage.write("index.md", home(found))
    for part in found:
        stage.write(
            f"{part.slug}.md", part_page(part, generated if part.name == "Reference" else {})
        )
        for page in part.pages:
            if page.endswith(".ipynb"):
                stage.notebook(page)
            else:
                stage.write(page, (ROOT / page).read_text())
    for page, text in generated.items():
        stage.write(page, text)
    stage.copy_files()
    shutil.copytree(ROOT / "docs" / "images", folder / "docs" / "images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
