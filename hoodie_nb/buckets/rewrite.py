"""Rewriting one file slice: for `update`, `delete`, compaction, clustering and repairs.

Unchanged rows keep their commit time and sequence number; every row gets the new file's name.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa

from hoodie_nb import failpoints
from hoodie_nb.buckets.index_port import WrittenKeys
from hoodie_nb.buckets.merge import MergeCounts
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan
from hoodie_nb.files.base_file import open_base_file, stored_schema
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.storage.checksums import ChecksummedFile
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.types.schema import FILE_NAME, META_COLUMNS, RECORD_KEY
from hoodie_nb.view.file_groups import BaseFileName, FileSlice

Change = Callable[[pa.Table], pa.Table]


def rewrite(
    plan: WritePlan,
    piece: FileSlice,
    attempt: TaskAttempt,
    change: Change,
    *,
    counts: MergeCounts | None = None,
    keys: WrittenKeys | None = None,
) -> WriteStatus:
    """Write the slice's rows, changed piece by piece, to a staged file of its group, durable.

    `counts` is what `change` has counted when all pieces are written; `keys` takes the keys for the
    index. A file group without a file gets one without rows.
    """
    most: int | None = None  # logs may have rows of their own
    if not piece.logs:
        path = plan.storage.fetch(piece.path, piece.size_bytes) if piece.file_name else ""
        most = open_base_file(path).metadata.num_rows if path else 0
    schema = stored_schema(plan.intake.schema)
    stored = slice_rows(plan.storage, piece, schema, None, plan.log_merge)
    rows = map(change, stored) if piece.paths else ()
    group = (piece.partition_path, piece.file_id)
    status = write_group(plan, group, attempt, rows, expected_rows=most, keys=keys)
    counts = counts or MergeCounts()
    return replace(
        status,
        updates=counts.updates,
        deletes=counts.deletes,
        previous_file=piece.file_name or None,
        previous_commit=piece.instant_time or None,
    )


def write_group(
    plan: WritePlan,
    group: tuple[str, str],
    attempt: TaskAttempt,
    pieces: Iterable[pa.Table],
    *,
    expected_rows: int | None,
    keys: WrittenKeys | None = None,
) -> WriteStatus:
    """Write stored rows (with or without a file name) to a staged file, durable.

    `group` is partition path and file id; `expected_rows` is an upper bound; None: not known.
    """
    began = time.perf_counter()
    staged = f"{plan.staged}/rewrite-{attempt.token}.staged"
    partition, file_id = group
    none = pa.array([], pa.string())
    name = str(BaseFileName(file_id, attempt.token, plan.instant_time))
    with ChecksummedFile(plan.storage.open_new(staged)) as sink, ExitStack() as last:
        writer = plan.base_file(sink, name, expected_rows=expected_rows)
        last.callback(writer.abandon)  # does nothing after `close`
        for rows in pieces:
            after = _renamed(rows, name)
            writer.write(after)
            if keys is not None:
                keys.add(after.column(RECORD_KEY), none)
        writer.close()
    failpoints.hit("writer.data.post")
    stored = sink.stored(staged)
    return WriteStatus(
        partition_path=partition,
        file_id=file_id,
        file_name=name,
        staged_path=staged,
        bytes_written=stored.size_bytes,
        crc=stored.crc,
        rows=writer.rows,
        inserts=0,
        updates=0,
        deletes=0,
        seconds=round(time.perf_counter() - began, 6),
        keys=None if keys is None else keys.stage(staged, file_id),
        keys_complete=keys is not None and keys.complete,
    )


def _renamed(rows: pa.Table, name: str) -> pa.Table:
    own = rows.drop_columns([n for n in rows.column_names if n == FILE_NAME])
    return own.add_column(META_COLUMNS.index(FILE_NAME), FILE_NAME, pa.repeat(name, rows.num_rows))
