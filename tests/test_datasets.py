"""A table as a lazy dataset of Arrow: what DuckDB, Polars and Arrow read of it, and how much."""

from __future__ import annotations

import importlib.util
import operator
import pickle
import random
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from core.replay import settled
from core.tables import canonical
from core.writes import commit_elsewhere
from matrix.conditions import condition
from matrix.history import MatrixHistory
from run_matrix import explained, step
from s3_server import S3Server

from hoodie_nb import InvalidConfig, Table
from hoodie_nb.reading.filters import RowFilter

FIXTURES = Path(__file__).parent / "fixtures"
PAGE = Path(__file__).parents[1] / "docs" / "reading.md"
STEPS, PER_TEST, TABLES = 7, 10, 200
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("n", pa.int64())])
BOUNDS = 4  # comparisons of a table by each engine
_SIGNS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, ">=": operator.ge}


def rows_of(found: pa.Table | ds.Dataset) -> list[str]:
    """Return the rows in any order, to compare."""
    rows = found.to_table() if isinstance(found, ds.Dataset) else found
    return canonical(map(settled, rows.to_pylist()))


def by_duckdb(source: pa.Table | ds.Dataset, query: str, *values: Any) -> pa.Table:
    """Return the result of a query on `source`."""
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("source", source)
        return connection.sql(query, params=[*values]).to_arrow_table()


# --- random tables --------------------------------------------------------------------------------


def _bounds(rows: pa.Table, draw: random.Random) -> Iterator[tuple[str, str, Any]]:
    """Yield a comparison of each column that has an order with one of its values."""
    for field in rows.schema:
        values = [value for value in rows[field.name].to_pylist() if value is not None]
        if values and not pa.types.is_nested(field.type) and not pa.types.is_binary(field.type):
            yield field.name, draw.choice([*_SIGNS]), draw.choice(values)


def _same_in_engines(table: Table, data: ds.Dataset, draw: random.Random) -> None:
    """Filters of DuckDB, Polars and DataFusion keep of the dataset what `to_arrow` keeps."""
    rows = table.to_arrow()
    plain = [f.name for f in rows.schema if not pa.types.is_nested(f.type)]
    lazy = pl.scan_pyarrow_dataset(_selected(data, plain))
    bounds = [*_bounds(rows, draw)]
    with duckdb.connect(config={"threads": 2}) as duck:
        duck.execute("SET TimeZone = 'UTC'")
        duck.register("data", data)
        duck.register("held", rows)
        for name, sign, value in draw.sample(bounds, min(len(bounds), BOUNDS)):
            kind = rows.schema.field(name).type
            where = _SIGNS[sign](pc.field(name), pa.scalar(value, kind))
            query = f'SELECT * FROM {{}} WHERE "{name}" {sign} ?'
            found, same = (
                duck.sql(query.format(source), params=[value]).to_arrow_table()
                for source in ("data", "held")
            )
            assert rows_of(found) == rows_of(same), (query, value)
            if any(cell != cell for cell in rows[name].to_pylist()):
                continue  # for engines NaN is the greatest value, for Arrow it equals none
            wanted = rows_of(table.to_arrow(filters=where))
            assert rows_of(found) == wanted, (query, value)
            for kept in _by_datafusion(data, name, sign, pa.scalar(value, kind)):
                assert rows_of(kept) == wanted, ("DataFusion", name, sign, value)
            literal = pl.lit(value, pl.Series(pa.array([value], kind)).dtype)
            kept = lazy.filter(_SIGNS[sign](pl.col(name), literal)).collect().to_arrow()
            held = table.to_arrow(plain, filters=where)
            assert rows_of(kept) == rows_of(held), ("Polars", name, sign, value)


def _by_datafusion(data: ds.Dataset, name: str, sign: str, value: pa.Scalar) -> Iterator[pa.Table]:
    """Yield the rows that DataFusion keeps; none if it is not installed."""
    if importlib.util.find_spec("datafusion") is not None:
        import datafusion

        context = datafusion.SessionContext()
        context.register_dataset("data", data)
        column, literal = datafusion.col(f'"{name}"'), datafusion.lit(value)
        kept = context.table("data").filter(_SIGNS[sign](column, literal))
        yield kept.to_arrow_table()


