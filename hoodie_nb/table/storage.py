"""The only interface to the disk.

All paths are relative to the table's root, with `/` between the parts and `""` for the root itself;
a path that points outside the root is refused. The protocols rely on three guarantees:

- `put_if_absent`: the whole content appears under the name, or the name exists already
  (temporary file, fsync, hard link: Hudi's own rename silently replaces on POSIX). Without hard
  links the temporary file is renamed, without ever replacing a file;
- `publish`: a staged file appears under its final name without being copied, and never replaces
  another file;
- after `sync_folder` the names in a folder survive a power failure.

No folder is reached through a link: not to write or delete, and not to list (see `beneath.py`).

**Caveats**: one local file system only. Object stores need conditional puts instead of links; until
that is implemented their addresses are refused.
"""

import errno
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar, cast
from urllib.parse import unquote, urlparse

from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.table.beneath import (
    Entry,
    Place,
    create_new,
    entry_of,
    file_name_of,
    folder_beneath,
    is_link,
    link_refused,
    rename_new,
    same_content,
)
from hoodie_nb.table.slow_link import Link, LinkedFile

META = ".hoodie"
OURS = ".hoodie/.hoodie_nb"
STAGED = f"{OURS}/staged"
SCRATCH = f"{OURS}/tmp"
T = TypeVar("T")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_TOUCH = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def local_root(path: str | os.PathLike[str]) -> str:
    """Return the absolute local folder that `path` (text, Path, `file:` URI) names."""
    text = os.fspath(path)
    scheme = urlparse(text).scheme
    if scheme == "file":
        text = unquote(urlparse(text).path)
    elif len(scheme) > 1:
        raise InvalidConfig(f"{text!r}: only local paths are supported, not {scheme}://")
    if not text or "\0" in text:
        raise InvalidConfig("the table's path is empty or has a NUL character")
    home = os.path.expanduser(text)
    if text.startswith("~") and home == text:
        raise InvalidConfig(f"{text!r}: no such home folder (write ./~… for a folder of that name)")
    return str(Path(home).absolute())


_fences: dict[str, Callable[[], None]] = {}


def fence(root: str, check: Callable[[], None]) -> None:
    """Run `check` before each change of the table at the real path `root`; it may raise."""
    _fences[root] = check


