"""Streams of aggregates: output_mode="update" upserts the groups that a micro-batch has changed."""

import collections
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from core.tables import rows_by

import hoodie_nb as hn

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64()), ("total", pa.int64())])


def write_words(folder, first, files):
    """Write files of random words with a number each."""
    rng = random.Random(first)
    folder.mkdir(exist_ok=True)
    for at in range(first, first + files):
        words = [f"w{rng.randrange(12 + at)}" for _ in range(40)]
        values = [rng.randrange(1000) for _ in words]
        path = folder / f"{at}.parquet"
        pq.write_table(pa.table({"word": words, "value": values}), path)
        os.utime(path, (at, at))


def counted(folder):
    """Return what the table should have: each word's rows and the sum of their numbers."""
    count, total = collections.Counter(), collections.Counter()
    for row in pq.read_table(folder).to_pylist():
        count[row["word"]] += 1
        total[row["word"]] += row["value"]
    return [{"word": word, "n": count[word], "total": total[word]} for word in sorted(count)]


def aggregated(spark, folder):
    """Return the count of each word as a stream, with one new file in each micro-batch."""
    source = spark.readStream.schema("word string, value long").option("maxFilesPerTrigger", 1)
    return (
        source.parquet(str(folder))
        .groupBy("word")
        .agg({"*": "count", "value": "sum"})
        .toDF("word", "n", "total")
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "executors"},
        {"placement": "driver", "pipeline": "direct"},
        {"placement": "auto", "pipeline": "direct", "commit_interval": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
@pytest.mark.parametrize("fault", ["crash_before_commit", "kill_writer"])
def test_an_aggregation_in_update_mode_survives_a_fault_and_a_restart(
    spark, tmp_path, settings, fault
):
    """After a fault and a second job the table has each group once, with its last value."""
    write_words(tmp_path / "in", 0, 4)
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="word")
    stream = aggregated(spark, tmp_path / "in")
    checkpoint = str(tmp_path / "ck")
    given = {"checkpoint": checkpoint, "output_mode": "update", **settings}
    job = hn.write_stream(stream, table, trigger="0 seconds", **given)
    hn.faults.inject(job, fault)
    job.process_all_available()
    job.stop()
    assert job.events.records("fault_injected")
    assert rows_by(table, "word") == counted(tmp_path / "in")
    write_words(tmp_path / "in", 100, 2)
    hn.write_stream(stream, table, trigger="available_now", **given).wait(200)
    assert rows_by(table, "word") == counted(tmp_path / "in")
    assert table.fsck() == []


def test_an_aggregation_in_append_mode_is_refused_with_the_remedy(spark, tmp_path):
    """Spark would only write groups that a watermark has closed: the error names the option."""
    write_words(tmp_path / "in", 0, 1)
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="word")
    stream, checkpoint = aggregated(spark, tmp_path / "in"), str(tmp_path / "ck")
    with pytest.raises(hn.InvalidConfig, match="output_mode='update'"):
        hn.write_stream(stream, table, checkpoint=checkpoint)
    with pytest.raises(hn.InvalidConfig, match=r"output_mode='complete'.*'append', 'update'"):
        hn.write_stream(stream, table, checkpoint=checkpoint, output_mode="complete")
    assert table.history().empty
