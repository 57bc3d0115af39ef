"""Write the figures of the docs from the results: `python benchmarks/figures.py [--check]`.

A block of figures stands between `<!-- figures: NAME -->` and `<!-- end of figures -->`, and the
name says what is written there:

| name | from |
| --- | --- |
| `upserts ROWS` | the run of `results.json` with so many rows in the table |
| `ratios ROWS` | the same run: what pairs of its arms take, as ratios like those of the table |
| `performance` | the same run with 2,000,000 rows, for docs/performance.md |
| `law NAME`, `cost-model` | `scaling.json` |
| `log-costs` | `snapshot.json`: the predictions of its other half |
| `types` | the runs of `types.json`, which have arms of both types, for docs/which-type.md |
| `reads`, `growth`, `growth8` | `snapshot.json` |
| `printed NAME N` | the Nth table of `printed/NAME.md`: what `benchmarks/NAME.py` printed |

With `--check` nothing is written: exit code 1 if a block is not what the results say, or if the
text around the blocks has a figure of its own that looks measured (`stray`).
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import cost_model
import scaling
import snapshot
from measuring import arms, report

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGES = (ROOT / "README.md", HERE / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(<!-- figures: ([^>]+) -->\n\n)(.*?)(\n\n<!-- end of figures -->)", re.DOTALL)
_MEASURED = re.compile(  # a number with the unit of a result, or with two decimals
    r"\d[\d.,]*[ -]?(?:ms|µs|s|seconds?|times|%|MB|rows/s|records/s|events/s|CPU)(?![\w/])"
    r"|(?<![\d.-])\d+\.\d\d(?!\d)|\d[\d.,]* (?:rows|records|events) (?:a|per) second"
)
_SETTINGS = (  # of a benchmark or a version, not a result
    "Python 3.11",
    "20 ms of latency and 1 MB/s per stream",
    "5 % of the events",
    "up to 512 MB of its files",
)


def runs() -> dict[int, Any]:
    """Return the runs of `upserts.py` by the rows of their table."""
    found = json.loads((HERE / "results.json").read_text())
    return {run["workload"]["base"]: run for run in found}


def middle(run: Any, arm: str, what: str) -> float:
    """Return an arm's median cost of a batch, as the table of the run has it."""
    rounds = report.warm(run["costs"][arm], what)
    return median(cost for each in rounds for cost in each)


def upserts(rows: str) -> str:
    """Return the table of a run."""
    return report.table(runs()[int(rows)])


def performance() -> str:
    """Return the table of docs/performance.md: every row is of one run."""
    run = runs()[2_000_000]
    writers = {
        "a stream of hoodie_nb, without options": arms.USER,
        "the same on Spark's executors": "ours stream direct",
        "a stream that calls delta-rs on the driver, default settings": "delta-rs stream",
        "a stream that calls delta-rs on the driver, tuned": "delta-rs tuned stream",
        "`table.upsert(arrow_table)`, without Spark": "ours",
        "delta-rs without Spark, default settings": "delta-rs",
        "delta-rs without Spark, tuned": "delta-rs tuned",
        "for comparison: pyarrow rewrites our files, without index, commit and sync": "raw",
    }
    sizes, machine = run["workload"], run["machine"]
    lines = [
        f"Batches of {sizes['batch']:,} rows, half of them updates, are upserted into a table of "
        f"{sizes['base']:,} rows: every batch rewrites the whole table. Medians, on "
        f"{machine['cores']} cores of {machine['processor']}, all in one run of {run['date']}; "
        "every table is checked.\n",
        "| writer | seconds per batch | CPU seconds |",
        "| --- | --- | --- |",
    ]
    for writer, arm in writers.items():
        wall, cpu = (middle(run, arm, what) for what in ("wall_s", "cpu_s"))
        lines.append(f"| {writer} | {wall:.2f} | {cpu:.2f} |")
    return "\n".join(lines)


def ratios(rows: str) -> str:
    """Return what pairs of arms of the run take, as ratios of each round's medians."""
    run = runs()[int(rows)]
    pairs = (
        (arms.USER, "delta-rs stream"),
        (arms.USER, "delta-rs tuned stream"),
        (arms.USER, "raw"),
        (arms.USER, "ours stream direct on driver"),
        ("ours stream direct", arms.USER),
        ("ours stream auto", "delta-rs tuned stream"),
        ("ours stream auto", "delta-rs stream"),
        ("ours", "raw"),
        ("ours", "delta-rs"),
        ("ours", "delta-rs tuned"),
    )
    lines = ["| arm | compared with | wall | CPU |", "|---|---|---|---|"]
    for arm, other in pairs:
        if {arm, other} <= run["costs"].keys():
            costs = run["costs"][arm], run["costs"][other]
            wall, cpu = (report.ratio(*costs, what, report.warm) for what in ("wall_s", "cpu_s"))
            lines.append(f"| {arm} | {other} | {wall} | {cpu} |")
    return "\n".join(lines)


