"""What the notebooks call beside the library: check a claim, make a place fail, start a program."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pandas as pd

from hoodie_nb import failpoints
from hoodie_nb.api.tables import Table
from hoodie_nb.local.ahead import Ahead
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


def start_program(
    text: str, *arguments: str, kill_at: str = "", stop_at: str = ""
) -> subprocess.Popen[bytes]:
    """Start a Python program as a process; it is killed at `kill_at` (`name` or `name@hit`).

    With `stop_at` it is returned when it has stopped there, until it gets SIGCONT.
    """
    name, _, hit = (kill_at or stop_at).partition("@")
    action = "kill" if kill_at else "stop"
    fails = {"HOODIE_NB_FAILPOINTS": f"{name}={action}{hit and f'@{hit}'}"} if name else {}
    settings = {**os.environ, **fails, "HOODIE_NB_TESTING": "1"}
    program = subprocess.Popen([sys.executable, "-c", text, *arguments], env=settings)
    if stop_at:
        os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return program


@contextlib.contextmanager
def without_check() -> Iterator[None]:
    """Publish batches of this process as they were written ahead, whatever others wrote since."""
    check = Ahead.fits
    Ahead.fits = lambda *_: True  # type: ignore[method-assign]
    try:
        yield
    finally:
        Ahead.fits = check  # type: ignore[method-assign]
