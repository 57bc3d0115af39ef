"""One writer at a time: the lock of a table across processes, and the mutex inside one.

*On disk*: `.hoodie/.hoodie_nb/lock`, held with `flock`, so that the kernel lets go of it when its
holder dies, however it dies. The file tells who holds it; it is never deleted.

A streaming job holds the lock from its start to its end and takes the mutex for each checkpoint;
batch calls of the same process wait for the mutex and run between checkpoints. Other processes, and
a second job on the table, get `ConcurrentWriter`.

**Caveats**: `flock` does not reach across machines on every network file system, and Java Hudi does
not know this lock: use one engine at a time.
"""

import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.table.storage import OURS, LocalStorage

PATH = f"{OURS}/lock"


@dataclass(slots=True)
class _Held:
    """A process's hold on one table; `users` counts calls and jobs that rely on it."""

    mutex: threading.RLock = field(default_factory=threading.RLock)
    descriptor: int | None = None
    users: int = 0
    job: str | None = None


_tables: dict[str, _Held] = {}
_guard = threading.Lock()


def _held(storage: LocalStorage) -> _Held:
    with _guard:
        return _tables.setdefault(os.path.realpath(storage.root), _Held())


@contextmanager
def writing(storage: LocalStorage) -> Iterator[None]:
    """Hold the table for one write; ConcurrentWriter if another process has it."""
    held = _held(storage)
    with held.mutex:
        _enter(storage, held, "a batch write")
        try:
            yield
        finally:
            _leave(held)


class JobHold:
    """A streaming job's hold on its table, from its start to `release`."""

    def __init__(self, storage: LocalStorage, job: str) -> None:
        self._storage, self._held = storage, _held(storage)
        with self._held.mutex:
            if self._held.job is not None:
                raise ConcurrentWriter(
                    f"{storage.root} is written by the job {self._held.job} of this process: stop "
                    "that job first; one query at a time writes a table"
                )
            _enter(storage, self._held, job)
            self._held.job = job
        self._released = False

    def release(self) -> None:
        """Let go; a second call does nothing."""
        with self._held.mutex:
            if not self._released:
                self._released = True
                self._held.job = None
                _leave(self._held)


def _enter(storage: LocalStorage, held: _Held, purpose: str) -> None:
    with _guard:
        if held.users == 0:
            held.descriptor = _flock(storage, purpose)
        held.users += 1


def _leave(held: _Held) -> None:
    with _guard:
        held.users -= 1
        if held.users == 0 and held.descriptor is not None:
            os.close(held.descriptor)
            held.descriptor = None


def _flock(storage: LocalStorage, purpose: str) -> int:
    storage.make_folder(OURS)
    descriptor = os.open(storage.local_path(PATH), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 4096).decode(errors="replace").strip()
        os.close(descriptor)
        raise ConcurrentWriter(
            f"{storage.root} is being written by another process ({owner or 'unknown'}): stop it, "
            "or wait until it ends"
        ) from None
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "purpose": purpose,
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    return descriptor
