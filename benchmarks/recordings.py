"""Record a job of each pipeline: run with `python benchmarks/recordings.py [FOLDER]` (two minutes).

Each streams a month of flights, eight days per micro-batch, with small buffers to a simulated
object store, so that flushes take visible time. `step3` also loses a success notification (its
instant spans two checkpoints) and a writer (rolled back, run again). Without FOLDER the files are
only measured; those of the package are in `hoodie_nb/lab/run/recorded`.
"""

import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.clock import SystemClock
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.lab.run import recordings
from hoodie_nb.lab.stores.slow_storage import Link, SlowStorage
from hoodie_nb.stream.job import Job
from hoodie_nb.stream.settings import StreamSettings

DAYS, PACE, TASKS = 31, 8, 2
LINK = Link(latency_s=0.05, bytes_per_s=100_000)
SIZES = {"batch_bytes": 96 << 10, "task_max_bytes": 512 << 10}
FAULTS = {"step3": {1: "lose_success", 3: "kill_writer"}}


def run(spark, pipeline, folder):
    """Stream the flights through a pipeline; return the ended job and its number of partitions."""
    made = hn.Table.create(
        folder / "board",
        schema=hn.flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
    )
    table = TableHandle(SlowStorage(made._handle.storage, LINK), SystemClock(), made._handle.config)
    table.options = replace(table.options, **SIZES)
    settings = StreamSettings(
        str(folder / "checkpoint"),
        trigger={"availableNow": True},
        pipeline=pipeline,
        index=PIPELINES[pipeline].index,
        write_tasks=TASKS,
    )
    stream = hn.flights.stream(spark, days=DAYS, path=folder / "source", pace=PACE)
    job, faults = Job(stream, table, settings), dict(FAULTS.get(pipeline, {}))

    def inject_fault(event):
        if event.kind == "batch_started" and event.values["batch"] in faults:
            hn.faults.inject(job, faults.pop(event.values["batch"]))

    job.events.listen(inject_fault)
    job.wait()
    assert made.fsck() == [] and len(made.to_arrow()) == len(hn.flights.board(days=DAYS))
    return job, made.file_groups()["partition_path"].nunique()


def main():
    """Record every pipeline and print a summary of the files."""
    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": 250}
    spark = hn.spark(cores=TASKS, conf=conf)
    for pipeline in PIPELINES:
        with tempfile.TemporaryDirectory() as scratch:
            job, partitions = run(spark, pipeline, Path(scratch))
            folder = Path(sys.argv[1] if sys.argv[1:] else scratch)
            about = {
                "pipeline": pipeline,
                "operators": [o.name for o in PIPELINES[pipeline].operators],
                "partitions": partitions,
                "run": (
                    f"{DAYS} days of flights, {PACE} days a checkpoint, {TASKS} tasks, "
                    f"simulated object store ({LINK.latency_s * 1000:g} ms, "
                    f"{LINK.bytes_per_s / 1000:g} KB/s a stream)"
                ),
                "faults": list(FAULTS.get(pipeline, {}).values()),
            }
            path = folder / f"{pipeline}.jsonl.gz"
            events = sorted(job.events.records(), key=lambda event: event.at_ms)
            recordings.save(events, path, about)
            seconds = (events[-1].at_ms - events[0].at_ms) / 1000
            print(f"{pipeline}: {path.stat().st_size:,} bytes, {seconds:.0f} s")
            print("  ", ", ".join(f"{k} {n}" for k, n in Counter(e.kind for e in events).items()))


if __name__ == "__main__":
    main()
