"""The archive of a table, read from its bytes without the library; and a file of no commit."""

from __future__ import annotations

import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from tables import timeline_folder, timeline_names

from hoodie_nb import failpoints
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.timeline.archive_log import append, record_of
from hoodie_nb.timeline.instant import Instant, State

MIN, MAX = "hoodie.keep.min.commits", "hoodie.keep.max.commits"
FEW = {"hoodie.clean.commits.retained": 1, MIN: 2, MAX: 3}


def records(root: Path | str) -> list[dict[str, Any]]:
    """Return the records of the archive's log files, in order."""
    found = []
    files = Path(root, ".hoodie/archived").glob(".commits_.archive.*")
    for file in sorted(files, key=lambda f: int(f.name.split(".")[3].split("_")[0])):
        content = file.read_bytes()
        while content:
            assert content[:6] == b"#HUDI#"
            (size,) = struct.unpack(">q", content[6:14])
            block, content = content[14 : 14 + size], content[14 + size :]
            version, kind, headers, key, length = struct.unpack(">5i", block[:20])
            assert (version, kind, headers, key) == (1, 3, 1, 2)
            assert struct.unpack(">q", block[-8:])[0] == size + 6
            schema = fastavro.parse_schema(json.loads(block[20 : 20 + length]))
            data = block[20 + length + 8 : -12]
            assert struct.unpack(">q", block[20 + length : 28 + length])[0] == len(data)
            count, at = struct.unpack(">i", data[4:8])[0], 8
            for _ in range(count):
                (length,) = struct.unpack(">i", data[at : at + 4])
                row = io.BytesIO(data[at + 4 : at + 4 + length])
                found.append(fastavro.schemaless_reader(row, schema, None))
                at += 4 + length
            assert at == len(data)
    return found


def lsm_rows(root: Path | str) -> list[dict[str, Any]]:
    """Return the rows of the archive's Parquet files that its manifest names, by time."""
    found = []
    folder = Path(root, ".hoodie/timeline/history")
    for name, size in listed(root).items():
        assert (folder / name).stat().st_size == size
        rows = pq.read_table(folder / name).to_pylist()
        times = [row["instantTime"] for row in rows]
        assert name.split("_")[:2] == [min(times), max(times)]
        found += rows
    return sorted(found, key=lambda row: row["instantTime"])


def listed(root: Path | str) -> dict[str, int]:
    """Return the names and sizes of the Parquet files in the current manifest of the archive."""
    folder = Path(root, ".hoodie/timeline/history")
    number = folder / "_version_"
    if not number.exists():
        return {}
    files = json.loads((folder / f"manifest_{number.read_text()}").read_text())["files"]
    return {file["fileName"]: file["fileLen"] for file in files}


def archived(root: Path | str, action: str = "commit") -> list[str]:
    """Return the times of the archived completed instants of an action; each must be there once."""
    names = [(r["commitTime"], r["actionType"], r["actionState"]) for r in records(root)]
    names += [(r["instantTime"], r["action"], "COMPLETED") for r in lsm_rows(root)]
    assert len(names) == len({*names})
    return [time for time, kind, state in names if (kind, state) == (action, "COMPLETED")]


def active(root: Path | str, action: str = "commit") -> list[str]:
    """Return the times of the completed instants of an action on the timeline."""
    return [n[:17] for n in timeline_names(root) if n.rpartition(".")[2] == action]


def points(version: int) -> list[str]:
    """Return the failpoints of a table's first archiving that deletes a file of no commit."""
    found = [name for name in failpoints.NAMES if name.startswith("archive.")]
    found.remove("archive.lsm.removed")
    return [n for n in found if not n.startswith("archive.lsm.") or version > 6]


def plant(root: Path | str, after: str) -> Path:
    """Put a file of no commit into the table, as a writer without markers does; return it."""
    source = min(Path(root).glob("*/*.parquet"))
    name = f"00000000-0000-0000-0000-000000000000-0_0-0-0_{int(after) + 1}.parquet"
    return shutil.copy(source, source.with_name(name))


def log_elsewhere(root: Path | str, *times: str, folder: str = "archived") -> None:
    """Add completed commits to the archive, as another engine; they stay on the timeline."""
    done = (Instant(time17, "commit", State.COMPLETED) for time17 in times)
    append(LocalStorage(str(root)), f".hoodie/{folder}", [record_of(i, b"", "") for i in done], 10)


def archive_elsewhere(root: Path | str, *times: str) -> None:
    """Archive commits, as another engine does beyond a savepoint."""
    log_elsewhere(root, *times)
    for name in timeline_names(root):
        if name[:17] in times and "savepoint" not in name:
            Path(timeline_folder(root), name).unlink()


def list_history(root: Path | str, *names: str) -> None:
    """Let the manifest of an archive of layout 2 name these Parquet files."""
    folder = Path(root, ".hoodie/timeline/history")
    files = [{"fileName": name, "fileLen": (folder / name).stat().st_size} for name in names]
    (folder / "manifest_1").write_text(json.dumps({"files": files}))
    (folder / "_version_").write_text("1")
