"""The processes of a trial: batches in a loop, a stream, services, a follower."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from history.follower import Follower
from writers.turns.rows import GIVEN, SCHEMA, Row, Traits, visible
from writers.turns.stepping import Baton, Stepped

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition import properties
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.in_process import keyed_in_order, seal_in_process, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.lock import JobHold
from hoodie_nb.buckets.plan import SealPlan
from hoodie_nb.records.sealing import Interval
from hoodie_nb.stream.checkpoint_folder import CheckpointFolder
from hoodie_nb.stream.micro_batches import recover_if_stale

WAIT_S = 10**6  # nobody gives up: a trial has a bound on steps


@dataclass(frozen=True)
class Actor:
    """What a process of a trial knows."""

    traits: Traits
    root: Path
    name: str
    first: int  # the number of its first batch
    baton: Baton
    draw: random.Random  # of this run of it

    def table(self) -> Table:
        """Open the table."""
        storage = Stepped(self.root, self.baton)
        return Table(TableHandle(storage, self.baton, properties.load(storage)))

    def batch(self, number: int) -> tuple[str, pa.Table]:
        """Return a batch's operation and its rows."""
        operation, rows = self.traits.batch(f"{self.name}-{number}")
        if operation == "insert":
            return operation, pa.Table.from_pylist(rows, schema=SCHEMA)
        return operation, pa.Table.from_pylist(rows, schema=GIVEN)


def batches(actor: Actor) -> None:
    """Write batches, and acknowledge each of them."""
    table = actor.table()
    for number in range(actor.first, actor.traits.batches):
        operation, rows = actor.batch(number)
        actor.baton.tell("begins", number)
        done = getattr(table, operation)(rows, wait=WAIT_S)
        assert done is not None
        actor.baton.tell("ack", [number, done.requested_time])


ACTS: dict[str, Callable[[Actor], None]] = {"a": batches, "b": batches, "c": batches}
