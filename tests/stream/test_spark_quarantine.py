"""`on_bad_record="quarantine"` on real Spark: every placement, pipeline and way to commit.

A folder of files with random good and bad rows is streamed; the model is a dict of the good rows
and a list of the bad ones with the part of the reason that must be given.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import hudi
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.storage.storage import STAGED

pytestmark = pytest.mark.spark
GIVEN = pa.schema([("raw", pa.binary()), ("p", pa.string()), ("ts", pa.int64()), ("n", pa.int64())])
COLUMNS = ["cast(raw as string) id", "p", "ts", "n"]
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("n", pa.int32())])
KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
KINDS = {  # what is wrong → changed values, the column that is named, a part of the reason
    "null key": ({"raw": None}, "id", "is null or empty"),
    "empty key": ({"raw": b""}, "id", "is null or empty"),
    "long key": ({"raw": b"k" * 65_537}, "id", "longer than 64 KiB"),
    "not UTF-8": ({"raw": b"a\xff"}, "id", "UTF8"),
    "outside": ({"p": ".."}, "p", "points outside the table"),
    "unsafe": ({"p": "a:b"}, "p", "unsafe in a path"),
    "too large": ({"n": 1 << 40}, "n", "does not fit int32"),
}


class Input:
    """Files of random rows, and what they must become."""

    def __init__(self, folder, seed, files=5, sizes=()):
        self.folder, self.good, self.bad = folder, {}, Counter()
        self.number, rng = 0, random.Random(seed)
        folder.mkdir()
        for number in range(len(sizes) or files):
            share = 0.3 if sizes else (0.2, 1.0, 0.0, 0.5)[number % 4]
            count = sizes[number] if sizes else rng.randrange(20, 60)
            rows = [self._row(rng, share) for _ in range(count)]
            path = folder / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=GIVEN), path)
            os.utime(path, (number, number))

    def _row(self, rng, share):
        self.number += 1
        row = {"raw": b"k%d" % rng.randrange(40), "p": f"p{rng.randrange(3)}"}
        row |= {"ts": self.number, "n": self.number}
        if rng.random() < share:
            kind = rng.choice([*KINDS])
            row |= KINDS[kind][0]
            raw = row["raw"]
            text = str(raw) if kind == "not UTF-8" else None if raw is None else raw.decode()
            given = {"id": text, "p": row["p"], "ts": row["ts"], "n": row["n"]}
            self.bad[json.dumps(given), *KINDS[kind][1:]] += 1
        else:
            key = row["raw"].decode()
            self.good[row["p"], key] = {"id": key, "p": row["p"], "ts": row["ts"], "n": row["n"]}
        return row

    def stream(self, spark):
        """Return the files as a stream."""
        return stream_of(spark, self.folder)

    def batch(self, spark):
        """Return all files as a DataFrame."""
        return spark.read.parquet(str(self.folder)).selectExpr(*COLUMNS)

    def check(self, table, options=None):
        """The snapshot is the dict, for both readers; the quarantine has each bad row once.

        `options` are those of the table's store.
        """
        expected = sorted(self.good.values(), key=lambda row: row["ts"])
        built = hudi.HudiTableBuilder.from_base_uri(table.path).with_storage_options(options or {})
        read = pa.Table.from_batches(built.build().read(hudi.HudiReadOptions()))
        for rows in (table.to_arrow(meta=False), read.select(SCHEMA.names)):
            assert sorted(rows.to_pylist(), key=lambda row: row["ts"]) == expected
        found = Counter()
        for row in table.quarantine().to_pylist():
            parts = {part for _, _, part in self.bad if part in row["reason"]}
            assert len(parts) == 1, row
            found[row["row"], row["column"], *parts] += 1
        assert found == self.bad
        assert table.history()["quarantined"].sum() == self.bad.total()
        assert table.fsck() == []
        assert table._handle.storage.list_folder(STAGED) == []


def stream_of(spark, folder, files=1):
    """Return the files of a folder as a stream, so many of them in a micro-batch."""
    ddl = "raw binary, p string, ts long, n long"
    source = spark.readStream.schema(ddl).option("maxFilesPerTrigger", files)
    return source.parquet(str(folder)).selectExpr(*COLUMNS)


def table_at(folder):
    """Return a new table."""
    return hn.Table.create(folder / "t", schema=SCHEMA, **KEYS)


def started(stream, table, folder, **settings):
    """Return a started job that puts bad rows in quarantine."""
    settings = {"trigger": "available_now", "on_bad_record": "quarantine", **settings}
    return hn.write_stream(stream, table, checkpoint=str(folder / "ck"), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"pipeline": "step1", "index": "bloom"},
        {"placement": "executors", "pipeline": "step2", "commit_on": "write"},
        {"placement": "executors", "pipeline": "step3"},
        {"placement": "executors", "pipeline": "direct"},
        {"placement": "executors", "pipeline": "direct", "commit_interval": "background"},
        {"placement": "executors", "commit_interval": 2},
        {},
        {"placement": "driver"},
        {"placement": "driver", "commit_on": "write"},
        {"placement": "driver", "commit_interval": 2},
        {"placement": "auto", "commit_interval": "background"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_stream_goes_on_past_bad_rows(spark, tmp_path, settings):
    """Good rows are in the table, bad ones in quarantine with reasons, whoever writes them."""
    source, table = Input(tmp_path / "in", repr(settings)), table_at(tmp_path)
    job = started(source.stream(spark), table, tmp_path, **settings)
    job.wait(200)
    source.check(table)
    assert f"{source.bad.total()} in quarantine" in job.status
    rows = [e.values["rows"] for e in job.events.records("rows_quarantined")]
    assert sum(rows) == source.bad.total() and not job.events.records("job_restarted")
    batches = table.quarantine()["batch_id"].to_pylist()
    assert {*batches} <= {*range(5)} and len({*batches}) >= 3
    again = started(source.stream(spark), table, tmp_path, **settings)
    again.wait(200)
    source.check(table)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"placement": "executors", "pipeline": "step3"},
        {"commit_interval": 2},
        {"placement": "executors"},
    ],
)
@pytest.mark.parametrize(
    "fault", ["kill_writer", "time_out_checkpoint", "crash_after_files", "crash_before_commit"]
)
def test_a_fault_doubles_no_bad_row(spark, tmp_path, fault, settings):
    """A micro-batch that fails or is sent again leaves its bad rows in quarantine once."""
    source, table = Input(tmp_path / "in", fault), table_at(tmp_path)
    job = started(source.stream(spark), table, tmp_path, trigger="0 seconds", **settings)
    hn.faults.inject(job, fault)
    job.process_all_available()
    job.stop()
    assert job.events.records("fault_injected")
    source.check(table)


def test_a_batch_from_spark_goes_on_past_bad_rows(spark, tmp_path):
    """`upsert` of a DataFrame: the commit counts the bad rows; by default the call fails."""
    source, table = Input(tmp_path / "in", 1), table_at(tmp_path)
    with pytest.raises(hn.InvalidInput, match=r"column '(id|n|p)'.*\(as counted by one Spark task"):
        table.upsert(source.batch(spark))
    commit = table.upsert(source.batch(spark), on_bad_record="quarantine")
    assert commit.quarantined == source.bad.total()
    source.check(table)


@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "executors", "pipeline": "step3"},
        {"placement": "executors"},
        {"placement": "driver"},
    ],
)
def test_bad_rows_of_several_files_in_one_micro_batch(spark, tmp_path, settings):
    """The files of a micro-batch may all have bad rows, between others of the same keys."""
    source = Input(tmp_path / "in", repr(settings), sizes=(400, 100, 200, 50))
    table = table_at(tmp_path)
    stream = stream_of(spark, source.folder, files=10)
    job = started(stream, table, tmp_path, write_tasks=2, **settings)
    job.wait(200)
    assert len(job.events.records("batch_ended")) == 1
    source.check(table)


@pytest.mark.parametrize("settings", [{}, {"placement": "driver", "commit_interval": 2}])
def test_bad_rows_on_an_object_store_are_put_aside(spark, s3_server, tmp_path, settings):
    """On S3, where nothing can be renamed, the rows are the same."""
    source, options = Input(tmp_path / "in", repr(settings)), s3_server.options
    table = hn.Table.create(
        s3_server.new_root(), schema=SCHEMA, storage_options=options, table_version=9, **KEYS
    )
    started(source.stream(spark), table, tmp_path, **settings).wait(200)
    source.check(table, options)


def test_the_oldest_pipeline_has_no_quarantine(spark, tmp_path):
    """`current` creates its instant in a task, after rows are checked: refused at once."""
    source, table = Input(tmp_path / "in", 1, files=1), table_at(tmp_path)
    with pytest.raises(hn.InvalidConfig, match="'step1', 'step2', 'step3' or 'direct'"):
        started(source.stream(spark), table, tmp_path, pipeline="current")
    assert table.timeline().empty


CHILD = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
import hoodie_nb as hn
from test_spark_quarantine import started, stream_of
folder, settings = Path(sys.argv[3]), json.loads(sys.argv[4])
stream = stream_of(hn.spark(cores=2), folder / "in")
started(stream, hn.Table.open(folder / "t"), folder, **settings).wait(200)
"""


