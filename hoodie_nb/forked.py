"""What a forked child makes anew, since another thread of its parent may have been using it.

A child has copies of locks that such a thread held: nobody there would ever release them.
"""

import os
import threading
import weakref
from typing import Protocol


class Renewed(Protocol):
    """An object with locks, or with what they guard."""

    def after_fork(self) -> None:
        """Make the locks anew; called in the child before it goes on."""


_all: "weakref.WeakSet[Renewed]" = weakref.WeakSet()


def renew_in_child(one: Renewed) -> None:
    """Call the object's `after_fork` in each forked child, as long as it exists."""
    _all.add(one)


class ProcessLock:
    """A `lock` that a forked child finds free."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Forget the parent's lock."""
        self.lock = threading.Lock()


def _renew() -> None:
    for one in [*_all]:
        one.after_fork()


os.register_at_fork(after_in_child=_renew)
