"""Base files: Parquet with Hudi's five meta columns and an index in the footer.

*On disk*, in the Parquet footer's key-value metadata:

| key | value |
| --- | --- |
| `org.apache.hudi.bloomfilter` | base64 of the bloom filter over the record keys |
| `hoodie_bloom_filter_type_code` | `SIMPLE` or `DYNAMIC_V0` |
| `hoodie_min_record_key`, `hoodie_max_record_key` | key range (see `key_range`); may be absent |
| `parquet.avro.schema`, `writer.model.name` | as in files of Hudi's own writer |
| `hoodie_nb_file_name` | the file's name, in files of this library (see `footer`) |

Rows arrive in pieces and are written in row groups of `ROW_GROUP` rows, so a file has few row
groups however often it is rewritten. The bloom filter is sized for the expected rows, rounded up to
a power of two: a file that grows keeps its filter while there is room, and only new keys are
hashed.

*Source:* HoodieAvroParquetWriter, HoodieBloomFilterWriteSupport.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.avro_schema import to_avro
from hoodie_nb.table.bloom import BloomFilter
from hoodie_nb.table.footer import NAME, FooterSink, open_verified
from hoodie_nb.table.key_range import KeyRange
from hoodie_nb.table.schema import (
    COMMIT_TIME,
    FILE_NAME,
    META_FIELDS,
    PARTITION_PATH,
    RECORD_KEY,
    as_type,
)
from hoodie_nb.table.storage import permitted

BLOOM, BLOOM_TYPE = "org.apache.hudi.bloomfilter", "hoodie_bloom_filter_type_code"
MIN_KEY, MAX_KEY = "hoodie_min_record_key", "hoodie_max_record_key"
ROW_GROUP = 131_072
_SMALLEST_BLOOM = 1024


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer index of a base file: key range (None: unknown) and bloom text."""

    min_key: str | None
    max_key: str | None
    bloom_text: str | None
    bloom_type: str
    rows: int

    def bloom(self) -> BloomFilter | None:
        """Return the parsed filter, None if the file has none."""
        return BloomFilter.parse(self.bloom_text, self.bloom_type) if self.bloom_text else None


def open_base_file(path: str) -> pq.ParquetFile:
    """Open a base file, or raise InvalidTable naming it; its pages are verified when read."""
    with read_errors(path), permitted(path):
        return open_verified(path)


@contextlib.contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Turn Arrow's errors about a base file's content into InvalidTable, naming the file."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeDecodeError) as error:
        raise InvalidTable(
            f"base file {path} cannot be read ({str(error)[:120]}): `fsck` says which instant "
            "wrote it; restore it from a backup or roll back to the previous instant"
        ) from None


def read_footer(file: pq.ParquetFile) -> Footer:
    """Return the index in an open base file's footer."""
    raw: Mapping[bytes, bytes] = file.metadata.metadata or {}
    found = {key.decode(): value.decode() for key, value in raw.items()}
    return Footer(
        found.get(MIN_KEY),
        found.get(MAX_KEY),
        found.get(BLOOM) or found.get("com.uber.hoodie.bloomfilter"),
        found.get(BLOOM_TYPE, "SIMPLE"),
        file.metadata.num_rows,
    )


def index_objection(footer: Footer, keys: pa.Array) -> str | None:
    """Return what is wrong with the index of a file with these `keys`; None if it finds all.

    A file without rows needs no index; one without range or bloom is read for every key.
    """
    try:
        bloom = footer.bloom()
    except InvalidTable as error:
        return str(error)
    if bloom is not None and len(keys) and not bloom.might_contain(keys).all():
        return "its bloom filter misses keys"
    held, low, high = KeyRange.of(keys), footer.min_key, footer.max_key
    if held and low is not None and high is not None and not held.within(low, high):
        return "its key range excludes some of its keys"
    return None


def read_keys(path: str) -> pa.Array:
    """Return the record keys of a base file in file order."""
    with read_errors(path):
        column = open_base_file(path).read([RECORD_KEY], use_threads=False).column(0)
        return pc.cast(column, pa.string()).combine_chunks()


def verify_pages(path: str) -> None:
    """Read a whole base file, or raise InvalidTable naming it."""
    with read_errors(path):
        for _ in open_base_file(path).iter_batches(ROW_GROUP, use_threads=False):
            pass


def partition_path_in(path: str) -> str | None:
    """Return the partition path in the first row of a base file; None without rows."""
    file = open_base_file(path)
    if PARTITION_PATH in file.schema_arrow.names:
        with read_errors(path):
            for batch in file.iter_batches(1, columns=[PARTITION_PATH]):
                return str(batch.column(0)[0].as_py())
    return None


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the table's schema as stored in base files: meta columns first, all nullable."""
    return pa.schema([*META_FIELDS, *(pa.field(f.name, f.type) for f in schema)])


