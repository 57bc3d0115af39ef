"""Base files with dates in the calendar of Spark 2: tables of Java, and files made by hand."""

from __future__ import annotations

import datetime as dt
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tables import hudi_table

from hoodie_nb import InvalidTable, Table
from hoodie_nb.files.base_file import open_base_file
from hoodie_nb.files.calendars import HybridCalendar

FIXTURES = Path(__file__).parents[2] / "fixtures"
VERSIONS = [6, 9]
SPARK, ZONE = "org.apache.spark.version", "org.apache.spark.timeZone"
DATETIME, INT96 = "org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96"
LEGACY = {SPARK: "3.5.8", DATETIME: "", ZONE: "Asia/Tokyo"}
DAYS = {  # of the rows of the fixtures, and as the files have them
    "a": (dt.date(1400, 2, 28), dt.date(1400, 3, 8)),
    "b": (dt.date(1582, 10, 4), dt.date(1582, 10, 14)),
    "c": (dt.date(1582, 10, 15), dt.date(1582, 10, 15)),
    "d": (dt.date(1, 1, 1), None),  # two days before the first date of Python
    "e": (dt.date(2024, 2, 29), dt.date(2024, 2, 29)),
    "f": (dt.date(1000, 1, 1), dt.date(1000, 1, 6)),
}


def java_table(version: int, into: Path) -> Table:
    """Return a table that Java's bulk insert wrote with the mode LEGACY, partitioned by date."""
    name = f"v{version}_legacy_calendar"
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(into)
    return Table.open(into / name)


def expected(keys: str = "abcdef") -> dict[str, dict[str, Any]]:
    """Return the rows of the fixtures by key, as Java reads them."""
    rows = {}
    for key in keys:
        day, some = DAYS[key][0], key != "f"
        rows[key] = {
            "id": key,
            "day": day,
            "days": [day, None, dt.date(1500, 3, 1)] if some else None,
            "marks": [("d", day)] if some else None,
            "life": {"born": day, "note": key} if some else None,
            "seen": dt.datetime(1900, 1, 1, tzinfo=dt.UTC) if some else None,
            "v": 1,
        }
    return rows


