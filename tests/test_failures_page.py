"""The pages that name tests (failures, types, compatibility): these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "failures.md"
VERSIONS = ROOT / "docs" / "compatibility.md"
TEXTS = PAGE.read_text() + (ROOT / "docs" / "types.md").read_text() + VERSIONS.read_text()
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_HEAD = re.compile(r"\| (What happens|File) \||\| --- \|")


def rows() -> list[str]:
    """Return the rows of the page's tables, without their heads."""
    lines = PAGE.read_text().splitlines()
    return [line for line in lines if line.startswith("|") and not _HEAD.match(line)]


def test_every_row_has_a_fix_and_a_test() -> None:
    """A row says what happens, what becomes of the table, what to do, and where it is tested."""
    bad = [row for row in rows() if row.count(" | ") != 3 or not _NAMED.search(row)]
    assert bad == []
    assert len(rows()) > 40


def test_every_operation_of_the_versions_has_a_test() -> None:
    """A row says for each table version whether the operation works, and where it is tested."""
    part = VERSIONS.read_text().partition("| copy-on-write tables |")[2].split("\n\n")[0]
    cells = [line.split(" | ") for line in part.splitlines()[2:]]
    assert [row for row in cells if len(row) != 5 or not _NAMED.search(row[4])] == []
    assert len(cells) > 10


def test_the_named_tests_exist() -> None:
    """A test that a page names is a function of that file."""
    named = sorted(set(_NAMED.findall(TEXTS)))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert missing == [] and len(named) > 100