def _selected(data: ds.Dataset, names: list[str]) -> ds.Dataset:
    """Return the dataset without some columns: Polars has no maps."""
    return data.replace_schema(pa.schema([data.schema.field(name) for name in names]))


def _look(history: MatrixHistory) -> None:
    table, draw = history.table, history.draw
    data, rows = table.to_pyarrow_dataset(), table.to_arrow()
    assert data.schema == rows.schema
    assert rows_of(data) == rows_of(rows)
    assert data.count_rows() == rows.num_rows
    for _ in range(4):
        where, _ = condition(history.model.rows.values(), history.model.schema, draw)
        kept = data.to_table(filter=RowFilter.of(where, data.schema).expression)
        assert rows_of(kept) == rows_of(table.to_arrow(filters=where)), where
    _same_in_engines(table, data, draw)
    for time17 in history.times()[-1:]:
        then = table.to_pyarrow_dataset(as_of=time17)
        assert rows_of(then) == rows_of(table.to_arrow(as_of=time17))
    assert rows_of(pickle.loads(pickle.dumps(data))) == rows_of(rows)


@pytest.mark.parametrize("first", range(0, TABLES, PER_TEST))
def test_engines_read_of_random_tables_what_to_arrow_reads(tmp_path: Path, first: int) -> None:
    """Any version, key, partitions, types; columns added and widened: rows and filters agree."""
    for seed in range(first, first + PER_TEST):
        history = MatrixHistory(tmp_path / str(seed), seed)
        with explained(history, seed, f"-m pytest tests/test_datasets.py -k 'reads[{first}]'"):
            for _ in range(STEPS):
                step(history, looks=False)
            _look(history)


# --- how much is read -----------------------------------------------------------------------------


def bytes_read(read: Callable[[], object]) -> int:
    """Return how many bytes this process asks the system for meanwhile."""

    def now() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = now()
    read()
    return now() - before


def test_one_of_many_columns_costs_its_own_bytes(tmp_path: Path) -> None:
    """Arrow, DuckDB and Polars read a column and the footers, by the system's count of bytes."""
    if not Path("/proc/self/io").exists():
        pytest.skip("the system does not count")
    names, rng = [f"c{n}" for n in range(60)], np.random.default_rng(0)
    schema = pa.schema([("id", pa.int64()), *((name, pa.float64()) for name in names)])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.insert(
        pa.table({"id": range(40_000), **{n: rng.random(40_000) for n in names}}, schema=schema)
    )
    (path,) = Path(table.path).glob("*.parquet")
    file = pq.ParquetFile(path)
    group = file.metadata.row_group(0)
    columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    column = columns["c7"].total_compressed_size
    footer, whole = file.metadata.serialized_size, path.stat().st_size
    reads: dict[str, Callable[[ds.Dataset], object]] = {
        "Arrow": lambda data: data.to_table(columns=["c7"]),
        "DuckDB": lambda data: by_duckdb(data, "SELECT sum(c7) FROM source"),
        "Polars": lambda data: pl.scan_pyarrow_dataset(data).select(pl.col("c7").sum()).collect(),
    }
    assert bytes_read(table.to_pyarrow_dataset) <= 1.5 * footer + (1 << 17)
    for name, read in reads.items():
        data = table.to_pyarrow_dataset()
        first = bytes_read(lambda r=read, d=data: r(d))
        assert column <= first <= 1.1 * column + 1.5 * footer + (1 << 17), name
        again = bytes_read(lambda r=read, d=data: r(d))
        assert column <= again <= 1.1 * column + (1 << 14), name  # footers are kept
        assert again < whole / 50 and first < whole / 10
    assert bytes_read(lambda: table.to_pyarrow_dataset().to_table()) >= whole * 0.9
    nothing = bytes_read(lambda: data.to_table(filter=pc.field("id") < 0))
    assert nothing < 1 << 14  # statistics say so


