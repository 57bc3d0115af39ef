"""`to_pyarrow_dataset`: a snapshot as a lazy dataset for DuckDB, polars and others.

*Work flow*: when the dataset is made, the footer of each file of the view is read and checked. A
file that Arrow would read in another way than `to_arrow` (a column has an older type, or dates are
in another calendar) is converted then, and held in memory as compressed Parquet. So are the merged
rows of a slice with log files: making the dataset costs as much as reading these slices. All other
files are read by Arrow itself, when an engine asks for rows.

*Semantics*: the rows and columns are those of `to_arrow` at the same moment. Partition columns are
read from the files; what a folder's name says of them only leaves out files.

*Fault tolerance*: a file that was cleaned away, lost or undone is an error when it is read.

**Caveats**: local tables only. A file system in Python would open files, and convert them, on
demand, also those of an object store; but pyarrow's `Scanner.to_reader`, which DuckDB calls, keeps
Python's lock while it waits for threads that open files (a deadlock, as of pyarrow 26). Page
checksums are verified, but not the headers of pages: Arrow may skip a page whose header is damaged.
*Source:* pyarrow.dataset.FileSystemDataset.
"""

import functools
import operator
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from hoodie_nb.definition.keys import partition_values
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.files.base_file import iterate_rows, open_base_file
from hoodie_nb.files.calendars import in_hybrid_calendar
from hoodie_nb.machine import threads
from hoodie_nb.reading.read import merge_of, snapshot_as_of
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.view.file_groups import FileSlice
from hoodie_nb.view.read_handle import ReadHandle
from hoodie_nb.view.views import reading, until_true

_VERIFIED = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
_DISK = LocalFileSystem()
_FORMAT = ds.ParquetFileFormat(default_fragment_scan_options=_VERIFIED)


def dataset(
    table: ReadHandle, as_of: object = None, *, read_optimized: bool = False
) -> ds.FileSystemDataset:
    """Return the snapshot as of a moment (None: now); InvalidConfig on an object store."""
    root = table.storage.root
    if is_remote(root):
        raise InvalidConfig(
            f"{root} is on an object store, which Arrow's datasets cannot read with this library's "
            "options: use to_arrow(columns, filters=...), which engines take, too"
        )
    return until_true(lambda: _opened(table, as_of, read_optimized=read_optimized))


def _opened(table: ReadHandle, as_of: object, *, read_optimized: bool) -> ds.FileSystemDataset:
    found, schema = snapshot_as_of(table, as_of, read_optimized=read_optimized)
    merge = merge_of(table, found, schema)

    def fragment(piece: FileSlice) -> ds.ParquetFileFragment:
        known = _known(partition_values(piece.partition_path, table.config, schema))
        with reading(table.storage, *piece.paths):
            if piece.logs:
                rows = slice_rows(table.storage, piece, schema, None, merge)
                return _FORMAT.make_fragment(_in_memory(rows, schema), None, known)
            path = table.storage.fetch(piece.path)
            file = open_base_file(path)
            if _differs(file, schema):
                own = pa.schema([c for c in schema if c.name in file.schema_arrow.names])
                content = _in_memory(iterate_rows(file, own, path), own)
                return _FORMAT.make_fragment(content, None, known)
            return _FORMAT.make_fragment(path, _DISK, known)

    with ThreadPoolExecutor(threads()) as pool:
        return ds.FileSystemDataset([*pool.map(fragment, found)], schema, _FORMAT, _DISK)


def _known(values: Mapping[str, pa.Scalar]) -> pc.Expression | None:
    """Return what is known of a folder's rows; as ranges, since equal values would not be read."""
    ends = [
        (pc.field(name) >= value) & (pc.field(name) <= value)
        for name, value in values.items()
        if not pa.types.is_boolean(value.type)
    ]
    return functools.reduce(operator.and_, ends) if ends else None


def _differs(file: pq.ParquetFile, schema: pa.Schema) -> bool:
    """Whether Arrow would read an open file in another way than this library."""
    int96 = {column.physical_type for column in file.schema} & {"INT96"}
    return bool(older_types(file, schema) or int96) or in_hybrid_calendar(file)


def older_types(file: pq.ParquetFile, schema: pa.Schema) -> set[tuple[pa.DataType, pa.DataType]]:
    """Return the types of an open file's columns that are others in `schema`, each with that."""
    types = {column.name: _plain(column.type) for column in file.schema_arrow}
    known = {(types.get(column.name), _plain(column.type)) for column in schema}
    return {(given, kind) for given, kind in known if given not in (None, kind)}


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without what Arrow itself adapts: inner names of lists, and "not null"."""
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(column.name, _plain(column.type)) for column in kind])
    return kind


def _in_memory(pieces: Iterable[pa.Table], schema: pa.Schema) -> pa.Buffer:
    """Return rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    # no statistics: those of floats omit NaN, and Arrow would then leave rows out
    with pq.ParquetWriter(sink, schema, compression="zstd", write_statistics=False) as writer:
        for rows in pieces:
            writer.write_table(rows)
    return sink.getvalue()
