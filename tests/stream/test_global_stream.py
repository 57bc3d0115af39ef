"""Streams into a table with global keys: real Spark on the driver, and what is refused."""

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from core.tables import rows_by

import hoodie_nb as hn

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("n", pa.int64())])
KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts", "global_index": True}


def write_files(folder, seed, files=6):
    """Write files of random rows, some of them late; return the winning row of each key."""
    rng, held, number = random.Random(seed), {}, 0
    folder.mkdir()
    for at in range(files):
        rows = []
        for _ in range(30):
            number += 1
            late = rng.random() < 0.3
            row = {"id": f"k{rng.randrange(25)}", "p": f"p{rng.randrange(4)}", "n": number}
            row["ts"] = number // 2 if late else number
            rows.append(row)
            if row["ts"] >= held.get(row["id"], row)["ts"]:
                held[row["id"]] = row
        path = folder / f"{at}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
        os.utime(path, (at, at))
    return sorted(held.values(), key=lambda row: row["id"])


def stream_of(spark, folder):
    """Return the files as a stream, one in each micro-batch."""
    source = spark.readStream.schema("id string, p string, ts long, n long")
    return source.option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "driver"},
        {"placement": "auto", "pipeline": "direct"},
        {"placement": "driver", "commit_on": "write", "index": "bloom"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_a_stream_moves_keys_and_continues_after_a_restart(spark, tmp_path, settings):
    """After three micro-batches, a fault and a second job each key is in one partition."""
    expected = write_files(tmp_path / "in", repr(settings))
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, **KEYS)
    checkpoint = str(tmp_path / "ck")
    job = hn.write_stream(
        stream_of(spark, tmp_path / "in"),
        table,
        checkpoint=checkpoint,
        trigger="0 seconds",
        **settings,
    )
    hn.faults.inject(job, "crash_before_commit")
    job.process_all_available()
    job.stop()
    assert job.events.records("fault_injected")
    assert rows_by(table, "id") == expected
    more = write_files(tmp_path / "more", "more")
    for path in (tmp_path / "more").iterdir():
        moved = path.rename(tmp_path / "in" / f"more{path.name}")
        os.utime(moved, (100 + int(path.stem), 100 + int(path.stem)))
    again = hn.write_stream(
        stream_of(spark, tmp_path / "in"),
        table,
        checkpoint=checkpoint,
        trigger="available_now",
        **settings,
    )
    again.wait(200)
    held = {row["id"]: row for row in expected}
    for row in more:
        if row["ts"] >= held.get(row["id"], row)["ts"]:
            held[row["id"]] = row
    assert rows_by(table, "id") == sorted(held.values(), key=lambda row: row["id"])
    assert table.fsck() == []


@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "executors"},
        {"operation": "insert"},
        {"index": "state"},
        {"commit_interval": 2},
        {"commit_interval": "background"},
    ],
    ids=lambda settings: "-".join(map(str, *settings.items())),
)
def test_what_a_stream_cannot_do_is_refused_at_once(spark, tmp_path, settings):
    """The error names the setting and the remedy, and no query starts."""
    write_files(tmp_path / "in", 1, files=1)
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, **KEYS)
    with pytest.raises(hn.InvalidConfig, match=r"global_index=True.*(use|leave it out)"):
        hn.write_stream(
            stream_of(spark, tmp_path / "in"),
            table,
            checkpoint=str(tmp_path / "ck"),
            **settings,
        )
    assert table.history().empty


@pytest.mark.parametrize("version", [6, 9])
def test_dataframes_move_keys_as_arrow_tables_do(spark, tmp_path, version):
    """After each DataFrame, an upsert or a delete, each key is in one partition."""
    write_files(tmp_path / "in", version)
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, table_version=version, **KEYS)
    held = {}
    for path in sorted((tmp_path / "in").iterdir()):
        rows = pq.read_table(path).to_pylist()
        commit = table.upsert(spark.read.parquet(str(path)))
        for row in rows:
            if row["ts"] >= held.get(row["id"], row)["ts"]:
                held[row["id"]] = row
        assert commit.inserts + commit.updates > 0
    assert rows_by(table, "id") == sorted(held.values(), key=lambda row: row["id"])
    gone = [{**row, "p": "elsewhere"} for row in list(held.values())[:5]]
    table.delete(spark.createDataFrame(gone, "id string, p string, ts long, n long"))
    kept = sorted(list(held.values())[5:], key=lambda row: row["id"])
    assert rows_by(table, "id") == kept
    assert table.upsert(spark.read.parquet(str(path)).limit(0)) is None
    assert table.fsck() == []


def test_a_dataframe_with_bad_rows_is_refused_or_put_aside(spark, tmp_path):
    """A null key fails the whole DataFrame, or only its row with on_bad_record="quarantine"."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, **KEYS)
    rows = [("a", "x", 1, 1), (None, "x", 2, 2), ("a", "y", 3, 3)]
    frame = spark.createDataFrame(rows, "id string, p string, ts long, n long")
    with pytest.raises(hn.InvalidInput, match="id"):
        table.upsert(frame)
    assert table.history().empty
    assert table.upsert(frame, on_bad_record="quarantine").quarantined == 1
    assert rows_by(table, "id") == [{"id": "a", "p": "y", "ts": 3, "n": 3}]
