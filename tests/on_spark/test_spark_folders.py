"""Partition folders that were changed from outside, on real Spark."""

import contextlib
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import PIPELINES, Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.on_spark.stages import receiver, write_on_spark

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())])


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_one_file_id_in_two_partitions_is_two_buckets_on_spark(spark, tmp_path, pipeline):
    """Rows of a copied partition stay in their folder, in every pipeline on Spark."""
    path = tmp_path / "t"
    made = hn.Table.create(path, schema=SCHEMA, record_key="id", partition_by="p", ordering="ts")
    made.upsert(pa.Table.from_pylist([{"id": k, "p": "x", "ts": 1} for k in "ab"], SCHEMA))
    shutil.copytree(path / "x", path / "y")
    rows = [("a", "x", 2), ("c", "x", 2), ("b", "y", 3), ("d", "y", 3)]
    data = spark.createDataFrame(rows, "id string, p string, ts long")
    table, events = open_table(path), EventLog()
    with contextlib.closing(receiver(data, events)) as live:
        intake, shape = Intake(table.config, table.schema), Shape(PIPELINES[pipeline], tasks=1)
        with WriteCoordinator(table, events).committing(intake, shape) as work:
            write_on_spark(data, work, live)
    held = {}
    for piece in hn.Table.open(path).file_groups().itertuples():
        file = pq.ParquetFile(path / piece.partition_path / piece.file_name)
        stored = file.read(["id", "ts"]).to_pylist()
        held.setdefault(piece.partition_path, []).extend((r["id"], r["ts"]) for r in stored)
    assert {name: sorted(found) for name, found in held.items()} == {
        "x": [("a", 2), ("b", 1), ("c", 2)],
        "y": [("a", 1), ("b", 3), ("d", 3)],
    }
