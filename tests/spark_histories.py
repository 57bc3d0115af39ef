"""Random histories of a real streaming job on Spark, small, against a dict.

The source is a folder of tiny files, one per micro-batch. Meanwhile the job is stopped, killed in
mid-batch, started again with another pipeline, placement, index, interval and number of tasks, on
its checkpoint folder, an older copy of it, or none; batches come from DataFrames, commits and new
columns from another engine; commits are undone by hand. Keys and partitions are null, empty,
placeholders' neighbours and text beyond the BMP. Whenever all input is processed, the table is
compared with the model.

    python tests/spark_histories.py 200       # histories 0 to 199 in one Spark session
    python tests/spark_histories.py 1 17      # one history, by its number
    python tests/spark_histories.py 200 10000 # from 10,000 on the tables are merge-on-read

*What the model may expect.* Which of two writers comes first is not fixed, and an older checkpoint
folder brings old rows again. So each class of keys has one writer, or rows whose order is decided
by their ordering value alone; then all orders of events end in one table.

| class (by number) | written by | rows |
| --- | --- | --- |
| late | stream, DataFrames, another engine | upserts with any ordering value |
| deleted | stream | upserts and deletes, in order |
| tied | stream | equal, null and NaN ordering values |
| batch | DataFrames | upserts and deletes, in order |
| foreign | another engine | upserts in order, with values in the columns that it added |

Every fifth history inserts instead of upserting: each row has a key of its own and must be there
exactly once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from core.tables import canonical, hudi_rows, rank, without_meta
from core.writes import write_uncommitted
from histories import fast_folder
from history.follower import Follower
from index_truth import index_gaps
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.lock.lock import writing
from hoodie_nb.records.progress import ProgressRecords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS, WAIT_S = 7, 120
OPTIONS = {
    "hoodie.parquet.small.file.limit": 4000,
    "hoodie.parquet.max.file.size": 6000,
    "write.batch.size": 600,
    "write.task.max.size": 1500,
    "hoodie.copyonwrite.record.size.estimate": 300,
}
VERBS = {
    "feed": 5,
    "process": 3,
    "stop": 1,
    "kill": 3,
    "fault": 2,
    "restore_checkpoints": 1,
    "forget_checkpoints": 1,
    "batch": 2,
    "batch_delete": 1,
    "foreign_commit": 2,
    "foreign_column": 2,
    "undo": 2,
}
MOMENTS = [
    "batch_started",
    "instant_requested",
    "bucket_assigned",
    "file_written",
    "instant_prepared",
    "instant_committed",
]
SEALING = ["checkpoint_sealed", "instant_requested", "instant_prepared", "instant_committed"]
FAULTS = ["lose_success", "kill_writer", "crash_after_files", "crash_before_commit"]
IDS = ["a", "\uffee", "\U0001f600", "\ue000", "é", "e\u0301", "k\0", "x,y:1", "_", " "]
SUBS = [None, "", "z", "\U0010ffff", "null", "id:1"]
PARTITIONS = [None, "", "p", "ü\U0001f600"]
LATE, DELETED, TIED, BATCH, FOREIGN = range(5)
LOGS = 10_000  # from this number on, tables are merge-on-read
APPENDING = {"hoodie_nb.append.above.bytes": 0, "hoodie.compact.inline.max.delta.commits": 4}
Row = dict[str, Any]


class Model:
    """A table as a dict: the greatest ordering value of a key counts, of equal ones the newest."""

    def __init__(self, *, composite: bool, partitioned: bool, by_time: bool) -> None:
        self._names = ["id", "sub"] if composite else ["id"]
        self._partitioned, self._by_time = partitioned, by_time
        self._log: list[tuple[str | None, list[Row], bool]] = []
        self.rows: dict[tuple[Any, ...], Row] = {}

    def _at(self, row: Row) -> tuple[Any, ...]:
        """Return the identity of a row's record: a null partition and an empty one are the same."""
        partition = (row["part"] or "") if self._partitioned else ""
        return (partition, *(row[name] for name in self._names))

    def write(self, rows: list[Row], commit: str | None = None, *, keys: bool = False) -> None:
        """Apply rows of the stream, or of a commit that is not the stream's, in order.

        `keys`: the keys are deleted, whatever the ordering values.
        """
        self._log.append((commit, rows, keys))
        self._apply(rows, keys=keys)

    def withdraw(self, commits: set[str]) -> bool:
        """Forget what these commits wrote; return whether any was not the stream's."""
        kept = [entry for entry in self._log if entry[0] not in commits]
        lost, self._log, self.rows = len(kept) < len(self._log), kept, {}
        for _, rows, keys in kept:
            self._apply(rows, keys=keys)
        return lost

    def _apply(self, rows: list[Row], *, keys: bool) -> None:
        """Apply rows in order; a delete is forgotten, so that a later row may be older."""
        for row in rows:
            if keys:
                self.rows.pop(self._at(row), None)
                continue
            at, stored = self._at(row), self.rows.get(self._at(row))
            if stored and self._by_time and rank(row["ts"]) < rank(stored["ts"]):
                continue
            if row["_hoodie_is_deleted"]:
                self.rows.pop(at, None)
            else:
                self.rows[at] = {n: v for n, v in row.items() if n != "_hoodie_is_deleted"}

    def snapshot(self, columns: list[str]) -> list[str]:
        """Return the rows in the form of `canonical`."""
        return canonical({n: row.get(n) for n in columns} for row in self.rows.values())


