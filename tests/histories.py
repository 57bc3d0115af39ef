"""Random histories of a job: verbs in any order against a dict, for each pipeline of the RFC.

A history is a function of its seed. Between the verbs readers look; at the end everything is
committed and compared with the model. Every fourth history of `step1` and `step2` inserts instead
of upserting, and must have every row exactly once; every fifth seals its checkpoints
(`commit_interval`).

    python tests/histories.py 1000            # a thousand of each pipeline, in all processors
    python tests/histories.py step3 17        # one history, by pipeline and seed, with its verbs
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
from core.faults import Crash, Fault, FaultyStorage
from index_truth import index_gaps
from scenarios.tables import CONFIG, SCHEMA

from hoodie_nb import failpoints
from hoodie_nb.clock import ManualClock
from hoodie_nb.errors import HoodieError
from hoodie_nb.events import EventLog
from hoodie_nb.pipeline.checkpointing import Interval
from hoodie_nb.pipeline.coordinator import Shape, WriteCoordinator
from hoodie_nb.pipeline.in_process import keyed_in_order, write_in_process
from hoodie_nb.pipeline.index import hashing
from hoodie_nb.pipeline.intake import Intake
from hoodie_nb.pipeline.local import LocalJob, Source
from hoodie_nb.table import properties
from hoodie_nb.table.fsck import fsck
from hoodie_nb.table.handle import TableHandle, create_table
from hoodie_nb.table.read import to_arrow
from hoodie_nb.table.rollback import roll_back

OPTIONS = {
    "hoodie.parquet.small.file.limit": 4000,
    "hoodie.parquet.max.file.size": 6000,
    "write.batch.size": 600,
    "write.task.max.size": 1500,
    "hoodie.copyonwrite.record.size.estimate": 300,
}
SIZES = (  # every file is full; files take a few more rows; one file takes all
    {},
    {"hoodie.parquet.small.file.limit": 11_500, "hoodie.parquet.max.file.size": 12_500},
    {"hoodie.parquet.small.file.limit": 9_000_000, "hoodie.parquet.max.file.size": 10_000_000},
)
VERBS = {
    "write": 8,
    "checkpoint": 5,
    "eager": 2,
    "complete": 5,
    "lose": 2,
    "span": 2,
    "fail": 1,
    "time_out": 1,
    "task_fails": 1,
    "failover": 1,
    "restart": 1,
    "rewind": 1,
    "crash": 3,
    "disk_error": 2,
    "foreign_commit": 1,
    "foreign_rollback": 1,
}
Key = tuple[str, str]
Row = tuple[int, int]


class Model:
    """What the table must hold: per key the row with the greatest ts, the newest of equal ones."""

    def __init__(self, *, keeps_all: bool) -> None:
        self._keeps_all = keeps_all
        self._rows: dict[Key, Row] = {}
        self._all: list[tuple[Key, Row]] = []

    def write(self, batch: pa.Table) -> None:
        """Apply rows in order."""
        for row in batch.to_pylist():
            key = (row["part"], row["id"])
            value = (row["ts"], -1 if row["_hoodie_is_deleted"] else row["v"])
            self._all.append((key, value))
            if key not in self._rows or row["ts"] >= self._rows[key][0]:
                self._rows[key] = value

    def snapshot(self) -> list[tuple[Key, Row]]:
        """Return the rows that are not deleted, sorted."""
        if self._keeps_all:
            return sorted(self._all)
        return sorted((key, row) for key, row in self._rows.items() if row[1] >= 0)


class History:
    """One random history on one table."""

    def __init__(self, folder: Path, pipeline: str, seed: int) -> None:
        self.random, self.pipeline = random.Random(f"{pipeline} {seed}"), pipeline
        self.seed = seed
        self.insert = pipeline != "step3" and seed % 4 == 3
        self.interval = Interval(3) if seed % 5 == 4 and not self.insert else None
        self.model = Model(keeps_all=self.insert)
        self.clock, self.path = ManualClock(), folder / "table"
        options = {**OPTIONS, **SIZES[seed % 3]}
        create_table(self.path, CONFIG, options=options, clock=self.clock)
        self.source, self.number, self.ts = Source(), 0, 1000
        self.unfinished: list[int] = []
        self.verbs: list[str] = []
        self._seen: tuple[tuple[str, ...], list[tuple[Key, Row]]] = ((), [])
        self.job: LocalJob | None = None
        self._start()

    # --- the process ----------------------------------------------------------------------------

    def _handle(self) -> TableHandle:
        storage = FaultyStorage(self.path)
        return TableHandle(storage, self.clock, properties.load(storage))

    def _start(self) -> None:
        """Let a new process go on from the source, the old one being dead."""
        failpoints.arm("")
        if self.job is not None:
            self.job.table.storage.dead = True
            with contextlib.suppress(Crash):
                self.job.task_fails()
        self.job = LocalJob(
            self._handle(),
            pipeline=self.pipeline,
            index="bloom" if self.seed % 4 == 1 else "bloom+state",
            operation="insert" if self.insert else "upsert",
            source=self.source,
            interval=self.interval,
        )
        self.unfinished.clear()

    # --- the verbs ------------------------------------------------------------------------------

    def step(self) -> None:
        """Take one random verb, then look as a reader does."""
        verb = self.random.choices(list(VERBS), list(VERBS.values()))[0]
        self.clock.ms += self.random.choice([0, 1, 1000, -500])
        self.take(verb)
        self.look()

    def take(self, verb: str) -> None:
        """Take a verb; a crash it runs into is followed by a restart, an error is survived."""
        self.verbs.append(verb)
        try:
            getattr(self, f"_{verb}")()
        except Crash:
            self.verbs.append("dies")
            self.look()
            self._start()
        except (HoodieError, OSError) as error:
            if self.job.table.storage.struck is None:  # no fault of the disk explains it
                raise
            self.verbs.append(type(error).__name__)

    def rows(self, prefix: str = "k", *, deletes: bool = True) -> pa.Table:
        """Return a few rows: new and known keys, late ones, equal ones, deletes (never late)."""
        made = []
        for _ in range(self.random.randint(1, 12)):
            key = self.random.randrange(40)
            self.ts += self.random.choice([0, 1]) if key % 4 == 2 else 1
            late = key % 4 == 0 and self.random.random() < 0.4
            deleted = deletes and key % 4 == 1 and self.random.random() < 0.3
            ts = self.ts - self.random.randrange(200) if late else self.ts
            value = self.ts * 100 + len(made)
            made.append((f"{prefix}{key:03d}", f"p{key % 3}", ts, value, deleted))
        columns = list(zip(*made, strict=True))
        names = [*SCHEMA.names, "_hoodie_is_deleted"]
        return pa.Table.from_arrays([pa.array(c) for c in columns], names=names)

    def _write(self) -> None:
        rows = self.rows(deletes=not self.insert)
        self.model.write(rows)
        self.job.write(rows)

    def _checkpoint(self) -> None:
        self.number += 1
        self.job.checkpoint(self.number)
        self.unfinished.append(self.number)

    def _eager(self) -> None:
        self.number += 1
        self.job.barrier(self.number)
        self._write()
        self.job.checkpoint(self.number)
        self.unfinished.append(self.number)

    def _span(self) -> None:
        """Let three checkpoints of a few rows share an instant, each without its notification."""
        for _ in range(3):
            self._write()
            self._checkpoint()
            self._lose()

    def _complete(self) -> None:
        if self.unfinished:
            self.job.complete(self.unfinished[-1])
            self.unfinished.clear()

    def _lose(self) -> None:
        if self.unfinished:
            self.job.lose(self.unfinished[-1])

    def _fail(self) -> None:
        self.unfinished.clear()

    def _time_out(self) -> None:
        if self.unfinished:
            self.job.time_out(self.unfinished.pop())

    def _task_fails(self) -> None:
        self.unfinished.clear()
        self.job.task_fails()

    def _failover(self) -> None:
        self.unfinished.clear()
        self.job.failover()

    def _restart(self) -> None:
        self._start()

    def _rewind(self) -> None:
        """Restart over an older checkpoint folder: other data comes under known numbers."""
        if not self.insert and self.source.sealed:
            known = self.random.randrange(len(self.source.sealed))
            self.source.succeeded = min(self.source.succeeded, known)
            del self.source.sealed[known:]
        self._start()

    def _crash(self) -> None:
        """Let the process die at some failpoint or operation of the disk that comes soon."""
        storage = self.job.table.storage
        if self.random.random() < 0.5:
            how = self.random.choice(["before", "after", "torn"])
            storage.fault = Fault(storage.steps + self.random.randint(1, 30), how)
            return
        name = self.random.choice([n for n in failpoints.NAMES if not n.startswith("stream")])

        def die() -> None:
            storage.dead = True
            raise Crash(name)

        failpoints.call(name, die, self.random.randint(1, 2))
        self.verbs.append(name)

    def _disk_error(self) -> None:
        """Let one operation of the disk that comes soon fail."""
        storage = self.job.table.storage
        how = self.random.choice(["error", "error_after"])
        storage.fault = Fault(storage.steps + self.random.randint(1, 30), how)

    def _foreign_commit(self) -> None:
        """Commit from another engine; of equal keys the greater ts wins, whoever comes last."""
        handle, intake = self._handle(), Intake(CONFIG, SCHEMA)
        self.ts += 1
        rows = self.rows("f" if self.insert else "k", deletes=False)
        unique = rows.group_by(["id", "part"], use_threads=False)
        rows = unique.aggregate([("ts", "last"), ("v", "last"), ("_hoodie_is_deleted", "last")])
        rows = rows.rename_columns([*SCHEMA.names, "_hoodie_is_deleted"])
        self.ts += 1
        rows = rows.set_column(2, "ts", pa.array([self.ts] * rows.num_rows))
        if self.insert:
            known = {key for key, _ in self.model.snapshot()}
            fresh = [(r["part"], r["id"]) not in known for r in rows.to_pylist()]
            rows = rows.filter(pa.array(fresh, pa.bool_()))
        if rows.num_rows:
            self._commit_foreign(handle, intake, rows)
            self.model.write(rows)

    def _commit_foreign(self, handle: TableHandle, intake: Intake, rows: pa.Table) -> None:
        coordinator, keyed = WriteCoordinator(handle, EventLog()), keyed_in_order(rows, intake)
        with self._unarmed():
            shape = Shape(index="bloom")  # another engine tells our index nothing
            result = coordinator.write(
                intake, lambda plan: write_in_process(keyed, plan, EventLog()), shape
            )
            coordinator.complete([result], intake)

    def _foreign_rollback(self) -> None:
        handle = self._handle()
        with self._unarmed():
            for pending in handle.timeline.pending():
                if pending.action == "commit":
                    rollback = handle.timeline.begin(handle.timeline.request("rollback"))
                    roll_back(handle.storage, handle.timeline, pending, keep_staged=True)
                    handle.timeline.complete(rollback, b"Java's")

    @contextlib.contextmanager
    def _unarmed(self):
        """Keep the failpoints for the job: the other engine does not run into them."""
        armed = dict(failpoints._armed)
        failpoints._armed.clear()
        try:
            yield
        finally:
            failpoints._armed.update(armed)

    # --- what must hold -------------------------------------------------------------------------

    def look(self) -> None:
        """A reader sees each key once, and nothing else until the next instant completes."""
        table = self._handle()
        commits = tuple(i.requested_time for i in table.timeline.completed_commits())
        found = [((r["part"], r["id"]), (r["ts"], r["v"])) for r in to_arrow(table).to_pylist()]
        found.sort()
        keys = {key for key, _ in found}
        assert self.insert or len(keys) == len(found), "a key twice"
        if commits == self._seen[0]:
            assert found == self._seen[1], "rows of an instant that has not completed"
        assert commits[: len(self._seen[0])] == self._seen[0] or "foreign" in str(self.verbs)
        self._seen = (commits, found)

    def finish(self) -> None:
        """End with a checkpoint that completes, and compare with the model."""
        failpoints.arm("")
        self.job.table.storage.fault = None
        if self.job.table.storage.struck:
            self._start()
        self.take("checkpoint")
        self.take("complete")
        self._start()  # ends an interval, and completes what a lost success left
        self.look()
        assert self._seen[1] == self.model.snapshot()
        staged = [self.path / ".hoodie/.hoodie_nb" / n for n in ("staged", "prepared", "sealed")]
        left = [e for folder in staged if folder.is_dir() for e in folder.iterdir()]
        assert left == [] and self._handle().timeline.pending() == []
        assert self.insert or (fsck(self.path) == [] and index_gaps(self._handle()) == [])


def fast_folder() -> str | None:
    """Return a folder in memory if there is one: a history syncs its files a thousand times."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(pipeline: str, seed: int, steps: int) -> list[str]:
    """Run one history and return its verbs; the seed and the verbs are told if it fails.

    Every other one cuts the index's hashes to 8 bits, so that keys share them all the time.
    """
    hashing.MASK = (1 << 64) - (1 << 56) if seed % 2 == 0 else (1 << 64) - 1
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        history = History(Path(folder), pipeline, seed)
        try:
            for _ in range(steps):
                history.step()
            history.finish()
        except BaseException as error:
            text = f"history {pipeline} {seed} ({steps} steps): {' '.join(history.verbs)}"
            raise AssertionError(f"{text}\n{type(error).__name__}: {error}") from error
        finally:
            failpoints.arm("")
            with contextlib.suppress(BaseException):
                history.job.table.storage.dead = True
                history.job.task_fails()
        return history.verbs


def _trial(pipeline: str, seed: int) -> str | None:
    try:
        run(pipeline, seed, 40)
    except AssertionError as error:
        return str(error)
    return None


def main(count: int) -> int:
    """Run `count` histories of each pipeline; return how many failed."""
    began, failed, done = time.monotonic(), Counter(), Counter()
    with ProcessPoolExecutor() as pool:
        work = [*itertools.product(("step1", "step2", "step3"), range(count))]
        results = pool.map(_trial, *zip(*work, strict=True))
        for (pipeline, _), told in zip(work, results, strict=True):
            done[pipeline] += 1
            failed[pipeline] += told is not None
            if told is not None:
                print(told, flush=True)
            if done[pipeline] % 100 == 0 or done[pipeline] == count:
                seconds = time.monotonic() - began
                counts = f"{done[pipeline]} histories, {failed[pipeline]} failed"
                print(f"{pipeline}: {counts}, {seconds:.0f} s", flush=True)
    return sum(failed.values())


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    if len(sys.argv) == 3:
        print(" ".join(run(sys.argv[1], int(sys.argv[2]), 40)))
    else:
        sys.exit(min(main(int(sys.argv[1])), 1))
