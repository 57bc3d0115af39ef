"""Which tests `make test` runs (the quick suite), and how long each test function takes.

The rule, told to contributors in docs/testing.md: a test function gets at most `limit` seconds of
the quick suite, as many of its tests as fit, drawn by the commit. The rest is the complement.
With `--each` a function of any suite gets at most so many seconds: one that takes n times as long
for a single test gets it in one of n commits. With `--part N` one of N tests runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DURATIONS = HERE / "durations.json"
LISTED = 0.1  # seconds: a function that takes less is not listed in the file of durations
BUDGET = 250  # recorded seconds of the quick suite, without those below; of all processes together
TURNS = 50  # recorded seconds for functions whose one test is too dear: they take turns
LIMITS = [0.1 * tenth for tenth in range(1, 101)]  # the largest that the budget allows is taken
WHOLE = ("tests/test_scenarios.py", "tests/test_house.py", "tests/test_*_page.py")
SMOKE = "tests/on_spark/test_spark_writes.py"  # the only tests of the quick suite that need Spark


@dataclass(frozen=True)
class Collected:
    """A collected test: its pytest id, and whether it needs Spark."""

    id: str
    spark: bool = False

    @property
    def path(self) -> str:
        """The file, from the repository's folder."""
        return self.id.split("::")[0]

    @property
    def function(self) -> str:
        """The id without the parameters."""
        return self.id.split("[")[0]


def quick(tests: Iterable[Collected], means: Mapping[str, float], seed: str) -> set[str]:
    """Return the ids of the quick suite's tests; `means` has the seconds of a function's test."""
    chosen: set[str] = set()
    functions: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        if test.path == SMOKE or any(fnmatch(test.path, pattern) for pattern in WHOLE):
            chosen.add(test.id)
        elif not test.spark:
            functions[test.function].append(test.id)
    counts = {name: len(ids) for name, ids in functions.items()}
    spent = sum(means.get(id.split("[")[0], 0) for id in chosen)
    limit = _limit(counts, means, BUDGET - spent)
    left = TURNS
    for name in _drawn(functions, seed):
        cost = means.get(name, 0)
        number = _number(counts[name], cost, limit)
        if number == 0 and cost <= left:  # its turn
            number, left = 1, left - cost
        chosen.update(_drawn(functions[name], seed)[:number])
    return chosen


def at_most(
    tests: Iterable[Collected], means: Mapping[str, float], seconds: float, seed: str
) -> set[str]:
    """Return the ids of as many tests of each function as fit in the seconds.

    If a single one takes n times as long, it is drawn by one of n seeds.
    """
    functions: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        functions[test.function].append(test.id)
    chosen: set[str] = set()
    for name, ids in functions.items():
        mean = means.get(name, 0)
        number = _number(len(ids), mean, seconds)
        if number == 0:  # its turn?
            number = int(_share(f"{seed} {name}") < seconds / mean)
        chosen.update(_drawn(ids, seed)[:number])
    return chosen


def part(tests: Iterable[Collected], parts: int, seed: str) -> set[str]:
    """Return the ids of one of `parts` parts of the tests, which the seed draws."""
    return {test.id for test in tests if _share(f"{seed} part {test.id}") < 1 / parts}


def _number(count: int, mean: float, limit: float) -> int:
    """Return how many of a function's tests run in the quick suite."""
    return count if count * mean <= limit else int(limit / mean)


def _limit(counts: Mapping[str, int], means: Mapping[str, float], budget: float) -> float:
    """Return the most seconds that a function may have, so that all stay within the budget."""

    def cost(limit: float) -> float:
        return sum(_number(n, means.get(f, 0), limit) * means.get(f, 0) for f, n in counts.items())

    return max((limit for limit in LIMITS if cost(limit) <= budget), default=LIMITS[0])


def _drawn(ids: Iterable[str], seed: str) -> list[str]:
    """Return the ids in an order that the seed decides, whatever other ids there are."""
    return sorted(ids, key=lambda id: _share(f"{seed} {id}"))


