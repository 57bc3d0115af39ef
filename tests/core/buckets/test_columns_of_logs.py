"""New columns and wider types where logs and base files of one slice differ in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tables import hudi_rows, kind_of, without_meta
from writes import write_uncommitted

from hoodie_nb import Table

pytestmark = pytest.mark.usefixtures("many_logs")
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int32())])
VERSIONS = pytest.mark.parametrize("version", ["8 logs", "9 logs"])
BOTH = pytest.mark.parametrize("ordering", ["ts", None])


def made(root: Path, ordering: str | None, version: int | str) -> Table:
    """Return an empty table."""
    kind = kind_of(version)
    keys = {"record_key": "id", "partition_by": "p"}
    return Table.create(root, schema=SCHEMA, ordering=ordering, **keys, **kind)


def rows(keys: str, ts: int, *more: tuple[str, pa.DataType]) -> pa.Table:
    """Return rows of partition "a" with further columns or other types of known ones."""
    kinds = dict([*zip(SCHEMA.names, SCHEMA.types, strict=True), *more])
    values = {"p": "a", "ts": ts, "v": ts}
    held = [{**dict.fromkeys(kinds), **values, "id": key} for key in keys]
    table = pa.Table.from_pylist(held, SCHEMA.append(pa.field("_", pa.null()))).drop_columns("_")
    for name, kind in kinds.items():
        value: Any = pa.scalar(f"{name}{ts}" if kind == W[1] else ts, kind)
        if name not in ("id", "p"):
            column = pa.array([value.as_py()] * len(keys), kind)
            at = table.schema.get_field_index(name)
            table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table
