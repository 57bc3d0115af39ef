"""A storage on an object store in which one operation fails; see `faults`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import BinaryIO

from core.faults import Fault, FaultyStorage

from hoodie_nb.lock.lock_file import PATH
from hoodie_nb.storage.object_storage import ObjectStorage


class FaultyObjects(FaultyStorage):
    """An object store whose changes are counted, and which fails at a given one.

    An object is whole or does not exist, so `torn` is like `before`. The lock's requests are not
    counted.
    """

    def __init__(self, root: str, options: Mapping[str, str], fault: Fault | None = None) -> None:
        super().__init__("/unused", fault)
        self.inner = ObjectStorage(root, options)  # type: ignore[assignment]
        self.root, self.lease_s = root, 60.0
        self.read_version, self.replace = self.inner.read_version, self.inner.replace
        self.mark = self.inner.mark

    def _tear(self, content: bytes) -> None:
        """Do nothing: no half of an object is ever visible."""

    def open_new(self, path: str) -> BinaryIO:
        """Count, then act like the store."""
        return self._step("open_new", lambda: self.inner.open_new(path))


def end_holder(storage: ObjectStorage) -> None:
    """Let the lock's holder be a process that has ended: here several of them are in one."""
    found = storage.read_version(PATH)
    if found is not None:
        ended = {**json.loads(found.content), "released": True}
        storage.replace(PATH, json.dumps(ended).encode(), found.version)
