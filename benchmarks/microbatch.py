"""The fixed cost of a micro-batch: `python benchmarks/microbatch.py [--rounds 3] [--batches 20]`.

Streams at full speed, of files, one per micro-batch, or of Spark's `rate-micro-batch` source, which
gives no estimate of its rows (`--sources`), with batches of some sizes (`--rows`): into an empty
`foreachBatch`, and into a table, by placement. In one run, in turns. Measured is the time from a
trigger to the next, so also what a commit adds to the next micro-batch, and the CPU seconds of the
whole process tree. Prints Markdown: medians, and what a micro-batch costs above the empty
`foreachBatch` on the same rows.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from measuring.process_tree import cpu_seconds
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

import hoodie_nb as hn

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
DDL = "id string, day string, ts bigint"
NOTHING = "an empty `foreachBatch`"
PLACEMENTS = ("driver", "auto", "executors")
SOURCES = ("files", "rate")


def rows(number: int, count: int) -> pa.Table:
    """Return the rows of a file: half of the keys are in the file before it, too."""
    first = number * count // 2
    keys = [f"k{key:09d}" for key in range(first, first + count)]
    return pa.table([keys, ["2024-01-01"] * count, [number] * count], schema=SCHEMA)


def seconds_between(query: Any) -> list[float]:
    """Return the seconds from each trigger to the next, without the first ones."""
    starts = [datetime.fromisoformat(progress["timestamp"]) for progress in query.recentProgress]
    return [(after - before).total_seconds() for before, after in pairwise(starts)][3:]


def files(spark: SparkSession, folder: Path, batches: int, count: int) -> Callable[[], DataFrame]:
    """Write files of rows; return what makes a stream of them, one in each micro-batch."""
    folder.mkdir()
    for number in range(batches):
        parquet.write_table(rows(number, count), folder / f"{number:04d}.parquet")
    source = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    return lambda: source.parquet(str(folder))


def rate(spark: SparkSession, count: int) -> Callable[[], DataFrame]:
    """Return what makes an endless stream of new keys, whose size Spark cannot estimate."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count)
    key = "format_string('k%09d', value) id"
    return lambda: source.load().selectExpr(key, "'2024-01-01' day", "value ts")


def run(stream: DataFrame, folder: Path, arm: str, batches: int) -> tuple[list[float], float]:
    """Stream the batches; return the seconds of each one, and the CPU seconds of one."""
    checkpoint, began = str(folder / "checkpoint"), cpu_seconds(os.getpid())
    if arm == NOTHING:
        writer = stream.writeStream.option("checkpointLocation", checkpoint)
        query = writer.foreachBatch(lambda batch, number: None).start()
        wait_for(query, batches)
        query.stop()
    else:
        keys = {"record_key": "id", "partition_by": "day", "ordering": "ts"}
        table = hn.Table.create(folder / "table", schema=SCHEMA, **keys)
        options = {"checkpoint": checkpoint, "trigger": "0 seconds", "placement": arm}
        with hn.write_stream(stream, table, **options) as job:
            query = job.query
            wait_for(query, batches)
        assert table.fsck() == []
    found = seconds_between(query)[: batches - 4]
    return found, (cpu_seconds(os.getpid()) - began) / (len(found) + 4)


def wait_for(query: Any, batches: int) -> None:
    """Return once the query has run as many micro-batches."""
    while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < batches - 1:
        time.sleep(0.01)
    if query.exception():
        raise query.exception()


def report(name: str, costs: dict[str, list[tuple[Sequence[float], float]]]) -> list[str]:
    """Return the lines of one kind of micro-batch."""
    walls = {
        arm: 1000 * median(s for each, _ in found for s in each) for arm, found in costs.items()
    }
    cpus = {arm: 1000 * median(cpu for _, cpu in found) for arm, found in costs.items()}
    lines = []
    for arm in costs:
        above = (walls[arm] - walls[NOTHING], cpus[arm] - cpus[NOTHING])
        cells = [name, arm, *(f"{v:.0f}" for v in (walls[arm], above[0], cpus[arm], above[1]))]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Run all arms in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--placements", nargs="+", default=PLACEMENTS)
    parser.add_argument("--sources", nargs="+", default=SOURCES, choices=SOURCES)
    parser.add_argument("--rows", nargs="+", type=int, default=(0, 1_000, 20_000, 200_000))
    asked = parser.parse_args()
    spark, load = hn.spark(cores=2), os.getloadavg()[0]
    print("| micro-batches | arm | wall ms | above empty | CPU ms | above empty |")
    print("|---|---|---|---|---|---|")
    for source, count in product(asked.sources, asked.rows):
        if count or source == "files":
            with tempfile.TemporaryDirectory(prefix="microbatch-") as name:
                measure(spark, Path(name), source, count, asked)
    print(f"\nLoad {load:.1f} before and {os.getloadavg()[0]:.1f} after.")


def measure(
    spark: SparkSession, folder: Path, source: str, count: int, asked: argparse.Namespace
) -> None:
    """Run all arms in turns on one kind of micro-batches, and print the medians."""
    batches = asked.batches
    if source == "files":
        stream = files(spark, folder / "files", batches, count)
    else:
        stream = rate(spark, count)
    arms = [NOTHING, *asked.placements]
    costs: dict[str, list[tuple[Sequence[float], float]]] = {arm: [] for arm in arms}
    for number in range(asked.rounds + 1):  # the first round warms up
        for place, arm in enumerate(arms):
            found = run(stream(), folder / f"{place}-{number}", arm, batches)
            if number:
                costs[arm].append(found)
    print("\n".join(report(f"{source}, {count:,} rows", costs)), flush=True)


if __name__ == "__main__":
    main()