def law(name: str) -> str:
    """Return the table of a scaling law."""
    sizes = json.loads((HERE / "scaling.json").read_text())[name]["sizes"]
    return scaling.report(name, {int(size): cost for size, cost in sizes.items()})


def model() -> str:
    """Return what the cost model predicts for the sizes that it was not fitted to."""
    known, others = cost_model.points(json.loads((HERE / "scaling.json").read_text()))
    return cost_model.report(others, cost_model.fitted(known))


def types() -> str:
    """Return what a batch costs in both types of tables, in runs that measured both."""
    pairs = (
        ("`table.upsert`", "ours", "ours merge-on-read"),
        ("a stream", arms.USER, "ours stream merge-on-read"),
        ("Hudi on Spark", "hudi", "hudi merge-on-read"),
    )
    lines = ["| writer | rows, batch | copy-on-write, s | merge-on-read, s | CPU s, each | |"]
    lines.append("|---" * 6 + "|")
    for run in json.loads((HERE / "types.json").read_text()):
        sizes = f"{run['workload']['base']:,}, {run['workload']['batch']:,}"
        for label, copying, appending in pairs:
            if {copying, appending} <= run["costs"].keys():
                walls, cpus = (
                    [f"{middle(run, arm, what):.2f}" for arm in (copying, appending)]
                    for what in ("wall_s", "cpu_s")
                )
                lines.append(f"| {label} | {sizes} | {' | '.join(walls + cpus)} |")
    return "\n".join(lines)


def part(name: str) -> str:
    """Return a table of `snapshot.json`."""
    return snapshot.report(name, json.loads((HERE / "snapshot.json").read_text())[name])


def log_costs() -> str:
    """Return what the model of logs predicts for the sizes that it was not fitted to."""
    found = json.loads((HERE / "snapshot.json").read_text())
    parts = [cost_model.append_points(found), cost_model.read_points(found)]
    reports = [cost_model.report(others, cost_model.fitted(known)) for known, others in parts]
    return "\n\n".join(reports)


def printed(name: str, number: str) -> str:
    """Return a table of what a script printed."""
    text = (HERE / "printed" / f"{name}.md").read_text()
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return str(tables[int(number) - 1]).rstrip("\n")


_MAKERS: dict[str, Callable[..., str]] = {
    "upserts": upserts,
    "ratios": ratios,
    "performance": performance,
    "law": law,
    "cost-model": model,
    "log-costs": log_costs,
    "types": types,
    "reads": lambda: part("reads"),
    "growth": lambda: part("growth"),
    "growth8": lambda: part("growth, 8 file groups"),
    "printed": printed,
}


def written(text: str) -> str:
    """Return a page with its blocks as the results say."""

    def block(found: re.Match[str]) -> str:
        maker, *given = found[2].split()
        return found[1] + _MAKERS[maker](*given) + found[4]

    return _BLOCK.sub(block, text)


def stray(path: Path, text: str) -> Iterator[str]:
    """Yield figures that look measured and stand outside of a block.

    Searched are the README, the page of the benchmarks and docs/performance.md.
    """
    if path not in (ROOT / "README.md", HERE / "README.md", ROOT / "docs" / "performance.md"):
        return
    text = re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", text))
    for setting in _SETTINGS:
        text = text.replace(setting, "")
    yield from (found[0] for found in _MEASURED.finditer(text))


def problems() -> Iterator[str]:
    """Yield what is wrong in the pages."""
    for path in PAGES:
        text, name = path.read_text(), path.relative_to(ROOT)
        if written(text) != text:
            yield f"{name}: a figure is not that of the results: run benchmarks/figures.py"
        for figure in stray(path, text):
            yield f"{name}: {figure!r} is in no block of figures"
        if text.count("<!-- figures: ") != len(_BLOCK.findall(text)):
            yield f"{name}: a block of figures has no end, or no empty lines around its content"


def main() -> int:
    """Write all pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if wrong")
    if not parser.parse_args().check:
        for path in PAGES:
            path.write_text(written(path.read_text()))
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
