"""What a new user meets first on Spark: how a job ends, what it reports, what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from new_process import run_code
from pyspark.sql import functions as F
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb.on_spark.task_errors import raise_translated

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
CTRL_C = """
import os, signal, sys
import hoodie_nb as hn

def interrupts(batches):  # Ctrl-C while this Spark call runs, which ends after the next one
    import os, signal, time
    for batch in batches:
        os.kill(PID, signal.SIGINT)
        while not os.path.exists(FLAG):
            time.sleep(0.05)
        yield batch

PID, FLAG = os.getpid(), os.path.abspath("flag")
spark = hn.spark(cores=2, memory="1g")
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background process
"""


def started(spark, folder: Path, **settings):
    """Return a table and a job that reads a folder with one file."""
    table = hn.Table.create(folder / "t", schema=SCHEMA, record_key="id", if_exists="open")
    source = FolderSource(folder / "source", SCHEMA)
    source.add(pa.table({"id": ["a", "b"], "v": [1, 2]}, schema=SCHEMA))
    common = {"checkpoint": folder / "ck", "trigger": "0 seconds", **settings}
    return table, hn.write_stream(source.stream(spark), table, **common)


def after_ctrl_c(code: str, folder: Path) -> str:
    """Return the output of a new process that interrupts a Spark call."""
    done = run_code(CTRL_C + code, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_with_block_stops_its_job(spark, tmp_path):
    """At the end of the block the job is stopped and its rows are committed."""
    table, job = started(spark, tmp_path)
    with job as entered:
        assert entered is job
        job.process_all_available()
    assert not job.active and not job.query.isActive
    assert table.to_arrow().num_rows == 2


def test_an_error_in_a_with_block_stops_the_job_and_is_raised(spark, tmp_path):
    """The block's own error is raised, also if the job has failed; the job is stopped."""
    _, job = started(spark, tmp_path, max_restarts=0)
    with pytest.raises(KeyError, match="mine"), job:
        job.process_all_available()
        raise KeyError("mine")
    assert not job.active
    stream = spark.readStream.format("rate").load().selectExpr("string(1 / (value * 0)) AS id")
    table = hn.Table.create(tmp_path / "bad", schema=SCHEMA, record_key="id")
    stream = stream.withColumn("v", F.lit(1).cast("bigint"))
    job = hn.write_stream(stream, table, checkpoint=tmp_path / "ck2", max_restarts=0)
    with pytest.raises(KeyError, match="mine"), job:
        job._watched.ended.wait(60)
        raise KeyError("mine")
    assert job.status.startswith("failed")


def test_a_job_without_a_batch_says_so(spark, tmp_path):
    """Before its first batch the status has no batch number."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    stream = FolderSource(tmp_path / "source", SCHEMA).stream(spark)
    with hn.write_stream(stream, table, checkpoint=tmp_path / "ck") as job:
        assert job.status == "running: 0 commits, 0 rows written, no batch yet, pipeline direct"


def test_a_job_logs_its_start_commits_and_end(spark, tmp_path, caplog):
    """At INFO the logger `hoodie_nb` has these lines, each with the table's name, and no others."""
    with caplog.at_level(logging.INFO, "hoodie_nb"):
        _, job = started(spark, tmp_path, trigger="available_now")
        job.wait(60)
    kinds = [line.split()[1] for line in caplog.messages]
    assert kinds == ["job_started", "instant_committed", "job_stopped"]
    assert all(line.startswith("t: ") for line in caplog.messages)


def test_an_aggregated_stream_is_refused_in_one_line(spark, tmp_path):
    """Spark's refusal of a stream is an InvalidConfig without the plan; the table can be used."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    rows = spark.readStream.format("rate").load().selectExpr("string(value) AS id", "value AS v")
    counts = rows.groupBy("id").agg(F.count("v").alias("v"))
    with pytest.raises(hn.InvalidConfig, match=r"cannot run this stream.*aggregations") as caught:
        hn.write_stream(counts, table, checkpoint=tmp_path / "ck")
    assert "\n" not in str(caught.value) and caught.value.__cause__ is None
    table.upsert(pa.table({"id": ["a"], "v": [1]}, schema=SCHEMA))


@pytest.mark.parametrize("how", ["replaced", "another"])
def test_the_checkpoint_folder_of_another_table_is_refused_by_name(spark, tmp_path, how):
    """The error says which table lacks the query, and which has it; a new folder fills that one."""
    _, job = started(spark, tmp_path, trigger="available_now")
    job.wait(60)
    place = {"replaced": tmp_path / "t", "another": tmp_path / "other"}[how]
    table = hn.Table.create(place, schema=SCHEMA, record_key="id", if_exists="replace")
    stream = FolderSource(tmp_path / "source", SCHEMA).stream(spark)
    settings = {"trigger": "available_now"}
    told = f"the table {place}, which has 0 commits, has no re"
    with pytest.raises(hn.InvalidTable, match=told) as caught:
        hn.write_stream(stream, table, checkpoint=tmp_path / "ck", **settings).wait(60)
    whose = {"replaced": "another table", "another": tmp_path / "t"}[how]
    assert f"that of a stream into {whose}, or of Hudi's own stream, or this" in str(caught.value)
    hn.write_stream(stream, table, checkpoint=tmp_path / "new", **settings).wait(60)
    found = table.to_pandas(columns=["id", "v"])
    assert dict(zip(found["id"], found["v"], strict=True)) == {"a": 1, "b": 2}


def test_a_damaged_checkpoint_folder_is_not_blamed_on_the_stream(spark, tmp_path):
    """Spark cannot read its file: the error names the folder, and no output mode."""
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "metadata").write_text("?")
    with pytest.raises(hn.InvalidConfig, match=rf"checkpoint folder {tmp_path}/ck: ") as caught:
        started(spark, tmp_path)
    assert "output_mode" not in str(caught.value) and "choose another folder" in str(caught.value)
    table, job = started(spark, tmp_path, checkpoint=tmp_path / "ck2", trigger="available_now")
    job.wait(60)
    assert table.to_arrow().num_rows == 2


def test_ddl_that_cannot_be_parsed_is_refused_in_one_line(spark, tmp_path):
    """The message has the text that was given, and an example."""
    with pytest.raises(hn.InvalidConfig, match=r"schema='id strin, v': write DDL as") as caught:
        hn.Table.create(tmp_path / "t", schema="id strin, v", record_key="id")
    assert "\n" not in str(caught.value)


def test_ddl_without_a_session_is_refused_with_the_fix(tmp_path):
    """Only Spark parses DDL: the message names `hn.spark()`."""
    code = """
