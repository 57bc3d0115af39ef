"""A stream at full speed by `commit_interval`: `python benchmarks/background.py [--rounds 2]`.

The table and the micro-batches of `interval.py`: 2,000,000 rows in 8 days, then 20 micro-batches of
20,000 that touch every day. Each run has its own process and table. Measured are rows per second
and CPU seconds of the process tree from the first micro-batch to the last commit, the greatest age
of sealed rows that were not visible yet (`job.progress.freshness_s`), the longest time from an
instant's request to its completion, the bytes of the base files, and the peak memory. Every table
is compared with the expected one. Prints Markdown. Workload U at full speed: `--batch 200000`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from interval import BATCHES, SCHEMA, check, make_input, rows_of
from measuring.process_tree import cpu_seconds, peak_memory

import hoodie_nb as hn

ARMS = {"each checkpoint": None, "every 10": 10, "in the background": "background"}
COLUMNS = "key string, day string, ts long, v_d double, v_i int, v_text string"


def live(folder: Path, table: str, arm: str, placement: str) -> None:
    """Run the stream to its end in this process, and print what it cost as JSON."""
    spark = hn.spark(cores=2)
    stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    began, opened = [], hn.Table.open(table)
    with peak_memory(os.getpid()) as peak:
        job = hn.write_stream(
            stream.parquet(str(folder / "source")),
            opened,
            checkpoint=f"{table}-checkpoint",
            trigger="available_now",
            pipeline="direct",
            placement=placement,
            commit_interval=ARMS[arm],
        )
        job.events.listen(
            lambda event: began or began.append((event.at_ms, cpu_seconds(os.getpid())))
        )
        while not job.wait(0.2):
            continue
    commits = job.events.records("instant_committed")
    begun = {e.values["instant"]: e.at_ms for e in job.events.records("instant_requested")}
    applied = [event.values["freshness"] for event in job.events.records("backlog_applied")]
    seconds = (commits[-1].at_ms - began[0][0]) / 1000
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu": cpu_seconds(os.getpid()) - began[0][1],
                "commits": len(commits),
                "slowest": max(e.at_ms - begun[e.values["instant"]] for e in commits) / 1000,
                "freshness": max(applied, default=0.0),
                "written": sum(event.values["bytes"] for event in commits),
                "peak": peak[0],
            }
        )
    )
    spark.stop()


def main() -> None:
    """Run all arms in rounds, check every table, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--placement", default="driver")
    parser.add_argument("--live", nargs=3)
    args = parser.parse_args()
    if args.live:
        return live(Path(args.live[0]), args.live[1], args.live[2], args.placement)
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").mkdir()
        expected = make_input(folder / "source", args.rows, args.batch, 1)
        for number in range(args.rounds):
            for arm in ARMS:
                path = folder / f"{number} {arm}"
                table = hn.Table.create(
                    path, schema=SCHEMA, record_key="key", partition_by="day", ordering="ts"
                )
                table.upsert(rows_of(np.arange(args.rows), 0, 1))
                time.sleep(1)
                command = [sys.executable, __file__, "--placement", args.placement, "--live"]
                done = subprocess.run(
                    [*command, str(folder), str(path), arm], stdout=subprocess.PIPE, check=True
                )
                found[arm].append(json.loads(done.stdout.splitlines()[-1]))
                print(number + 1, arm, found[arm][-1], file=sys.stderr, flush=True)
                check(path, expected)
    print(f"{args.rows:,} rows, {BATCHES} micro-batches of {args.batch:,}\n")
    names = (
        "commit | rows/s | CPU s | commits | slowest commit s | oldest row s | MB written | peak MB"
    )
    print(f"| {names} |\n|{' --- |' * 8}")
    for arm, runs in found.items():
        median = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
        print(
            f"| {arm} | {BATCHES * args.batch / median['seconds']:,.0f} | {median['cpu']:.1f} | "
            f"{median['commits']:.0f} | {median['slowest']:.1f} | {median['freshness']:.1f} | "
            f"{median['written'] / 1e6:,.0f} | {median['peak'] / 1e6:,.0f} |"
        )


if __name__ == "__main__":
    main()
