"""Kinds of data a write takes: pandas, polars, Arrow, dicts, streams; each to an Arrow table.

| given | rows are |
| --- | --- |
| Arrow table or record batch | taken as they are |
| record-batch reader, Polars, DuckDB, anything with `__arrow_c_stream__` | converted one by one |
| pandas DataFrame, list of dicts (also empty) | converted from Python objects where it has them |

The columns get the table's types by `conversion` (streams and objects here, others in the intake).
Columns that the table does not have are kept as given, for the intake to refuse.

**Caveats**: the writer sorts a batch by key, so it holds all converted rows of a stream in memory.
Write a larger-than-memory source in several calls, or with Spark.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.intake.bad_rows import RefusedRows
from hoodie_nb.intake.objects import from_objects, unfit_objects
from hoodie_nb.types.conversion import fitted
from hoodie_nb.types.row_search import NOT_ARROW
from hoodie_nb.types.schema import IS_DELETED

_KEYS = (list, tuple, set, frozenset, pa.Array, pa.ChunkedArray, pd.Series, pd.Index)
Check = Callable[[pa.Schema], None]


def arrow_rows(
    data: Any,  # noqa: ANN401
    schema: pa.Schema,
    check: Check,
    bad: RefusedRows | None = None,
) -> pa.Table:
    """Return `data` as an Arrow table for a table of `schema`.

    `check` refuses the columns of a stream before it is read. Raises InvalidInput for a value that
    does not fit, with its row, and InvalidConfig if `data` has no rows of a kind that is known.
    With `bad`, Python objects that do not fit go there, and other values are left to the intake.
    """
    known = {**{f.name: f.type for f in schema}, IS_DELETED: pa.bool_()}
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pd.DataFrame):
        return _from_pandas(data, known, bad)
    if is_stream(data):
        return _from_stream(reader_of(data), known if bad is None else None, check)
    if isinstance(data, list | tuple) and not data:
        return schema.empty_table()
    if isinstance(data, Sequence) and all(map(Mapping.__instancecheck__, data)):
        return _from_dicts(data, known, bad)
    raise InvalidConfig(
        f"cannot write a {type(data).__name__}: give a Spark DataFrame, a pyarrow.Table or a "
        "pandas DataFrame, a list of dicts, or an object with __arrow_c_stream__ (Polars, "
        "DuckDB, a record-batch reader)"
    )


def rows_of_keys(data: Any, config: TableConfig) -> Any:  # noqa: ANN401
    """Return keys (an Arrow array, pandas Series or Index, list, tuple or set) as rows.

    Other data is returned as it is. Raises InvalidConfig if a key alone does not identify a row.
    """
    if isinstance(data, list | tuple) and any(map(Mapping.__instancecheck__, data)):
        return data
    if not isinstance(data, _KEYS):
        return data
    if len(config.record_key) > 1 or config.partition_by:
        columns = [*config.record_key, *config.partition_by]
        raise InvalidConfig(
            f"keys alone do not identify rows of this table: give rows with the columns {columns}"
        )
    keys = list(data) if isinstance(data, set | frozenset) else data
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return pa.table({config.record_key[0]: keys})
    return pd.DataFrame({config.record_key[0]: pd.Series(keys, dtype=object)})


def is_stream(data: object) -> bool:
    """Whether data is read batch by batch: it may be possible only once."""
    whole = isinstance(data, pa.Table | pa.RecordBatch | pd.DataFrame)
    return hasattr(data, "__arrow_c_stream__") and not whole


def reader_of(data: Any) -> pa.RecordBatchReader:  # noqa: ANN401
    """Return the batches of a stream, or raise InvalidInput for columns that Arrow cannot read."""
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowException as error:
        raise InvalidInput(
            f"the {type(data).__name__} has no columns that Arrow can read ({error}): give a table "
            "or frame, and cast columns of other types first"
        ) from None


def _from_stream(
    reader: pa.RecordBatchReader, known: Mapping[str, pa.DataType] | None, check: Check
) -> pa.Table:
    """Return all rows, converted to the `known` types, or as they are."""
    check(reader.schema)
    if known is None:
        return reader.read_all()
    fields = [f.with_type(known.get(f.name, f.type)) for f in reader.schema]
    batches = []
    row = 0
    for batch in reader:
        columns = [
            fitted(column, f.name, f.type, row)
            for f, column in zip(fields, batch.columns, strict=True)
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
        row += batch.num_rows
    return pa.Table.from_batches(batches, pa.schema(fields))


def _from_dicts(
    data: Sequence[Mapping[str, Any]], known: Mapping[str, pa.DataType], bad: RefusedRows | None
) -> pa.Table:
    """Return dicts as rows; a name that some of them lack is null there."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(data)))
    columns = {str(n): list(map(methodcaller("get", n), data)) for n in names}
    return _from_pandas(pd.DataFrame(columns, dtype=object), known, bad)


def _from_pandas(
    data: pd.DataFrame, known: Mapping[str, pa.DataType], bad: RefusedRows | None
) -> pa.Table:
    """Return a DataFrame as Arrow, without its index, or raise InvalidInput naming a column."""
    twice = sorted({str(name) for name in data.columns[data.columns.duplicated()]})
    if twice:
        raise InvalidInput(f"columns {twice} have the same name: rename or drop one")
    names = list(map(str, data.columns))
    columns = {n: data.iloc[:, i] for i, n in enumerate(names)}
    try:
        return pa.table({n: _of_series(values, n, known) for n, values in columns.items()})
    except InvalidInput:
        rows = {} if bad is None else _unfit(columns, known)
        if bad is None or not rows:
            raise
    given = data.iloc[[*rows]].astype(object)
    records = given.where(given.notna(), None).to_dict("records")
    bad.add(records, [name for name, _ in rows.values()], [why for _, why in rows.values()])
    return _from_pandas(data.iloc[np.delete(np.arange(len(data)), [*rows])], known, bad)


def _unfit(
    columns: Mapping[str, pd.Series], known: Mapping[str, pa.DataType]
) -> dict[int, tuple[str, str]]:
    """Return the rows with Python objects that do not fit, with their first column and why."""
    found: dict[int, tuple[str, str]] = {}
    for name, values in columns.items():
        if _has_objects(values) and name in known:
            for row, why in unfit_objects(values, known[name]).items():
                found.setdefault(row, (name, why))
    return dict(sorted(found.items()))


def _has_objects(values: pd.Series) -> bool:
    """Whether a column may have values that Arrow does not: objects, strings or categories."""
    found = isinstance(values.dtype, pd.StringDtype | pd.CategoricalDtype)
    return found or values.dtype == object


def _of_series(values: pd.Series, name: str, known: Mapping[str, pa.DataType]) -> pa.Array:
    if values.dtype == object and name in known:
        return from_objects(values, name, known[name])
    try:
        return pa.array(values, from_pandas=True)
    except NOT_ARROW as error:
        if _has_objects(values) and name in known:
            return from_objects(values.astype(object), name, known[name])
        raise InvalidInput(
            f"column {name!r} has {values.dtype} values that Arrow cannot convert ({error}): cast "
            "it first"
        ) from None
