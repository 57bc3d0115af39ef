"""Programs under spark-submit, and Pythons of Spark's tasks that cannot write."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import hoodie_nb as hn
from hoodie_nb.api.java import find_java, java_home
from hoodie_nb.on_spark.task_errors import translated

pytestmark = pytest.mark.spark
HOME, ROOT = Path(pyspark.__file__).parent, Path(__file__).parents[2]
SUBMITTED = """
import warnings
import hoodie_nb as hn

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    spark = hn.spark(cores=5)
print("warned:", *(str(w.message) for w in caught if "spark-submit" in str(w.message)))
names = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.app.name")
print(spark.sparkContext.master, *map(spark.conf.get, names))
table = hn.Table.create("t", schema="id string", record_key="id")
rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
stream = rate.selectExpr("CAST(value % 7 AS STRING) AS id")
job = hn.write_stream(stream, table, checkpoint="check points", trigger="0 seconds")
while len(job.events.records("instant_committed")) < 2:
    assert job.active
job.stop()
print(sorted(table.to_arrow().column("id").to_pylist()), table.fsck())
spark.stop()
"""
LACKING = """
import sys
import hoodie_nb as hn

spark = hn.spark(cores=1, memory="1g", conf={"spark.pyspark.python": sys.argv[1]})
table = hn.Table.create("t", schema="id string", record_key="id")
rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
stream = rate.selectExpr("CAST(value AS STRING) AS id")
try:
    table.upsert(spark.range(3).selectExpr("CAST(id AS STRING) AS id"))
except hn.InvalidConfig as error:
    print("batch:", error)
job = hn.write_stream(stream, table, checkpoint="ck", trigger="0 seconds")
try:
    job.wait(60)
except hn.InvalidConfig as error:
    print("stream:", error)
print(len(job.events.records("job_restarted")), len(table.history()), table.fsck())
spark.stop()
"""


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, in an environment without settings for Spark."""
    unset = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    kept |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(java_home(find_java())), **environment}
    return subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_submitted_program_has_the_session_of_spark_submit(tmp_path: Path) -> None:
    """`hn.spark()` keeps the master and settings of spark-submit, and adds what was left open.

    The checkpoint folder is on the driver's disk, whatever Hadoop's default file system is.
    """
    (tmp_path / "program.py").write_text(SUBMITTED)
    conf = ["spark.sql.shuffle.partitions=7", "spark.hadoop.fs.defaultFS=hdfs://127.0.0.1:1/"]
    conf += ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
    conf += ["spark.ui.enabled=false", "spark.sql.warehouse.dir=file:/nowhere"]
    given = [word for setting in conf for word in ("--conf", setting)]
    submit = [str(HOME / "bin" / "spark-submit"), "--master", "local[1,2]", *given, "program.py"]
    done = run(submit, tmp_path, PYSPARK_PYTHON=sys.executable)
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "warned: cores and memory are those that spark-submit was given",
        "local[1,2] 7 UTC program.py",
    ], done.stderr[-3000:]
    assert lines[2] == f"{[*'0123456']} []"
    assert (tmp_path / "check points" / "offsets" / "0").exists()


def test_a_package_that_tasks_lack_is_one_error_with_the_cure(tmp_path: Path) -> None:
    """A Python without packages is an InvalidConfig of batch and stream, and not tried again."""
    lacking = tmp_path / "python"
    lacking.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    lacking.chmod(0o700)
    done = run([sys.executable, "-c", LACKING, str(lacking)], tmp_path)
    batch, stream, after = done.stdout.splitlines()
    for line, kind in ((batch, "batch"), (stream, "stream")):
        assert line.startswith(f"{kind}: the Python of Spark's tasks cannot write: No module named")
        assert f"set PYSPARK_PYTHON={shlex.quote(sys.executable)} before" in line
    assert after == "0 0 []"


def test_a_python_that_is_missing_is_one_error_with_the_cure(tmp_path: Path) -> None:
    """A path that the hosts of the tasks do not have is named."""
    done = run([sys.executable, "-c", LACKING, str(tmp_path / "no" / "python3")], tmp_path)
    batch, stream, after = done.stdout.splitlines()
    assert f'cannot write: Cannot run program "{tmp_path}/no/python3"' in batch
    assert "set PYSPARK_PYTHON=" in stream and after == "0 0 []"


def test_another_version_of_python_is_recognized() -> None:
    """The words of Spark's PYTHON_VERSION_MISMATCH, and of a missing package, are InvalidConfig."""
    versions = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in"
    for text in (f"{versions} driver: 3.11, PySpark cannot run", "No module named 'fastavro'"):
        assert isinstance(translated(Exception(text)), hn.InvalidConfig)
    assert isinstance(translated(Exception("No space left")), hn.WriteFailed)
