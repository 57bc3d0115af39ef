"""The facts with their tests (failures, compatibility, protocols, …): these tests exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from generated_pages import WRITER

ROOT = Path(__file__).parents[1]
_NAMED = re.compile(r"(tests/[\w/]+\.py)(?:::(test_\w+))?")
_CASE = re.compile(r"(tests/[\w/]+\.py)(::test_\w+)(?:\[[^]]+\])?(?: \(.+\))?")
WITH_TESTS = {
    "failures": 180,
    "advice": 80,
    "compatibility-tested": 50,
    "protocols": 25,
    "findings": 10,
    "what-happens-if": 15,
}


def rows(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a source: the first column, and the others."""
    for section in WRITER.sections(name).values():
        yield from section.items()


def test_every_row_has_an_outcome_and_a_test() -> None:
    """A row says what goes wrong, what one sees and does, and where it is tested."""
    bad = [
        what
        for what, (outcome, *tests) in rows("failures")
        if not outcome or not tests or not all(map(_CASE.fullmatch, tests))
    ]
    assert bad == []


def test_each_case_of_users_has_a_test() -> None:
    """What happens if …: what is guaranteed, what to do, and tests that the page does not show."""
    cases = dict(rows("what-happens-if"))
    assert [
        case for case, row in cases.items() if not all(map(_CASE.fullmatch, row[2:] or [""]))
    ] == []
    assert len(cases) == 15 and "tests/" not in WRITER.page("what-happens-if").partition("##")[2]


def test_every_operation_of_the_versions_has_a_test() -> None:
    """A row says for each table version whether the operation works, and where it is tested."""
    cells = WRITER.sections("compatibility-tested")["Table versions"]
    bad = [what for what, row in cells.items() if not all(map(_CASE.fullmatch, row[3:] or [""]))]
    assert bad == [] and len(cells) > 10


@pytest.mark.parametrize("name", WITH_TESTS)
def test_the_named_tests_exist(name: str) -> None:
    """A test that a row names is a function of that file, a file alone exists."""
    text = WRITER.sources()[name].read_text()
    named = sorted(set(_NAMED.findall(text)))
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).exists()
        or (test and not re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE))
    ]
    assert missing == [] and len(named) >= WITH_TESTS[name]


def test_the_files_to_change_exist() -> None:
    """Each module and folder in docs/where.md is one of the library."""
    named = re.findall(r"`([\w/]+(?:/|\.py))`", WRITER.page("where"))
    library = ROOT / "hoodie_nb"
    missing = [name for name in named if name != "hoodie_nb/" and not (library / name).exists()]
    assert missing == [] and len(named) > 60


def test_the_notebooks_of_the_deviations_exist() -> None:
    """A number in brackets is that of a notebook."""
    rows = WRITER.sections("deviations").values()
    texts = [here for section in rows for *_, here in section.values()]
    numbers = {
        n
        for text in texts
        for found in re.findall(r"\(([\d, ]+)\)$", text)
        for n in found.split(", ")
    }
    assert {path.name[:2] for path in (ROOT / "notebooks").glob("*.ipynb")} >= numbers != set()
