"""Rows in memory whose dictionary columns are unified before a base file is written.

Rows are read and written with their dictionaries, and a merge only adds values: without this step,
the commit times of all earlier commits would stay in every later file.
"""

import numpy as np
import pyarrow as pa


def unified(rows: pa.Table) -> pa.Table:
    """Return rows whose dictionary columns have one dictionary each, of the values in use."""
    rows = rows.unify_dictionaries()  # after a second dictionary Parquet writes plain values
    for position, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type) and not rows.column(position).null_count:
            rows = rows.set_column(position, field, _compact(rows.column(position)))
    return rows


def _compact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of one dictionary without unused values; itself if there are none."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if not chunks:
        return column
    values = chunks[0].dictionary
    used = np.zeros(len(values), dtype=bool)
    for chunk in chunks:
        used[chunk.indices.to_numpy()] = True
    if used.all():
        return column
    kept = values.take(pa.array(np.flatnonzero(used)))
    number = np.cumsum(used, dtype=np.int32) - np.int32(1)
    indices = (pa.array(number[chunk.indices.to_numpy()], pa.int32()) for chunk in chunks)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(found, kept) for found in indices])
