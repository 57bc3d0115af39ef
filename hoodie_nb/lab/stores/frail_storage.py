"""A storage in which one change fails: which change, and whether the process dies there."""

import re
from collections.abc import Callable
from typing import Any

from hoodie_nb.storage.storage import Storage

_READS = ("list_folder", "file_names", "entry", "fetch", "local_folder", "outer_table")


class Dead(BaseException):
    """The process has died: it can do nothing more, not even clean up."""


class FrailStorage:
    """Another storage, whose first change that matches the pattern `where` raises `error`.

    A change is matched as its method and path: `put .hoodie/…`; `fires` is called just before the
    error. After `Dead` every later change raises it as well; any other error is raised once.
    """

    def __init__(self, inner: Storage, error: BaseException, fires: Callable[[], None]) -> None:
        self._inner = inner
        self._error = error
        self._fires = fires
        self.root = inner.root
        self.where = "$^"
        self.fired = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._inner, name)
        if name in _READS:
            return method

        def change(path: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401 -- like the method
            if not self.fired and re.search(self.where, f"{name} {path}"):
                self.fired = True
                self._fires()
                raise self._error
            if self.fired and isinstance(self._error, Dead):
                raise self._error
            return method(path, *args, **options)

        return change