POINTS = ["quarantine.publish.post@2", "coord.statuses.pre@2", "coord.commit.post", "seal"]
WAYS = [{}, {"placement": "driver"}, {"commit_interval": 2}, {"commit_interval": "background"}]
KILLS = [  # each point and each way is in `make kills`, all pairs are in `make slow`
    pytest.param(point, way, marks=[] if (at + number) % 4 == 3 else pytest.mark.slow)
    for at, point in enumerate(POINTS)
    for number, way in enumerate(WAYS)
]


@pytest.mark.kills
@pytest.mark.parametrize(("point", "settings"), KILLS)
def test_a_killed_stream_keeps_each_bad_row_once(tmp_path, point, settings):
    """`kill -9` of the driver while it stages, publishes or commits; a new process goes on."""
    name, _, hit = point.partition("@")
    name = {
        "seal": "coord.seal.post" if "commit_interval" in settings else "coord.prepare.post"
    }.get(name, name)
    source = Input(tmp_path / "in", repr((point, settings)))
    table_at(tmp_path)
    folders = [str(Path(failpoints.__file__).parents[1]), str(Path(__file__).parent)]
    command = [sys.executable, "-c", CHILD, *folders, str(tmp_path), json.dumps(settings)]
    for failpoint, ends in ((f"{name}=kill@{hit or 1}", -signal.SIGKILL), ("", 0)):
        env = {**os.environ, "HOODIE_NB_TESTING": "1", "HOODIE_NB_FAILPOINTS": failpoint}
        done = subprocess.run(command, env=env, capture_output=True, check=False)
        assert done.returncode == ends, done.stderr.decode()[-3000:]
    source.check(hn.Table.open(tmp_path / "t"))
