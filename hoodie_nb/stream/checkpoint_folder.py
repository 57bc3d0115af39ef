"""The parts of Spark's checkpoint folder that the writer reads.

*On disk*: Spark writes `offsets/N` before it runs micro-batch N and `commits/N` after it; a
replay of N finds the same `offsets/N`. The SHA-256 of its bytes is the fingerprint of the batch.

| file | content |
| --- | --- |
| `offsets/N` | `v1`, a line about the batch, a line per source in the plan: the end of N |
|             | `v2`: these lines begin with the source's number and a colon |
| `sources/S/L` | the files found by a source: `v1`, then a line per file: path, time and L |
| `sources/S/L.compact` | the same for all up to L, every ten; smaller ones are deleted later |

*Source:* OffsetSeqLog, FileStreamSourceLog, FileStreamSourceOffset of Spark.
"""

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path

from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.storage.local_storage import local_root
from hoodie_nb.storage.storage import is_remote

_OFFSET = re.compile(r"(?:([^{:]+):)?(\{.*\})")


def checkpoint_folder(path: str | os.PathLike[str], table: str) -> str:
    """Return the absolute path of a checkpoint folder that is separate from the table's folder.

    Raises InvalidConfig if one of them is inside the other, with links resolved (each lists and
    deletes its own files), and if it cannot be written.
    """
    folder = local_root(path)
    ours = Path(folder).resolve()
    theirs = Path(table).resolve()
    if not is_remote(table) and (ours.is_relative_to(theirs) or theirs.is_relative_to(ours)):
        raise InvalidConfig(
            f"checkpoint={os.fspath(path)!r} and the table at {table} overlap: choose a "
            "separate folder for the checkpoints"
        )
    there = next(str(place) for place in (ours, *ours.parents) if os.path.exists(place))
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise InvalidConfig(
            f"checkpoint={os.fspath(path)!r} cannot be written, because {there} is not a folder "
            "that this user may write: choose another folder"
        )
    return folder


class CheckpointFolder:
    """One streaming query's checkpoint folder on a local disk."""

    def __init__(self, path: str) -> None:
        self.path = local_root(path)
        self.sources: list[int] = []  # the source number of each line in an offset

    def query_id(self) -> str | None:
        """Return the id of the query that this folder belongs to; None if there is none yet."""
        try:
            return str(json.loads(Path(self.path, "metadata").read_bytes())["id"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def clear_torn_start(self) -> None:
        """Delete the remains of a query that ended while Spark wrote its first `offsets/0`.

        Spark refuses to start if such a hidden file exists; without `offsets/0` there is no batch.
        """
        folder = Path(self.path, "offsets")
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        if all(name.startswith(".") for name in names):
            for name in names:
                Path(folder, name).unlink(missing_ok=True)

    def fingerprint(self, batch_id: int) -> str | None:
        """Return the fingerprint of a batch; None if its offsets do not exist."""
        content = self._offsets(batch_id)
        return None if content is None else hashlib.sha256(content).hexdigest()

    def _offsets(self, batch_id: int) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return Path(self.path, "offsets", str(batch_id)).read_bytes()
        return None

    def checkpoint(self, query_id: str | None, batch_id: int) -> Checkpoint:
        """Return the identity of a batch that Spark is running."""
        fingerprint = self.fingerprint(batch_id)
        if fingerprint is None or query_id is None:
            name = "metadata" if query_id is None else f"offsets/{batch_id}"
            raise InvalidTable(
                f"{self.path}/{name} is missing while its batch runs: the checkpoint "
                "folder was moved or deleted while the query ran; stop the query and start it again"
            )
        return Checkpoint(query_id, batch_id, fingerprint)

    def last(self) -> Checkpoint | None:
        """Return the identity of the newest batch that Spark has recorded as done; None if none."""
        query_id = self.query_id()
        folder = Path(self.path, "commits")
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        newest = max((int(name) for name in names if name.isdigit()), default=None)
        if query_id is None or newest is None:
            return None
        return Checkpoint(query_id, newest, self.fingerprint(newest) or "")

    def arrived(self, batch_id: int) -> list[str]:
        """Return the files that a batch reads, the oldest first; none unless there are several."""
        ends = self._ends(batch_id)
        times = dict[str, int]()
        begins = self._ends(batch_id - 1) if ends else {}
        for source, end in ends.items():
            times.update(self._listed(source, range(begins.get(source, -1) + 1, end + 1)))
        return sorted(times, key=lambda path: (times[path], path)) if len(times) > 1 else []

    def listed_ahead(self) -> bool:
        """Whether a source lists files that no completed batch has read.

        Spark lists them before it writes the batch's offsets. If it ends in between, the next batch
        reads these files and those that it lists itself, whatever `maxFilesPerTrigger` is.
        """
        done = self.last()
        ends = {} if done is None else self._ends(done.batch_id)
        for folder in Path(self.path, "sources").glob("*/"):
            names = (path.name.partition(".")[0] for path in folder.iterdir())
            newest = max((int(name) for name in names if name.isdigit()), default=-1)
            if newest > ends.get(folder.name, -1):
                return True
        return False

    def _ends(self, batch_id: int) -> dict[str, int]:
        """Return the last list entry that a batch reads, for each source that lists files."""
        lines = (self._offsets(batch_id) or b"").decode().splitlines()
        ends = {}
        for number, line in enumerate(lines[2:]):
            offset = _OFFSET.fullmatch(line)
            end = json.loads(offset[2]).get("logOffset") if offset else None
            if offset and isinstance(end, int):
                numbered = self.sources[number] if number < len(self.sources) else number
                source = offset[1] or str(numbered)
                if Path(self.path, "sources", source).is_dir():  # otherwise it lists no files
                    ends[source] = end
        return ends

    def _listed(self, source: str, entries: range) -> dict[str, int]:
        """Return the files in some entries of a source's list with their times."""
        folder = Path(self.path, "sources", source)
        times = dict[str, int]()
        names = [p.name.partition(".") for p in folder.iterdir() if p.name[0].isdigit()]
        compact = [int(number) for number, _, kind in names if kind]
        for entry in entries:
            path = folder / str(entry)
            if not path.exists():
                path = folder / f"{min(n for n in compact if n >= entry)}.compact"
            for line in path.read_text("utf-8").splitlines():
                if f'"batchId":{entry}' in line and (file := json.loads(line))["batchId"] == entry:
                    times[file["path"]] = file["timestamp"]
        return times

    def completed(self, batch_id: int) -> bool:
        """Whether Spark has recorded the batch as done: the checkpoint's success notification."""
        return Path(self.path, "commits", str(batch_id)).exists()
