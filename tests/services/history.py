"""One random history of writes, services and crashes inside them, against a dict.

Two objects have the table open and act in turn, as two processes do. An action may die at one of
its failpoints: nothing it does later reaches the disk, and its process is replaced. After each
action our reader and hudi-rs see the dict's rows, also as of earlier commits; once a later action
has recovered the table, nothing is pending, `fsck` finds nothing, and the index is right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
from core.faults import Crash, Fault, FaultyStorage
from core.tables import (
    Model,
    hudi_rows,
    pending_names,
    schema_of,
    timeline_names,
    without_meta,
)
from index_truth import index_gaps
from services.shape import Shape, points

from hoodie_nb import Table, failpoints
from hoodie_nb.clock import SystemClock
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.table import properties
from hoodie_nb.table.handle import TableHandle

SCHEMA = schema_of()
KEYS = 30
Row = dict[str, Any]
_RECOVERING = ("upsert", "insert", "delete", "overwrite", "compact", "clean", "archive", "recover")


class ServiceHistory:
    """A table, its model, and the model after each of its commits."""

    weights: ClassVar[dict[str, int]] = {
        **{"upsert": 6, "insert": 1, "delete": 2, "overwrite": 1, "compact": 3, "clean": 2},
        **{"save": 2, "unsave": 1, "restore": 3},
    }

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw, self.number = random.Random(f"services {seed}"), 0
        self.shape = Shape.of(seed, self.draw)
        self.path = folder / f"t{seed}"
        Table.create(
            self.path,
            schema=SCHEMA,
            record_key="id",
            partition_by="p" if self.shape.partitioned else None,
            ordering=self.shape.ordering,
            hive_style=self.shape.hive_style,
            table_version=self.shape.version,
            options=self.shape.options,
        )
        self.tables = [self.opened(), self.opened()]
        self.model, self.states = Model(ordering=self.shape.ordering), dict[str, Model]()
        self.saved = set[str]()
        self.operations: list[str] = []
        self.counts, self.crashes = Counter[str](), Counter[str]()
        self.dirty = False  # a crash has left work to recover
        self.between: list[list[str]] = []  # a pending restore: what readers may see
        self.upsert(self.tables[0])
        self.look()

    def opened(self) -> Table:
        """Return the table as a new process has it open."""
        storage = FaultyStorage(self.path)
        return Table(TableHandle(storage, SystemClock(), properties.load(storage)))

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one random action, which may die, and look."""
        names = dict(self.weights)
        if self.shape.version == 6:
            names["archive"] = 2
        name = self.draw.choices(list(names), list(names.values()))[0]
        self.take("recover" if self.between else name)
        self.look()

    def take(self, name: str) -> None:
        """Run an action; half of them die if they get as far as the moment that is chosen."""
        at = self.draw.randrange(2)
        table = self.tables[at]
        words = self.doom(name, table) if self.draw.random() < 0.5 else ""
        self.operations.append(f"{name}{words}")
        try:
            getattr(self, name)(table)
        except Crash:
            assert dead(table)
        finally:
            failpoints.arm("")
            storage_of(table).fault = None
        self.counts[name] += 1
        if dead(table):
            self.crashes[name] += 1
            self.tables[at], self.dirty = self.opened(), True
        elif name in _RECOVERING:
            self.dirty, self.between = False, []

    def doom(self, name: str, table: Table) -> str:
        """Let an action die at a failpoint, or at an operation on the disk; return which."""
        if self.draw.random() < 0.5:
            storage, number = storage_of(table), self.draw.randint(1, 30)
            how = self.draw.choice(["before", "after", "torn"])
            storage.fault = Fault(storage.steps + number, how)
            return f"!{how}@{number}"
        point, hit = self.draw.choice(points(name)), self.draw.choice([1, 1, 1, 2])
        failpoints.call(point, lambda: die(table), hit)
        return f"!{point}@{hit}"

    def rows(self, keys: list[int]) -> list[Row]:
        """Return new rows of these keys, a few of them late."""
        self.number += 1
        late = self.draw.choice([0, 0, 0, 3])
        ts, v = self.number - late, self.number
        return [{"id": f"k{k}", "p": "abc"[k % 3], "ts": ts, "v": 100 * v + k} for k in keys]

    def some(self, most: int = 8) -> list[int]:
        """Return some keys."""
        return self.draw.sample(range(KEYS), self.draw.randint(1, most))

    def write(self, change: Callable[[Model], None], call: Callable[[], object]) -> None:
        """Call a write; the model changes if the timeline has another commit, which counts."""
        after, before = self.model.copy(), self.commits()
        change(after)
        try:
            call()
        except Crash:
            pass
        else:
            assert self.commits() != before or after.snapshot() == self.model.snapshot()
        self.committed(after, before)

    def committed(self, after: Model, before: set[str]) -> None:
        """Take note of the state after a new commit, if there is one."""
        new = self.commits() - before
        assert len(new) <= 1
        for time17 in new:
            self.model, self.states[time17] = after, after.copy()

    def commits(self) -> set[str]:
        """Return the times of the completed commits, by the names on the timeline."""
        return {n[:17] for n in timeline_names(self.path) if n.endswith(("commit",))}

    def upsert(self, table: Table) -> None:
        """Write rows of any keys."""
        rows = self.rows(self.some())
        self.write(lambda m: m.upsert(rows), lambda: table.upsert(arrow(rows)))

    def insert(self, table: Table) -> None:
        """Write rows of new keys."""
        held = {key for _, key in self.model.rows}
        rows = self.rows([k for k in self.some(10) if f"k{k}" not in held] or [KEYS + self.number])
        self.write(lambda m: m.upsert(rows), lambda: table.insert(arrow(rows)))

    def delete(self, table: Table) -> None:
        """Delete keys, some of which may not exist."""
        rows = [{"id": row["id"], "p": row["p"]} for row in self.rows(self.some(5))]
        self.write(lambda m: m.delete(rows), lambda: table.delete(pa.Table.from_pylist(rows)))

    def overwrite(self, table: Table) -> None:
        """Replace whole partitions, or the table."""
        rows = self.rows(self.some())
        parts = {row["p"] for row in rows}
        whole = self.draw.random() < 0.2 or not self.shape.partitioned

        def change(model: Model) -> None:
            kept = {} if whole else {a: r for a, r in model.rows.items() if a[0] not in parts}
            model.rows = kept
            model.upsert(rows)

        scope = "table" if whole else "partitions"
        self.write(change, lambda: table.insert_overwrite(arrow(rows), scope=scope))

    def compact(self, table: Table) -> None:
        """Merge small files, which changes no row."""
        self.write(lambda m: None, table.compact_small_files)

    def clean(self, table: Table) -> None:
        """Clean by hand."""
        table.clean(commits=self.draw.randint(1, 4))

    def archive(self, table: Table) -> None:
        """Archive by hand."""
        table.archive()

    def recover(self, table: Table) -> None:
        """Recover, which completes a pending restore."""
        table.repair()

    def save(self, table: Table) -> None:
        """Create a savepoint of a commit, unless its files are gone."""
        time17 = self.draw.choice(sorted(self.states)[-8:])
        try:
            table.savepoint(time17)
            self.saved.add(time17)
        except Crash:
            self.saved |= self.savepoints() & {time17}
        except InvalidConfig as error:
            why = ("has a savepoint", *self.gone(time17))
            assert any(text in str(error) for text in why), error
        assert self.savepoints() == self.saved

    def unsave(self, table: Table) -> None:
        """Delete a savepoint."""
        if not self.saved:
            return
        time17 = self.draw.choice(sorted(self.saved))
        try:
            table.delete_savepoint(time17)
            self.saved.discard(time17)
        except Crash:
            self.saved &= self.savepoints() | (self.saved - {time17})
        assert self.savepoints() == self.saved

    def savepoints(self) -> set[str]:
        """Return the times of the completed savepoints, by the names on the timeline."""
        return {n[:17] for n in timeline_names(self.path) if n.endswith(".savepoint")}

    def restore(self, table: Table) -> None:
        """Restore to a commit, unless that is refused, which the model confirms."""
        to = self.draw.choice(sorted(self.states)[-6:])
        later, before = {t for t in self.states if t > to}, self.restores()
        try:
            plan = table.restore(to, dry_run=True)
            done = table.restore(to)
            assert (plan.commits, plan.files) == (done.commits, done.files)
            assert {commit.requested_time for commit in done.commits} == later
            assert not any((self.path / file).exists() for file in done.files)
            self.counts["restored"] += 1
        except Crash:
            if self.restores() == before:
                return
            if any("restore" in name for name in pending_names(self.path)):
                self.between = [state.snapshot() for t, state in self.states.items() if t >= to]
        except InvalidConfig as error:
            gone = any(text in str(error) for text in self.gone(to))
            assert gone or not later or self.saved & later, error
            return
        self.states = {t: state for t, state in self.states.items() if t <= to}
        self.model = self.states[to].copy()

    def restores(self) -> set[str]:
        """Return the times of the restores on the timeline, in any state."""
        return {n[:17] for n in timeline_names(self.path) if ".restore" in n}

    def gone(self, time17: str) -> tuple[str, ...]:
        """Return the reasons why a commit may be refused that is too old."""
        archived = time17 < min(self.commits())
        unknown = "it is not known whether all files"  # a clean was archived
        return ("cleaned away", unknown, *["not a completed commit"] * archived)

    # --- what must hold ---------------------------------------------------------------------------

    def look(self) -> None:
        """Compare both readers with the model; if nothing is to be recovered, the rest, too."""
        seen = [without_meta(table.to_arrow()) for table in self.tables]
        seen.append(hudi_rows(self.path))
        allowed = self.between or [self.model.snapshot()]
        assert seen[0] == seen[1] == seen[2], f"readers differ: {seen}"
        assert seen[0] in allowed, f"{seen[0]} instead of {allowed}"
        if not self.between:
            self.look_back()
        if not self.dirty:
            self.look_at_rest()

    def look_back(self) -> None:
        """Compare a few earlier commits with the model, if they can still be read."""
        table = self.draw.choice(self.tables)
        for time17 in self.draw.sample(sorted(self.states), min(3, len(self.states))):
            try:
                rows = without_meta(table.to_arrow(as_of=time17))
            except InvalidConfig as error:
                assert any(text in str(error) for text in self.gone(time17)), error
                assert time17 not in self.saved
                continue
            wanted = self.states[time17].snapshot()
            assert rows == wanted == hudi_rows(self.path, time17), f"as of {time17}"

    def look_at_rest(self) -> None:
        """Nothing is pending, no file is lost, stray or wrong, and the index finds all keys."""
        pending = pending_names(self.path)
        assert pending == [], f"pending: {pending}"
        assert [str(finding) for finding in self.tables[0].fsck()] == []
        assert index_gaps(self.tables[1]._handle) == []

    def finish(self) -> None:
        """Recover, look, and write once more."""
        for name in ("recover", "upsert"):
            getattr(self, name)(self.tables[0])
            self.dirty, self.between = False, []
            self.look()


def storage_of(table: Table) -> FaultyStorage:
    """Return the storage of a table's process."""
    return cast(FaultyStorage, table._handle.storage)


def die(table: Table) -> None:
    """End the process of a table: nothing that it does later reaches the disk."""
    storage_of(table).dead = True
    raise Crash("at a failpoint")


def dead(table: Table) -> bool:
    """Whether the process of a table has died."""
    return storage_of(table).dead


def arrow(rows: list[Row]) -> pa.Table:
    """Return rows as an Arrow table."""
    return pa.Table.from_pylist(rows, SCHEMA)
