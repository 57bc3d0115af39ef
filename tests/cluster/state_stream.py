"""Ask for `index="state"` on a cluster, first for its tasks, then for the driver.

    state_stream.py TABLE CHECKPOINT BATCHES

The keys of this index are on the driver's disk, which tasks on other hosts do not have.
"""

import os
import sys

import pyarrow as pa

import hoodie_nb as hn


def main(address: str, checkpoint: str, batches: int) -> None:
    """Print how the tasks' job is refused; stream so many micro-batches by the driver."""
    spark = hn.spark()
    options = {name.lower(): value for name, value in os.environ.items() if name[:4] == "AWS_"}
    schema = pa.schema([("value", pa.int64()), ("key", pa.int64())])
    keys = {"record_key": "key", "ordering": "value"}
    table = hn.Table.create(address, schema=schema, storage_options=options, **keys)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    stream = source.load().selectExpr("value", "value % 7 AS key")
    settings = {"checkpoint": checkpoint, "index": "state", "trigger": "0 seconds"}
    try:
        hn.write_stream(stream, table, **settings)
    except hn.InvalidConfig as error:
        print("refused:", error, flush=True)
    job = hn.write_stream(stream, table, placement="driver", **settings)
    while len(job.events.records("instant_committed")) < batches:
        job.wait("1 second")
    job.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
