"""The generated pages are what their sources say, and the others are short."""

from __future__ import annotations

import doctest
import re
import shutil

import pytest
from generated_pages import WRITER

DOCS = WRITER.ROOT / "docs"
_GENERATED = re.compile(r"<!-- figures: .*?<!-- end of figures -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def test_the_pages_are_what_their_sources_say() -> None:
    """After a change of tests/facts or of the codes and options, run docs/write_tables.py."""
    assert WRITER.outdated() == []
    assert len(WRITER.sources()) > 5


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Let the script work on a copy of the sources and pages."""
    shutil.copytree(WRITER.FACTS, tmp_path / "facts")
    (tmp_path / "docs").mkdir()
    for name in WRITER.sources():
        shutil.copy(DOCS / f"{name}.md", tmp_path / "docs")
    monkeypatch.setattr(WRITER, "FACTS", tmp_path / "facts")
    monkeypatch.setattr(WRITER, "ROOT", tmp_path)
    return tmp_path


def test_a_page_that_is_not_what_its_source_says_is_found(copy) -> None:
    """A page edited by hand is found, and so is a source that was changed since."""
    page, source = copy / "docs" / "failures.md", copy / "facts" / "fsck.toml"
    page.write_text(page.read_text().replace("Ctrl-C", "Ctrl-D", 1))
    source.write_text(source.read_text().replace("a base file cannot be read", "it cannot", 1))
    assert WRITER.outdated() == ["docs/failures.md", "docs/fsck.md"]


def test_a_code_that_the_source_lacks_is_an_error(copy) -> None:
    """A new code of `fsck` needs its row."""
    source = copy / "facts" / "fsck.toml"
    source.write_text(re.sub(r'^"other-table".*\n', "", source.read_text(), flags=re.MULTILINE))
    with pytest.raises(ValueError, match="other-table"):
        WRITER.page("fsck")


def test_the_examples_of_the_script_are_right() -> None:
    """How tests, scenarios and code are spelled."""
    result = doctest.testmod(WRITER)
    assert (result.attempted, result.failed) == (2, 0)


def by_hand() -> dict[str, int]:
    """Return the words of each page of docs that no script writes, without figures and code."""
    pages = {path: path.read_text() for path in DOCS.rglob("*.md")}
    return {
        path.name: len(_CODE.sub("", _GENERATED.sub("", text)).split())
        for path, text in pages.items()
        if path.stem not in WRITER.sources()
    }


def test_pages_by_hand_are_short() -> None:
    """No page has more than 1,200 words, and all together have at most 20,000."""
    words = by_hand()
    assert {page: count for page, count in words.items() if count > 1_200} == {}
    assert sum(words.values()) <= 20_000
