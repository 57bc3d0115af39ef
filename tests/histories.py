"""Random histories of a job: verbs in any order against a dict, for each pipeline of the RFC."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from hoodie_nb.clock import ManualClock
from hoodie_nb.pipeline.local import LocalJob
from hoodie_nb.table.fsck import fsck
from hoodie_nb.table.handle import TableHandle, create_table, open_table
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.read import to_arrow

SCHEMA = pa.schema(
    [("id", pa.string()), ("part", pa.string()), ("ts", pa.int64()), ("v", pa.int64())]
)
CONFIG = TableConfig("t", ("id",), ("part",), "ts", merge_mode="event_time", schema=SCHEMA)
VERBS = {
    "write": 8,
    "checkpoint": 4,
    "eager": 2,
    "complete": 4,
    "lose": 2,
    "fail": 2,
    "task_fails": 1,
    "failover": 1,
    "restart": 1,
}


@dataclass
class Model:
    """What the table must hold: per key the row with the greatest ts, the newest of equal ones."""

    rows: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def write(self, batch: pa.Table) -> None:
        """Apply rows in order."""
        for row in batch.to_pylist():
            key = (row["part"], row["id"])
            deleted = row.get("_hoodie_is_deleted")
            if key not in self.rows or row["ts"] >= self.rows[key][0]:
                self.rows[key] = (row["ts"], -1 if deleted else row["v"])

    def snapshot(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the rows that are not deleted."""
        return {key: row for key, row in self.rows.items() if row[1] >= 0}


class History:
    """One random history on one table."""

    def __init__(self, folder: Path, pipeline: str, seed: int) -> None:
        self.random, self.pipeline, self.model = random.Random(seed), pipeline, Model()
        self.clock, self.path, self.folder = ManualClock(), folder / "table", folder
        options = {"hoodie.parquet.small.file.limit": 4000, "hoodie.parquet.max.file.size": 6000}
        options |= {"write.batch.size": 2000, "write.task.max.size": 6000}
        options |= {"hoodie.copyonwrite.record.size.estimate": 300}
        create_table(self.path, CONFIG, options=options, clock=self.clock)
        self.job = self._job()
        self.number, self.ts, self.verbs = 0, 1000, []
        self.unfinished: list[int] = []

    def _job(self) -> LocalJob:
        table: TableHandle = open_table(self.path, self.clock)
        return LocalJob(table, pipeline=self.pipeline, index="bloom")

    def rows(self) -> pa.Table:
        """Return a few rows: new and known keys, late ones, deletes (never late)."""
        made = []
        for _ in range(self.random.randint(1, 12)):
            key = self.random.randrange(40)
            self.ts += 1
            late = key % 4 == 0 and self.random.random() < 0.4
            deleted = key % 4 == 1 and self.random.random() < 0.3
            ts = self.ts - self.random.randrange(200) if late else self.ts
            made.append((f"k{key:03d}", f"p{key % 3}", ts, self.ts, deleted))
        columns = list(zip(*made, strict=True))
        names = [*SCHEMA.names, "_hoodie_is_deleted"]
        return pa.Table.from_arrays([pa.array(c) for c in columns], names=names)

    def step(self) -> None:
        """Take one random verb."""
        verb = self.random.choices(list(VERBS), list(VERBS.values()))[0]
        self.verbs.append(verb)
        self.clock.ms += self.random.choice([0, 1, 1000, -500])
        getattr(self, f"_{verb}")()

    def _write(self) -> None:
        rows = self.rows()
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

    def _complete(self) -> None:
        if self.unfinished:
            self.job.complete(self.unfinished[-1])
            self.unfinished.clear()

    def _lose(self) -> None:
        if self.unfinished:
            self.job.lose(self.unfinished[-1])

    def _fail(self) -> None:
        self.unfinished.clear()

    def _task_fails(self) -> None:
        self.job.task_fails()

    def _failover(self) -> None:
        self.job.failover()

    def _restart(self) -> None:
        source, position = self.job.source, self.job._position
        self.job.task_fails()
        self.job = self._job()
        self.unfinished.clear()
        for rows in source[position:]:
            self.job.write(rows)

    def finish(self) -> None:
        """End with a checkpoint that completes, and compare with the model."""
        self._checkpoint()
        self._complete()
        found = to_arrow(self.job.table).to_pylist()
        assert len(found) == len({(r["part"], r["id"]) for r in found}), "a key twice"
        snapshot = {(r["part"], r["id"]): (r["ts"], r["v"]) for r in found}
        assert snapshot == self.model.snapshot()
        assert fsck(self.path) == []
