"""Reading and writing base files: row groups, meta columns, footer index, bloom filter's size.

*On disk*, in the Parquet footer's key-value metadata:

| key | value |
| --- | --- |
| `org.apache.hudi.bloomfilter` | base64 of the bloom filter over the record keys |
| `hoodie_bloom_filter_type_code` | `SIMPLE` or `DYNAMIC_V0` |
| `hoodie_min_record_key`, `hoodie_max_record_key` | key range (see `key_range`); may be absent |
| `parquet.avro.schema`, `writer.model.name` | as in files of Hudi's own writer |
| `hoodie_nb_copies` | a key has several rows: it gets no log files (merge-on-read tables) |
| `hoodie_nb_file_name` | the file's name, in files of this library (see `footer`) |
| `org.apache.spark.version` | Spark's, for the calendar of dates and times (see `calendars`) |

Rows arrive in pieces and are written in row groups of `ROW_GROUP` rows, so a file has few row
groups however often it is rewritten. The bloom filter is sized for the expected rows, rounded up to
a power of two: a file that grows keeps its filter while there is room, and only new keys are
hashed.

*Source:* HoodieAvroParquetWriter, HoodieBloomFilterWriteSupport.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb import failpoints
from hoodie_nb.errors import InvalidTable
from hoodie_nb.files.bloom import BloomFilter
from hoodie_nb.files.calendars import VERSION, WRITTEN_AS, HybridCalendar
from hoodie_nb.files.column_storage import ENCODING, codecs, has_statistics, repetitive_columns
from hoodie_nb.files.dictionaries import unified
from hoodie_nb.files.footer import NAME, open_verified, sealed
from hoodie_nb.files.key_range import KeyRange, same_in_both_orders
from hoodie_nb.storage.checksums import ChecksummedFile
from hoodie_nb.storage.storage import permitted
from hoodie_nb.types.avro_schema import to_avro
from hoodie_nb.types.schema import META_FIELDS, RECORD_KEY, conform

BLOOM = "org.apache.hudi.bloomfilter"
BLOOM_TYPE = "hoodie_bloom_filter_type_code"
MIN_KEY = "hoodie_min_record_key"
MAX_KEY = "hoodie_max_record_key"
COPIES = "hoodie_nb_copies"
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

    def range(self) -> KeyRange | None:
        """Return the key range, None if it is not known or depends on the order of texts."""
        low = self.min_key
        high = self.max_key
        if low is None or high is None or not same_in_both_orders(low, high):
            return None
        return KeyRange(low, high, low, high)


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a file knows of the keys of its previous slice; no range if it may have shrunk."""

    bloom: BloomFilter | None
    range: KeyRange | None


