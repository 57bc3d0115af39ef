"""The codes of findings: the page and the source list the same ones."""

from __future__ import annotations

import re
from pathlib import Path

from hoodie_nb.checks.findings import REPAIRS, STAKES

ROOT = Path(__file__).parents[3]
CHECKS = ROOT / "hoodie_nb" / "checks"
FILES = ("fsck", "folder_findings", "log_findings", "record_findings", "row_findings")


def listed(column: int) -> dict[str, str]:
    """Return the codes in the page, each with the text in a column of its row."""
    part = (ROOT / "docs" / "fsck.md").read_text().partition("| code |")[2]
    rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip("| `"): row[column].strip(" |") for row in rows}


def test_the_page_lists_the_codes_of_the_source() -> None:
    """docs/fsck.md has each code once, with what is at stake and what `repair=True` does."""
    assert listed(2) == STAKES
    done = {code: text.partition(",")[0] for code, text in listed(4).items() if text != "no"}
    assert done == REPAIRS
    assert set(STAKES.values()) == {
        *(f"rows {what}" for what in ("lost", "hidden", "doubled")),
        "disk space",
        "nothing",
    }


def test_fsck_uses_each_code() -> None:
    """Each code is given to a finding, and each finding has one of them."""
    text = "".join((CHECKS / f"{name}.py").read_text() for name in FILES)
    used = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', text))
    assert used - {"leftover"} == STAKES.keys() - {"leftover"}
