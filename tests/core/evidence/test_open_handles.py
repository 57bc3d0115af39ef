"""Tables that stay open while other handles and processes change them: the next write is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from archives import FEW, MAX, MIN, archived
from core.writes import run_checkpoint, write_and_commit
from lives import SCHEMA, live, opened
from tables import Model, hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.actions.restore_plan import files_of
from hoodie_nb.actions.rollback import undo
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.clock import ManualClock
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition import properties
from hoodie_nb.errors import ConcurrentWriter, InvalidConfig
from hoodie_nb.events import EventLog
from hoodie_nb.evidence import lost
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.index import lookup, manifest
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.storage.local_storage import LocalStorage

KEYS = {"schema": SCHEMA, "record_key": "id", "partition_by": "p", "ordering": "ts"}
MANY = [f"p{number:02d}" for number in range(9)]  # a write looks at a few partitions only


def rows(value: int, *at: tuple[str, str]) -> pa.Table:
    """Return rows of (partition, key)."""
    held = [{"id": k, "p": p, "ts": value, "v": value} for p, k in at]
    return pa.Table.from_pylist(held, SCHEMA)


def long_lived(root: Path) -> Table:
    """Return a table with archived commits, whose timeline grows from now on."""
    table = Table.create(root, options=FEW, **KEYS)
    table.upsert(rows(1, *((p, "a") for p in (*MANY, "par0", "par1"))))
    for value in range(2, 10):
        table.upsert(rows(value, ("p00", "a")))
    assert archived(root)
    return Table.create(root, if_exists="open", options={MIN: 30, MAX: 40}, **KEYS)


def test_a_checkpoint_that_an_open_table_completed_is_no_lost_commit(tmp_path: Path) -> None:
    """Its files are in no commit of the first listing, but in one of the timeline of now."""
    table = long_lived(tmp_path / "t")
    table.upsert(rows(10, ("p00", "a")))
    live(opened(tmp_path / "t"), 1, commit_on="checkpoint", notified=0)
    table.upsert(rows(11, ("p01", "a")))
    table.upsert(rows(12, ("par0", "k0"), ("par1", "a")))
    found = {(row["p"], row["id"]): row["ts"] for row in table.to_arrow().to_pylist()}
    assert found[("par0", "k0")] == found[("par1", "a")] == 12 and found[("par1", "k1")] == 10
    assert len(found) == table.to_arrow().num_rows == 9 + 2 + 6
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []


def test_a_commit_that_is_undone_during_a_write_is_no_lost_file(tmp_path: Path) -> None:
    """Java undoes the newest commit, without our lock, after a write has begun.

    Its files are gone, as they should be: the write says that the table has changed, and does not
    advise to restore files or to accept their loss. Done again it succeeds.
    """
    table = Table.create(tmp_path / "t", **KEYS)
    table.upsert(rows(1, *((p, "a") for p in MANY)))
    table.upsert(rows(2, ("p05", "a")))
    handle, events = open_table(table.path), EventLog()
    settle(coordinator := WriteCoordinator(handle, events))
    intake = Intake(handle.config, handle.schema)
    keyed = keyed_in_order(rows(3, ("p05", "b")), intake)

    def write(plan: WritePlan) -> list:
        java = open_table(table.path)
        newest = java.timeline.completed_commits()[-1]
        undo(java, newest, files_of(java, [newest.requested_time])[newest.requested_time], {})
        return write_in_process(keyed, plan, events)

    with pytest.raises(ConcurrentWriter, match="another writer changed"):
        write_and_commit(coordinator, intake, write)
    table.upsert(rows(3, ("p05", "b")))
    wanted = [rows(1, *((p, "a") for p in MANY)), rows(3, ("p05", "b"))]
    assert hudi_rows(table.path) == without_meta(pa.concat_tables(wanted)) and table.fsck() == []


# --- random histories of three processes ----------------------------------------------------------


class Process:
    """A process with an open table and caches of its own."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        storage = LocalStorage(root)
        self._caches = (type(lost._written)(), dict[tuple[str, int, str], manifest.Manifest]())
        self._table = Table(TableHandle(storage, clock, properties.load(storage)))

    @contextmanager
    def running(self) -> Iterator[Table]:
        """Use the caches of this process in the block."""
        before = lost._written, manifest._manifests
        lost._written, manifest._manifests = self._caches
        lookup._view.cache_clear()
        try:
            yield self._table
        finally:
            lost._written, manifest._manifests = before


