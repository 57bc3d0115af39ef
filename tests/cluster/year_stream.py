r"""Stream the year of flights on a cluster; test_year.py submits it as docs/cluster.md says.

    year_stream.py s3://bucket/folder/table /var/lib/checkpoint 46

The events are the objects `s3://bucket/folder/events/0` and so on, eight for each of so many
micro-batches. Spark's tasks fetch them, on their hosts; what the driver knows are only numbers,
which Spark counts, so that a micro-batch has the same rows when it runs again.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial

import obstore
import pyarrow as pa
from obstore.store import S3Store
from pyarrow import parquet
from pyspark.sql.pandas.types import from_arrow_schema

import hoodie_nb as hn
from hoodie_nb.lab.experiments import flights

FILES = 8  # for each micro-batch
CLIENT = ("aws_access_key_id", "aws_secret_access_key", "aws_region", "aws_endpoint")


def events_of(address: str, options: dict[str, str]) -> S3Store:
    """Return the store of the events for a table at this address."""
    config = {name: options[name] for name in CLIENT}
    place = address.removesuffix("table") + "events"
    return S3Store.from_url(place, config=config, client_options={"allow_http": True})


def fetched(
    numbers: Iterator[pa.RecordBatch], address: str, options: dict[str, str], files: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the objects with these numbers; after the last one there are none."""
    store = events_of(address, options)
    for number in (value for batch in numbers for value in batch["value"].to_pylist()):
        if number < files:
            content = obstore.get(store, str(number)).bytes()
            yield from parquet.read_table(pa.BufferReader(content)).to_batches()


def main(address: str, checkpoint: str, batches: int) -> None:
    """Stream the year; then let Spark read the table, into the file spark.parquet of this host."""
    spark = hn.spark()
    options = {name: os.environ[name.upper()] for name in (*CLIENT, "aws_allow_http")}
    table = hn.Table.create(
        address,
        schema=flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
        if_exists="open",
        storage_options=options,
    )
    fetch = partial(fetched, address=address, options=options, files=batches * FILES)
    source = spark.readStream.format("rate-micro-batch")
    numbers = source.options(rowsPerBatch=FILES, numPartitions=2).load().select("value")
    stream = numbers.mapInArrow(fetch, from_arrow_schema(flights.SCHEMA))
    options = {"checkpoint": checkpoint, "trigger": "0 seconds", "placement": "executors"}
    job = hn.write_stream(stream, table, **options)
    job.events.listen(lambda event: print(event.kind, dict(event.values), flush=True))
    while not any(e.values["batch"] >= batches - 1 for e in job.events.records("batch_ended")):
        job.wait("1 second")  # raises what ended the job
    job.stop()
    started, ended = job.events.records("batch_started")[0], job.events.records("batch_ended")[-1]
    print("streamed in seconds:", (ended.at_ms - started.at_ms) / 1000, flush=True)
    found = table.to_spark(spark).select(*flights.SCHEMA.names).toArrow()
    parquet.write_table(found, "spark.parquet")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