class LocalStorage:
    """A table's folder on a local disk, accessed over a simulated link if one is given."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        link: Link | None = None,
        *,
        scratch: str = SCRATCH,
    ) -> None:
        self.root, self.link, self._temporary = local_root(root), link, scratch
        self._real = os.path.realpath(self.root)

    def _parts(self, path: str) -> tuple[str, ...]:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise InvalidTable(f"path {path!r} points outside the table at {self.root}: refused")
        return parts

    def local_path(self, path: str) -> str:
        """Return the absolute path, or raise InvalidTable if `path` points outside the table."""
        return os.path.join(self.root, *self._parts(path))

    # --- reading --------------------------------------------------------------------------------

    def list_folder(self, folder: str) -> list[Entry]:
        """Return the entries of `folder` in order, [] if missing; InvalidTable if unreadable."""
        return sorted(self._scan(folder, entry_of), key=lambda e: e.name)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, in order, without their metadata."""
        return sorted(self._scan(folder, file_name_of))

    def _scan(self, folder: str, made: Callable[["os.DirEntry[str]"], T | None]) -> list[T]:
        """Return the results of `made` for each name, without None."""
        try:
            parts = self._parts(folder)
            with folder_beneath(self.root, parts) as opened, os.scandir(opened) as found:
                return [value for value in map(made, found) if value is not None]
        except FileNotFoundError:
            return []
        except (NotADirectoryError, PermissionError) as error:  # its content would be missed
            raise InvalidTable(
                f"folder {folder!r} of the table at {self.root} cannot be listed "
                f"({error.strerror}): restore the folder, or let this user read it"
            ) from None

    def exists(self, path: str) -> bool:
        """Whether a file or folder with that name exists."""
        return os.path.lexists(self.local_path(path))

    def size(self, path: str) -> int:
        """Return the bytes of a file; FileNotFoundError if it is missing."""
        return os.path.getsize(self.local_path(path))

    def modified_ms(self, path: str) -> int:
        """Return a file's modification time in ms since 1970; FileNotFoundError if missing."""
        return os.stat(self.local_path(path)).st_mtime_ns // 1_000_000

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content of a file."""
        with open(self.local_path(path), "rb") as file:
            return file.read()

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Return the local path of a file from which so many bytes will be read."""
        self._travel(size_bytes)
        return self.local_path(path)

    # --- changing -------------------------------------------------------------------------------

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[Place]:
        """Open the parent folder of `path`; every change of the table uses this function."""
        parts = self._parts(path)
        self._check()
        with folder_beneath(self.root, parts[:-1], make=make) as folder:
            yield folder, parts[-1]

    def _check(self) -> None:
        check = _fences.get(self._real)
        if check is not None:
            check()

    def put_if_absent(self, path: str, content: bytes) -> None:
        """Create a durable file with its whole content; FileExistsError if the name exists."""
        self._travel(len(content))
        with self._parent(path) as target, self._scratch(io.BytesIO(content)) as source:
            try:
                self._link(source, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                rename_new(source, target)
        self.sync_folder(str(PurePosixPath(path).parent))

    def publish(self, staged: str, target: str) -> None:
        """Publish a staged file as `target`; an equal file there is fine, another is an error."""
        self._travel(0)
        with self._parent(staged) as source, self._parent(target) as final:
            try:
                self._link(source, final)
            except FileExistsError:
                if not self._equal(staged, target):
                    raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._copy(staged, target, final)

    def _copy(self, staged: str, target: str, final: Place) -> None:
        try:
            with open(self.local_path(staged), "rb") as content, self._scratch(content) as copy:
                rename_new(copy, final)
        except FileExistsError:
            if not self._equal(staged, target):
                raise

    def _equal(self, staged: str, target: str) -> bool:
        source, final = self.local_path(staged), self.local_path(target)
        return os.path.samefile(source, final) or same_content(source, final)

    @staticmethod
    def _link(source: Place, target: Place) -> None:
        (from_folder, name), (to_folder, new) = source, target
        os.link(name, new, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)

    @contextmanager
    def _scratch(self, content: BinaryIO, *, durable: bool = True) -> Iterator[Place]:
        """Write content under a temporary name; it is deleted afterwards unless renamed."""
        with folder_beneath(self.root, self._parts(self._temporary), make=True) as folder:
            name = uuid.uuid4().hex
            try:
                with create_new(folder, name, name) as file:
                    shutil.copyfileobj(content, file, 1 << 20)
                    file.flush()
                    if durable:
                        os.fsync(file.fileno())
                yield folder, name
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    def replace(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Create or replace a file atomically, with its folders; `durable` syncs it."""
        with (
            self._parent(path, make=True) as (folder, name),
            self._scratch(io.BytesIO(content), durable=durable) as (scratch, temporary),
        ):
            os.replace(temporary, name, src_dir_fd=scratch, dst_dir_fd=folder)
            if durable:
                os.fsync(folder)

    def touch(self, path: str) -> None:
        """Create an empty file and its folders if missing."""
        with self._parent(path, make=True) as (folder, name):
            try:
                os.close(os.open(name, _TOUCH, 0o666, dir_fd=folder))
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise link_refused(self.root, path) from None
                raise

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents."""
        parts = self._parts(path)
        self._check()
        with folder_beneath(self.root, parts, make=True):
            pass

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        with folder_beneath(self.root, self._parts(path)) as folder:
            os.fsync(folder)

    def remove(self, path: str) -> bool:
        """Delete a file and the checksum file that Java adds; False if it did not exist.

        A folder is deleted if it is empty.
        """
        try:
            with self._parent(path) as (folder, name):
                with suppress(FileNotFoundError):
                    os.unlink(f".{name}.crc", dir_fd=folder)
                try:
                    os.unlink(name, dir_fd=folder)
                except IsADirectoryError:
                    os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def remove_tree(self, path: str) -> None:
        """Delete one of our folders with its content, or a file; of a link, only the link."""
        if not path.startswith(f"{META}/"):
            raise InvalidTable(f"{path!r} is not below {META}: not deleted")
        with suppress(FileNotFoundError), self._parent(path) as (folder, name):
            if is_link((folder, name)) or not os.path.isdir(self.local_path(path)):
                os.unlink(name, dir_fd=folder)
            else:
                shutil.rmtree(name, dir_fd=folder)

    def open_new(self, path: str) -> BinaryIO:
        """Open a file for writing that must not exist yet."""
        with self._parent(path) as (folder, name):
            file = create_new(folder, name, self.local_path(path))
        return file if self.link is None else cast(BinaryIO, LinkedFile(file, self.link))

    def _travel(self, size_bytes: int) -> None:
        if self.link is not None:
            self.link.wait(size_bytes)
