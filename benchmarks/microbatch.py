"""The fixed cost of a micro-batch: `python benchmarks/microbatch.py [--rounds 3] [--batches 20]`.

Streams of small files, one per micro-batch, at full speed: into an empty `foreachBatch`, and into a
table, by placement. In one run, in turns. Measured is the time from a trigger to the next, so also
what a commit adds to the next micro-batch, and the CPU seconds of the whole process tree. Prints
Markdown: medians, and what a micro-batch costs above the empty `foreachBatch` on the same files.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from measuring.process_tree import cpu_seconds
from pyarrow import parquet
from pyspark.sql import SparkSession

import hoodie_nb as hn

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
DDL = "id string, day string, ts bigint"
NOTHING = "an empty `foreachBatch`"
PLACEMENTS = ("driver", "auto", "executors")
ROWS = 1000


def rows(number: int, count: int) -> pa.Table:
    """Return the rows of a file: half of the keys are in the file before it, too."""
    first = number * count // 2
    keys = [f"k{key:09d}" for key in range(first, first + count)]
    return pa.table([keys, ["2024-01-01"] * count, [number] * count], schema=SCHEMA)


def seconds_between(query: Any) -> list[float]:
    """Return the seconds from each trigger to the next, without the first ones."""
    starts = [datetime.fromisoformat(progress["timestamp"]) for progress in query.recentProgress]
    return [(after - before).total_seconds() for before, after in pairwise(starts)][3:]


def run(spark: SparkSession, source: Path, folder: Path, arm: str) -> tuple[list[float], float]:
    """Stream the files; return the seconds of each micro-batch, and the CPU seconds of one."""
    stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(source))
    checkpoint, began = str(folder / "checkpoint"), cpu_seconds(os.getpid())
    if arm == NOTHING:
        writer = stream.writeStream.option("checkpointLocation", checkpoint)
        query = writer.foreachBatch(lambda batch, number: None).trigger(availableNow=True).start()
        query.awaitTermination()
    else:
        keys = {"record_key": "id", "partition_by": "day", "ordering": "ts"}
        table = hn.Table.create(folder / "table", schema=SCHEMA, **keys)
        options = {"checkpoint": checkpoint, "trigger": "available_now", "placement": arm}
        with hn.write_stream(stream, table, **options) as job:
            job.wait()
        query, instants = job.query, len(table.history())
        files = [parquet.read_metadata(path).num_rows for path in source.iterdir()]
        assert instants == sum(map(bool, files)), (instants, files)
        assert table.fsck() == []
    found = seconds_between(query)
    return found, (cpu_seconds(os.getpid()) - began) / (len(found) + 4)


def sources(folder: Path, batches: int) -> Iterator[tuple[str, Path]]:
    """Write a folder of files with rows, and one of files without; yield their names and paths."""
    for name, count in ((f"{ROWS:,} rows", ROWS), ("no rows", 0)):
        path = folder / name.replace(" ", "-")
        path.mkdir()
        for number in range(batches):
            parquet.write_table(rows(number, count), path / f"{number:04d}.parquet")
        yield name, path


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
    asked = parser.parse_args()
    arms, spark, load = [NOTHING, *asked.placements], hn.spark(cores=2), os.getloadavg()[0]
    print("| micro-batches | arm | wall ms | above empty | CPU ms | above empty |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="microbatch-") as name:
        for kind, source in sources(Path(name), asked.batches):
            costs: dict[str, list[tuple[Sequence[float], float]]] = {arm: [] for arm in arms}
            for number in range(asked.rounds + 1):  # the first round warms up
                for arm in arms:
                    folder = Path(name, f"{kind} {arm} {number}".replace("`", ""))
                    found = run(spark, source, folder, arm)
                    if number:
                        costs[arm].append(found)
            print("\n".join(report(kind, costs)), flush=True)
    print(f"\nLoad {load:.1f} before and {os.getloadavg()[0]:.1f} after.")


if __name__ == "__main__":
    main()
