"""The questions in `notebooks/QUESTIONS.md`: all of the RFC, each with a place that answers it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SECTIONS = [
    "Current Pipeline",
    "STEP1: Work Flow",
    "STEP1: Exactly-once Semantics",
    "STEP1: Fault Tolerance",
    "STEP2: The FileIdAssigner",
    "STEP2: The BucketWriter",
    "STEP3: Write as Mini-batch",
    "STEP3: The Semantics",
    "STEP3: Fault Tolerance",
    "The new index",
    "Implementation Plan",
]
_ROW = re.compile(r"\| (\d+) \| (.+\?) \| \[(\d\d): (.+)\]\(([\w-]+\.ipynb)#(\S+)\) \|")


def questions() -> dict[str, list[tuple[str, ...]]]:
    """Return each section's rows: number, question, notebook, heading, file, anchor."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in (NOTEBOOKS / "QUESTIONS.md").read_text().splitlines():
        if line.startswith("## "):
            found[line[3:]] = []
        elif re.match(r"\| \d", line):
            row = _ROW.fullmatch(line)
            assert row is not None, f"not a question with its answer: {line}"
            found[list(found)[-1]].append(row.groups())
    return found


ALL = [row for rows in questions().values() for row in rows]


def headings(file: str) -> set[str]:
    """Return the texts of a notebook's headings."""
    cells = json.loads((NOTEBOOKS / file).read_text())["cells"]
    lines = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return set(re.findall(r"^#+ (.+)$", lines, re.MULTILINE))


def test_there_are_at_least_thirty_numbered_in_order():
    """There are at least thirty questions, all different."""
    assert [int(row[0]) for row in ALL] == list(range(1, len(ALL) + 1))
    assert len({row[1] for row in ALL}) == len(ALL) >= 30


def test_every_section_of_the_rfc_has_a_question():
    """The sections are those of the RFC, in its order, and none is empty."""
    assert list(questions()) == SECTIONS
    assert all(questions().values())


@pytest.mark.parametrize("row", ALL, ids=lambda row: row[0])
def test_a_question_names_an_existing_place(row):
    """The notebook has the heading, and the link points to it."""
    _, _, number, heading, file, anchor = row
    assert file.startswith(f"{number}-")
    assert heading in headings(file)
    assert unquote(anchor) == heading.replace(" ", "-")


def test_the_map_links_every_notebook():
    """`notebooks/README.md` lists all notebooks, and links nothing that does not exist."""
    links = set(re.findall(r"\]\(([^):]+)\)", (NOTEBOOKS / "README.md").read_text()))
    assert {path.name for path in NOTEBOOKS.glob("*.ipynb")} <= links
    assert all((NOTEBOOKS / link).exists() for link in links)
