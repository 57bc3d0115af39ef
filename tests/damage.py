"""Damage tests: one durable file of any kind is damaged between two processes.

The newest base file of a group and the completed file of a commit may be lost, too, and of
merge-on-read tables a log, or what is staged for it, has any damage. A trial is a
function of its seed: a small history stops at some moment (after a seal, with a prepared instant,
in a held-open span, by a crash), one file is damaged (`history/damage.py` lists how), and a new
process starts, writes and commits. It must end in the model with `fsck` clean, or refuse with an
`InvalidTable` that names the file and a fix. After a refusal readers still see what was committed
(unless a base file is gone), and once the file is restored, everything continues to the right end.

Each process is a forked child: death by a signal and hanging are detected, too.

    python tests/damage.py 2000               # two thousand trials, on all processors
    python tests/damage.py sealed-run 17      # one trial, by kind and number
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from core.faults import Crash
from core.tables import hudi_table
from histories import VERBS, fast_folder
from history.damage import HOW, Damage, files_of_logs, files_of_ours, files_of_the_table
from history.disasters import die_at
from history.job import History
from history.model import order, visible
from history.traits import Traits
from index_truth import forget_caches

from hoodie_nb import failpoints
from hoodie_nb.buckets import plan
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.lock.lock import writing
from hoodie_nb.records.sealing import Interval

LOST = ("base", "completed")  # files of the table itself, which can only be lost
LOGS = ("log", "log-staged")  # of merge-on-read tables
KINDS = (
    "sealed",
    "sealed-run",
    "prepared",
    "staged",
    "staged-deletes",
    "staged-keys",
    "progress",
    "index",
    "index-run",
    "options.json",
    "lock",
    "tmp",
    "state",
    *LOST,
    *LOGS,
)
LIMIT_S = 60
BEFORE = ("write", "checkpoint", "complete", "lose", "span", "eager", "restart", "foreign_commit")
CRASHES = (
    "coord.seal.post",
    "coord.prepare.post",
    "coord.markers.post",
    "coord.publish",
    "coord.commit.pre",
    "coord.commit.post",
    "coord.progress.post",
    "coord.index.post",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended: `right`, `refused`, or a description of what is wrong."""

    kind: str
    number: int
    how: str
    result: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended neither right nor with a proper refusal."""
        return self.result not in ("right", "refused")

    def __str__(self) -> str:
        return f"{self.kind} {self.number} ({self.how}): {self.result} {self.detail}".rstrip()


# --- one trial ----------------------------------------------------------------------------------


def stopped(
    folder: Path, kind: str, draw: random.Random, *, links: bool
) -> tuple[History, dict[Path, bytes]]:
    """Return a history that was stopped at a moment, and the earlier contents of its files."""
    pipeline, seed = draw.choice(["step1", "step2", "step3"]), draw.randrange(10**6)
    history = History(folder, pipeline, seed, _traits(kind, draw, links))
    with writing(history.job.table.storage):
        pass  # makes the lock file
    without = {"foreign_commit"} if kind == "state" else set()
    names = [name for name in BEFORE if name not in without]
    for _ in range(draw.randint(2, 14)):
        name = draw.choice(names)
        history.clock.ms += draw.choice([0, 1000])
        history.take(name, lambda name=name: VERBS[name][1](history))
    earlier = {p: p.read_bytes() for paths in files_of_ours(history.path).values() for p in paths}
    history.restarts = False
    if draw.random() < 0.5:
        die_at(history, draw.choice(CRASHES))
    with contextlib.suppress(Crash):
        for name in draw.choice([BEFORE[:2], BEFORE[:2] * 2, BEFORE[:3], ("span",), ("eager",)]):
            history.take(name, lambda name=name: VERBS[name][1](history))
    history.end_process()
    history.look()
    history.restarts = True
    if kind == "tmp":  # as a crash in put_if_absent leaves it
        history.job.table.storage._tear(draw.randbytes(100))
    return history, earlier


def _traits(kind: str, draw: random.Random, links: bool) -> Traits:
    if kind in LOGS:
        plan.LOGS_PER_BASE = 10  # of a few rows
        keys = draw.choice(["plain", "composite", "unicode"])
        return Traits(keys=keys, links=links, logs=True, seed=draw.randint(2, 3))
    sealed = kind.startswith("sealed")
    interval = Interval(checkpoints=draw.choice([3, 100])) if sealed else None
    index = "state" if kind == "state" else draw.choice(["bloom", "bloom+state", "bloom+state"])
    keys = draw.choice(["plain", "composite", "unicode"])
    return Traits(interval=interval, index=index, keys=keys, links=links, sizes=draw.randrange(3))


def trial(kind: str, number: int) -> Outcome:
    """Run one trial, with other histories until there is a file of that kind."""
    draw, how = random.Random(f"damage {kind} {number}"), HOW[number % len(HOW)]
    how = "gone" if kind in LOST else how
    for _ in range(40):
        with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
            history, earlier = stopped(Path(folder), kind, draw, links=number % 5 != 4)
            files = _files(history.path, kind)
            if kind in files:
                damage = Damage.draw(draw, {kind: files[kind]}, earlier=earlier, how=how)
                result, detail = _outcome(history, damage)
                return Outcome(kind, number, how, result, detail)
    return Outcome(kind, number, how, "no file", "no history left a file of that kind")


def _files(table: Path, kind: str) -> dict[str, list[Path]]:
    """Return the files of a table of which one of that kind is to be damaged."""
    if kind in LOGS:
        return files_of_logs(table)
    return files_of_the_table(table) if kind in LOST else files_of_ours(table)


def _outcome(history: History, damage: Damage) -> tuple[str, str]:
    damage.apply()
    result, detail = child(lambda: _go_on(history, damage))
    if result != "refused":
        return result, detail
    try:
        damage.check_message(detail)
    except AssertionError as error:
        return "bad message", str(error)
    needed = damage.kind in (*LOST, "log")
    reads = ("right", "") if needed else child(lambda: _read(history))
    if reads[0] != "right" and not damage.links:  # else a committed base file is damaged
        return f"after the refusal a reader: {reads[0]}", reads[1]
    damage.undo()
    again = child(lambda: _go_on(history, damage))
    if again[0] != "right":
        return f"put back after {detail!r}: {again[0]}", again[1]
    return "refused", detail


def _go_on(history: History, damage: Damage) -> None:
    """Start a process, write, commit, and compare with the model."""
    forget_caches()  # a new process has none
    if damage.kind in LOST:
        history._seen = ((), [])  # readers show the remaining rows until a write is tried
        history.snapshots = {}  # also those of the past
    history.start()
    for name in BEFORE[:3]:
        history.take(name, lambda name=name: VERBS[name][1](history))
    history.index_damaged = damage.kind.startswith("index")
    history.finish()


def _read(history: History) -> None:
    """Compare what our reader sees with what it saw before, and with what hudi-rs sees."""
    before = history._seen
    history.foreign = True
    history.look()
    assert before[0] == history._seen[0][: len(before[0])], "a commit is gone"
    if history._seen[0]:
        found = hudi_table(history.path)
        rows = [] if found is None else found.to_pylist()
        assert order(map(visible, rows)) == history._seen[1], "hudi-rs reads other rows"


# --- processes ----------------------------------------------------------------------------------


def child(action: Callable[[], None]) -> tuple[str, str]:
    """Run an action in a forked child; return how it ended and why."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Arrow's threads survive a fork
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        _report(action, writer)
    os.close(writer)
    text = _received(reader)
    if text is None:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if text is None:
        return "hang", f"for {LIMIT_S} s"
    if os.WIFSIGNALED(status):
        return "signal", signal.Signals(os.WTERMSIG(status)).name
    result, _, detail = text.partition("\n")
    return result, detail


