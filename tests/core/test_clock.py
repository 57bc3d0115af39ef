"""Clocks that are set back or forward during a job."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tables import schema_of, timeline_names, without_meta

from hoodie_nb import Table
from hoodie_nb.clock import ManualClock
from hoodie_nb.definition import properties
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading import read
from hoodie_nb.records.sealing import Interval
from hoodie_nb.storage.local_storage import LocalStorage

HOUR_MS = 3_600_000


def job_on(root: Path, clock: ManualClock, interval: Interval | None = None) -> LocalJob:
    """Return a job on a new table that uses that clock."""
    Table.create(root, schema=schema_of(), record_key="id", partition_by="p", ordering="ts")
    storage = LocalStorage(root)
    return LocalJob(TableHandle(storage, clock, properties.load(storage)), interval=interval)


def checkpoint(job: LocalJob, number: int) -> None:
    """Write one row and end a checkpoint."""
    row = {"id": "k", "p": "x", "ts": number, "v": number}
    job.write(pa.Table.from_pylist([row], schema=schema_of()))
    job.checkpoint(number)


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -1000, HOUR_MS])
def test_an_interval_in_seconds_ends_on_time(tmp_path: Path, step_ms: int) -> None:
    """An interval of 30 s ends after 30 s, however the clock was set in between."""
    clock = ManualClock()
    job = job_on(tmp_path / "t", clock, Interval(duration_ms=30_000))
    checkpoint(job, 1)
    assert not job.checkpointing.due()
    clock.ms += step_ms
    early = job.checkpointing.due()  # the watcher looks several times a second
    clock.ms += 29_000
    assert (early, job.checkpointing.due()) == (step_ms > 0, step_ms > 0)
    clock.ms += 1_000
    assert job.checkpointing.due()


def test_instants_stay_in_order_for_any_clock(tmp_path: Path) -> None:
    """Each commit is later than those before it, and readers see the newest row."""
    clock = ManualClock()
    job = job_on(tmp_path / "t", clock)
    names: list[str] = []
    for number, step in enumerate((0, -1, -HOUR_MS, 10 * HOUR_MS, -10 * HOUR_MS, 0), 1):
        clock.ms += step
        checkpoint(job, number)
        job.complete(number)
        completed = [n for n in timeline_names(tmp_path / "t") if n.endswith(".commit")]
        assert completed[:-1] == names
        assert len(completed) == number
        names = completed
        rows = read.to_arrow(open_table(tmp_path / "t"))
        assert without_meta(rows) == [
            repr(sorted((k, repr(v)) for k, v in row.items()))
            for row in [{"id": "k", "p": "x", "ts": number, "v": number}]
        ]
