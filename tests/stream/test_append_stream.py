"""Streams into merge-on-read tables: logs by driver and executors, kills, restarts, deletes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from core.tables import Model, hudi_rows, without_meta
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb.errors import InvalidConfig

pytestmark = pytest.mark.spark
FLAG = "_hoodie_is_deleted"
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
FLAGGED = SCHEMA.append(pa.field(FLAG, pa.bool_()))
OPTIONS = {"hoodie_nb.append.above.bytes": 0, "hoodie.compact.inline.max.delta.commits": 3}
KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_type": "merge_on_read"}


def feed(source: FolderSource, model: Model) -> None:
    """Add a micro-batch of updates, late rows, new keys and deletes."""
    number = source.files
    draw = random.Random(number)
    keys = range(1500) if number == 0 else draw.sample(range(1600), 60)
    rows = [
        {
            "id": f"k{key:05d}",
            "p": "ab"[key % 2],
            "ts": number + draw.choice([0, 0, -2]),
            "v": draw.randrange(10**12),
            FLAG: number > 1 and draw.random() < 0.1,
        }
        for key in keys
    ]
    model.upsert(rows)
    source.add(pa.Table.from_pylist(rows, FLAGGED))


SETTINGS = [
    {"placement": "driver"},
    {"placement": "executors"},
    {"placement": "executors", "pipeline": "step3"},
    {"placement": "executors", "pipeline": "step1", "index": "bloom+state"},
    {"placement": "driver", "commit_interval": 2},
    {"placement": "executors", "commit_interval": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("fault", ["kill_writer", "crash_before_commit"])
def test_a_stream_appends_and_survives_a_fault(
    spark: Any, tmp_path: Path, settings: dict[str, Any], fault: str
) -> None:
    """After each start the snapshot is the model's, in hudi-rs, too, and there are logs."""
    model = Model()
    source = FolderSource(tmp_path / "in", FLAGGED)
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, options=OPTIONS, **KEYS)
    options = {"checkpoint": tmp_path / "c", "trigger": "0 seconds", **settings}
    for _ in range(4):
        feed(source, model)
    with hn.write_stream(source.stream(spark), table, **options) as job:
        job.process_all_available()
        hn.faults.inject(job, fault)
        for _ in range(4, 7):
            feed(source, model)
        job.process_all_available()
    feed(source, model)
    with hn.write_stream(source.stream(spark), table, **options) as job:
        job.process_all_available()
    found = hn.Table.open(table.path)
    assert without_meta(found.to_arrow()) == model.snapshot()
    assert hudi_rows(table.path) == model.snapshot()
    assert [*Path(table.path).glob("*/.*.log.*")]
    commits = [*Path(table.path).glob(".hoodie/timeline/*_*.deltacommit")]
    ended = -(-7 // settings.get("commit_interval", 1))  # a stop ends an interval, too
    assert len(commits) == ended + 1
    assert without_meta(found.to_spark(spark).toArrow()) == model.snapshot()


def test_dataframes_are_upserted(spark: Any, tmp_path: Path) -> None:
    """Updates of a DataFrame go to logs, which Spark's tasks write."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, options=OPTIONS, **KEYS)
    first = spark.range(2000).selectExpr(
        "format_string('k%05d', id) id", "'a' p", "1L ts", "id * 1000003 v"
    )
    table.upsert(first)
    table.upsert(first.where("v % 50 = 0").selectExpr("id", "p", "2L ts", "-1L v"))
    assert [*Path(table.path).glob("a/.*.log.*")]
    wanted = [v if v % 50 else -1 for v in (1000003 * n for n in range(2000))]
    rows = sorted(hn.Table.open(table.path).to_arrow(meta=False).to_pylist(), key=lambda r: r["id"])
    assert [row["v"] for row in rows] == wanted


@pytest.mark.parametrize(
    "given",
    [
        {"index": "state", "pipeline": "step3"},
        {"pipeline": "current"},
    ],
)
def test_what_a_stream_cannot_do_yet(spark: Any, tmp_path: Path, given: dict[str, Any]) -> None:
    """The option is named, before anything runs."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, **KEYS)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidConfig, match="not possible with a merge-on-read table yet"):
        hn.write_stream(stream, table, checkpoint=tmp_path / "c", **given)
