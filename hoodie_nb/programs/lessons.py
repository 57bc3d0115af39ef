"""What the notebooks call beside the library: check a claim, make a place fail, start a program."""

import os
import subprocess
import sys

import pandas as pd

from hoodie_nb import failpoints
from hoodie_nb.api.tables import Table
from hoodie_nb.programs.verify import differences, read_with_hudi_rs


def check(claim: str, *facts: object) -> None:
    """Print a claim if all of its facts hold; raise AssertionError with it otherwise."""
    if not all(facts):
        raise AssertionError(f"not so: {claim}")
    print("✓", claim)


def check_table(table: Table, board: pd.DataFrame) -> None:
    """Check that hudi-rs reads exactly the flights of the board, and that fsck finds nothing."""
    found = differences(read_with_hudi_rs(table.path), board)
    claim = f"hudi-rs reads these {len(board):,} flights, each once, and fsck finds nothing"
    check(claim, not found, not table.fsck())


def fail_at(place: str = "") -> None:
    """Make a place in the writer's code fail, as `name=action[@hit]`; without one, none fails.

    `hoodie_nb.failpoints` has the names and the actions; `@2` is the second time only.
    """
    os.environ["HOODIE_NB_TESTING"] = "1"
    failpoints.arm(place)


def start_program(text: str, *arguments: str, kill_at: str = "") -> subprocess.Popen[bytes]:
    """Start a Python program as a process; it is killed at `kill_at` (`name` or `name@hit`)."""
    name, _, hit = kill_at.partition("@")
    killed = {"HOODIE_NB_FAILPOINTS": f"{name}=kill{hit and f'@{hit}'}"} if name else {}
    settings = {**os.environ, **killed, "HOODIE_NB_TESTING": "1"}
    return subprocess.Popen([sys.executable, "-c", text, *arguments], env=settings)
