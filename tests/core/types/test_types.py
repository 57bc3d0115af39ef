"""Types as other readers see them, and times with and without a zone (docs/types.md)."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import hudi_rows, without_meta
from test_on_disk import ALL, all_types

from hoodie_nb import Table
from hoodie_nb.definition import properties
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.view.moments import parse_time

NAIVE = dt.datetime(2026, 3, 29, 2, 30)
KINDS = {"naive": pa.timestamp("us"), "a moment": pa.timestamp("us", "UTC")}


def table_of(path: Path, kind: pa.DataType) -> Table:
    """Return an empty table with a key and a column of times."""
    schema = pa.schema([("id", pa.string()), ("at", kind)])
    return Table.create(path / "t", schema=schema, record_key="id")


def test_a_base_file_is_plain_parquet(tmp_path: Path) -> None:
    """Readers of Parquet (pyarrow, DuckDB) return every type and value as it was written."""
    table = Table.create(tmp_path / "t", schema=ALL, record_key="id")
    table.upsert(all_types())
    (name,) = table.file_groups()["file_name"]
    file = Path(table.path, name)
    plain = pq.read_table(file).select(ALL.names)
    assert [field.type for field in plain.schema] == [field.type for field in ALL]
    assert without_meta(plain) == without_meta(all_types())
    found = duckdb.sql(f"SET TimeZone = 'UTC'; SELECT * FROM read_parquet('{file}')")
    columns = found.to_arrow_table().select(ALL.names)
    assert without_meta(columns.cast(ALL)) == without_meta(all_types())


def test_hudi_rs_does_not_read_naive_times(tmp_path: Path) -> None:
    """hudi-rs 0.5 has no type for a time without a zone: it raises, and returns no wrong value."""
    table = table_of(tmp_path, KINDS["naive"])
    table.upsert(pa.table({"id": ["a"], "at": [NAIVE]}, schema=table.schema))
    assert table.to_arrow()["at"].to_pylist() == [NAIVE]
    with pytest.raises(BaseException, match="not yet implemented") as caught:
        hudi_rows(table.path)
    assert type(caught.value).__name__ == "PanicException"


@pytest.mark.parametrize(("stored", "given"), [("naive", "a moment"), ("a moment", "naive")])
def test_naive_times_and_moments_are_not_mixed(tmp_path: Path, stored: str, given: str) -> None:
    """A time without a zone is no moment: refused with the column's name; with a zone it is one."""
    table = table_of(tmp_path, KINDS[stored])
    when = NAIVE.replace(tzinfo=dt.UTC) if given == "a moment" else NAIVE
    with pytest.raises(InvalidInput, match=r"'at' .* row 0 .* differ in the time zone"):
        table.upsert(pd.DataFrame({"id": ["a"], "at": [when]}))
    if stored == "a moment":
        text = pd.DataFrame({"id": ["a"], "at": ["2026-03-29 02:30:00"]})
        table.upsert(text.assign(at=pd.to_datetime(text["at"]).dt.tz_localize("UTC")))
        assert table.to_arrow()["at"].to_pylist() == [NAIVE.replace(tzinfo=dt.UTC)]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this machine be nine and a half hours east of UTC, as Adelaide is in winter."""
    monkeypatch.setenv("TZ", "ACST-9:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_a_moment_without_a_zone_is_local(tmp_path: Path) -> None:
    """`as_of` is local time as naive datetime, text or date; digits and commits are the table's."""
    table = table_of(tmp_path, KINDS["naive"])
    commit = table.upsert(pa.table({"id": ["a"], "at": [NAIVE]}, schema=table.schema))
    assert commit is not None
    moment = dt.datetime.strptime(f"{commit.requested_time}000", "%Y%m%d%H%M%S%f")
    moment = moment.replace(tzinfo=dt.UTC)
    local = moment + dt.timedelta(hours=9, minutes=30)
    east = dt.timezone(dt.timedelta(hours=12))
    naive = local.replace(tzinfo=None)
    for as_of in (moment, moment.astimezone(east), naive, naive.isoformat(), pd.Timestamp(naive)):
        assert table.to_arrow(as_of=as_of).num_rows == 1
    for as_of in (commit, commit.requested_time, local.date() + dt.timedelta(days=1)):
        assert table.to_arrow(as_of=as_of).num_rows == 1
    second = dt.timedelta(seconds=1)
    for as_of in (moment - second, naive - second, (naive - second).isoformat(" "), local.date()):
        assert table.to_arrow(as_of=as_of).num_rows == 0
    assert table.changes(since=naive - second, until=naive).num_rows == 1


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("line", ["hoodie.table.timeline.timezone=LOCAL", ""])
def test_moments_follow_the_timeline_of_a_java_table(tmp_path: Path, line: str) -> None:
    """In a table whose instants are in local time, as Hudi's default is, moments are converted."""
    table = table_of(tmp_path, KINDS["naive"])
    path = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    path.write_text(path.read_text().replace("hoodie.table.timeline.timezone=UTC", line))
    config = properties.load(open_table(table.path).storage)
    assert parse_time(dt.datetime(2026, 1, 2, 3, 4, 5, 6999), config) == "20260102030405006"
    assert parse_time("2026-01-02T03:04:05+09:30", config) == "20260102030405000"
    assert parse_time(dt.datetime(2026, 1, 1, 20, tzinfo=dt.UTC), config) == "20260102053000000"
    assert parse_time("20260102030405", config) == "20260102030405000"
    with pytest.raises(InvalidConfig, match="is not a time"):
        parse_time(dt.datetime.min, config)
