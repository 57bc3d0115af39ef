"""External sort: rows beyond memory in local files, their compression and merge.

A run is read piece by piece: memory holds one run, and later one small piece of each. Nothing here
is durable: a run that must survive its process is saved by `runs`.

*Source:* ExternalSpillableMap.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from hoodie_nb.rows.folding import merge_runs
from hoodie_nb.rows.taking import PART_ROWS, parts_of, sort_rows

RUN_ROWS = 65_536  # of a piece of a run


def run_options() -> pa.ipc.IpcWriteOptions:
    """Return the compression of rows that are spilled or sent: LZ4, if this Arrow has it."""
    return pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)


def save_local_run(pieces: Iterable[pa.Table], path: str, piece_rows: int = RUN_ROWS) -> int:
    """Spill pieces, at least one, to a new local file for `read_run`; return its size in bytes."""
    pieces = iter(pieces)
    rows = next(pieces)
    with (
        open(path, "xb") as sink,
        pa.ipc.new_file(sink, rows.schema, options=run_options()) as writer,
    ):
        writer.write_table(rows, max_chunksize=piece_rows)
        for rows in pieces:
            writer.write_table(rows, max_chunksize=piece_rows)
        return sink.tell()


def read_run(path: str) -> Iterator[pa.Table]:
    """Return the pieces of a spilled run, in key order; its file is mapped now, not kept open."""
    with pa.memory_map(path) as source:
        content = source.read_buffer()
    reader = pa.ipc.open_file(pa.BufferReader(content))
    numbers = range(reader.num_record_batches)
    return (pa.Table.from_batches([reader.get_batch(number)]) for number in numbers)


def merged(runs: Sequence[Iterator[pa.Table]], by: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of runs that are sorted by `by`: partition, key, and perhaps another column.

    Each piece has whole keys.
    """
    for piece in merge_runs(runs):
        yield sort_rows(piece, by)


def sorted_rows(
    tables: Iterable[pa.Table],
    by: Sequence[str],
    *,
    limit_bytes: int,
    path: str,
    piece_rows: int = RUN_ROWS,
) -> Iterator[pa.Table]:
    """Yield the rows of tables, in pieces sorted by `by` as in `merged`.

    Above `limit_bytes` they are spilled to files that begin with `path`, in pieces of `piece_rows`.
    """
    paths = list[str]()
    held = list[pa.Table]()
    held_bytes = 0
    try:
        for rows in tables:
            if held_bytes > limit_bytes:
                paths.append(f"{path}{len(paths)}.arrow")
                save_local_run([_sorted(held, by)], paths[-1], piece_rows)
                held_bytes = 0
            held.append(rows)
            held_bytes += rows.nbytes
        if not held:
            return
        last = _sorted(held, by)
        if not paths:
            yield from parts_of(last, PART_ROWS)
            return
        runs = [*map(read_run, paths), parts_of(last, piece_rows)]
        for piece in merged(runs, by):
            yield from parts_of(piece, PART_ROWS)
    finally:
        for name in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def _sorted(held: list[pa.Table], by: Sequence[str]) -> pa.Table:
    """Return the rows that are held, sorted; they are held no longer."""
    rows = pa.concat_tables(held).unify_dictionaries()
    held.clear()
    return sort_rows(rows, by)
