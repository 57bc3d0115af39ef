"""A reader in the middle of whose listings something else happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from core.faults import FaultyStorage

T = TypeVar("T")


def read_beside(
    storage: FaultyStorage, at: int, act: Callable[[], None], read: Callable[[], T]
) -> T:
    """Return what `read` returns; `act` runs before its listing number `at`, or after it."""
    looks, listing, names = 0, storage.list_folder, storage.file_names

    def look(inner: Callable[[str], Any], folder: str) -> Any:
        nonlocal looks
        looks += 1
        if looks == at:
            act()
        return inner(folder)

    storage.list_folder = lambda folder: look(listing, folder)
    storage.file_names = lambda folder: look(names, folder)
    found = read()
    if looks < at:
        act()
    return found
