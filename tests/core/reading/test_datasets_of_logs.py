"""A merge-on-read table as a dataset: DuckDB and Polars read of it what `to_arrow` reads."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from java_logs import STATES, VERSIONS, commits, java_rows, java_table, same_rows
from log_writer import SCHEMA, LoggedSlice, delete_block, parquet_block, times

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable

ALL = [*((version, "table") for version in VERSIONS), *STATES]
QUERIES = [
    "v < 7",
    "part = 'a' and \"at\" >= 30",
    "id > 'k010'",
    "money is null",
    '"at" between 5 and 25',
]


def selected(data: ds.Dataset, condition: str) -> dict[str, list[str]]:
    """Return the ids of the rows that a condition keeps, by engine."""
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.register("source", data)
        rows = connection.sql(f"select id from source where {condition}").fetchall()
    polars = pl.SQLContext(source=pl.scan_pyarrow_dataset(data))
    frame = polars.execute(f"select id from source where {condition}", eager=True)
    return {"duckdb": sorted(id_ for (id_,) in rows), "polars": sorted(frame["id"].to_list())}


@pytest.mark.parametrize("version, state", ALL)
def test_engines_read_merged_rows(tmp_path: Path, version: int, state: str) -> None:
    """All rows are Java's, and those that a query selects are those of `to_arrow`."""
    table = Table.open(java_table(tmp_path, version, state))
    data = table.to_pyarrow_dataset()
    name = f"expected/{commits(version)[-1]}" if state == "table" else state
    assert same_rows(data.to_table(), java_rows(version, name))
    assert data.schema.equals(table.to_arrow().schema)
    assert data.count_rows() == java_rows(version, name).num_rows
    for query in QUERIES:
        wanted = pl.from_arrow(java_rows(version, name).select(["id", "part", "v", "at", "money"]))
        rows = pl.SQLContext(rows=wanted).execute(f"select id from rows where {query}", eager=True)
        found = selected(data, query)
        assert found == dict.fromkeys(("duckdb", "polars"), sorted(rows["id"].to_list()))


def test_an_earlier_snapshot(tmp_path: Path) -> None:
    """As of a commit before the compactions."""
    table = Table.open(java_table(tmp_path, 8))
    time17 = commits(8)[3]
    data = table.to_pyarrow_dataset(as_of=time17)
    assert same_rows(data.to_table(), java_rows(8, f"expected/{time17}"))


@pytest.mark.parametrize("seed", range(4))
def test_only_slices_with_logs_are_in_memory(tmp_path: Path, seed: int) -> None:
    """The rows are those of a dict; base files without logs stay files that Arrow opens."""
    draw = random.Random(seed)
    base = [{"id": f"k{n}", "ts": 1, "v": n} for n in range(6)]
    table = LoggedSlice(tmp_path, base)
    (fragment,) = Table.open(tmp_path).to_pyarrow_dataset().get_fragments()
    assert fragment.path == str(table.base)
    model = {row["id"]: row for row in base}
    for time17 in times(4):
        key = f"k{draw.randrange(9)}"
        ts = draw.randrange(1, 5)
        if draw.randrange(3):
            row = {"id": key, "ts": ts, "v": draw.randrange(99)}
            table.log(time17, parquet_block(time17, [table.row(time17, row)], SCHEMA))
            if ts >= model.get(key, row)["ts"]:
                model[key] = row
        else:
            table.log(time17, delete_block(time17, [(key, None)], "LongWrapper"))
            model.pop(key, None)
        table.commit(time17)
    (fragment,) = Table.open(tmp_path).to_pyarrow_dataset().get_fragments()
    assert fragment.path == "<Buffer>"
    found = Table.open(tmp_path).to_pyarrow_dataset().to_table(["id", "ts", "v"]).to_pylist()
    assert {row["id"]: row for row in found} == model
    assert len(found) == len(model)


def test_a_missing_log_is_an_error_when_the_dataset_is_made(tmp_path: Path) -> None:
    """It is not left out."""
    root = java_table(tmp_path, 9)
    log = max(root.glob("a/.*.log.*"), key=lambda path: path.name)
    log.unlink()
    with pytest.raises(InvalidTable, match="is missing"):
        Table.open(root).to_pyarrow_dataset()
    assert isinstance(Table.open(root).to_pyarrow_dataset(read_optimized=True).to_table(), pa.Table)
