"""A stream and a process that writes batches share a table; the stream's process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from writers.batch_loop import batch, deletable
from writers.test_batches import TESTS, check, make, writer

from hoodie_nb import Table

FILES = 10


def add_file(folder: Path, name: str) -> None:
    """Write a batch of a stream as a file, behind those that there are."""
    folder.mkdir(exist_ok=True)
    operation, rows = batch(name)
    marked = deletable(rows) if operation == "delete" else rows
    hidden = folder / f"_{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in marked))
    time_s = 1_700_000_000 + len(list(folder.glob("*.json")))
    os.utime(hidden, (time_s, time_s))
    hidden.rename(folder / f"{name}.json")


@contextmanager
def starting(
    root: Path, name: str, armed: str = "", *options: str, address: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the stream of a folder of files in another process, with armed failpoints."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))),
        "HOODIE_NB_FAILPOINTS": armed,
    }
    places = (
        address or str(root),
        str(root.with_name(name)),
        str(root.with_name(f"{name}-checkpoints")),
    )
    command = [sys.executable, str(TESTS / "writers/stream_loop.py"), *places, *options]
    with subprocess.Popen(command, env=env, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Spark's JVM, too


def stream(root: Path, armed: str = "", *options: str) -> int:
    """Run a stream to its end; return its exit code."""
    with starting(root, "source", armed, *options) as process:
        return process.wait(300)


@pytest.mark.kills
@pytest.mark.parametrize(
    ("version", "table_type", "options", "deaths"),
    [
        (9, "copy_on_write", (), ("coord.prepare.post=kill@3", "coord.statuses.pre=kill@2")),
        (8, "merge_on_read", ("commit_interval=background",), ("coord.seal.post=kill@4",)),
    ],
)
def test_a_stream_and_a_batch_loop(
    tmp_path: Path, version: int, table_type: str, options: tuple[str, ...], deaths: tuple[str, ...]
) -> None:
    """Each file of the stream and each acknowledged batch is in the table once."""
    root = tmp_path / "t"
    make(root, version, table_type)
    names = [f"s-{number}" for number in range(FILES)]
    for name in names:
        add_file(tmp_path / "source", name)
    with writer(root, "a", -1) as other:
        for armed in deaths:
            assert stream(root, armed, *options) == -signal.SIGKILL
        assert stream(root, "", *options) == 0
        other.kill()
    turns = json.loads((tmp_path / "source-checkpoints-turns").read_text())
    assert turns and min(turns) >= 0  # seconds, of its last run
    Table.open(root).clean()  # recovers
    found = check(root, 1, names)
    mine = [number for number, name in enumerate(found) if name in names]
    assert mine[-1] - mine[0] > FILES  # there were batches in between
