"""New columns and wider types by Spark's own words: option `schema` of writes and streams."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from core.tables import hudi_rows, kind_of, schema_of, without_meta
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb.storage.storage import STAGED

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("many_logs")]
TYPES = pytest.mark.parametrize("version", [6, "9 logs"])
W = "hoodie.datasource.write."
OLD = schema_of()  # id, p, ts and v, a long
NARROW = OLD.set(OLD.get_field_index("v"), pa.field("v", pa.int32()))
NEW = OLD.append(pa.field("x", pa.string()))
INNER = pa.struct([("a", pa.int32())])
WIDER = pa.struct([("a", pa.int64()), ("b", pa.string())])


def rows(schema: pa.Schema, ts: int, *keys: str, **more: object) -> pa.Table:
    """Return new versions of these records."""
    held = [{"id": k, "p": "xy"[k in "bd"], "ts": ts, "v": ts, **more} for k in keys]
    return pa.Table.from_pylist(held, schema=schema)


def table_at(
    path: Path, schema: pa.Schema = NARROW, version: int | str = 6, **more: object
) -> hn.Table:
    """Return a table with two rows."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", **kind_of(version)}
    table = hn.Table.create(path, schema=schema, **keys)
    table.upsert(rows(schema, 1, "a", "b", **more))
    return table


def save(spark, data: pa.Table, path: str, mode: str = "append", **options: str) -> None:
    """Write by Spark's own words."""
    frame = spark.createDataFrame(data)
    frame.write.format("hoodie_nb").mode(mode).options(**options).save(path)


def check(table: hn.Table, twin: hn.Table) -> None:
    """Compare a table with the twin that `table.upsert` wrote, and with hudi-rs."""
    assert table.schema.equals(twin.schema)
    assert without_meta(table.to_arrow()) == without_meta(twin.to_arrow())
    assert without_meta(table.to_arrow()) == hudi_rows(Path(table.path)) and table.fsck() == []
    assert os.listdir(Path(table.path, STAGED)) == []


@TYPES
@pytest.mark.parametrize("operation", ["upsert", "insert", "bulk_insert", "insert_overwrite"])
def test_a_frame_brings_its_columns(spark, tmp_path, operation, version):
    """The rows, a new column and a wider type are one commit, as of `table.upsert`."""
    table, twin = table_at(tmp_path / "t", version=version), table_at(tmp_path / "twin")
    given = rows(NEW, 2**40, *("ad" if operation == "upsert" else "cd"), x="new")
    named = {f"{W}operation": operation}
    with pytest.raises((PySparkException, Py4JJavaError), match='schema="merge"'):
        save(spark, given, table.path, **named)
    save(spark, given, table.path, schema="merge", **named)
    getattr(twin, operation)(given, schema="merge")
    check(table, twin)
    assert len(table.history()) == 2 and table.schema.equals(NEW)
    table.rollback()
    assert table.schema.equals(NARROW)


def test_fields_inside_grow_and_an_overwrite_brings_columns(spark, tmp_path):
    """Structs get fields and wider types; mode("overwrite") may have other columns, too."""
    old, new = NARROW.append(pa.field("s", INNER)), NEW.append(pa.field("s", WIDER))
    table = table_at(tmp_path / "t", old, s={"a": 1})
    twin = table_at(tmp_path / "twin", old, s={"a": 1})
    given = rows(new, 2, "a", "c", x="new", s={"a": 2**40, "b": "in"})
    save(spark, given, table.path, schema="merge")
    twin.upsert(given, schema="merge")
    check(table, twin)
    more = given.append_column("y", pa.array([1.5, None]))
    save(spark, more, table.path, "overwrite", schema="merge")
    twin.insert_overwrite(more, scope="table", schema="merge")
    check(table, twin)


def test_what_a_write_may_not_change_is_refused(spark, tmp_path):
    """Text for a number, a missing column, a wrong word: as of `table.upsert`, by name."""
    table = table_at(tmp_path / "t")
    text = rows(NEW, 2, "a").set_column(3, "v", pa.array(["1"]))
    for given, option, message in (
        (text, "merge", "'v' has type string"),
        (rows(NEW, 2, "a").drop_columns("v"), "merge", r"\['v'\] of the table are missing"),
        (rows(NEW, 2, "a"), "mergeSchema", r"choose from \['fixed', 'merge'\]"),
    ):
        with pytest.raises((PySparkException, Py4JJavaError), match=message):
            save(spark, given, table.path, schema=option)
    assert table.schema.equals(NARROW) and len(table.history()) == 1


class Stream:
    """A source of micro-batches, and queries from it by Spark's own words."""

    def __init__(self, spark, folder: Path, schema: pa.Schema) -> None:
        self.spark, self.folder = spark, folder
        self.source = FolderSource(folder / "in", schema)

    def run(self, **options: str) -> None:
        """Write what is there, and raise what the query raises."""
        sink = self.source.stream(self.spark).writeStream.format("hoodie_nb").options(**options)
        sink = sink.option("checkpointLocation", str(self.folder / "ck"))
        assert sink.trigger(availableNow=True).start(str(self.folder / "t")).awaitTermination(300)


@TYPES
def test_a_stream_brings_its_columns_in_a_commit_before_its_rows(spark, tmp_path, version):
    """Once: later batches find them; other writers and a restart with more columns go on."""
    table, twin = table_at(tmp_path / "t", version=version), table_at(tmp_path / "twin")
    stream = Stream(spark, tmp_path, NEW)
    batches = [rows(NEW, 2, "a", x="one"), rows(NEW, 2**40, "a", "b", x="two")]
    stream.source.add(batches[0])
    with pytest.raises(PySparkException, match='schema="merge"'):
        stream.run()
    stream.run(schema="merge")
    stream.source.add(batches[1])
    stream.run(schema="merge")
    for batch in batches:
        twin.upsert(batch, schema="merge")
    check(table, twin)
    operations = list(table.history()["operation"])
    assert operations == ["upsert", "alter_schema", "upsert", "upsert"]
    more = rows(NEW, 2**40 + 1, "a", "e", x="three").append_column("y", pa.array([0.5, None]))
    stream.source.schema = more.schema
    stream.source.add(more)
    stream.run(schema="merge")
    twin.upsert(more, schema="merge")
    check(table, twin)
    assert list(table.history()["operation"])[4:] == ["alter_schema", "upsert"]


def test_columns_stay_when_the_commit_of_their_rows_dies(spark, tmp_path):
    """The driver's process dies after a batch is prepared: the next start keeps its new values."""
    table, twin = table_at(tmp_path / "t"), table_at(tmp_path / "twin")
    stream = Stream(spark, tmp_path, NEW)
    stream.source.add(rows(NEW, 2, "a", "c", x="one"))
    spark.sparkContext.environment["HOODIE_NB_FAILPOINTS"] = "coord.prepare.post=kill"
    hn.register(spark)
    try:
        with pytest.raises(PySparkException):
            stream.run(schema="merge")
    finally:
        spark.sparkContext.environment.pop("HOODIE_NB_FAILPOINTS")
        hn.register(spark)
    table.upsert(rows(NEW, 3, "d", x="other"))  # settles what was prepared
    stream.run(schema="merge")
    twin.upsert(rows(NEW, 2, "a", "c", x="one"), schema="merge")
    twin.upsert(rows(NEW, 3, "d", x="other"))
    check(table, twin)
