"""Writes in one call, for tests: what a runner does from the plan to the write statuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.records.prepared import Prepared
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.timeline.timeline import Instant

Write = Callable[[WritePlan], Sequence[WriteStatus]]


def write_uncommitted(
    coordinator: WriteCoordinator, intake: Intake, write: Write, *settings: Any
) -> Prepared | None:
    """Write by a plan and return the result, not committed."""
    with coordinator.writing(intake, *settings) as work:
        work.statuses = write(work.plan)
    return work.result


def write_and_commit(
    coordinator: WriteCoordinator, intake: Intake, write: Write, *settings: Any, **more: Any
) -> Instant | None:
    """Write by a plan, commit the result and return its instant."""
    with coordinator.committing(intake, *settings, **more) as work:
        work.statuses = write(work.plan)
    return work.instant


def run_checkpoint(
    checkpointing: Checkpointing, checkpoint: Checkpoint, previous: str | None, write: Write
) -> Instant | None:
    """Run one checkpoint and return its instant."""
    with checkpointing.running(checkpoint, previous) as work:
        if work is not None:
            work.statuses = write(work.plan)
    return None if work is None else work.instant


def commit_elsewhere(
    path: str | Path, rows: pa.Table, operation: str = "upsert", **changed: Any
) -> None:
    """Commit rows as another engine does: the table gets their columns, our index does not know.

    `changed` are properties of the table that it does not follow.
    """
    handle, events = open_table(path), EventLog()
    intake = Intake(replace(handle.config, **changed), rows.schema, operation)
    keyed = keyed_in_order(rows, intake)
    write_and_commit(
        WriteCoordinator(handle, events),
        intake,
        lambda plan: write_in_process(keyed, plan, events),
        Shape(index="bloom"),
    )
