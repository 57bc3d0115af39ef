"""Writing a log file: what is in its blocks, and the bytes of each.

A log has the rows and deletes that one instant adds to one slice: first a block of rows, then one
of deletes, each only if there are any. It is never appended to. Rows are Parquet, of the codec and
encodings of base files: as Avro, which Hudi writes, they take twenty times the time.

A delete has the ordering value of its column's type, or none: then it wins over every older row.

*Source:* HoodieLogFormatWriter, HoodieParquetDataBlock, HoodieDeleteBlock, DeleteRecord.
"""

import io
import json
import struct

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb.files.calendars import VERSION, WRITTEN_AS
from hoodie_nb.files.column_storage import ENCODING, repetitive_columns
from hoodie_nb.files.dictionaries import unified
from hoodie_nb.logs.records import DELETES
from hoodie_nb.rows.columns import DELETE, OP
from hoodie_nb.storage.checksums import ChecksummedFile
from hoodie_nb.types.avro_schema import to_avro
from hoodie_nb.types.log_blocks import (
    CONTENT_VERSION,
    BlockType,
    Header,
    block_parts,
    read_blocks,
)
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

ORDERINGS = (pa.int32(), pa.int64())  # of which a delete can say a value as Java reads it
_BLOCK_BYTES = 256 << 20  # hoodie.logfile.data.block.max.size
_PAIR = struct.Struct(">ii")
_MODEL = "org.apache.hudi.avro.model."
_WRAPPERS = {pa.int32(): "IntWrapper", pa.int64(): "LongWrapper"}
_ALWAYS = (f"{_MODEL}IntWrapper", {"value": 0})  # wins; Java fails where it compares null


class LogWriter:
    """Writes one log file of an instant; `schema` are the table's own columns."""

    def __init__(
        self, sink: ChecksummedFile, schema: pa.Schema, *, table: str, instant_time: str, codec: str
    ) -> None:
        avro = json.dumps(to_avro(schema, table, meta=True), separators=(",", ":"))
        self._header = {Header.INSTANT_TIME: instant_time, Header.SCHEMA: avro}
        self._sink = sink
        self._codec = codec

    def write_rows(self, rows: pa.Table) -> None:
        """Add a block of rows, which have their meta columns; several blocks if they are large."""
        parts = -(-rows.nbytes // _BLOCK_BYTES) or 1
        step = -(-rows.num_rows // parts)
        for start in range(0, rows.num_rows, step):
            self._write_block(unified(rows.slice(start, step)))

    def _write_block(self, rows: pa.Table) -> None:
        content = pa.BufferOutputStream()
        with pq.ParquetWriter(
            content,
            rows.schema,
            store_schema=False,
            use_dictionary=repetitive_columns(rows),
            compression=self._codec,
            write_statistics=False,
            **ENCODING,
        ) as writer:
            writer.write_table(rows)
            avro = self._header[Header.SCHEMA]
            writer.add_key_value_metadata({"parquet.avro.schema": avro, VERSION: WRITTEN_AS})
        self._write(BlockType.PARQUET_DATA, content.getvalue())

    def write_deletes(self, deletes: pa.Table, ordering: str | None) -> None:
        """Add a block of deletes, keyed rows that are ordered by that column."""
        keys = deletes.column(RECORD_KEY).to_pylist()
        paths = deletes.column(PARTITION_PATH).to_pylist()
        values = [_ALWAYS] * len(keys) if ordering is None else _wrapped(deletes, ordering)
        records = [
            {"recordKey": key, "partitionPath": path, "orderingVal": value}
            for key, path, value in zip(keys, paths, values, strict=True)
        ]
        datum = io.BytesIO()
        fastavro.schemaless_writer(datum, DELETES, {"deleteRecordList": records})
        content = datum.getvalue()
        self._write(BlockType.DELETE, _PAIR.pack(CONTENT_VERSION, len(content)) + content)

    def _write(self, kind: BlockType, content: bytes | pa.Buffer) -> None:
        for part in block_parts(kind, self._header, content):
            self._sink.write(part)


def _wrapped(deletes: pa.Table, ordering: str) -> list[tuple[str, dict[str, int]]]:
    """Return the ordering values of deletes as Avro has them."""
    column = deletes.column(ordering)
    name = f"{_MODEL}{_WRAPPERS[column.type]}"
    compared = (deletes.column(OP).to_numpy() == DELETE).tolist()
    values = zip(column.to_pylist(), compared, strict=True)
    return [(name, {"value": value}) if told else _ALWAYS for value, told in values]


def rows_in_log(path: str, local: str) -> list[pa.Table]:
    """Return the rows of a log that this library wrote (`local` on disk), by block."""
    blocks = (b for b in read_blocks(path, local) if b.kind is BlockType.PARQUET_DATA)
    return [pq.read_table(pa.BufferReader(b.content()), use_threads=False) for b in blocks]