def _parted(path: Path | str, count: int = 3, **options: Any) -> Table:
    """Return a table of as many files, each in a partition of its own."""
    made = Table.create(path, schema=SCHEMA, record_key="id", partition_by="p", **options)
    made.upsert([{"id": f"k{n}", "p": f"p{n:02}", "n": n} for n in range(count)])
    return made


def test_a_filter_on_a_partition_column_opens_only_its_files(tmp_path: Path) -> None:
    """The files of other partitions may even be gone; the values are read from the files."""
    table = _parted(tmp_path / "t", 12)
    data, rows = table.to_pyarrow_dataset(), table.to_arrow()
    assert sorted(data.to_table()["p"].to_pylist()) == [f"p{n:02}" for n in range(12)]
    data = table.to_pyarrow_dataset()
    for file in Path(table.path).glob("*/*.parquet"):
        if file.parent.name not in ("p03", "p07"):
            file.unlink()
    found = data.to_table(columns=["n"], filter=pc.field("p") == "p07")
    assert found["n"].to_pylist() == [7]
    assert by_duckdb(data, "SELECT n FROM source WHERE p = 'p03'")["n"].to_pylist() == [3]
    lazy = pl.scan_pyarrow_dataset(data).filter(pl.col("p").is_in(["p03", "p07"]))
    assert sorted(lazy.collect()["n"]) == [3, 7] and rows.num_rows == 12


# --- one snapshot, or an error --------------------------------------------------------------------


def test_a_dataset_stays_the_snapshot_of_its_commit(tmp_path: Path) -> None:
    """Later commits are not in it, and `as_of` returns an earlier one."""
    table = _parted(tmp_path / "t")
    first = table.history()["requested_time"].iloc[-1]
    data, before = table.to_pyarrow_dataset(), table.to_arrow()
    table.upsert([{"id": "k1", "p": "p01", "n": 100}, {"id": "new", "p": "q", "n": 5}])
    assert rows_of(data) == rows_of(before) == rows_of(table.to_pyarrow_dataset(as_of=first))
    assert rows_of(table.to_pyarrow_dataset()) == rows_of(table.to_arrow()) != rows_of(before)


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    """docs/reading.md: DuckDB finds the dataset by its name, Polars scans it."""
    every = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (code,) = (part for part in every if "scan_pyarrow_dataset" in part)
    names = {"board": _parted(tmp_path / "t"), "duckdb": duckdb, "pl": pl}
    exec(compile(code, str(PAGE), "exec"), names)
    assert sorted(names["data"].to_table()["n"].to_pylist()) == [0, 1, 2]


def test_an_empty_table_is_an_empty_dataset(tmp_path: Path) -> None:
    """It has the columns, and no rows in any engine."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    data = table.to_pyarrow_dataset()
    assert data.schema.names[-3:] == SCHEMA.names and data.count_rows() == 0
    assert by_duckdb(data, "SELECT id FROM source").num_rows == 0


ENGINES: dict[str, Callable[[ds.Dataset], object]] = {
    "Arrow": lambda data: data.to_table(columns=["n"]),
    "Arrow, all columns": lambda data: data.to_table(),
    "DuckDB": lambda data: by_duckdb(data, "SELECT sum(n) FROM source"),
    "Polars": lambda data: pl.scan_pyarrow_dataset(data).select(pl.col("n").sum()).collect(),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deleted_file_is_an_error(tmp_path: Path, engine: str) -> None:
    """Never fewer rows: the error names the file."""
    table = _parted(tmp_path / "t")
    data = table.to_pyarrow_dataset()
    next(Path(table.path, "p01").glob("*.parquet")).unlink()
    with pytest.raises(Exception, match=r"(?s)p01/.*parquet.*No such file"):
        ENGINES[engine](data)


def test_files_that_are_deleted_in_the_middle_of_a_read_are_an_error(tmp_path: Path) -> None:
    """After the first rows, all files go: what was not open yet is missed."""
    table = _parted(tmp_path / "t", 60)
    batches = table.to_pyarrow_dataset().to_batches(fragment_readahead=1, batch_readahead=1)
    rows = next(batches).num_rows
    for file in Path(table.path).glob("*/*.parquet"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match="No such file"):
        rows += sum(batch.num_rows for batch in batches)
    assert rows < 60


def test_a_commit_that_is_undone_is_an_error(tmp_path: Path) -> None:
    """Its files are deleted; a new dataset has the old rows."""
    table = _parted(tmp_path / "t")
    before = rows_of(table.to_arrow())
    undone = table.upsert([{"id": "k1", "p": "p01", "n": 100}])
    assert undone is not None
    data = table.to_pyarrow_dataset()
    table.rollback()
    with pytest.raises(FileNotFoundError, match=undone.requested_time):
        data.to_table()
    assert rows_of(table.to_pyarrow_dataset()) == before


def test_a_damaged_page_is_an_error(tmp_path: Path) -> None:
    """The checksums of pages are verified."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    table.upsert([{"id": f"k{n}", "p": None, "n": n * 7919} for n in range(2000)])
    (path,) = Path(table.path).glob("*.parquet")
    column = pq.ParquetFile(path).metadata.row_group(0).column(SCHEMA.names.index("n") + 5)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    for engine in ("Arrow", "DuckDB", "Polars"):
        with pytest.raises(Exception, match="CRC"):
            ENGINES[engine](table.to_pyarrow_dataset())


