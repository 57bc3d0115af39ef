"""Random histories of a table of version 8 or 9 with archiving and crashes, against a dict."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from archives import FEW, active, archived, listed
from faults import Crash
from tables import Model, hudi_rows, pending_names, without_meta
from test_clean_plan import make, upsert

from hoodie_nb import Table, failpoints

POINTS = [n for n in failpoints.NAMES if n.startswith("archive.") and n != "archive.orphan"]


class History:
    """A table, its model, and how many commits it has had."""

    def __init__(self, path: Path, seed: int) -> None:
        self.draw, self.model = random.Random(seed), Model()
        self.table = make(path, self.draw.choice([8, 9]), **FEW)
        self.commits = self.crashes = 0
        self.saved = ""

    def write(self, number: int) -> None:
        """Upsert or delete a few keys; the process may die in the archiving after the commit."""
        keys = self.draw.sample(range(9), self.draw.randint(1, 4))
        rows = [{"id": f"k{k}", "p": "ab"[k % 2], "ts": number} for k in keys]
        point, hits = self.draw.choice(POINTS), self.draw.randint(1, 2)
        if self.draw.random() < 0.8:
            failpoints.call(point, self._dies(hits))
        before = len(self.known())
        try:
            if self.draw.random() < 0.2:
                self.model.delete(rows)
                self.table.delete(rows)
            else:
                self.model.upsert(rows)
                upsert(self.table, number, keys)
        except Crash:
            self.crashes += 1
            self.table = Table.open(self.table.path)
        finally:
            failpoints.arm("")
        self.commits += len(self.known()) - before

    def _dies(self, hits: int):
        left = [None] * (hits - 1)

        def die() -> None:
            if not left:
                raise Crash("in an archiving")
            left.pop()

        return die

    def other(self) -> None:
        """Save the newest commit or delete that savepoint, or merge small files."""
        if self.draw.random() < 0.3 and not self.saved:
            self.table.cluster()
        elif self.saved:
            self.table.delete_savepoint(self.saved)
            self.saved = ""
        else:
            self.saved = self.table.savepoint().requested_time

    def known(self) -> set[str]:
        """Return the commits that are archived, each once, or on the timeline."""
        path, kinds = self.table.path, ("commit", "replacecommit")
        return {t for kind in kinds for t in (*archived(path, kind), *active(path, kind))}

    def check(self) -> None:
        """Both readers see the dict; no commit is missing between others, none looks open."""
        path = self.table.path
        assert without_meta(self.table.to_arrow()) == self.model.snapshot() == hudi_rows(path)
        gone = {*archived(path), *archived(path, "replacecommit"), *archived(path, "clean")}
        assert not {name.split()[0] for name in pending_names(path)} & gone


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_end_in_the_model(tmp_path: Path, seed: int) -> None:
    """Of seventy writes many die in the archiving; nothing is lost, doubled or archived twice."""
    history = History(tmp_path / "t", seed)
    for number in range(70):
        history.write(number)
        history.check()
        if history.draw.random() < 0.1:
            with contextlib.suppress(Crash):
                history.other()
            history.check()
    if history.saved:
        history.table.delete_savepoint(history.saved)
    known = history.known()
    for number in range(70, 74):
        upsert(history.table, number, [0])
        history.model.upsert([{"id": "k0", "p": "a", "ts": number}])
    history.check()
    path = history.table.path
    assert known <= history.known() and history.commits >= 60 and history.crashes > 5
    assert len(active(path)) <= 3 and len(listed(path)) < 20
    assert Table.open(path).fsck() == [] and pending_names(path) == []
