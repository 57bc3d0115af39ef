"""The crash loop over sealed checkpoints: composite keys with nulls, with and without hard links.

One trial: a job with a `commit_interval` of three runs seven checkpoints; its n-th operation on the
disk fails, readers read, and a new process continues from the same source. n = 1, 2, 3… until a run
has no such operation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from each_fault import each_fault, opened
from lives import assert_at_rest, commits
from tables import Model, hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading import read
from hoodie_nb.records.sealing import Interval

SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("id", "sub", "p")]
    + [("ts", pa.int64()), ("v", pa.int64()), ("_hoodie_is_deleted", pa.bool_())]
)
STORED = pa.schema(list(SCHEMA)[:-1])
_KEYS = [("a", None), ("a", ""), (None, "s"), ("", "s"), ("b", "s"), ("c", "t,u")]


def _batch(number: int) -> pa.Table:
    """Return a checkpoint's rows: inserts, updates, late rows, deletes and rows that return."""
    rows = []
    for at, (name, sub) in enumerate(_KEYS):
        if (at + number) % 3 == 2:
            continue
        late = at == 0 and number == 4
        rows.append(
            {
                "id": name,
                "sub": sub,
                "p": ("x", "y")[at % 2],
                "ts": 1 if late else 10 + number,
                "v": 100 * number + at,
                "_hoodie_is_deleted": (at + 2 * number) % 5 == 4,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


BATCHES = [_batch(number) for number in range(7)]


class _Composite(Model):
    """A model whose record is the pair of key columns."""

    def upsert(self, rows: list[dict[str, object]]) -> None:
        keyed = [{**row, "pair": (row["id"], row["sub"])} for row in rows]
        super().upsert(keyed)

    def snapshot(self) -> list[str]:
        without = self.copy()
        without.rows = {
            at: {k: v for k, v in row.items() if k != "pair"} for at, row in self.rows.items()
        }
        return Model.snapshot(without)


def _models() -> list[list[str]]:
    """Return the table after each number of batches."""
    model = _Composite(key="pair")
    found = [model.snapshot()]
    for batch in BATCHES:
        model.upsert(batch.to_pylist())
        found.append(model.snapshot())
    return found


MODELS = _models()
COMMITS = [MODELS[0], MODELS[3], MODELS[6], MODELS[7]]


def live(table: TableHandle, source: Source, batches: int = 7) -> None:
    """Run the checkpoints that have not succeeded for the source; the interval is three."""
    job = LocalJob(table, source=source, interval=Interval(checkpoints=3))
    for number in range(len(source.sealed), batches):
        if number == len(source.rows):
            job.write(BATCHES[number])
        job.checkpoint(number + 1)
        job.complete(number + 1)


def end(root: Path, source: Source, *, links: bool = True) -> None:
    """A new process continues, another one ends the interval; then all readers equal the model."""
    live(opened(root, links=links), source)
    LocalJob(opened(root, links=links), source=source)
    assert without_meta(read.to_arrow(open_table(root))) == MODELS[7]
    assert hudi_rows(root) == MODELS[7]
    assert_at_rest(root)


def assert_whole(root: Path) -> None:
    """A reader sees the table after a number of batches, or after one complete interval."""
    snapshot = without_meta(read.to_arrow(open_table(root)))
    assert snapshot in MODELS
    assert (snapshot == MODELS[0]) == (commits(root) == 0)


@pytest.fixture(scope="module")
def halfway(new_folder: Callable[[], Path]) -> tuple[Path, Source]:
    """A table that holds one interval and two more sealed checkpoints, and its source."""
    root, source = new_folder() / "t", Source()
    Table.create(root, schema=STORED, record_key=["id", "sub"], partition_by="p", ordering="ts")
    live(opened(root), source, 5)
    return root, source


class GoesOn:
    """Acts of processes that go on with a copy of a source, which is the `source` afterwards."""

    def __init__(self, source: Source) -> None:
        self.source, self._given = source, source

    def __call__(self, table: Table) -> None:
        """Run the checkpoints that have not succeeded."""
        self.source = copy.deepcopy(self._given)
        live(table._handle, self.source)


@pytest.mark.parametrize("links", [True, False], ids=["links", "no-links"])
@pytest.mark.parametrize(("how", "every"), [("before", 2), ("after", 5), ("torn", 3)])
def test_a_crash_in_an_interval_is_recovered(
    halfway: tuple[Path, Source], how: str, every: int, links: bool
) -> None:
    """After a kill at any operation of sealing and applying, every row is in the table once."""
    act, process = GoesOn(halfway[1]), partial(opened, links=links)
    trials = each_fault(halfway[0], act, how, every=every, at_least=40, process=process)
    for root, _ in trials:
        assert_whole(root)
        end(root, act.source, links=links)


@pytest.mark.parametrize("how", ["error", "error_after"])
def test_an_error_in_an_interval_is_survived(halfway: tuple[Path, Source], how: str) -> None:
    """One disk error during sealing or applying loses no seal and applies none twice."""
    act = GoesOn(halfway[1])
    for root, _ in each_fault(halfway[0], act, how, every=3, at_least=40, raises=OSError):
        assert_whole(root)
        end(root, act.source)