def by_key(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """Return rows by key."""
    return {row["id"]: row for row in rows.to_pylist()}


# --- tables of Java -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_dates_that_java_shifted_are_read_as_java_reads_them(tmp_path: Path, version: int) -> None:
    """Dates before 1582 are those that were written, also inside lists, maps and structs."""
    table = java_table(version, tmp_path)
    assert by_key(table.to_arrow(meta=False)) == expected()
    stream = pa.table(table)
    assert by_key(stream.select(table.schema.names)) == expected()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upsert_stores_the_dates_of_rows_that_it_copies(tmp_path: Path, version: int) -> None:
    """Each reader sees the dates of a rewritten file, which has no key of the old calendar."""
    table = java_table(version, tmp_path)
    other = {**expected()["a"], "id": "z"}
    table.upsert(pa.Table.from_pylist([other], schema=table.schema))
    wanted = expected() | {"z": other}
    assert by_key(table.to_arrow(meta=False)) == wanted
    found = hudi_table(table.path)
    assert found is not None
    new = found.filter(pc.field("_hoodie_partition_path") == "1400-02-28")
    by_rust = {row["id"]: row["day"] for row in new.select(["id", "day"]).to_pylist()}
    assert by_rust == {key: dt.date(1400, 2, 28) for key in "az"}
    newest = max(
        Path(table.path, "1400-02-28").glob("*.parquet"), key=lambda path: path.stat().st_mtime
    )
    footer = open_base_file(str(newest)).metadata.metadata
    assert DATETIME.encode() not in footer and footer[SPARK.encode()] >= b"3.1.0"


def test_hudi_rs_returns_the_days_of_the_file(tmp_path: Path) -> None:
    """hudi-rs knows nothing of the calendar: it returns the shifted days."""
    found = hudi_table(java_table(6, tmp_path).path)
    assert found is not None
    rows = found.filter(pc.field("id") != "d").select(["id", "day"]).to_pylist()
    assert {r["id"]: r["day"] for r in rows} == {k: s for k, (_, s) in DAYS.items() if s}


@pytest.mark.parametrize("version", VERSIONS)
def test_fsck_compares_converted_dates_with_folders(tmp_path: Path, version: int) -> None:
    """The date in a row belongs to its folder, whose name Java made from the date as written."""
    table = java_table(version, tmp_path)
    assert table.fsck() == []
    table.upsert(table.to_arrow(meta=False).slice(0, 2))
    assert table.fsck() == []


@pytest.mark.parametrize("key", DAYS)
def test_a_filter_finds_each_date(tmp_path: Path, key: str) -> None:
    """Statistics of shifted days leave out no row that a filter on the date keeps."""
    table, day = java_table(6, tmp_path), DAYS[key][0]
    life = pc.struct_field(pc.field("life"), "born") == day
    for kept in (pc.field("day") == day, pc.field("day").isin([day]), f"day = DATE '{day}'"):
        assert [*by_key(table.to_arrow(filters=kept))] == [key]
    assert [*by_key(table.to_arrow(filters=life))] == ([] if key == "f" else [key])


def test_rows_are_deleted_and_updated_by_their_dates(tmp_path: Path) -> None:
    """A condition on a date sees the date as written, and rewritten rows keep theirs."""
    table = java_table(6, tmp_path)
    table.delete(where="day = DATE '1400-02-28'")
    table.update(where="day < DATE '0500-01-01'", set={"v": 2})
    wanted = expected("bcdef")
    wanted["d"]["v"] = 2
    assert by_key(table.to_arrow(meta=False)) == wanted


def test_changes_of_a_rewritten_file_are_those_of_its_rows(tmp_path: Path) -> None:
    """A row that was only copied from a file of the old calendar has not changed."""
    table = java_table(6, tmp_path)
    since = table.history()["requested_time"].iloc[-1]
    other = {**expected()["a"], "id": "z"}
    table.upsert(pa.Table.from_pylist([other], schema=table.schema))
    assert table.changes(since=since)["id"].to_pylist() == ["z"]


# --- files made by hand ---------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ats", pa.list_(pa.timestamp("us", "UTC"))),
        ("naive", pa.timestamp("us")),
    ]
)
EARLY, LATE = dt.datetime(1899, 12, 31, 23, 59, 59), dt.datetime(1900, 1, 1)


def table_with_footer(
    path: Path, footer: Mapping[str, str], cells: Mapping[str, Any], **options: Any
) -> Table:
    """Return a table of one row whose base file was written again with these footer keys."""
    table = Table.create(path, schema=SCHEMA, record_key="id")
    table.upsert(pa.Table.from_pylist([{"id": "a", **cells}], schema=SCHEMA))
    (file,) = path.glob("*.parquet")
    rows = pq.read_table(file)
    with pq.ParquetWriter(file, rows.schema, store_schema=False, **options) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(dict(footer))
    return table


def utc(moment: dt.datetime) -> dt.datetime:
    """Return a naive time as the same time in UTC."""
    return moment.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize("column", ["at", "ats"])
def test_a_file_with_moments_before_1900_is_refused_with_the_reason(
    tmp_path: Path, column: str
) -> None:
    """How they were stored depends on a zone, so neither a read nor an upsert goes on."""
    value = utc(EARLY) if column == "at" else [None, utc(LATE), utc(EARLY)]
    table = table_with_footer(tmp_path / "t", LEGACY, {column: value})
    reason = rf"before 1900 in column '{column}'.*Asia/Tokyo.*insert_overwrite_table"
    with pytest.raises(InvalidTable, match=reason):
        table.to_arrow()
    with pytest.raises(InvalidTable, match=reason):
        table.upsert(pa.Table.from_pylist([{"id": "b"}], SCHEMA))
    assert table.to_arrow(["id", "day"]).num_rows == 1


def test_a_refused_file_is_not_damaged(tmp_path: Path) -> None:
    """`fsck` does not advise to restore a file whose moments cannot be converted."""
    table = table_with_footer(tmp_path / "t", LEGACY, {"at": utc(EARLY)})
    findings = table.fsck()  # it has other bytes than its commit says, but can be read
    assert [f.code for f in findings] == ["damaged-base-file"]
    assert "1900" not in str(findings)


