"""The table that the scenarios write: a key, a partition, an ordering column, a value."""

from __future__ import annotations

import pyarrow as pa

from hoodie_nb.definition.properties import TableConfig

SCHEMA = pa.schema(
    [("id", pa.string()), ("part", pa.string()), ("ts", pa.int64()), ("v", pa.int64())]
)
CONFIG = TableConfig("t", ("id",), ("part",), "ts", merge_mode="event_time", schema=SCHEMA)
