"""The open files and leases of locks, which a forked child shares with its parent until it closes.

**Caveats**: an interrupt between two instructions may leave the guard locked: then others wait for
it only `_PATIENCE_S`.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

from hoodie_nb.errors import ConcurrentWriter


class _Open(Protocol):
    def close(self) -> None: ...


_files: "weakref.WeakSet[_Open]" = weakref.WeakSet()
_guard = threading.RLock()  # held while a file is opened and registered: a fork waits for it
_forking = threading.local()
_PATIENCE_S = 1.0


def register(file: _Open) -> None:
    """Let a forked child close this file."""
    _files.add(file)


@contextmanager
def without_forks() -> Iterator[None]:
    """Let no fork come in between."""
    taken = _guard.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if taken:
            _guard.release()


def forget() -> None:
    """In a forked child: close its copies of the files."""
    global _guard
    _guard = threading.RLock()
    for file in list(_files):
        file.close()


def refuse_forked(root: str) -> NoReturn:
    """Raise ConcurrentWriter in a child of the process that has the lock, or waits for it."""
    raise ConcurrentWriter(
        f"this process was forked from the one that holds the lock of {root}, or waits for it, "
        "and cannot use it: write in that process, or open the table here after it has released "
        "the lock"
    )


def _before_fork() -> None:
    _forking.taken = _guard.acquire(timeout=_PATIENCE_S)


def _after_fork() -> None:
    if _forking.taken:
        _guard.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
