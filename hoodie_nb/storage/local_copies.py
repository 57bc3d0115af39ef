"""Cache of objects as local files: where it is, which copy is still good, when it is deleted.

They are in a private folder of this process below the system's temporary folder (`TMPDIR`), which
is deleted when the process ends. The folder of a killed process is deleted by the next process that
creates one: each process holds a `flock` on a file in its own folder.

*On disk*: `hoodie_nb-objects-*/<number>/<path in the table>`, so that the file's name is the
object's. Above `_LIMIT_BYTES` the least recently used copies are deleted; the newest `_KEPT` stay,
because a caller may be about to open them. Copies of earlier versions stay for `_YOUNG_S` seconds.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections import OrderedDict, deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hoodie_nb.forked import ProcessLock

_PREFIX = "hoodie_nb-objects-"
_LIMIT_BYTES = 4 << 30
_KEPT = 64
_YOUNG_S = 60


class Copy(NamedTuple):
    """A local copy: the object's version, the file, its size in bytes, and when it was used."""

    version: str
    path: str
    size_bytes: int
    used_s: float


class LocalCopies:
    """The local copies of one process, by table and path."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self.folder = tempfile.mkdtemp(prefix=_PREFIX)
        self._held = os.open(f"{self.folder}/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._found: OrderedDict[tuple[str, str], Copy] = OrderedDict()
        self._superseded: deque[Copy] = deque()
        self._number = 0
        atexit.register(self.close)
        _sweep(Path(self.folder))

    def close(self) -> None:
        """Delete the folder, unless this is a forked child of the process that made it."""
        if self.process == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)

    def place(self, path: str) -> str:
        """Return a new local file name that ends in `path`; its folder exists."""
        with self._lock:
            self._number += 1
            number = self._number
        found = os.path.join(self.folder, str(number), path)
        os.makedirs(os.path.dirname(found), exist_ok=True)
        return found

    def missing(self, path: str) -> str:
        """Return a file name that ends in `path` and does not exist."""
        return os.path.join(self.folder, "missing", path)

    def known(self, root: str, path: str) -> Copy | None:
        """Return the copy of an object, of any version; None if there is none."""
        with self._lock:
            found = self._found.pop((root, path), None)
            if found is None or not os.path.exists(found.path):
                return None
            self._found[root, path] = found._replace(used_s=time.monotonic())
            return found

    def add(self, root: str, path: str, version: str, local: str) -> str:
        """Remember a copy, and delete old ones if there are too many; return its file name."""
        copy = Copy(version, local, os.path.getsize(local), time.monotonic())
        with self._lock:
            if (root, path) in self._found:  # a reader may be about to open it
                self._superseded.append(self._found.pop((root, path)))
            self._found[root, path] = copy
            while self._superseded and copy.used_s - self._superseded[0].used_s > _YOUNG_S:
                self.discard(self._superseded.popleft().path)
            total = sum(copy.size_bytes for copy in self._found.values())
            old = [*self._found.items()][:-_KEPT]
            for key, other in old:
                if total > _LIMIT_BYTES and copy.used_s - other.used_s > _YOUNG_S:
                    self.discard(other.path)
                    del self._found[key]
                    total -= other.size_bytes
        return local

    def forget(self, root: str, path: str) -> None:
        """Delete the copy of an object that was deleted or replaced."""
        with self._lock:
            found = self._found.pop((root, path), None)
        if found is not None:
            self.discard(found.path)

    def discard(self, local: str) -> None:
        """Delete a file of `place`, if it was made, and its folders."""
        with suppress(OSError):
            os.unlink(local)
        with suppress(OSError):
            while (local := os.path.dirname(local)) != self.folder:
                os.rmdir(local)


_ours: list[LocalCopies] = []
_making = ProcessLock()


def local_copies() -> LocalCopies:
    """Return the local copies of this process; a forked child has its own."""
    if not _ours or _ours[0].process != os.getpid() or not os.path.isdir(_ours[0].folder):
        with _making.lock:
            if not _ours or _ours[0].process != os.getpid() or not os.path.isdir(_ours[0].folder):
                _ours[:] = [LocalCopies()]
    return _ours[0]


def _sweep(own: Path) -> None:
    """Delete the folders of processes that were killed: nobody holds their locks."""
    for folder in own.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            young = time.time() - folder.stat().st_mtime < _YOUNG_S
            if folder == own or young or folder.stat().st_uid != os.getuid():
                continue
            held = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