class History:
    """One random history on one table, a function of its number except for the moments of kills."""

    def __init__(self, spark: SparkSession, folder: Path, number: int) -> None:
        self.random, self.spark, self.folder = random.Random(number), spark, folder
        self.verbs: list[str] = []
        composite, partitioned = self.random.random() < 0.5, self.random.random() < 0.8
        self.by_time = self.random.random() < 0.8
        self.model = Model(composite=composite, partitioned=partitioned, by_time=self.by_time)
        self.logs = number >= LOGS
        ordering = pa.float64() if number % 2 and not self.logs else pa.int64()
        text = pa.string()
        fields = [("id", text), ("sub", text), ("part", text), ("ts", ordering), ("v", pa.int64())]
        self.schema = pa.schema(fields)
        self.given = self.schema.append(pa.field("_hoodie_is_deleted", pa.bool_()))
        self.table = hn.Table.create(
            folder / "table",
            schema=self.schema,
            record_key=["id", "sub"] if composite else "id",
            partition_by="part" if partitioned else None,
            ordering="ts",
            merge_mode="event_time" if self.by_time else "commit_time",
            hive_style=self.random.random() < 0.3,
            url_encode=self.random.random() < 0.3,
            options=OPTIONS | (APPENDING if self.logs else {}),
            table_type="merge_on_read" if self.logs else "copy_on_write",
        )
        self.source = FolderSource(folder / "source", self.given)
        self.checkpoints = folder / "checkpoints"
        self.ts, self.value, self._kind = 1000, 0, LATE
        self.job: Any = None
        self.inserts = number % 5 == 4
        self.undone: set[str] = set()
        self.follower = Follower()

    # --- rows -----------------------------------------------------------------------------------

    def rows(self, classes: list[int], *, deletes: bool = False) -> list[Row]:
        """Return a few rows of these classes of keys, the ordering values unique to the writer.

        Every third row belongs to the record before it: null and empty partition are the same.
        """
        made: list[Row] = []
        for _ in range(self.random.randint(1, 16)):
            kind, own = self.random.choice(classes), self.random.randrange(5)
            row: Row = {"id": f"{self.random.choice(IDS)}{own}", "sub": self.random.choice(SUBS)}
            row["part"] = self.random.choice(PARTITIONS)
            if made and self.random.random() < 0.3:
                kind, last = self._kind, made[-1]
                row = {"id": last["id"].rpartition("#")[0], "sub": last["sub"]}
                row["part"] = {None: "", "": None}.get(last["part"], last["part"])
            self._kind = kind
            self.value += 1
            inserted = self.inserts and TIED in classes  # no upsert has such a key
            row["id"] += f"#n{self.value}" if inserted else f"#{kind}"
            gone = kind == DELETED and not self.inserts and self.random.random() < 0.3
            row |= {"ts": self._ts(kind, classes), "v": self.value}
            made.append({**row, "_hoodie_is_deleted": True if deletes or gone else None})
        return made

    def _ts(self, kind: int, classes: list[int]) -> int | float | None:
        """Return an ordering value that no row of another writer has."""
        self.ts += 3
        if kind == TIED and self.random.random() < 0.5:
            nan = [float("nan")] if self.schema.field("ts").type == pa.float64() else []
            null = [] if self.logs else [None]  # a bad row there
            return self.random.choice([*null, *nan, 1000])
        late = kind == LATE and self.random.random() < 0.4
        streamed = TIED in classes
        return self.ts - 3 * late * self.random.randrange(200) - (0 if streamed else 1)

    def _streamed(self) -> None:
        """Add the rows of one more micro-batch."""
        rows = pa.Table.from_pylist(self.rows([LATE, DELETED, TIED]), schema=self.given)
        self.source.add(rows)
        self.model.write(rows.to_pylist())

    # --- the verbs ------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one random verb."""
        verb = self.random.choices(list(VERBS), list(VERBS.values()))[0]
        self.verbs.append(verb)
        getattr(self, f"_{verb}")()

    def _feed(self) -> None:
        """Add one to three micro-batches."""
        for _ in range(self.random.randint(1, 3)):
            self._streamed()
        self._running()

    def _running(self) -> Any:
        if self.job is None or not self.job.active:
            self.job = self._started("0 seconds")
        return self.job

    def _started(self, trigger: str) -> Any:
        draw = self.random.choice
        settings = {
            "pipeline": draw(["current", "step1", "step2", "step3", "direct", "auto", "auto"]),
            "index": draw(["bloom", "bloom+state"]),
            "commit_interval": draw([None, 2, 3, 1000, "1 second", "background"]),
            "write_tasks": draw([1, 2, 4]),
            "placement": draw(["executors", "driver", "auto", "auto"]),
        }
        if settings["placement"] == "driver":
            settings["pipeline"] = draw(["step2", "step3", "direct", "auto"])
        if self.logs and settings["pipeline"] == "current":
            settings["pipeline"] = "direct"
        if self.inserts:
            settings |= {"operation": "insert", "commit_interval": None}
        if settings["commit_interval"] is None and draw([True, False, False]):
            settings["commit_on"] = "write"
        self.verbs.append("(" + " ".join(f"{v}" for v in settings.values() if v) + ")")
        settings |= {"checkpoint": str(self.checkpoints), "trigger": trigger}
        stream = self._widened(self.source.stream(self.spark))
        return hn.write_stream(stream, self.table, **settings)

    def _widened(self, data: DataFrame) -> DataFrame:
        """Return data with nulls in the columns that another engine has added."""
        added = self.table.schema.names[len(self.schema) :]
        return data.withColumns({name: F.lit(None) for name in added})

    def _process(self) -> None:
        self._running().process_all_available()
        self.look()

    def _stop(self) -> None:
        job, self.job = self.job, None
        try:
            if job is not None:
                job.stop()
        except hn.WriteFailed:  # stopped between a batch's failure and its second attempt
            assert job.events.records("fault_injected")

    def _kill(self) -> None:
        """Kill the job at some event of the next micro-batches."""
        reached, job = threading.Event(), self._running()
        moment = self.random.choice(SEALING if job.settings.interval else MOMENTS)
        self.verbs.append(moment)
        job.events.listen(lambda event: reached.set() if event.kind == moment else None)
        self._streamed()
        reached.wait(2)
        job.kill()
        self.job = None

    def _fault(self) -> None:
        """Inject a fault from which the job recovers by itself."""
        fault = self.random.choice(FAULTS)
        self.verbs.append(fault)
        hn.faults.inject(self._running(), fault)
        self._feed()

    def _restore_checkpoints(self) -> None:
        """Continue for a while, then restore the earlier checkpoint folder."""
        self._stop()
        if self.inserts or not self.checkpoints.exists():
            return
        kept = self.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.checkpoints, kept)
        self._feed()
        self.random.choice([self._process, self._kill])()
        self._stop()
        shutil.rmtree(self.checkpoints)
        kept.rename(self.checkpoints)

    def _forget_checkpoints(self) -> None:
        """Delete the checkpoint folder: the source is read again from its start."""
        self._stop()
        if not self.inserts:
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def _batch(self) -> None:
        rows = self.rows([BATCH, LATE] if self.by_time else [BATCH])
        commit = self.table.upsert(self._widened(self._frame(rows)))
        if commit is not None:  # else all were late, and the model does not change
            written = pa.Table.from_pylist(rows, schema=self.given).to_pylist()
            self.model.write(written, commit.requested_time)

    def _frame(self, rows: list[Row]) -> DataFrame:
        given = FolderSource(self.folder / f"batch{self.value}", self.given)
        given.add(pa.Table.from_pylist(rows, schema=self.given))
        return given.batch(self.spark)

    def _batch_delete(self) -> None:
        """Delete keys, given only the keys."""
        rows = self.rows([BATCH], deletes=True)
        commit = self.table.delete(self._frame(rows).select("id", "sub", "part"))
        if commit is not None:
            self.model.write(rows, commit.requested_time, keys=True)

    def _foreign_commit(self) -> None:
        """Commit from another engine, which does not update our index."""
        self._commit_elsewhere(self.table.schema)

    def _foreign_column(self) -> None:
        """Let another engine add a column, with values in it."""
        name = f"extra{len(self.table.schema)}"
        self._commit_elsewhere(self.table.schema.append(pa.field(name, pa.int64())))

    def _commit_elsewhere(self, schema: pa.Schema) -> None:
        added = schema.names[len(self.schema) :]
        drawn = self.rows([LATE, FOREIGN] if self.by_time else [FOREIGN])
        rows = [{**row, "ts": row["ts"] - 1, **dict.fromkeys(added, row["v"])} for row in drawn]
        handle = open_table(self.table.path)
        with writing(handle.storage):
            intake = Intake(handle.config, schema)
            data, shape = pa.Table.from_pylist(rows, schema=schema), Shape(index="bloom")
            keyed = keyed_in_order(data, intake)
            coordinator = WriteCoordinator(handle, EventLog())
            result = write_uncommitted(
                coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog()), shape
            )
            coordinator.complete([result], intake)
        rows = [{**row, "_hoodie_is_deleted": None} for row in data.to_pylist()]
        self.model.write(rows, result.instant_time)

    def _undo(self) -> None:
        """Undo one to three commits beside a reader; the stream goes back as its error says."""
        self.random.choice([self._stop, self._kill])()
        before, count = self._commits(), self.random.randint(1, 3)
        lazy, rows = self.table.to_spark(self.spark), len(self.table.to_arrow())
        try:
            if count > 1 and len(before) > count:
                self.table.restore(before[-count - 1])
            else:
                self.table.rollback()
        except hn.InvalidConfig as error:
            refused = ["can be read is", "archived", "no completed commit", "only merged"]
            refused.append("is not the newest commit")  # checkpoints that wait came first
            assert any(text in str(error) for text in refused), error
            return
        with contextlib.suppress(
            PySparkException, Py4JJavaError
        ):  # a file is gone, or the job fails for it
            assert lazy.count() == rows, "a reader beside an undo sees a part"
        self.undone |= {*before} - {*self._commits()}
        if self.model.withdraw(self.undone) and not self.inserts:
            self._take_back(self._last_with_rows())
        self._continue()

    def _commits(self) -> list[str]:
        handle = open_table(self.table.path)
        return [i.requested_time for i in handle.timeline.completed_commits()]

    def _continue(self) -> None:
        """Process all input; the first start may be refused, and says what to do."""
        try:
            self._process()
        except hn.InvalidTable as error:
            named = re.search(r"above (\d+), the last batch in the table", str(error))
            assert named or "new checkpoint folder" in str(error), error
            self.verbs.append("refused")
            self.job = None
            self._take_back(int(named[1]) if named else -1)
            self._process()

    def _take_back(self, last: int) -> None:
        """Delete what the checkpoint folder knows about the batches after one."""
        if last < 0:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        for file in [
            f for name in ("offsets", "commits") for f in self.checkpoints.glob(f"{name}/*")
        ]:
            if file.name.isdigit() and int(file.name) > last:
                file.unlink()

    def _last_with_rows(self) -> int:
        """Return the last batch whose rows are in a commit of the table, or in an archived one.

        A batch that changed nothing, because the rows that are undone now were newer, counts as
        applied: it has to be sent again.
        """
        metadata = self.checkpoints / "metadata"
        if not metadata.exists():
            return -1
        handle = open_table(self.table.path)
        listing = handle.timeline.listing
        start = handle.timeline.start(listing)
        records = ProgressRecords(handle.storage, handle.rules)
        entries = records.entries(json.loads(metadata.read_text())["id"])
        newest = {entry.batch_id: entry.instant_time or "" for entry in entries}
        return max(
            (n for n, t in newest.items() if t in listing.commit_times or "" < t < start),
            default=-1,
        )

    # --- what must hold -------------------------------------------------------------------------

    def look(self) -> None:
        """All input is processed and visible: the table equals the model, for hudi-rs too."""
        columns = self.table.schema.names
        expected = self.model.snapshot(columns)
        found = without_meta(self.table.to_arrow())
        assert found == expected, _difference(found, expected)
        self.verbs.append(self.follower.follow(open_table(self.table.path), self.undone))
        if expected:
            assert hudi_rows(self.table.path) == expected, "hudi-rs reads other rows"

    def finish(self) -> None:
        """End with all input processed; there are no leftovers and no findings."""
        self._stop()
        job = self._started("available_now")
        assert job.wait(WAIT_S), "the job has not ended"
        self.look()
        assert [str(finding) for finding in self.table.fsck()] == []
        path = Path(self.table.path, ".hoodie/.hoodie_nb")
        left = [str(e) for name in ("staged", "prepared", "sealed") for e in path.glob(f"{name}/*")]
        handle = open_table(self.table.path)
        assert left == [] and handle.timeline.pending() == []
        assert index_gaps(handle) == []

    def abandon(self) -> None:
        """End the job of a failed history."""
        with contextlib.suppress(BaseException):
            self.job.kill()


