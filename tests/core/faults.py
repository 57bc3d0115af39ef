"""A storage on real files in which one operation fails, once or from then on.

Operations that change the disk are counted; the `at`-th fails:

| how | what happens |
| --- | --- |
| `before`, `after` | the process dies (`Crash`) before or after the operation |
| `torn` | half of the content is in a scratch or staged file, then the process dies |
| `interrupt`, `interrupt_after` | KeyboardInterrupt before or after it; the process continues |
| `error`, `error_after` | an OSError once, before or after the operation; the process continues |
| `broken` | an OSError from this operation on (those that need space, if `content_only`) |

With `links=False` the file system has no hard links: what is published is copied and renamed.
A dead process has no effect: every later operation raises `Crash` as well.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from hoodie_nb.storage.beneath import Place
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import SCRATCH, Entry

T = TypeVar("T")


class Crash(BaseException):
    """The process is dead."""


@dataclass(frozen=True)
class Fault:
    """Which operation fails, and how."""

    at: int
    how: str
    number: int = errno.EIO
    content_only: bool = False


class LinklessStorage(LocalStorage):
    """A local storage on a file system without hard links."""

    def _link(self, source: Place, target: Place) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


class FaultyStorage:
    """Another storage whose changes are counted, and which fails at a given one."""

    def __init__(
        self, root: str | os.PathLike[str], fault: Fault | None = None, *, links: bool = True
    ) -> None:
        self.inner = LocalStorage(root) if links else LinklessStorage(root)
        self.root, self.fault, self.links = self.inner.root, fault, links
        self.steps = 0
        self.dead = False
        self.fired: str | None = None
        self._lock = threading.Lock()

    def _alive(self) -> None:
        if self.dead:
            raise Crash("a dead process does nothing")

    def _step(self, name: str, action: Callable[[], T], content: bytes | None = None) -> T:
        fault = self.fault
        needs_space = name == "open_new" or bool(content)
        if fault is not None and fault.content_only and not needs_space:
            return action()
        with self._lock:
            self._alive()
            self.steps += 1
            mine = fault is not None and (
                self.steps == fault.at or (fault.how == "broken" and self.steps > fault.at)
            )
            if mine and fault is not None:
                self.fired = self.fired or name
                self.dead = self.dead or fault.how in ("before", "torn")
        if not mine or fault is None:
            return action()
        return self._strike(fault, name, action, content)

    def _strike(self, fault: Fault, name: str, action: Callable[[], T], content: bytes | None) -> T:
        if fault.how == "torn" and content:
            self._tear(content)
        if fault.how in ("before", "torn"):
            raise Crash(name)
        if fault.how == "interrupt":
            raise KeyboardInterrupt
        if fault.how in ("error", "broken"):
            raise OSError(fault.number, os.strerror(fault.number), name)
        done = None
        with contextlib.suppress(FileExistsError):  # of an earlier process: nothing changes
            done = action()
        if isinstance(done, io.IOBase):  # the caller cannot close it
            done.close()
        if fault.how == "after":
            self.dead = True
            raise Crash(name)
        if fault.how == "interrupt_after":
            raise KeyboardInterrupt
        raise OSError(fault.number, os.strerror(fault.number), name)

    def _tear(self, content: bytes) -> None:
        folder = Path(self.root, SCRATCH)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / uuid.uuid4().hex).write_bytes(content[: len(content) // 2])

    # --- what changes the disk ------------------------------------------------------------------

    def put(self, path: str, content: bytes, *, new: bool = False, durable: bool = True) -> None:
        """Count, then act like the inner storage."""
        action = partial(self.inner.put, path, content, new=new, durable=durable)
        self._step("put", action, content)

    def make_folder(self, path: str) -> None:
        """Count, then act like the inner storage."""
        self._step("make_folder", lambda: self.inner.make_folder(path))

    def sync_folder(self, path: str) -> None:
        """Count, then act like the inner storage."""
        self._step("sync_folder", lambda: self.inner.sync_folder(path))

    def publish(self, staged: str, target: str) -> None:
        """Count, then act like the inner storage; without links the content is copied."""
        content = None if self.links else Path(self.inner.fetch(staged)).read_bytes()
        self._step("publish", lambda: self.inner.publish(staged, target), content)

    def remove(self, path: str, *, tree: bool = False) -> bool:
        """Count, then act like the inner storage."""
        return self._step("remove", lambda: self.inner.remove(path, tree=tree))

    def open_new(self, path: str) -> BinaryIO:
        """Count, then act like the inner storage; torn: the file exists but is empty."""
        if self.fault is not None and self.fault.how == "torn" and self.steps + 1 == self.fault.at:
            Path(self.inner.fetch(path)).touch()
        return self._step("open_new", lambda: self.inner.open_new(path))

    # --- reading --------------------------------------------------------------------------------

    def list_folder(self, folder: str) -> list[Entry]:
        """Act like the inner storage, if the process is alive."""
        self._alive()
        return self.inner.list_folder(folder)

    def file_names(self, folder: str) -> list[str]:
        """Act like the inner storage, if the process is alive."""
        self._alive()
        return self.inner.file_names(folder)

    def entry(self, path: str) -> Entry | None:
        """Act like the inner storage, if the process is alive."""
        self._alive()
        return self.inner.entry(path)

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Return the path, which changes nothing."""
        return self.inner.fetch(path, size_bytes)

    def local_folder(self, path: str) -> str:
        """Return the folder, which changes nothing."""
        return self.inner.local_folder(path)

    def outer_table(self) -> str | None:
        """Act like the inner storage."""
        return self.inner.outer_table()
