"""The lock on a local disk: a file under `flock`; the holder's name in it, and in errors.

*On disk*: `.hoodie/.hoodie_nb/lock`; see `lock`.
"""

import errno
import fcntl
import io
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.lock.forks import register
from hoodie_nb.lock.process import process_identity
from hoodie_nb.storage.beneath import folder_beneath
from hoodie_nb.storage.storage import OURS, Storage, permitted

PATH = f"{OURS}/lock"
_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK


def opened(
    storage: Storage,
    path: str = PATH,
    *,
    make: bool = True,
    folders: bool = True,
) -> io.FileIO:
    """Open the file of a lock (created if missing); it is not locked yet.

    Unless to `make`, only to read it; FileNotFoundError if it is missing. A table that is gone is
    not made again, nor, without `folders`, our own folder in it: InvalidTable.
    """
    where, _, name = path.rpartition("/")
    more = _FLAGS | (os.O_CREAT if make else 0)

    def opener(_: str, flags: int) -> int:
        return os.open(name, flags | more, 0o666, dir_fd=folder)

    file = None
    with (
        permitted(f"{storage.root}/{path}"),
        _table_there(storage) if make else nullcontext(),
        folder_beneath(
            storage.root, where.split("/"), make=make, below=1 if folders else 2
        ) as folder,
    ):
        try:
            file = io.FileIO(storage.fetch(path), "r+" if make else "r", opener=opener)
            register(file)
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.ELOOP, "a pipe or device")
            return file
        except BaseException as error:
            if file is not None:
                file.close()
            if isinstance(error, OSError) and error.errno in _NO_FILE:
                raise InvalidTable(
                    f"{path} of {storage.root} is a link, folder, pipe or socket and cannot be "
                    "locked: delete it"
                ) from None
            raise


@contextmanager
def _table_there(storage: Storage) -> Iterator[None]:
    """Turn a FileNotFoundError into InvalidTable: the table has been deleted."""
    try:
        yield
    except FileNotFoundError:
        raise InvalidTable(
            f"{storage.root} was deleted meanwhile: create the table again"
        ) from None


def unlinked(storage: Storage, path: str) -> None:
    """Delete the file of a lock, which its caller has; nothing happens if it is gone."""
    where, _, name = path.rpartition("/")
    with suppress(FileNotFoundError), folder_beneath(storage.root, where.split("/")) as folder:
        os.unlink(name, dir_fd=folder)


def lock_file(file: io.FileIO, storage: Storage, purpose: str) -> bool:
    """Lock the open file and write the holder into it; False if the file has been replaced."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConcurrentWriter(
            f"{storage.root} is being written by another process ({owner(file)}): stop it, or "
            "wait until it ends; with wait='10 minutes' a write waits longer"
        ) from None
    if not is_at(file, storage.fetch(PATH)):
        return False
    if os.fstat(file.fileno()).st_nlink == 1:  # else another file would be overwritten
        file.truncate(0)
        os.pwrite(file.fileno(), json.dumps(holder_of(purpose)).encode(), 0)
    return True


def holder_of(purpose: str) -> dict[str, Any]:
    """Return what a lock says about this process."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "purpose": purpose,
        "process": process_identity(os.getpid()),
    }


def is_at(file: io.FileIO, path: str) -> bool:
    """Whether an open file is the one at that path now."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(file.fileno()), there)


def owner(file: io.FileIO) -> str:
    """Return the holder named in the file, as one short line."""
    return shown(parsed(os.pread(file.fileno(), 4096, 0))) or "unknown"


def parsed(content: bytes) -> dict[str, Any]:
    """Return the values in a lock; none if it is damaged."""
    try:
        found = json.loads(content)
        return found if isinstance(found, dict) else {}
    except (ValueError, RecursionError):
        return {}


def shown(holder: Mapping[str, Any]) -> str:
    """Return what is known about a holder, as one short line; empty if nothing is."""
    words = {"purpose": "", "pid": "process ", "host": "on ", "since": "since "}
    known = [f"{word}{holder[name]}" for name, word in words.items() if name in holder]
    return ascii(", ".join(known))[1:-1][:300]
