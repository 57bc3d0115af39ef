"""Tables with many small files, and what every test of a clustering checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import Model, hudi_rows, hudi_table, schema_of, upgrade, without_meta

from hoodie_nb import Table
from hoodie_nb.types.schema import FILE_NAME

NO_FILLING = {"hoodie.parquet.small.file.limit": 0}
Row = dict[str, Any]


def row(key: int, v: int, p: str = "x") -> Row:
    """Return one row."""
    return {"id": f"k{key:03}", "p": p, "ts": v, "v": v}


def table_of(path: Path, version: int = 6, batches: int = 6, **options: object) -> Table:
    """Return a table with many small files in two partitions, and a file alone in a third one."""
    table = Table.create(
        path / "t",
        schema=schema_of(),
        record_key="id",
        partition_by="p",
        ordering="ts",
        options={**NO_FILLING, **options},
    )
    for number in range(batches):
        keys = range(number, 60, batches)
        table.bulk_insert([row(k, 1, "xy"[k % 5 > 2]) for k in keys])
        if number == 0 and version != 6:
            upgrade(table.path, version)
    table.upsert([row(7, 2), row(900, 2, "z")])
    return table


def model_of(table: Table) -> Model:
    """Return the model of the rows of `table_of`."""
    model = Model()
    model.upsert(table.to_arrow(meta=False).to_pylist())
    return model


def check(table: Table, model: Model) -> None:
    """The readers return the model's rows, and the table has no findings."""
    expected = model.snapshot()
    assert without_meta(table.to_arrow()) == expected
    assert without_meta(Table.open(table.path).to_arrow()) == expected
    assert hudi_rows(table.path) == expected
    assert table.fsck() == []


def meta_of(table: Table) -> list[Row]:
    """Return all rows with their meta columns but the file's name, as hudi-rs reads them."""
    found = hudi_table(table.path)
    assert found is not None
    rows = found.drop_columns([FILE_NAME]).to_pylist()
    return sorted(rows, key=lambda r: (r["p"], r["id"]))