def open_base_file(path: str, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a base file, or raise InvalidTable naming it; its pages are verified when read."""
    with read_errors(path), permitted(path):
        return open_verified(path, dictionaries)


@contextlib.contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Turn Arrow's errors about a base file's content into InvalidTable, naming the file."""
    try:
        yield
    except FileNotFoundError:
        raise InvalidTable(
            f"base file {path} is gone: it was cleaned away or undone before it was read, or it is "
            "lost (then `fsck` lists it): read again, and if readers take longer than the retained "
            "commits last, raise hoodie.clean.commits.retained"
        ) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeDecodeError) as error:
        raise InvalidTable(
            f"base file {path} cannot be read ({str(error)[:120]}): `fsck` says which instant "
            "wrote it; restore it from a backup, or undo that commit (Table.rollback or restore)"
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


def read_keys(path: str) -> pa.Array:
    """Return the record keys of a base file in file order."""
    batches = _batches(open_base_file(path), path, [RECORD_KEY])
    keys = [pc.cast(batch.column(0), pa.string()) for batch in batches]
    return pa.concat_arrays([pa.array([], pa.string()), *keys])


def verify_pages(path: str) -> None:
    """Read a whole base file, or raise InvalidTable naming it."""
    for _ in _batches(open_base_file(path), path):
        pass


def first_row(path: str, columns: Sequence[str]) -> pa.Table | None:
    """Return these columns of a base file's first row; None without rows, or without a column."""
    file = open_base_file(path)
    hybrid = HybridCalendar.of(file, path)
    if {*columns} <= {*file.schema_arrow.names}:
        with read_errors(path):
            for batch in file.iter_batches(1, columns=columns, use_threads=False):
                return pa.Table.from_batches([hybrid.gregorian(batch) if hybrid else batch])
    return None


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the table's schema as stored in base files: meta columns first, all nullable."""
    return pa.schema([*META_FIELDS, *(pa.field(f.name, f.type) for f in schema)])


def iterate_rows(
    file: pq.ParquetFile, schema: pa.Schema, path: str, groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows (of row `groups`) at `path` in pieces of `ROW_GROUP` rows, as in `schema`."""
    names = [name for name in schema.names if name in file.schema_arrow.names]
    hybrid = HybridCalendar.of(file, path)
    for batch in _batches(file, path, names, groups):
        rows = hybrid.gregorian(batch) if hybrid else batch
        yield conform(pa.Table.from_batches([rows]), schema, f"base file {path}")


def _batches(
    file: pq.ParquetFile,
    path: str,
    columns: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a base file, or of row groups; InvalidTable naming it if they are damaged.

    Arrow skips a page whose header is damaged, and ends early without an error.
    """
    groups = range(file.num_row_groups) if groups is None else groups
    left = sum(file.metadata.row_group(number).num_rows for number in groups)
    with read_errors(path):
        for batch in file.iter_batches(ROW_GROUP, groups, columns, use_threads=False):
            left -= batch.num_rows
            yield batch
        if left:
            raise pa.ArrowInvalid(f"{left} of its rows are missing from its pages")


def read_rows(path: str, schema: pa.Schema) -> pa.Table:
    """Return all rows of the base file at `path`, as in `schema`."""
    pieces = iterate_rows(open_base_file(path), schema, path)
    return pa.concat_tables([schema.empty_table(), *pieces])


class _KeySummary:
    """The bloom filter and the range of a file's record keys; see `BaseFileWriter`."""

    def __init__(self, fpp: float, expected_rows: int | None, inherited: Inherited | None) -> None:
        self._fpp = fpp
        self._late: list[pa.Array] | None = [] if expected_rows is None else None
        self._bloom = _sized(expected_rows or 0, fpp)
        old = inherited.bloom if inherited is not None else None
        self.keeps_bloom = False
        if old is not None and _still_fits(old, self._bloom):
            self.keeps_bloom = True
            self._bloom = old
        self.range = inherited.range if inherited is not None else None
        self._keeps_range = self.range is not None

    def add(self, keys: pa.ChunkedArray, new_keys: pa.Array | None) -> None:
        """Add the keys of rows; `new_keys` are those that may not be in what was inherited."""
        fresh = keys if new_keys is None or not self.keeps_bloom else new_keys
        if self._late is not None:
            self._late += keys.chunks
        elif len(fresh):
            self._bloom.add(fresh)
        ranged = new_keys if self._keeps_range and new_keys is not None else keys
        if len(ranged):
            found = KeyRange.of(ranged)
            self.range = found if self.range is None or found is None else self.range | found

    def bloom(self, rows: int) -> BloomFilter:
        """Return the filter of a file with that many rows, when all keys are added."""
        if self._late is not None:
            self._bloom = _sized(rows, self._fpp)
            self._bloom.add(pa.chunked_array(self._late, pa.string()))
            self._late = None
        return self._bloom


class BaseFileWriter:
    """Writes one base file from pieces of rows that already have their meta columns.

    `expected_rows` is an upper bound that sizes the bloom filter; without it the keys are kept and
    the filter is built at the end. `inherited` is the index of the previous slice: its filter is
    reused if it has room, its range if there is one; then only `new_keys` are added. `name` is the
    file's final one; it may have no row. `finds_copies`: the footer says if a key has several rows.
    """

    def __init__(
        self,
        sink: ChecksummedFile,
        schema: pa.Schema,
        *,
        name: str,
        table: str,
        codec: str,
        bloom_fpp: float,
        expected_rows: int | None = None,
        inherited: Inherited | None = None,
        finds_copies: bool = False,
    ) -> None:
        self._schema = stored_schema(schema)
        self._avro = json.dumps(to_avro(schema, table, meta=True), separators=(",", ":"))
        self._sink = sink
        self._codec = codec
        self._name = name
        self.keys = _KeySummary(bloom_fpp, expected_rows, inherited)
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._all_keys: list[pa.Array] | None = [] if finds_copies else None
        self.rows = 0

    def write(self, rows: pa.Table, new_keys: pa.Array | None = None) -> None:
        """Add rows; `new_keys` are those that may not be in the inherited bloom (None: all)."""
        if rows.num_rows == 0:
            return
        self.keys.add(rows.column(RECORD_KEY), new_keys)
        if self._all_keys is not None:
            self._all_keys += rows.column(RECORD_KEY).chunks
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP:
            self.write_group()

    def write_group(self) -> None:
        """Write the pending rows as a row group; without any, only the first group is written."""
        if not self._waiting and self._writer is not None:
            return
        rows = pa.concat_tables(self._waiting) if self._waiting else self._schema.empty_table()
        self._waiting = []
        self._waiting_rows = 0
        rows = unified(rows)
        self._open(rows).write_table(rows, row_group_size=2 * ROW_GROUP)

    def _open(self, rows: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            dictionaries = repetitive_columns(rows)
            self._writer = pq.ParquetWriter(
                self._sink,
                rows.schema,
                store_schema=False,
                write_page_checksum=True,
                write_statistics=[f.name for f in rows.schema if has_statistics(f)],
                use_dictionary=dictionaries,
                compression=codecs(rows, self._codec, dictionaries),
                **ENCODING,
            )
        return self._writer

    def close(self) -> None:
        """Write the pending rows and the footer, and make them durable; the sink stays open."""
        self.write_group()
        assert self._writer is not None
        bloom = self.keys.bloom(self.rows)
        entries = {
            BLOOM: bloom.to_text(),
            BLOOM_TYPE: bloom.type_code,
            "parquet.avro.schema": self._avro,
            "writer.model.name": "avro",
            NAME: self._name,
            VERSION: WRITTEN_AS,
        }
        if self._all_keys is not None:
            keys = pa.chunked_array(self._all_keys, pa.string())
            if pc.count_distinct(keys).as_py() < len(keys):
                entries[COPIES] = "true"
        ends = self.keys.range.in_both_orders if self.keys.range is not None else None
        if ends is not None:
            entries[MIN_KEY], entries[MAX_KEY] = ends
        self._writer.add_key_value_metadata(entries)
        self._sink.hold()
        self._writer.close()
        self._sink.write(sealed(self._sink.held()))
        self._sink.flush()
        failpoints.hit("writer.data", self._sink.name)
        self._sink.sync()

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
