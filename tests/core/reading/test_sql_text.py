"""Conditions as SQL text: DuckDB decides what they mean; what is not read is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.reading.filters import RowFilter

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int32()),
        ("big", pa.int32()),
        ("small", pa.float32()),
        ("f", pa.float64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("money", pa.decimal128(9, 2)),
        ("place", pa.struct([("city", pa.string())])),
    ]
)


def _row(number: int) -> dict[str, Any]:
    """Return a row in which every third value of a column is null."""
    at = dt.datetime(2026, 1, 1 + number % 5, number % 24)
    values = {
        "n": number % 7,
        "f": number / 4,
        "flag": number % 2 == 0,
        "day": at.date(),
        "moment": at,
        "zoned": at.replace(tzinfo=dt.UTC),
        "money": Decimal(number).scaleb(-1),
        "place": {"city": "XYZ"[number % 3] + "%_a"[number % 3]},
    }
    kept = {name: v for k, (name, v) in enumerate(values.items()) if (number + k) % 3}
    return {"id": f"k{number:02d}", "big": 20_000_000 * number, "small": number / 10, **kept}


ROWS = pa.Table.from_pylist([_row(number) for number in range(42)], schema=SCHEMA)
_COMPARE = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
_VALUES = {
    "n": st.sampled_from(["0", "3", "-1", "2.5", "n + 1", "n * 2 - 3", "NULL"]),
    "f": st.sampled_from(["0", "1.25", "-0.5", "1e1", "n", "f - 1", "0.1 + 0.2 * 2"]),
    "n * 0.1": st.sampled_from(["0.3", "0.6", "money", "0.1 * 2"]),
    "-big": st.sampled_from(["0.5", "-40000000.0", "n", "-20000000", "f * 2"]),
    "small": st.sampled_from(["0.5", "1.5", "n", "big", "0.5 + 1"]),  # Spark: 0.1 is no float32
    "day": st.sampled_from(["'2026-01-03'", "DATE '2026-01-02'", "NULL"]),
    "moment": st.sampled_from(["'2026-01-03'", "'2026-01-02 05:00:00'", "TIMESTAMP '2026-01-04'"]),
    "zoned": st.sampled_from(["'2026-01-02T05:00:00+00:00'", "'2026-01-03T00:00:00Z'"]),
    "money": st.sampled_from(["0.5", "3", "-1.25", "2.10"]),
    "place.city": st.sampled_from(["'X%'", "'Y_'", "'a'", "id"]),
    "upper(id)": st.sampled_from(["'K01'", "upper(place.city)", "'K' || '03'"]),
    "n / 4": st.sampled_from(["0.5", "f", "1", "n", "cast('1.25' AS DOUBLE)"]),
    "coalesce(n, 9)": st.sampled_from(["9", "n", "2.5", "cast(id <> 'k01' AS INT)"]),
}


@st.composite
def _leaf(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(_VALUES)))
    value = draw(_VALUES[name])
    form = draw(st.sampled_from(["compare", "in", "between", "null", "like", "flag"]))
    if form == "in":
        return f"{name} {draw(st.sampled_from(['IN', 'NOT IN']))} ({value}, {draw(_VALUES[name])})"
    if form == "between":
        return f"{name} BETWEEN {value} AND {draw(_VALUES[name])}"
    if form == "null":
        return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
    if form == "like":
        pattern = draw(st.sampled_from(["X%", "_a", "%", "Y_", ""]))
        return f"place.city {draw(st.sampled_from(['', 'NOT ']))}LIKE '{pattern}'"
    if form == "flag":
        return draw(st.sampled_from(["flag", "NOT flag", "flag = TRUE", "flag <> false"]))
    return f"{name} {draw(_COMPARE)} {value}"


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, st.sampled_from(["AND", "OR"]), inner)
    return st.one_of(two.map(lambda p: f"({' '.join(p)})"), inner.map(lambda c: f"NOT ({c})"))


@pytest.fixture(scope="module")
def judge() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the rows."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", ROWS)
        yield connection


@settings(max_examples=200, deadline=None, database=None)
@given(text=st.recursive(_leaf(), _joined, max_leaves=6))
def test_a_condition_means_what_duckdb_says(judge: duckdb.DuckDBPyConnection, text: str) -> None:
    """The rows that a random condition keeps are those of DuckDB, nulls included."""
    wanted = judge.execute(f"SELECT id FROM rows WHERE {text} ORDER BY id").fetchall()
    found = RowFilter.of(text, SCHEMA).kept(ROWS)["id"].to_pylist()
    assert found == [key for (key,) in wanted], text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n =",
        "n = 1; DROP TABLE t",
        "n = 1 GROUP BY n",
        "SELECT 1",
        "length(id) = 3",
        "CAST(f AS STRING) = '1'",
        "CAST(moment AS STRING) = '1'",
        "CAST(n AS DECIMAL) = 1",
        "TRY_CAST(n AS STRING) = '1'",
        "UPPER(n) = '1'",
        "n || 'x' = '1'",
        "n IN (SELECT 1)",
        "n <=> 1",
        "id RLIKE 'x'",
        "id ILIKE 'x'",
        "id LIKE 'x!_' ESCAPE '!'",
        "n IS TRUE",
        "n IN ()",
        "id LIKE 'x\\\\'",
        "day = '20260102'",
        "\"id\" = 'k01'",
        "1 = 1",
        "'a' IN ('a', 'b')",
        "n BETWEEN 1 AND 2 = 'x'",
        "id / 2 = 1",
        "n % 2 = 1",
        "missing = 1",
        "place.street = 'x'",
        "other.n = 1",
        "n = 'one'",
        "day = 'yesterday'",
        "moment = '2026-01-01T00:00:00Z'",
        "zoned = '2026-01-01 00:00:00'",
        "n = 99999999999999999999",
        "n",
        "'text'",
        "id = 'it''s'",
        "(" * 5000 + "n = 1" + ")" * 5000,
    ],
)
def test_other_text_is_refused(text: str) -> None:
    """What is not supported, unknown or ambiguous is an error that shows the text."""
    with pytest.raises(InvalidConfig) as error:
        RowFilter.of(text, SCHEMA)
    assert repr(text)[:20] in str(error.value) or text[:20] in str(error.value)


def test_reads_updates_and_deletes_take_text(tmp_path: Path) -> None:
    """The same text works in `filters` and `where`, as its expression does."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    table.upsert(ROWS)
    text, expression = (
        "n < 3 AND `day` IS NOT NULL",
        (pc.field("n") < 3) & pc.field("day").is_valid(),
    )
    kept = table.to_arrow(["id"], filters=text)
    assert kept == table.to_arrow(["id"], filters=expression) and kept.num_rows > 0
    table.update(where=text, set={"f": -1.0})
    assert table.to_arrow(["id"], filters="f = -1") == kept
    table.delete(where="f = -1.0 OR flag")
    assert table.to_arrow(filters="f = -1 OR flag = true").num_rows == 0
    many = ", ".join(f"'k{number:02d}'" for number in range(3000))
    assert table.to_arrow(filters=f"id IN ({many})").num_rows == table.to_arrow().num_rows > 0
