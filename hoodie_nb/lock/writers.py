"""Who writes a table, who waits for it, who has died: for reports; nothing is locked or changed.

On a local disk the kernel's list of locks tells which files are locked, and by which process. On an
object store the objects of `store_turns` name their writers, who may have died.

**Caveats**: `/proc/locks` is Linux's, and has the processes of this machine and container only:
without it nothing is listed, and those of another container are taken for dead.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hoodie_nb.lock.lock_file import PATH, parsed, shown
from hoodie_nb.lock.waiting import jobs
from hoodie_nb.storage.storage import TURNS, Storage, is_remote, read_bytes


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that writes a table (`role` writes), waits, or runs a job; or a trace of one."""

    role: str
    process: int | None
    what: str = ""

    def __str__(self) -> str:
        who = (
            f"process {self.process}"
            if self.process
            else "a process that has ended, or is elsewhere,"
        )
        return f"{who} {self.role}" + (f" ({self.what})" if self.what else "")


def writers(storage: Storage) -> list[Writer]:
    """Return the writer that has the lock, those that wait, in order, and the jobs that live."""
    if is_remote(storage.root):
        return [*_leased(storage)]
    locked = _locked()
    if locked is None:
        return []
    lock = _process(storage, PATH, locked)
    found = [] if lock is None else [Writer("writes the table", lock, _holder(storage))]
    for name in storage.file_names(TURNS):  # in order
        process = _process(storage, f"{TURNS}/{name}", locked)
        found.append(Writer("waits" if process else "waited", process))
    for path in jobs(storage):
        process = _process(storage, path, locked)
        if process is not None:
            found.append(Writer("runs a stream into the table", process))
    return found


def _leased(storage: Storage) -> Iterator[Writer]:
    roles = {path: "runs a stream into the table" for path in jobs(storage)}
    roles |= {f"{TURNS}/{name}": "waits" for name in storage.file_names(TURNS)}
    for path, role in ({PATH: "writes the table"} | roles).items():
        with suppress(FileNotFoundError):
            holder = parsed(read_bytes(storage, path))
            if holder and not holder.get("released"):
                lease_s = holder.get("lease_s", "?")
                what = shown(holder) + ("" if role == "waits" else f"; its lease is {lease_s} s")
                yield Writer(f"{role}, or has died", holder.get("pid"), what)


def _holder(storage: Storage) -> str:
    return shown(parsed(read_bytes(storage, PATH)))


def _locked() -> dict[int, int] | None:
    """Return the processes that hold locks of whole files, by the number of the file's inode.

    None if the kernel has no such list.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    parts = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    return {int(part[5].split(":")[2]): int(part[4]) for part in parts}


def _process(storage: Storage, path: str, locked: Mapping[int, int]) -> int | None:
    """Return the process that has locked a file; None if none has, or the file is gone."""
    try:
        return locked.get(os.lstat(storage.fetch(path)).st_ino)
    except OSError:
        return None
