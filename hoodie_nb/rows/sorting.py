"""Sorting a batch by partition, key and arrival, in threads.

Rows copied at random from a large batch take longer than the sort itself, since nearly every copy
misses the cache of the processor. So a large batch is cut into groups of whole partitions, and each
is sorted and copied by itself, shortly before it is needed: there is no second copy of the batch,
unless it is in chunks of a few thousand rows, which are combined first.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hoodie_nb.machine import threads
from hoodie_nb.rows.columns import SEQ
from hoodie_nb.rows.ordering import is_comparable, ranked, sort_order
from hoodie_nb.rows.taking import parts_of, take_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

_GROUP_ROWS = 1 << 17
_LARGE = 1 << 18
_CHUNK_ROWS = 1 << 13
Groups = npt.NDArray[np.int32]


def in_order(keyed: pa.Table) -> pa.Table:
    """Return keyed rows sorted by partition, key and arrival; a large batch in several chunks."""
    return pa.concat_tables(tables_in_order(keyed))


def tables_in_order(keyed: pa.Table) -> Iterator[pa.Table]:
    """Yield keyed rows sorted by partition, key and arrival, in tables of whole partitions."""
    memory = [_memory(n, column) for n, column in enumerate(keyed.columns)]
    name_of = dict(zip(reversed(memory), reversed(keyed.column_names), strict=True))
    rows = keyed.select([*name_of.values()])  # a key's column is copied once
    names = [name_of[place] for place in memory]
    by = [names[keyed.schema.get_field_index(n)] for n in (PARTITION_PATH, RECORD_KEY, SEQ)]
    with ThreadPoolExecutor(threads()) as pool:
        groups = _groups(keyed.column(PARTITION_PATH))
        found = (
            _by_group(rows, by, groups, pool) if groups is not None else [_whole(rows, by, pool)]
        )
        for part in found:
            yield pa.table([part.column(name) for name in names], schema=keyed.schema)


def _in_large_chunks(rows: pa.Table) -> pa.Table:
    """Return the rows in few enough chunks: each group reads all of them."""
    chunks = max(column.num_chunks for column in rows.columns)
    if chunks <= 2 + rows.num_rows // _CHUNK_ROWS:
        return rows
    return pa.concat_tables(part.combine_chunks() for part in parts_of(rows, _GROUP_ROWS))


def _groups(partitions: pa.ChunkedArray) -> Groups | None:
    """Return for each row the number of its group, in the order of the partition paths.

    None if all rows are one group.
    """
    if len(partitions) < _LARGE or not is_comparable(partitions):
        return None
    ranks, _ = ranked(partitions.combine_chunks())
    starts = np.append(0, np.cumsum(np.bincount(ranks.astype(np.int64)))[:-1])
    numbers = np.cumsum(np.diff(starts // _GROUP_ROWS, prepend=0) > 0, dtype=np.int32)
    return numbers[ranks] if numbers[-1] else None


def _whole(rows: pa.Table, by: Sequence[str], pool: ThreadPoolExecutor) -> pa.Table:
    """Return sorted rows; many are copied column by column, in threads."""
    order = sort_order(rows, by)
    if rows.num_rows < _CHUNK_ROWS:
        return take_rows(rows.combine_chunks(), order)
    columns = [rows.select([name]) for name in rows.column_names]
    taken = pool.map(lambda own: take_rows(own.combine_chunks(), order).column(0), columns)
    return pa.table([*taken], rows.column_names)


def _by_group(
    rows: pa.Table, by: Sequence[str], groups: Groups, pool: ThreadPoolExecutor
) -> Iterator[pa.Table]:
    """Yield the sorted rows of each group, while the next ones are sorted."""
    large = _in_large_chunks(rows)
    tasks = (pool.submit(_sorted, large, by, groups, n) for n in range(int(groups.max()) + 1))
    now = next(tasks)
    for following in tasks:
        yield now.result()
        now = following
    yield now.result()


def _sorted(rows: pa.Table, by: Sequence[str], groups: Groups, number: int) -> pa.Table:
    own = rows.filter(pa.array(groups == number)).combine_chunks()
    return take_rows(own, sort_order(own, by))


def _memory(number: int, column: pa.ChunkedArray) -> object:
    """Return a value that only columns with the same arrays share, like a key and its column."""
    if pa.types.is_nested(column.type):  # the offsets of inner arrays are not in the buffers
        return number
    buffers = [buffer for chunk in column.chunks for buffer in chunk.buffers()]
    places = (None if buffer is None else buffer.address for buffer in buffers)
    return (column.type, *((chunk.offset, len(chunk)) for chunk in column.chunks), *places)
