"""Base files that this process has just written, kept in memory for the next micro-batch.

Small micro-batches rewrite the same files again and again: the driver then reads the rows that it
has just written. It keeps them, up to a limit, the newest first.

Checkpoints that join one instant write the same path, and not each of them succeeds: a kept file is
used only if the file on disk has its checksum.

A file is taken out when it is merged. If that write fails, the next one reads the file itself.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from hoodie_nb.table.base_file import (
    ROW_GROUP,
    Inherited,
    iterate_rows,
    open_base_file,
    read_footer,
)
from hoodie_nb.table.checksums import crc_of
from hoodie_nb.table.dictionaries import unified
from hoodie_nb.table.file_groups import FileSlice
from hoodie_nb.table.storage import Storage
from hoodie_nb.writer.merge import Merge
from hoodie_nb.writer.taking import parts_of


@dataclass(frozen=True, slots=True)
class KeptFile:
    """The rows of a base file as they were written, their keys' index, and the file's CRC-32."""

    rows: pa.Table
    keys: Inherited
    crc: int


class KeptFiles:
    """The newest base files of one process by their final path; `limit_bytes` 0 keeps none."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self._files: dict[str, KeptFile] = {}
        self._lock, self._bytes = threading.Lock(), 0

    def put(self, path: str, pieces: Sequence[pa.Table], keys: Inherited, crc: int) -> None:
        """Keep a file that was written in these pieces; the oldest ones make room for it."""
        rows = unified(pa.concat_tables(pieces)).combine_chunks()
        with self._lock:
            if path in self._files:
                self._drop(path)
            self._files[path] = KeptFile(rows, keys, crc)
            self._bytes += rows.nbytes
            while self._bytes > self.limit_bytes:
                self._drop(next(iter(self._files)))

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
        self._bytes -= found.rows.nbytes
        return found
