"""A cached folder of JSON records, which only the holder of the table's lock changes.

It is listed and read once per checkpoint, after `refresh`, and again after a failed change.
"""

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Generic, TypeVar

from hoodie_nb.table.storage import Storage, file_names, read_bytes

R = TypeVar("R")


class RecordFolder(Generic[R]):
    """The records in `folder` whose names satisfy `counts`; `parse` decodes bytes and path."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        counts: Callable[[str], object],
        parse: Callable[[bytes, str], R],
    ) -> None:
        self._storage, self._folder = storage, folder
        self._counts, self._parse = counts, parse
        self._known: dict[str, R | None] | None = None  # by path; None: not read yet

    def refresh(self) -> None:
        """List and read the folder again at the next access."""
        self._known = None

    @property
    def _cached(self) -> dict[str, R | None]:
        if self._known is None:
            names = filter(self._counts, file_names(self._storage, self._folder))
            self._known = {f"{self._folder}/{name}": None for name in names}
        return self._known

    def paths(self) -> list[str]:
        """Return the records' paths, relative to the table's root, in order."""
        return sorted(self._cached)

    def read(self, path: str) -> R:
        """Return one of the records."""
        record = self._cached[path]
        if record is None:
            record = self._parse(read_bytes(self._storage, path), path)
            self._cached[path] = record
        return record

    def put(self, path: str, record: R, content: bytes) -> None:
        """Save a record durably; FileExistsError if the name exists."""
        known = self._take_cache()
        self._storage.make_folder(self._folder)
        self._storage.sync_folder(str(PurePosixPath(self._folder).parent))
        self._storage.put(path, content, new=True)
        self._known = {**known, path: record}

    def replace(self, path: str, record: R, content: bytes) -> None:
        """Replace a record durably."""
        known = self._take_cache()
        self._storage.put(path, content)
        self._known = {**known, path: record}

    def remove(self, paths: list[str]) -> None:
        """Delete records durably, in this order."""
        known = self._take_cache()
        for path in paths:
            self._storage.remove(path)
        if paths:
            self._storage.sync_folder(self._folder)
        self._known = {path: record for path, record in known.items() if path not in paths}

    def _take_cache(self) -> dict[str, R | None]:
        """Return the cache and clear it until the change has succeeded."""
        known, self._known = self._cached, None
        return known
