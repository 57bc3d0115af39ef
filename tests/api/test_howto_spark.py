"""The code of those pages of docs/how-to that need Spark, each in a process of its own."""

from __future__ import annotations

import configparser
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from new_process import run_code
from page_code import HOW_TO, ROOT, WITH_SPARK, blocks

import hoodie_nb as hn

pytestmark = pytest.mark.spark
RUN = f"""
import sys
sys.path.append({str(ROOT / "tests")!r})
from page_code import ROOT, run_page, shown
"""
BACKFILL = """
import subprocess
stream, backfill, check = shown((ROOT / "docs/how-to/backfill.md").read_text())
names = {}
exec(stream[0], names)
while not names["job"].events.records("instant_committed"):
    names["job"].wait("0.1 seconds")
subprocess.run([sys.executable, "-c", backfill[0]], check=True, timeout=60)
printed = []
exec(check[0], names | {"print": lambda *values: printed.extend(values)})
assert " ".join(map(str, printed)) == check[1].strip(), printed
assert names["table"].fsck() == []
"""


@pytest.mark.parametrize("name", WITH_SPARK)
def test_the_code_of_a_page_runs(name, tmp_path):
    """Each block of Python runs after those before it, and prints what the page shows."""
    done = run_code(f"{RUN}run_page('docs/how-to/{name}.md')", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_backfill_runs_beside_the_stream(tmp_path):
    """The page's second block is another process, which gets its turns while the stream runs."""
    done = run_code(RUN + BACKFILL, tmp_path)
    assert done.returncode == 0, done.stderr


def orders(folder: Path) -> set[str]:
    """Return the keys of the table that the program of the page on running jobs writes."""
    path = folder / "warehouse" / "orders"
    if not (path / ".hoodie" / "hoodie.properties").exists():
        return set()
    return set(hn.Table.open(path).to_arrow(["order_id"])["order_id"].to_pylist())


def wait_for_the_order(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Return when the order is in the table; fail if the program ends before."""
    while orders(folder) != {"a"}:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"it ended with {process.wait(timeout=0.2)}")


@pytest.fixture
def program(tmp_path):
    """Return a folder with the page's program and one order that arrives."""
    page = (HOW_TO / "running.md").read_text()
    (code,) = blocks("python", page)
    (tmp_path / "stream.py").write_text(code)
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "1.json").write_text('{"order_id": "a", "amount": 1.5}\n')
    return tmp_path


def started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, as a supervisor does."""
    home = Path(pyspark.__file__).parent / "bin"
    path = os.pathsep.join([str(Path(sys.executable).parent), str(home), os.environ["PATH"]])
    unset = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT), "PATH": path},
        start_new_session=True,
    )


def test_sigterm_ends_the_program_between_two_batches(program):
    """As systemd does with KillMode=mixed: only Python gets the signal, and ends with 0."""
    unit = configparser.ConfigParser()
    unit.optionxform = str
    (text,) = blocks("ini", (HOW_TO / "running.md").read_text())
    unit.read_string(text)
    assert unit["Service"]["KillMode"] == "mixed"
    assert unit["Service"]["ExecStart"].endswith("/bin/python /opt/orders/stream.py")
    process = started([sys.executable, "stream.py"], program)
    wait_for_the_order(process, program)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert hn.Table.open(program / "warehouse" / "orders").fsck() == []


def test_the_program_runs_under_spark_submit(program):
    """The page's commands start the same program, and its order arrives in the table."""
    (commands,) = blocks("sh", (HOW_TO / "running.md").read_text())
    process = started(["bash", "-e", "-c", commands], program)
    try:
        wait_for_the_order(process, program)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
