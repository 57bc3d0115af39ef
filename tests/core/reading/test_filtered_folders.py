"""A filter on partition columns lists only the folders that may have rows that it keeps."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tables import canonical
from test_touched import MANY, SCHEMA, Listed, make, rows

from hoodie_nb import Table
from hoodie_nb.definition.rules import PATH as RULES

PART = pc.field("p")
FILTERS: dict[str, Any] = {
    "equal": [("p", "=", "p01")],
    "in": [("p", "in", ["p01", "p04"])],
    "range": (PART > "p02") & (PART < "p04/z"),
    "text": "p = 'p01' or p = 'p03'",
    "with another column": (PART == "p01") & (pc.field("v") > 1),
    "below": PART == "p01/x",
    "at least below": PART >= "p01/x",
    "not": ~(PART == "p01"),
    "null": PART.is_null(),
    "valid": PART.is_valid(),
    "either column": (PART == "p02") | (pc.field("v") == 2),
    "meta": pc.field("_hoodie_partition_path") == "p01",
    "none": PART == "p99",
}


def listed(table: Table, **options: Any) -> tuple[list[str], list[Any]]:
    """Return the folders of the data that a read lists, and its rows."""
    storage = Listed(table.path)
    found = Table.open(storage).to_arrow(**options)
    return storage.folders, canonical(found.to_pylist())


@pytest.mark.parametrize("name", ["equal", "in", "text", "with another column", "none"])
def test_a_filter_lists_no_other_partition(tmp_path: Path, name: str) -> None:
    """It lists as many folders of a table with 60 partitions as of one with 6."""
    tables = [make(tmp_path / f"t{n}", MANY[:n]) for n in (6, 60)]
    few, many = [listed(table, filters=FILTERS[name]) for table in tables]
    assert few[0] == many[0] and len(few[1]) == len(many[1]) == len(few[0]) - 1 <= 2
    everything, _ = listed(tables[1], filters=pc.field("v") >= 0)
    assert len(everything) == 61


def values_below(table: Table, hive_style: bool) -> None:
    """Add a partition of the value `p01/x`, as an engine writes it that does not encode it."""
    name = "p={}" if hive_style else "{}"
    source, folder = (Path(table.path, name.format(value)) for value in ("p03", "p01/x"))
    shutil.copytree(source, folder)
    (file,) = folder.glob("*.parquet")
    content = pq.read_table(file, partitioning=None)
    for column, value in (("p", "p01/x"), ("_hoodie_partition_path", name.format("p01/x"))):
        values = pa.array([value] * content.num_rows)
        content = content.set_column(content.column_names.index(column), column, values)
    pq.write_table(content, file)


@pytest.mark.parametrize("hive_style", [False, True])
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_what_it_keeps_of_all_rows(
    tmp_path: Path, name: str, hive_style: bool
) -> None:
    """Also of values with a slash, whose folder is below that of another value, and of nulls."""
    keys = {"record_key": "id", "partition_by": "p", "hive_style": hive_style}
    table = Table.create(tmp_path / "t", schema=SCHEMA, **keys)
    table.upsert(rows(1, *((p, "a") for p in MANY[:6]), (None, "a"), ("p01", "b")))
    table.upsert(rows(2, ("p01", "a"), ("p05", "a")))
    values_below(table, hive_style)
    Path(os.fsdecode(os.fsencode(table.path) + b"/\xff")).mkdir()  # no partition
    every, filters = table.to_arrow(), FILTERS[name]
    assert "p01/x" in every["p"].to_pylist()
    if name == "text":
        filters = (PART == "p01") | (PART == "p03")
    elif isinstance(filters, list):
        filters = pq.filters_to_expression(filters)
    wanted = canonical(every.filter(filters).to_pylist())
    folders, found = listed(table, filters=FILTERS[name])
    assert found == wanted
    assert canonical(
        table.to_arrow(
            filters=FILTERS[name], partitions=["p=p01" if hive_style else "p01"]
        ).to_pylist()
    ) == [row for row in wanted if row in canonical(every.filter(PART == "p01").to_pylist())]
    assert len(folders) == len({*folders}) <= 10


@pytest.mark.parametrize("url_encode", [False, True])
def test_the_levels_of_several_columns(tmp_path: Path, url_encode: bool) -> None:
    """Dates and encoded text end at a slash, so the folders below them are chosen, too."""
    schema = pa.schema({"id": pa.string(), "day": pa.date32(), "p": pa.string(), "n": pa.int32()})
    keys = {"record_key": ["id", "n"], "partition_by": ["day", "p", "n"], "url_encode": url_encode}
    table = Table.create(tmp_path / "t", schema=schema, **keys)
    days = [dt.date(2026, 1, day) for day in (1, 2, 3)]
    texts = ["a/b", "c"] if url_encode else ["b", "c"]
    found = [
        {"id": f"{d}{p}{n}", "day": d, "p": p, "n": n} for d in days for p in texts for n in (1, 2)
    ]
    table.upsert(pa.Table.from_pylist(found, schema))
    every = table.to_arrow()
    counts = [
        (pc.field("day") == days[0], 1 + 1 + 2 + 4),
        ((pc.field("day") == days[0]) & (pc.field("p") == texts[0]), 1 + 1 + 1 + 2),
        (pc.field("n") == 1, 1 + 3 + 6 + (6 if url_encode else 12)),
        ((pc.field("p") == texts[0]) & (pc.field("n") == 1), 1 + 3 + 3 + (3 if url_encode else 6)),
    ]
    for expression, count in counts:
        folders, kept = listed(table, filters=expression)
        assert kept == canonical(every.filter(expression).to_pylist())
        assert len(folders) == count


def test_all_folders_are_listed_if_they_may_be_needed(tmp_path: Path) -> None:
    """As of an earlier time, and in a table whose paths another engine may make in its own way."""
    table = make(tmp_path / "t", MANY[:6])
    first = table.timeline()["requested_time"][0]
    folders, found = listed(table, filters=FILTERS["equal"], as_of=first)
    assert len(folders) >= 7 and len(found) == 1
    Path(table.path, RULES).unlink()
    Path(table.path, "z").mkdir()
    Path(table.path, "p01").rename(Path(table.path, "z", "p01"))
    folders, found = listed(table, filters=FILTERS["equal"])
    assert len(folders) >= 7 and len(found) == 1
