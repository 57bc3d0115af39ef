"""Spark's snapshots beside a rollback or restore, and under every setting of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from core.overtaken import listing, opening, overtaken
from core.tables import canonical
from s3_server import S3Server
from test_spark_changes import written

import hoodie_nb as hn
from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.on_spark.sources import SnapshotReader

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("n", pa.int64())])
UNDO: dict[str, Callable[[hn.Table], object]] = {
    "rollback": lambda table: table.rollback(),
    "restore": lambda table: table.restore(table.history()["requested_time"].iloc[-2]),
}
LOOKS = {"between two partitions": listing("b"), "before it opens a file": opening}


def grown(path: Path | str, version: int = 6, **options: object) -> hn.Table:
    """Return a table whose n-th of three commits has the value n in each of two partitions."""
    made = {"schema": SCHEMA, "record_key": "id", "partition_by": "p", "table_version": version}
    table = hn.Table.create(path, **made, **options)
    for n in range(3):
        table.upsert([{"id": f"k{p}", "p": p, "n": n} for p in "ab"])
    return table


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("action", UNDO)
@pytest.mark.parametrize("look", LOOKS)
def test_a_snapshot_that_an_undo_overtakes_has_the_rows_without_it(
    spark, tmp_path, look, action, version
) -> None:
    """Until Spark has the list of files, the reader lists again."""
    table = grown(tmp_path / "t", version)
    reader, storage = overtaken(table, LOOKS[look], lambda: UNDO[action](hn.Table.open(table.path)))
    found = reader.to_spark(spark).toArrow()
    assert storage.fired and found["n"].to_pylist() == [1, 1]


@pytest.fixture
def setting(spark) -> Iterator[Callable[[str, str], None]]:
    """A function that changes a setting of the session, until the test ends."""
    before = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.mark.parametrize("sources", ["parquet", ""])  # Spark has two readers of Parquet
@pytest.mark.parametrize("name", ["ignoreMissingFiles", "ignoreCorruptFiles"])
@pytest.mark.parametrize("action", ["undone", "cleaned", "damaged"])
def test_a_file_that_spark_cannot_read_is_an_error(
    spark, setting, tmp_path, action, name, sources
) -> None:
    """Whatever the session ignores: a snapshot with fewer rows is none."""
    table = grown(tmp_path / "t")
    setting(f"spark.sql.files.{name}", "true")
    setting("spark.sql.sources.useV1SourceList", sources)
    found = table.to_spark(spark)
    if action == "undone":
        table.rollback()
    if action == "cleaned":
        table.upsert([{"id": "ka", "p": "a", "n": 9}])
        table.clean(versions=1)
    if action == "damaged":
        for file in (tmp_path / "t" / "a").glob("*.parquet"):
            file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        found.count()


SETTINGS = {
    "spark.sql.files.ignoredPathSegmentRegex": "parquet$",
    "spark.sql.files.ignoreInvalidPartitionPaths": "true",
    "spark.sql.files.maxPartitionBytes": "1k",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "America/Los_Angeles",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.parquet.respectSummaryFiles": "true",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
}


@pytest.mark.parametrize("sources", ["parquet", ""])
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_no_setting_of_the_session_changes_a_snapshot(
    spark, setting, tmp_path, sources, vectorized
) -> None:
    """All that say how Parquet files are listed and read, one by one, with both of its readers."""
    table = written(tmp_path / "t")
    expected, schema = canonical(table.to_arrow().to_pylist()), table.to_arrow().schema
    setting("spark.sql.sources.useV1SourceList", sources)
    setting("spark.sql.parquet.enableVectorizedReader", vectorized)
    for name, value in SETTINGS.items():
        before = spark.conf.get(name, None)
        setting(name, value)
        found = table.to_spark(spark).toArrow().cast(schema)
        assert canonical(found.to_pylist()) == expected, name
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


@pytest.mark.parametrize("action", UNDO)
def test_the_files_of_the_format_are_those_of_one_state(tmp_path, action) -> None:
    """The format `hoodie_nb` lists again, too; a task that comes too late names the commit."""
    table = grown(tmp_path / "t")
    undo = UNDO[action]
    newest = table.history()["requested_time"].iloc[-1]
    _, storage = overtaken(table, listing("b"), lambda: undo(hn.Table.open(table.path)))
    reader = SnapshotReader(storage, stored_schema(table.schema), None)
    (tasks,) = reader.partitions()
    assert storage.fired and len(tasks.value[0]) == 2 and newest not in str(tasks.value[0])
    undo(table)
    with pytest.raises(ConcurrentWriter, match=r"commit \d+ of .* was undone while.* read again"):
        next(reader.read(tasks))


@pytest.mark.parametrize("action", UNDO)
@pytest.mark.parametrize("read", ["snapshot", "format", "changes", "changes by format"])
def test_tasks_that_come_too_late_name_the_commit(spark, s3_server: S3Server, read, action) -> None:
    """A query of files on a store that were undone since the files were listed is an error."""
    table = grown(s3_server.new_root(), storage_options=s3_server.options)
    hn.register(spark)
    source = spark.read.format("hoodie_nb").options(**s3_server.options)
    newest = table.history()["requested_time"].iloc[-1]
    frame = {
        "snapshot": lambda: table.to_spark(spark),
        "format": lambda: source.load(table.path),
        "changes": lambda: table.changes_spark(spark, since="earliest"),
        "changes by format": lambda: source.option("since", "earliest").load(table.path),
    }[read]()
    if "format" in read:
        assert frame.count() == 2  # the files are listed now, and once for a DataFrame
    UNDO[action](table)
    with pytest.raises(Exception, match=rf"commit {newest} of .* was undone while .*: read again"):
        frame.collect()
