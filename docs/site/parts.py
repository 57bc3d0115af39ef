"""The four parts of the documentation, as docs/README.md sorts the pages into them.

A part is a section of that page: its heading, its text, and the pages that it links, in this order.
So the site's contents and the list of all pages are one text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
HOME = "README.md"
LIST = "docs/README.md"
NAMES = ("Tutorial", "How-to", "Reference", "Explanation")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


@dataclass(frozen=True)
class Part:
    """A part: its name, its text in Markdown without the heading, and its pages from the root."""

    name: str
    text: str
    pages: tuple[str, ...]

    @property
    def slug(self) -> str:
        """Return the name of its page: `how-to`."""
        return self.name.lower()


def all_pages(root: Path = ROOT) -> set[str]:
    """Return the pages of the repository that have to be in a part, from the root."""
    found = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("docs/how-to/*.md")]
    found += [*root.glob("[!.]*/README.md"), *root.glob("notebooks/*.md")]
    found += root.glob("notebooks/*.ipynb")
    return {path.relative_to(root).as_posix() for path in found} - {HOME, LIST}


def parts(text: str) -> list[Part]:
    """Return the parts of docs/README.md, from its sections."""
    sections = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return [
        Part(name, body.strip() + "\n", tuple(pages_in(body)))
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    ]


def pages_in(text: str) -> Iterable[str]:
    """Yield the pages that a text in the folder docs links, from the root, each once."""
    found = (target for target, _ in LINK.findall(text) if target.endswith((".md", ".ipynb")))
    local = (target for target in found if "://" not in target)
    yield from dict.fromkeys(page for page in map(from_root, local) if page not in (HOME, LIST))


def from_root(target: str, folder: str = "docs") -> str:
    """Return where a relative link of a page in a folder leads, from the root.

    >>> from_root("../notebooks/README.md"), from_root("types.md")
    ('notebooks/README.md', 'docs/types.md')
    """
    names: list[str] = []
    for name in PurePosixPath(folder, target).parts:
        names = names[:-1] if name == ".." else [*names, name]
    return "/".join(names)


def misplaced(found: Iterable[Part], pages: Iterable[str]) -> list[str]:
    """Return a sentence for each page that is not in exactly one part."""
    counts = Counter(page for part in found for page in part.pages)
    wrong = {page: counts[page] for page in {*pages, *counts} if counts[page] != 1}
    unknown = sorted(counts.keys() - {*pages})
    return [
        *(f"{page} is in {count} parts of {LIST}" for page, count in sorted(wrong.items())),
        *(f"{page} of {LIST} does not exist" for page in unknown),
    ]
