"""A stream and batch writes of another process take turns: each may die at any operation.

The processes are handles here: as in `lives`, without Spark. A stream that lives on has
everything in memory that it knew before its turn ended; it recovers as `stale` asks it to.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from each_fault import each_fault, opened
from faults import Fault
from lives import (
    BATCHES,
    QUERY,
    SCHEMA,
    assert_at_rest,
    fingerprint,
    live,
    make,
)
from tables import Model, hudi_rows, without_meta
from writes import commit_elsewhere

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.runs import partitions_of, save_run

KINDS = ["9", "8 logs"]
MINE = [  # ties with the last batch, a new key, an older row
    {"id": "k0", "p": "par0", "ts": 20, "v": 1000},
    {"id": "k7", "p": "par1", "ts": 15, "v": 1001},
    {"id": "k1", "p": "par1", "ts": 4, "v": 1002},
]
THEIRS = [
    {"id": "k0", "p": "par0", "ts": 11, "v": 600},
    {"id": "k5", "p": "par1", "ts": 10, "v": 601},
]


class Stream:
    """A running stream: what it has in memory stays from one checkpoint to the next."""

    def __init__(self, table: TableHandle, *, interval: bool = False) -> None:
        self.table = table
        self.events = EventLog()
        self.interval = Interval(checkpoints=100) if interval else None
        self.coordinator = WriteCoordinator(table, self.events)
        settle(self.coordinator, sealing=QUERY if interval else None)

    def _protocol(self, operation: str) -> Checkpointing:
        intake = Intake(self.table.config, self.table.schema, operation)
        return Checkpointing(self.coordinator, intake, Shape(), IN_PROCESS, interval=self.interval)

    def run(self, number: int) -> None:
        """Prepare a checkpoint, or seal it."""
        operation, rows = BATCHES[number]
        protocol = self._protocol(operation)
        data = pa.Table.from_pylist(rows, schema=pa.schema([SCHEMA.field(n) for n in rows[0]]))
        keyed = keyed_in_order(data, protocol.intake)
        checkpoint = Checkpoint(QUERY, number, fingerprint(number))
        before = fingerprint(number - 1) if number else None
        if self.interval is not None:
            folder = protocol.sealing(checkpoint, before)
            if folder is not None:
                path = f"{folder}/0.arrow"
                runs = [save_run(self.table.storage, path, keyed, protocol.intake.rule)]
                protocol.keep(checkpoint, folder, runs, partitions_of(keyed))
            return
        with protocol.running(checkpoint, before) as work:
            if work is not None:
                work.statuses = write_in_process(keyed, work.plan, self.events)

    def complete(self, *, stale: bool) -> None:
        """Commit what is prepared or sealed; first recover after the turn of another process."""
        protocol = self._protocol("upsert")
        if stale:
            protocol.recover()
        protocol.complete()


def model(*steps: int | str) -> list[str]:
    """Return the table after these batches, in order: those of the stream by number."""
    found = Model()
    for step in steps:
        others = {"mine": MINE, "theirs": THEIRS}
        operation, rows = ("upsert", others[step]) if isinstance(step, str) else BATCHES[step]
        getattr(found, operation)(rows)
    return found.snapshot()


def upsert(table: Table) -> None:
    """Write the rows of the other process."""
    table.upsert(pa.Table.from_pylist(MINE, schema=SCHEMA))


def check(root: Path, wanted: list[str]) -> None:
    """Compare the table with the model, in both readers; nothing may be left over."""
    assert without_meta(Table(opened(root)).to_arrow()) == wanted
    assert hudi_rows(root) == wanted
    assert_at_rest(root)


def table_of(root: Path, kind: str) -> Path:
    """Create the workload's empty table."""
    version, *logs = kind.split()
    options = {"hoodie_nb.append.above.bytes": 0} if logs else {}
    return make(root, int(version), merge_on_read=bool(logs), **options)


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("state", ["prepared", "sealed", "overtaken"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_dies_in_its_turn(tmp_path: Path, kind: str, state: str, how: str) -> None:
    """The stream goes on, whether it commits next or runs its next checkpoint.

    The batch write first commits what the stream has prepared or sealed; if another engine has
    overtaken that, it redoes it.
    """
    source = table_of(tmp_path / "t", kind)
    begun: list[int | str] = [0, *(["theirs"] if state == "overtaken" else []), 1]
    streams: list[Stream] = []

    def process(root: Path, fault: Fault) -> TableHandle:
        stream = Stream(opened(root), interval=state == "sealed")
        stream.run(0)
        stream.complete(stale=False)
        stream.run(1)
        if state == "overtaken":
            commit_elsewhere(root, pa.Table.from_pylist(THEIRS, schema=SCHEMA))
        streams.append(stream)
        return opened(root, fault)

    trials = each_fault(source, upsert, how, every=6, at_least=40, process=process)
    for number, (root, _) in enumerate(trials):
        stream = streams.pop()
        written = "k7" in Table(opened(root)).to_arrow()["id"].to_pylist()
        steps = [*begun, *(["mine"] if written else [])]
        if number % 2:
            stream.complete(stale=True)
            check(root, model(*steps))
        for batch in (2, 3, 4):
            stream.run(batch)
            stream.complete(stale=False)
        check(root, model(*steps, 2, 3, 4))


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("interval", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_dies_in_its_turn(tmp_path: Path, kind: str, interval: bool, how: str) -> None:
    """The other process, which has written before, writes on; then the stream starts again."""
    source = table_of(tmp_path / "t", kind)
    live(opened(source), 4)
    others: list[Table] = []

    def process(root: Path, fault: Fault) -> TableHandle:
        others.append(Table(opened(root)))
        others[-1].delete(pa.table({"id": ["none"], "p": ["par0"]}))  # knows the table now
        return opened(root, fault)

    def act(table: Table) -> None:
        stream = Stream(table._handle, interval=interval)
        stream.run(4)
        stream.complete(stale=False)

    for root, _ in each_fault(source, act, how, every=4, at_least=20, process=process):
        other = others.pop()
        upsert(other)
        first = 203 in other.to_arrow()["v"].to_pylist()
        assert {f.code for f in other.fsck()} <= {"leftover"}  # staged rows, for ten minutes
        again = Stream(opened(root), interval=interval)
        again.run(4)
        again.complete(stale=False)
        check(root, model(0, 1, 2, 3, *([4, "mine"] if first else ["mine", 4])))
        upsert(other)
        assert other.fsck() == []
