"""Several processes write one real table, and a seed decides which of them makes the next step.

`python tests/writers/simulator.py 100 1` runs 100 schedules from the seed 1 on, and names those
that fail; `--trace` prints the steps. `--version 9`, `--type merge_on_read`, `--actors ab|as`.

Each writer is a process that was forked for it: its locks are real, and its death is a SIGKILL. It
stops at its steps (see `turns/stepping.py`), where the scheduler may let another one run, kill it,
or let it sleep. Afterwards the table is compared with a dict (see `turns/checks.py`).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    os.environ["HOODIE_NB_TESTING"] = "1"

from writers.turns.actors import ACTS, Actor
from writers.turns.checks import check
from writers.turns.rows import Traits
from writers.turns.stepping import NAP_MS, Baton, simulate

START_MS = 1_767_225_600_000
ASLEEP_MS = 5_000
GRANTS = (0, 0, 1, 2, 4, 8, 16, 40)  # steps without a stop
MOST = 6_000  # messages of one trial: then somebody is stuck
KINDS = "ab|as|abz|asf|abf|asz|stf|absf|aszf|abszf|sz"


class Failed(AssertionError):
    """A trial went wrong."""


@dataclass
class Process:
    """One actor of a trial, and its newest run."""

    name: str
    run: int = 0
    pid: int = 0
    channel: socket.socket | None = None
    begun: int = -1  # the newest batch that it began
    acked: int = -1
    resting: int = 0  # turns of the scheduler for which it sleeps
    waits: bool = False
    place: str = ""  # in the line
    place_ms: int = 0
    awake_ms: int = 0
    ended: bool = False
    dead: bool = False


@dataclass
class Trial:
    """One schedule."""

    traits: Traits
    root: Path
    trace: int | None = None
    acks: dict[str, str] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    seen: list[list[str]] = field(default_factory=list)
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        self.draw = random.Random(f"schedule {self.traits.seed}")
        self.processes = [Process(name) for name in self.traits.actors]

    # --- processes --------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        """Start a run of an actor: it stops at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process.run += 1
        first = max(process.acked, process.begun) + 1
        pid = os.fork()
        if pid == 0:
            ours.close()
            for other in self.processes:
                if other.channel is not None:
                    other.channel.close()
            self._live(process, first, Baton(theirs, self.trace, process.name))
        theirs.close()
        process.pid, process.channel, process.dead = pid, ours, False
        process.waits, process.place, process.resting = False, "", 0

    def _live(self, process: Process, first: int, baton: Baton) -> None:
        code = 1
        try:
            seed = f"{self.traits.seed} {process.name} {process.run}"
            simulate(baton, random.Random(f"ids {seed}"))
            baton.wait()
            actor = Actor(
                self.traits, self.root, process.name, first, baton, random.Random(f"actor {seed}")
            )
            ACTS[process.name](actor)
            baton.end("ends")
            code = 0
        except BaseException:
            baton.end("error", traceback.format_exc()[-3000:])
        finally:
            os._exit(code)

    def kill(self, process: Process) -> None:
        """Kill a process, as the kernel does."""
        os.kill(process.pid, signal.SIGKILL)
        self._gone(process)

    def _gone(self, process: Process) -> None:
        assert process.channel is not None
        process.channel.close()
        os.waitpid(process.pid, 0)
        process.channel, process.place, process.waits = None, "", False

    # --- the schedule -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run all processes to their ends."""
        try:
            for process in self.processes:
                self.start(process)
            crashes = self.traits.crashes
            for _ in range(MOST):
                process = self._next()
                if process is None:
                    return
                if process.dead:
                    self.start(process)
                kind, value = self._resume(process)
                self._note(process, kind, value)
                if kind != "step":
                    continue
                if crashes and self.draw.random() < 0.03:
                    crashes -= 1
                    self._crash(process)
                elif self.draw.random() < 0.03:
                    process.resting = self.draw.randint(1, 40)
                    self.now_ms += self.draw.choice((0, 0, ASLEEP_MS + 1))
            raise Failed(f"stuck: {[p.name for p in self.processes if not p.ended]}")
        finally:
            for process in self.processes:
                if process.channel is not None:
                    self.kill(process)

    def _next(self) -> Process | None:
        living = [p for p in self.processes if not p.ended]
        for process in living:
            process.resting = max(0, process.resting - 1)
        awake = [p for p in living if not p.resting] or living
        busy = [p for p in awake if not p.waits]
        if busy and self.draw.random() < 0.9:
            awake = busy
        return self.draw.choice(awake) if awake else None

    def _resume(self, process: Process) -> tuple[str, object]:
        self.now_ms += 1
        steps = self.draw.choice(GRANTS)
        assert process.channel is not None
        try:
            process.channel.send(json.dumps([steps, self.now_ms, self._is_last()]).encode())
            answer = process.channel.recv(1 << 20)
        except ConnectionError:
            answer = b""
        if not answer:
            raise Failed(f"{process.name} has ended by itself")
        kind, value = json.loads(answer)
        self.counts["messages"] += 1
        return kind, value

    def _is_last(self) -> bool:
        return all(process.ended or process.name == "f" for process in self.processes)

    def _crash(self, process: Process) -> None:
        self.counts["deaths"] += 1
        self._say(f"{process.name} dies")
        if process.begun > process.acked and process.name in "abc":
            self.maybe.add(f"{process.name}-{process.begun}")
        self.kill(process)
        process.dead = True
        process.resting = self.draw.choice((1, 5, 20))

    def _say(self, what: str) -> None:
        if self.trace is not None:
            os.write(self.trace, f"--- {what}\n".encode())

    def _note(self, process: Process, kind: str, value: object) -> None:
        process.waits = kind == "waits"
        if kind == "waits":
            process.awake_ms = int(str(value))
            self.now_ms += NAP_MS
            self.counts["waits"] += 1
        elif kind == "place":
            process.place, process.place_ms = str(value), self.now_ms
            process.awake_ms = self.now_ms
        elif kind == "locked":
            self._check_line(process, int(str(value)))
            process.place = ""
            self.counts["turns"] += 1
        elif kind == "begins":
            process.begun = int(str(value))
        elif kind == "ack":
            number, instant = value  # type: ignore[misc]
            process.acked = number
            self.acks[f"{process.name}-{number}"] = instant
        elif kind == "served":
            process.acked = int(str(value))
        elif kind == "sees":
            self.seen.append(value)  # type: ignore[arg-type]
        elif kind == "follows":
            self.counts[str(value)] += 1
        elif kind == "ends":
            process.ended = True
            self._gone(process)
        elif kind == "error":
            raise Failed(f"{process.name}: {value}")

    def _check_line(self, process: Process, looked_ms: int) -> None:
        """Whoever has the lock now was the first of those in the line that are awake."""
        for other in self.processes:
            before = other.place and not (process.place and process.place < other.place)
            if before and other is not process and other.place_ms < looked_ms:
                if looked_ms - other.awake_ms < ASLEEP_MS:
                    raise Failed(f"{process.name} has jumped the line before {other.name}")