def _received(reader: int) -> str | None:
    """Return what the child wrote, None if it took too long."""
    parts, until = [], time.monotonic() + LIMIT_S
    with os.fdopen(reader, "rb") as file:
        while select.select([file], [], [], max(0, until - time.monotonic()))[0]:
            part = os.read(file.fileno(), 65536)
            if not part:
                return b"".join(parts).decode()
            parts.append(part)
    return None


def _report(action: Callable[[], None], writer: int) -> None:
    """Run the action and write how it ended; never returns."""
    text = "right"
    try:
        action()
    except (InvalidTable, InvalidConfig) as error:
        cleaned = isinstance(error, InvalidTable) or "cleaner removed it" in str(error)
        text = f"{'refused' if cleaned else 'error'}\n{error}"
    except AssertionError as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line
        text = f"wrong\n{error or line}"[:800]
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"error\n{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    with contextlib.suppress(BaseException):
        os.write(writer, text.encode())
    os._exit(0)


# --- many trials --------------------------------------------------------------------------------


def _safe(kind: str, number: int) -> Outcome:
    try:
        return trial(kind, number)
    except Exception as error:
        return Outcome(kind, number, "", "broken trial", f"{type(error).__name__}: {error}")
    finally:
        failpoints.arm("")
        plan.LOGS_PER_BASE = 1.0


def main(count: int) -> int:
    """Run `count` trials, the kinds in turn; return how many failed."""
    began, results, failed = time.monotonic(), Counter(), 0
    numbers = range(count)
    with ProcessPoolExecutor(int(os.environ.get("WORKERS", "0")) or None) as pool:
        kinds = [KINDS[n % len(KINDS)] for n in numbers]
        for done, outcome in enumerate(
            pool.map(_safe, kinds, [n // len(KINDS) for n in numbers]), 1
        ):
            results[outcome.kind, outcome.result] += 1
            failed += outcome.failed
            if outcome.failed:
                print(outcome, flush=True)
            if done % 100 == 0 or done == count:
                seconds = time.monotonic() - began
                print(f"{done} trials, {failed} failed, {seconds:.0f} s", flush=True)
    for (kind, result), number in sorted(results.items()):
        print(f"  {kind}: {number} {result}")
    return failed


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    if len(sys.argv) == 3:
        print(trial(sys.argv[1], int(sys.argv[2])))
    else:
        sys.exit(min(main(int(sys.argv[1])), 1))
