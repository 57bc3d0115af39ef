"""Random histories of writes, services and crashes inside them, against a dict and hudi-rs.

python tests/run_services.py 100              # seeds 0 to 99, on all processors
python tests/run_services.py --java 100       # Java takes steps as well, and reads at the end
python tests/run_services.py --java 40 60     # seeds 40 to 59
python tests/run_services.py 10000 10100      # from 10,000 on the tables are merge-on-read
python tests/run_services.py [--java] seed 17 # one history, with its shape and actions

With `--java` the histories run one after another in one session of Spark, which the tests of
`make oracle` have installed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from histories import fast_folder
from services.history import ServiceHistory
from services.shape import LOGS

from hoodie_nb.buckets import plan

STEPS = 16
Make = Callable[[Path, int], ServiceHistory]


@contextlib.contextmanager
def explained(history: ServiceHistory, seed: int, again: str) -> Iterator[None]:
    """Raise an error with the actions before it, and how to run them again."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(
            f"services {seed}: {' '.join(history.operations)}\n{type(error).__name__}: {error}\n"
            f"again: .venv/bin/python tests/run_services.py {again}seed {seed}"
        ) from error


def run(seed: int, steps: int = STEPS, make: Make = ServiceHistory) -> ServiceHistory:
    """Run one history; the error of a failed one says how to run it again."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder, many_logs(seed):
        history = make(Path(folder), seed)
        with explained(history, seed, "" if make is ServiceHistory else "--java "):
            for _ in range(steps):
                history.step()
            history.finish()
        return history


@contextlib.contextmanager
def many_logs(seed: int) -> Iterator[None]:
    """Let logs be as large as base files: of a few rows they are."""
    usual = plan.LOGS_PER_BASE
    plan.LOGS_PER_BASE = 10 if seed >= LOGS else usual
    try:
        yield
    finally:
        plan.LOGS_PER_BASE = usual


@contextlib.contextmanager
def java() -> Iterator[Make]:
    """Start Java, for histories in which it takes steps."""
    from oracle.client import Judge
    from oracle.install import install
    from services.java import JavaServices

    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        judge = Judge(install(), Path(folder))
        try:
            yield lambda path, seed: JavaServices(path, seed, judge)
        finally:
            judge.close()


def trial(seed: int, make: Make = ServiceHistory) -> tuple[str, Counter[str]]:
    """Return why a history failed, if it did, and how often each action ran."""
    try:
        history = run(seed, make=make)
    except AssertionError as error:
        return str(error), Counter()
    crashes = {f"{name}, died": n for name, n in history.crashes.items()}
    return "", history.counts + Counter(crashes)


def report(results: Iterable[tuple[str, Counter[str]]], count: int) -> int:
    """Print what failed and how often each action ran; return how many histories failed."""
    began, failed, counts = time.monotonic(), 0, Counter[str]()
    for done, (why, some) in enumerate(results, 1):
        counts += some
        if why:
            failed += 1
            print(why, flush=True)
        if done % 10 == 0 or done == count:
            seconds = time.monotonic() - began
            print(f"{done} histories, {failed} failed, {seconds:.0f} s", flush=True)
    print(*(f"  {name}: {n}" for name, n in sorted(counts.items())), sep="\n")
    return failed


def main(words: list[str]) -> int:
    """Run what the arguments say; return how many histories failed."""
    with_java = "--java" in words
    numbers = [int(word) for word in words if word.isdigit()]
    with java() if with_java else contextlib.nullcontext(ServiceHistory) as make:
        if "seed" in words:
            found = run(*numbers, make=make)
            print(found.shape, *found.operations, sep="\n")
            return 0
        seeds = range(*numbers)
        if with_java:
            return report((trial(seed, make) for seed in seeds), len(seeds))
        with ProcessPoolExecutor(int(os.environ.get("WORKERS", "0")) or None) as pool:
            return report(pool.map(trial, seeds), len(seeds))


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    sys.exit(min(main(sys.argv[1:]), 1))