def conform(rows: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Return stored rows with exactly the columns of `schema`: cast, missing ones null.

    Raises InvalidTable naming file and column if values do not fit.
    """
    columns = [
        _fitting(rows.column(f.name), f, where)
        if f.name in rows.column_names
        else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _fitting(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    try:
        return column if column.type == field.type else as_type(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidTable(
            f"{where} has column {field.name!r} as {column.type}, which does not fit "
            f"the table's current type, {field.type} ({str(error)[:120]}): restore the table to "
            "before that change, or rewrite the file with the engine that changed it"
        ) from None


def iterate_rows(file: pq.ParquetFile, schema: pa.Schema, path: str) -> Iterator[pa.Table]:
    """Yield the rows of the base file at `path` in pieces of `ROW_GROUP` rows, as in `schema`."""
    names = [name for name in schema.names if name in file.schema_arrow.names]
    with read_errors(path):
        for batch in file.iter_batches(ROW_GROUP, columns=names, use_threads=False):
            yield conform(pa.Table.from_batches([batch]), schema, f"base file {path}")


class BaseFileWriter:
    """Writes one base file from pieces of rows that already have their meta columns.

    `expected_rows` is an upper bound that sizes the bloom filter; without it the keys are kept and
    the filter is built at the end. `inherited` is the previous slice's filter, reused if it has
    room; then only `new_keys` are hashed. `name` is the file's final one; it may have no row.
    """

    def __init__(
        self,
        sink: Any,  # noqa: ANN401 -- any sink of pyarrow
        schema: pa.Schema,
        *,
        name: str,
        table: str,
        codec: str,
        bloom_fpp: float,
        expected_rows: int | None = None,
        inherited: BloomFilter | None = None,
    ) -> None:
        self._schema = stored_schema(schema)
        self._avro = json.dumps(to_avro(schema, table, meta=True), separators=(",", ":"))
        self._sink, self._codec, self._name = FooterSink(sink), codec, name
        self._fpp, self._late_keys = bloom_fpp, expected_rows is None
        self._keys: list[pa.ChunkedArray] = []
        bloom = _sized(expected_rows or 0, bloom_fpp)
        self.keeps_bloom = inherited is not None and _still_fits(inherited, bloom)
        self._bloom = inherited if inherited is not None and self.keeps_bloom else bloom
        self._range: KeyRange | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def write(self, rows: pa.Table, new_keys: pa.Array | None = None) -> None:
        """Add rows; `new_keys` are those that may not be in the inherited bloom (None: all)."""
        if rows.num_rows == 0:
            return
        keys = rows.column(RECORD_KEY)
        fresh = keys if new_keys is None or not self.keeps_bloom else new_keys
        if self._late_keys:
            self._keys.append(keys)
        elif len(fresh):
            self._bloom.add(fresh)
        found = KeyRange.of(keys)
        self._range = found if self._range is None or found is None else self._range | found
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP:
            self.write_group()

    def write_group(self) -> None:
        """Write the pending rows as a row group."""
        rows = pa.concat_tables(self._waiting) if self._waiting else self._schema.empty_table()
        self._waiting, self._waiting_rows = [], 0
        self._open(rows).write_table(rows, row_group_size=2 * ROW_GROUP)

    def _open(self, rows: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                store_schema=False,
                coerce_timestamps="us",
                version="1.0",
                compression=self._codec,
                write_page_checksum=True,
                use_dictionary=_repetitive(rows),
            )
        return self._writer

    def close(self) -> None:
        """Write the pending rows and the footer; the sink stays open."""
        if self._waiting or self._writer is None:
            self.write_group()
        assert self._writer is not None
        if self._late_keys:
            self._bloom = _sized(self.rows, self._fpp)
            for keys in self._keys:
                self._bloom.add(keys)
        entries = {
            BLOOM: self._bloom.to_text(),
            BLOOM_TYPE: self._bloom.type_code,
            "parquet.avro.schema": self._avro,
            "writer.model.name": "avro",
            NAME: self._name,
        }
        ends = self._range.in_both_orders if self._range is not None else None
        if ends is not None:
            entries[MIN_KEY], entries[MAX_KEY] = ends
        self._writer.add_key_value_metadata(entries)
        self._sink.hold()
        self._writer.close()
        self._sink.seal()

    def abandon(self) -> None:
        """Abandon an unfinished file, before its sink is closed."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


def _sized(rows: int, fpp: float) -> BloomFilter:
    entries = max(_SMALLEST_BLOOM, 1 << (max(rows, 1) - 1).bit_length())
    return BloomFilter.sized(entries, fpp)


def _still_fits(inherited: BloomFilter, wanted: BloomFilter) -> bool:
    """Whether the previous filter has room for the expected rows at the wanted error rate."""
    same = (inherited.type_code, inherited.hashes) == (wanted.type_code, wanted.hashes)
    return same and inherited.bits >= wanted.bits


def _repetitive(rows: pa.Table) -> list[str]:
    """Return the columns to encode with a dictionary: constant meta columns, repetitive text."""
    sample = rows.slice(0, 4096)
    names = [COMMIT_TIME, PARTITION_PATH, FILE_NAME]
    for field in rows.schema:
        if field.name in names or not pa.types.is_string(field.type) or not sample.num_rows:
            continue
        if len(pc.unique(sample.column(field.name))) <= max(1, sample.num_rows // 8):
            names.append(field.name)
    return names
