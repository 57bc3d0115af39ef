"""The identity of a process on this machine (boot, id, start), and whether it has ended.

A process id alone is not enough, since ids are used again. So an identity is three texts: this
start of the machine with its space of process ids, the id, and the time at which the process began.

**Caveats**: Linux only, by `/proc`; elsewhere no process has an identity.
"""

import os


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
    began = _began(pid)
    return None if here is None or began is None else [here, str(pid), began]


def _began(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None


def has_ended(process: object) -> bool:
    """Whether it is certain that a process has ended: one of this machine that does not exist."""
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
    began = _began(int(pid))  # None if this user may not look at it
    return began is not None and began != process[2]
