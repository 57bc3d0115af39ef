"""A history: one job on one table, its processes one after the other, and the model.

The verbs of the RFC are methods here (`write`, `checkpoint`, `complete`, …); other engines and
disasters are in `other_writers` and `disasters` as functions of a history.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from core.faults import Crash, FaultyStorage
from core.replay import check_replay
from history.follower import Follower
from history.model import Model, VisibleRow, identity, order, visible
from history.rows import SCHEMA, Rows, config_of, table_of
from history.traits import Traits
from index_truth import index_gaps

from hoodie_nb import failpoints
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.clock import ManualClock
from hoodie_nb.definition import properties
from hoodie_nb.errors import HoodieError, InvalidConfig
from hoodie_nb.evidence.handle import TableHandle, create_table
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.sealing import Interval
from hoodie_nb.storage.addresses import Address

OURS = ".hoodie/.hoodie_nb"
WORK = ("staged", "prepared", "sealed")  # empty when a table is at rest


class History:
    """One random history on one table."""

    def __init__(self, folder: Path, pipeline: str, seed: int | str, traits: Traits) -> None:
        self.random, self.pipeline = random.Random(f"{pipeline} {seed}"), pipeline
        kind = {"merge_on_read": True, "version": "98"[traits.seed % 2]} if traits.logs else {}
        self.traits, self.config = traits, config_of(traits.keys, **kind)
        self.model, self.rows = Model(keeps_all=traits.insert), Rows(traits.keys, self.random)
        self.clock, self.path = ManualClock(), folder / "table"
        create_table(self.place(), self.config, options=traits.options, clock=self.clock)
        self.source, self.number = Source(), 0
        self.columns = self.sent = SCHEMA  # the table's columns, and those that the source sends
        self.unfinished: list[int] = []
        self.verbs: list[str] = []
        self.restarts = True  # after a crash, at once
        self.index_damaged = False  # it is rebuilt as keys are looked up, not at once
        self.foreign = False  # another engine has been here: instants may leave the timeline
        self.snapshots: dict[str, list[VisibleRow]] = {}  # by their newest commit
        self.undone: set[str] = set()  # the commits that were undone by hand
        self.kept = traits.retained or 10  # commits that every clean has retained
        self.widened = ""  # the newest commit that may not be undone
        self.follower = Follower()
        self._seen: tuple[tuple[str, ...], list[VisibleRow]] = ((), [])
        self.job: LocalJob | None = None
        self.start()

    # --- the process ----------------------------------------------------------------------------

    def handle(self) -> TableHandle:
        """Return a process's own table handle."""
        storage = self.faulty()
        return TableHandle(storage, self.clock, properties.load(storage))

    def place(self) -> Address:
        """Return the place of the table."""
        return self.path

    def faulty(self) -> FaultyStorage:
        """Return a storage of one process, which can fail."""
        return FaultyStorage(self.path, links=self.traits.links)

    def end_process(self) -> None:
        """Kill the process."""
        failpoints.arm("")
        if self.job is not None:
            self.job.table.storage.dead = True
            with contextlib.suppress(Crash):
                self.job.task_fails()

    def start(self) -> None:
        """Continue from the source in a new process, after the old one has died."""
        self.end_process()
        self._open(self.traits.interval)

    def _open(self, interval: Interval | None) -> None:
        self.job = LocalJob(
            self.handle(),
            pipeline=self.pipeline,
            index=self.traits.index,
            operation="insert" if self.traits.insert else "upsert",
            source=self.source,
            interval=interval,
            keeps_seals=interval is not None,
            state_folder=str(self.path.parent) if self.traits.index == "state" else "",
        )
        self.sent = self.columns
        self.unfinished.clear()

    def take(self, name: str, verb: Callable[[], object]) -> None:
        """Run a verb; restart after a crash, continue after an error."""
        self.verbs.append(name)
        try:
            verb()
        except Crash:
            self.verbs.append("dies")
            self.look()
            if not self.restarts:
                raise
            self.start()
        except (HoodieError, OSError) as error:
            overtaken = self.foreign and "was cleaned away or undone before" in str(error)
            if self.job.table.storage.fired is None and not overtaken:  # no fault explains it
                raise
            self.verbs.append(type(error).__name__)
            if overtaken:  # another engine has cleaned a file of this checkpoint: it runs again
                self.start()
                verb()

    # --- the verbs of the RFC -------------------------------------------------------------------

    def write(self, most: int = 12) -> None:
        """Let the source send a few rows."""
        rows = self.rows.take(self.sent, most, deletes=not self.traits.insert)
        self.model.write(rows)
        self.job.write(table_of(rows, self.sent))

    def checkpoint(self) -> None:
        """Make a checkpoint durable."""
        self.number += 1
        self.job.checkpoint(self.number)
        self.unfinished.append(self.number)

    def eager(self) -> None:
        """Send rows between the barrier of a checkpoint and its end."""
        self.number += 1
        self.job.barrier(self.number)
        self.write()
        self.job.checkpoint(self.number)
        self.unfinished.append(self.number)

    def span(self) -> None:
        """Let three checkpoints of a few rows share an instant, each without its notification."""
        for _ in range(3):
            self.write()
            self.checkpoint()
            self.lose()

    def complete(self) -> None:
        """Notify the job of a success."""
        if self.unfinished:
            self.job.complete(self.unfinished[-1])
            self.unfinished.clear()

    def lose(self) -> None:
        """Let a success get lost."""
        if self.unfinished:
            self.job.lose(self.unfinished[-1])

    def fail(self) -> None:
        """Let the open checkpoints fail."""
        self.unfinished.clear()

    def time_out(self) -> None:
        """Let a checkpoint time out."""
        if self.unfinished:
            self.job.time_out(self.unfinished.pop())

    def task_fails(self) -> None:
        """Let the task fail."""
        self.unfinished.clear()
        self.job.task_fails()

    def failover(self) -> None:
        """Let the job go back to its last success."""
        self.unfinished.clear()
        self.job.failover()

    def rewind(self) -> None:
        """Restart with an older checkpoint folder: other data has known numbers.

        Not much older: the table must know the batch from which the folder continues.
        """
        if not self.traits.insert and self.source.sealed:
            last = len(self.source.sealed)
            known = self.random.randrange(max(0, last - 50), last)
            self.source.take_back(known)
        self.start()

    # --- what must hold -------------------------------------------------------------------------

    def look(self) -> None:
        """A reader sees each key once, and no change until the next instant completes."""
        table = self.handle()
        commits = tuple(i.requested_time for i in table.timeline.completed_commits())
        rows = to_arrow(table).to_pylist()
        keys = {identity(row) for row in rows}
        assert self.traits.insert or len(keys) == len(rows), "a key is duplicated"
        found = order(map(visible, rows))
        before = tuple(time17 for time17 in self._seen[0] if time17 not in self.undone)
        if before == self._seen[0] and commits[-1:] == before[-1:]:
            assert found == self._seen[1], "rows of an instant that has not completed"
        stay = tuple(
            time17 for time17 in before if not self.traits.archived or time17 >= commits[0]
        )
        assert commits[: len(stay)] == stay or self.foreign
        self._seen = (commits, found)
        self.snapshots |= {commits[-1]: found} if commits else {}

    def finish(self) -> None:
        """End with a checkpoint that completes, and compare with the model."""
        failpoints.arm("")
        self.job.table.storage.fault = None
        if self.job.table.storage.fired:
            self.start()
        self.take("checkpoint", self.checkpoint)
        self.take("complete", self.complete)
        self.end_process()
        self._open(None)  # ends an interval, and completes what a lost success left
        self.look()
        assert self._seen[1] == self.model.snapshot(), "rows differ from the model"
        storage = self.handle().storage
        left = [e for name in WORK for e in storage.list_folder(f"{OURS}/{name}")]
        assert (left, self.handle().timeline.pending()) == ([], [])
        assert set(self.columns.names) <= set(self.handle().schema.names), "a column is gone"
        self._check_changes()
        self.follower.follow(self.handle(), self.undone)
        if not self.traits.insert:
            assert [str(f) for f in fsck(self.place())] == []
            assert self.index_damaged or index_gaps(self.handle()) == []

    def _check_changes(self) -> None:
        """Within the retention the past is as it was; the changes lead from one commit to another.

        An earlier snapshot is right, too, or it is refused.
        """
        table = self.handle()
        times = [i.requested_time for i in table.timeline.completed_commits()]
        least = self.kept - len(self.undone)
        check_replay(table, None, None)
        for back, time17 in enumerate(reversed(times)):
            with refused_if(back > least):
                rows = order(map(visible, to_arrow(table, as_of=time17).to_pylist()))
                assert rows == self.snapshots.get(time17, rows), f"rows as of {time17}"
        for _ in range(min(4, len(times) - 1)):
            since, until = sorted(self.random.sample(times, 2))
            with refused_if(times.index(since) < len(times) - 1 - least):
                check_replay(table, since, until)


@contextlib.contextmanager
def refused_if(cleaned: bool) -> Iterator[None]:
    """Allow the refusal of a time whose files may have been cleaned away."""
    try:
        yield
    except InvalidConfig as error:
        assert cleaned and "can be read is" in str(error), error
