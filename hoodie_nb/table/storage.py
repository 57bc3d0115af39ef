"""The one port through which bytes reach the disk.

All paths are relative to the table's root, `/` between the parts, `""` for the root itself; a path
that would leave the root is refused. Three promises carry the protocols:

- `put_if_absent`: the whole content appears under the name, or the name is taken already
  (temporary file, fsync, hard link: Hudi's own rename silently replaces on POSIX);
- `publish`: a staged file appears under its final name without being copied, never in place of
  another file;
- after `sync_folder` the names in a folder survive a loss of power.

**Caveats**: local file systems only. Object stores need conditional puts instead of links; until
that side exists their addresses are refused.
"""

import errno
import io
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlparse

from hoodie_nb.errors import InvalidConfig, InvalidTable

META = ".hoodie"
OURS = ".hoodie/.hoodie_nb"
STAGED = f"{OURS}/staged"
SCRATCH = f"{OURS}/tmp"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder; size in bytes, time of change in ms since 1970."""

    name: str
    is_folder: bool
    size_bytes: int
    modified_ms: int


def local_root(path: str | os.PathLike[str]) -> str:
    """Return the absolute local folder that `path` (text, Path, `file:` URI) names."""
    text = os.fspath(path)
    scheme = urlparse(text).scheme
    if scheme == "file":
        text = unquote(urlparse(text).path)
    elif len(scheme) > 1:
        raise InvalidConfig(f"{text!r}: only local paths can be written so far, not {scheme}://")
    if not text or "\0" in text:
        raise InvalidConfig("the table's path is empty or holds a NUL character")
    home = os.path.expanduser(text)
    if text.startswith("~") and home == text:
        raise InvalidConfig(f"{text!r}: there is no such home folder (write ./~… for a name)")
    return str(Path(home).absolute())


@dataclass(frozen=True, slots=True)
class Link:
    """A simulated object store: seconds before each request, bytes a second in each stream."""

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def wait(self, size_bytes: int) -> None:
        """Take as long as a request of that size takes."""
        time.sleep(self.latency_s + size_bytes / self.bytes_per_s)


class _LinkedFile(io.BufferedIOBase):
    """A file whose writes travel over a link; the latency is paid once, at the end."""

    def __init__(self, file: BinaryIO, link: Link) -> None:
        self._file, self._link = file, link

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 -- whatever has a buffer
        time.sleep(memoryview(data).nbytes / self._link.bytes_per_s)
        return self._file.write(data)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        if not self._file.closed:
            time.sleep(self._link.latency_s)
            self._file.close()
        super().close()


class LocalStorage:
    """A table's folder on a local disk, seen over a simulated link if one is given."""

    def __init__(self, root: str | os.PathLike[str], link: Link | None = None) -> None:
        self.root, self.link = local_root(root), link

    def local_path(self, path: str) -> str:
        """Return the absolute path, or raise InvalidTable if `path` would leave the table."""
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise InvalidTable(f"path {path!r} would leave the table at {self.root}: refused")
        return os.path.join(self.root, *parts)

    def list_folder(self, folder: str) -> list[Entry]:
        """Names in `folder` in order, none if the folder is missing."""
        try:
            with os.scandir(self.local_path(folder)) as found:
                entries = [self._entry(e) for e in found]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((e for e in entries if e is not None), key=lambda e: e.name)

    @staticmethod
    def _entry(found: "os.DirEntry[str]") -> Entry | None:
        try:
            status = found.stat()
        except FileNotFoundError:  # deleted while we looked
            return None
        return Entry(found.name, found.is_dir(), status.st_size, status.st_mtime_ns // 1_000_000)

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name is there."""
        return os.path.lexists(self.local_path(path))

    def size(self, path: str) -> int:
        """Bytes of a file; FileNotFoundError if it is missing."""
        return os.path.getsize(self.local_path(path))

    def read_bytes(self, path: str) -> bytes:
        """The whole content of a file."""
        with open(self.local_path(path), "rb") as file:
            return file.read()

    def put_if_absent(self, path: str, content: bytes) -> None:
        """Make the file with all its content, durable; FileExistsError if the name is taken."""
        self._travel(len(content))
        scratch = self._scratch(content)
        try:
            self._link(scratch, self.local_path(path))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            self._create_exclusively(path, content)
        finally:
            os.unlink(scratch)
        self.sync_folder(str(PurePosixPath(path).parent))

    def _create_exclusively(self, path: str, content: bytes) -> None:
        with self.open_new(path) as file:  # where the file system has no hard links
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _link(source: str, target: str) -> None:
        os.link(source, target)

    def _scratch(self, content: bytes) -> str:
        folder = self.local_path(SCRATCH)
        os.makedirs(folder, exist_ok=True)
        scratch = os.path.join(folder, uuid.uuid4().hex)
        with open(scratch, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return scratch

    def replace(self, path: str, content: bytes) -> None:
        """Make or replace the file as a whole, durable."""
        target = self.local_path(path)
        scratch = self._scratch(content)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(scratch, target)
        self.sync_folder(str(PurePosixPath(path).parent))

    def touch(self, path: str) -> None:
        """Make an empty file and its folders if it is not there yet."""
        target = self.local_path(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))

    def make_folder(self, path: str) -> None:
        """Make the folder and those above it."""
        os.makedirs(self.local_path(path), exist_ok=True)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(self.local_path(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish(self, staged: str, target: str) -> None:
        """Let a staged file appear under `target`; an equal one there is fine, another is not."""
        self._travel(0)
        source, final = self.local_path(staged), self.local_path(target)
        try:
            self._link(source, final)
        except FileExistsError:
            if not (os.path.samefile(source, final) or _same_content(source, final)):
                raise
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
                raise
            self._create_exclusively(target, Path(source).read_bytes())

    def remove(self, path: str) -> bool:
        """Delete a file and the checksum that Java keeps beside it; False if it was not there."""
        target = Path(self.local_path(path))
        if not target.parent.resolve().is_relative_to(Path(self.root).resolve()):
            raise InvalidTable(
                f"path {path!r} would leave the table at {self.root}: a link leads out"
            )
        target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
        try:
            target.unlink()
        except FileNotFoundError:
            return False
        return True

    def remove_tree(self, path: str) -> None:
        """Delete a folder of ours with all that lies in it."""
        if not path.startswith(f"{META}/"):
            raise InvalidTable(f"{path!r} is not below {META}: not deleted")
        target = self.local_path(path)
        if os.path.isdir(target):
            shutil.rmtree(target, ignore_errors=False)

    def open_new(self, path: str) -> BinaryIO:
        """Open a file for writing that must not exist yet."""
        file = open(self.local_path(path), "xb")  # noqa: SIM115 -- the caller closes it
        return file if self.link is None else cast(BinaryIO, _LinkedFile(file, self.link))

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Return the local path of a file of which so many bytes are about to be read."""
        self._travel(size_bytes)
        return self.local_path(path)

    def _travel(self, size_bytes: int) -> None:
        if self.link is not None:
            self.link.wait(size_bytes)


def _same_content(first: str, second: str) -> bool:
    if os.path.getsize(first) != os.path.getsize(second):
        return False
    with open(first, "rb") as a, open(second, "rb") as b:
        while True:
            left, right = a.read(1 << 20), b.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


def partition_folders(storage: LocalStorage, folder: str = "") -> Iterator[str]:
    """Yield the partition paths: every folder that holds a partition metadata file."""
    entries = storage.list_folder(folder)
    if any(e.name.startswith(".hoodie_partition_metadata") for e in entries):
        yield folder
    for entry in entries:
        if entry.is_folder and not (folder == "" and entry.name == META):
            yield from partition_folders(
                storage, f"{folder}/{entry.name}" if folder else entry.name
            )
