"""Merge-on-read tables that Java wrote, and the rows that it read of them (see tests/fixtures)."""

from __future__ import annotations

import io
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_FILE = Path(__file__).parents[1] / "fixtures" / "merge_on_read.tar.xz"
VERSIONS = (6, 8, 9)
STATES = [(v, s) for v in VERSIONS for s in ("pending", "failed", "commit_time")]
STATES += [(6, "log_only"), (9, "log_only")]


@cache
def _contents() -> dict[str, bytes]:
    with tarfile.open(_FILE) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


def java_table(into: Path, version: int, state: str = "table") -> Path:
    """Write a table to a folder, and return that."""
    prefix = f"v{version}/{state}/"
    for name, content in _contents().items():
        if name.startswith(prefix):
            path = into / name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return into


def java_rows(version: int, state: str) -> pa.Table:
    """Return what Java read of a state, or `expected/<time of a commit>`, without file names."""
    return pq.read_table(io.BytesIO(_contents()[f"v{version}/{state}.parquet"]))


def commits(version: int) -> list[str]:
    """Return the times of the commits whose rows are known, oldest first."""
    known = f"v{version}/expected/"
    return sorted(Path(name).stem for name in _contents() if name.startswith(known))


def same_rows(found: pa.Table, wanted: pa.Table) -> bool:
    """Return whether all cells of `wanted` are there, and no other rows."""
    return _texts(found.select(wanted.column_names)) == _texts(wanted)


def _texts(rows: pa.Table) -> list[str]:
    return sorted(map(_text, rows.to_pylist()))


def _text(row: dict[str, Any]) -> str:
    return repr(sorted((name, repr(value)) for name, value in row.items()))
