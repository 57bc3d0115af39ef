"""`df.write.format("hoodie_nb")`: operations, modes, definitions, and what a kill leaves."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from core.every_type import EVERY
from core.tables import Model, hudi_rows, schema_of, without_meta
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import hoodie_nb as hn
from hoodie_nb.buckets import plan
from hoodie_nb.storage.storage import STAGED

pytestmark = pytest.mark.spark
W = "hoodie.datasource.write."
DEFINED = {
    f"{W}recordkey.field": "id",
    f"{W}partitionpath.field": "p",
    f"{W}precombine.field": "ts",
    "hoodie.table.name": "told",
}


MERGED = {**DEFINED, f"{W}table.type": "MERGE_ON_READ"}


def frame(spark: SparkSession, rows: list[dict], parts: int = 2) -> DataFrame:
    """Return rows as a DataFrame of several partitions."""
    schema = from_arrow_schema(schema_of(), True)
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema_of()), schema).repartition(parts)


def some(count: int, ts: int = 0, start: int = 0) -> list[dict]:
    """Return rows with distinct keys in three partitions."""
    keys = range(start, start + count)
    return [{"id": f"k{n:05d}", "p": f"p{n % 3}", "ts": ts, "v": ts * 10} for n in keys]


def save(data: DataFrame, path: Path | str, mode: str = "append", **options: str) -> None:
    """Write a DataFrame by Spark's own words."""
    data.write.format("hoodie_nb").mode(mode).options(**options).save(str(path))


def staged(path: Path) -> list[str]:
    """Return what is in the table's staging folder."""
    folder = path / STAGED
    return os.listdir(folder) if folder.is_dir() else []


def test_rows_are_written_as_by_a_dict(spark, tmp_path):
    """Random upserts and deletes of many partitions end as in a dict; hudi-rs reads the same."""
    chance, model = random.Random(7), Model()
    for number in range(6):
        rows = [
            {"id": f"k{chance.randrange(40)}", "p": f"p{chance.randrange(3)}", "ts": number, "v": n}
            for n in range(60)
        ]
        rows = list({(row["id"], row["p"]): row for row in rows}.values())  # no order in a frame
        operation = "delete" if number % 3 == 2 else "upsert"
        getattr(model, operation)(rows)
        save(
            frame(spark, rows, number + 1),
            tmp_path / "t",
            **DEFINED,
            **{f"{W}operation": operation},
        )
    table = hn.Table.open(tmp_path / "t")
    assert without_meta(table.to_arrow()) == model.snapshot() == hudi_rows(table.path)
    assert list(table.history()["operation"]) == [*["upsert"] * 2, "delete"] * 2
    assert table.fsck() == [] and staged(tmp_path / "t") == []


def test_the_definition_is_that_of_the_options(spark, tmp_path):
    """Key, partitions, order, name, folders and version of a new table come from Hudi's options."""
    more = {
        f"{W}hive_style_partitioning": "true",
        f"{W}partitionpath.urlencode": "true",
        "hoodie.write.table.version": "9",
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
        "hoodie.parquet.small.file.limit": "1000",
    }
    save(frame(spark, some(4)), tmp_path / "t", **DEFINED, **more)
    handle = hn.Table.open(tmp_path / "t")._handle
    config = handle.config
    assert (config.record_key, config.partition_by, config.ordering) == (("id",), ("p",), "ts")
    assert (config.name, config.version, config.merge_mode) == ("told", "9", "event_time")
    assert config.hive_style and config.url_encode
    assert handle.options.small_file_bytes == 1000


@pytest.mark.parametrize(
    ("operation", "rows"),
    [("upsert", 6), ("insert", 10), ("bulk_insert", 10), ("insert_overwrite", 6), ("delete", 2)],
)
def test_operations_are_those_of_a_table(spark, tmp_path, operation, rows):
    """Each operation does what the method of that name does."""
    save(frame(spark, some(6)), tmp_path / "t", **DEFINED)
    save(frame(spark, some(4, 1)), tmp_path / "t", **{f"{W}operation": operation})
    table = hn.Table.open(tmp_path / "t")
    by_method = hn.Table.create(
        tmp_path / "m", schema=schema_of(), record_key="id", partition_by="p", ordering="ts"
    )
    by_method.upsert(some(6))
    getattr(by_method, operation)(some(4, 1))
    assert without_meta(table.to_arrow()) == without_meta(by_method.to_arrow())
    assert table.history()["operation"].iloc[-1] == operation
    if operation not in ("insert_overwrite",):
        assert table.to_arrow().num_rows == rows


