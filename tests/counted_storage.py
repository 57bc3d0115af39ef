"""A storage that counts what an object store would be asked for."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from hoodie_nb.storage.storage import Storage

_REQUESTS = {  # of an object store; its folders are only part of the names
    "fetch": "GET",
    "entry": "HEAD",
    "list_folder": "LIST",
    "file_names": "LIST",
    "put": "PUT",
    "open_new": "PUT",
    "publish": "COPY",
    "remove": "DELETE",
}


class CountedStorage:
    """Another storage; `requests` counts what an object store would be asked for, by kind.

    Each file is one GET or PUT, also if only its name is fetched; a folder that is deleted with its
    content is one DELETE, and one that is listed is one LIST (a store gives 1,000 names in each).
    """

    def __init__(self, inner: Storage) -> None:
        self._inner, self._lock = inner, threading.Lock()
        self.root, self.requests = inner.root, Counter[str]()

    def __getattr__(self, name: str):
        method: Callable[..., Any] = getattr(self._inner, name)
        if name not in _REQUESTS:
            return method

        def counted(path: str, *args: Any, **options: Any) -> Any:
            with self._lock:
                self.requests[_REQUESTS[name]] += 1
            return method(path, *args, **options)

        return counted
