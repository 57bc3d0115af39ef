"""`make test` and `make rest` are all tests together, and none is in both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import suites
from suites import SMOKE, Collected, at_most, folders_of, near, part, quick

# by function: its tests, the recorded seconds of one, whether it needs Spark
FUNCTIONS = {
    "tests/core/test_a.py::test_cheap": (20, 0.01, False),
    "tests/core/test_a.py::test_new": (2, 0.0, False),
    "tests/core/test_a.py::test_loop": (200, 3.0, False),
    "tests/core/test_a.py::test_dear": (1, 30.0, False),
    "tests/core/test_a.py::test_dearer": (1, 50.0, False),
    "tests/stream/test_b.py::test_stream": (3, 1.0, True),
    SMOKE + "::test_smoke": (2, 20.0, True),
    "tests/test_scenarios.py::test_scenario": (300, 0.2, False),
}
MEANS = {name: mean for name, (_, mean, _) in FUNCTIONS.items() if mean}
TESTS = [
    Collected(f"{name}[{n}]", spark)
    for name, (count, _, spark) in FUNCTIONS.items()
    for n in range(count)
]


def taken(seed):
    """Return how many tests of each function the quick suite takes."""
    chosen = quick(TESTS, MEANS, seed)
    return {name.split("::")[1]: len([i for i in chosen if i.startswith(name)]) for name in MEANS}


def test_a_function_gets_its_share():
    """Cheap tests, scenarios and the smoke file run whole, a loop in part, Spark in the rest."""
    some = taken("a commit")
    assert (some["test_cheap"], some["test_scenario"], some["test_smoke"]) == (20, 300, 2)
    assert (some["test_stream"], some["test_loop"]) == (0, int(10 / 3))
    assert some["test_dear"] + some["test_dearer"] == 1  # both together are more than TURNS
    assert len([i for i in quick(TESTS, MEANS, "") if "test_new" in i]) == 2


def test_the_budget_lowers_what_a_function_may_have(monkeypatch):
    """With a smaller budget the loop gets one test, and never more seconds than there are."""
    monkeypatch.setattr(suites, "BUDGET", 105)  # 100 s for what runs whole, 0.2 for the cheap ones
    assert taken("a commit")["test_loop"] == 1


def test_commits_draw_until_all_have_run():
    """The same commit draws the same tests; some dozens of commits draw every one."""
    loop = {test.id for test in TESTS if "test_loop" in test.id or "test_dear" in test.id}
    drawn = [quick(TESTS, MEANS, f"commit {n}") for n in range(600)]
    assert quick(TESTS, MEANS, "commit 7") == drawn[7]
    assert loop <= set().union(*drawn)


def test_what_is_left_gets_a_share_too():
    """A loop runs in part, a dear test in some commits; some dozens of them draw every test."""
    drawn = [at_most(TESTS, MEANS, 8, f"commit {n}") for n in range(600)]
    counts = {name: len([i for i in drawn[0] if i.startswith(f"{name}[")]) for name in FUNCTIONS}
    dear = [name for name, mean in MEANS.items() if mean > 8]
    assert [n for name, n in counts.items() if name not in dear] == [20, 2, 2, 3, 40]
    for name in dear:
        turns = sum(any(i.startswith(f"{name}[") for i in ids) for ids in drawn)
        assert turns == pytest.approx(600 * 8 / MEANS[name], rel=0.3)
    assert {test.id for test in TESTS} == set().union(*drawn)


def test_one_of_two_parts_has_about_half_of_the_tests():
    """The same commit draws the same part; some commits together draw every test."""
    drawn = [part(TESTS, 2, f"commit {n}") for n in range(20)]
    assert all(len(ids) == pytest.approx(len(TESTS) / 2, rel=0.2) for ids in drawn)
    assert part(TESTS, 2, "commit 7") == drawn[7] != drawn[8]
    assert {test.id for test in TESTS} == set().union(*drawn)


def test_quick_and_rest_are_all_tests():
    """For pytest, too: the two suites of a real folder are disjoint and together everything."""
    root = Path(__file__).parents[1]

    def ids(*suite):
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *suite]
        folders = ["tests/core/services", "tests/spark_format"]
        done = subprocess.run([*command, *folders], cwd=root, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0
        return [line for line in done.stdout.splitlines() if "::" in line]

    fast, rest = ids("--suite", "quick"), ids("--suite", "rest")
    assert fast and rest
    assert sorted(fast + rest) == sorted(ids())
    some = ids("--suite", "rest", "--each", "8")
    assert len(some) < len(rest) and {*some} < {*rest}
    means = suites.means_of(suites.read_durations(suites.DURATIONS))
    cheap = {i.split("[")[0] for i in rest if means.get(i.split("[")[0], 0) <= 8}
    assert cheap <= {i.split("[")[0] for i in some}


@pytest.mark.parametrize(
    ("changed", "folders"),
    [
        ("tests/core/records/test_journal.py", ["tests/core/records"]),
        ("tests/test_house.py", ["tests/test_house.py"]),
        ("library/deep/in/x.py", ["library/deep/in", "tests/core/deep", "tests/deep"]),
        ("library/new/x.py", ["library/new"]),
        ("library/x.py", ["library/x.py", "tests/test_x.py"]),
        ("docs/index.md", []),
    ],
)
def test_tests_mirror_folders(tmp_path, changed, folders):
    """A changed file leads to the tests of its folder."""
    for name in ("library/__init__.py", "tests/test_x.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("tests/core/deep", "tests/deep"):
        (tmp_path / name).mkdir(parents=True)
    assert folders_of([changed], tmp_path) == folders


def test_a_folder_is_not_one_whose_name_begins_alike():
    """tests/a holds tests/a/test_x.py, but not tests/ab/test_x.py."""
    assert near(["tests/a/test_x.py", "tests/ab/test_x.py"], ["tests/a"]) == {"tests/a/test_x.py"}