@pytest.mark.parametrize("rows", [0, 3])
def test_overwriting_replaces_all_rows_and_can_be_withdrawn(spark, tmp_path, rows):
    """mode("overwrite") replaces the rows in one commit; a rollback brings the old ones back."""
    save(frame(spark, some(6)), tmp_path / "t", "overwrite", **DEFINED)
    save(frame(spark, some(rows, 1, start=90)), tmp_path / "t", "overwrite")
    table = hn.Table.open(tmp_path / "t")
    assert without_meta(table.to_arrow()) == without_meta(
        pa.Table.from_pylist(some(rows, 1, start=90), schema_of())
    )
    newest = table.history().iloc[-1]
    assert newest["operation"] == "insert_overwrite_table"
    table.rollback(newest["requested_time"])
    assert table.to_arrow().num_rows == 6 and table.fsck() == []


def test_an_empty_frame_writes_nothing(spark, tmp_path):
    """A DataFrame without rows makes the table, but no commit."""
    save(frame(spark, []), tmp_path / "t", **DEFINED)
    assert len(hn.Table.open(tmp_path / "t").history()) == 0


def test_rows_read_from_a_table_can_be_written(spark, tmp_path):
    """Hudi's own columns are left out, so rows go from one table to another; a flag deletes."""
    save(frame(spark, some(6)), tmp_path / "a", **DEFINED)
    read = spark.read.format("hoodie_nb").load(str(tmp_path / "a"))
    save(read, tmp_path / "b", **DEFINED)
    gone = read.where("id < 'k00002'").selectExpr("*", "true as _hoodie_is_deleted")
    save(gone, tmp_path / "b")
    tables = [hn.Table.open(tmp_path / name).to_arrow() for name in "ab"]
    assert without_meta(tables[0])[2:] == without_meta(tables[1])


def test_every_type_is_written(spark, tmp_path):
    """Edge values and nulls of each type come back as they were, in any zone of the session."""
    columns = {name.replace(" ", "_"): values for name, values in EVERY.items()}
    schema = pa.schema({"id": pa.string()} | {name: kind for name, (kind, _) in columns.items()})
    arrays = [pa.array(["a", "b", "c"]), *(pa.array(v, kind) for kind, v in columns.values())]
    first = hn.Table.create(tmp_path / "first", schema=schema, record_key="id")
    first.upsert(pa.Table.from_arrays(arrays, schema=schema))
    second = hn.Table.create(tmp_path / "second", schema=schema, record_key="id")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        save(spark.read.format("hoodie_nb").load(first.path), second.path)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert without_meta(second.to_arrow()) == without_meta(first.to_arrow())


def test_rows_in_many_runs_are_merged(spark, tmp_path):
    """Rows that tasks stage in many runs, with copies of keys in all of them, are one row a key."""
    rows = [row for ts in range(4) for row in some(3000, ts)]
    small = {"write.task.max.size": "64 KB", "write.batch.size": "16 KB"}
    save(frame(spark, rows, 3), tmp_path / "t", **DEFINED, **small)
    table = hn.Table.open(tmp_path / "t")
    expected = without_meta(pa.Table.from_pylist(some(3000, 3), schema_of()))
    assert without_meta(table.to_arrow()) == expected == hudi_rows(table.path)


def test_global_keys_move(spark, tmp_path):
    """With GLOBAL_BLOOM a key that comes with another partition is moved."""
    made = {**DEFINED, "hoodie.index.type": "GLOBAL_BLOOM"}
    save(frame(spark, some(6)), tmp_path / "t", **made)
    moved = [{**row, "p": "other"} for row in some(2, 1)]
    save(frame(spark, moved), tmp_path / "t")
    found = hn.Table.open(tmp_path / "t").to_arrow()
    assert found.num_rows == 6 and found.column("p").to_pylist().count("other") == 2


def test_an_object_store_is_written(spark, s3_server, tmp_path):
    """A table on S3: options that are not Hudi's are those of the store's client."""
    address, options = s3_server.new_root(), s3_server.options
    save(frame(spark, some(6)), address, **DEFINED, **options)
    save(frame(spark, some(2, 1)), address, **options)
    table = hn.Table.open(address, storage_options=options)
    assert table.to_arrow().num_rows == 6 and table.fsck() == []


# --- refused -------------------------------------------------------------------------------------


