"""Storage on a local disk: durable writes (fsync), atomic publish, listing.

- a new file is written under a temporary name, synced and hard-linked (Hudi's own rename silently
  replaces on POSIX); without hard links it is renamed, without ever replacing a file;
- a staged file is published by a hard link, or copied and renamed;
- what is not on the file system of the scratch folder (a mounted partition) gets its temporary file
  beside it.

No folder is reached through a link: not to write or delete, and not to list (see `beneath.py`).

**Caveats**: one local file system only.
"""

import errno
import io
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, urlparse

from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.storage.beneath import (
    Place,
    create_new,
    entries_of,
    entry_at,
    folder_beneath,
    names_of,
    rename_new,
    same_content,
)
from hoodie_nb.storage.fences import check_fence
from hoodie_nb.storage.storage import META, PROPERTIES, SCRATCH, Entry

T = TypeVar("T")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def local_root(path: str | os.PathLike[str]) -> str:
    """Return the absolute local folder that `path` (text, Path, `file:` URI) names."""
    text = os.fspath(path)
    scheme = urlparse(text).scheme
    if scheme == "file":
        text = unquote(urlparse(text).path)
    elif text[1:3] in (":\\", ":/"):
        raise InvalidConfig(f"{text!r} is a Windows path: on WSL, Windows drives are below /mnt")
    elif len(scheme) > 1:
        raise InvalidConfig(f"{text!r}: only local paths are supported, not {scheme}://")
    if not text or "\0" in text:
        raise InvalidConfig("the path is empty or has a NUL character")
    home = os.path.expanduser(text)
    if text.startswith("~") and home == text:
        raise InvalidConfig(f"{text!r}: no such home folder (write ./~… for a folder of that name)")
    return str(Path(home).absolute())


