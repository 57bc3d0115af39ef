"""A storage with delays: which requests wait, by latency and bytes per second."""

import time
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from hoodie_nb.storage.checksums import ChecksummedFile
from hoodie_nb.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class Link:
    """A slow connection: latency per request, bytes per second in each stream."""

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def wait(self, size_bytes: int) -> None:
        """Wait as long as a request of that size takes."""
        time.sleep(self.latency_s + size_bytes / self.bytes_per_s)


class SlowStorage:
    """A storage that is accessed over a `Link`: methods that read or write content wait.

    All other methods are those of the inner storage, without a delay.
    """

    def __init__(self, inner: Storage, link: Link) -> None:
        self.inner = inner
        self.link = link
        self.root = inner.root
        self.list_folder = inner.list_folder
        self.entry = inner.entry
        self.remove = inner.remove
        self.make_folder = inner.make_folder
        self.sync_folder = inner.sync_folder
        self.file_names = inner.file_names
        self.local_folder = inner.local_folder
        self.outer_table = inner.outer_table

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


class LinkedFile(ChecksummedFile):
    """A file that is written over a link; the latency is paid once, at the end."""

    def __init__(self, file: BinaryIO, link: Link) -> None:
        super().__init__(file)
        self._link = link

    def write(self, data: Any) -> int:  # noqa: ANN401 -- any buffer
        """Wait as long as the bytes take."""
        time.sleep(memoryview(data).nbytes / self._link.bytes_per_s)
        return super().write(data)

    def close(self) -> None:
        """Wait for the store's response, once."""
        if not self._file.closed:
            time.sleep(self._link.latency_s)
        super().close()
