"""The site: docs/README.md sorts each page into one part, and the reference has each name once."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hoodie_nb
from hoodie_nb.__main__ import parser
from hoodie_nb.checks.findings import STAKES
from hoodie_nb.errors import HoodieError

ROOT = Path(__file__).parents[1]
LIST = (ROOT / "docs" / "README.md").read_text()


@pytest.fixture(scope="module")
def site():
    """Return the modules that build the site, as scripts import one another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "site")
        import links
        import parts
        import reference
        import run_pages
        import stage
    modules = (links, parts, reference, run_pages, stage)
    return {module.__name__: module for module in modules}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the folder of the pages that Sphinx would read."""
    folder = tmp_path_factory.mktemp("site") / "pages"
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "stage.py", folder], check=True)
    return folder


def test_each_page_is_in_one_part(site):
    """The parts are the four, and each page and notebook is linked in exactly one of them."""
    found = site["parts"].parts(LIST)
    assert tuple(part.name for part in found) == site["parts"].NAMES
    assert site["parts"].misplaced(found, site["parts"].all_pages()) == []
    assert {f"notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.ipynb")} <= {
        *found[0].pages
    }


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("](cleaning.md)", "](types.md)", "docs/cleaning.md is in 0 parts of docs/README.md"),
        ("](cleaning.md)", "](types.md)", "docs/types.md is in 2 parts of docs/README.md"),
        ("](cleaning.md)", "](none.md)", "docs/none.md of docs/README.md does not exist"),
    ],
    ids=["left out", "twice", "gone"],
)
def test_a_page_in_no_part_or_in_two_is_found(site, old, new, wrong):
    """The check above knows pages that are left out, repeated or gone."""
    assert LIST.count(old) == 1
    found = site["parts"].parts(LIST.replace(old, new))
    assert wrong in site["parts"].misplaced(found, site["parts"].all_pages())


def test_the_reference_has_each_public_name(pages):
    """Each name of the package, each method of a table, each error, command and code is there."""
    text = "\n".join(page.read_text() for page in (pages / "reference").glob("*.md"))
    heads = set(re.findall(r"^:+\{py:\w+\} ([\w.]+)|^## `hn\.(\w+)`", text, re.MULTILINE))
    described = {first or second for first, second in heads}
    errors = {error.__name__ for error in (HoodieError, *HoodieError.__subclasses__())}
    methods = {name for name in dir(hoodie_nb.Table) if not name.startswith("_")}
    assert {*hoodie_nb.__all__} | errors | methods <= described
    (commands,) = (action.choices for action in parser()._actions if action.choices)
    assert [name for name in commands if f"## `hoodie-nb {name}`" not in text] == []
    findings = (pages / "docs" / "fsck.md").read_text()
    assert [code for code in STAKES if f"| `{code}` |" not in findings] == []


def test_a_name_without_a_place_is_found(site, monkeypatch):
    """A new public name stops the build until it is on a page of the reference."""
    monkeypatch.setattr(hoodie_nb, "__all__", [*hoodie_nb.__all__, "new_name"])
    with pytest.raises(ValueError, match="new_name"):
        site["reference"].check_names()


def test_the_navigation_has_each_page(pages):
    """Each page of the site is in the contents of one other page, but code and the first page."""
    entries: list[str] = []
    for page in pages.glob("*.md"):
        for listed in re.findall(
            r"^```{toctree}\n:hidden:\n\n(.*?)^```", page.read_text(), re.M | re.S
        ):
            entries += [line.rpartition("<")[2].rstrip(">") for line in listed.splitlines()]
    made = {
        p.relative_to(pages).as_posix()
        for kind in ("md", "ipynb")
        for p in pages.rglob(f"*.{kind}")
    }
    code = {name for name in made if name.startswith(("hoodie_nb/", "examples/"))}
    assert sorted(entries) == sorted(made - code - {"index.md"})


def test_the_three_runs_are_written_and_linked(site, pages, tmp_path):
    """The first page and the page about them link a tour, a race and a failure that recovers."""
    site["run_pages"].write(tmp_path / "runs")
    linked = ["runs/tour.html", "runs/race.html", "runs/failure.html"]
    assert re.findall(r'href="(runs/.*?)"', (pages / "index.md").read_text()) == linked
    about = (pages / "docs" / "runs.md").read_text()
    assert re.findall(r'href="\.\./(runs/.*?)"', about) == linked
    titles = [
        re.search(r"<title>(.*?)</title>", (tmp_path / page).read_text())[1] for page in linked
    ]
    assert titles[0].startswith("Pipeline direct: 30,521 rows in 5 commits, in ")
    assert re.fullmatch(r"step2 needs [\d.]+ s for the rows that take step1 [\d.]+ s", titles[1])
    assert "4 commits, 1 instant rolled back" in titles[2]
    assert site["links"].broken(tmp_path) == []
    framed = re.findall(r'<iframe src="(.*?)"', (tmp_path / "runs" / "race.html").read_text())
    assert framed == ["race-step1.html", "race-step2.html"]


def test_the_examples_in_docstrings_are_right(site):
    """Links from a folder, and anchors as JupyterLab spells them."""
    results = [doctest.testmod(site[name]) for name in ("parts", "stage")]
    assert [(result.attempted, result.failed) for result in results] == [(1, 0), (1, 0)]


def test_no_page_has_the_marks_of_a_conflict(site):
    """No page is left half merged."""
    pages = [ROOT / page for page in site["parts"].all_pages()]
    marks = re.compile(r"^(<{7}|>{7}|={7}$)", re.MULTILINE)
    assert [str(page) for page in pages if marks.search(page.read_text())] == []


def test_broken_links_of_the_built_site_are_found(site, tmp_path):
    """The check after the build knows files, anchors, and what another host would send."""
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>')
    links = ["other.html#there", "#here", "https://a.b/c", "none.html", "other.html#none", "#gone"]
    body = "".join(f'<a href="{link}">x</a>' for link in links)
    loaded = '<img src="none.png"><img src="data:,"><script src="https://a.b/c.js"></script>'
    (tmp_path / "page.html").write_text(f'<p id="here">{body}{loaded}')
    assert site["links"].broken(tmp_path) == [
        f"page.html: {link}"
        for link in ("#gone", "https://a.b/c.js", "none.html", "none.png", "other.html#none")
    ]
