"""Schedules of several processes that write one real table, drawn and listed: see simulator.py."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from suites import seed

SIMULATOR = Path(__file__).with_name("simulator.py")
DRAWN = 20
CAUGHT = {  # a rule, and a schedule that fails without it
    "kept records": ("1",),
    "marks": ("1", "--actors", "as|sw|aw"),
    "recovery": ("196", "--actors", "as|asz"),
    "notes": ("4", "--actors", "ab|abf|abz"),
    "patience": ("4", "--actors", "aw|awzf|sw|bw"),
    "place": ("249", "--actors", "abc|abcz", "--version", "9"),
    "skipping": ("31", "--actors", "as|st|ast", "--version", "9"),
}


def simulator(*arguments: str) -> tuple[int, str]:
    """Run the simulator in a process of its own; return its exit code and output."""
    command = [sys.executable, str(SIMULATOR), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_drawn_schedules() -> None:
    """Writers, services and followers that are interrupted, killed or asleep at any step.

    The commit draws the seeds (`HOODIE_NB_SAMPLE=<commit>` draws the same ones again).
    """
    drawn = int.from_bytes(hashlib.sha256(f"{seed()} simulator".encode()).digest()[:4])
    code, output = simulator(f"{DRAWN}", f"{drawn}")
    assert code == 0, output
    assert f"'schedules': {DRAWN}" in output


@pytest.mark.parametrize("actors", ["ab", "as"])
def test_each_switch_and_each_death(actors: str) -> None:
    """One writer stops or dies at each step of the protocol, and the other one goes on."""
    kind = ("--version", "9", "--type", "copy_on_write")
    code, output = simulator("1", "1", "--listed", "1", "--actors", actors, *kind)
    assert code == 0, output
    assert "'deaths': 2" in output  # twenty and more


@pytest.mark.parametrize("rule", CAUGHT)
def test_without_a_rule_a_schedule_fails(rule: str) -> None:
    """The simulator sees what the rule is for."""
    given = ("1", *CAUGHT[rule])
    assert simulator(*given)[0] == 0
    code, output = simulator(*given, "--without", rule)
    assert code == 1 and "failed: " in output, output
