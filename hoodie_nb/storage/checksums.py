"""CRC-32 of this library's own files and records: written, and verified before use.

Sealed runs, prepared records, staged files, staged deletes and progress may be the only copy of
rows that a stream considers written, or the only record that it does. None is used before it is
verified.

*On disk*: a record is `{"crc32": "<8 hex digits>", "record": {...}}`, the CRC-32 over the bytes of
the inner object. Such a record names a file together with its length and CRC-32.

Every byte of a written file is checksummed twice, when it is written and before it is published:
`isal` takes a seventh of the time of `zlib`.

**Caveats**: a CRC detects damage, not forgery. A file replaced by an older version of itself is
detected by the record that names it.
"""

import io
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from isal.isal_zlib import crc32

from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.storage import FileToFinish, Storage

_RECORD = re.compile(rb'\{"crc32": "([0-9a-f]{8})", "record": (.*)\}', re.DOTALL)
_PIECE = 1 << 20
LOST = (
    "a stream considers its rows written. Restore it from a backup; without one, delete the "
    "folders sealed, prepared and staged in .hoodie/.hoodie_nb and start the stream with a new "
    "checkpoint folder, so that it reads its source again (upserts converge)"
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as this library wrote it: path from the table's root, length in bytes, CRC-32."""

    path: str
    size_bytes: int
    crc: int

    def verify(self, storage: Storage, stake: str = LOST, *, content: bool = True) -> None:
        """Raise InvalidTable if the file is missing or has changed: its length, and its content.

        `stake` completes the message: which data are at risk, and what to do.
        """
        entry = storage.entry(self.path)
        if entry is None:
            wrong = "is missing"
        elif entry.size_bytes != self.size_bytes:
            wrong = f"has {entry.size_bytes} bytes where {self.size_bytes} were written"
        elif content and crc_of(storage.fetch(self.path)) != self.crc:
            wrong = "is damaged (its checksum differs from that of the written file)"
        else:
            return
        raise InvalidTable(f"{storage.root}/{self.path} {wrong}; {stake}")


def crc_of(path: str) -> int:
    """Return the CRC-32 of a local file."""
    crc = 0
    piece = memoryview(bytearray(_PIECE))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(piece):
            crc = crc32(piece[:size], crc)
    return crc


class ChecksummedFile(FileToFinish):
    """A file being written, with the length and CRC-32 of the bytes so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = 0
        self.crc = 0
        self._held: bytearray | None = None

    def tell(self) -> int:
        """Return the bytes written so far, also those that are held."""
        return self.size_bytes + len(self._held or b"")

    def write(self, data: Any) -> int:  # noqa: ANN401 -- any buffer
        """Write bytes, counting them; after `hold` they are kept for `held`."""
        view = memoryview(data).cast("B")
        if self._held is not None:
            self._held += view
            return view.nbytes
        self._file.write(view)
        self.crc = crc32(view, self.crc)
        self.size_bytes += view.nbytes
        return view.nbytes

    def hold(self) -> None:
        """Keep what is written from now on: the file's end."""
        self._held = bytearray()

    def held(self) -> bytes:
        """Return what was kept since `hold`; from now on bytes are written again."""
        end = bytes(self._held or b"")
        self._held = None
        return end

    def sync(self) -> None:
        """Make what was written durable; an object is durable when it is closed."""
        self.flush()
        with suppress(io.UnsupportedOperation):
            os.fsync(self._file.fileno())

    @property
    def name(self) -> str:
        """Return the path of the local file."""
        return self._file.name

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def abandon(self) -> None:
        """Close the file after an error: an object does not come to exist."""
        if not self.closed:
            getattr(self._file, "abandon", self._file.close)()
            super().close()

    def __del__(self) -> None:
        self.abandon()

    def stored(self, path: str) -> StoredFile:
        """Return the file's description under its path."""
        return StoredFile(path, self.size_bytes, self.crc)


def encode_record(values: Mapping[str, Any]) -> bytes:
    """Return a record's bytes with their checksum; `decode_record` is the inverse."""
    text = json.dumps(values).encode()
    return b'{"crc32": "%08x", "record": %s}' % (crc32(text), text)


def decode_record(content: bytes, where: str, stake: str = LOST) -> dict[str, Any]:
    """Return the values of a record, or raise InvalidTable naming the file `where`."""
    match = _RECORD.fullmatch(content)
    if match is not None and int(match[1], 16) == crc32(match[2]):
        return dict(json.loads(match[2]))
    raise InvalidTable(f"{where} is damaged; {stake}")
