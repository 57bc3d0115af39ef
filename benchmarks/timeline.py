"""Measure the cost of an upsert as the timeline grows: `python benchmarks/timeline.py [--to 2000]`.

Prints Markdown: CPU milliseconds of a one-row upsert (median of `TIMES`) after various numbers of
commits, with one Table object and with one opened for each call. Nothing cleans or archives, so
`.hoodie` has three files per commit.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import pyarrow as pa

import hoodie_nb as hn
from hoodie_nb.timeline.timeline import Timeline

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
AT = (10, 100, 500, 2000, 5000)
TIMES = 15
KEEP = {"hoodie.archive.automatic": False, "hoodie.clean.automatic": False}


def row(number: int) -> pa.Table:
    """Return one row of one of fifty keys in three partitions."""
    columns = [[f"k{number % 50:02d}"], [f"p{number % 3}"], [number]]
    return pa.table(columns, schema=SCHEMA)


def grow(folder: Path, last: int, *, fresh: bool) -> dict[int, float]:
    """Return the median milliseconds of upserts after this number of commits."""
    keys = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
    table, taken = hn.Table.create(folder, schema=SCHEMA, **keys, options=KEEP), {}
    recent: list[float] = []
    for number in range(last + 1):
        near = any(0 <= at - number < TIMES for at in AT)
        began = time.process_time()
        if fresh and near:
            table = hn.Table.open(folder)
        table.upsert(row(number))
        recent = [*recent[1 - TIMES :], time.process_time() - began]
        if number in AT:
            taken[number] = 1000 * median(recent)
    return taken


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=int, default=2000)
    parser.add_argument("--folder", help="folder for the tables, on disk or in memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        kept = grow(Path(folder, "kept"), args.to, fresh=False)
        opened = grow(Path(folder, "opened"), args.to, fresh=True)
        handle = hn.Table.open(Path(folder, "kept"))._handle
        began = time.process_time()
        Timeline(handle.storage, handle.clock).refresh()
        listing = 1000 * (time.process_time() - began)
    print("| commits before | kept, ms | ratio | opened each time, ms | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for at, ms in kept.items():
        ratios = [ms / kept[AT[0]], opened[at] / opened[AT[0]]]
        print(f"| {at:,} | {ms:.0f} | {ratios[0]:.2f} | {opened[at]:.0f} | {ratios[1]:.2f} |")
    print(f"\nOne listing of {args.to:,} commits, parsed: {listing:.0f} ms.")


if __name__ == "__main__":
    main()
