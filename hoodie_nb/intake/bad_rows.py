"""Refused rows while a write runs: turned into text, staged; `actions/quarantine` publishes them.

*Work flow*: the intake passes the rows that it refuses to a `RefusedRows`. A write in this process
holds them (`BadRows`) until its instant has a folder; a Spark task writes them at once
(`BadRowsFile`). A task's file gets its name when it is complete, and of several attempts of a task
only one file is used: so each row is stored once.

*Source:* beyond RFC-24; see `actions.quarantine` for the files.
"""

import contextlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb import failpoints
from hoodie_nb.actions.quarantine import REFUSED, STORED
from hoodie_nb.storage.checksums import ChecksummedFile, StoredFile, crc_of
from hoodie_nb.storage.storage import Storage, joined

_NO_VALUE = (ValueError, OverflowError, IndexError)  # bad UTF-8, a year after 9999, a damaged index
_NO_JSON = (ValueError, TypeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Where the refused rows of one write are staged, and which write it is.

    `run` is in the names of its files: another attempt in the same folder has other ones.
    """

    folder: str
    found_ms: int
    query_id: str | None = None
    batch_id: int | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def path(self, token: str) -> str:
        """Return the path of the file of a task attempt, `task-stage-attempt`."""
        return f"{self.folder}/bad{self.run}-{token}.parquet"

    def columns(self, rows: int) -> list[pa.Array]:
        """Return what all rows of the write have in common."""
        found = pa.scalar(self.found_ms * 1000, STORED.field("found_at").type)
        values = (pa.scalar(self.query_id, pa.string()), pa.scalar(self.batch_id, pa.int64()))
        return [pa.repeat(value, rows) for value in (*values, found)]


class RefusedRows(Protocol):
    """Takes refused rows."""

    def add(
        self, rows: pa.Table | Iterable[Mapping[Any, Any]], columns: list[str], reasons: list[str]
    ) -> None:
        """Take Arrow rows as given, or dicts, with a column and a reason for each."""
        self.write(_as_text(rows, columns, reasons))

    def write(self, rows: pa.Table) -> None:
        """Take rows as text."""


class BadRows(RefusedRows):
    """Refused rows in memory."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    def __len__(self) -> int:
        return sum(table.num_rows for table in self.tables)

    def write(self, rows: pa.Table) -> None:
        """Keep rows that are text already."""
        self.tables.append(rows)

    def saved(self, storage: Storage, quarantine: Quarantine) -> list[StoredFile]:
        """Write the rows to a durable staged file; no file if there are none."""
        file = BadRowsFile(storage, quarantine, "0-0-0")
        for table in self.tables:
            file.write(table)
        return file.close()


class BadRowsFile(RefusedRows):
    """The refused rows of a task attempt; the file is created with the first of them."""

    def __init__(self, storage: Storage, quarantine: Quarantine, token: str) -> None:
        self._storage = storage
        self._quarantine = quarantine
        self._path = quarantine.path(token)
        self._open: tuple[ChecksummedFile, pq.ParquetWriter] | None = None

    def write(self, rows: pa.Table) -> None:
        """Write rows that are text already."""
        if self._open is None:
            sink = ChecksummedFile(self._storage.open_new(f"{self._path}.part"))
            self._open = sink, pq.ParquetWriter(sink, STORED, compression="zstd")
        columns = [*rows.columns, *self._quarantine.columns(rows.num_rows)]
        self._open[1].write_table(pa.Table.from_arrays(columns, schema=STORED))

    def close(self) -> list[StoredFile]:
        """Make the file durable and give it its name; return it if there were rows."""
        if self._open is None:
            return []
        sink, writer = self._open
        writer.close()
        sink.sync()
        sink.close()
        failpoints.hit("quarantine.data.post", f"{self._storage.root}/{self._path}.part")
        self._storage.publish(f"{self._path}.part", self._path)
        return [sink.stored(self._path)]


def files_of_tasks(storage: Storage, quarantine: Quarantine) -> list[StoredFile]:
    """Return the files of all tasks of a write, of each task that of its last attempt."""
    pattern = re.compile(rf"bad{quarantine.run}-(\d+)-\d+-(\d+)\.parquet")
    newest: dict[int, tuple[int, str]] = {}
    for name in storage.file_names(quarantine.folder):
        match = pattern.fullmatch(name)
        if match is not None:
            task = int(match[1])
            newest[task] = max(newest.get(task, (-1, "")), (int(match[2]), name))
    paths = [joined(quarantine.folder, name) for _, (_, name) in sorted(newest.items())]
    found = [(path, storage.entry(path), crc_of(storage.fetch(path))) for path in paths]
    return [StoredFile(path, entry.size_bytes, crc) for path, entry, crc in found if entry]


# --- rows as text ---------------------------------------------------------------------------------


def _as_text(
    rows: pa.Table | Iterable[Mapping[Any, Any]], columns: Sequence[str], reasons: Sequence[str]
) -> pa.Table:
    records = _records(rows) if isinstance(rows, pa.Table) else rows
    texts = [_utf8(map(_text, records)), _utf8(columns), _utf8(reasons)]
    return pa.table(texts, schema=pa.schema(REFUSED))


def _utf8(texts: Iterable[str]) -> pa.Array:
    """Return texts of which pandas may have had halves of a character, in JSON's notation."""
    whole = (text.encode("utf-8", "backslashreplace").decode() for text in texts)
    return pa.array(whole, pa.string())


def _records(rows: pa.Table) -> list[dict[str, Any]]:
    try:
        return list(rows.to_pylist())
    except _NO_VALUE:
        each = (rows.slice(number, 1) for number in range(rows.num_rows))
        return [dict(zip(row.column_names, map(_cell, row.columns), strict=True)) for row in each]


def _cell(column: pa.ChunkedArray) -> Any:  # noqa: ANN401 -- a value of any type
    """Return the value in a column of one row; Arrow's text if Python has no such value."""
    with contextlib.suppress(*_NO_VALUE):
        return column.to_pylist()[0]
    with contextlib.suppress(pa.ArrowException):  # text that is not UTF-8
        return column.cast(pa.binary()).to_pylist()[0]
    return column.to_string(indent=0, skip_new_lines=True)


def _text(record: Mapping[Any, Any]) -> str:
    """Return a row as a JSON object; values that JSON does not have are text."""
    with contextlib.suppress(*_NO_JSON):
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    shown = {str(name): _shown(value) for name, value in record.items()}
    return json.dumps(shown, ensure_ascii=False)


def _shown(value: Any) -> Any:  # noqa: ANN401
    with contextlib.suppress(*_NO_JSON):
        json.dumps(value, allow_nan=False)
        return value
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__} without a text"
