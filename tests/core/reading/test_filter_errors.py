"""Filters and partitions that a user may give: right rows, or an error about the filter."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, 20, 300]),
        (pa.int32(), [-5, 0, 12]),
        (pa.date32(), [dt.date(2026, 1, day) for day in (1, 2, 30)]),
        (pa.bool_(), [False, True]),
        (pa.string(), ["a", "b", "c"]),
    ],
)
def test_a_record_key_of_any_type_can_be_filtered(tmp_path, kind, values):
    """The key range in the footer is text, which only a text column is compared with."""
    table = Table.create(tmp_path / "t", schema=pa.schema({"id": kind}), record_key="id")
    table.upsert(pa.table({"id": pa.array(values, kind)}))
    for value in values:
        found = table.to_arrow(["id"], filters=[("id", "=", value)])
        assert found["id"].to_pylist() == [value]
        rest = table.to_arrow(["id", "id"], filters=pc.field("id") != value)
        assert sorted(rest.column(0).to_pylist()) == [v for v in sorted(values) if v != value]


@pytest.mark.parametrize(
    "wrong",
    [
        pc.field("n") > 2.5,
        pc.field("n") / 0 > 1,
        pc.field("s").cast(pa.int64()) > 3,
        {"n": 5},
        [("n", "about", 5)],
    ],
)
def test_a_filter_that_fails_is_an_error_about_the_filter(tmp_path, wrong):
    """It depends on the values, and says nothing about the files."""
    schema = pa.schema({"id": pa.string(), "n": pa.int64(), "s": pa.string()})
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert([{"id": "a", "n": 20_000_000, "s": "x"}, {"id": "b", "n": 1, "s": "x"}])
    with pytest.raises(InvalidConfig, match="filter"):
        table.to_arrow(filters=wrong)


@pytest.mark.parametrize("paths", [["1", "1/"], ["./1"], ["1/."], ["../t/1"], ["/1"], [1], [None]])
def test_what_is_no_partition_path_is_refused(tmp_path, paths):
    """Another spelling of a path would return its rows a second time."""
    table = Table.create(
        tmp_path / "t",
        schema=pa.schema({"id": pa.string(), "d": pa.string()}),
        record_key="id",
        partition_by="d",
    )
    table.upsert([{"id": "a", "d": "1"}])
    with pytest.raises(InvalidConfig, match="partition"):
        table.to_arrow(partitions=paths)
    assert table.to_arrow(partitions=["1", "1"]).num_rows == 1