import hoodie_nb as hn
try:
    hn.Table.create("t", schema="id string", record_key="id")
except hn.InvalidConfig as error:
    print(error)
"""
    done = run_code(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "needs a running Spark session: call hn.spark() first" in done.stdout


def test_the_answer_of_an_interrupted_call_is_not_that_of_the_next(tmp_path):
    """After Ctrl-C in a Spark call, the next call returns its own answer."""
    code = """
try:
    spark.range(1000, numPartitions=1).mapInArrow(interrupts, "id long").count()
except KeyboardInterrupt as error:
    kept = error  # as a notebook keeps the last traceback
print(spark.range(5).count())
open(FLAG, "w").close()
print(spark.range(7).count())
spark.stop()
"""
    assert after_ctrl_c(code, tmp_path).split() == ["5", "7"]


def test_an_interrupted_upsert_is_rolled_back_and_says_so(tmp_path):
    """Ctrl-C in an upsert of a DataFrame leaves the table as it was; the next upsert works."""
    code = """
table = hn.Table.create("t", schema="id string", record_key="id")
rows = spark.range(10, numPartitions=1).selectExpr("string(id) AS id")
try:
    table.upsert(rows.mapInArrow(interrupts, "id string"))
except KeyboardInterrupt as error:
    print(error)
print(table.to_arrow().num_rows, len(table.history()))
table.upsert(rows)
print(table.to_arrow().num_rows, table.fsck())
open(FLAG, "w").close()
spark.stop()
"""
    line, before, after = after_ctrl_c(code, tmp_path).splitlines()
    assert line == "the write was interrupted: nothing was written"
    assert (before, after) == ("0 0", "10 []")


def test_an_error_of_the_cleanup_after_ctrl_c_is_ctrl_c():
    """If pyspark's cleanup after Ctrl-C fails, the write ends with Ctrl-C, not with that error."""
    with pytest.raises(KeyboardInterrupt):
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise ConnectionError("as a call on a connection that py4j has closed")
        except ConnectionError as error:
            raise_translated(error)


def test_an_error_of_a_write_after_ctrl_c_stays_that_error():
    """A write that fails while the user handles an earlier Ctrl-C fails with its own error."""
    with pytest.raises(hn.WriteFailed, match="no space"):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as handled:
            try:
                raise ConnectionError("no space left")
            except ConnectionError as error:
                raise_translated(error, handled)


def test_a_checkpoint_folder_that_cannot_be_written_is_named(spark, tmp_path):
    """A stream with such a folder is refused in one line."""
    (tmp_path / "file").write_text("")
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    stream = FolderSource(tmp_path / "source", SCHEMA).stream(spark)
    for place in (tmp_path / "file" / "ck", Path("/proc/ck")):  # nobody can write the second one
        with pytest.raises(hn.InvalidConfig) as caught:
            hn.write_stream(stream, table, checkpoint=place)
        assert "\n" not in str(caught.value) and str(place) in str(caught.value)


@pytest.mark.parametrize("wrong", [{"write_tasks": 0}, {"write_tasks": "2"}, {"max_restarts": -1}])
def test_a_number_out_of_range_is_refused(spark, tmp_path, wrong):
    """The option is named with its value before the stream starts."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    stream = FolderSource(tmp_path / "source", SCHEMA).stream(spark)
    with pytest.raises(hn.InvalidConfig, match=f"{next(iter(wrong))}=.*: give an integer of"):
        hn.write_stream(stream, table, checkpoint=tmp_path / "ck", **wrong)


def test_a_stream_is_not_upserted(spark, tmp_path):
    """`upsert` of a streaming DataFrame names the function for streams."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    with pytest.raises(hn.InvalidConfig, match=r"use hn\.write_stream"):
        table.upsert(FolderSource(tmp_path / "source", SCHEMA).stream(spark))


def test_an_error_of_spark_is_raised_and_not_printed(tmp_path):
    """A query that fails raises its error; stderr has no log of it."""
    code = """
try:
    spark.range(3).selectExpr("1 / (id * 0)").collect()
except Exception as error:
    print("DIVIDE_BY_ZERO" in str(error))
spark.stop()
try:
    hn.Table.create("t", schema="id string", record_key="id").to_spark(spark)
except hn.InvalidConfig as error:
    print(error)
try:
    hn.api.session.require_classic(spark)
except hn.InvalidConfig as error:
    print(error)
"""
    raised, without, stopped = after_ctrl_c(code, tmp_path).splitlines()
    assert raised == "True"
    assert "needs a running Spark session" in without
    assert stopped == "this session was stopped: get a new one from hn.spark()"
