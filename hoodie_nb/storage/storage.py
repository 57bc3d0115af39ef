"""The interface of a storage: what a new kind of store must offer; how many calls at once.

All paths are relative to the table's root, with `/` between the parts and `""` for the root itself;
a path that points outside the root is refused. The protocols rely on three guarantees:

- `put(new=True)`: the whole content appears under the name, or the name exists already;
- `publish`: a staged file appears under its final name, whole, and never replaces another file;
- after `sync_folder` the names in a folder survive a power failure.

`LocalStorage` is a folder on a local disk, `ObjectStorage` one on an object store. The others wrap
one: `SlowStorage` adds the delays of an object store, `FrailStorage` fails.
"""

import errno
import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol, TypeVar

from hoodie_nb.errors import InvalidConfig, InvalidTable

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")  # of object stores
T = TypeVar("T")
META = ".hoodie"
PROPERTIES = f"{META}/hoodie.properties"
OURS = ".hoodie/.hoodie_nb"
STAGED = f"{OURS}/staged"
SCRATCH = f"{OURS}/tmp"
TURNS = f"{OURS}/turns"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder; size in bytes, modification time in ms since 1970.

    A link has the size and time of its target; it is never a folder.
    """

    name: str
    is_folder: bool
    size_bytes: int = 0
    modified_ms: int = 0
    is_link: bool = False
    version: str = ""  # of an object


def check_scheme(scheme: str) -> None:
    """Raise InvalidConfig unless addresses may begin so."""
    if scheme not in SCHEMES:
        raise InvalidConfig(
            f"{scheme}:// is not supported: a table is in a local folder, or in an object store "
            f"({', '.join(f'{known}://' for known in SCHEMES)})"
        )


def is_remote(root: str) -> bool:
    """Whether a table's address is that of an object store."""
    return "://" in root


def java_path(root: str, path: str) -> str:
    """Return the address of a table's file as Java writes it into plans."""
    return f"{root if is_remote(root) else f'file:{root}'}/{path}"


def joined(folder: str, name: str) -> str:
    """Return the path of a name in a folder; the folder `""` is the root."""
    return f"{folder}/{name}" if folder else name


class FileToFinish(io.BufferedIOBase):
    """A file that is written completely or not at all: an error in its `with` block abandons it."""

    _file: BinaryIO

    def flush(self) -> None:
        """Flush everything to the operating system."""
        if not self._file.closed:
            self._file.flush()

    def writable(self) -> bool:
        """Return True."""
        return True

    def abandon(self) -> None:
        """Close the file without finishing it; nothing if it is closed."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class Storage(Protocol):
    """The folder of one table; every read and every change of the table uses these methods."""

    @property
    def root(self) -> str:
        """The address of the table, for users and for Spark."""

    def list_folder(self, folder: str) -> list[Entry]:
        """Return the entries of `folder` in order, [] if missing; InvalidTable if unreadable."""

    def file_names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, in order, without examining any file."""

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Return the path of a local copy; `size_bytes` of it will be read (0: only its name)."""

    def local_folder(self, path: str) -> str:
        """Return a local folder for a task's own files: `path`, if the table is on a local disk."""

    def outer_table(self) -> str | None:
        """Return the address of a table in whose folder this one is; None if there is none."""

    def open_new(self, path: str) -> BinaryIO:
        """Open a file for writing that must not exist yet, in a folder that exists.

        FileExistsError is raised here, or when the file is closed.
        """

    def put(self, path: str, content: bytes, *, new: bool = False, durable: bool = True) -> None:
        """Create or replace a file atomically, with its folders; `durable` syncs it.

        A checksum file that Java added to an earlier file of that name is deleted.
        Raises FileExistsError if it must be `new` and the name exists.
        """

    def publish(self, staged: str, target: str) -> None:
        """Publish a staged file as `target`; an equal file there is fine, another is an error."""

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""

    def remove(self, path: str, *, tree: bool = False) -> bool:
        """Delete a file and the checksum file that Java adds; False if it did not exist.

        A folder is deleted if it is empty, or with its content if `tree` (only below `.hoodie`).
        """


def read_bytes(storage: Storage, path: str) -> bytes:
    """Return the whole content of a file; FileNotFoundError if it is missing."""
    with permitted(f"{storage.root}/{path}"), open(storage.fetch(path), "rb") as file:
        return file.read()


def size_of(storage: Storage, paths: Iterable[str]) -> int:
    """Return the bytes of those of these files that exist."""
    return sum(entry.size_bytes for entry in filter(None, map(storage.entry, paths)))


@contextmanager
def permitted(path: str) -> Iterator[None]:
    """Turn a refusal of the operating system into InvalidTable, naming the file."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
            raise
        raise InvalidTable(
            f"{path} cannot be opened ({error.strerror}): let this user read it, and write it if "
            "the table is to be written, or choose another path"
        ) from None


def create_empty(storage: Storage, path: str) -> None:
    """Create an empty file, with its folders, if it does not exist."""
    storage.make_folder(path.rpartition("/")[0])
    with suppress(FileExistsError):
        storage.open_new(path).close()


def each(storage: Storage, act: Callable[[T], object], items: Iterable[T]) -> None:
    """Call `act` with each item; on an object store, where each call waits, with several at once.

    The first error is raised when the calls that were begun have ended.
    """
    if not is_remote(storage.root):
        for item in items:
            act(item)
        return
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(act, items))
