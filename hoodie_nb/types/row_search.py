"""Finds the rows of a column that make an operation fail, for error messages.

Arrow checks and converts whole columns, and does not say which row it refuses.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

NOT_ARROW = (pa.ArrowException, ValueError, TypeError, OverflowError)
_is = pa.types


def first_failure(attempt: Callable[[int, int], object], rows: int) -> int:
    """Return the first row for which `attempt(row, row + 1)` raises; 0 if it does for none."""
    return next((row for row, _ in _failing(attempt, rows)), 0)


def failures(attempt: Callable[[int, int], object], rows: int) -> dict[int, str]:
    """Return why `attempt(row, row + 1)` raises, by row; rows together are attempted first.

    **Caveats**: for n rows that fail, up to 2 n log(rows) attempts.
    """
    return dict(_failing(attempt, rows))


def _failing(attempt: Callable[[int, int], object], rows: int) -> Iterator[tuple[int, str]]:
    """Yield the rows that fail, in order, with the reason."""
    todo = [(0, rows)] if rows else []
    while todo:
        begin, end = todo.pop()
        try:
            attempt(begin, end)
        except NOT_ARROW as error:
            middle = (begin + end) // 2
            if end - begin == 1:
                yield begin, str(error)[:200]
            else:
                todo += [(middle, end), (begin, middle)]


def part_of(column: pa.Array | pa.ChunkedArray, begin: int, end: int) -> pa.Array | pa.ChunkedArray:
    """Return some rows without the values of others, which a check of a slice would look at."""
    part = column.slice(begin, end - begin)
    try:
        part = plain(part)
    except NOT_ARROW:  # a number beyond its dictionary: validation of the part will say so
        return part
    return part.take(pa.array(np.arange(len(part)))) if _is.is_nested(part.type) else part


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column without dictionaries (nor their unused values) and views, as Arrow takes."""
    if _is.is_dictionary(column.type):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        kind = _without_views(column.type.value_type)
        return pa.chunked_array(
            [plain(chunk.dictionary).take(chunk.indices) for chunk in chunks], kind
        )
    kind = _without_views(column.type)
    return column if kind.equals(column.type) else column.cast(kind, safe=False)


def _without_views(kind: pa.DataType) -> pa.DataType:
    if _is.is_string_view(kind):
        return pa.string()
    if _is.is_binary_view(kind):
        return pa.binary()
    if _is.is_struct(kind):
        return pa.struct([f.with_type(_without_views(f.type)) for f in kind])
    if _is.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if _is.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_views(kind.value_type)))
    return kind
