"""The pages of docs/how-to: their code runs as it is printed, and prints what the pages show."""

from __future__ import annotations

import re
import zipfile

import pytest
from new_process import run_code
from page_code import HOW_TO, OF_THEIR_OWN, ROOT, WITH_SPARK, WITHOUT_SPARK, run_page, shown

from hoodie_nb import events
from hoodie_nb.checks.findings import STAKES
from hoodie_nb.spark_format import hudi_options

PAGES = {path.stem: path.read_text() for path in sorted(HOW_TO.glob("*.md"))}


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    """Each block of Python runs after those before it, without Spark, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = run_page(f"docs/how-to/{name}.md")
    assert names["table"].fsck() == []


def test_a_table_of_hudi_is_taken_over_as_its_page_says(tmp_path, monkeypatch):
    """The page's table is one that Java Hudi wrote with its defaults, with a metadata table."""
    with zipfile.ZipFile(ROOT / "tests" / "fixtures" / "v9_metadata_table.zip") as packed:
        packed.extractall(tmp_path / "warehouse")
    (tmp_path / "warehouse" / "v9_metadata_table").rename(tmp_path / "warehouse" / "orders")
    monkeypatch.setenv("TZ", "UTC")  # its instants are local times
    run = f"import sys; sys.path.append({str(ROOT / 'tests')!r}); from page_code import run_page; "
    done = run_code(run + "run_page('docs/how-to/from-hudi-spark.md')", tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "warehouse" / "orders" / ".hoodie" / "metadata").exists()


def test_other_output_than_the_page_shows_is_found(tmp_path):
    """A block that prints something else stops the run of its page."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match="block 0 printed:\n1"):
        run_page(str(page))
    page.write_text("```python\nprint(2)\n```\n\n```text\n2\n```\n")
    run_page(str(page))


def test_each_page_with_code_is_run():
    """A page with blocks of Python is in one of the three lists, and each list has only pages."""
    coded = [name for name, text in PAGES.items() if shown(text)]
    assert sorted([*WITHOUT_SPARK, *WITH_SPARK, *OF_THEIR_OWN]) == coded


def test_blocks_are_of_languages_that_are_run_or_shown_as_output():
    """Blocks of code are Python, sh or a systemd unit; each text block follows one of Python."""
    heads = [head for text in PAGES.values() for head in re.findall(r"^```(.+)$", text, re.M)]
    assert {*heads} <= {"python", "sh", "ini", "text"}
    outputs = [output for text in PAGES.values() for _, output in shown(text) if output is not None]
    assert heads.count("text") == len(outputs)


def test_pages_are_short():
    """None has more than 1,200 words."""
    assert [name for name, text in PAGES.items() if len(text.split()) > 1200] == []


def test_the_events_and_findings_that_pages_name_exist():
    """The table of alarms names kinds of events, and the page on Hudi's writer a finding."""
    table = PAGES["watching"].partition("| --- |")[2].partition("\n\n")[0]
    kinds = {kind for row in table.splitlines() for kind in re.findall(r"`(\w+)`", row[:120])}
    known = {*re.findall(r"`(\w+)`", events.__doc__)}
    assert {kind for kind in kinds if "_" in kind} <= known and len(kinds) > 8
    assert (
        "foreign-pending-instant" in PAGES["from-hudi-spark"]
        and "foreign-pending-instant" in STAKES
    )


def test_the_options_of_hudi_that_its_page_names_are_known():
    """Each option in the page's table is one that Spark's format takes, fixes or refuses."""
    table = PAGES["from-hudi-spark"].partition("| --- |")[2].partition("\n\n")[0]
    names = re.findall(r"`(hoodie\.[\w.]+\w)", table)
    known = {*hudi_options.all_names()}
    strange = [n for n in names if n not in known and not n.startswith(tuple(hudi_options.REFUSED))]
    assert [n for n in strange if f"{n}." not in hudi_options.REFUSED] == [] and len(names) > 4
