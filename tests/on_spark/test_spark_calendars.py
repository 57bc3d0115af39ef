"""Spark converts dates of its old calendar itself; what it makes of each day is what we make."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from core.tables import canonical

import hoodie_nb as hn
from hoodie_nb.files.calendars import HybridCalendar

pytestmark = pytest.mark.spark
FIXTURES = Path(__file__).parents[1] / "fixtures"
LEGACY = {"org.apache.spark.version": "3.5.8", "org.apache.spark.legacyDateTime": ""}
FIRST, LAST = -900_000, -140_000  # in days since 1970: from the sixth century BC to 1586


def test_each_day_is_the_day_that_spark_reads(spark, tmp_path):
    """Over 2,000 years, with the leap days that the Gregorian calendar lacks, no day differs."""
    days = pa.array(np.arange(FIRST, LAST, dtype=np.int32)).cast(pa.date32())
    rows = pa.table({"day": days})
    with pq.ParquetWriter(tmp_path / "days.parquet", rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(LEGACY)
    read = spark.read.parquet(str(tmp_path / "days.parquet"))
    wanted = read.selectExpr("unix_date(day) as day").toArrow()["day"].combine_chunks()
    calendar = HybridCalendar("-", "UTC", dates=True, int96=frozenset())
    (batch,) = rows.to_batches()
    found = calendar.gregorian(batch)["day"].cast(pa.int32())
    assert len(found) == LAST - FIRST
    assert found.equals(wanted)


@pytest.mark.parametrize("version", [6, 9])
def test_spark_and_we_read_a_table_of_the_old_calendar_alike(spark, tmp_path, version):
    """A snapshot by Spark's reader and one by our tasks have the dates that were written."""
    hn.register(spark)
    name = f"v{version}_legacy_calendar"
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    table = hn.Table.open(tmp_path / name)
    wanted = canonical(table.to_arrow().to_pylist())
    other = spark.read.format("hoodie_nb").load(table.path)
    for found in (table.to_spark(spark), other.select(table.to_arrow().column_names)):
        assert canonical(found.toArrow().to_pylist()) == wanted
    assert str(wanted).count("datetime.date(1400, 2, 28)") == 4
