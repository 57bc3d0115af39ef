"""Whole batches are sorted by partition, key and arrival, whatever their shape, without a copy."""

import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.rows.columns import SEQ
from hoodie_nb.rows.sorting import in_order, tables_in_order
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

ROWS = 280_000
SHAPES = {  # rows of each partition: equal, one large one among small ones, many, a single one
    "equal": [ROWS // 8] * 8,
    "skewed": [5, 200_000, 7, 79_000, 1, 987],
    "many": [40] * (ROWS // 40),
    "single": [ROWS],
    "few rows": [3, 1, 2],
}


def batch(sizes: list[int], chunk_rows: int) -> pa.Table:
    """Return rows of so many partitions in random order; keys repeat, `id` is the record key."""
    rng, count = np.random.default_rng(len(sizes)), sum(sizes)
    numbers = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    places = pa.array([f"day={n % 7}/{n:05d}" for n in range(len(sizes))]).take(pa.array(numbers))
    keys = pa.array(rng.integers(0, max(1, count // 2), count)).cast(pa.string())
    lists = pa.array([[n] for n in range(100)]).take(pa.array(rng.integers(0, 100, count)))
    columns = {RECORD_KEY: keys, PARTITION_PATH: places, SEQ: np.arange(count)}
    rows = pa.table({**columns, "id": keys, "list": lists, "n": rng.integers(0, 9, count)})
    return pa.Table.from_batches(rows.to_batches(max_chunksize=chunk_rows))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk_rows", [ROWS, 70_001, 97])
def test_a_batch_of_any_shape_is_sorted_as_pandas_sorts_it(shape: str, chunk_rows: int) -> None:
    """All columns follow the order of partition, key and arrival, also shared and nested ones."""
    rows = batch(SHAPES[shape], chunk_rows)
    wanted = rows.to_pandas(types_mapper=pd.ArrowDtype)
    wanted = wanted.sort_values([PARTITION_PATH, RECORD_KEY, SEQ], ignore_index=True)
    found = in_order(rows)
    found.validate(full=True)
    assert found.schema == rows.schema
    pd.testing.assert_frame_equal(found.to_pandas(types_mapper=pd.ArrowDtype), wanted)


def test_each_table_has_whole_partitions() -> None:
    """No partition is in two of the tables that are yielded, and none is large for no reason."""
    for shape in ("equal", "skewed", "many"):
        tables = [*tables_in_order(batch(SHAPES[shape], ROWS))]
        assert len(tables) > 1
        paths = [path for t in tables for path in t.column(PARTITION_PATH).unique().to_pylist()]
        assert len(paths) == len(set(paths)) == len(SHAPES[shape])
        assert all(t.num_rows <= 2 * (1 << 17) for t in tables) or shape == "skewed"


@pytest.mark.parametrize("chunk", [10_000, ROWS])  # Spark gives 10,000 rows a chunk
@pytest.mark.parametrize(("sizes", "share"), [([140_000] * 12, 0.5), ([ROWS], 1.1)])
def test_a_large_batch_is_not_copied_twice(chunk: int, sizes: list[int], share: float) -> None:
    """While its tables are used, less than half of a copy is in memory; of one partition, one."""
    rows, most = batch(sizes, ROWS), 0
    parts = [rows.slice(start, chunk) for start in range(0, rows.num_rows, chunk)]
    rows = pa.concat_tables(part.take(pa.array(np.arange(part.num_rows))) for part in parts)
    before = pa.total_allocated_bytes()
    for table in tables_in_order(rows):
        for _ in range(0 if most else 40):  # meanwhile all others could be sorted
            assert table.sort_by([(name, "ascending") for name in ("n", SEQ)]).num_rows
        most = max(most, pa.total_allocated_bytes() - before)
        del table
    assert 0 < most < rows.nbytes * share


def test_a_failed_write_leaves_no_sorting_threads(tmp_path: Path) -> None:
    """While the error of a large write is still held, no thread of it is alive; a retry works."""
    rng = np.random.default_rng(1)
    keys = pa.array(rng.permutation(ROWS)).cast(pa.string())
    days = pa.array([f"d{n}" for n in range(40)]).take(pa.array(rng.integers(0, 40, ROWS)))
    rows = pa.table({"id": keys, "day": days, "n": np.arange(ROWS)})
    limits = {"write.batch.size": "200 KB", "write.task.max.size": "2 MB"}
    names = {"record_key": "id", "partition_by": "day", "ordering": "n"}
    table = hn.Table.create(tmp_path / "t", schema=rows.schema, **names, options=limits)
    before = set(threading.enumerate())
    failpoints.arm("writer.flush=raise:EIO")
    with pytest.raises(hn.WriteFailed, match="rolled back") as held:
        table.upsert(rows)
    failpoints.arm("")
    assert set(threading.enumerate()) <= before, held
    table.upsert(rows)
    assert table.to_arrow(["n"]).num_rows == ROWS
    assert table.fsck() == []


def test_an_empty_batch_stays_empty() -> None:
    """No rows are no tables, and an empty table of the same schema."""
    rows = batch([1], ROWS).slice(1)
    assert in_order(rows).num_rows == 0
    assert in_order(rows).schema == rows.schema
