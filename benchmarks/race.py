"""The RFC's four bottlenecks as numbers: run with `python benchmarks/race.py` (some minutes).

Prints Markdown tables: flights on the local disk; a hot partition on a simulated object store with
eight writers; a table that another job wrote; and bytes written by commit_interval.
"""

import tempfile
from pathlib import Path

import hoodie_nb as hn
from hoodie_nb.lab.experiments.race import Generated, race
from hoodie_nb.lab.stores.slow_storage import Link

COLUMNS = ["records_per_s", "serial_share", "write_s", "blocked_s", "skew", "peak_buffer_mb"]
COLUMNS += ["commit_s", "amplification", "rows", "duplicates"]
HOT = Generated(rows=160_000, batches=1, partitions=1, record_bytes=100)
FILES = {
    "hoodie.parquet.max.file.size": 2_000_000,
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.copyonwrite.record.size.estimate": 100,
    "write.batch.size": "512 KB",
    "write.task.max.size": "2 MB",
}


def show(title, result):
    """Print the medians of a race as a Markdown table."""
    medians = result.medians()[COLUMNS].round(3)
    print(f"\n### {title} ({result.storage} storage)\n")
    print("| pipeline | " + " | ".join(COLUMNS) + " |")
    print("| --- |" + " --- |" * len(COLUMNS))
    for name, row in medians.iterrows():
        print(f"| {name} | " + " | ".join(f"{value:g}" for value in row) + " |")
    return medians


def interval(spark):
    """Stream many small checkpoints with and without an interval; print the bytes written."""
    written = {}
    with tempfile.TemporaryDirectory() as folder:
        for value in (None, 10):
            here = Path(folder, str(value))
            table = hn.Table.create(
                here / "board",
                schema=hn.flights.SCHEMA,
                record_key="flight_id",
                partition_by="flight_date",
                ordering="event_time",
            )
            events = hn.flights.event_table(days=2)
            source = here / "source"
            source.mkdir(parents=True)
            import os

            import pyarrow.parquet as pq

            for number, start in enumerate(range(0, events.num_rows, 100)):
                path = source / f"{number:04d}.parquet"
                pq.write_table(events.slice(start, 100), path)
                os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
            schema = spark.read.parquet(str(source)).schema
            stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            job = hn.write_stream(
                stream.parquet(str(source)),
                table,
                checkpoint=str(here / "checkpoint"),
                trigger="available_now",
                pipeline="step3",
                placement="executors",
                commit_interval=value,
            )
            job.wait()
            commits = job.events.records("instant_committed")
            runs = sum(e.values["bytes"] for e in job.events.records("checkpoint_sealed"))
            written[value] = sum(e.values["bytes"] for e in commits) + runs, len(commits)
            rows = table.to_arrow(["flight_id", "status"]).sort_by("flight_id")
            written[f"rows {value}"] = rows
    same = written["rows None"].equals(written["rows 10"])
    (each, many), (spanned, few) = written[None], written[10]
    print("\n### commit_interval=10, checkpoints of 100 events\n")
    print(f"{many} commits wrote {each:,} bytes; {few} commits and all sealed runs {spanned:,}: ")
    print(f"{each / spanned:.1f} times fewer; same rows: {same}")


def main():
    """Run all races on eight task threads."""
    spark = hn.spark(cores=8)
    show("Flights, 4 days", race(spark=spark, days=4, repeats=3))
    store = Link(latency_s=0.02, bytes_per_s=1_000_000)
    names = ("step1", "step2", "step3")
    hot = race(names, HOT, store, 3, spark=spark, options=FILES, write_tasks=8)
    medians = show("One hot partition, eight writers", hot)
    print(f"\nstep1 / step2 write time: {medians.write_s.step1 / medians.write_s.step2:.1f}")
    print(f"step3 / step2 blocked time: {medians.blocked_s.step3 / medians.blocked_s.step2:.2f}")
    full = {"hoodie.parquet.small.file.limit": 0}
    pair = ("current", "step3")
    show(
        "A table that another job wrote",
        race(pair, spark=spark, days=2, existing=True, options=full),
    )
    interval(spark)


if __name__ == "__main__":
    main()
