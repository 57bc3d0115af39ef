"""Dates before 1582 and INT96 times in base files: from Spark's hybrid calendar to Gregorian.

Arrow and Spark 3 count days in the proleptic Gregorian calendar. Spark 2 had the hybrid one, which
is Julian before 1582-10-15, and Spark 3 still writes it if `datetimeRebaseModeInWrite` is `LEGACY`:
1400-02-28 is then stored as the day that Arrow shows as 1400-03-08.

*On disk*, in the Parquet footer's key-value metadata:

| key | value |
| --- | --- |
| `org.apache.spark.version` | the writer's version, `WRITTEN_AS` in files of this library |
| `org.apache.spark.legacyDateTime` | empty: dates and moments are in the hybrid calendar |
| `org.apache.spark.legacyINT96` | empty: moments stored as INT96 are |
| `org.apache.spark.timeZone` | the zone of the session that wrote them |

*Semantics*: dates are converted exactly, as Spark does, also inside lists, maps and structs; a day
that the Gregorian calendar lacks (1500-02-29) becomes the next one. Moments from 1900 on are equal
in both calendars. How an earlier one was stored depends on the zone and on Java's table of zones,
so a column that has one is refused. Naive times are never converted.

**Caveats**: a file without these keys is read as it is. Java Hudi's Avro writer adds none and
stores Gregorian dates, but if it rewrites a file with the keys, it copies the days and drops the
keys: its rows are shifted then, for every reader.

*Source:* Spark's DataSourceUtils, RebaseDateTime; Hudi's HoodieRowParquetWriteSupport.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb.errors import InvalidTable

VERSION = "org.apache.spark.version"
# Without a version Spark refuses files with dates before 1582 or moments before 1900. This is the
# first that writes all that our files hold: Gregorian dates (3.0), times without a zone (3.4).
WRITTEN_AS = "3.4.0"
_DATES = b"org.apache.spark.legacyDateTime"
_INT96 = b"org.apache.spark.legacyINT96"
_ZONE = b"org.apache.spark.timeZone"
_GREGORIAN_SINCE = -141_427  # 1582-10-15, in days since 1970-01-01
_JULIAN_YEAR_0 = -719_470  # 0000-03-01 in the Julian calendar: years that end with their leap day
_EQUAL_SINCE = datetime(1900, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class HybridCalendar:
    """What a base file has in the hybrid calendar: its dates and moments, or those of INT96."""

    path: str
    zone: str
    dates: bool
    int96: frozenset[str]  # the columns with such moments, also inside

    @classmethod
    def of(cls, file: pq.ParquetFile, path: str) -> "HybridCalendar | None":
        """Return what an open file has in the hybrid calendar; None if nothing."""
        footer = file.metadata.metadata or {}
        version = footer.get(VERSION.encode(), WRITTEN_AS.encode())  # compared as Spark does
        dates = _DATES in footer or version < b"3.0.0"
        old_int96 = _INT96 in footer or version < b"3.1.0"
        if not dates and not old_int96:
            return None
        int96 = _int96_columns(file.metadata) if old_int96 else ()
        return cls(path, footer.get(_ZONE, b"unknown").decode(), dates, frozenset(int96))

    def gregorian(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the file with Gregorian dates; InvalidTable if a moment is too old."""
        columns = [
            self._converted(column, name)
            for column, name in zip(rows.columns, rows.schema.names, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def _converted(self, column: pa.Array, name: str) -> pa.Array:
        """Return a column, or what is inside the column `name`, with Gregorian dates."""
        kind = column.type
        if pa.types.is_date32(kind):
            return _gregorian(column) if self.dates else column
        if pa.types.is_timestamp(kind):
            self._refuse_old(column, name)
        if pa.types.is_struct(kind):
            parts = [self._converted(part, name) for part in column.flatten()]
            return pa.StructArray.from_arrays(parts, fields=[*kind], mask=column.is_null())
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            offsets = pa.array(column.offsets.to_numpy(), pa.int32())  # no slice, as masks need
            where = {"type": kind, "mask": column.is_null()}
            if pa.types.is_list(kind):
                values = self._converted(column.values, name)
                return pa.ListArray.from_arrays(offsets, values, **where)
            keys, items = (self._converted(part, name) for part in (column.keys, column.items))
            return pa.MapArray.from_arrays(offsets, keys, items, **where)
        return column

    def _refuse_old(self, times: pa.Array, name: str) -> None:
        """Raise InvalidTable if one of the moments may not be what it seems."""
        if not (name in self.int96 if times.type.tz is None else self.dates):
            return
        limit = pa.scalar(_EQUAL_SINCE, pa.timestamp("us", "UTC")).cast(times.type)
        if pc.any(pc.less(times, limit)).as_py():
            raise InvalidTable(
                f"base file {self.path} has times before 1900 in column {name!r}, stored in the "
                f"calendar of Spark 2 and the time zone {self.zone} of its writer: convert them "
                "with Spark and Hudi, by reading the table and writing its rows back with "
                "insert_overwrite_table"
            )


def in_hybrid_calendar(file: pq.ParquetFile) -> bool:
    """Whether dates or times of an open file, and so their statistics, may be shifted."""
    return HybridCalendar.of(file, "") is not None


def _int96_columns(metadata: pq.FileMetaData) -> set[str]:
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    return {leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}


def _gregorian(dates: pa.Array) -> pa.Array:
    """Return the dates whose year, month and day the given ones are in the hybrid calendar.

    In years from March on, the calendars differ by the centuries, whose last years have no leap
    day in the Gregorian one unless 400 divides them.
    """
    stored = dates.cast(pa.int32())
    if (pc.min(stored).as_py() or 0) >= _GREGORIAN_SINCE:
        return dates
    days = pc.fill_null(stored, 0).to_numpy().astype(np.int64)
    year = (4 * (days - _JULIAN_YEAR_0) + 3) // (4 * 365 + 1)
    shifted = days + 2 - year // 100 + year // 400
    found = np.where(days < _GREGORIAN_SINCE, shifted, days).astype(np.int32)
    empty = dates.is_null().to_numpy(zero_copy_only=False)
    return pa.array(found, pa.int32(), mask=empty).cast(pa.date32())