def refused(data: DataFrame, path: Path, mode: str = "append", **options: str) -> str:
    """Return the text of the error of a write."""
    with pytest.raises(PySparkException) as caught:
        save(data, path, mode, **options)
    return str(caught.value)


def test_a_bad_row_names_its_column_and_leaves_nothing(spark, tmp_path):
    """A row without a key fails the write in a task: the message says which, nothing is staged."""
    save(frame(spark, some(6)), tmp_path / "t", **DEFINED)
    text = refused(frame(spark, [*some(2), {**some(1)[0], "id": None}]), tmp_path / "t")
    assert "column 'id'" in text and "InvalidInput" in text
    assert staged(tmp_path / "t") == [] and len(hn.Table.open(tmp_path / "t").history()) == 1


def test_rows_are_not_deleted_from_nowhere(spark, tmp_path):
    """A delete, and a write that is refused, make no table."""
    refusals = {
        "no key": {},
        "delete": {**DEFINED, f"{W}operation": "delete"},
        "wait": {**DEFINED, "wait": "soon"},
        "keygen": {**DEFINED, f"{W}keygenerator.type": "NON_PARTITION"},
        "merge on read": {**MERGED, "hoodie.table.version": "6"},
        "partition": {**DEFINED, f"{W}partitionpath.field": "nowhere"},
    }
    for options in refusals.values():
        refused(frame(spark, some(1)), tmp_path / "t", **options)
        assert not (tmp_path / "t").exists()


def test_modes_that_spark_lacks_are_its_own_errors(spark, tmp_path):
    """errorifexists, the default, and ignore are refused by Spark, which names the other modes."""
    for mode in ("errorifexists", "ignore"):
        assert "Append" in refused(frame(spark, some(1)), tmp_path / "t", mode, **DEFINED)
    assert not (tmp_path / "t").exists()


def test_a_job_that_holds_the_table_is_named(spark, tmp_path):
    """While a job of this process writes the table, the error names it and `table.upsert`."""
    save(frame(spark, some(6)), tmp_path / "t", **DEFINED)
    table = hn.Table.open(tmp_path / "t")
    stream = spark.readStream.schema(from_arrow_schema(schema_of(), True)).parquet(
        str((tmp_path / "in").mkdir() or tmp_path / "in")
    )
    with hn.write_stream(stream, table, checkpoint=tmp_path / "ck", trigger="1 hour"):
        text = refused(frame(spark, some(1)), tmp_path / "t", wait="0 seconds")
        table.upsert(frame(spark, some(1, 5)))  # as the message says
    assert "writing from checkpoint" in text and "table.upsert(df)" in text
    assert staged(tmp_path / "t") == []


def test_a_table_of_a_catalog_is_refused(spark, tmp_path):
    """CREATE TABLE, saveAsTable and writeTo say to make a view; INSERT INTO the view works."""
    save(frame(spark, some(6)), tmp_path / "t", **DEFINED)
    at = f"using hoodie_nb options (path '{tmp_path / 't'}')"
    for attempt in (
        lambda: spark.sql(f"create table cat1 {at}"),
        lambda: spark.sql(f"create table cat2 {at} as select 'a' id, 'p' p, 1L ts, 1L v"),
        lambda: frame(spark, some(1)).write.format("hoodie_nb").saveAsTable("cat3"),
        lambda: frame(spark, some(1)).writeTo("cat4").using("hoodie_nb").create(),
    ):
        with pytest.raises(PySparkException, match="CREATE TEMP VIEW"):
            attempt()
    spark.sql(f"create or replace temp view board {at}")
    spark.sql("insert into board (id, p, ts, v) values ('new', 'p0', 1, 1)")
    assert hn.Table.open(tmp_path / "t").to_arrow().num_rows == 7
    with pytest.raises(PySparkException, match="does not support MERGE INTO"):
        spark.sql("merge into board using board b on board.id = b.id when matched then delete")
    with pytest.raises(PySparkException, match="not enough data columns"):
        spark.sql("insert into board values ('newer', 'p0', 1, 1)")
    for by_path in ("select * from {}", "insert into {} (id, p) values ('a', 'p0')"):
        with pytest.raises(PySparkException, match=r"UNSUPPORTED_DATASOURCE|TABLE_OR_VIEW"):
            spark.sql(by_path.format(f"hoodie_nb.`{tmp_path / 't'}`"))


