"""The matrix: random tables of every shape and type, against a dict and hudi-rs.

A history is a function of its seed (`matrix/shape.py`, `matrix/operations.py`).

    python tests/run_matrix.py 200            # seeds 0 to 199, on all processors
    python tests/run_matrix.py 200 logs       # seeds 10000 to 10199: merge-on-read tables
    python tests/run_matrix.py seed 17        # one history, with its shape and operations
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from histories import fast_folder
from matrix.history import MatrixHistory
from matrix.operations import EARLY, OPERATIONS
from matrix.shape import LOGS

from hoodie_nb import Table

STEPS = 12


def step(history: MatrixHistory, *, looks: bool = True) -> None:
    """Run one random operation, and look."""
    history.upgrade_if_due()
    if history.draw.random() < 0.2:
        history.table = Table.open(history.table.path)
    names = OPERATIONS if history.upgraded else EARLY
    allowed = {name: OPERATIONS[name] for name in names}
    weights = [weight for weight, _ in allowed.values()]
    name = history.draw.choices(list(allowed), weights)[0]
    history.operations.append(name)
    allowed[name][1](history)
    if looks:
        history.look()


@contextlib.contextmanager
def explained(history: MatrixHistory, seed: int, again: str = "") -> Iterator[None]:
    """Raise an error with the operations before it, and how to run them again."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(
            f"matrix {seed}: {' '.join(history.operations)}\n{type(error).__name__}: {error}\n"
            f"again: .venv/bin/python {again or f'tests/run_matrix.py seed {seed}'}"
        ) from error


def run(seed: int, steps: int = STEPS) -> MatrixHistory:
    """Run one history; the error of a failed one says how to run it again."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        history = MatrixHistory(Path(folder), seed)
        with explained(history, seed):
            for _ in range(steps):
                step(history)
            history.finish()
        return history


def _trial(seed: int) -> str | None:
    try:
        run(seed)
    except AssertionError as error:
        return str(error)
    return None


def main(count: int, first: int = 0) -> int:
    """Run the histories of `count` seeds from `first` on; return how many failed."""
    began, failed = time.monotonic(), 0
    with ProcessPoolExecutor(int(os.environ.get("WORKERS", "0")) or None) as pool:
        for done, report in enumerate(pool.map(_trial, range(first, first + count)), 1):
            if report is not None:
                failed += 1
                print(report, flush=True)
            if done % 50 == 0 or done == count:
                seconds = time.monotonic() - began
                print(f"{done} histories, {failed} failed, {seconds:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    if sys.argv[1] == "seed":
        found = run(int(sys.argv[2]))
        print(found.shape, *found.operations, sep="\n")
    else:
        start = LOGS if sys.argv[2:] == ["logs"] else 0
        sys.exit(min(main(int(sys.argv[1]), start), 1))
