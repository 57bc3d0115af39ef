"""One file for an object store, written locally and sent when closed."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hoodie_nb.storage.storage import FileToFinish


class ObjectFile(FileToFinish):
    """The local file `name`; closing it calls `send`, unless an error ends its `with` block.

    A file that is abandoned, or that nobody closes, is not sent. It has no `fileno`: it is durable
    when it is closed, and not before.
    """

    def __init__(self, name: str, send: Callable[[str], None]) -> None:
        self.name = name
        self._send = send
        self._file = open(name, "xb")  # noqa: SIM115 -- closed with this file

    def write(self, data: Any) -> int:  # noqa: ANN401 -- any buffer
        """Write bytes to the local file."""
        return self._file.write(data)

    def close(self) -> None:
        """Send the file, once."""
        if self.closed:
            return
        self._file.close()
        try:
            self._send(self.name)
        except BaseException:
            self.abandon()
            raise
        super().close()

    def abandon(self) -> None:
        """Delete the local file; nothing is sent."""
        if not self.closed:
            self._file.close()
            with suppress(FileNotFoundError):
                os.unlink(self.name)
            super().close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.abandon()
