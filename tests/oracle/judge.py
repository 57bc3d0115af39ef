"""The judge: a Spark session with Hudi's own reader and writer, controlled by lines of JSON.

Runs in its own environment (see `install.py`), so it imports nothing of ours:

    <python> judge.py <bundle jar> <log file>

| request | what Java does | answer |
| --- | --- | --- |
| `{"do": "read", "path": p, "options": {...}, "into": q}` | query `p` into Parquet folder `q` | |
| `{"do": "write", "path": p, "rows": f, "options": {...}, "mode": m}` | write Parquet rows `f` | |
| `{"do": "sql", "text": "CALL ..."}` | a statement, such as Hudi's procedures | its rows |

Each line on standard input is a request, each on standard output `{"ok": ...}` or `{"error": ...}`.
"""

import json
import os
import sys
import traceback

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
        # without it, Spark stops at dates and times before 1900 in files of other programs
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        # its old list structure has no room for a null inside an array
        "spark.hadoop.parquet.avro.write-old-list-structure": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("judge")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read(spark: SparkSession, request: dict) -> None:
    """Write the rows of a query as one Parquet file."""
    rows = spark.read.format("hudi").options(**request["options"]).load(request["path"])
    rows.coalesce(1).write.parquet(request["into"])


def write(spark: SparkSession, request: dict) -> None:
    """Write the rows of a Parquet file with Hudi."""
    rows = spark.read.parquet(request["rows"])
    writer = rows.write.format("hudi").options(**request["options"])
    writer.mode(request["mode"]).save(request["path"])


def sql(spark: SparkSession, request: dict) -> list:
    """Run a statement."""
    return [[str(cell) for cell in row] for row in spark.sql(request["text"]).collect()]


def answer(spark: SparkSession, line: str) -> dict:
    """Return the answer to one request, or Java's exception."""
    try:
        request = json.loads(line)
        return {"ok": {"read": read, "write": write, "sql": sql}[request["do"]](spark, request)}
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
