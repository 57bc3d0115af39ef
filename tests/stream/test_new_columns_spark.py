"""Columns that this library adds: to streams that run, by DataFrames, and as Spark reads them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from core.tables import Model, hudi_rows, hudi_table, kind_of, without_meta
from spark_source import FolderSource
from test_stream_columns import NEW, OLD, feed

import hoodie_nb as hn
from hoodie_nb.errors import InvalidInput

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("many_logs")]
KEYS: dict[str, Any] = {"record_key": "id", "partition_by": "p", "ordering": "ts"}


def rows(schema: pa.Schema, ts: int, *keys: str, **more: Any) -> pa.Table:
    """Return new versions of these records."""
    held = [{"id": k, "p": "xy"[k in "bd"], "ts": ts, "n": ts, **more} for k in keys]
    return pa.Table.from_pylist(held, schema=schema)


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        *((v, s) for v in (6, 9) for s in ({"placement": "driver"}, {"commit_interval": 3}, {})),
        *(("9 logs", settings) for settings in ({"placement": "driver"}, {})),
    ],
)
def test_a_running_stream_goes_on_when_columns_are_added(spark, tmp_path, version, settings):
    """Its rows have null there, other rows keep their values; started again it has the columns."""
    table = hn.Table.create(tmp_path / "t", schema=OLD, **kind_of(version), **KEYS)
    model, source = Model(), FolderSource(tmp_path / "source", OLD)
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "0 seconds", **settings}
    job = hn.write_stream(source.stream(spark), table, **settings)

    feed(source, job, model, rows(OLD, 1, "a", "b", "c"))
    assert table.add_columns({"x": pa.string(), "n": pa.int64()}, wait="60 seconds") is not None
    mine = rows(NEW, 2, "c", "d", x="mine")
    table.upsert(mine, wait="60 seconds")
    model.upsert(mine.to_pylist())
    feed(source, job, model, rows(OLD, 3, "a", "b", "e"))  # rewrites the files of `mine`
    assert table.schema.equals(NEW)
    feed(source, job, model, rows(OLD, 4, "d"))
    source.schema = NEW
    job.stop()
    job = hn.write_stream(source.stream(spark), table, **settings)
    feed(source, job, model, rows(NEW, 5, "a", "f", x="stream"))
    job.stop()
    assert table.schema.equals(NEW) and table.fsck() == []
    assert without_meta(table.to_arrow()) == hudi_rows(Path(table.path)) == model.snapshot()
    held = {r["id"]: r["x"] for r in table.to_arrow().to_pylist()}
    assert (held["c"], held["b"], held["d"], held["a"]) == ("mine", None, None, "stream")


def test_a_stream_with_new_columns_starts_once_they_are_added(spark, tmp_path):
    """It is refused with the call to make, and works on the same checkpoint folder after it."""
    table = hn.Table.create(tmp_path / "t", schema=OLD, **KEYS)
    source = FolderSource(tmp_path / "source", NEW)
    settings = {"checkpoint": str(tmp_path / "ck"), "trigger": "available_now"}
    source.add(rows(NEW, 1, "a", x="new"))
    with pytest.raises(InvalidInput, match=r"\['x'\] are not in the table.* table.add_columns"):
        hn.write_stream(source.stream(spark), table, **settings)
    table.add_columns({"x": pa.string()})
    hn.write_stream(source.stream(spark), table, **settings).wait()
    assert [r["x"] for r in table.to_arrow().to_pylist()] == ["new"]
    assert without_meta(table.to_arrow()) == hudi_rows(Path(table.path))


@pytest.mark.parametrize("write", ["upsert", "insert", "bulk_insert", "insert_overwrite"])
@pytest.mark.parametrize("version", [6, 9, "9 logs"])
def test_a_dataframe_brings_its_columns(spark, tmp_path, version, write):
    """Spark tasks write the new columns and wider types in one instant with the rows."""
    table = hn.Table.create(tmp_path / "t", schema=OLD, **kind_of(version), **KEYS)
    table.upsert(rows(OLD, 1, "a", "b"))
    frame = spark.createDataFrame(
        [("c", "x", 2, 2**40, "new"), ("e", "x", 2, 5, None)],
        "id string, p string, ts long, n long, x string",
    ).repartition(2)
    with pytest.raises(InvalidInput, match='schema="merge"'):
        getattr(table, write)(frame)
    getattr(table, write)(frame, schema="merge")
    assert table.schema.equals(NEW) and len(table.history()) == 2 and table.fsck() == []
    found = {r["id"]: (r["n"], r["x"]) for r in table.to_arrow().to_pylist()}
    wanted = {"a": (1, None), "b": (1, None), "c": (2**40, "new"), "e": (5, None)}
    if write == "insert_overwrite":
        del wanted["a"]
    assert found == wanted and without_meta(table.to_arrow()) == hudi_rows(Path(table.path))
    assert {r["id"]: (r["n"], r["x"]) for r in table.to_spark(spark).collect()} == wanted


def test_a_dataframe_for_global_keys_brings_its_columns(spark, tmp_path):
    """The driver writes it, with the new columns."""
    table = hn.Table.create(tmp_path / "t", schema=OLD, global_index=True, **KEYS)
    table.upsert(rows(OLD, 1, "a", "b"))
    frame = spark.createDataFrame(
        [("a", "y", 2, 2, "moved")], "id string, p string, ts long, n long, x string"
    )
    table.upsert(frame, schema="merge")
    found = {(r["p"], r["id"]): r["x"] for r in table.to_arrow().to_pylist()}
    assert found == {("y", "a"): "moved", ("y", "b"): None} and table.schema.equals(NEW)
    assert without_meta(table.to_arrow()) == hudi_rows(Path(table.path))


INT, TEXT, DOUBLE = pa.int32(), pa.string(), pa.float64()
WIDER = {
    "int to long": (INT, 5, pa.int64()),
    "int to double": (INT, 5, DOUBLE),
    "int to string": (INT, 5, TEXT),
    "long to double": (pa.int64(), 5, DOUBLE),
    "long to string": (pa.int64(), 5, TEXT),
    "float to double": (pa.float32(), 0.1, DOUBLE),
    "decimal": (pa.decimal128(4, 2), Decimal("1.10"), pa.decimal128(20, 4)),
    "list": (pa.list_(INT), [5], pa.list_(DOUBLE)),
}


@pytest.mark.parametrize("version", [6, 9, "9 logs"])
def test_spark_reads_older_files_with_the_wider_types(spark, tmp_path, version):
    """No file is rewritten: `to_spark` converts what Spark's own reader refuses."""
    schema = OLD
    for name, (old, _, _) in WIDER.items():
        schema = schema.append(pa.field(name.replace(" ", "_"), old))
    table = hn.Table.create(tmp_path / "t", schema=schema, **kind_of(version), **KEYS)
    row = rows(OLD, 1, "a").to_pylist()[0]
    row |= {name.replace(" ", "_"): value for name, (_, value, _) in WIDER.items()}
    table.upsert(pa.table({f.name: pa.array([row[f.name]], f.type) for f in schema}))
    table.add_columns({name.replace(" ", "_"): new for name, (_, _, new) in WIDER.items()})
    theirs, names = hudi_table(table.path), table.schema.names
    (found,) = table.to_spark(spark).select(*names).collect()
    assert theirs is not None
    assert [found.asDict()] == theirs.select(names).to_pylist()
    assert found.asDict() == table.to_arrow(meta=False).to_pylist()[0]
    changes = table.changes_spark(spark, since="earliest").select(*names).collect()
    assert [c.asDict() for c in changes] == [found.asDict()]
    source = spark.read.format("hoodie_nb").load(table.path).select(*names).collect()
    assert [r.asDict() for r in source] == [found.asDict()]


def test_a_stream_of_changes_has_the_columns_of_its_start(spark, tmp_path):
    """It goes on when columns are added, without them; started again it reads them."""
    table = hn.Table.create(tmp_path / "t", schema=OLD, **KEYS)

    def started(name: str) -> Any:
        changes = spark.readStream.format("hoodie_nb").option("starting", "earliest")
        sink = changes.load(table.path).writeStream.format("memory").queryName(name)
        return sink.option("checkpointLocation", str(tmp_path / name)).start()

    query = started("before")
    table.upsert(rows(OLD, 1, "a", "b"))
    query.processAllAvailable()
    table.add_columns({"x": pa.string()})
    table.upsert(rows(OLD.append(NEW.field("x")), 2, "a", x="new"))
    query.processAllAvailable()
    query.stop()
    seen = spark.table("before").select("id", "ts", "_change").collect()
    assert sorted(map(tuple, seen)) == [("a", 1, "insert"), ("a", 2, "update"), ("b", 1, "insert")]
    assert "x" not in spark.table("before").columns
    query = started("after")
    query.processAllAvailable()
    query.stop()
    assert {(r["id"], r["x"]) for r in spark.table("after").collect()} == {
        ("a", "new"),
        ("b", None),
    }
