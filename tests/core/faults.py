"""A real local storage on real files in which one operation goes wrong, once or from then on.

Operations that change the disk are counted; the `at`-th is hit:

| how | what happens |
| --- | --- |
| `before`, `after` | the process dies (`Crash`) before or after the operation |
| `torn` | half of the content is in a scratch or staged file, then the process dies |
| `interrupt`, `interrupt_after` | KeyboardInterrupt before or after it; the process continues |
| `error`, `error_after` | an OSError once, before or after the operation; the process continues |
| `broken` | an OSError from this operation on (those that need space, if `content_only`) |

With `links=False` the file system has no hard links: what is published is copied and renamed.
A dead process does nothing any more: every later operation raises `Crash` as well.
"""

from __future__ import annotations

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

from hoodie_nb.table.beneath import Entry, Place
from hoodie_nb.table.storage import SCRATCH, LocalStorage

T = TypeVar("T")


class Crash(BaseException):
    """The process is dead."""


@dataclass(frozen=True)
class Fault:
    """Which operation goes wrong, and how."""

    at: int
    how: str
    number: int = errno.EIO
    content_only: bool = False


class FaultyStorage(LocalStorage):
    """A local storage that counts its changes and fails at a given one."""

    def __init__(
        self, root: str | os.PathLike[str], fault: Fault | None = None, *, links: bool = True
    ) -> None:
        super().__init__(root)
        self.fault, self.links = fault, links
        self.steps = 0
        self.dead = False
        self.struck: str | None = None
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
                self.struck = self.struck or name
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

    def put_if_absent(self, path: str, content: bytes) -> None:
        """Count, then do as the local storage does."""
        self._step(
            "put_if_absent", lambda: LocalStorage.put_if_absent(self, path, content), content
        )

    def replace(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Count, then do as the local storage does."""
        action = partial(LocalStorage.replace, self, path, content, durable=durable)
        self._step("replace", action, content)

    def touch(self, path: str) -> None:
        """Count, then do as the local storage does."""
        self._step("touch", lambda: LocalStorage.touch(self, path))

    def make_folder(self, path: str) -> None:
        """Count, then do as the local storage does."""
        self._step("make_folder", lambda: LocalStorage.make_folder(self, path))

    def sync_folder(self, path: str) -> None:
        """Count, then do as the local storage does."""
        self._step("sync_folder", lambda: LocalStorage.sync_folder(self, path))

    def publish(self, staged: str, target: str) -> None:
        """Count, then do as the local storage does; without links the content is copied."""
        content = None if self.links else Path(self.local_path(staged)).read_bytes()
        self._step("publish", lambda: LocalStorage.publish(self, staged, target), content)

    def _link(self, source: Place, target: Place) -> None:
        if not self.links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        LocalStorage._link(source, target)

    def remove(self, path: str) -> bool:
        """Count, then do as the local storage does."""
        return self._step("remove", lambda: LocalStorage.remove(self, path))

    def remove_tree(self, path: str) -> None:
        """Count, then do as the local storage does."""
        self._step("remove_tree", lambda: LocalStorage.remove_tree(self, path))

    def open_new(self, path: str) -> BinaryIO:
        """Count, then act like the local storage; torn: the file exists but is empty."""
        if self.fault is not None and self.fault.how == "torn" and self.steps + 1 == self.fault.at:
            Path(LocalStorage.local_path(self, path)).touch()
        return self._step("open_new", lambda: LocalStorage.open_new(self, path))

    # --- reading --------------------------------------------------------------------------------

    def list_folder(self, folder: str) -> list[Entry]:
        """Look, if the process lives."""
        self._alive()
        return LocalStorage.list_folder(self, folder)

    def names(self, folder: str) -> list[str]:
        """Look, if the process lives."""
        self._alive()
        return LocalStorage.names(self, folder)

    def exists(self, path: str) -> bool:
        """Look, if the process lives."""
        self._alive()
        return LocalStorage.exists(self, path)

    def read_bytes(self, path: str) -> bytes:
        """Look, if the process lives."""
        self._alive()
        return LocalStorage.read_bytes(self, path)
