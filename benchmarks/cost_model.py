"""Fit the CPU time of the cost model, and check it: `python benchmarks/cost_model.py`.

Reads `scaling.json`. The first and third size of each law are fitted by least squares of the
relative error, with coefficients that are not negative; the second and fourth size are predicted.
Prints both, with the ratio of prediction to measurement, and the coefficients, which
`hoodie_nb/lab/experiments/cost_model.py` has as `CPU_S`. The costs of logs and of reads
(`log_costs.py`, there) are fitted in the same way to half of `snapshot.json`.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from hoodie_nb.lab.experiments.cost_model import CPU_S, Workload, features
from hoodie_nb.lab.experiments.log_costs import (
    APPEND_CPU_S,
    READ_CPU_S,
    append_features,
    read_features,
)

RESULTS = Path(__file__).with_name("scaling.json")
SNAPSHOTS = Path(__file__).with_name("snapshot.json")
ROUNDS = 4  # of upserts, until the one in the middle of those measured has been written
ROW_BYTES = 70  # on disk; no partition is larger than a file


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a law, the workload that it is, and its CPU seconds."""

    law: str
    size: int
    load: Workload
    cpu_s: float

    @property
    def row(self) -> np.ndarray:
        """The features, in the order of the coefficients."""
        found = features(self.load)
        return np.array([found[name] for name in CPU_S])


@dataclass(frozen=True, slots=True)
class LogPoint:
    """One measurement of logs: the features in the order of the coefficients, the CPU seconds."""

    law: str
    size: int
    row: np.ndarray
    cpu_s: float


def workload(law: str, size: int) -> Workload:
    """Return the workload of a size of a law, with the rows added by the rounds before."""
    if law == "base":
        return load(size + ROUNDS * 10_000, 20_000, 8, 8)
    if law == "partitions":
        return load(2000 * size, 1000, size, 1)
    if law == "groups":
        return load(1_000_000, 4000, 200, size)
    if law == "batch":
        return load(1_000_000 + ROUNDS * size / 2, size, 8, 8)
    return load(50, 1, 3, 1, commits=size)


def load(rows: float, batch_rows: float, partitions: int, touched: int, **more: int) -> Workload:
    """Return a workload of the benchmark's rows."""
    sizes = {"rows": rows, "row_bytes": ROW_BYTES, "batch_rows": batch_rows}
    return Workload(**sizes, partitions=partitions, touched=touched, **more)


def points(laws: dict) -> list[list[Point]]:
    """Return the two halves: first and third sizes, second and fourth sizes."""
    halves: list[list[Point]] = [[], []]
    for law, measured in laws.items():
        for number, (size, cost) in enumerate(measured["sizes"].items()):
            point = Point(law, int(size), workload(law, int(size)), cost["cpu_ms"] / 1000)
            halves[number % 2].append(point)
    return halves


def append_points(found: dict) -> list[list[LogPoint]]:
    """Return the two halves of the upserts that are logs: sizes in turn."""
    halves: list[list[LogPoint]] = [[], []]
    for law, partitions in (("appends", 8), ("groups", 200)):
        for number, (size, cost) in enumerate(found[law].items()):
            touched = int(size) if law == "groups" else partitions
            rows = 4000 if law == "groups" else int(size)
            row = append_features(load(1_000_000, rows, partitions, touched)).values()
            point = LogPoint(f"logs, {law}", int(size), np.array([*row]), cost["cpu_ms"] / 1000)
            halves[number % 2].append(point)
    return halves


def read_points(found: dict) -> list[list[LogPoint]]:
    """Return the two halves of the reads: 0, 3 and 9 logs, and 1 and 5 logs; 5 % of rows each."""
    halves: list[list[LogPoint]] = [[], []]
    for size, reads in found["reads"].items():
        for logs, half in ((0, 0), (1, 1), (3, 0), (5, 1), (9, 0)):
            row = read_features(int(size), logs * int(size) / 20, logs * 8).values()
            law = f"read, {logs} logs"
            cpu_s = reads[str(logs)]["cpu_ms"] / 1000
            halves[half].append(LogPoint(law, int(size), np.array([*row]), cpu_s))
    return halves


def fitted(half: Sequence[Point | LogPoint]) -> np.ndarray:
    """Return coefficients that are not negative, with the least squares of the relative error.

    The best solution is a plain one for some of the columns, and there are few columns: try all.
    """
    matrix = np.array([point.row / point.cpu_s for point in half])
    wanted, best = np.ones(len(half)), (np.inf, np.zeros(matrix.shape[1]))
    for count in range(1, matrix.shape[1] + 1):
        for columns in map(list, itertools.combinations(range(matrix.shape[1]), count)):
            found = np.zeros(matrix.shape[1])
            found[columns] = np.linalg.lstsq(matrix[:, columns], wanted, rcond=None)[0]
            error = float(((matrix @ found - wanted) ** 2).sum())
            if (found >= 0).all() and error < best[0]:
                best = error, found
    return best[1]


def factor(point: Point | LogPoint, coefficients: np.ndarray) -> float:
    """Return by which factor the prediction is wrong: 1 is right, 2 is twice or half."""
    ratio = float(point.row @ coefficients) / point.cpu_s
    return max(ratio, 1 / ratio)


def report(half: Sequence[Point | LogPoint], coefficients: np.ndarray) -> str:
    """Return a Markdown table of predictions."""
    lines = ["| law | size | measured CPU ms | predicted | ratio |", "|---" * 5 + "|"]
    for point in half:
        predicted = float(point.row @ coefficients)
        shown = f"{1000 * point.cpu_s:,.0f} | {1000 * predicted:,.0f}"
        lines.append(f"| {point.law} | {point.size:,} | {shown} | {predicted / point.cpu_s:.2f} |")
    factors = [factor(point, coefficients) for point in half]
    return "\n".join([*lines, f"\nFactor: {median(factors):.2f} median, {max(factors):.2f} worst."])


def main() -> None:
    """Fit on one half, print both."""
    known, others = points(json.loads(RESULTS.read_text()))
    coefficients = fitted(known)
    print(f"Fitted:\n\n{report(known, coefficients)}\n")
    print(f"Predicted:\n\n{report(others, coefficients)}\n")
    show("CPU_S", list(CPU_S), coefficients)
    snapshots = json.loads(SNAPSHOTS.read_text())
    parts = {
        "APPEND_CPU_S": (APPEND_CPU_S, append_points(snapshots)),
        "READ_CPU_S": (READ_CPU_S, read_points(snapshots)),
    }
    for name, (names, (known_logs, other_logs)) in parts.items():
        found = fitted(known_logs)
        print(f"\nPredicted:\n\n{report(other_logs, found)}\n")
        show(name, list(names), found)


def show(name: str, names: Sequence[str], coefficients: np.ndarray) -> None:
    """Print the coefficients as in the library."""
    print(f"{name} = {{")
    for each, value in zip(names, coefficients, strict=True):
        print(f'    "{each}": {value:.3g},')
    print("}")


if __name__ == "__main__":
    main()
