"""The folder with a stream's input: its layout, order of files; when it is written again.

*Fault tolerance.* Parquet files are written to a temporary folder that is then renamed. Spark
delivers them by modification time, which increases from file to file.

    On disk                         contents
    <path>/_flights.json            days, disorder, seed, rows, files (Spark skips such names)
    <path>/000-2012-12-31.parquet   the events of one delivery day (UTC), in delivery order

**Caveats.** The folder is not fsynced: a power failure may damage it, a killed process cannot. A
copy must preserve the modification times (`cp -a`).
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from hoodie_nb.errors import InvalidConfig

Ints = npt.NDArray[np.int64]
_DAY_US = 86_400_000_000
_MANIFEST = "_flights.json"
_FIRST_MTIME = 1_356_998_400  # 2013-01-01: any time works, only the order matters


def folder_of(path: str | os.PathLike[str] | None) -> Path:
    """Return `path` as a local folder; None gives a folder that is deleted with this process."""
    if path is None:
        path = Path(tempfile.mkdtemp(prefix="hoodie_nb-flights-"), "events")
        atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    text = os.fspath(path)
    if "://" in text or set(text) & set("*?[]{}\\"):
        raise InvalidConfig(f"path={text!r}: give a local folder without any of *?[]{{}}\\")
    return Path(text).resolve()


def is_present(folder: Path, parameters: dict[str, Any]) -> bool:
    """Return whether `folder` has this stream; refuse it if it has anything else."""
    manifest = folder / _MANIFEST
    if not manifest.exists():
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise InvalidConfig(f"{folder} has other files: give another path")
        return False
    files = sum(1 for _ in folder.glob("*.parquet"))
    if differs := differences(manifest, parameters | {"files": files}):
        fix = "use its parameters, give another path, or remove the folder"
        raise InvalidConfig(f"{folder} was written with {differs}: {fix}")
    return True


def differences(manifest: Path, wanted: dict[str, Any]) -> str:
    """Return the differences between a folder's parameters and the wanted ones."""
    found = json.loads(manifest.read_text())
    differs = [f"{k}={found.get(k)!r}, not {v!r}" for k, v in wanted.items() if found.get(k) != v]
    return "; ".join(differs)


def write(folder: Path, parameters: dict[str, Any], events: pa.Table, clock: Ints) -> None:
    """Write the stream to a temporary folder and rename it, unless it exists by then."""
    stage = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    stage.mkdir(parents=True)
    days, starts = np.unique(clock // _DAY_US, return_index=True)
    try:
        for number, rows in enumerate(np.split(np.arange(len(clock)), starts[1:])):
            path = stage / f"{number:03d}-{np.datetime64(int(days[number]), 'D')}.parquet"
            parquet.write_table(events.slice(rows[0], len(rows)), path)
            os.utime(path, (_FIRST_MTIME + number, _FIRST_MTIME + number))
        manifest = parameters | {"rows": len(clock), "files": len(days)}
        (stage / _MANIFEST).write_text(json.dumps(manifest) + "\n")
        stage.rename(folder)
    except OSError:
        if not is_present(folder, parameters):
            raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)
