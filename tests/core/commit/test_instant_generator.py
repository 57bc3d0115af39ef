"""The InstantGenerator of the pipeline `current`, whose task may be attempted twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tables import schema_of

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import PIPELINES, Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.instant_generator import generate_instant, with_instant
from hoodie_nb.errors import WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.storage.local_storage import LocalStorage


class Interrupted(LocalStorage):
    """A disk whose user is overtaken by `meanwhile` before it makes its first folder."""

    meanwhile: Callable[[], None] | None = None

    def make_folder(self, path: str) -> None:
        """Let the other go first."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().make_folder(path)


def two_attempts(plan: WritePlan) -> list[str]:
    """Return the instants of two attempts: neither has its folder when the other looks for it."""
    storage, times = Interrupted(plan.storage.root), list[str]()
    storage.meanwhile = lambda: times.append(generate_instant(plan))
    times.append(generate_instant(replace(plan, storage=storage)))
    return sorted(times)


@pytest.mark.parametrize("operation", ["upsert", "delete"])
@pytest.mark.parametrize("taken", [0, 1])
def test_two_instants_of_one_batch_lose_nothing(tmp_path: Path, taken: int, operation: str) -> None:
    """Files are committed under the instant in their names, or the batch runs again."""
    made = Table.create(tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p")
    before = pa.Table.from_pylist([{"id": "b", "p": "x", "ts": 1, "v": 1}], schema_of())
    made.upsert(before)
    table, events = open_table(tmp_path / "t"), EventLog()
    intake, shape = Intake(table.config, table.schema, operation), Shape(PIPELINES["current"])
    coordinator = WriteCoordinator(table, events)
    checkpointing = Checkpointing(coordinator, intake, shape, IN_PROCESS)
    given = [{"id": k, "p": "x", "ts": 2, "v": 2} for k in ("a" if operation == "upsert" else "xb")]
    keyed = keyed_in_order(pa.Table.from_pylist(given, schema_of()), intake)

    def write(attempts: Callable[[WritePlan], list[str]], number: int) -> None:
        with checkpointing.running(Checkpoint("q", 0, "f" * 20), None) as work:
            assert work is not None
            plan = with_instant(work.plan, attempts(work.plan)[number])
            work.statuses = write_in_process(keyed, plan, events)
        checkpointing.notify(0)

    try:
        write(two_attempts, taken)
    except WriteFailed:
        assert taken == 1
        assert not table.timeline.refresh().pending
        write(lambda plan: [generate_instant(plan)], 0)
    left = {"a", "b"} if operation == "upsert" else set()
    made = Table.open(tmp_path / "t")
    assert {*made.to_arrow(["id"]).column("id").to_pylist()} == left
    made.upsert(before.slice(0, 1))
    assert {*made.to_arrow(["id"]).column("id").to_pylist()} == {"b", *left}
    assert fsck(made.path) == []
