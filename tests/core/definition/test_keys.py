"""The text of keys and partition paths is unique for each record."""

from __future__ import annotations

import datetime
import itertools
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hoodie_nb import InvalidInput, Table
from hoodie_nb.definition.keys import record_keys
from hoodie_nb.definition.properties import TableConfig

NAMES = ("a", "b", "c")
PIECES = ["", "x", ",", ":", ",a:", ",b:", ",c:", "b:", "c:", "__null__", "__empty__", "_"]
MEANINGS: dict[str, list[str | None]] = {
    "__null__": ["__null__", None],
    "__empty__": ["__empty__", ""],
    "": [],  # an empty value has a placeholder
}
Values = tuple[str | None, ...]


def config(columns: int) -> TableConfig:
    """Return a table with so many key columns."""
    return TableConfig("t", NAMES[:columns])


def text_of(values: Values) -> str | None:
    """Return the key text of a row, None if it is refused."""
    rows = pa.table({n: pa.array([v], pa.string()) for n, v in zip(NAMES, values, strict=False)})
    try:
        return str(record_keys(rows, config(len(values)))[0].as_py())
    except InvalidInput:
        return None


def keys_of(text: str, columns: int) -> set[Values]:
    """Return every key, by brute force, whose values joined as Hudi does give `text`."""
    marks = [re.finditer(f"(?=(,{name}:))", text) for name in NAMES[1:columns]]
    found: set[Values] = set()
    for cuts in itertools.product(*([match.span(1) for match in one] for one in marks)):
        edges = [len("a:"), *itertools.chain(*cuts), len(text)]
        if edges == sorted(edges):
            values = [text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
            found |= set(itertools.product(*(MEANINGS.get(v, [v]) for v in values)))
    return found


value = st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


@settings(max_examples=500, deadline=None)
@given(st.lists(value, min_size=2, max_size=3))
@example(["x,b:1", "z"])
@example([None, "z"])
def test_the_text_of_a_composite_key_is_unique(key: list[str | None]) -> None:
    """No other key with the text of an accepted key is accepted (found by brute force)."""
    text = text_of(tuple(key))
    if text is not None:
        others = keys_of(text, len(key))
        assert tuple(key) in others
        assert [other for other in others if text_of(other) is not None] == [tuple(key)]


@pytest.mark.parametrize(
    ("key", "column", "why"),
    [
        (("x,b:1", "z"), "a", ",b:"),
        (("x", "1,b:z"), "b", ",b:"),
        (("__null__", "z"), "a", "null"),
        (("x", "__empty__"), "b", "empty"),
    ],
)
def test_an_ambiguous_composite_key_is_refused(
    tmp_path: Path, key: Values, column: str, why: str
) -> None:
    """A value that could belong to another key's text is refused with column, value and count."""
    schema = pa.schema([(n, pa.string()) for n in NAMES[:2]])
    table = Table.create(tmp_path / "t", schema=schema, record_key=NAMES[:2])
    values = [[v, v, f"good{n}"] for n, v in enumerate(key)]
    rows = pa.Table.from_arrays([pa.array(v) for v in values], schema=schema)
    with pytest.raises(InvalidInput, match=rf"column '{column}'.*{why}.*in 2 rows, e.g. '"):
        table.upsert(rows)
    assert table.timeline().empty


@pytest.mark.parametrize(
    "key", [("x:y", "a,b"), (None, "z"), ("x", ""), ("a:1", "b:2"), ("é", "é")]
)
def test_a_plain_composite_key_is_accepted(key: Values) -> None:
    """Commas, colons, nulls, empty values and names of columns are fine by themselves."""
    assert text_of(key) is not None


def test_unicode_forms_are_different_keys() -> None:
    """Keys are compared byte by byte: a composed and a decomposed letter are two keys."""
    rows = pa.table({"a": ["\u00e9", "e\u0301", "e\u0301\0"]})
    assert len(set(record_keys(rows, config(1)).to_pylist())) == 3


@pytest.mark.parametrize("days", [-719_163, 2_932_897, 2_147_483_647])
def test_a_date_without_a_four_digit_year_is_not_a_key(days: int) -> None:
    """Before year 1 and after 9999 engines write a date differently, so it cannot be a key."""
    rows = pa.table({"a": pa.array([0, days], pa.int32()).cast(pa.date32())})
    with pytest.raises(InvalidInput, match=r"column 'a'.*0001.*9999.*in 1 row"):
        record_keys(rows, config(1))


def test_the_first_and_last_dates_are_keys() -> None:
    """The years 1 to 9999 are written with four digits by every engine."""
    rows = pa.table({"a": [datetime.date.min, datetime.date.max]})
    assert record_keys(rows, config(1)).to_pylist() == ["0001-01-01", "9999-12-31"]


def test_a_partition_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    """Levels that are allowed one by one may be too long together; nothing is written."""
    levels = [f"p{number}" for number in range(17)]
    schema = pa.schema([(name, pa.string()) for name in ("id", "k", *levels)])

    def row(value: str) -> pa.Table:
        return pa.Table.from_pylist([{"id": "a", "k": "b", **dict.fromkeys(levels, value)}], schema)

    table = Table.create(tmp_path / "t", schema=schema, record_key=["id", "k"], partition_by=levels)
    table.upsert(row("z" * 175))
    with pytest.raises(InvalidInput, match=r"p0, p1.*longer than 3,000 bytes in 1 row.*zzz"):
        table.upsert(row("z" * 176))
    assert (table.fsck(), table.to_arrow().num_rows) == ([], 1)
