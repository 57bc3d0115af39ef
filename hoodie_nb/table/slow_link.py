"""A simulated object store: a local disk with the delays of a slow connection."""

import io
import time
from dataclasses import dataclass
from typing import Any, BinaryIO


@dataclass(frozen=True, slots=True)
class Link:
    """A simulated object store: latency per request, bytes per second in each stream."""

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")

    def wait(self, size_bytes: int) -> None:
        """Wait as long as a request of that size takes."""
        time.sleep(self.latency_s + size_bytes / self.bytes_per_s)


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
