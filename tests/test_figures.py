"""The figures of the docs are those of the results: benchmarks/figures.py --check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the figures of a checkout, with the library of this one."""
    command = [sys.executable, str(root / "benchmarks" / "figures.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the pages and the results."""
    shutil.copy(ROOT / "README.md", tmp_path)
    for name in ("benchmarks", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def test_all_figures_are_those_of_the_results():
    """No block of figures differs from the results, and no other figure looks measured."""
    done = check(ROOT)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("file", "old", "new", "wrong"),
    [
        (
            "docs/performance.md",
            "| 1.45 | 2.44 |",
            "| 1.54 | 2.44 |",
            "docs/performance.md: a figure is not that of",
        ),
        ("docs/decisions.md", "| 1.42 |", "| 1.24 |", "docs/decisions.md: a figure is not that"),
        ("benchmarks/scaling.json", "1792.2", "792.2", "benchmarks/README.md: a figure is not"),
        ("benchmarks/printed/race.md", "7,408", "74,080", "benchmarks/README.md: a figure is not"),
        (
            "docs/performance.md",
            "# How fast it is\n",
            "# How fast it is\n29 seconds",
            "docs/performance.md: '29 seconds' is in no",
        ),
        (
            "README.md",
            "# hoodie_nb\n",
            "# hoodie_nb\n29 seconds",
            "README.md: '29 seconds' is in no",
        ),
        (
            "docs/performance.md",
            "<!-- end of figures -->",
            "",
            "docs/performance.md: a block of figures has no end",
        ),
    ],
    ids=[
        "by hand",
        "a page of docs",
        "new results",
        "a new printed table",
        "stray",
        "stray in the README",
        "no end",
    ],
)
def test_a_figure_without_its_result_is_found(copy, file, old, new, wrong):
    """A figure edited by hand, one of older results, and one of no results end the check."""
    path = copy / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    done = check(copy)
    assert done.returncode == 1 and wrong in done.stdout, done.stderr


def test_new_results_are_written(copy):
    """Without --check the pages are written, and then the check passes."""
    results = copy / "benchmarks" / "scaling.json"
    results.write_text(results.read_text().replace("1792.2", "1797.4"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(copy / "benchmarks" / "figures.py")]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    assert "| 1,000,000 | 1,797 |" in (copy / "benchmarks" / "README.md").read_text()
    assert check(copy).returncode == 0
