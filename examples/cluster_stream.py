r"""Stream orders into a table on an object store, from a Spark cluster; docs/cluster.md runs it.

    spark-submit --master spark://HOST:7077 --py-files hoodie_nb.zip cluster_stream.py \
        s3://bucket/warehouse/orders /var/lib/orders/checkpoint 20

The last argument is the number of micro-batches after which it stops.
"""

import os
import sys

import pyarrow as pa

import hoodie_nb as hn

SCHEMA = pa.schema(
    {"id": pa.string(), "day": pa.string(), "version": pa.int64(), "amount": pa.int64()}
)
CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
PLACE = ("aws_region", "aws_endpoint", "aws_allow_http")


def main(address: str, checkpoint: str, batches: int) -> None:
    r"""Stream so many micro-batches of orders; each order comes again with another amount."""
    spark = hn.spark()  # with the master and settings of spark-submit
    names = [name for name in (*CREDENTIALS, *PLACE) if name.upper() in os.environ]
    options = {name: os.environ[name.upper()] for name in names}  # of the driver: tasks get them
    table = hn.Table.create(
        address,
        schema=SCHEMA,
        record_key="id",
        partition_by="day",
        ordering="version",
        if_exists="open",
        storage_options=options,
    )
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=500, numPartitions=2)
    orders = source.load().selectExpr(
        "concat('order', value % 600) AS id",
        "concat('day', value % 600 % 3) AS day",
        "value AS version",
        "value * 7919 % 1000 AS amount",
    )
    options = {"checkpoint": checkpoint, "trigger": "0 seconds", "placement": "executors"}
    job = hn.write_stream(orders, table, **options)
    job.events.listen(lambda event: print(event.kind, event.values, flush=True))
    while len(job.events.records("batch_ended")) < batches:
        job.wait("1 second")  # raises what ended the job
    job.stop()
    days = table.to_spark(spark).groupBy("day").sum("amount").orderBy("day")
    print("amounts:", *(f"{day}={amount}" for day, amount in days.collect()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
