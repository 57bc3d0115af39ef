"""Spark's loop over the micro-batches of a query, without Spark, on a checkpoint folder as Spark's.

`offsets/N` is written before batch N runs and `commits/N` after it. A batch that did not end runs
again with the same `offsets/N`; if that file was deleted, it is written again with other bytes,
because Spark writes the time into it. The steps of a batch are those of `MicroBatches`. A query may
insert with an interval, which `write_stream` refuses: that shows rows that are applied twice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from faults import Crash, FaultyStorage
from tables import schema_of

from hoodie_nb import Table, failpoints
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import SealPlan
from hoodie_nb.clock import ManualClock
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition import properties
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.in_process import keyed_in_order, seal_in_process, write_in_process
from hoodie_nb.local.rewriting import Rewriting
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.job import JobHold
from hoodie_nb.records.sealing import Interval
from hoodie_nb.storage.storage import Storage
from hoodie_nb.stream.checkpoint_folder import CheckpointFolder

INTERVALS = {
    "three": Interval(checkpoints=3),
    "seconds": Interval(duration_ms=2000),
    "background": Interval(checkpoints=100, background=True),
}
MODES = ["checkpoint", "write", *INTERVALS]
MOMENTS = ("before commits/N", "before the notification")  # besides the failpoints
Row = dict[str, object]
_TIMES = itertools.count(1_700_000_000_000)


@dataclass(slots=True)
class Query:
    """One streaming query that writes `table`; `mode` is one of MODES.

    `rows` are what its source has sent so far, in pieces, of which a batch takes `pieces`.
    """

    folder: Path
    table: Path
    mode: str = "checkpoint"
    operation: str = "upsert"
    query_id: str = "query-1"
    rows: list[list[Row]] = field(default_factory=list)
    pieces: int = 1

    def __post_init__(self) -> None:
        for name in ("offsets", "commits"):
            Path(self.folder, name).mkdir(parents=True)
        Path(self.folder, "metadata").write_text(json.dumps({"id": self.query_id}))

    def storage(self) -> Storage:
        """Return the table's storage as a new process sees it."""
        return FaultyStorage(self.table)

    def run(self, most: int = 1000, *, dies: str = "") -> None:
        """Start a process, let it run `most` batches of what the source has, and stop it.

        It dies at a failpoint, or at one of MOMENTS; `name@2` is the second time.
        """
        process, batches = _Process(self), itertools.islice(self._batches(), most)

        def batch() -> bool:
            number = next(batches, None)
            if number is not None:
                process.run(number)
                process.reach(MOMENTS[0])
                self._commits(number).touch()
                process.reach(MOMENTS[1])
                process.notified(number)
            return number is not None

        process.meanwhile = batch
        try:
            with _death(process, dies):
                process.start()
                while batch():
                    pass
                process.complete()
        finally:
            process.end()

    def _batches(self) -> Iterator[int]:
        """Yield the numbers of the batches to run: one that did not end, then new ones."""
        number = max(self.numbers("offsets"), default=-1)
        if number >= 0 and number not in self.numbers("commits"):
            yield number
        while (start := self.end(number)) < len(self.rows):
            number, end = number + 1, min(start + self.pieces, len(self.rows))
            text = f"v1\n{json.dumps({'batchTimestampMs': next(_TIMES)})}\n{end}"
            self._offsets(number).write_text(text)
            yield number

    def of(self, number: int) -> list[Row]:
        """Return the rows of a batch, by its offsets."""
        pieces = self.rows[self.end(number - 1) : self.end(number)]
        return [row for piece in pieces for row in piece]

    def end(self, number: int) -> int:
        """Return where a batch ends in the source."""
        return int(self._offsets(number).read_text().splitlines()[2]) if number >= 0 else 0

    def _offsets(self, number: int) -> Path:
        return Path(self.folder, "offsets", str(number))

    def _commits(self, number: int) -> Path:
        return Path(self.folder, "commits", str(number))

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of the files in `offsets` or `commits`."""
        return [int(file.name) for file in Path(self.folder, name).iterdir()]

    def take_back(self, last: int, *names: str) -> None:
        """Delete the files in `offsets` and `commits`, or one of them, whose number is above."""
        for name in names or ("offsets", "commits"):
            for number in self.numbers(name):
                if number > last:
                    Path(self.folder, name, str(number)).unlink()


def follow(error: BaseException, query: Query) -> int:
    """Do what a refusal says, word by word; return the number that it names."""
    found = re.search(
        r"delete the files in `offsets` and `commits` whose number is above (\d+)", str(error)
    )
    assert found is not None, error
    query.take_back(int(found[1]))
    return int(found[1])


class _Process:
    """A process that runs a query's batches."""

    def __init__(self, query: Query) -> None:
        self.query, self.events, self.dies = query, EventLog(), ""
        self.meanwhile: Callable[[], object] = lambda: None
        self._applies = False
        self.offsets = CheckpointFolder(str(query.folder))
        self.interval = INTERVALS.get(query.mode)
        self.storage, self.clock = query.storage(), ManualClock()
        self.hold = JobHold(self.storage, "a test")
        self.coordinator = WriteCoordinator(self._handle(), self.events)
        self.applying = self.checkpointing = self._checkpointing(self.coordinator)
        if self.interval is not None and self.interval.background:
            rewriter = Rewriting(self._pause, KeptFiles(1 << 20))
            other = WriteCoordinator(self._handle(), self.events)
            self.applying = Checkpointing(other, self.checkpointing.intake, Shape(), rewriter)
            self.checkpointing.let_finish = self.hold.wait_until_unused

    def _handle(self) -> TableHandle:
        return TableHandle(self.storage, self.clock, properties.load(self.storage))

    def _checkpointing(self, coordinator: WriteCoordinator) -> Checkpointing:
        query = self.query
        return Checkpointing(
            coordinator,
            intake_of(coordinator, query.operation, query.query_id),
            Shape(),
            IN_PROCESS,
            commit_on="write" if query.mode == "write" else "checkpoint",
            interval=self.interval,
        )

    def start(self) -> None:
        """Settle the table, as a stream does at its start."""
        sealing = self.query.query_id if self.interval else None
        with self.hold.writing():
            settle(self.coordinator, sealing=sealing, last=self.offsets.last())

    def run(self, number: int) -> None:
        """Run a batch; it is skipped if it is in the table."""
        self.clock.ms += 1000
        with self.hold.writing():
            self._run(number)

    def _run(self, number: int) -> None:
        checkpoint = self.offsets.checkpoint(self.query.query_id, number)
        previous, protocol = self.offsets.fingerprint(number - 1), self.checkpointing
        if self.interval is None:
            keyed = self._keyed(number)
            steps = protocol.running(checkpoint, previous, has_rows=lambda: keyed.num_rows > 0)
            with steps as work:
                if work is not None:
                    work.statuses = write_in_process(keyed, work.plan, self.events)
            return
        folder = protocol.sealing(checkpoint, previous)
        if folder is not None:
            plan = SealPlan(self.storage, protocol.intake, folder, tasks=1)
            sealed = seal_in_process(self._keyed(number), plan)
            protocol.take_over()  # the other thread may have applied what was sealed
            protocol.keep(checkpoint, folder, *sealed)

    def _keyed(self, number: int) -> pa.Table:
        schema = schema_of()
        if self.query.operation == "delete":
            schema = pa.schema([schema.field(name) for name in ("id", "p")])
        rows = pa.Table.from_pylist(self.query.of(number), schema)
        return keyed_in_order(rows, self.checkpointing.intake)

    def notified(self, number: int) -> None:
        """Take note of a success: what is prepared is committed; so is a full interval."""
        if self._applies:
            return  # this batch was sealed meanwhile
        with self.hold.writing():
            if self.applying is self.checkpointing:
                self.checkpointing.notify(number)
            else:
                self._applies = True
                self.applying.complete()
                self._applies = False

    @contextlib.contextmanager
    def _pause(self, name: str) -> Iterator[None]:
        """While the background writes what was sealed, the next batch is sealed."""
        with self.hold.paused(name):
            self.meanwhile()
            yield

    def complete(self) -> None:
        """Commit everything, as the end of a stream does."""
        with self.hold.writing():
            self.checkpointing.complete()

    def reach(self, moment: str) -> None:
        """Die at this moment if it is the one."""
        if moment == self.dies.partition("@")[0]:
            self.die()

    def die(self) -> None:
        """Die: nothing that is done later reaches the disk."""
        self.dead()
        raise Crash("a process died")

    def dead(self) -> None:
        """Take the disk away."""
        if isinstance(self.storage, FaultyStorage):
            self.storage.dead = True

    def end(self) -> None:
        """End the process, and with it its lock."""
        self.dead()
        self.hold.release()


@contextlib.contextmanager
def _death(process: _Process, point: str) -> Iterator[None]:
    """Let a process die at a point, and check that it did."""
    name, _, hit = point.partition("@")
    process.dies = name if name in MOMENTS else ""
    if name in failpoints.NAMES:
        failpoints.call(name, process.die, int(hit or 1))
    try:
        yield
    except Crash:
        assert point
    else:
        assert not point, f"{point} was never reached"
    finally:
        failpoints.arm("")


def rows_of(root: Path) -> list[tuple[object, object]]:
    """Return key and value of every row, in order."""
    found = Table.open(root).to_arrow(["id", "v"]).to_pylist()
    return sorted((row["id"], row["v"]) for row in found)
