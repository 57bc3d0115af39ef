"""A small writer of log files, and a merge-on-read table that this library's base files are in."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from tables import timeline_folder

from hoodie_nb import Table
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.folding import LogMerge
from hoodie_nb.logs.log_name import LogFile, LogFileName
from hoodie_nb.reading.filters import RowFilter
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.types.avro_file import encode, load_schema
from hoodie_nb.types.avro_schema import to_avro
from hoodie_nb.types.log_blocks import BlockType, Header
from hoodie_nb.types.schema import META_COLUMNS
from hoodie_nb.view.file_groups import BaseFileName, FileSlice

DELETES = load_schema("HoodieDeleteRecordList")
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
WRAPPER = {
    pa.int32(): "IntWrapper",
    pa.int64(): "LongWrapper",
    pa.float64(): "DoubleWrapper",
    pa.string(): "StringWrapper",
}
T0 = "20300101000000000"


def block(kind: BlockType, header: Mapping[Header, str], content: bytes = b"") -> bytes:
    """Return a block of a log file."""
    pairs = [(int(key), text.encode()) for key, text in header.items()]
    head = struct.pack(">i", len(pairs))
    head += b"".join(struct.pack(">ii", key, len(text)) + text for key, text in pairs)
    inside = struct.pack(">ii", 1, kind) + head + struct.pack(">q", len(content)) + content
    inside += struct.pack(">i", 0)
    length = len(inside) + 8
    return b"#HUDI#" + struct.pack(">q", length) + inside + struct.pack(">q", length + 6)


def avro_block(time17: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """Return a block of rows as Avro."""
    avro = to_avro(schema, "t", meta=True)
    parsed = fastavro.parse_schema(avro)
    content = struct.pack(">ii", 3, len(rows))
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, dict(row))
        content += struct.pack(">i", len(out.getvalue())) + out.getvalue()
    header = {Header.INSTANT_TIME: time17, Header.SCHEMA: json.dumps(avro)}
    return block(BlockType.AVRO_DATA, header, content)


def parquet_block(time17: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """Return a block of rows as Parquet."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), stored_schema(schema)), out)
    avro = json.dumps(to_avro(schema, "t", meta=True))
    header = {Header.INSTANT_TIME: time17, Header.SCHEMA: avro}
    return block(BlockType.PARQUET_DATA, header, out.getvalue())


def delete_block(
    time17: str, keys: Iterable[tuple[str, Any]], wrapper: str, version: int = 3
) -> bytes:
    """Return a block of deletes: keys and ordering values; None: without."""
    records = []
    for key, value in keys:
        wrapped = {"value": value, "-type": f"org.apache.hudi.avro.model.{wrapper}"}
        records.append(
            {
                "recordKey": key,
                "partitionPath": "",
                "orderingVal": wrapped if value is not None else None,
            }
        )
    out = io.BytesIO()
    fastavro.schemaless_writer(out, DELETES, {"deleteRecordList": records})
    content = struct.pack(">ii", version, len(out.getvalue())) + out.getvalue()
    avro = json.dumps(to_avro(SCHEMA, "t", meta=True))
    header = {Header.INSTANT_TIME: time17, Header.SCHEMA: avro}
    return block(BlockType.DELETE, header, content)


def rollback_block(time17: str, target: str) -> bytes:
    """Return the command that removes the earlier blocks of an instant."""
    header = {
        Header.INSTANT_TIME: time17,
        Header.TARGET_INSTANT_TIME: target,
        Header.COMMAND_BLOCK_TYPE: "0",
    }
    return block(BlockType.COMMAND, header)


class LoggedSlice:
    """A merge-on-read table of one slice: its base file, and the logs that a test adds."""

    def __init__(
        self,
        root: Path,
        rows: Sequence[Mapping[str, Any]],
        version: int = 9,
        ordering: str | None = "ts",
        schema: pa.Schema = SCHEMA,
    ) -> None:
        self.root, self.version, self.schema = root, version, schema
        self.field = None if ordering is None else schema.field(ordering)
        made = Table.create(
            root,
            schema=schema,
            record_key="id",
            ordering=ordering,
            table_version=version,
        )
        made.insert(pa.Table.from_pylist(list(rows), schema))
        properties = root / ".hoodie" / "hoodie.properties"
        text = properties.read_text()
        assert "COPY_ON_WRITE" in text
        properties.write_text(text.replace("COPY_ON_WRITE", "MERGE_ON_READ"))
        (self.base,) = root.glob("*.parquet")
        name = BaseFileName.parse(self.base.name)
        assert name is not None
        self.name = name
        self.logs: list[LogFile] = []
        self.counted = {name.instant_time}

    def row(self, time17: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row with meta columns, as a log has it."""
        meta = (time17, f"{time17}_0_0", values["id"], "", self.name.file_id)
        return {**dict(zip(META_COLUMNS, meta, strict=True)), **values}

    def log(self, time17: str, content: bytes, size_bytes: int | None = None) -> Path:
        """Add a log file of an instant."""
        if self.version == 6:
            at, number = self.name.instant_time, len(self.logs) + 1
        else:
            at, number = time17, 1
        name = LogFileName(self.name.file_id, at, number, "0-0-0")
        (self.root / str(name)).write_bytes(content)
        self.logs.append(LogFile(str(name), name, size_bytes or len(content)))
        return self.root / str(name)

    def commit(self, time17: str) -> None:
        """Complete a deltacommit of an instant."""
        self.counted.add(time17)
        folder = timeline_folder(self.root)
        content = {
            "partitionToWriteStats": {},
            "extraMetadata": {"schema": json.dumps(to_avro(self.schema, "t"))},
            "operationType": "UPSERT",
        }
        (folder / f"{time17}.deltacommit.requested").touch()
        (folder / f"{time17}.deltacommit.inflight").touch()
        if self.version == 6:
            content |= {"compacted": False}
            (folder / f"{time17}.deltacommit").write_text(json.dumps(content))
        else:
            done = encode(load_schema("HoodieCommitMetadata"), content)
            (folder / f"{time17}_{int(time17) + 1}.deltacommit").write_bytes(done)

    def slice(self) -> FileSlice:
        """Return the slice with the logs added so far."""
        size = self.base.stat().st_size
        name = self.name
        logs = tuple(self.logs)
        return FileSlice("", name.file_id, name.instant_time, str(name), size, logs=logs)

    def read(
        self, kept: RowFilter | None = None, schema: pa.Schema | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of the slice, in order; with the table's own columns, unless given."""
        counts: Callable[[str], bool] | None = None
        if self.version == 6:
            counts = self.counted.__contains__
        merge = LogMerge(self.field, self.version, counts)
        storage = LocalStorage(str(self.root))
        found = slice_rows(storage, self.slice(), schema or self.schema, kept, merge)
        return [row for rows in found for row in rows.to_pylist()]


def times(count: int) -> list[str]:
    """Return the times of some instants, later than any other."""
    return [str(int(T0) + 10 * number) for number in range(count)]
