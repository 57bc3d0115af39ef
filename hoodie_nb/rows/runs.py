"""Saved runs: rows of sealed checkpoints in durable Arrow files, loaded in today's schema.

A file is verified before it is opened: Arrow memory-maps it, and damage could end the process.
"""

import pyarrow as pa

from hoodie_nb.errors import InvalidInput, InvalidTable
from hoodie_nb.rows.folding import fold_partitions
from hoodie_nb.rows.merge_rule import MergeRule
from hoodie_nb.rows.ordering import Mask
from hoodie_nb.storage.checksums import LOST, ChecksummedFile, StoredFile
from hoodie_nb.storage.storage import Storage
from hoodie_nb.types.conversion import fitted as converted
from hoodie_nb.types.schema import META_COLUMNS, PARTITION_PATH, conform, is_narrower, lost_fields

_PIECE_ROWS = 65_536


def save_rows(
    storage: Storage,
    path: str,
    rows: pa.Table,
    kept: Mask | None = None,
    *,
    piece_rows: int = _PIECE_ROWS,
) -> StoredFile:
    """Write rows, or only those in `kept`, to a new durable file, and return it."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with ChecksummedFile(storage.open_new(path)) as sink:
        with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
            for start in range(0, rows.num_rows, piece_rows):
                piece = rows.slice(start, piece_rows)
                if kept is not None:
                    piece = piece.filter(pa.array(kept[start : start + piece_rows]))
                writer.write_table(piece)
        sink.sync()
    return sink.stored(path)


def save_run(storage: Storage, path: str, keyed: pa.Table, rule: MergeRule) -> StoredFile:
    """Write keyed rows (in order of partition) as a durable run with one row per key."""
    return save_rows(storage, path, fold_partitions(keyed, rule))


def partitions_of(keyed: pa.Table) -> list[str]:
    """Return the partition paths of keyed rows."""
    return list(keyed.column(PARTITION_PATH).unique().to_pylist())


def load_rows(storage: Storage, run: StoredFile, schema: pa.Schema) -> pa.Table:
    """Return a run's rows in the current schema.

    Raises InvalidTable if the file is damaged, or has values that the table cannot store.
    """
    run.verify(storage)
    rows = pa.ipc.open_file(pa.memory_map(storage.fetch(run.path))).read_all()
    return fitted(rows, schema, f"{storage.root}/{run.path}")


def fitted(rows: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Return saved rows with exactly the columns of `schema`: cast, missing columns null.

    A type may have become wider, or narrower again if the commit that widened it was undone. Raises
    InvalidTable if values do not fit `schema`, or if it lacks a column or inner field that has
    values.
    """
    given = [n for n in rows.column_names if n not in META_COLUMNS and n not in schema.names]
    lost = [name for name in given if rows.column(name).null_count < rows.num_rows]
    for field in schema:
        if field.name in rows.column_names and rows.column(field.name).type != field.type:
            for chunk in rows.column(field.name).chunks:
                lost += lost_fields(chunk, field.type, field.name)
            rows = _narrowed(rows, field, where)
    if lost:
        raise InvalidTable(
            f"{where} has rows with columns {sorted({*lost})}, which another engine has dropped "
            "from the table: let that engine add them again, or restore the table from a backup"
        )
    return conform(rows, schema, where)


def _narrowed(rows: pa.Table, field: pa.Field, where: str) -> pa.Table:
    """Return rows whose column of that name, if it has wider numbers, has the field's type."""
    at = rows.column_names.index(field.name)
    column = rows.column(at)
    if not is_narrower(field.type, column.type):
        return rows
    try:
        return rows.set_column(at, field, converted(column, field.name, field.type))
    except InvalidInput as error:
        raise InvalidTable(
            f"{where} has column {field.name!r} as {column.type}, but the commit that made the "
            f"table's {field.type} that wide was undone ({error}): let the engine that widened the "
            f"column do so again; or delete the folders {LOST.partition('folders ')[2]}"
        ) from None
