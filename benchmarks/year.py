"""Stream the year of flights and measure: `python benchmarks/year.py`.

Prints Markdown: events per second, the peak memory of driver, JVM and Python workers (resident, so
pages that processes share count for each), where a batch spends its time (from the job's events
alone), and what a micro-batch without rows costs. The table is compared with the board at the end.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from pyarrow import parquet
from pyspark.sql import SparkSession

import hoodie_nb as hn
from hoodie_nb.events import Event
from hoodie_nb.lab.experiments import flights
from hoodie_nb.programs.demo import delivery_ends
from hoodie_nb.programs.verify import differences, readers
from hoodie_nb.stream.job import Job

EMPTY_BATCHES = 30
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STAGES = {
    "begin": "requested and inflight instant",
    "locate": "read, shuffle, look up, assign, shuffle, buffer",
    "write": "merge and write the files, from the first start to the last end",
    "prepare": "collect the statuses, make them durable",
    "commit": "Spark records the batch; we notice, publish, complete, clean up",
    "between": "Spark's trigger, until the next batch starts",
}


# --- memory --------------------------------------------------------------------------------------


def resident_bytes() -> dict[str, int]:
    """Return the resident memory of this process, the JVM and the Python workers below it."""
    found: dict[int, tuple[str, int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = tail.split()
        found[int(stat.parent.name)] = (head.partition("(")[2], int(fields[1]), int(fields[21]))
    ours = {os.getpid()}
    while grown := {p for p, (_, parent, _) in found.items() if parent in ours} - ours:
        ours |= grown
    sizes = {"driver": 0, "JVM": 0, "workers": 0}
    for process in ours & found.keys():
        name, _, pages = found[process]
        kind = "driver" if process == os.getpid() else "JVM" if name == "java" else "workers"
        sizes[kind] += pages * _PAGE_BYTES
    return sizes


@contextmanager
def peaks(pause_s: float = 0.1) -> Iterator[dict[str, int]]:
    """Sample the memory while the block runs; the yielded dictionary holds the peaks."""
    highest: dict[str, int] = {}
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(pause_s):
            now = resident_bytes()
            for kind, size in (now | {"all": sum(now.values())}).items():
                highest[kind] = max(highest.get(kind, 0), size)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield highest
    finally:
        ended.set()
        sampler.join()


# --- time ----------------------------------------------------------------------------------------


def batches(job: Job) -> list[list[Event]]:
    """Return the events of each batch, from its `batch_started` to the next one's, included."""
    found: list[list[Event]] = []
    for event in job.events.records():
        if event.kind == "batch_started":
            if found:
                found[-1].append(event)
            found.append([])
        if found:
            found[-1].append(event)
    return found


def stage_ms(batch: list[Event]) -> dict[str, float]:
    """Return the milliseconds that a batch with rows spent in each stage."""
    at = {event.kind: event.at_ms for event in batch}
    written = [e for e in batch if e.kind == "file_written"]
    begun = min(e.at_ms - 1000 * float(e.values["seconds"]) for e in written)
    done = max(e.at_ms for e in written)
    moments = [batch[0].at_ms, at["instant_inflight"], begun, done, at["batch_ended"]]
    moments += [at["instant_committed"], batch[-1].at_ms]
    return dict(zip(STAGES, (b - a for a, b in pairwise(moments)), strict=True))


def seconds_between(job: Job, first: str, last: str) -> float:
    """Return the seconds from the first event of one kind to the last of another."""
    return (job.events.records(last)[-1].at_ms - job.events.records(first)[0].at_ms) / 1000


def trigger_ms(job: Job) -> list[float]:
    """Return the milliseconds from each batch's start to the next one's."""
    starts = [event.at_ms for event in job.events.records("batch_started")]
    return [after - before for before, after in pairwise(starts)]


# --- runs ----------------------------------------------------------------------------------------


def stream_year(
    spark: SparkSession, folder: Path, days: int, pace: int, placement: str | None
) -> tuple[hn.Table, Job]:
    """Stream the events with 5 % of disorder into a new table; return when all is committed."""
    source = folder / "source"
    stream = flights.stream(spark, days=days, path=source, pace=pace, disorder=0.05)
    table = hn.Table.create(
        folder / "board",
        schema=flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
    )
    options = {"trigger": "available_now"} | ({"placement": placement} if placement else {})
    job = hn.write_stream(stream, table, checkpoint=str(folder / "checkpoint"), **options)
    job.wait()
    return table, job


