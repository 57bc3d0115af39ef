"""Changes on Spark: the same rows as without Spark, compared by Spark's tasks."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from core.tables import canonical, edited_elsewhere
from pyspark.errors import PySparkException

import hoodie_nb as hn
from hoodie_nb.errors import InvalidTable
from hoodie_nb.types.schema import FILE_NAME, PARTITION_PATH

pytestmark = pytest.mark.spark
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("marks", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))])),
    ]
)
SMALL = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.parquet.max.file.size": 3000,
    "hoodie.copyonwrite.record.size.estimate": 300,
}


def row(key: str, partition: str, version: int) -> dict[str, Any]:
    """Return a row whose values follow from its key and version; some are null or before 1582."""
    full = {
        "day": dt.date(1500 + version, 1, 1),
        "at": dt.datetime(2026, 1, 1, 12, 0, 0, version, dt.UTC),
        "local": dt.datetime(1999, 1, 1, 1, version),
        "price": Decimal(version) / 4,
        "raw": key.encode(),
        "tags": [key, None, ""][: version % 4],
        "marks": [(key, version), ("none", None)][: version % 3],
        "place": {"x": version / 3, "names": [None, key]},
    }
    nulls = dict.fromkeys(full) if version % 5 == 4 else {}
    return {"id": key, "p": partition, "ts": version, **full, **nulls}


def batch(*given: tuple[str, str, int]) -> pa.Table:
    """Return rows of key, partition and version."""
    return pa.Table.from_pylist([row(*each) for each in given], SCHEMA)


def written(path: Path) -> hn.Table:
    """Return a table after random upserts and deletes, and keys that move between partitions."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    table, draw = hn.Table.create(path, schema=SCHEMA, **keys, options=SMALL), random.Random(1)
    for version in range(5):
        given = {f"k{draw.randrange(60):02d}": f"p{draw.randrange(3)}" for _ in range(30)}
        rows = batch(*((key, p, version) for key, p in given.items()))
        (table.delete if version == 3 else table.upsert)(rows)
    return table


def clustered(table: hn.Table, partition: str, paths: pa.Array | None = None) -> None:
    """Move a partition's rows to one new file group, as another engine does; with these paths."""
    rows = table.to_arrow().filter(pa.compute.field(PARTITION_PATH) == partition)
    at = rows.schema.get_field_index(PARTITION_PATH)
    rows = rows.set_column(at, PARTITION_PATH, rows[PARTITION_PATH] if paths is None else paths)
    folder, newest = Path(table.path, partition), max(Path(table.path, ".hoodie").glob("*.commit"))
    time17 = str(int(newest.stem) + 1)
    name = f"c-0_0-0-0_{time17}.parquet"
    names = pa.repeat(pa.scalar(name), rows.num_rows)
    ids = sorted({file.name.partition("_")[0] for file in folder.glob("*.parquet")})
    pq.write_table(
        rows.set_column(rows.schema.get_field_index(FILE_NAME), FILE_NAME, names), folder / name
    )
    stat = {"fileId": "c-0", "path": f"{partition}/{name}".lstrip("/"), "prevCommit": "null"}
    content = json.loads(newest.read_bytes()) | {
        "partitionToWriteStats": {partition: [stat]},
        "partitionToReplaceFileIds": {partition: ids},
    }
    edited_elsewhere(newest.with_name(f"{time17}.replacecommit"), content)


def test_spark_and_arrow_see_the_same_changes(spark, tmp_path):
    """For pairs of commits of a random history, all types included, in any zone of the session."""
    table = written(tmp_path / "t")
    clustered(table, "p1")
    table.upsert(batch(("k01", "p1", 6), ("k02", "p1", 6)))
    times = ["earliest", *table.history()["requested_time"]]
    spans = [("earliest", None), (times[1], None), (times[2], times[5]), (times[-2], times[-1])]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for since, until in spans:
            found = table.changes_spark(spark, since=since, until=until).toArrow()
            expected = table.changes(since=since, until=until)
            assert found.column_names == expected.column_names
            assert canonical(found.cast(expected.schema).to_pylist()) == canonical(
                expected.to_pylist()
            )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_key_that_moves_is_two_changes_on_spark(spark, tmp_path):
    """A delete in its old partition and an insert in the new one, also within one task."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, **keys)
    moving = [f"k{n}" for n in range(40)]  # some of them meet in a task
    first = table.upsert(batch(*((key, "x", 1) for key in moving)))
    table.delete(batch(*((key, "x", 1) for key in moving)))
    table.upsert(batch(*((key, "y", 2) for key in moving)))
    found = table.changes_spark(spark, since=first).groupBy("_change", "p").count().collect()
    assert sorted(map(tuple, found)) == [("delete", "x", 40), ("insert", "y", 40)]


def test_no_partition_path_is_an_empty_one_on_spark(spark, tmp_path):
    """Rows that another engine moved, without their empty partition path, have not changed."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", ordering="ts")
    first = table.upsert(batch(*((f"k{n}", "x", 1) for n in range(40))))
    clustered(table, "", pa.nulls(40, pa.string()))
    assert table.to_arrow()[PARTITION_PATH].null_count == 40
    assert table.changes(since=first).num_rows == 0
    assert table.changes_spark(spark, since=first).count() == 0


def test_changes_on_spark_are_read_by_its_tasks(spark, tmp_path):
    """The driver only lists the files: it neither reads nor collects them; no change is no row."""
    table = written(tmp_path / "t")
    first, last = table.history()["requested_time"].iloc[[0, -1]]
    found = table.changes_spark(spark, since=first)
    assert found.schema == table.changes_spark(spark, since=last).schema
    assert table.changes_spark(spark, since=last).count() == 0
    for file in Path(table.path).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(PySparkException, match=r"base file .* is gone"):
        found.count()
    with pytest.raises(InvalidTable, match="is not the slice of its file group"):
        table.changes_spark(spark, since=first)