class LocalStorage:
    """A table's folder on a local disk."""

    def __init__(self, root: str | os.PathLike[str], *, scratch: str = SCRATCH) -> None:
        self.root = local_root(root)
        self._temporary = scratch
        self._real = os.path.realpath(self.root)

    def _parts(self, path: str) -> tuple[str, ...]:
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise InvalidTable(f"path {path!r} points outside the table at {self.root}: refused")
        return parts

    # --- reading --------------------------------------------------------------------------------

    def list_folder(self, folder: str) -> list[Entry]:
        """Return the entries of `folder` in order, [] if missing; InvalidTable if unreadable."""
        return sorted(self._scan(folder, entries_of), key=lambda e: e.name)

    def file_names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, in order, [] if missing."""
        return sorted(self._scan(folder, names_of))

    def _scan(
        self, folder: str, read: "Callable[[Iterable[os.DirEntry[str]]], Iterable[T]]"
    ) -> list[T]:
        try:
            parts = self._parts(folder)
            with folder_beneath(self.root, parts) as opened, os.scandir(opened) as found:
                return list(read(found))
        except FileNotFoundError:
            return []
        except (NotADirectoryError, PermissionError) as error:  # its content would be missed
            raise InvalidTable(
                f"folder {folder or '.'!r} of the table at {self.root} cannot be listed "
                f"({error.strerror}): restore it, let this user read it, or choose another path"
            ) from None

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""
        return entry_at(self.fetch(path))

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Return the absolute path; InvalidTable if `path` points outside the table."""
        return os.path.join(self.root, *self._parts(path))

    def local_folder(self, path: str) -> str:
        """Return the folder itself."""
        return self.fetch(path)

    # --- changing -------------------------------------------------------------------------------

    def outer_table(self) -> str | None:
        """Return the folder of a table in which this one is, with links resolved."""
        above = map(str, Path(self._real).parents)
        return next((f for f in above if os.path.isfile(f"{f}/{PROPERTIES}")), None)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[Place]:
        """Open the parent folder of `path`; every change of the table uses this function."""
        parts = self._parts(path)
        check_fence(self._real)
        with folder_beneath(self.root, parts[:-1], make=make) as folder:
            yield folder, parts[-1]

    def put(self, path: str, content: bytes, *, new: bool = False, durable: bool = True) -> None:
        """Create or replace a file atomically; FileExistsError if it must be `new` and exists."""
        with self._parent(path, make=not new) as target:
            _forget_checksum(target)
            move = self._create if new else _replace
            self._move(io.BytesIO(content), target, move, durable=durable)
            if durable:
                os.fsync(target[0])

    def _move(
        self,
        content: BinaryIO,
        target: Place,
        move: Callable[[Place, Place], None],
        *,
        durable: bool = True,
    ) -> None:
        """Write content under a temporary name, then move it to `target`.

        If that is on another file system (a mounted partition), the temporary file is beside it.
        """
        try:
            with (
                folder_beneath(self.root, self._parts(self._temporary), make=True) as folder,
                _temporary(content, (folder, uuid.uuid4().hex), durable) as source,
            ):
                move(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            content.seek(0)
            beside = target[0], f".{target[1]}.tmp"
            with suppress(FileNotFoundError):  # of a process that died
                os.unlink(beside[1], dir_fd=beside[0])
            with _temporary(content, beside, durable) as source:
                move(source, target)

    def _create(self, source: Place, target: Place) -> None:
        try:
            self._link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            rename_new(source, target)

    def publish(self, staged: str, target: str) -> None:
        """Publish a staged file as `target`; an equal file there is fine, another is an error."""
        with self._parent(staged) as source, self._parent(target) as final:
            try:
                self._link_or_copy(staged, source, final)
            except FileExistsError:
                ours = self.fetch(staged)
                theirs = self.fetch(target)
                if not (os.path.samefile(ours, theirs) or same_content(ours, theirs)):
                    raise

    def _link_or_copy(self, staged: str, source: Place, final: Place) -> None:
        try:
            self._link(source, final)
        except OSError as error:
            if error.errno not in (*_NO_LINKS, errno.EXDEV):
                raise
            with open(self.fetch(staged), "rb") as content:
                self._move(content, final, rename_new)

    @staticmethod
    def _link(source: Place, target: Place) -> None:
        from_folder, name = source
        to_folder, new = target
        os.link(name, new, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents."""
        parts = self._parts(path)
        check_fence(self._real)
        with folder_beneath(self.root, parts, make=True):
            pass

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        with folder_beneath(self.root, self._parts(path)) as folder:
            os.fsync(folder)

    def remove(self, path: str, *, tree: bool = False) -> bool:
        """Delete a file and the checksum file that Java adds; False if it did not exist.

        A folder is deleted if it is empty, or with its content if `tree` (only below `.hoodie`);
        of a link, only the link.
        """
        if tree and not path.startswith(f"{META}/"):
            raise InvalidTable(f"{path!r} is not below {META}: not deleted")
        try:
            with self._parent(path) as (folder, name):
                _forget_checksum((folder, name))
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    os.unlink(name, dir_fd=folder)
                elif tree:
                    shutil.rmtree(name, dir_fd=folder)
                else:
                    os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def open_new(self, path: str) -> BinaryIO:
        """Open a file for writing that must not exist yet."""
        with self._parent(path) as (folder, name):
            return create_new(folder, name, self.fetch(path))


@contextmanager
def _temporary(content: BinaryIO, place: Place, durable: bool) -> Iterator[Place]:
    """Write content under a temporary name; it is deleted afterwards unless renamed."""
    folder, name = place
    try:
        with create_new(folder, name, name) as file:
            shutil.copyfileobj(content, file, 1 << 20)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield place
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _replace(source: Place, target: Place) -> None:
    scratch, temporary = source
    folder, name = target
    os.replace(temporary, name, src_dir_fd=scratch, dst_dir_fd=folder)


def _forget_checksum(place: Place) -> None:
    """Delete the file in which Java keeps the checksum of a file: it is that of another content."""
    folder, name = place
    with suppress(FileNotFoundError):
        os.unlink(f".{name}.crc", dir_fd=folder)
