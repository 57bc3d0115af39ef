"""One trial: its processes, and what they tell the scheduler."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from writers.turns.actors import ACTS, Actor
from writers.turns.checks import snapshot
from writers.turns.rows import Traits
from writers.turns.stepping import NAP_MS, Baton, simulate

from hoodie_nb import Table

START_MS = 1_767_225_600_000
ASLEEP_MS = 5_000
MOST = 6_000  # messages of one trial: then somebody is stuck


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
    awake_ms: list[int] = field(default_factory=list)
    lives: bool = False  # a stream, also between its turns
    ended: bool = False
    dead: bool = False


class Schedule(Protocol):
    """Who decides what happens next."""

    stops: frozenset[str]  # the steps at which processes stop; all, if there are none

    def next(self, living: list[Process]) -> Process:
        """Return the process that goes on."""

    def steps(self) -> int:
        """Return for how many steps it goes on without a stop."""

    def after(self, process: Process, kind: str) -> str:
        """Return what happens to it at its stop: "dies", "sleeps" or nothing."""


@dataclass
class Trial:
    """One schedule of a table's processes."""

    traits: Traits
    root: Path
    schedule: Schedule
    trace: int | None = None
    break_rule: Callable[[], None] = lambda: None
    acks: dict[str, str] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    seen: list[list[str]] = field(default_factory=list)
    now_ms: int = START_MS
    newest: str = ""
    arrival: int = -1  # of the newest seal
    marks: dict[str, str] = field(default_factory=dict)  # the instants of the batches

    def __post_init__(self) -> None:
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
            self._live(process, first, theirs)
        theirs.close()
        ours.settimeout(60)
        process.pid, process.channel, process.dead = pid, ours, False

    def _live(self, process: Process, first: int, channel: socket.socket) -> None:
        code = 1
        seed = f"{self.traits.seed} {process.name} {process.run}"
        skew_ms = random.Random(f"clock {seed}").choice(self.traits.skews_ms)
        baton = Baton(channel, self.trace, process.name, skew_ms, self.schedule.stops)
        gc.disable()  # it is short-lived
        try:
            self.break_rule()
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
        process.channel, process.place = None, ""
        process.waits, process.lives = False, False

    # --- the schedule -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run all processes to their ends."""
        try:
            for process in self.processes:
                self.start(process)
            for _ in range(MOST):
                living = [process for process in self.processes if not process.ended]
                if not living:
                    return
                process = self.schedule.next(living)
                if process.dead:
                    self.start(process)
                kind, value = self._resume(process)
                self._note(process, kind, value)
                fate = "" if process.ended else self.schedule.after(process, kind)
                if fate == "dies":
                    self._crash(process)
                elif fate == "sleeps":
                    self.now_ms += ASLEEP_MS + 1
            raise Failed(f"stuck: {[p.name for p in self.processes if not p.ended]}")
        finally:
            for process in self.processes:
                if process.channel is not None:
                    self.kill(process)

    def _resume(self, process: Process) -> tuple[str, object]:
        self.now_ms += 1
        steps = self.schedule.steps()
        assert process.channel is not None
        try:
            process.channel.send(json.dumps([steps, self.now_ms, self._is_last()]).encode())
            answer = process.channel.recv(1 << 20)
        except OSError:
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

    def _say(self, what: str) -> None:
        if self.trace is not None:
            os.write(self.trace, f"--- {what}\n".encode())

    def _note(self, process: Process, kind: str, value: object) -> None:
        process.waits = kind == "waits"
        if kind == "waits":
            process.awake_ms.append(int(str(value)))
            self.now_ms += NAP_MS
            self.counts["waits"] += 1
        elif kind == "place":
            process.place, process.place_ms = str(value), self.now_ms
            process.awake_ms.append(self.now_ms)
        elif kind == "locked":
            self._check_line(process, *value)  # type: ignore[misc]
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
        elif kind == "completes":
            self._check_commit(process, *value)  # type: ignore[misc]
        elif kind in ("lives", "leaves"):
            process.lives = kind == "lives"
        elif kind == "alone":
            self.counts["alone"] += 1
            if any(other.lives for other in self.processes):
                raise Failed(f"{process.name} is alone, beside a stream")
        elif kind in ("ahead", "again"):
            self.counts[kind] += 1
        elif kind == "swept":
            raise Failed(f"{process.name} waited, and what it had staged was deleted")
        elif kind == "seals":
            if int(str(value)) <= self.arrival:
                raise Failed(f"{process.name} seals {value} after {self.arrival}")
            self.arrival = int(str(value))
        elif kind == "follows":
            self.counts[str(value)] += 1
        elif kind == "ends":
            process.ended = True
            self._gone(process)
        elif kind == "error":
            raise Failed(f"{process.name}: {value}")

    def _check_line(self, process: Process, looked_ms: int, judged_ms: int) -> None:
        """Whoever has the lock was the first of those in the line that were awake all the time."""
        for other in self.processes:
            before = other.place and not (process.place and process.place < other.place)
            awake = all(
                any(0 <= at_ms - ms < ASLEEP_MS for ms in other.awake_ms)
                for at_ms in (looked_ms, judged_ms)
            )
            if before and awake and other is not process and other.place_ms < looked_ms:
                raise Failed(f"{process.name} has jumped the line before {other.name}")

    def _check_commit(self, process: Process, instant: str, pending: list[str]) -> None:
        """The commit is the newest, the rows are those of all batches, and no batch moves."""
        self.counts["commits"] += 1
        if pending or instant[:17] < self.newest:
            raise Failed(f"{process.name} completes {instant} after {self.newest}: {pending}")
        self.newest = instant[:17]
        marks, _ = snapshot(Table.open(self.root), self.traits)
        moved = {name for name, time17 in self.marks.items() if marks.get(name) != time17}
        if moved:
            raise Failed(f"{process.name} has lost or repeated {moved} by {instant}")
        self.marks = marks
