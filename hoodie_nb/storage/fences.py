"""Before each change of a table's files: does this process still hold the lock?

The lock registers a fence; every storage asks it before each change. A change that is in doubt may
arrive later: it keeps the lock from others, see `lease`.
"""

import math
import os
import time
from typing import Protocol

from hoodie_nb.storage.storage import is_remote


class Fence(Protocol):
    """A check before a change; `new` if a file must not exist yet, as a completed file."""

    def __call__(self, *, new: bool = False) -> None:
        """Raise if the table may not be changed."""


_fences: dict[str, Fence] = {}
_doubts: dict[str, float] = {}  # monotonic seconds


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


def doubt(place: str) -> None:
    """Note that a change of the table at that place has failed late: it may arrive even later."""
    _doubts[place] = time.monotonic()


def doubted_s(place: str) -> float:
    """Return the seconds since the last change of this process that is in doubt."""
    return time.monotonic() - _doubts.get(place, -math.inf)
