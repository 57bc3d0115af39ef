"""Random histories of writes, services and crashes inside them, against a dict and hudi-rs.

python tests/run_services.py 100          # seeds 0 to 99, on all processors
python tests/run_services.py seed 17      # one history, with its shape and actions
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from histories import fast_folder
from services.history import ServiceHistory

STEPS = 16


@contextlib.contextmanager
def explained(history: ServiceHistory, seed: int) -> Iterator[None]:
    """Raise an error with the actions before it, and how to run them again."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(
            f"services {seed}: {' '.join(history.operations)}\n{type(error).__name__}: {error}\n"
            f"again: .venv/bin/python tests/run_services.py seed {seed}"
        ) from error


def run(seed: int, steps: int = STEPS) -> ServiceHistory:
    """Run one history; the error of a failed one says how to run it again."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        history = ServiceHistory(Path(folder), seed)
        with explained(history, seed):
            for _ in range(steps):
                history.step()
            history.finish()
        return history


def _trial(seed: int) -> tuple[str, Counter[str]]:
    try:
        history = run(seed)
    except AssertionError as error:
        return str(error), Counter()
    crashes = {f"{name}, died": n for name, n in history.crashes.items()}
    return "", history.counts + Counter(crashes)


def main(count: int) -> int:
    """Run the histories of the seeds below `count`; return how many failed."""
    began, failed, counts = time.monotonic(), 0, Counter[str]()
    with ProcessPoolExecutor(int(os.environ.get("WORKERS", "0")) or None) as pool:
        for done, (report, some) in enumerate(pool.map(_trial, range(count)), 1):
            counts += some
            if report:
                failed += 1
                print(report, flush=True)
            if done % 50 == 0 or done == count:
                seconds = time.monotonic() - began
                print(f"{done} histories, {failed} failed, {seconds:.0f} s", flush=True)
    print(*(f"  {name}: {n}" for name, n in sorted(counts.items())), sep="\n")
    return failed


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    if sys.argv[1] == "seed":
        found = run(int(sys.argv[2]))
        print(found.shape, *found.operations, sep="\n")
    else:
        sys.exit(min(main(int(sys.argv[1])), 1))
