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
