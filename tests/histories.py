"""Random histories of a job: verbs in any order against a dict, for each pipeline of the RFC.

A history is a function of its seed, which also gives it its traits (`history/traits.py`). Between
the verbs readers read; at the end everything is committed and compared with the model.

    python tests/histories.py 1000            # a thousand of each pipeline, on all processors
    python tests/histories.py 1000 logs       # of merge-on-read tables
    python tests/histories.py step3 17        # one history, by pipeline and seed, with its verbs
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from history import compacting, disasters, other_writers, undoing, upkeep
from history.job import History
from history.traits import Traits

from hoodie_nb import failpoints
from hoodie_nb.buckets import plan
from hoodie_nb.index import file_keys

VERBS: dict[str, tuple[int, Callable[[History], None]]] = {
    "write": (16, History.write),
    "checkpoint": (10, History.checkpoint),
    "eager": (4, History.eager),
    "complete": (10, History.complete),
    "lose": (4, History.lose),
    "span": (4, History.span),
    "fail": (2, History.fail),
    "time_out": (2, History.time_out),
    "task_fails": (2, History.task_fails),
    "failover": (2, History.failover),
    "restart": (2, History.start),
    "rewind": (2, History.rewind),
    "crash": (6, disasters.crash),
    "disk_error": (4, disasters.disk_error),
    "damage": (2, disasters.damage),
    "foreign_commit": (2, other_writers.commit),
    "foreign_rollback": (2, other_writers.rolls_back),
    "archives": (1, other_writers.archives),
    "restore_seals": (1, disasters.restore_seals),
    "new_columns": (1, other_writers.new_columns),
    "bad_batch": (2, other_writers.bad_batch),
    "fork": (1, other_writers.forked),
    "undo": (4, undoing.undo),
    "follow": (3, undoing.follow),
    "tend": (3, upkeep.tend),
    "merge_files": (4, compacting.merge_files),
}


WITHOUT_LOGS = (  # what merge-on-read tables cannot do yet, and intervals
    *("archives", "restore_seals", "new_columns"),
)
WITH_LOGS = ("tend", "merge_files")  # only for these: other histories stay as they are


def step(history: History, without: Collection[str] = ()) -> None:
    """Run one random verb, then read as a reader does."""
    draw, verbs = history.random, {n: v for n, v in VERBS.items() if n not in without}
    name = draw.choices(list(verbs), [weight for weight, _ in verbs.values()])[0]
    history.clock.ms += draw.choice([0, 1, 1000, -500])
    if history.traits.clock and draw.random() < 0.1:
        history.take("set_clock", lambda: disasters.set_clock(history))
    history.take(name, lambda: verbs[name][1](history))
    history.look()


def fast_folder() -> str | None:
    """Return a folder in memory if there is one: a history syncs its files a thousand times."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(
    pipeline: str,
    seed: int,
    steps: int,
    *,
    often: str = "",
    without: Collection[str] = (),
    kind: Callable[[Path, str, int, Traits], History] = History,
    logs: bool = False,
) -> list[str]:
    """Run one history and return its verbs; the error of a failed one contains seed and verbs.

    The verb `often` follows every fourth verb; verbs and traits in `without` are left out.
    """
    traits = Traits.of(pipeline, seed, logs=logs)
    without = {*without, *(WITHOUT_LOGS if logs else WITH_LOGS)}
    traits = replace(traits, **{name: False for name in ("long", "clock") if name in without})
    file_keys.MASK = (1 << 64) - (1 << 56) if traits.narrow else (1 << 64) - 1
    plan.LOGS_PER_BASE = 10 if seed % 3 else 1.0  # a log of a few rows is as large as a base file
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        history = kind(Path(folder), pipeline, seed, traits)
        try:
            if traits.long:
                history.take("long", lambda: disasters.long_interval(history))
            for _ in range(steps // 4 if traits.long else steps):
                step(history, without)
                if often and history.random.random() < 0.25:
                    history.take(often, lambda: VERBS[often][1](history))
            history.finish()
        except BaseException as error:
            text = f"history {pipeline} {seed} ({steps} steps): {' '.join(history.verbs)}"
            raise AssertionError(f"{text}\n{type(error).__name__}: {error}") from error
        finally:
            with contextlib.suppress(BaseException):
                history.end_process()
            failpoints.arm("")
            file_keys.MASK = (1 << 64) - 1
            plan.LOGS_PER_BASE = 1.0
        return history.verbs


def _trial(pipeline: str, seed: int, logs: bool = False) -> str | None:
    try:
        run(pipeline, seed, 40, logs=logs)
    except AssertionError as error:
        return str(error)
    return None


def main(count: int, *, logs: bool = False) -> int:
    """Run `count` histories of each pipeline; return how many failed."""
    began, failed, done = time.monotonic(), Counter(), Counter()
    with ProcessPoolExecutor(int(os.environ.get("WORKERS", "0")) or None) as pool:
        work = [*itertools.product(("step1", "step2", "step3"), range(count))]
        results = pool.map(_trial, *zip(*work, strict=True), itertools.repeat(logs))
        for (pipeline, _), report in zip(work, results, strict=True):
            done[pipeline] += 1
            failed[pipeline] += report is not None
            if report is not None:
                print(report, flush=True)
            if done[pipeline] % 100 == 0 or done[pipeline] == count:
                seconds = time.monotonic() - began
                counts = f"{done[pipeline]} histories, {failed[pipeline]} failed"
                print(f"{pipeline}: {counts}, {seconds:.0f} s", flush=True)
    return sum(failed.values())


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    given = [word for word in sys.argv[1:] if word != "logs"]
    of_logs = given != sys.argv[1:]
    if len(given) == 2:
        print(" ".join(run(given[0], int(given[1]), 40, logs=of_logs)))
    else:
        sys.exit(min(main(int(given[0]), logs=of_logs), 1))