def _share(text: str) -> float:
    """Return a number from 0 to 1 that only the text decides, and any other text otherwise."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()) / 2**256


def near(paths: Iterable[str], folders: Sequence[str]) -> set[str]:
    """Return those paths of test files that are in the folders, or are one of them."""
    return {p for p in paths if any(p == f or p.startswith(f + "/") for f in folders)}


def folders_of(changed: Iterable[str], root: Path) -> list[str]:
    """Return the folders, or files, of the tests near the changed files.

    A file in tests/a/ has tests/a, one directly in tests/ itself. A file in library/a/b/ has its
    own folder (doctests) and the deepest of tests/a/b, tests/core/a/b, tests/a, tests/core/a that
    exist; library/x.py has the test_x.py directly in tests/ and tests/core/.
    """
    found: set[str] = set()
    for name in changed:
        top, *inner, last = Path(name).parts if "/" in name else ("", name)
        if top == "tests":
            found.add("/".join((top, *inner)) if inner else name)
        elif (root / top / "__init__.py").exists():
            found.add("/".join((top, *inner)) if inner else name)
            found.update(_mirrors(inner, root) if inner else _files(last, root))
    return sorted(found)


def _mirrors(inner: Sequence[str], root: Path) -> list[str]:
    """Return the folders of tests that mirror a folder of the library, the deepest that exist."""
    for depth in range(len(inner), 0, -1):
        paths = ["/".join((*top, *inner[:depth])) for top in (("tests",), ("tests", "core"))]
        if found := [path for path in paths if (root / path).is_dir()]:
            return found
    return []


def _files(module: str, root: Path) -> list[str]:
    """Return the test files of a module directly in the library."""
    paths = [f"tests/test_{module}", f"tests/core/test_{module}"]
    return [path for path in paths if (root / path).exists()]


def _git(*arguments: str) -> list[str]:
    """Return git's output in lines; none if there is no git or no repository."""
    command = ["git", "-C", str(HERE.parent), *arguments]
    try:
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def changed_files() -> list[str]:
    """Return the files that differ from the branch main, committed or not, and new ones."""
    base = _git("merge-base", os.environ.get("HOODIE_NB_BASE", "main"), "HEAD") or ["HEAD"]
    new = _git("ls-files", "--others", "--exclude-standard")
    return _git("diff", "--name-only", base[0]) + new


def seed() -> str:
    """Return what decides the drawn tests: HOODIE_NB_SAMPLE, else the commit, else a constant."""
    return os.environ.get("HOODIE_NB_SAMPLE") or (_git("rev-parse", "HEAD") or ["no commit"])[0]


# --- durations -----------------------------------------------------------------------------------


def read_durations(path: Path) -> dict[str, dict[str, float]]:
    """Return the tests and their seconds together, by function; nothing if there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


def means_of(durations: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of one test of each function."""
    return {name: entry["seconds"] / entry["tests"] for name, entry in durations.items()}


@dataclass(eq=False)  # pytest keeps plugins in sets
class Recorder:
    """Adds the durations of a run to those in a file."""

    path: Path
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's set-up, call and tear-down."""
        id = report.nodeid.rsplit("@", 1)[0] if report.nodeid.endswith("@spark") else report.nodeid
        function = id.split("[")[0]
        self.seconds[function] += report.duration
        self.tests[function].add(id)

    def pytest_sessionfinish(self) -> None:
        """Write a line for each function, in the order of the names."""
        entries = read_durations(self.path)
        for name, seconds in self.seconds.items():
            old = entries.get(name, {"tests": 0, "seconds": 0.0})
            total = round(old["seconds"] + seconds, 2)
            entries[name] = {"tests": old["tests"] + len(self.tests[name]), "seconds": total}
        kept = {n: e for n, e in sorted(entries.items()) if e["seconds"] >= LISTED}
        lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in kept.items()]
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# --- pytest's hooks, which conftest.py imports ----------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the four options."""
    group = parser.getgroup("suites", "what `make test`, `make rest` and `make near` run")
    group.addoption("--suite", choices=["quick", "rest", "near"], help="the tests to run")
    group.addoption("--each", type=float, help="the most seconds of each test function")
    group.addoption("--part", type=int, help="of so many parts of the tests, one")
    group.addoption("--record-durations", type=Path, help="add the seconds of each test to a file")


def pytest_configure(config: pytest.Config) -> None:
    """Record durations in the process that gets all reports."""
    path = config.getoption("--record-durations")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path.absolute()), "durations")


def _of_suite(suite: str | None, tests: list[Collected], means: Mapping[str, float]) -> set[str]:
    """Return the ids of a suite's tests; without a suite, all."""
    everything = {test.id for test in tests}
    if suite is None:
        return everything
    chosen = quick(tests, means, seed())
    if suite == "rest":
        return everything - chosen
    if suite == "near":
        paths = near({test.path for test in tests}, folders_of(changed_files(), HERE.parent))
        chosen |= {test.id for test in tests if test.path in paths}
    return chosen


@pytest.hookimpl(trylast=True)  # after pytest has dropped what -m and -k drop
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the suite."""
    suite, seconds = config.getoption("--suite"), config.getoption("--each")
    parts = config.getoption("--part")
    if suite is None and not seconds and not parts:
        return
    tests = [Collected(item.nodeid, item.get_closest_marker("spark") is not None) for item in items]
    means = means_of(read_durations(DURATIONS))
    chosen = _of_suite(suite, tests, means)
    if seconds:
        chosen = at_most([test for test in tests if test.id in chosen], means, seconds, seed())
    if parts:
        chosen &= part(tests, parts, seed())
    dropped = [item for item in items if item.nodeid not in chosen]
    items[:] = [item for item in items if item.nodeid in chosen]
    config.hook.pytest_deselected(items=dropped)
    for item in items:
        if "spark" in getattr(
            item, "fixturenames", ()
        ):  # in one process, which begins with them: one session
            item.add_marker(pytest.mark.xdist_group("spark"))
