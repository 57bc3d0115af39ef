"""A simulated object store: another storage with the delays of a slow connection."""

import io
import time
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from hoodie_nb.table.storage import Entry, Storage


@dataclass(frozen=True, slots=True)
class Link:
    """A slow connection: latency per request, bytes per second in each stream."""

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def wait(self, size_bytes: int) -> None:
        """Wait as long as a request of that size takes."""
        time.sleep(self.latency_s + size_bytes / self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class SlowStorage:
    """A storage that is accessed over a `Link`: what reads or writes content waits."""

    inner: Storage
    link: Link

    @property
    def root(self) -> str:
        """The address of the inner storage."""
        return self.inner.root

    def list_folder(self, folder: str, *, details: bool = True) -> list[Entry]:
        """Return the entries of `folder`, without a delay."""
        return self.inner.list_folder(folder, details=details)

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder, without a delay."""
        return self.inner.entry(path)

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Return a local path after the delay of reading so many bytes; none for its name only."""
        if size_bytes:
            self.link.wait(size_bytes)
        return self.inner.fetch(path, size_bytes)

    def open_new(self, path: str) -> BinaryIO:
        """Open a new file; each write takes its time, and closing it the latency."""
        return cast(BinaryIO, LinkedFile(self.inner.open_new(path), self.link))

    def put(self, path: str, content: bytes, *, new: bool = False, durable: bool = True) -> None:
        """Create or replace a file after the delay of sending it."""
        self.link.wait(len(content))
        self.inner.put(path, content, new=new, durable=durable)

    def publish(self, staged: str, target: str) -> None:
        """Publish a staged file after one request's latency."""
        self.link.wait(0)
        self.inner.publish(staged, target)

    def make_folder(self, path: str) -> None:
        """Create a folder, without a delay: object stores have none."""
        self.inner.make_folder(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable, without a delay."""
        self.inner.sync_folder(path)

    def remove(self, path: str, *, tree: bool = False) -> bool:
        """Delete a file or folder, without a delay."""
        return self.inner.remove(path, tree=tree)


class LinkedFile(io.BufferedIOBase):
    """A file that is written over a link; the latency is paid once, at the end."""

    def __init__(self, file: BinaryIO, link: Link) -> None:
        self._file, self._link = file, link

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 -- any buffer
        """Wait as long as the bytes take."""
        time.sleep(memoryview(data).nbytes / self._link.bytes_per_s)
        return self._file.write(data)

    def flush(self) -> None:
        """Flush the buffer."""
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Wait for the store's response, once."""
        if not self._file.closed:
            time.sleep(self._link.latency_s)
            self._file.close()
        super().close()
