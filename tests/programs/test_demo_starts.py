"""Ctrl-C while the demo starts: one line, exit code 130; `test_kills` stops it later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background process
runpy.run_module("hoodie_nb", run_name="__main__", alter_sys=True)
"""
SWALLOWED = """
import signal, sys
class Package:  # as some packages do: what the signal raises while they are imported is lost
    def find_spec(self, name, *_):
        if name == "pyarrow.csv":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                pass
sys.meta_path.insert(0, Package())
"""
STOPPED = "Stopped. The same command (without --fresh) continues from here."


def interrupted(
    folder: Path, moment: str, first: str = "", number: int = signal.SIGINT
) -> tuple[int, list[str]]:
    """Return the exit code and the lines of a demo that is interrupted once it prints `moment`.

    A line of the demo, or a module that it has just imported.
    """
    command = [sys.executable, "-X", "importtime", "-c", first + CODE, "demo", "--days", "1"]
    lines = []
    with subprocess.Popen(
        [*command, "--warehouse", str(folder / "warehouse")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.rpartition("| ")[2].strip().startswith(moment):
                os.killpg(demo.pid, number)  # a terminal signals the whole group
                moment = "no other line"
            lines.append(line.rstrip())
    return demo.returncode, [line for line in lines if not line.startswith("import time:")]


@pytest.mark.parametrize("moment", ["numpy.linalg", "pyarrow.lib", "hoodie_nb.programs.demo"])
def test_ctrl_c_while_the_demo_imports_is_one_line(tmp_path, moment):
    """Its imports take a second; nothing has been made then, or only the warehouse's folder."""
    code, lines = interrupted(tmp_path, moment)
    assert (code, lines) in [(130, ["interrupted"]), (130, [STOPPED])]
    assert not (tmp_path / "warehouse" / "board").exists()


@pytest.mark.spark
def test_ctrl_c_while_the_jvm_starts_leaves_no_jvm(tmp_path):
    """A JVM whose start is interrupted is forgotten by pyspark, and would run for ever."""
    command = [sys.executable, "-c", CODE, "demo", "--days", "1", "--warehouse", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        while "java" not in programs_of(demo.pid):
            assert demo.poll() is None
            os.sched_yield()
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.communicate()[0].splitlines()[-1] == STOPPED
    assert demo.returncode == 130
    until = time.monotonic() + 30
    while left := programs_of(demo.pid):
        assert time.monotonic() < until, left
        os.sched_yield()


def programs_of(group: int) -> list[str]:
    """Return the names of a process group's programs that are not zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = stat.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if after.split()[2] == str(group) and after.split()[0] != "Z":
            found.append(before.partition("(")[2])
    return found


@pytest.mark.spark
@pytest.mark.parametrize(
    "moment", ["Streaming 1 day ", "hoodie_nb.api.session", "hoodie_nb.stream.job"]
)
def test_ctrl_c_while_spark_starts_is_one_line(tmp_path, moment):
    """Before Spark, with its JVM, and with its first query: the demo says how it continues."""
    code, lines = interrupted(tmp_path, moment)
    assert (code, [line for line in lines if "Streaming 1 day " not in line]) == (130, [STOPPED])


def test_ctrl_c_that_an_import_swallows_stops_the_demo(tmp_path):
    """The demo prepares its warehouse and ends, without Spark."""
    assert interrupted(tmp_path, "no line", SWALLOWED) == (130, [STOPPED])


def test_sigterm_while_the_demo_imports_ends_it_with_143(tmp_path):
    """As in its later moments."""
    assert interrupted(tmp_path, "numpy.linalg", number=signal.SIGTERM) == (143, ["interrupted"])


def test_a_child_that_is_interrupted_before_its_program_begins_says_nothing() -> None:
    """Ctrl-C reaches all processes of a terminal, also one that is about to become the JVM."""
    child = (
        "import os, signal\n"
        "from hoodie_nb.programs.terminal import StopRequest\n"
        "with StopRequest().handlers():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("130\n", "")
