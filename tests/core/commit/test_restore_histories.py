"""Random histories of writes, savepoints, cleans and restores: a dict, our reader and hudi-rs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from index_truth import index_gaps
from tables import Model, hudi_rows, pending_names, upgrade, without_meta
from test_clean_plan import SCHEMA, make

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig


class History:
    """A table, its model, and the model after each of its commits."""

    def __init__(self, path: Path, seed: int) -> None:
        self.draw, self.number = random.Random(seed), 0
        retained = self.draw.randint(2, 6)
        options = {"hoodie.clean.commits.retained": retained}
        if seed % 3 == 0:  # many file groups
            options |= {"hoodie.parquet.small.file.limit": 0}
        if seed % 4 == 0:  # the oldest commits leave the timeline
            options = {"hoodie.clean.commits.retained": 2}
            options |= {"hoodie.keep.min.commits": 4, "hoodie.keep.max.commits": 5}
        self.tables = [make(path, **options)]
        self.model, self.states = Model(), dict[str, Model]()
        self.saved, self.counts = set[str](), dict[str, int]()
        self.upsert()
        if seed % 2:
            upgrade(path, self.draw.choice([8, 9]))
        self.tables.append(Table.open(path))  # each sees what the other one does

    @property
    def table(self) -> Table:
        """Return one of the objects that have the table open."""
        return self.draw.choice(self.tables)

    def rows(self) -> list[dict[str, object]]:
        """Return new rows of some keys."""
        self.number += 1
        keys = self.draw.sample(range(12), self.draw.randint(1, 6))
        return [{"id": f"k{k}", "p": "abc"[k % 3], "ts": self.number} for k in keys]

    def committed(self) -> None:
        """Note the state after a commit, if there was one."""
        newest = self.table.history()["requested_time"].iloc[-1]
        self.states.setdefault(newest, self.model.copy())

    def upsert(self) -> None:
        """Write rows with new values."""
        rows = self.rows()
        self.model.upsert(rows)
        self.table.upsert(pa.Table.from_pylist(rows, SCHEMA))
        self.committed()

    def delete(self) -> None:
        """Delete keys, some of which may not exist."""
        rows = [{"id": row["id"], "p": row["p"]} for row in self.rows()]
        self.model.delete(rows)
        self.table.delete(pa.Table.from_pylist(rows))
        self.committed()

    def overwrite(self) -> None:
        """Replace whole partitions."""
        rows = self.rows()
        parts = {row["p"] for row in rows}
        self.model.rows = {at: row for at, row in self.model.rows.items() if at[0] not in parts}
        self.model.upsert(rows)
        self.table.insert_overwrite(pa.Table.from_pylist(rows, SCHEMA))
        self.committed()

    def compact(self) -> None:
        """Merge small files, which changes no row."""
        self.table.compact_small_files()
        self.committed()

    def save(self) -> None:
        """Create a savepoint of a commit, unless its files are gone."""
        time17 = self.draw.choice(sorted(self.states))
        try:
            self.table.savepoint(time17)
            self.saved.add(time17)
        except InvalidConfig as error:
            why = ("has a savepoint", *self.gone(time17))
            assert any(text in str(error) for text in why)

    def unsave(self) -> None:
        """Delete a savepoint."""
        if self.saved:
            gone = self.draw.choice(sorted(self.saved))
            self.saved.discard(gone)
            self.table.delete_savepoint(gone)

    def clean(self) -> None:
        """Clean by hand."""
        self.table.clean(commits=self.draw.randint(1, 4))

    def restore(self) -> None:
        """Restore to a commit, unless that is refused."""
        self.restore_to(self.draw.choice(sorted(self.states)[-6:]))

    def restore_to(self, to: str) -> None:
        """Restore to a commit, unless that is refused, which the model confirms."""
        later = [time17 for time17 in self.states if time17 > to]
        try:
            plan = self.table.restore(to, dry_run=True)
            done = self.table.restore(to)
        except InvalidConfig as error:
            self.count(str(error))
            gone = any(text in str(error) for text in self.gone(to))
            assert gone or not later or self.saved & {*later}
            return
        self.count("restored")
        assert (plan.commits, plan.files) == (done.commits, done.files)
        assert sorted(commit.requested_time for commit in done.commits) == sorted(later)
        assert not any(Path(done_path).exists() for done_path in self.paths(done.files))
        self.states = {t: state for t, state in self.states.items() if t <= to}
        self.model = self.states[to].copy()

    def gone(self, time17: str) -> tuple[str, ...]:
        """Return the reasons why a commit may be refused that is too old."""
        archived = time17 < self.table.history()["requested_time"].iloc[0]
        return ("cleaned away", *["not a completed commit"] * archived)

    def paths(self, files: tuple[str, ...]) -> list[str]:
        """Return the full paths of files of the table."""
        return [f"{self.tables[0].path}/{file}" for file in files]

    def count(self, what: str) -> None:
        """Count the outcomes of restores."""
        for kind in ("nothing to undo", "have savepoints", "cleaned away", "restored"):
            self.counts[kind] = self.counts.get(kind, 0) + (kind in what)

    def check(self) -> None:
        """Both readers see the model; so do savepoints; the index and the files are right."""
        assert [*map(lambda t: without_meta(t.to_arrow()), self.tables)] == [
            self.model.snapshot()
        ] * 2
        path = self.tables[0].path
        assert hudi_rows(path) == self.model.snapshot()
        for time17 in self.draw.sample(sorted(self.states), min(3, len(self.states))):
            state = self.states[time17]
            try:
                rows = without_meta(self.table.to_arrow(as_of=time17))
            except InvalidConfig as error:
                known = "it is not known whether all files"  # a clean was archived
                assert any(text in str(error) for text in (known, *self.gone(time17)))
                assert time17 not in self.saved
                continue
            assert rows == state.snapshot() == hudi_rows(path, time17)
        assert pending_names(path) == [] and self.table.fsck() == []
        assert index_gaps(self.tables[0]._handle) == []


@pytest.mark.parametrize("seed", range(12))
def test_random_restores_give_the_state_of_the_model(tmp_path: Path, seed: int) -> None:
    """After each action the table, every earlier snapshot and the index are those of the model."""
    history = History(tmp_path / "t", seed)
    steps: list[Callable[[], None]] = [history.upsert] * 5 + [history.restore] * 3
    steps += [history.delete, history.overwrite, history.save, history.unsave, history.clean]
    steps += [history.compact] * 2
    for _ in range(18):
        history.draw.choice(steps)()
        history.check()
    history.upsert()
    before = max(history.states)
    history.upsert()
    history.restore_to(before)
    history.check()
    assert history.counts["restored"] >= 1
