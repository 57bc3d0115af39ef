"""Input whose types are mixed or shared, as a review found it: stored as given, or refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from hoodie_nb import Table
from hoodie_nb.errors import InvalidInput
from hoodie_nb.intake.objects import from_objects
from hoodie_nb.types.conversion import fitted

DAY = dt.date(2026, 1, 1)
REFUSED: list[tuple[list[Any], pa.DataType, str]] = [
    ([DAY, 5], pa.date32(), "dates and integers"),
    ([DAY, 0.5], pa.date32(), "dates and floats"),
    ([DAY, dt.datetime(2026, 1, 1)], pa.date32(), "dates and times"),
    ([np.datetime64("2026-01-01"), np.int64(1)], pa.date32(), "datetime64"),
    ([0.5, np.uint64(2**64 - 1)], pa.float64(), "too large"),
    ([1, True], pa.int64(), "booleans and integers"),
    ([1.0, np.True_], pa.float64(), "booleans and floats"),
    ([1, np.longdouble("0.1")], pa.float64(), "longdouble"),
    ([np.longdouble("0.1")], pa.float64(), "longdouble"),
    ([0.5, Decimal("0.5")], pa.float64(), "decimals and floats"),
]
STORED: list[tuple[list[Any], pa.DataType]] = [
    ([1, np.float16(0.5)], pa.float64()),
    ([np.int8(1), np.int64(5), 7, None], pa.int32()),
    ([1, 2.0, None], pa.int64()),
    ([1, Decimal("2.50")], pa.decimal128(10, 2)),
    ([True, np.False_], pa.bool_()),
]


def table(folder: Path, kind: pa.DataType, *names: str) -> Table:
    """Return a table with a key and columns of one type."""
    schema = pa.schema({"id": pa.string(), **dict.fromkeys(names, kind)})
    return Table.create(folder / "t", schema=schema, record_key="id")


@pytest.mark.parametrize(("cells", "kind", "why"), REFUSED)
def test_a_mixture_that_arrow_would_guess_at_is_refused(cells, kind, why):
    """The message names the row that does not belong to the rows before it."""
    with pytest.raises(InvalidInput, match=why) as refused:
        from_objects(cells, "v", kind)
    assert f"row {len(cells) - 1} " in str(refused.value) or "row 0 " in str(refused.value)


@pytest.mark.parametrize(("cells", "kind"), STORED)
def test_numbers_of_several_types_keep_their_values(cells, kind):
    """Python's, numpy's and decimal numbers are compared with what is stored."""
    assert from_objects(cells, "v", kind).to_pylist() == cells


def test_slices_of_one_array_stay_different_columns(tmp_path):
    """Two struct columns that share their memory are sorted separately."""
    kind = pa.struct([("a", pa.int32())])
    made = table(tmp_path, kind, "before", "after")
    both = pl.Series([{"a": n} for n in range(6)], dtype=pl.Struct({"a": pl.Int32}))
    made.upsert(pl.DataFrame({"id": ["c", "a", "b"], "before": both[:3], "after": both[3:]}))
    found = {
        row["id"]: (row["before"]["a"], row["after"]["a"]) for row in made.to_arrow().to_pylist()
    }
    assert found == {"c": (0, 3), "a": (1, 4), "b": (2, 5)}


def test_the_fields_of_pairs_count_by_name(tmp_path):
    """A struct of a value and a key, in this order, becomes an entry of that key."""
    made = table(tmp_path, pa.map_(pa.string(), pa.string()), "v")
    pair = pa.struct([("value", pa.string()), ("key", pa.string())])
    entries = pa.array([[{"value": "v", "key": "k"}]], pa.list_(pair))
    made.upsert(pa.table({"id": ["a"], "v": entries}))
    assert made.to_arrow(["v"]).to_pylist() == [{"v": [("k", "v")]}]
    other = pa.array(
        [[{"x": "1", "y": "2"}]], pa.list_(pa.struct({"x": pa.string(), "y": pa.string()}))
    )
    with pytest.raises(InvalidInput, match="cast it first"):
        made.upsert(pa.table({"id": ["a"], "v": other}))


@pytest.mark.parametrize("kind", [pl.Categorical(), pl.Enum(["x", "y"])])
def test_categories_of_polars_are_texts(tmp_path, kind):
    """Their dictionaries are of string views."""
    made = table(tmp_path, pa.string(), "v")
    made.upsert(pl.DataFrame({"id": ["a", "b"], "v": pl.Series(["y", None], dtype=kind)}))
    assert sorted(made.to_arrow(["v"])["v"].to_pylist(), key=str) == [None, "y"]


def test_half_floats_become_floats():
    """Each half float has an equal float."""
    halves = pa.array(np.array([0.5, 1.0, np.nan], np.float16))
    assert str(fitted(halves, "v", pa.float32()).to_pylist()) == "[0.5, 1.0, nan]"


def test_a_column_too_large_as_a_whole_names_no_row():
    """Texts of more than 2 GiB in a dictionary: each row fits, all of them do not."""
    large = pa.DictionaryArray.from_arrays(np.zeros(2200, np.int32), pa.array(["x" * 1_000_000]))
    with pytest.raises(InvalidInput, match="several batches"):
        fitted(large, "v", pa.string())
