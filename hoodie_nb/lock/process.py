"""The identity of a process on this machine (boot, id, start), and whether it has ended.

A process id alone is not enough, since ids are used again. So an identity is three texts: this
start of the machine with its space of process ids, the id, and the time at which the process began.

Copies of one running virtual machine share what identifies it. So who must not err, as with a lease
on a store, asks for the *witness*, too: a file in the folder for temporary files, which its process
keeps locked. It has a new name whenever the lease is renewed: a copy of the machine that was made
before, with the process, has no file of that name.

**Caveats**: Linux only, by `/proc`; elsewhere no process has an identity. A killed process leaves
its witness, an empty file. Of a copy, the process may die before the next renewal.
"""

import fcntl
import io
import os
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hoodie_nb.lock.forks import register

_PREFIX = "hoodie_nb-lives-"


def machine() -> str | None:
    """Return what identifies this start of this machine, and its space of process ids."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def process_identity(pid: int) -> list[str] | None:
    """Return what identifies a process of this machine: machine, id, start; None if unknown."""
    here = machine()
    began = _began(_stat(pid))
    return None if here is None or began is None else [here, str(pid), began]


def _stat(pid: int) -> list[bytes]:
    """Return what `/proc` tells of a process after its name, [] if nothing."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _began(stat: list[bytes]) -> str | None:
    return stat[19].decode() if len(stat) > 19 else None


def has_ended(process: object) -> bool:
    """Whether it is certain that a process has ended: one of this machine that does not exist.

    Or that nobody has waited for yet.
    """
    if not (isinstance(process, list) and len(process) == 3 and process[0] == machine()):
        return False
    pid = str(process[1])
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # PermissionError: it is another user's
        pass
    stat = _stat(int(pid))  # [] if this user may not look at it
    began = _began(stat)
    is_zombie = stat[:1] == [b"Z"] and stat[17] in (b"0", b"1")  # its threads have ended, too
    return is_zombie or (began is not None and began != process[2])


def has_surely_ended(holder: Mapping[str, Any]) -> bool:
    """Whether the holder of a lease has ended; not if it could be that of a machine's copy."""
    return has_ended(holder.get("process")) and _is_unlocked(holder.get("witness"))


def _is_unlocked(witness: object) -> bool:
    """Whether a witness is on this machine, and nobody locks it."""
    if not (isinstance(witness, str) and witness.startswith(_PREFIX) and "/" not in witness):
        return False
    try:
        with open(os.path.join(tempfile.gettempdir(), witness), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except (OSError, ValueError):
        return False


class Witness:
    """A file that this process keeps locked until `close`; a forked child closes its copy."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._file: io.FileIO | None = None
        with suppress(OSError):
            self._path = _new_path()
            file = io.FileIO(self._path, "x")
            register(file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = file

    def renewed(self) -> str | None:
        """Give it a new name, which no copy of the machine has, and return that; None without it.

        The file may have been deleted by what clears the folder.
        """
        if self._file is None or self._file.closed:
            return None
        with suppress(OSError):
            path = _new_path()
            os.rename(self._path, path)
            self._path = path
            return os.path.basename(path)
        return None

    def close(self) -> None:
        """Delete it; in a forked child, nothing."""
        if self._file is not None and not self._file.closed:
            with suppress(OSError):
                os.unlink(self._path)
            self._file.close()


def _new_path() -> str:
    return os.path.join(tempfile.gettempdir(), f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex}")
