"""A storage whose reader is overtaken: something happens once, right before one of its looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hoodie_nb import Table
from hoodie_nb.storage.storage import Storage

LOOKS = ("list_folder", "file_names", "entry", "fetch")


class Overtaken:
    """Another storage; `meanwhile` runs once, right before the first look that `when` chooses.

    `when` gets the method and the path. Another process has the storage without that.
    """

    def __init__(
        self, inner: Storage, when: Callable[[str, str], bool], meanwhile: Callable[[], object]
    ) -> None:
        self._inner, self._when, self._meanwhile = inner, when, meanwhile
        self.root, self.fired = inner.root, False

    def __reduce__(self) -> Any:
        return _itself, (self._inner,)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in LOOKS:
            return method

        def look(path: str, *args: Any, **options: Any) -> Any:
            if not self.fired and self._when(name, path):
                self.fired = True
                self._meanwhile()
            return method(path, *args, **options)

        return look


def _itself(inner: Storage) -> Storage:
    return inner


def listing(folder: str) -> Callable[[str, str], bool]:
    """Choose the listing of a folder."""
    return lambda name, path: name == "list_folder" and path == folder


def opening(method: str, path: str) -> bool:
    """Choose the opening of a base file."""
    return method == "fetch" and path.endswith(".parquet") and not path.startswith(".hoodie")


def overtaken(
    table: Table, when: Callable[[str, str], bool], meanwhile: Callable[[], object]
) -> tuple[Table, Overtaken]:
    """Return a second reader of a table, which is overtaken, and its storage."""
    reader = Table.open(table._handle.storage)
    handle = reader._handle
    storage = Overtaken(handle.storage, when, meanwhile)
    handle.storage = handle.timeline._storage = storage
    return reader, storage
