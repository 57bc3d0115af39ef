"""Random histories of a table with global keys: the model is a dict by record key alone.

A history is a function of its seed: checkpoints of a stream in both commit modes, with spans (lost
notifications), rows of another writer that moves keys meanwhile, and deaths at any failpoint or
operation on the disk. After each step no reader sees a key twice; the end equals the model.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultyStorage
from index_truth import forget_caches, index_gaps
from replay import check_replay
from tables import canonical, hudi_rows, rank, schema_of, without_meta
from writes import commit_elsewhere, run_checkpoint

from hoodie_nb import Table, failpoints
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.clock import ManualClock
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition import properties
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.index import file_keys
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.reading import read
from hoodie_nb.records.progress import Checkpoint

Row = dict[str, Any]
DELETED = "_hoodie_is_deleted"
SCHEMA = schema_of().append(pa.field(DELETED, pa.bool_()))
SMALL = {"hoodie.parquet.small.file.limit": 11_500, "hoodie.parquet.max.file.size": 12_500}
KEPT = {
    "hoodie.clean.commits.retained": 100,
    "hoodie.keep.min.commits": 120,
    "hoodie.keep.max.commits": 130,
}
POINTS = [n for n in failpoints.NAMES if n.startswith(("coord", "rollback", "writer", "assigner"))]


def applied(stored: dict[str, Row], batch: list[Row], *, by_order: bool) -> dict[str, Row]:
    """Return rows by record key after a batch: the winner of each key meets the stored row."""
    after, winners = dict(stored), dict[str, Row]()
    for row in batch:
        before = winners.get(row["id"])
        if before is None or not by_order or rank(row["ts"]) >= rank(before["ts"]):
            winners[row["id"]] = row
    for key, row in winners.items():
        if by_order and key in after and rank(row["ts"]) < rank(after[key]["ts"]):
            continue
        after.pop(key, None)
        if not row[DELETED]:
            after[key] = {name: value for name, value in row.items() if name != DELETED}
    return after


class History:
    """One table, its processes one after the other, and the model."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random, self.root, self.seed = random.Random(seed), root, seed
        self.clock, self.sent = ManualClock(), list[list[Row]]()
        self.done, self.open = dict[str, Row](), list[list[Row]]()  # committed; sent since
        self.index = "bloom" if seed % 3 == 2 else "bloom+state"
        self.commit_on = "write" if seed % 4 == 3 else "checkpoint"
        self.by_order = seed % 5 != 0
        self.spans = self.deaths = 0
        self.logs: list[EventLog] = []
        Table.create(
            root,
            schema=schema_of(),
            record_key="id",
            partition_by="p",
            ordering="ts" if self.by_order else None,
            global_index=True,
            table_version=(6, 9)[seed % 2],
            options=KEPT | (SMALL if seed % 7 < 3 else {}),
        )
        self.armed = False
        self.start()

    def start(self) -> None:
        """Start a new process, which recovers the table."""
        failpoints.arm("")
        storage = FaultyStorage(self.root)
        self.table = TableHandle(storage, self.clock, properties.load(storage))
        self.events = EventLog()
        self.logs.append(self.events)
        self.coordinator = WriteCoordinator(self.table, self.events)
        intake = Intake(self.table.config, schema_of())
        self.checkpointing = Checkpointing(
            self.coordinator,
            intake,
            Shape(index=self.index),
            IN_PROCESS,
            commit_on=self.commit_on,
        )
        settle(self.coordinator)

    def rows(self, most: int = 6) -> list[Row]:
        """Return rows of a few keys in four partitions (one is null): new, late, equal, deletes."""
        draw, newest = self.random, 10 + 2 * len(self.sent)
        return [
            {
                "id": f"k{draw.randrange(9)}",
                "p": draw.choice(["A", "B", "C", None]),
                "ts": draw.choice([None, *range(newest - 5, newest + 2)]),
                "v": draw.randrange(10**6),
                DELETED: draw.random() < 0.15,
            }
            for _ in range(draw.randint(1, most))
        ]

    def checkpoint(self, number: int) -> None:
        """Run a checkpoint; it is skipped if it is in the table."""
        keyed = keyed_in_order(
            pa.Table.from_pylist(self.sent[number], SCHEMA), Intake(self.table.config, schema_of())
        )
        texts = (f"{self.seed} {n}".encode() for n in (number - 1, number))
        before, own = (hashlib.sha256(text).hexdigest() for text in texts)
        run_checkpoint(
            self.checkpointing,
            Checkpoint("q", number, own),
            before if number else None,
            lambda plan: write_in_process(keyed, plan, self.events),
        )

    def send(self) -> None:
        """Send a batch, perhaps to a process that dies; the next one replays it."""
        self.sent.append(self.rows())
        self.open.append(self.sent[-1])
        number, storage = len(self.sent) - 1, self.table.storage
        deadly = self.random.random() < 0.5
        if deadly:
            self.arm()
        try:
            self.checkpoint(number)
            self.end(number)
        except Crash:
            self.deaths += 1
        if deadly:
            storage.dead = True
            failpoints.arm("")
            self.armed = False
            self.look()
            self.elsewhere(0.5)
            self.start()
            self.checkpoint(number)
            self.end(number)
        self.look()

    def end(self, number: int) -> None:
        """Notify the checkpoint's success, or lose it; another writer may be first."""
        if self.commit_on == "checkpoint":
            self.elsewhere(0.3)
            if self.random.random() < 0.3:
                self.checkpointing.hold_open(number)
                self.spans += 1
        self.checkpointing.notify(number)

    def arm(self) -> None:
        """Let the process die soon."""
        storage, self.armed = self.table.storage, True
        if self.random.random() < 0.5:
            at = storage.steps + self.random.randint(1, 40)
            storage.fault = Fault(at, self.random.choice(["before", "after", "torn"]))
            return

        def die() -> None:
            storage.dead = True
            raise Crash("at a failpoint")

        failpoints.call(self.random.choice(POINTS), die, self.random.randint(1, 2))

    def elsewhere(self, chance: float) -> None:
        """Commit as another writer, before what is only prepared."""
        if self.random.random() < chance and not self.armed:
            self.look()
            states = [tuple(canonical(state.values())) for state in self.states()]
            if len(set(states)) < len(states):
                return  # a batch without effect may be committed or not
            rows = [row for row in self.rows(3) if not row[DELETED]]
            if rows:
                commit_elsewhere(
                    self.root, pa.Table.from_pylist(rows, SCHEMA).drop_columns(DELETED)
                )
                self.done = applied(self.done, rows, by_order=self.by_order)
                self.look()

    def look(self) -> None:
        """A reader sees what is committed, and perhaps the first open batches."""
        found, states = without_meta(read.to_arrow(open_table(self.root))), self.states()
        seen = [n for n, state in enumerate(states) if canonical(state.values()) == found]
        assert seen, "a snapshot of no moment"
        self.done, self.open = states[seen[-1]], self.open[seen[-1] :]

    def states(self) -> list[dict[str, Row]]:
        """Return the rows that are committed, then those after each open batch."""
        found = [self.done]
        for batch in self.open:
            found.append(applied(found[-1], batch, by_order=self.by_order))
        return found

    def finish(self) -> None:
        """A last process completes everything; nothing is lost, doubled or left over."""
        self.start()
        self.look()
        assert self.open == []
        assert hudi_rows(self.root) == canonical(self.done.values())
        times = [i.requested_time for i in self.table.timeline.refresh().commits]
        for time17 in times:
            keys = read.to_arrow(open_table(self.root), as_of=time17).column("id").to_pylist()
            assert len(keys) == len(set(keys)), "a key was in two partitions"
        for since, until in zip([None, *times], times, strict=False):
            check_replay(open_table(self.root), since, until)
        assert [str(f) for f in Table.open(self.root).fsck()] == []
        assert self.index == "bloom" or index_gaps(open_table(self.root)) == []


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_random_histories_of_global_keys_end_in_the_model(tmp_path: Path, first: int) -> None:
    """Moves, late rows and deletes in any order, crashes and redone instants: a dict by key."""
    redone = deaths = 0
    for seed in range(first, first + 5):
        file_keys.MASK = 0xFF << 56 if seed % 2 else (1 << 64) - 1
        forget_caches()
        history = History(tmp_path / f"{seed}", seed)
        try:
            for _ in range(12):
                history.send()
            history.finish()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            failpoints.arm("")
            file_keys.MASK = (1 << 64) - 1
        redone += sum(len(log.records("instant_redone")) for log in history.logs)
        deaths += history.deaths
    assert redone > 1 and deaths > 6
