"""Dates before 1582 and moments before 1900: Java and we read each other's, by Spark's defaults."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hoodie_nb import InvalidTable, Table

from .client import AS_STORED, BLOOM, NO_METADATA, OPERATION, JavaError, Judge
from .readers import cells

pytestmark = pytest.mark.oracle
WRITE = "hoodie.datasource.write."
VERSIONS = ["6", "9"]
IN_WRITE = "spark.sql.parquet.datetimeRebaseModeInWrite"
ZONE = {"spark.sql.session.timeZone": "America/Los_Angeles"}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("day", pa.date32()),
        ("life", pa.struct([("days", pa.list_(pa.date32()))])),
        ("marks", pa.map_(pa.string(), pa.date32())),
        ("seen", pa.timestamp("us", "UTC")),
        ("naive", pa.timestamp("us")),
        ("v", pa.int64()),
    ]
)
DAYS = [
    dt.date(1, 1, 1),
    dt.date(1000, 2, 28),
    dt.date(1400, 2, 28),
    dt.date(1500, 3, 1),
    dt.date(1582, 10, 4),
    dt.date(1582, 10, 15),
    dt.date(2024, 2, 29),
]
LATE, EARLY = dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(1500, 6, 1, 12, tzinfo=dt.UTC)


def row(number: int, *, seen: dt.datetime = LATE, version: int = 1) -> dict[str, Any]:
    """Return one version of row `number`, whose cells follow from one of the days."""
    day = DAYS[number % len(DAYS)]
    return {
        "id": f"k{number}",
        "day": day,
        "life": {"days": [day, None, dt.date(1000, 3, 1)]},
        "marks": [("d", day)],
        "seen": seen,
        "naive": dt.datetime(1500, 6, 1, 12, 30),
        "v": version,
    }


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows as a table."""
    return pa.Table.from_pylist(rows, SCHEMA)


def words(version: str, key: str = "id", part: str = "") -> dict[str, str]:
    """Return Java's options for such a table."""
    options = {f"{WRITE}recordkey.field": key, f"{WRITE}partitionpath.field": part}
    options |= {f"{WRITE}precombine.field": "v", "hoodie.write.table.version": version}
    return {name: word for name, word in options.items() if word}


def legacy(version: str, **options: str) -> dict[str, str]:
    """Return Java's options for a bulk insert in the calendar of Spark 2."""
    own = {
        OPERATION: "bulk_insert",
        IN_WRITE: "LEGACY",
        "hoodie.bulkinsert.shuffle.parallelism": "1",
    }
    return NO_METADATA | words(version, **options) | own | ZONE


@pytest.mark.parametrize("version", VERSIONS)
def test_java_reads_the_old_dates_of_our_files(judge: Judge, tmp_path: Path, version: str) -> None:
    """Java, with its defaults, returns dates before 1582 and moments before 1900 as we got them."""
    table = Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", ordering="v", table_version=int(version)
    )
    table.upsert(arrow([row(number, seen=EARLY) for number in range(7)]))
    table.upsert(arrow([row(3, version=2)]))
    wanted = [row(n, version=2) if n == 3 else row(n, seen=EARLY) for n in range(7)]
    assert cells(judge.read(table.path), meta=False) == wanted


KEYS = {"texts": {}, "by date": {"part": "day"}, "dates as keys": {"key": "id,day", "part": "day"}}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_we_write_on_in_files_of_the_old_calendar(
    judge: Judge, tmp_path: Path, version: str, keys: str
) -> None:
    """We read what Java reads there, and after our upsert Java, with its defaults, still does."""
    rows = [row(number) for number in range(14)]
    judge.write(tmp_path / "t", arrow(rows), legacy(version, **KEYS[keys]), mode="overwrite")
    table = Table.open(tmp_path / "t")
    for reader in (table.to_arrow(), judge.read(table.path)):
        assert cells(reader, meta=False) == sorted(rows, key=lambda r: r["id"])
    table.upsert(arrow([row(number, version=2) for number in (1, 2, 14)]))
    rows = [row(n, version=2) if n in (1, 2, 14) else row(n) for n in range(15)]
    table.delete(arrow([rows.pop(5)]))
    for reader in (table.to_arrow(), judge.read(table.path)):
        assert cells(reader, meta=False) == sorted(rows, key=lambda r: r["id"])
    assert cells(table.to_arrow()) == cells(judge.read(table.path))
    assert table.fsck() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_advice_for_old_moments_in_the_old_calendar(
    judge: Judge, tmp_path: Path, version: str
) -> None:
    """A file with such a moment is refused, until Java has written its rows again."""
    rows = [row(0), row(1, seen=EARLY)]
    judge.write(tmp_path / "t", arrow(rows), legacy(version), mode="overwrite")
    table = Table.open(tmp_path / "t")
    advice = r"before 1900 in column 'seen'.*America/Los_Angeles.*insert_overwrite_table"
    with pytest.raises(InvalidTable, match=advice):
        table.to_arrow()
    with pytest.raises(InvalidTable, match=advice):
        table.upsert(arrow([row(2)]))
    by_java = judge.read(table.path).select(SCHEMA.names)
    judge.write(table.path, by_java, BLOOM | words(version) | {OPERATION: "insert_overwrite_table"})
    assert cells(table.to_arrow(), meta=False) == rows
    table.upsert(arrow([row(0, version=2)]))
    assert cells(judge.read(table.path), meta=False) == [row(0, version=2), rows[1]]


@pytest.mark.parametrize("version", VERSIONS)
def test_java_shifts_the_dates_that_its_own_upsert_copies(
    judge: Judge, tmp_path: Path, version: str
) -> None:
    """Java's Avro writer drops the key of the old calendar and leaves the days as they are."""
    judge.write(tmp_path / "t", arrow([row(2), row(6)]), legacy(version), mode="overwrite")
    judge.write(tmp_path / "t", arrow([row(6, version=2)]), BLOOM | words(version))
    with pytest.raises(JavaError, match="READ_ANCIENT_DATETIME"):
        judge.read(tmp_path / "t")
    by_java = judge.read(tmp_path / "t", **AS_STORED)
    assert cells(Table.open(tmp_path / "t").to_arrow()) == cells(by_java)
    assert by_java.sort_by("id")["day"].to_pylist() == [dt.date(1400, 3, 8), DAYS[6]]
