"""The lock file of a table: locked with `flock`, it names its holder.

*On disk*: `.hoodie/.hoodie_nb/lock`; see `lock`.
"""

import fcntl
import io
import json
import os
import socket
from datetime import UTC, datetime

from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.table.storage import OURS, Storage

PATH = f"{OURS}/lock"


def lock_file(file: io.FileIO, storage: Storage, purpose: str) -> bool:
    """Lock the open file and write the holder into it; False if the file has been replaced."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConcurrentWriter(
            f"{storage.root} is being written by another process ({owner(file)}): stop it, or "
            "wait until it ends"
        ) from None
    if not is_at(file, storage.fetch(PATH)):
        return False
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "purpose": purpose,
    }
    if os.fstat(file.fileno()).st_nlink == 1:  # else another file would be overwritten
        file.truncate(0)
        os.pwrite(file.fileno(), json.dumps(holder).encode(), 0)
    return True


def is_at(file: io.FileIO, path: str) -> bool:
    """Whether an open file is the one at that path now."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(file.fileno()), there)


def owner(file: io.FileIO) -> str:
    """Return the holder named in the file, as one short line."""
    try:
        raw = json.loads(os.pread(file.fileno(), 4096, 0))
        known = {name: raw[name] for name in ("host", "pid", "since", "purpose") if name in raw}
    except (ValueError, TypeError, RecursionError):
        return "unknown"
    return json.dumps(known)[:300] if known else "unknown"
