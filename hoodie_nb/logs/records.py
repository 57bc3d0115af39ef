"""Reading the blocks of a log (Avro, Parquet, deletes) as Arrow tables; which are refused.

*On disk*, the content of a block by its type:

| type | content |
| --- | --- |
| `AVRO_DATA` | Avro records (see `types.log_blocks`) |
| `PARQUET_DATA` | a Parquet file |
| `DELETE` | 3, a length, and the Avro datum of a `HoodieDeleteRecordList` |

These numbers have 4 bytes; the schema of the rows is in the header.

*Semantics*: each row has an operation. `STORE` is a row. `DELETE` is a delete with an ordering
value: it counts as a row with that value. `DELETE_ALWAYS` has none, or one whose type is not that
of the ordering column, or the integer 0, which Java writes for none: no older row survives it.

A row is a delete, too, if `_hoodie_is_deleted` is true, or if its `_hoodie_operation` says so.

**Caveats**: HFile blocks, deletes of versions 1 and 2 (serialized Java objects), and rows with some
of the columns only are refused. Positions of rows are ignored: deletes and rows are found by key.

So a delete that was written before an ordering column of ints became one of longs always wins, as
in Java among logs (against a stored row Java fails); hudi-rs compares the numbers.

*Source:* HoodieAvroDataBlock, HoodieParquetDataBlock, HoodieDeleteBlock, DeleteContext,
OrderingValues.
"""

import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb.errors import InvalidTable
from hoodie_nb.files.calendars import HybridCalendar
from hoodie_nb.rows.columns import DELETE, DELETE_ALWAYS, OP, STORE
from hoodie_nb.types.avro_file import load_schema
from hoodie_nb.types.avro_schema import parse_avro
from hoodie_nb.types.log_blocks import (
    CONTENT_VERSION,
    BlockType,
    Header,
    LogBlock,
    UnknownBlock,
    check_version,
    decode_records,
)
from hoodie_nb.types.schema import IS_DELETED, META_FIELDS, RECORD_KEY, conform

OPERATION = "_hoodie_operation"
DELETES = load_schema("HoodieDeleteRecordList")
_DELETE_OPERATIONS = pa.array(["D", "-U"])
_FLAGS = {IS_DELETED: pa.bool_(), OPERATION: pa.string()}
_PAIR = struct.Struct(">ii")
_WRAPPERS = (  # which wrappers hold the ordering values of a type
    (pa.types.is_boolean, ("BooleanWrapper",)),
    (pa.types.is_int32, ("IntWrapper",)),
    (pa.types.is_int64, ("LongWrapper",)),
    (pa.types.is_float32, ("FloatWrapper",)),
    (pa.types.is_float64, ("DoubleWrapper",)),
    (pa.types.is_binary, ("BytesWrapper",)),
    (pa.types.is_string, ("StringWrapper",)),
    (pa.types.is_date32, ("DateWrapper", "LocalDateWrapper", "IntWrapper")),
    (pa.types.is_timestamp, ("LongWrapper", "TimestampMicrosWrapper")),
    (pa.types.is_decimal, ("DecimalWrapper",)),
)


def log_rows(block: LogBlock, schema: pa.Schema, ordering: pa.Field | None) -> pa.Table:
    """Return the rows of a data or delete block: the columns of `schema`, and `OP`.

    `schema` has the record key and the ordering column. Raises InvalidTable naming the file if the
    block is damaged or of a kind that is not read.
    """
    _refuse(block)
    try:
        if block.kind is BlockType.DELETE:
            return conform(_deletes(block, ordering), with_op(schema), f"log file {block.path}")
        flags = [pa.field(*flag) for flag in _FLAGS.items() if flag[0] not in schema.names]
        wanted = pa.schema([*schema, *flags])
        pieces = [_marked(rows, wanted, ordering, block) for rows in _data(block, wanted)]
    except (
        *(ValueError, EOFError, LookupError, struct.error, TypeError, OverflowError),
        *(pa.ArrowException, OSError),
    ) as error:
        raise InvalidTable(
            f"log file {block.path} cannot be read: its block at byte {block.begin} is damaged "
            f"({error!r:.120}): restore the file from a backup, or undo commit "
            f"{block.instant_time} and later ones (Table.restore, or the table's own engine)"
        ) from None
    empty = with_op(schema).empty_table()
    return pa.concat_tables([empty, *(piece.select(empty.column_names) for piece in pieces)])