def trial(traits: Traits, folder: Path, trace: int | None = None) -> Counter[str]:
    """Run one schedule and check what it leaves; return what happened, counted."""
    root = folder / f"t{traits.seed}-"
    try:
        traits.make(root)
        found = Trial(traits, root, trace)
        found.run()
        found.counts += check(traits, root, found.acks, found.maybe, found.seen)
        return found.counts
    finally:
        for path in folder.glob(f"{root.name}*"):
            shutil.rmtree(path)


def warm(folder: Path) -> None:
    """Import and cache what all trials need, before processes are forked."""
    from writers.turns.rows import GIVEN, SCHEMA  # noqa: F401
    for table_type in ("copy_on_write", "merge_on_read"):
        traits = Traits.of(0, "ab", 9, table_type)
        traits.make(folder / table_type)
        from hoodie_nb import Table
        table = Table.open(folder / table_type)
        for number in range(3):
            table.upsert(traits.batch(f"a-{number}")[1])
        table.to_arrow(), table.fsck()
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run schedules, and print figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--version", type=int)
    parser.add_argument("--type")
    parser.add_argument("--actors", default=KINDS)
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    os.sched_setaffinity(0, {random.Random(os.getpid()).choice([*os.sched_getaffinity(0)])})
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    counts: Counter[str] = Counter()
    failed = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        warm(Path(folder))
        for seed in range(given.seed, given.seed + given.count):
            traits = Traits.of(seed, given.actors, given.version, given.type)
            try:
                counts += trial(traits, Path(folder), 1 if given.trace else None)
            except Exception as error:
                failed.append(seed)
                print(f"seed {seed} failed: {traits}\n{error}", flush=True)
            counts["schedules"] += 1
            if counts["schedules"] % 500 == 0 or counts["schedules"] == given.count:
                speed = counts["schedules"] / (time.monotonic() - began)
                print(f"{dict(counts)}, {speed:.1f} a second, failed: {failed}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})
    main()
