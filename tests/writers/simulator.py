"""Several processes write one real table, and a seed decides which of them makes the next step.

`python tests/writers/simulator.py 100 1` runs 100 schedules from the seed 1 on, and names those
that fail; `--trace` prints the steps. `--version 9`, `--type merge_on_read`, `--actors ab|as`
choose the table and the processes: `abc` write batches, `stu` are streams, `w` is one with a thread
in the background, `z` calls services, `f` follows. `--listed 2` runs all schedules of two batches
or checkpoints with at most two decisions. `--without line` breaks a rule (see `turns/broken.py`),
and stops at the first failure.

Each writer is a process that was forked for it: its locks are real, and its death is a SIGKILL. It
stops at its steps (see `turns/stepping.py`), where the scheduler may let another one run, kill it,
or let it sleep. Afterwards the table is compared with a dict (see `turns/checks.py`).
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["HOODIE_NB_TESTING"] = "1"

from writers.turns.broken import RULES
from writers.turns.checks import check
from writers.turns.rows import Traits
from writers.turns.schedules import Drawn, listed
from writers.turns.stepping import at_once
from writers.turns.trial import Schedule, Trial

from hoodie_nb import Table

QUICK = {  # memory is kept, not given back and asked for again; a process has no threads
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": f"{1 << 30}",
    "MALLOC_TRIM_THRESHOLD_": f"{1 << 30}",
    "MALLOC_TOP_PAD_": f"{1 << 22}",
    "OPENBLAS_NUM_THREADS": "1",
}
KINDS = "ab|as|abz|asf|abf|asz|stf|absf|aszf|abszf|sz|aw|awzf|sw"


def trial(
    traits: Traits,
    folder: Path,
    schedule: Schedule | None = None,
    trace: int | None = None,
    rule: str = "",
) -> Counter[str]:
    """Run one schedule and check what it leaves; return what happened, counted."""
    root = folder / f"t{traits.seed}-"
    try:
        traits.make(root)
        schedule = schedule or Drawn(traits.seed, traits.crashes)
        found = Trial(traits, root, schedule, trace)
        if rule:
            found.break_rule = RULES[rule][0]
        found.run()
        found.counts += check(traits, root, found.acks, found.maybe, found.seen)
        return found.counts
    finally:
        for path in folder.glob(f"{root.name}*"):
            shutil.rmtree(path)


@contextmanager
def warmed() -> Iterator[Path]:
    """Import and cache what all trials need, before processes are forked; give a folder in memory.

    All processes share a core: only one of them runs at a time.
    """
    cores = os.sched_getaffinity(0)
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        ThreadPoolExecutor.submit = at_once  # type: ignore[method-assign]
        os.sched_setaffinity(0, {random.Random(os.getpid()).choice(sorted(cores))})
        try:
            for table_type in ("copy_on_write", "merge_on_read"):
                traits = Traits.of(0, "ab", 9, table_type)
                traits.make(Path(folder, table_type))
                table = Table.open(Path(folder, table_type))
                for number in range(3):
                    table.upsert(traits.batch(f"a-{number}")[1])
                assert table.to_arrow() and not table.fsck()
            gc.collect()
            gc.freeze()
            yield Path(folder)
        finally:
            gc.unfreeze()
            os.sched_setaffinity(0, cores)


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--version", type=int)
    parser.add_argument("--type")
    parser.add_argument("--actors", default=KINDS)
    parser.add_argument("--listed", type=int)
    parser.add_argument("--without", default="", choices=RULES)
    parser.add_argument("--trace", action="store_true")
    return parser.parse_args()


class Figures:
    """What has happened in all schedules."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[object] = []
        self._began = time.monotonic()

    def add(self, name: object, traits: Traits, run: Callable[[], Counter[str]]) -> None:
        """Run a schedule; print figures now and then."""
        try:
            self.counts += run()
        except Exception as error:
            self.failed.append(name)
            print(f"failed: {name} (again with --trace: 1 {traits.seed}), {traits}\n{error}")
        self.counts["schedules"] += 1
        if self.counts["schedules"] % 500 == 0:
            self.show()

    def show(self) -> None:
        """Print them."""
        speed = self.counts["schedules"] / (time.monotonic() - self._began)
        print(f"{dict(self.counts)}, {speed:.1f} a second, failed: {self.failed}", flush=True)


def main() -> None:
    """Run schedules, and print figures."""
    given = arguments()
    figures = Figures()
    trace = 1 if given.trace else None
    with warmed() as folder:
        for seed in range(given.seed, given.seed + given.count):
            traits = Traits.of(seed, given.actors, given.version, given.type)
            if given.listed is None:
                figures.add(
                    seed, traits, lambda t=traits: trial(t, folder, trace=trace, rule=given.without)
                )
            else:
                one = replace(traits, batches=1)
                for _ in listed(
                    lambda schedule, t=one: figures.add(
                        schedule.decisions,
                        t,
                        lambda: trial(t, folder, schedule, trace, given.without),
                    ),
                    given.listed,
                ):
                    pass
            if given.without and figures.failed:
                break
    figures.show()
    sys.exit(bool(figures.failed))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets
        environment = os.environ | QUICK | {"PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    main()
