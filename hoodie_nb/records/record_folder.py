"""A folder of JSON records with a cache: read, put, remove; for all kinds of records.

It is listed once per checkpoint, after `refresh`, and again after a failed change. Its records are
then read again, unless each is read `once`, as long as it is listed. On an object store each read
is a request, and a stream may have many sealed checkpoints.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from hoodie_nb.definition.rules import KeptRules
from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.checksums import LOST
from hoodie_nb.storage.storage import Storage, read_bytes


class Record(Protocol):
    """A dataclass that knows its path, relative to the table's root."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def path(self) -> str:
        """Return the path under which the record is saved."""


R = TypeVar("R", bound=Record)


class RecordFolder(Generic[R]):
    """The records in `folder` whose names satisfy `counts`; `parse` makes one from its values.

    Each record is read `once` if no other holder of the lock puts another one under its name.
    """

    def __init__(
        self,
        storage: Storage,
        rules: KeptRules,
        folder: str,
        counts: Callable[[str], object],
        parse: Callable[[dict[str, Any]], R],
        *,
        once: bool = False,
    ) -> None:
        self._storage = storage
        self._rules = rules
        self._folder = folder
        self._counts = counts
        self._parse = parse
        self._once = once
        self._known: dict[str, R | None] | None = None  # by path; None: not read yet
        self._others: list[str] = []
        self._earlier: dict[str, R | None] = {}  # before `refresh`

    def refresh(self) -> None:
        """List the folder again at the next access, and read what may have changed."""
        self._earlier = (self._known or self._earlier) if self._once else {}
        self._known = None

    @property
    def _cached(self) -> dict[str, R | None]:
        if self._known is None:
            names = self._storage.file_names(self._folder)
            self._others = [name for name in names if not self._counts(name)]
            paths = [f"{self._folder}/{name}" for name in names if self._counts(name)]
            self._known = {path: self._earlier.get(path) for path in paths}
            self._earlier = {}  # after a failed change everything is read again
        return self._known

    def paths(self) -> list[str]:
        """Return the records' paths, relative to the table's root, in order."""
        return sorted(self._cached)

    def others(self) -> list[str]:
        """Return the names of the folder's other files."""
        self.paths()  # lists them
        return self._others

    def read(self, path: str) -> R:
        """Return one of the records, or raise InvalidTable naming its file."""
        record = self._cached[path]
        if record is None:
            record = self._parse(self._rules.decode(read_bytes(self._storage, path), path))
            if record.path != path:
                raise InvalidTable(f"{path} is the record of another checkpoint; {LOST}")
            self._cached[path] = record
        return record

    def put(self, record: R, *, new: bool = True) -> None:
        """Save a record durably; FileExistsError if it must be `new` and the name exists."""
        known = self._take_cache()
        if new:
            self._storage.make_folder(self._folder)
            self._storage.sync_folder(str(PurePosixPath(self._folder).parent))
        self._storage.put(record.path, self._rules.encode(asdict(record)), new=new)
        self._known = {**known, record.path: record}

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
        known = self._cached
        self._known = None
        return known