def stream_nothing(
    spark: SparkSession, table: hn.Table, folder: Path, placement: str | None
) -> Job:
    """Stream files without rows into the table, one per micro-batch."""
    source = folder / "empty"
    source.mkdir()
    for number in range(EMPTY_BATCHES):
        parquet.write_table(flights.SCHEMA.empty_table(), source / f"{number:03d}.parquet")
    like = flights.events(spark, days=1).schema
    stream = spark.readStream.schema(like).option("maxFilesPerTrigger", 1).parquet(str(source))
    options = {"trigger": "available_now"} | ({"placement": placement} if placement else {})
    job = hn.write_stream(stream, table, checkpoint=str(folder / "nothing"), **options)
    job.wait()
    return job


def check(spark: SparkSession, table: hn.Table, days: int) -> None:
    """Compare each reader with the board; print how long it took."""
    board = flights.board(days=days)
    for name, read in readers(table, spark).items():
        began = time.perf_counter()
        found = read()
        print(f"| read by {name} | {time.perf_counter() - began:.1f} s |")
        if difference := differences(found, board):
            raise SystemExit(f"{name} differs from the board: {difference}")
    began = time.perf_counter()
    if findings := table.fsck():
        raise SystemExit(f"fsck: {findings[:3]}")
    print(f"| fsck, clean | {time.perf_counter() - began:.1f} s |")


# --- report --------------------------------------------------------------------------------------


def report(table: hn.Table, job: Job, events: int, memory: dict[str, int]) -> None:
    """Print the totals of the year."""
    took = seconds_between(job, "batch_started", "instant_committed")
    written = [float(e.values["seconds"]) for e in job.events.records("file_written")]
    slices = table.file_groups()
    print(f"| events | {events:,} in {len(trigger_ms(job)) + 1} micro-batches |")
    print(f"| events per second | **{events / took:,.0f}** ({took:.0f} s) |")
    print(f"| files written | {len(written):,}, {sum(written) / len(written) * 1000:.0f} ms each |")
    print(f"| snapshot | {len(slices):,} files, {slices['size_bytes'].sum() / 1e6:.1f} MB |")
    for kind, size in memory.items():
        print(f"| peak memory, {kind} | {size / 1e6:,.0f} MB |")


def report_stages(job: Job) -> None:
    """Print the time per stage of the batches, and the working time of the operators."""
    measured = [stage_ms(batch) for batch in batches(job)[1:-1]]  # the first one warms up
    total = sum(sum(stages.values()) for stages in measured)
    print("\n| stage | what | median ms | share |\n|---|---|---|---|")
    for name, what in STAGES.items():
        spent = [stages[name] for stages in measured]
        print(f"| {name} | {what} | {statistics.median(spent):.0f} | {sum(spent) / total:.0%} |")
    print("\n| operator | task-seconds of work | rows |\n|---|---|---|")
    ran = job.events.records("operator_ran")
    for operator in sorted({e.values["operator"] for e in ran}):
        own = [e.values for e in ran if e.values["operator"] == operator]
        worked, rows = (sum(values[name] for values in own) for name in ("seconds", "rows"))
        print(f"| {operator} | {worked:.1f} | {rows:,} |")


def report_nothing(job: Job) -> None:
    """Print the time of a micro-batch without rows."""
    inside = [1000 * float(e.values["seconds"]) for e in job.events.records("batch_ended")]
    whole = trigger_ms(job)
    print("\n| empty micro-batch | median ms |\n|---|---|")
    print(f"| the writer's part | {statistics.median(inside[1:]):.0f} |")
    print(f"| with Spark's own | {statistics.median(whole[1:]):.0f} |")


def main() -> None:
    """Run everything in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--pace", type=int, default=3, help="files per micro-batch")
    parser.add_argument("--placement", help="who writes the micro-batches")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hoodie_nb-year-") as name, peaks() as memory:
        folder, spark = Path(name), hn.spark()
        table, job = stream_year(spark, folder, asked.days, asked.pace, asked.placement)
        print("| measure | |\n|---|---|")
        report(table, job, delivery_ends(folder / "source")[-1], dict(memory))
        check(spark, table, asked.days)
        report_stages(job)
        report_nothing(stream_nothing(spark, table, folder, asked.placement))
        spark.stop()


if __name__ == "__main__":
    main()
