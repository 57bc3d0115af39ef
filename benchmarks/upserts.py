"""Upserts, ours and others on the same work: `python benchmarks/upserts.py [--rounds 2]`.

Each arm runs in a process of its own: it loads the base of workload U and upserts the batches. The
arms of a group (`--at-once`) take turns with each batch, in an order that rotates, so that other
work on the machine slows all of them; those that wait are suspended. Measured are wall time, the
CPU seconds and the peak memory of the arm's whole process tree, and the bytes of the files that are
new in its table. Every table is compared with what DuckDB computes from the input files; a wrong
one ends the benchmark. Prints Markdown, and writes `results.json` and the picture.

`--arms` selects arms by patterns (`--arms "ours*,raw"`); `hudi` runs only if it is named, and first
installs Spark 3.5. The arms of hudi-rs are left out, with a line that says so, until its program is
built. The reading of a batch from disk counts for arms on Spark only.
"""

import argparse
import fnmatch
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measuring import arms, hudi_rs, report, truth
from measuring.process_tree import cpu_seconds, peak_memory
from measuring.workload import Shape, make_files

RESULTS = Path(__file__).with_name("results.json")


def files_of(folder: Path) -> dict[Path, int]:
    """Return the files below a folder with their sizes."""
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def measure(worker: arms.Worker, step: str, file: Path) -> dict[str, float]:
    """Let an arm take one step; return what it cost."""
    worker.take(file)
    table = worker.folder / "table"
    before = files_of(table)
    os.sync()  # the dirty pages of others are not this arm's work
    began = cpu_seconds(worker.pid)
    with peak_memory(worker.pid) as peak:
        seconds = worker.run(step)
    cpu = cpu_seconds(worker.pid) - began
    new = sum(size for path, size in files_of(table).items() if path not in before)
    written = new / file.stat().st_size
    return {"wall_s": seconds, "cpu_s": cpu, "written": written, "peak_mb": peak[0] / 1e6}


def run_group(
    names: Sequence[str], files: Sequence[Path], wanted: Mapping[int, truth.Fingerprint]
) -> dict[str, list[dict]]:
    """Run arms on fresh tables, in turn for each file; return the costs of each file.

    While one works, the processes of the others are suspended: a stream polls its source.
    """
    costs: dict[str, list[dict]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="upserts-") as folder, ExitStack() as stack:
        workers = {}
        for name in names:
            worker = arms.Worker(name, Path(folder, f"arm{len(workers)}"), Path(__file__))
            workers[name] = stack.enter_context(worker)
        for number, file in enumerate(files):
            for name in turned(names, number):
                with workers[name].awake() as worker:
                    costs[name].append(measure(worker, "upsert" if number else "load", file))
                    if number in wanted:
                        worker.check(wanted[number])
    return costs


def turned(names: Sequence[str], number: int) -> list[str]:
    """Return the names in another order for each number."""
    start = number % len(names)
    return [*names[start:], *names[:start]]


def run(
    shape: Shape, names: Sequence[str], rounds: int, at_once: int
) -> dict[str, list[list[dict]]]:
    """Run all arms in turn, in groups; return the costs by arm and round."""
    costs: dict[str, list[list[dict]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="upserts-") as folder:
        files = make_files(Path(folder), shape)
        wanted = {0: truth.expected(files[:1]), shape.batches: truth.expected(files)}
        for number in range(rounds):
            for start in range(0, len(names), at_once):
                for name, new in run_group(names[start : start + at_once], files, wanted).items():
                    costs[name].append(new)
                    print(report.progress(number, name, new), flush=True)
    return costs


def chosen(wish: str | None) -> list[str]:
    """Return the arms that match one of the patterns; all but Hudi without a wish."""
    known = list(arms.arms())
    if wish is None:
        return built([name for name in known if name.split()[0] != arms.HUDI])
    patterns = [part.strip() for part in wish.split(",")]
    unknown = [pattern for pattern in patterns if not fnmatch.filter(known, pattern)]
    if unknown:
        raise SystemExit(f"no arm matches {unknown}; there are {known}")
    return built([n for n in known if any(fnmatch.fnmatch(n, part) for part in patterns)])


def built(names: Sequence[str]) -> list[str]:
    """Return the arms without those of hudi-rs if its program is not built; say how to build it."""
    missing = [name for name in names if name.startswith(arms.HUDI_RS)]
    if not missing or hudi_rs.PROGRAM.exists():
        return list(names)
    print(f"without {', '.join(missing)}: {hudi_rs.BUILD}", file=sys.stderr)
    return [name for name in names if name not in missing]


def parsed() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Shape()
    parser.add_argument("--base", type=int, default=default.base)
    parser.add_argument("--batch", type=int, default=default.batch)
    parser.add_argument("--batches", type=int, default=default.batches)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--arms", help="patterns, separated by commas")
    parser.add_argument("--at-once", type=int, default=5, help="arms of a group: memory for each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print and save; or be the process of an arm."""
    asked = parsed()
    if asked.serve:
        return arms.serve(asked.serve, asked.folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends suspended processes, too
    shape = Shape(asked.base, asked.batch, asked.batches, asked.seed)
    load_before = os.getloadavg()[0]
    costs = run(shape, chosen(asked.arms), asked.rounds, asked.at_once)
    result: dict[str, Any] = report.result(shape, costs, load_before)
    print(f"\n{report.table(result)}")
    report.save(asked.results, result)


if __name__ == "__main__":
    main()
