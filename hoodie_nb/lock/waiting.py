"""Who waits for the lock of a table, and which jobs live: two more locks, on local disks only.

*On disk*, all under `flock`, so that they end with their process:

| file in `.hoodie/.hoodie_nb` | locked by |
| --- | --- |
| `queue` | the writer that gets the lock next, until it has it; the first one that waits makes it |
| `job-<hash>` | a running job, by its checkpoint folder; also while another process has a turn |

*Semantics*: without the queue, a process that writes in a loop takes the lock again before a
waiting one looks. So nobody takes the lock while another one has the queue. Two processes
take turns; of several that wait for the queue, any may be the next.
"""

import fcntl
import hashlib
import io
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import NoReturn

from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.lock.lock_file import opened
from hoodie_nb.storage.storage import OURS, Storage

Register = Callable[[io.FileIO], None]
_QUEUE = f"{OURS}/queue"
_JOB = f"{OURS}/job-"


def next_place(storage: Storage, register: Register, *, make: bool) -> io.FileIO | None:
    """Return the locked queue; ConcurrentWriter if another writer has it.

    None if nobody has ever waited, unless `make`.
    """
    if not make and not _has_queue(storage):
        return None
    return _locked(storage, register, _QUEUE) or _refuse(
        f"{storage.root} is being written by another process, and a third one waits for it: stop "
        "them, or wait; a batch write waits with wait='30 seconds'"
    )


def is_awaited(storage: Storage, register: Register) -> bool:
    """Whether another process waits for the lock, which this one has."""
    if not _has_queue(storage):
        return False
    file = None
    try:
        file = _locked(storage, register, _QUEUE)
        if file is not None:
            file.close()
        return file is None
    except BaseException:
        if file is not None:
            file.close()
        raise


def living(storage: Storage, register: Register, checkpoint: str) -> io.FileIO:
    """Return the lock of a job's life; ConcurrentWriter if its checkpoint folder is in use.

    Its caller has the lock of the table.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(checkpoint))).hexdigest()
    return _locked(storage, register, f"{_JOB}{name}") or _refuse(
        f"a stream of another process writes {storage.root} from the checkpoint folder "
        f"{checkpoint}: stop that stream, or give this one another folder"
    )


def refuse_living(storage: Storage, register: Register) -> None:
    """Raise ConcurrentWriter if a job of another process lives; the caller has the lock."""
    for name in storage.file_names(OURS):
        if f"{OURS}/{name}".startswith(_JOB):
            with _locked(storage, register, f"{OURS}/{name}") or nullcontext() as file:
                if file is None:
                    _refuse(f"{storage.root} is written by a stream of another process: stop it")


def _refuse(message: str) -> NoReturn:
    raise ConcurrentWriter(message)


def _has_queue(storage: Storage) -> bool:
    return os.path.lexists(storage.fetch(_QUEUE))


def _locked(storage: Storage, register: Register, path: str) -> io.FileIO | None:
    """Open and lock a file; None if another process has it."""
    file = None
    try:
        file = opened(storage, register, path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BaseException as error:
        if file is not None:
            file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
