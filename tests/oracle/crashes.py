"""Writers that die: our process at a failpoint, Java before its commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hoodie_nb import Table

from .client import BLOOM, BROKEN, JavaError, Judge

_WRITE = """
import sys
import pyarrow.parquet as pq
from hoodie_nb import Table
getattr(Table.open(sys.argv[1]), sys.argv[2])(*map(pq.read_table, sys.argv[3:]))
"""


def die_at(
    failpoint: str, table: Table, rows: pa.Table | None, scratch: Path, *, call: str = "upsert"
) -> None:
    """Call a method (with rows, if given) in another process that is killed at the failpoint."""
    command = [sys.executable, "-c", _WRITE, table.path, call]
    if rows is not None:
        command.append(str(scratch / "rows.parquet"))
        pq.write_table(rows, command[-1])
    armed = {"HOODIE_NB_TESTING": "1", "HOODIE_NB_FAILPOINTS": failpoint}
    done = subprocess.run(
        command, env=os.environ | armed, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def java_dies(judge: Judge, table: Table, rows: pa.Table, markers: str) -> None:
    """Let Java write all but the commit, its markers `DIRECT` or `TIMELINE_SERVER_BASED`."""
    with pytest.raises(JavaError, match="pre-commit validation failed"):
        judge.write(table.path, rows, BLOOM | BROKEN | {"hoodie.write.markers.type": markers})


def pending(table: Table) -> list[str]:
    """Return the requested times of what has not completed."""
    timeline = table.timeline()
    return list(timeline[timeline["state"] != "completed"]["requested_time"])


def files_of(table: Table, instant: str) -> list[str]:
    """Return the names of all files of an instant outside our own folder."""
    names = (path for path in Path(table.path).rglob(f"*{instant}*"))
    return [path.name for path in names if ".hoodie_nb" not in path.parts]
