"""One random history of writes, services and crashes inside them, against a dict.

Two objects have the table open and act in turn, as two processes do. An action may die at one of
its failpoints: nothing it does later reaches the disk, and its process is replaced. After each
action our reader and hudi-rs see the dict's rows, also as of earlier commits; once a later action
has recovered the table, nothing is pending, `fsck` finds nothing, and the index is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from core.faults import Crash, Fault
from core.tables import (
    Model,
    commit_content,
    pending_names,
    timeline_folder,
    timeline_names,
    without_meta,
)
from history.beside import read_beside
from history.follower import Follower
from services.judged import SCHEMA, JudgedTable, storage_of
from services.shape import points

from hoodie_nb import Table, failpoints
from hoodie_nb.errors import InvalidConfig

KEYS = 30
Row = dict[str, Any]
_RECOVERING = (
    "upsert",
    "insert",
    "delete",
    "overwrite",
    "compact",
    "fold",
    "clean",
    "archive",
    "recover",
)

_MERGING = ("compact", "fold")  # without work they leave what a writer has staged


class ServiceHistory(JudgedTable):
    """A table, its model, and the model after each of its commits."""

    weights: ClassVar[dict[str, int]] = {
        **{"upsert": 6, "insert": 1, "delete": 2, "overwrite": 1, "compact": 3, "clean": 2},
        **{"save": 2, "unsave": 1, "restore": 3, "rollback": 2, "archive": 2, "follow": 2},
    }

    log_weights: ClassVar[dict[str, int]] = {"fold": 3}  # what only merge-on-read tables have

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.number = 0
        self.operations: list[str] = []
        self.counts, self.crashes = Counter[str](), Counter[str]()
        self.follower, self.undone = Follower(), set[str]()
        self.upsert(self.tables[0])
        self.look()

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one random action, which may die, and look."""
        weights = self.weights | (self.log_weights if self.shape.merge_on_read else {})
        name = self.draw.choices([*weights], [*weights.values()])[0]
        name = name if self.states else "upsert"  # its first commit was undone
        self.take("recover" if self.between else name)
        self.look()

    def take(self, name: str) -> None:
        """Run an action; half of them die if they get as far as the moment that is chosen."""
        at = self.draw.randrange(2)
        table = self.tables[at]
        words = self.doom(name, table) if self.draw.random() < 0.5 else ""
        before = self.commits()
        self.operations.append(f"{name}{words}")
        try:
            if name in ("rollback", "restore") and self.draw.random() < 0.5:
                self.read_meanwhile(lambda: self.act(name, table))
            else:
                self.act(name, table)
        except Crash:
            assert dead(table)
        finally:
            failpoints.arm("")
            storage_of(table).fault = None
        self.counts[name] += 1
        if dead(table):
            self.crashes[name] += 1
            self.tables[at], self.dirty = self.opened(), True
        elif name in _RECOVERING and not (name in _MERGING and self.commits() == before):
            self.dirty, self.between = False, []

    def act(self, name: str, table: Table) -> None:
        """Run an action."""
        getattr(self, name)(table)

    def read_meanwhile(self, act: Callable[[], None]) -> None:
        """Act while a reader lists: it sees the table as of one of its commits."""
        allowed = [[], self.model.snapshot(), *(m.snapshot() for m in self.states.values())]
        table, at = self.opened(), self.draw.randint(1, 6)
        found = read_beside(storage_of(table), at, act, lambda: without_meta(table.to_arrow()))
        assert found in allowed, f"a reader beside an undo ({at}) sees a state that never was"

    def follow(self, table: Table) -> None:
        """Let the follower read on."""
        self.counts[self.follower.follow(table._handle, self.undone - self.commits())] += 1

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
        assert len(new) <= 1 + self.shape.merge_on_read  # a compaction may come with the commit
        for time17 in new:
            self.model, self.states[time17] = after, after.copy()

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
        self.write(lambda m: None, table.cluster)

    def fold(self, table: Table) -> None:
        """Merge logs into base files, which changes no row."""
        self.write(lambda m: None, table.compact)

    def clean(self, table: Table) -> None:
        """Clean by hand."""
        table.clean(commits=self.draw.randint(1, 4))

    def archive(self, table: Table) -> None:
        """Archive by hand."""
        table.archive()

    def recover(self, table: Table) -> None:
        """Recover, which completes a pending restore."""
        table.fsck(repair=True)

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

    def rollback(self, table: Table) -> None:
        """Undo the newest commit, unless that is refused; the model says why it may be."""
        newest, before = max(self.commits()), self.rollbacks()
        try:
            plan = table.rollback(dry_run=True)
            done = table.rollback()
            assert (plan.commit, plan.files) == (done.commit, done.files)
            assert done.commit.requested_time == newest
            self.counts["undone"] += 1
        except Crash:
            if newest not in self.undoing(before):
                return
            self.dirty, held = True, {*self.states} - {newest}
            self.between = [self.states[t].snapshot() for t in sorted(self.states)[-2:]]
            if not held:
                self.between.append([])
        except InvalidConfig as error:
            reasons = ("changed no row", "has a savepoint", "was pending", "archived")
            assert any(text in str(error) for text in (*reasons, *self.gone(newest))), error
            return
        self.undo(newest)

    def undo(self, newest: str) -> None:
        """Take note that the newest commit is undone."""
        self.states.pop(newest)
        self.undone.add(newest)
        last = self.states[max(self.states)] if self.states else Model()
        self.model = last.copy()
        self.model.ordering = self.shape.ordering

    def undoing(self, before: set[str]) -> set[str]:
        """Return the commits that rollbacks by hand since then undo, by their plans."""
        found = set()
        for name in timeline_names(self.path):
            if name.endswith(".rollback.requested") and name[:17] not in before:
                file = timeline_folder(self.path) / name
                if b"hoodie_nb.completed" in file.read_bytes():
                    found.add(commit_content(file)["instantToRollback"]["commitTime"])
        return found

    def rollbacks(self) -> set[str]:
        """Return the times of the rollbacks on the timeline, in any state."""
        return {n[:17] for n in timeline_names(self.path) if ".rollback" in n}

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
            why = [*self.gone(to), *["a crash has left them"] * bool(self.crashes)]
            refused = any(text in str(error) for text in why)
            assert refused or not later or self.saved & later, error
            return
        self.states = {t: state for t, state in self.states.items() if t <= to}
        self.undone |= later
        self.model = self.states[to].copy()

    def finish(self) -> None:
        """Recover, look, and write once more."""
        for name in ("recover", "upsert"):
            self.act(name, self.tables[0])
            self.dirty, self.between = False, []
            self.look()


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
