"""Cache of base files that this process wrote, so that the next micro-batch need not read them.

Micro-batches rewrite the same files again and again: the driver then reads the rows that it has
just written. It keeps them, up to a limit. Files that the last two instants have not written make
room for new ones, others do not: a stream that rewrites more than fits in turn would drop each file
right before it is merged.

Checkpoints that join one instant write the same path, and not each of them succeeds: a kept file is
used only if the file on disk has its checksum.

A file is taken out when it is merged. If that write fails, the next one reads the file itself.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from hoodie_nb.buckets.merge import Merge
from hoodie_nb.files.base_file import (
    ROW_GROUP,
    Inherited,
    iterate_rows,
    open_base_file,
    read_footer,
)
from hoodie_nb.files.dictionaries import unified
from hoodie_nb.rows.taking import parts_of
from hoodie_nb.storage.checksums import crc_of
from hoodie_nb.storage.storage import Storage
from hoodie_nb.view.file_groups import BaseFileName, FileSlice


@dataclass(frozen=True, slots=True)
class KeptFile:
    """The rows of a base file as they were written, their keys' index, and the file's CRC-32."""

    rows: pa.Table
    keys: Inherited
    crc: int
    instant_time: str


class KeptFiles:
    """Base files that one process has written, by their final path; `limit_bytes` 0 keeps none."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self._files: dict[str, KeptFile] = {}
        # in bytes
        self._lock = threading.Lock()
        self.size = 0
        self._instants = ("", "")  # the last two that wrote files

    def put(self, path: str, pieces: Sequence[pa.Table], keys: Inherited, crc: int) -> None:
        """Keep a file that was written in these pieces, if there is room for it."""
        size = sum(piece.nbytes for piece in pieces)
        with self._lock:
            instant_time = self._make_room(path, size)
            if self.size + size > self.limit_bytes:
                return
            self.size += size  # while it is copied
        try:
            rows = _own(unified(pa.concat_tables(pieces)).combine_chunks())
        except BaseException:
            with self._lock:
                self.size -= size
            raise
        with self._lock:
            self.size += rows.nbytes - size
            self._files[path] = KeptFile(rows, keys, crc, instant_time)

    def clear(self) -> None:
        """Drop all files: the job has ended."""
        with self._lock:
            for path in [*self._files]:
                self._drop(path)

    def _make_room(self, path: str, size: int) -> str:
        """Drop files for a new one, if there are any that may go; return the new one's instant."""
        name = BaseFileName.parse(PurePosixPath(path).name)
        instant_time = name.instant_time if name else ""
        if instant_time not in self._instants:
            self._instants = (self._instants[-1], instant_time)
        if path in self._files:
            self._drop(path)
        for old in [p for p, f in self._files.items() if f.instant_time not in self._instants]:
            if self.size + size > self.limit_bytes:
                self._drop(old)
        return instant_time

    def previous(
        self, storage: Storage, old: FileSlice | None, merge: Merge
    ) -> tuple[int, Inherited | None, Iterator[pa.Table]]:
        """Return the number of rows of the slice to merge with, the index of its keys and its rows.

        The file is taken out if it is kept; it is read if it is not, or has other columns or bytes.
        """
        if old is None:
            return 0, None, iter(())
        with self._lock:
            kept = self._drop(old.path) if old.path in self._files else None
        path = storage.fetch(old.path, old.size_bytes)
        if kept is not None and kept.rows.schema.equals(merge.stored) and kept.crc == crc_of(path):
            return kept.rows.num_rows, kept.keys, parts_of(kept.rows, ROW_GROUP)
        source = open_base_file(path, merge.dictionaries)
        footer = read_footer(source)
        keys = Inherited(footer.bloom(), footer.range())
        return footer.rows, keys, iterate_rows(source, merge.stored, path)

    def _drop(self, path: str) -> KeptFile:
        found = self._files.pop(path)
        self.size -= found.rows.nbytes
        return found


def _own(rows: pa.Table) -> pa.Table:
    """Return rows that keep no more in memory than themselves: a slice keeps its whole batch."""
    if rows.get_total_buffer_size() <= rows.nbytes * 5 // 4:
        return rows
    return rows.take(pa.array(np.arange(rows.num_rows)))