def test_other_times_are_read_as_they_are(tmp_path: Path) -> None:
    """Moments from 1900 on are equal in both calendars, and naive times are never converted."""
    cells = {"at": utc(LATE), "ats": [utc(LATE)], "naive": EARLY}
    table = table_with_footer(tmp_path / "t", LEGACY, cells)
    (row,) = table.to_arrow([*cells]).to_pylist()
    assert row == cells


HYBRID = {  # footers, and whether dates, moments and moments of INT96 are in the old calendar
    "none": ({}, False, False),
    "dates": (LEGACY, True, False),
    "int96": ({SPARK: "3.5.8", INT96: ""}, False, True),
    "Spark 2": ({SPARK: "2.4.8"}, True, True),
    "Spark 3.0": ({SPARK: "3.0.3"}, False, True),
    "Spark 3.1": ({SPARK: "3.1.0"}, False, False),
    "Spark 4": ({SPARK: "4.1.0"}, False, False),
}


@pytest.mark.parametrize("case", HYBRID)
@pytest.mark.parametrize("int96", [False, True])
def test_the_footer_decides_which_values_are_converted(
    tmp_path: Path, case: str, int96: bool
) -> None:
    """Dates follow one key, moments of INT96 the other, and both the version, as in Spark."""
    footer, dates, old_int96 = HYBRID[case]
    cells = {"day": dt.date(1400, 3, 8), "at": dt.datetime(1500, 1, 1, tzinfo=dt.UTC)}
    kind = {"use_deprecated_int96_timestamps": True} if int96 else {}
    table = table_with_footer(tmp_path / "t", footer, cells, **kind)
    (row,) = table.to_arrow(["day"]).to_pylist()
    assert row["day"] == (dt.date(1400, 2, 28) if dates else cells["day"])
    if old_int96 if int96 else dates:
        with pytest.raises(InvalidTable, match="before 1900"):
            table.to_arrow(["at"])
    else:
        assert table.to_arrow(["at"]).to_pylist() == [{"at": cells["at"]}]


def test_every_day_of_the_julian_calendar_is_converted() -> None:
    """From 1 BC on, the days of a calendar that is counted by hand get their own dates."""
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    stored, wanted, day = [], [], -719_164  # 0001-01-01
    for year in range(1, 1583):
        for month, length in enumerate(lengths, 1):
            leap = month == 2 and year % 4 == 0
            first = dt.date(year, month, 1).toordinal() - dt.date(1970, 1, 1).toordinal()
            for number in range(length + leap):
                stored.append(day)
                wanted.append(first + number if day < -141_427 else day)
                day += 1
    days = pa.array(np.array(stored, dtype=np.int32)).cast(pa.date32())
    found = HybridCalendar("-", "UTC", True, frozenset()).gregorian(
        pa.record_batch(
            {"d": days, "l": pa.array([[d] for d in days[:3]] + [[]] * (len(days) - 3))}
        )
    )
    assert found["d"].cast(pa.int32()).to_pylist() == wanted


@pytest.mark.parametrize("part", [slice(0, 5), slice(2, 5), slice(4, 4)])
def test_slices_of_nested_columns_keep_their_rows(part: slice) -> None:
    """Values inside lists, maps and structs are converted where they are, nulls included."""
    old, new = dt.date(1400, 3, 8), dt.date(1400, 2, 28)
    late = dt.date(2000, 1, 1)
    kind = pa.struct([("l", pa.list_(pa.date32())), ("m", pa.map_(pa.string(), pa.date32()))])

    def rows(day: dt.date) -> list[Any]:
        full = {"l": [day, None, late], "m": [("k", day), ("n", None)]}
        return [full, None, {"l": None, "m": []}, {"l": [], "m": None}, full]

    given, wanted = (pa.array(rows(day), kind) for day in (old, new))
    batch = pa.record_batch({"s": given, "l": pa.array([[v] for v in rows(old)], pa.list_(kind))})
    calendar = HybridCalendar("-", "UTC", True, frozenset())
    found = calendar.gregorian(batch[part])
    found.validate(full=True)
    assert found["s"].to_pylist() == wanted[part].to_pylist()
    assert found["l"].to_pylist() == [[row] for row in wanted[part].to_pylist()]
