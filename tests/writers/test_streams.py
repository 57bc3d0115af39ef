"""A stream and a process that writes batches share a table; the stream's process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from writers.batch_loop import batch, deletable
from writers.test_batches import TESTS, check, make, writer

from hoodie_nb import Table

FILES = 10


def make_source(folder: Path) -> set[str]:
    """Write the stream's batches as files, in their order; return their names."""
    folder.mkdir()
    names = [f"s-{number}" for number in range(FILES)]
    for number, name in enumerate(names):
        operation, rows = batch(name)
        file = folder / f"{name}.json"
        marked = deletable(rows) if operation == "delete" else rows
        file.write_text("".join(json.dumps(row) + "\n" for row in marked))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    return {*names}


def stream(root: Path, armed: str = "", *options: str) -> int:
    """Run the stream in another process, with armed failpoints; return its exit code."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))),
        "HOODIE_NB_FAILPOINTS": armed,
    }
    places = (str(root), str(root.with_name("source")), str(root.with_name("checkpoints")))
    command = [sys.executable, str(TESTS / "writers/stream_loop.py"), *places, *options]
    return subprocess.run(command, env=env, timeout=300, check=False).returncode


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
    names = make_source(tmp_path / "source")
    with writer(root, "a", -1) as other:
        for armed in deaths:
            assert stream(root, armed, *options) == -signal.SIGKILL
        assert stream(root, "", *options) == 0
        other.kill()
    Table.open(root).clean()  # recovers
    found = check(root, 1, names)
    mine = [number for number, name in enumerate(found) if name in names]
    assert mine[-1] - mine[0] > FILES  # there were batches in between
