"""The judge: a Spark session with Hudi's own reader and writer, controlled by lines of JSON.

Runs in its own environment (see `install.py`), so it imports nothing of ours:

    <python> judge.py <bundle jar> <log file>

| request | what Java does | answer |
| --- | --- | --- |
| `{"do": "read", "path": p, "options": {...}, "into": q}` | query `p` into Parquet folder `q` | |
| `{"do": "write", "path": p, "rows": f, "options": {...}, "mode": m}` | write Parquet rows `f` | |
| `{"do": "rollback", "path": p, "instant": t, "options": {...}}` | roll back a commit | whether |
| `{"do": "sql", "text": "CALL ..."}` | a statement, such as Hudi's procedures | its rows |

Options named `spark.*` are settings of the session for this request. Spark's modes for old dates
and times (`REBASE`) are a user's, its defaults, except for the files that hand rows over.

Each line on standard input is a request, each on standard output `{"ok": ...}` or `{"error": ...}`.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator

from pyspark.sql import SparkSession


def session(jar: str) -> SparkSession:
    """Return a session on two cores, in UTC, with Hudi's extensions."""
    settings = {
        "spark.jars": jar,
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        # its old list structure has no room for a null inside an array
        "spark.hadoop.parquet.avro.write-old-list-structure": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("judge")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


REBASE = "spark.sql.parquet.datetimeRebaseModeIn"


@contextlib.contextmanager
def settings(spark: SparkSession, options: dict) -> Iterator[dict]:
    """Set those of the options that are the session's, and yield the others."""
    own = {name: value for name, value in options.items() if name.startswith("spark.")}
    before = {name: spark.conf.get(name, None) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    try:
        yield {name: value for name, value in options.items() if name not in own}
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def read(spark: SparkSession, request: dict) -> None:
    """Write the rows of a query as one Parquet file."""
    with settings(spark, {REBASE + "Write": "CORRECTED", **request["options"]}) as options:
        rows = spark.read.format("hudi").options(**options).load(request["path"])
        rows.coalesce(1).write.parquet(request["into"])


def write(spark: SparkSession, request: dict) -> None:
    """Write the rows of a Parquet file with Hudi."""
    rows = spark.read.option("datetimeRebaseMode", "CORRECTED").parquet(request["rows"])
    with settings(spark, request["options"]) as options:
        writer = rows.write.format("hudi").options(**options)
        writer.mode(request["mode"]).save(request["path"])


def rollback(spark: SparkSession, request: dict) -> bool:
    """Roll back a commit with Hudi's client; its SQL procedure fails on tables of version 6."""
    jvm = spark._jvm
    options = jvm.PythonUtils.toScalaMap(request["options"])
    client = jvm.org.apache.hudi.HoodieCLIUtils.createHoodieWriteClient(
        spark._jsparkSession, request["path"], options, jvm.scala.Option.empty()
    )
    try:
        return client.rollback(request["instant"])
    finally:
        client.close()


def sql(spark: SparkSession, request: dict) -> list:
    """Run a statement."""
    return [[str(cell) for cell in row] for row in spark.sql(request["text"]).collect()]


def answer(spark: SparkSession, line: str) -> dict:
    """Return the answer to one request, or Java's exception."""
    try:
        request = json.loads(line)
        known = {"read": read, "write": write, "sql": sql, "rollback": rollback}
        return {"ok": known[request["do"]](spark, request)}
    except Exception as error:
        traceback.print_exc()
        causes = [row for row in str(error).splitlines() if not row.startswith("\tat ")]
        return {"error": "\n".join(causes)[:2000]}


def main(jar: str, log: str) -> None:
    """Serve requests until standard input ends; all other output goes to the log."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    spark = session(jar)
    print(json.dumps({"ok": spark.version}), file=answers)
    for line in sys.stdin:
        print(json.dumps(answer(spark, line)), file=answers)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
