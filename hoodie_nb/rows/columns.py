"""Names and codes of the columns that operators add to a row: arrival, operation, file id, task."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEQ = "_hoodie_nb_seq"
OP = "_hoodie_nb_op"
FILE_ID = "_hoodie_nb_file_id"
TASK = "_hoodie_nb_task"
THRESHOLD = "_hoodie_nb_threshold"
STORE = 0
DELETE = 1
DELETE_ALWAYS = 2
STORE_ALWAYS = 3
MOVED = 4


def is_delete(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each keyed row whether it is a delete."""
    return np.isin(rows.column(OP).to_numpy(), (DELETE, DELETE_ALWAYS, MOVED))


def with_column(rows: pa.Table, name: str, values: pa.Array | npt.NDArray[Any]) -> pa.Table:
    """Return rows with other values in one of their columns, of the same type."""
    position = rows.schema.get_field_index(name)
    field = rows.schema.field(position)
    return rows.set_column(position, field, pa.array(values, field.type))
