"""The columns that `intake` adds to a row: its arrival, its operation, its file group, its task."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEQ, OP = "_hoodie_nb_seq", "_hoodie_nb_op"
FILE_ID, TASK = "_hoodie_nb_file_id", "_hoodie_nb_task"
THRESHOLD = "_hoodie_nb_threshold"
STORE, DELETE, DELETE_ALWAYS, STORE_ALWAYS, MOVED = 0, 1, 2, 3, 4


def is_delete(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each keyed row whether it is a delete."""
    return np.isin(rows.column(OP).to_numpy(), (DELETE, DELETE_ALWAYS, MOVED))