def is_default(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return which ordering values count as none, as in Java: null, and 0 of 32 bits."""
    missing = pc.is_null(values)
    if pa.types.is_int32(values.type) or pa.types.is_date32(values.type):
        zero = pc.equal(values.cast(pa.int32()), 0)
        return pc.or_(missing, pc.fill_null(zero, False))
    return missing


def with_op(schema: pa.Schema) -> pa.Schema:
    """Return the columns of the entries of a log: those of a schema, and the operation."""
    return schema.append(pa.field(OP, pa.int8()))


def _refuse(block: LogBlock) -> None:
    reason = None
    if block.kind is BlockType.HFILE_DATA:
        reason = "rows in an HFile block"
    elif block.kind is BlockType.CDC_DATA:
        reason = "a CDC block among its rows"
    elif block.header.get(Header.IS_PARTIAL, "").lower() == "true":
        reason = "a block with some of the columns only (partial updates)"
    if reason is not None:
        raise UnknownBlock(
            f"log file {block.path} has {reason}, which this library does not read: compact the "
            "table with the engine that wrote it, or read it there"
        )


def _data(block: LogBlock, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a data block in their stored types, with those of the columns it has."""
    if block.kind is BlockType.PARQUET_DATA:
        file = pq.ParquetFile(pa.BufferReader(block.content()))
        names = [name for name in schema.names if name in file.schema_arrow.names]
        hybrid = HybridCalendar.of(file, block.path)
        for number in range(file.num_row_groups):
            for batch in file.read_row_group(number, names, use_threads=False).to_batches():
                rows = hybrid.gregorian(batch) if hybrid else batch
                yield pa.Table.from_batches([rows])
    else:
        yield _avro_rows(block, schema)


def _avro_rows(block: LogBlock, schema: pa.Schema) -> pa.Table:
    text = block.header.get(Header.SCHEMA, "")
    stored = pa.schema([*META_FIELDS, *parse_avro(text, f"log file {block.path}")])
    parsed = fastavro.parse_schema(_plain(json.loads(text)))
    columns: dict[str, list[Any]] = {n: [] for n in schema.names if n in stored.names}
    for row in decode_records(block.content(), parsed):
        for name, values in columns.items():
            values.append(row.get(name))
    arrays = [pa.array(values, stored.field(name).type) for name, values in columns.items()]
    return pa.table(arrays, names=list(columns))


def _plain(avro: Any) -> Any:  # noqa: ANN401 -- Avro is JSON
    """Return an Avro schema whose dates and times are numbers, as Arrow takes them."""
    if isinstance(avro, list):
        return [_plain(part) for part in avro]
    if not isinstance(avro, dict):
        return avro
    number = avro.get("type") in ("int", "long")
    return {k: _plain(v) for k, v in avro.items() if not (number and k == "logicalType")}


def _marked(
    rows: pa.Table, schema: pa.Schema, ordering: pa.Field | None, block: LogBlock
) -> pa.Table:
    """Return rows with the columns of `schema` and their operation."""
    flags = {*_FLAGS} & {*rows.column_names}
    rows = conform(rows, schema, f"log file {block.path}")
    if rows.column(RECORD_KEY).null_count:
        raise ValueError("a row has no record key")
    if not flags:
        return _operated(rows, np.full(rows.num_rows, STORE))
    flagged = pc.fill_null(rows.column(IS_DELETED), False)
    told = pc.is_in(rows.column(OPERATION), _DELETE_OPERATIONS)
    return _with_operation(rows, pc.or_(flagged, told).combine_chunks(), ordering)


def _with_operation(rows: pa.Table, deleted: pa.Array, ordering: pa.Field | None) -> pa.Table:
    always = deleted
    if ordering is not None:
        always = pc.and_(deleted, is_default(rows.column(ordering.name).combine_chunks()))
    found = np.where(deleted.to_numpy(zero_copy_only=False), DELETE, STORE)
    found = np.where(always.to_numpy(zero_copy_only=False), DELETE_ALWAYS, found)
    return _operated(rows, found)


def _operated(rows: pa.Table, operations: npt.NDArray[np.int_]) -> pa.Table:
    return rows.append_column(pa.field(OP, pa.int8()), pa.array(operations, pa.int8()))


def _deletes(block: LogBlock, ordering: pa.Field | None) -> pa.Table:
    content = block.content()
    version, length = _PAIR.unpack_from(content)
    if version < CONTENT_VERSION:
        raise UnknownBlock(
            f"log file {block.path} has deletes in the old format {version}, as serialized Java "
            "objects, which this library does not read: compact the table with Java Hudi"
        )
    check_version(version)
    stream = io.BytesIO(content[_PAIR.size : _PAIR.size + length])
    read: Any = fastavro.schemaless_reader(stream, DELETES, None, return_record_name=True)
    found: list[Any] = read["deleteRecordList"]
    keys = pa.array([delete["recordKey"] for delete in found], pa.string())
    if keys.null_count:
        raise ValueError("a delete has no record key")
    rows = pa.table({RECORD_KEY: keys})
    if ordering is not None:
        values = [_ordering_value(delete["orderingVal"], ordering.type) for delete in found]
        rows = rows.append_column(ordering, _ordering_array(values, ordering.type))
    return _with_operation(rows, pa.array(np.ones(len(found), bool)), ordering)


def _ordering_value(wrapped: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 -- any Avro value
    """Return the value in a wrapper; None if there is none, or it is of another type."""
    if wrapped is None:
        return None
    name, record = wrapped
    wrappers = next((names for is_kind, names in _WRAPPERS if is_kind(kind)), ())
    return record["value"] if name.rpartition(".")[2] in wrappers else None


def _ordering_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return ordering values in the column's type."""
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.decimal128(38, 15)).cast(kind)
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return pa.array(values, pa.timestamp("us", kind.tz)).cast(kind)
    return pa.array(values, kind)