@pytest.mark.parametrize("how", ["", "options (path '{}')", "location '{}'"])
def test_a_table_of_a_catalog_with_columns_is_refused_when_it_is_used(spark, tmp_path, how):
    """Spark makes it without asking the format; its use says what to do, dropping it loses none."""
    save(frame(spark, some(6)), tmp_path / "t", **DEFINED)
    columns = "(id string, p string, ts bigint, v bigint)"
    spark.sql(f"create table cat5 {columns} using hoodie_nb {how.format(tmp_path / 't')}")
    for use in ("select * from cat5", "insert into cat5 values ('new', 'p0', 1, 1)"):
        with pytest.raises(
            PySparkException, match=r"DROP TABLE it.*hn\.Table\.create.*CREATE TEMP VIEW"
        ):
            spark.sql(use).collect()
    spark.sql("drop table cat5")
    assert hn.Table.open(tmp_path / "t").to_arrow().num_rows == 6


# --- kills ---------------------------------------------------------------------------------------


@pytest.fixture
def failing(spark) -> Iterator:
    """Arm failpoints in the processes that Spark starts for the format, and only there."""

    def arm(points: str) -> None:
        spark.sparkContext.environment["HOODIE_NB_FAILPOINTS"] = points
        hn.register(spark)

    yield arm
    spark.sparkContext.environment.pop("HOODIE_NB_FAILPOINTS", None)
    hn.register(spark)


SLOW_POINTS = [  # `make slow`: half a minute each
    "spark.rows.post",
    "coord.requested.post",
    "coord.inflight.post",
    "writer.data.post",
    "coord.statuses.pre",
    "coord.publish",
    "coord.progress.post",
]


@pytest.mark.kills
@pytest.mark.parametrize(
    "point",
    [
        "spark.commit.pre",
        "coord.publish.post",
        "coord.commit.post",
        *(pytest.param(point, marks=pytest.mark.slow) for point in SLOW_POINTS),
    ],
)
def test_a_killed_write_is_written_once_when_it_is_repeated(spark, tmp_path, failing, point):
    """`kill -9` of a task or of the commit at any point: again, and each row is there once."""
    path, rows = tmp_path / "t", some(30, 2)
    save(frame(spark, some(20)), path, **DEFINED)
    failing(f"{point}=kill")
    with pytest.raises((PySparkException, Py4JJavaError)):
        save(frame(spark, rows), path)
    failing("")
    before = without_meta(hn.Table.open(path).to_arrow())
    whole = without_meta(pa.Table.from_pylist(rows, schema_of()))
    old = without_meta(pa.Table.from_pylist(some(20), schema_of()))
    assert before in (old, whole)  # all or nothing
    save(frame(spark, rows), path)
    table = hn.Table.open(path)
    assert without_meta(table.to_arrow()) == whole == hudi_rows(path)
    assert table.fsck() == [] and staged(path) == []


def test_merge_on_read_tables_are_written(spark, tmp_path, monkeypatch):
    """By the option of the table type; each operation leaves the rows that a dict has."""
    monkeypatch.setattr(plan, "LOGS_PER_BASE", 10)
    path, model = tmp_path / "t", Model()
    appends = {**MERGED, "hoodie_nb.append.above.bytes": "0"}
    save(frame(spark, some(30)), path, **appends)
    model.upsert(some(30))
    save(frame(spark, some(10, 3)), path, **appends)
    model.upsert(some(10, 3))
    gone = some(4, 5, start=2)
    save(frame(spark, gone), path, **appends, **{f"{W}operation": "delete"})
    model.delete(gone)
    assert [*path.glob("p*/.*.log.*")]
    new = some(5, start=50)
    save(frame(spark, new), path, **appends, **{f"{W}operation": "insert"})
    model.upsert(new)
    assert without_meta(hn.Table.open(path).to_arrow()) == hudi_rows(path) == model.snapshot()
    words = refused(
        frame(spark, some(1)), path, **{**DEFINED, "hoodie.table.type": "COPY_ON_WRITE"}
    )
    assert "copy_on_write" in words and "merge_on_read" in words
    more = ("*", "1 AS more")
    save(frame(spark, some(1, 7)).selectExpr(*more), path, **appends, schema="merge")
    found = hn.Table.open(path).to_arrow()
    assert found["more"].drop_null().to_pylist() == [1] and without_meta(found) == hudi_rows(path)
    save(frame(spark, some(3, 9)).selectExpr(*more), path, "overwrite", **appends)
    assert without_meta(hn.Table.open(path).to_arrow()) == hudi_rows(path)
    assert hn.Table.open(path).to_arrow().num_rows == 3
