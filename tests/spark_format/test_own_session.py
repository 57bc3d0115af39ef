"""The format in a session that is not ours: found by its name, or registered by a call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from core.tables import hudi_rows, schema_of, without_meta

import hoodie_nb as hn
from hoodie_nb.api.java import find_java, java_home
from hoodie_nb.storage.storage import STAGED

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
OWN = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
rows = spark.range(int(sys.argv[2])).selectExpr(
    "CAST(id AS STRING) id", "'p' p", "1L ts", "id v"
)
if sys.argv[1] == "registered":
    import hoodie_nb
    hoodie_nb.register(spark)
key = {"recordkey.field": "id", "partitionpath.field": "p", "precombine.field": "ts"}
options = {f"hoodie.datasource.write.{name}": column for name, column in key.items()}
try:
    rows.write.format("hoodie_nb").options(**options).mode("append").save("t")
    print(spark.read.format("hoodie_nb").load("t").count())
except Exception as error:
    print(error)
"""
OF_TABLES = """
import pyarrow as pa
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
import hoodie_nb as hn

schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
table = hn.Table.create("t", schema=schema, record_key="id")
rows = spark.range(5).selectExpr("CAST(id AS STRING) id", "id v")
first = table.upsert(rows)
rows.selectExpr("id", "v + 1 AS v").write.parquet("source")
stream = spark.readStream.schema(rows.schema).parquet("source")
hn.write_stream(
    stream, table, checkpoint="ck", trigger="available_now", placement="executors"
).wait()
found = table.changes_spark(spark, since=first).groupBy("_change").count().collect()
print(sorted(map(tuple, found)), table.to_spark(spark).count())
"""


def environment(**more: str) -> dict[str, str]:
    """Return an environment without settings for Spark's Python, as that of a plain program."""
    unset = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    java = str(java_home(find_java()))
    return kept | {
        "PYTHONPATH": str(ROOT),
        "JAVA_HOME": java,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts faster
        **more,
    }


def python3(folder: Path, *options: str) -> dict[str, str]:
    """Return an environment whose python3 is this Python with options."""
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} {" ".join(options)} "$@"\n')
    (folder / "python3").chmod(0o700)
    return environment(PATH=f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("how", "options", "expected"),
    [
        ("found", (), "5"),
        ("registered", ("-S",), "5"),
        ("found", ("-S",), "Set PYSPARK_PYTHON to a Python with"),
    ],
)
def test_a_plain_session_knows_the_format(tmp_path, how, options, expected):
    """Without a call if its python3 can run it, else after `hn.register`; or it says what to do."""
    command = [sys.executable, "-c", OWN, how, "5"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=python3(tmp_path / "bin", *options),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert expected in done.stdout, done.stderr[-3000:]


def test_tables_work_in_a_plain_session(tmp_path):
    """Writes, streams and changes on Spark run in this Python if python3 lacks the packages."""
    done = subprocess.run(
        [sys.executable, "-c", OF_TABLES],
        cwd=tmp_path,
        env=python3(tmp_path / "bin", "-S"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "[('update', 5)] 5\n", done.stderr[-3000:]


@pytest.mark.kills
def test_a_killed_driver_leaves_nothing_after_the_next_write(tmp_path):
    """`kill -9` of the driver when a commit has stopped: the next write deletes the staged rows."""
    table = hn.Table.create(
        tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p", ordering="ts"
    )
    command = [sys.executable, "-c", OWN, "found", "500"]
    points = {"HOODIE_NB_TESTING": "1", "HOODIE_NB_FAILPOINTS": "spark.commit.pre=stop"}
    env = python3(tmp_path / "bin") | points
    driver = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    stopped = _wait_for(lambda: _stopped(tmp_path))
    owners = {int(name.split(".")[2]) for name in os.listdir(tmp_path / "t" / STAGED)}
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    os.kill(stopped, signal.SIGKILL)
    for owner in owners:
        _wait_for(lambda owner=owner: not Path(f"/proc/{owner}").exists())
    assert len(os.listdir(tmp_path / "t" / STAGED)) == 1
    rows = [{"id": str(n), "p": "p", "ts": 1, "v": n} for n in range(500)]
    table.upsert(rows)
    assert without_meta(table.to_arrow()) == without_meta(pa.Table.from_pylist(rows, schema_of()))
    assert hudi_rows(table.path) == without_meta(table.to_arrow())
    assert table.fsck() == [] and os.listdir(tmp_path / "t" / STAGED) == []


def _wait_for(found, within_s: float = 200):
    """Return what is found when it is true."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if value := found():
            return value
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def _stopped(folder: Path) -> int | None:
    """Return the id of the stopped process that works in a folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state == "T" and os.readlink(entry / "cwd") == str(folder):
                    return int(entry.name)
            except OSError:
                continue
    return None
