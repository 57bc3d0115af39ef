"""Runs for the tests of views: events of in-process jobs, and made-up events."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hoodie_nb.events import Event
from hoodie_nb.evidence.handle import create_table
from hoodie_nb.lab.experiments.race import Generated
from hoodie_nb.lab.rfc.rfc_job import LocalJob

INPUT = Generated(rows=4000, batches=4, partitions=3, skew=0.3, record_bytes=100)
SMALL_BUFFER = {"write.batch.size": "16 KB", "write.task.max.size": "256 KB"}


def local_job(folder: Path, pipeline: str = "step3") -> LocalJob:
    """Run four checkpoints of a job without Spark; the second's success notification is lost."""
    table = create_table(folder / "table", INPUT.config, options=SMALL_BUFFER)
    job = LocalJob(table, pipeline=pipeline, index="bloom")
    for checkpoint, rows in enumerate(INPUT.tables(), 1):
        for start in range(0, rows.num_rows, 250):
            job.write(rows.slice(start, 250))
        job.checkpoint(checkpoint)
        if checkpoint == 2:
            job.lose(checkpoint)
        else:
            job.complete(checkpoint)
    return job


@cache
def recorded(pipeline: str = "step3") -> tuple[Event, ...]:
    """Return the events of such a job."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return tuple(local_job(Path(folder), pipeline).events.records())


def make_events(
    *kinds_and_values: object, begin_ms: int = 1_000_000, every_ms: int = 100
) -> list[Event]:
    """Return events `kind, {values}, kind, {values}, ...`, evenly spaced in time."""
    pairs = zip(kinds_and_values[::2], kinds_and_values[1::2], strict=True)
    return [Event(k, begin_ms + n * every_ms, v) for n, (k, v) in enumerate(pairs)]  # type: ignore[arg-type]


def long_run(count: int = 1000) -> list[Event]:
    """Return so many events of a job with two writers and sixteen buckets."""
    made: list[object] = ["job_started", {"pipeline": "step3", "tasks": 2}]
    for n in range(count // 10):
        time17 = f"2026112108{n:07d}"
        levels = [[f"p{b}", f"file-{b}", 1000 * (n % 7 + b)] for b in range(16)]
        made += ["batch_started", {"batch": n}, "instant_requested", {"instant": time17}]
        made += ["instant_inflight", {"instant": time17}]
        for task in (0, 1):
            values = {"operator": "BucketWriter", "task": task, "rows": 500, "waiting": False}
            made += ["operator_progress", values]
        level = {"task": 0, "bytes": 40_000, "limit_bytes": 100_000, "buckets": levels}
        made += ["buffer_level", level]
        made += ["buffer_flushed", {"partition": "p1", "file_id": "file-1", "bytes": 900}]
        ran = {"operator": "BucketWriter", "task": 0, "rows": 1000, "seconds": 0.2}
        made += ["operator_ran", ran, "instant_prepared", {"instant": time17, "checkpoint": 0}]
        made += ["instant_committed", {"instant": time17, "inserts": 900, "updates": 100}]
    return make_events(*made)
