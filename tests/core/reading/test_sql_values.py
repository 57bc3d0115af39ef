"""SQL text in `set=`: DuckDB decides what it means, and a string without its quotes is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import hudi_rows, pending_names, without_meta
from test_sql_text import ROWS, SCHEMA

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.reading.filters import projected
from hoodie_nb.reading.sql_text import value_for
from hoodie_nb.types.conversion import fitted

_WHOLE = st.sampled_from(["n", "big", "3", "-1", "NULL", "coalesce(n, 0)", "cast(flag AS INT)"])
_REAL = st.sampled_from(
    ["f", "n / 4", "0.5", "coalesce(f, 1)", "cast(money AS DOUBLE)", "-f", "money / 2"]
)
_MONEY = st.sampled_from(["money", "0.25", "7", "coalesce(money, 0)", "cast(n AS DECIMAL(9, 2))"])
_TEXT = st.sampled_from(
    ["id", "'new'", "upper(place.city)", "lower(id)", "cast(n AS STRING)", "cast(day AS STRING)"]
)
_DAY = st.sampled_from(["day", "'2026-01-05'", "DATE '2026-01-06'", "NULL"])
_FLAG = st.sampled_from(["flag", "n > 2", "day = '2026-01-03'", "NOT flag", "id LIKE '%1'"])


def _infix(values: st.SearchStrategy[str], *operators: str) -> st.SearchStrategy[str]:
    two = st.tuples(values, st.sampled_from(operators), values)
    return st.one_of(values, two.map(lambda parts: f"({' '.join(parts)})"))


VALUES = {
    "n": _infix(_WHOLE, "+", "-"),
    "big": _infix(_WHOLE, "+", "-"),
    "f": _infix(_infix(_REAL, "+", "-", "*"), "+", "-"),
    "small": st.sampled_from(["small * 2", "small + 0.1", "0.1", "cast(f AS FLOAT)", "n"]),
    "money": _infix(_MONEY, "+", "-").map(lambda sql: f"cast({sql} * 1.15 AS DECIMAL(9, 2))"),
    "id": _infix(_TEXT, "||"),
    "day": st.tuples(_DAY, _DAY).map(lambda two: f"coalesce({', '.join(two)})"),
    "moment": st.sampled_from(["moment", "TIMESTAMP '2026-01-05 01:02:03'"]),
    "zoned": st.sampled_from(["zoned", "'2026-01-05T01:02:03+00:00'"]),
    "flag": _infix(_FLAG, "AND", "OR"),
    "place": st.sampled_from(["place", "NULL"]),
}


@settings(max_examples=150, deadline=None, database=None)
@given(data=st.data(), column=st.sampled_from(sorted(VALUES)))
def test_a_value_means_what_duckdb_says(data: st.DataObject, column: str) -> None:
    """`UPDATE ... SET` of DuckDB sets the same values, nulls included."""
    _duckdb_agrees(column, data.draw(VALUES[column]))


NULLS = ["3 + NULL", "(NULL) - 3", "-NULL + 3", "coalesce(NULL, NULL) + 3", "NULL * NULL"]
NULLS += ["coalesce(NULL, 3) + NULL", "(3 + NULL) + 2", "coalesce(n, NULL) + NULL"]


@pytest.mark.parametrize("column", ["big", "f", "money"])
@pytest.mark.parametrize("text", NULLS)
def test_a_null_among_constants_has_their_type(column: str, text: str) -> None:
    """Arrow 22 does not compute with a null that has no type."""
    _duckdb_agrees(column, text)


def _duckdb_agrees(column: str, text: str) -> None:
    with duckdb.connect(config={"threads": 1}) as judge:
        judge.execute("SET TimeZone = 'UTC'")
        judge.register("given", ROWS)
        judge.execute("CREATE TABLE t AS SELECT row_number() OVER () AS nr, * FROM given")
        judge.execute(f"UPDATE t SET {column} = {text}")
        wanted = [
            cell for (cell,) in judge.execute(f"SELECT {column} FROM t ORDER BY nr").fetchall()
        ]
    new = projected(ROWS, {column: value_for(column, text, SCHEMA)}).column(0)
    found = fitted(new, column, SCHEMA.field(column).type)
    assert _digits(found.to_pylist()) == _digits(wanted), text


def _digits(values: list[Any]) -> list[Any]:
    """Return floats without their last digits: Arrow may add in another order."""
    return [float(f"{value:.12g}") if isinstance(value, float) else value for value in values]


REFUSED = {
    "new": ("id", "there is no column new", "\"'new'\" or pc.scalar"),
    "New York": ("id", "parse", "\"'New York'\""),
    "": ("id", "No expression", "\"''\""),
    "it's": ("id", "tokenizing", 'pc.scalar("it\'s")'),
    "2026-01-05": ("day", "decimal.*date", "\"'2026-01-05'\""),
    "5": ("id", "column is string", "\"'5'\""),
    "true": ("id", "bool.*string", "\"'true'\""),
    "'x'": ("n", "it is string.*int32", "SQL"),
    "upper(n)": ("id", r"CAST\(n AS string\)", "SQL"),
    "n || 'x'": ("id", r"CAST\(n AS string\)", "SQL"),
    "id / 2": ("f", r"CAST\(id AS double\)", "SQL"),
    "money / 2": ("money", "double.*decimal", "SQL"),
    "sum(n)": ("n", "not supported", "SQL"),
    "cast(f AS STRING)": ("id", "from double to STRING", "SQL"),
    "cast(n AS DECIMAL)": ("money", "to DECIMAL", "SQL"),
    "n; DROP TABLE t": ("n", ".", "SQL"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_text_that_is_no_sql_for_the_column_is_refused_with_the_cure(text: str) -> None:
    """The error shows the text, the reason, and the string as it is to be written."""
    column, why, cure = REFUSED[text]
    with pytest.raises(InvalidConfig, match=rf"(?s)set\['{column}'\].*{why}") as error:
        value_for(column, text, SCHEMA)
    assert cure in str(error.value)


def _table(path: Path) -> Table:
    table = Table.create(path / "t", schema=SCHEMA, record_key="id")
    table.upsert(ROWS)
    return table


def test_an_update_takes_sql_as_its_condition_does(tmp_path: Path) -> None:
    """All values are computed from the old row, and hudi-rs and DuckDB agree on the new ones."""
    schema = pa.schema(
        [("id", pa.string()), ("v", pa.int32()), ("w", pa.int32()), ("s", pa.string())]
    )
    rows = [{"id": f"k{n}", "v": n, "w": None if n % 2 else -n, "s": f"s{n}"} for n in range(9)]
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert(rows)
    new = {"v": "coalesce(w, 0) - 1", "w": "v + 1", "s": "upper(s) || '!'"}
    commit = table.update(where="v > 2 AND s <> 's5'", set=new)
    assert commit is not None and commit.updates == 5
    with duckdb.connect() as judge:
        judge.register("given", pa.Table.from_pylist(rows, schema))
        judge.execute("CREATE TABLE t AS FROM given")
        sets = ", ".join(f"{name} = {sql}" for name, sql in new.items())
        judge.execute(f"UPDATE t SET {sets} WHERE v > 2 AND s <> 's5'")
        wanted = judge.execute("FROM t ORDER BY id").fetchall()
    found = sorted(tuple(row.values()) for row in table.to_arrow(meta=False).to_pylist())
    assert found == wanted
    assert hudi_rows(table.path) == without_meta(table.to_arrow())


def test_strings_are_set_with_their_quotes_or_as_scalars(tmp_path: Path) -> None:
    """The three ways to write a string store the same; the name of a column is its value."""
    schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", pa.string())])
    texts = Table.create(tmp_path / "t", schema=schema, record_key="k")
    texts.upsert([{"k": n, "s": "", "t": "other"} for n in range(4)])
    for n, text in enumerate(["'t'", pc.scalar("t"), pa.scalar("t"), "t"]):
        texts.update(where=f"k = {n}", set={"s": text})
    found = sorted((row["k"], row["s"]) for row in texts.to_arrow(meta=False).to_pylist())
    assert found == [(0, "t"), (1, "t"), (2, "t"), (3, "other")]


@pytest.mark.parametrize("text", ["n / 0", "big * 1000000", "cast(id AS INT)", "cast(f AS INT)"])
def test_a_value_that_cannot_be_computed_writes_nothing(tmp_path: Path, text: str) -> None:
    """Division by zero, an overflow or a lossy cast on a matching row is refused by name."""
    table = _table(tmp_path)
    before = table.to_arrow()
    with pytest.raises(InvalidInput, match=r"\['n'\]|'n'"):
        table.update(where="n > 1 AND f IS NOT NULL", set={"n": text})
    assert table.to_arrow() == before and pending_names(tmp_path / "t") == []