def _difference(found: list[str], expected: list[str]) -> str:
    more, less = sorted(set(found) - set(expected))[:3], sorted(set(expected) - set(found))[:3]
    return f"{len(found)} rows, not {len(expected)}: too much {more}, missing {less}"


def run(spark: SparkSession, number: int, steps: int = STEPS) -> list[str]:
    """Run one history and return its verbs; the error of a failed one contains number and verbs."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        history = History(spark, Path(folder), number)
        try:
            for _ in range(steps):
                history.step()
            history.finish()
        except BaseException as error:
            history.abandon()
            text = f"Spark history {number} ({steps} steps): {' '.join(history.verbs)}"
            raise AssertionError(f"{text}\n{type(error).__name__}: {error}") from error
        return history.verbs


def main(count: int, first: int = 0) -> int:
    """Run `count` histories; return how many failed."""
    began, failed = time.monotonic(), 0
    spark = hn.spark(cores=2, memory="1g")
    for number in range(first, first + count):
        try:
            run(spark, number)
        except AssertionError as error:
            failed += 1
            print(error, flush=True)
        done = number - first + 1
        if done % 10 == 0 or done == count:
            seconds = time.monotonic() - began
            print(f"{done} Spark histories, {failed} failed, {seconds:.0f} s", flush=True)
    spark.stop()
    return failed


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    sys.exit(min(main(int(sys.argv[1]), int([*sys.argv, "0"][2])), 1))
