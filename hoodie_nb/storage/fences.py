"""Before each change of a table's files: does this process still hold the lock?

The lock registers one; every storage asks it before each change.
"""

import os
from typing import Protocol

from hoodie_nb.storage.storage import is_remote


class Fence(Protocol):
    """A check before a change; `new` if a file must not exist yet, as a completed file."""

    def __call__(self, *, new: bool = False) -> None:
        """Raise if the table may not be changed."""


_fences: dict[str, Fence] = {}


def place_of(root: str) -> str:
    """Return the place of the table at `root`: a local one without links."""
    return root if is_remote(root) else os.path.realpath(root)


def fence(place: str, check: Fence) -> None:
    """Run `check` before each change of the table at that place; it may raise."""
    _fences[place] = check


def check_fence(place: str, *, new: bool = False) -> None:
    """Raise if a table at that place may not be changed by this process."""
    check = _fences.get(place)
    if check is not None:
        check(new=new)
