"""Order of the rows that clustering and repairs write: stored rows of several files, joined by key.

Base files are not sorted: an update stays in its place, and new keys follow. So the rows are sorted
in runs of `batch_bytes`, which are spilled to the staging folder and then read in parallel. Memory
holds one run, and later one small piece of each run; a few small files are never spilled.

All rows are kept, also those of a key that `insert` has duplicated. The file's name, a third of the
bytes of a short row, is left out: it is set when the rows are written.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.errors import InvalidTable
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.rows.spilling import sorted_rows
from hoodie_nb.types.schema import FILE_NAME, PARTITION_PATH, RECORD_KEY
from hoodie_nb.view.file_groups import FileSlice

_PIECE_ROWS = 8_192  # of each run: there may be as many runs as the maximal size allows
_ORDER = (PARTITION_PATH, RECORD_KEY)


def joined_rows(plan: WritePlan, pieces: Iterable[FileSlice], name: str) -> Iterator[pa.Table]:
    """Yield the stored rows of slices by record key, without file name; `name` is for their runs.

    Raises InvalidTable for a file that cannot be read, or that has a row without a key.
    """
    folder = plan.storage.local_folder(plan.staged)
    return sorted_rows(
        _stored_rows(plan, pieces),
        _ORDER,
        limit_bytes=plan.options.batch_bytes,
        path=f"{folder}/{name}-run",
        piece_rows=_PIECE_ROWS,
    )


def _stored_rows(plan: WritePlan, pieces: Iterable[FileSlice]) -> Iterator[pa.Table]:
    stored = stored_schema(plan.intake.schema)
    schema = stored.remove(stored.get_field_index(FILE_NAME))
    for piece in pieces:
        for rows in slice_rows(plan.storage, piece, schema, None, plan.log_merge):
            if any(rows.column(name).null_count for name in _ORDER):
                raise InvalidTable(
                    f"base file {piece.base_path} has rows without a record key or partition path, "
                    "which no upsert could find again: write the table with the engine that "
                    "created it"
                )
            yield rows