# --- files that Arrow would read in another way ---------------------------------------------------


def test_older_types_are_converted_as_to_arrow_does(tmp_path: Path) -> None:
    """Floats keep their decimal text, integers become text; statistics leave out no NaN."""
    kinds = {"id": pa.string(), "f": pa.float32(), "g": pa.float32(), "n": pa.int32()}
    old = pa.schema([*kinds.items(), ("p", pa.string())])
    kinds |= {"f": pa.float64(), "n": pa.string()}
    new = pa.schema([*kinds.items(), ("p", pa.string()), ("more", pa.int64())])
    table = Table.create(tmp_path / "t", schema=old, record_key="id", partition_by="p")
    nan = float("nan")
    rows = [["a", "b"], [0.1, nan], [1.0, nan], [7, None], ["x", "x"]]
    table.upsert(pa.table(rows, schema=old))
    later = [["c"], [0.1], [1.0], ["t"], ["y"], [1 << 40]]
    commit_elsewhere(table.path, pa.table(later, schema=new))
    data = table.to_pyarrow_dataset()
    assert rows_of(data) == rows_of(table.to_arrow())
    kept = [
        (pc.field("f") == 0.1, "ac"),
        (pc.field("f") != 0.1, "b"),
        (pc.field("g") != 1, "b"),
        (pc.field("n") == "7", "a"),
        (pc.field("more").is_null(), "ab"),
    ]
    for where, keys in kept:
        assert "".join(sorted(data.to_table(filter=where)["id"].to_pylist())) == keys, where
    found = by_duckdb(data, "SELECT n FROM source WHERE f = 0.1 ORDER BY id")
    assert found["n"].to_pylist() == ["7", "t"]


@pytest.mark.parametrize("version", [6, 9])
def test_dates_of_the_old_calendar_are_those_of_to_arrow(tmp_path: Path, version: int) -> None:
    """A table that Java wrote with LEGACY dates: Arrow alone would show other days."""
    name = f"v{version}_legacy_calendar"
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    table = Table.open(tmp_path / name)
    data = table.to_pyarrow_dataset()
    assert rows_of(data) == rows_of(table.to_arrow())
    for day in table.to_arrow()["day"].to_pylist():
        kept = data.to_table(filter=pc.field("day") == day)
        assert kept["day"].to_pylist() == [day]


def test_a_table_on_an_object_store_is_refused(s3_server: S3Server) -> None:
    """The error names `to_arrow`, which reads it."""
    table = _parted(s3_server.new_root(), storage_options=s3_server.options)
    with pytest.raises(InvalidConfig, match=r"object store.*to_arrow\("):
        table.to_pyarrow_dataset()
