"""Which columns get a dictionary, statistics and which codec when a base file is written.

A codec that does not make a column smaller costs time, twice: in the merge that writes it and in
the one that reads it. Random texts and numbers are such columns: half of the bytes of a narrow
table. So a sample of the first row group is written in memory, and a column is stored without the
codec if its sample does not shrink by `_WORTHWHILE` or more. A column that is (nearly) empty in the
sample keeps the codec: later row groups have it, too, and may have values. Parquet notes the codec
of each column; all readers follow it.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb.types.schema import COMMIT_TIME, FILE_NAME, PARTITION_PATH, SEQNO

# of the file and of the sample: the same bytes before the codec
ENCODING: dict[str, Any] = {"version": "1.0", "coerce_timestamps": "us"}
FEW_VALUES = (COMMIT_TIME, PARTITION_PATH, FILE_NAME)
_DICTIONARY_ROWS = 4096
# of larger row groups, every 32nd row is enough
_SAMPLED_ROWS = 32_768
_SAMPLE = 32
_PIECES = 4  # of the sample: rows next to each other, from all parts of the row group
# bytes per row of the sample
_WORTHWHILE = 0.1
_EVIDENCE = 2


def has_statistics(field: pa.Field) -> bool:
    """Whether statistics are of use and hold for all values.

    Those of floats omit NaN, Spark's greatest number; no query asks for a sequence number.
    """
    kind = field.type
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or field.name == SEQNO)


def repetitive_columns(rows: pa.Table) -> list[str]:
    """Return the columns to encode with a dictionary: constant meta columns, repetitive text."""
    sample = rows.slice(0, _DICTIONARY_ROWS)
    names = [*FEW_VALUES]
    for field in rows.schema:
        if field.name in names:
            continue
        if pa.types.is_dictionary(field.type):
            names.append(field.name)
        elif not pa.types.is_string(field.type) or not sample.num_rows:
            continue
        elif len(pc.unique(sample.column(field.name))) <= max(1, sample.num_rows // 8):
            names.append(field.name)
    return names


def codecs(rows: pa.Table, codec: str, dictionaries: Sequence[str]) -> str | dict[str, str]:
    """Return the codec of all columns, or that of each (nested) column by its path in the file."""
    if rows.num_rows < _SAMPLED_ROWS or codec == "none":
        return codec
    sample = _sample_of(rows)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        sample.schema,
        compression=codec,
        use_dictionary=[*dictionaries],
        write_statistics=False,
        **ENCODING,
    ) as writer:
        writer.write_table(sample)
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {c.path_in_schema: "none" if _resists(c, sample.num_rows) else codec for c in columns}


def _sample_of(rows: pa.Table) -> pa.Table:
    count = rows.num_rows // (_SAMPLE * _PIECES)
    step = rows.num_rows // _PIECES
    return pa.concat_tables([rows.slice(number * step, count) for number in range(_PIECES)])


def _resists(column: pq.ColumnChunkMetaData, rows: int) -> bool:
    """Whether a sampled column has values, and the codec does not make them smaller."""
    before = column.total_uncompressed_size
    after = column.total_compressed_size
    return bool(before >= _EVIDENCE * rows and after > (1 - _WORTHWHILE) * before)