class History:
    """Three processes that change one table in turn, and a model of its rows at each commit."""

    def __init__(self, root: Path, seed: int) -> None:
        self.draw, self.clock, self.root = random.Random(seed), ManualClock(), root
        least = self.draw.choice([2, 5])
        options = {"hoodie.clean.commits.retained": self.draw.choice([1, 3])}
        options |= {MIN: least, MAX: least + 4}
        Table.create(root, options=options, **KEYS)
        self.processes = [Process(root, self.clock) for _ in range(3)]
        self.now, self.earlier, self.number = Model(), list[Model](), 0

    def batch(self) -> list[dict[str, object]]:
        """Return new rows, each newer than all before."""
        self.number += 1
        parts = MANY[: self.draw.choice([2, 9])]
        given = {(self.draw.choice(parts), self.draw.choice("abcd")) for _ in range(3)}
        return [{"id": k, "p": p, "ts": self.number, "v": self.number} for p, k in given]

    def commit(self, change: Callable[[Model], object]) -> None:
        """Apply what a commit did to the model."""
        self.earlier.append(self.now)
        self.now = self.now.copy()
        change(self.now)

    def upsert(self, table: Table) -> None:
        """Write a batch."""
        batch = self.batch()
        table.upsert(batch)
        self.commit(lambda model: model.upsert(batch))

    def overwrite(self, table: Table) -> None:
        """Overwrite partitions."""
        batch = self.batch()
        table.insert_overwrite(batch)
        gone = {row["p"] for row in batch}

        def change(model: Model) -> None:
            model.rows = {at: row for at, row in model.rows.items() if at[0] not in gone}
            model.upsert(batch)

        self.commit(change)

    def prepare(self, table: Table) -> None:
        """Prepare a checkpoint in a process that dies, and let an open table complete it."""
        batch = self.batch()
        storage, events = LocalStorage(self.root), EventLog()
        handle = TableHandle(storage, self.clock, properties.load(storage))
        settle(coordinator := WriteCoordinator(handle, events))
        intake = Intake(handle.config, handle.schema)
        checkpointing = Checkpointing(
            coordinator, intake, Shape(), IN_PROCESS, commit_on="checkpoint"
        )
        keyed = keyed_in_order(pa.Table.from_pylist(batch, SCHEMA), intake)
        checkpoint = Checkpoint(f"query{self.number}", 0, f"{self.number:064x}")
        write = partial(write_in_process, keyed, events=events)
        run_checkpoint(checkpointing, checkpoint, None, write)
        self.commit(lambda model: model.upsert(batch))
        self.upsert(table)

    def undo(self, table: Table) -> None:
        """Roll the newest commit back, if that is possible."""
        with suppress(InvalidConfig):
            table.rollback()
            self.now = self.earlier.pop()

    def tidy(self, table: Table) -> None:
        """Clean, archive or repair."""
        self.draw.choice([Table.clean, Table.archive, partial(Table.fsck, repair=True)])(table)


ACTIONS = ("upsert", "upsert", "prepare", "prepare", "overwrite", "undo", "tidy")


@pytest.mark.parametrize("seed", range(8))
def test_open_tables_of_three_processes_are_the_model(tmp_path: Path, seed: int) -> None:
    """After each change of any of them, all read the model, and the next write is right."""
    history = History(tmp_path / "t", seed)
    for _ in range(16):
        history.clock.ms += history.draw.choice([0, 1000])
        with history.draw.choice(history.processes).running() as table:
            getattr(history, history.draw.choice(ACTIONS))(table)
        for process in history.processes:
            with process.running() as table:
                assert without_meta(table.to_arrow()) == history.now.snapshot()
    assert hudi_rows(tmp_path / "t") == history.now.snapshot()
    assert Table.open(tmp_path / "t").fsck() == []
