"""The demo under `kill -9` and Ctrl-C: however it ends, the next start gives the same table.

The seed of a trial determines its moment: a stage of the run (start, a commit, the check),
seen in the demo's output, plus a fraction of the time that the stage before took. A failed test
is repeated by its name, which contains the seed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hoodie_nb as hn
from hoodie_nb.lab.experiments import flights
from hoodie_nb.programs.verify import differences, read_with_hudi_rs

ROOT = Path(__file__).parents[2]
DAYS, COMMITS = 6, 10  # late events make ten delivery days of six dates
START, CHECK = -1, COMMITS + 1  # the stages before and after the commits, from 0 (none yet) on
GONE_WITHIN_S = 60


class Demo:
    """The demo in a separate process group, as a shell would start it."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self.lines: list[str] = []
        self._errors = (warehouse.parent / "stderr.txt").open("a+b")
        command = [sys.executable, "-m", "hoodie_nb", "demo", "--every", "0"]
        options = ["--days", str(DAYS), "--disorder", "0.1", "--warehouse", str(warehouse)]
        self.process = subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def stages(self) -> Iterator[int]:
        """Yield each stage that the output reaches, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            committed = re.search(r"(\d+) commits?,", line)
            yield int(committed[1]) if committed else CHECK if "Spark" in line else START

    def wait_for(self, wanted: int) -> float | None:
        """Return the seconds that the stage before `wanted` took, None if the demo ended first."""
        stage, entered, took = START - 1, time.monotonic(), 0.0
        for reached in self.stages():
            if reached > stage:
                now = time.monotonic()
                stage, entered, took = reached, now, now - entered
            if stage >= wanted:
                return took
        return None

    def finish(self) -> int:
        """Read the output to the end and return the exit code."""
        for _ in self.stages():
            pass
        self.process.wait()
        self._errors.close()
        return self.process.returncode

    def output(self) -> str:
        """Return everything printed by this process and the earlier ones, for a failing test."""
        errors = (self.warehouse.parent / "stderr.txt").read_text(errors="replace")
        return "\n".join([*self.lines, "--- stderr", errors[-3000:]])


@pytest.fixture
def start(tmp_path) -> Iterator:
    """Start demos over one warehouse; all of them are ended at the end of the test."""
    started: list[Demo] = []

    def start() -> Demo:
        started.append(Demo(tmp_path / "warehouse"))
        return started[-1]

    yield start
    for demo in started:
        if demo.process.poll() is None:
            demo.process.kill()
        demo.finish()
        demo.process.stdout.close()


def processes() -> dict[int, tuple[int, str]]:
    """Return parent and start time (ticks since boot) of each process that is not a zombie."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *rest = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found[int(stat.parent.name)] = (int(parent), rest[17])
    return found


def family(root: int) -> set[tuple[int, str]]:
    """Return (pid, start time) of a process and all its descendants."""
    known, members = processes(), {root}
    while grown := {p for p, (parent, _) in known.items() if parent in members} - members:
        members |= grown
    return {(p, known[p][1]) for p in members if p in known}


def await_gone(members: set[tuple[int, str]]) -> None:
    """Wait until these processes are gone; JVM and workers end when their driver does."""
    until = time.monotonic() + GONE_WITHIN_S
    while left := members & {(p, since) for p, (_, since) in processes().items()}:
        assert time.monotonic() < until, f"still running: {sorted(left)}"
        os.sched_yield()
        time.sleep(0.05)


def check_table(warehouse: Path) -> None:
    """Compare the table with the board by hudi-rs, and look for leftovers."""
    path = str(warehouse / "board")
    assert differences(read_with_hudi_rs(path), flights.board(days=DAYS)) == []
    assert hn.Table.open(path).fsck() == []


def trial(start, seed: int, *, forget: bool) -> None:
    """Kill a demo at the moment given by the seed, start it again, and compare."""
    draw = random.Random(seed)
    stage, fraction = draw.randint(START, CHECK), draw.random()
    killed = start()
    took = killed.wait_for(stage)
    members: set[tuple[int, str]] = set()
    if took is not None:
        time.sleep(fraction * took)  # the random moment itself; it waits for nothing else
        members = family(killed.process.pid)
        killed.process.kill()
    kill = f"seed {seed}: stage {stage} + {fraction:.2f} of {took} s"
    if forget:
        await_gone(members)
        shutil.rmtree(killed.warehouse / "_checkpoints", ignore_errors=True)
    again = start()
    assert again.finish() == 0, f"{kill}\n{again.output()}"
    assert sum("equal the board" in line for line in again.lines) == 3, again.output()
    check_table(again.warehouse)
    await_gone(members)


@pytest.mark.kills
@pytest.mark.parametrize(("seed", "forget"), [(1, False), (2, False), (3, True)])
def test_killed_demo_ends_in_the_same_table(start, seed, forget):
    """After `kill -9` the next start completes the board, with or without the checkpoint folder."""
    trial(start, seed, forget=forget)


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("seed", range(100, 120))
def test_killed_demo_ends_in_the_same_table_twenty_times(start, seed):
    """The same at twenty other moments; every second time the checkpoint folder is deleted."""
    trial(start, seed, forget=seed % 2 == 1)


@pytest.mark.kills
def test_ctrl_c_stops_between_two_batches_and_the_next_start_continues(start):
    """Ctrl-C leaves nothing pending and exits with 130; the next start writes the missing rows."""
    stopped = start()
    assert stopped.wait_for(2) is not None, stopped.output()
    members = family(stopped.process.pid)
    os.killpg(stopped.process.pid, signal.SIGINT)  # a terminal signals the whole group
    assert stopped.finish() == 130, stopped.output()
    assert stopped.lines[-1].startswith("Stopped."), stopped.output()
    await_gone(members)
    table = hn.Table.open(stopped.warehouse / "board")
    done = len(table.history())
    assert 2 <= done < COMMITS, stopped.output()
    assert table.fsck() == []
    assert set(table.timeline()["state"]) == {"completed"}
    resumed = start()
    assert resumed.finish() == 0, resumed.output()
    assert f"{COMMITS} commits ({COMMITS - done} now)" in "\n".join(resumed.lines)
    check_table(resumed.warehouse)


@pytest.mark.kills
def test_a_start_after_the_end_only_checks(start):
    """A complete demo writes nothing more and says so; so does one killed at its end."""
    first, second = start(), None
    assert first.finish() == 0, first.output()
    second = start()
    assert second.finish() == 0, second.output()
    assert "nothing new: all events were in the table already" in "\n".join(second.lines)
    assert f"{COMMITS} commits (0 now)" in "\n".join(second.lines)


@pytest.mark.kills
def test_an_interval_of_ten_writes_a_sixth_and_survives_kills():
    """Twenty small batches with `commit_interval=10`, killed twice, write a sixth of the bytes.

    The benchmark compares both tables with the model and fails if the ratio is below 6.
    """
    sizes = ["--rows", "200000", "--batch", "2000"]
    command = [sys.executable, "benchmarks/interval.py", *sizes]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert "times fewer bytes" in ended.stdout
