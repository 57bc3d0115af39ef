"""Spark's checkpoint folder: query id, offsets' fingerprint, committed batches, torn files.

*On disk*: Spark writes `offsets/N` before it runs micro-batch N and `commits/N` after it; a
replay of N finds the same `offsets/N`. The SHA-256 of its bytes is the fingerprint of the batch.

*Source:* OffsetSeqLog of Spark.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.storage.local_storage import local_root
from hoodie_nb.storage.storage import is_remote


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
        with contextlib.suppress(FileNotFoundError):
            content = Path(self.path, "offsets", str(batch_id)).read_bytes()
            return hashlib.sha256(content).hexdigest()
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

    def completed(self, batch_id: int) -> bool:
        """Whether Spark has recorded the batch as done: the checkpoint's success notification."""
        return Path(self.path, "commits", str(batch_id)).exists()
