"""The processes of a trial: batches in a loop, a stream, services, a follower."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
from history.follower import Follower
from writers.turns.rows import GIVEN, SCHEMA, Row, Traits, visible
from writers.turns.stepping import Baton, Stepped, with_threads

from hoodie_nb import Table
from hoodie_nb.buckets.kept_files import KeptFiles
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import SealPlan
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition import properties
from hoodie_nb.errors import ConcurrentWriter, HoodieError
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.in_process import keyed_in_order, seal_in_process, write_in_process
from hoodie_nb.local.rewriting import Rewriting
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.records.sealing import Interval
from hoodie_nb.stream.checkpoint_folder import CheckpointFolder
from hoodie_nb.stream.micro_batches import recover_if_stale

_CLEANED = ("can be read is", "was cleaned", "a cleaner removed it")
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

    def stream_batch(self, number: int) -> pa.Table:
        """Return the rows of a checkpoint of a stream that upserts; some have none."""
        rows = self.traits.batch(f"{self.name}-{number}")[1]
        return pa.Table.from_pylist(rows, schema=GIVEN)


def batches(actor: Actor) -> None:
    """Write batches, and acknowledge each of them."""
    table = actor.table()
    for number in range(actor.first, actor.traits.batches):
        operation, rows = actor.batch(number)
        actor.baton.tell("begins", number)
        done = getattr(table, operation)(rows, wait=WAIT_S)
        assert done is not None
        actor.baton.tell("ack", [number, done.requested_time])


class Stream:
    """A stream's process, as `stream/watched_query.py` does it, without Spark.

    Spark's part is here: it writes `offsets/N` before it runs N, and `commits/N` after it.
    """

    interval: Interval | None = None
    in_background = False
    pause: Callable[[str], AbstractContextManager[object]] = staticmethod(nullcontext)

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.folder = CheckpointFolder(str(actor.root.parent / f"{actor.root.name}-{actor.name}"))
        self._write("metadata", json.dumps({"id": f"query-{actor.name}"}))
        table = actor.table()
        self.events = EventLog()
        self.coordinator = WriteCoordinator(table._handle, self.events)
        kind = random.Random(f"stream {actor.traits.seed} {actor.name}").choice(
            (
                ("checkpoint", 0),
                ("checkpoint", 0),
                ("write", 0),
                ("checkpoint", 1),
                ("checkpoint", 2),
            )
        )
        if kind[1]:
            self.interval = self.interval or Interval(checkpoints=kind[1])
        intake = intake_of(self.coordinator, "upsert", self.folder.query_id())
        intake.check(GIVEN)
        self.checkpointing = Checkpointing(
            self.coordinator,
            intake,
            Shape(),
            IN_PROCESS,
            commit_on=kind[0],
            interval=self.interval,
            given=GIVEN,
        )
        path = self.folder.path
        self.hold = JobHold(actor.table()._handle.storage, path, checkpoint=path, wait_s=WAIT_S)
        with self.hold.writing():
            self.hold.wait_until_unused()
            sealing = self.folder.query_id() if self.interval else None
            settle(self.coordinator, sealing=sealing, last=self.folder.last())
            self.hold.stale = 0.0
        actor.baton.tell("lives")

    def _write(self, name: str, content: str) -> None:
        path = Path(self.folder.path, name)
        self.actor.baton.step(f"spark writes {name}")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name(f".{path.name}")
            hidden.write_text(content)
            hidden.rename(path)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self.hold.writing():
            recover_if_stale(self.checkpointing, self.hold, self.events)
            yield

    def run(self) -> None:
        """Run all checkpoints that Spark has not recorded as done."""
        done = self.folder.last()
        for number in range(done.batch_id + 1 if done else 0, self.actor.traits.batches):
            self._run_one(number)
            for _ in range(self.actor.draw.randrange(4)):
                self.hold.give_way()
                self.actor.baton.step("looks for commits")
            if self.actor.draw.random() < 0.6:
                with self._turn():
                    self.checkpointing.notify(number)
            self.hold.give_way()
        with self._turn():
            self.checkpointing.complete()
        self.actor.baton.tell("leaves")
        self.hold.release()

    def _run_one(self, number: int) -> None:
        """Run a checkpoint, between the two files in which Spark records it."""
        self._write(f"offsets/{number}", f"{self.actor.name}-{number}")
        with self._turn():
            self._checkpoint(number)
        self._write(f"commits/{number}", "")
        self.actor.baton.tell("ack", [number, None])

    def _checkpoint(self, number: int) -> None:
        rows = self.actor.stream_batch(number)
        protocol = self.checkpointing
        checkpoint = self.folder.checkpoint(self.folder.query_id(), number)
        before = self.folder.fingerprint(number - 1)
        if self.interval is not None:
            folder = protocol.sealing(checkpoint, before)
            if folder is not None:
                plan = SealPlan(protocol.table.storage, protocol.intake, folder, 1)
                with self.pause(PurePosixPath(folder).name):
                    sealed = seal_in_process(keyed_in_order(rows, protocol.intake), plan)
                with protocol.table.timeline.listed_once():
                    if self.in_background:
                        protocol.take_over()
                    protocol.keep(checkpoint, folder, *sealed)
            return
        with protocol.running(checkpoint, before, has_rows=lambda: rows.num_rows > 0) as work:
            if work is not None:
                keyed = keyed_in_order(rows, protocol.intake)
                work.statuses = write_in_process(keyed, work.plan, self.events)


class BackgroundStream(Stream):
    """A stream that seals checkpoints, while another thread applies them."""

    interval = Interval(checkpoints=3, background=True)
    in_background = True

    def __init__(self, actor: Actor) -> None:
        self.threads = with_threads(actor.baton, random.Random(actor.draw.random()))
        self.stopping = False
        super().__init__(actor)
        self.checkpointing.let_finish = self.hold.wait_until_unused
        self.pause = self.hold.paused
        coordinator = WriteCoordinator(actor.table()._handle, self.events)
        self.kept = KeptFiles(1 << 20)
        rewriting = Rewriting(self.hold.paused, self.kept)
        self.applying = Checkpointing(coordinator, self.checkpointing.intake, Shape(), rewriting)

    def run(self) -> None:
        """Run all checkpoints, beside the other thread."""
        join = self.threads.start(self._apply)
        done = self.folder.last()
        for number in range(done.batch_id + 1 if done else 0, self.actor.traits.batches):
            self._run_one(number)
        self.stopping = True
        join()
        for error in self.threads.errors:
            raise error
        with self._turn():
            self.hold.wait_until_unused()
            self.checkpointing.complete()
        self.actor.baton.tell("leaves")
        self.hold.release()

    def _apply(self) -> None:
        while not self.stopping:
            self.actor.baton.step("looks for seals")
            with self.hold.writing():
                recover_if_stale(self.applying, self.hold, self.events)
                self.applying.complete()
            self.hold.give_way()
            self.actor.baton.sleep(0)


def stream(actor: Actor) -> None:
    """Run a stream to its end."""
    Stream(actor).run()


def background(actor: Actor) -> None:
    """Run a stream that applies its checkpoints in the background."""
    BackgroundStream(actor).run()


def services(actor: Actor) -> None:
    """Call services, beside the writers."""
    table = actor.table()

    def alone() -> None:
        with suppress(ConcurrentWriter), writing(table._handle.storage, WAIT_S, alone=True):
            actor.baton.tell("alone")

    calls: list[Callable[[], object]] = [
        alone,
        lambda: table.clean(commits=actor.draw.randint(1, 3)),
        table.archive,
        table.cluster,
    ]
    calls += [table.compact] if actor.traits.logs else []
    for number in range(actor.first, actor.traits.batches):
        actor.baton.tell("begins", number)
        actor.draw.choice(calls)()
        actor.baton.tell("served", number)


def follower(actor: Actor) -> None:
    """Keep a copy up to date with `changes`, and look at snapshots."""
    copy = Follower()
    while True:
        last = actor.baton.last
        table = actor.table()
        try:
            actor.baton.tell("follows", copy.follow(table._handle, set()))
            if last:
                return
            rows: list[Row] = table.to_arrow().to_pylist()
            actor.baton.tell("sees", visible(rows))
        except HoodieError as error:  # its time was cleaned away as it was read
            if last or not any(text in str(error) for text in _CLEANED):
                raise
            actor.baton.tell("follows", "cleaned")
        actor.baton.sleep(0)


ACTS: dict[str, Callable[[Actor], None]] = {
    **dict.fromkeys("abc", batches),
    **dict.fromkeys("stu", stream),
    "w": background,
    "z": services,
    "f": follower,
}
