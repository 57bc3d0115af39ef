"""Intervals of merge-on-read tables: one delta commit, whose changes are in logs where they can be.

The rows are those of the model, which takes each checkpoint alone; hudi-rs reads them, too.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from each_fault import each_fault, opened
from faults import Crash
from lives import assert_at_rest, commits
from tables import Model, hudi_rows, without_meta
from test_background import Job, go_on
from test_background import live as takes_turns
from test_background import make as composite
from writes import commit_elsewhere

from hoodie_nb import Table
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading import read
from hoodie_nb.records.sealing import Interval

pytestmark = pytest.mark.usefixtures("many_logs")
FLAG = "_hoodie_is_deleted"
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
FLAGGED = SCHEMA.append(pa.field(FLAG, pa.bool_()))
APPENDS = {"table_type": "merge_on_read", "options": {"hoodie_nb.append.above.bytes": 0}}
KEYS: dict[str, Any] = {"record_key": "id", "partition_by": "p", **APPENDS}
THREE = Interval(checkpoints=3)
Rows = list[dict[str, Any]]


def row(key: str, ts: int, v: int = 0, *, gone: bool = False) -> dict[str, Any]:
    """Return a row; the last letter of its key is its partition."""
    return {"id": key, "p": key[-1], "ts": ts, "v": v, FLAG: gone}


def checkpoint(job: LocalJob, rows: Rows) -> None:
    """Run the job's next checkpoint, with these rows."""
    number = len(job.source.sealed) + 1
    job.write(pa.Table.from_pylist(rows, FLAGGED))
    job.checkpoint(number)
    job.complete(number)


def snapshot(root: Path) -> list[str]:
    """Return the rows of a table, in which hudi-rs must agree."""
    found = without_meta(read.to_arrow(open_table(root)))
    assert hudi_rows(root) == found
    return found


def logs(root: Path) -> int:
    """Return how many log files there are."""
    return len([*root.glob("*/.*.log.*")])


@pytest.mark.parametrize("ordering", ["ts", None])
@pytest.mark.parametrize("seed", range(4))
def test_random_intervals_equal_a_dict(tmp_path: Path, ordering: str | None, seed: int) -> None:
    """Updates, late rows, ties, deletes and rows that return, within an interval and across."""
    draw = random.Random(seed)
    model = Model(ordering=ordering)
    root = tmp_path / "t"
    Table.create(root, schema=SCHEMA, ordering=ordering, **KEYS)
    job = LocalJob(opened(root), interval=THREE)
    for number in range(15):
        keys = range(40) if number == 0 else draw.sample(range(40), draw.randint(1, 12))
        deletes = number % 4 == 1
        rows = [
            row(
                f"k{key}{'ab'[key % 2]}",
                number // 2 + draw.randrange(4),
                100 * number + key,
                gone=deletes and draw.random() < 0.2,
            )
            for key in keys
        ]
        model.upsert(rows)
        checkpoint(job, rows)
        if number % 3 == 2:
            assert snapshot(root) == model.snapshot()
            assert commits(root) == number // 3 + 1
    assert logs(root) > 0
    assert_at_rest(root)


def test_an_interval_is_one_log_for_each_slice(tmp_path: Path) -> None:
    """Of several rows of a key the log has the one that wins: the newest by ordering value."""
    root = tmp_path / "t"
    Table.create(root, schema=SCHEMA, ordering="ts", **KEYS)
    Table.open(root).upsert([row(f"k{n}a", 4, n) for n in range(4)])
    job = LocalJob(opened(root), interval=THREE)
    checkpoint(job, [row("k0a", 5, 50), row("k1a", 9, 90), row("k2a", 3, 30)])
    checkpoint(job, [row("k0a", 5, 51), row("k1a", 8, 80), row("k3a", 6, gone=True)])
    assert (commits(root), logs(root)) == (1, 0)
    checkpoint(job, [row("k3a", 7, 77), row("k2a", 2, 20)])
    assert (commits(root), logs(root)) == (2, 1)
    found = Table.open(root).to_arrow(meta=False).to_pylist()
    assert {r["id"]: r["v"] for r in found} == {"k0a": 51, "k1a": 90, "k2a": 2, "k3a": 77}
    snapshot(root)


def test_a_row_that_replaces_a_newer_one_is_no_log(tmp_path: Path) -> None:
    """Deleted at 5 and inserted at 3: every reader of a log would keep the stored row of 4."""
    root = tmp_path / "t"
    Table.create(root, schema=SCHEMA, ordering="ts", **KEYS)
    Table.open(root).upsert([row(f"k{n}a", 4, n) for n in range(4)])
    job = LocalJob(opened(root), interval=THREE)
    for rows in ([row("k0a", 5, gone=True)], [row("k0a", 3, 33)], [row("k1a", 5, 11)]):
        checkpoint(job, rows)
    assert (commits(root), logs(root)) == (2, 0)
    found = Table.open(root).to_arrow(meta=False).to_pylist()
    assert {r["id"]: r["v"] for r in found} == {"k0a": 33, "k1a": 11, "k2a": 2, "k3a": 3}
    snapshot(root)


def test_an_interval_goes_on_top_of_another_commit(tmp_path: Path) -> None:
    """What others commit between two checkpoints is compared with all rows of the interval."""
    root = tmp_path / "t"
    Table.create(root, schema=SCHEMA, ordering="ts", **KEYS)
    Table.open(root).upsert([row(f"k{n}a", 4, n) for n in range(4)])
    job = LocalJob(opened(root), interval=THREE)
    checkpoint(job, [row("k0a", 6, 60), row("k1a", 9, 90)])
    others = [{k: v for k, v in row(*r).items() if k != FLAG} for r in [("k0a", 7, 7), ("k1a", 7)]]
    commit_elsewhere(root, pa.Table.from_pylist(others, SCHEMA))
    checkpoint(job, [row("k2a", 6, gone=True)])
    checkpoint(job, [row("k0a", 6, 61)])
    found = Table.open(root).to_arrow(meta=False).to_pylist()
    assert {r["id"]: r["v"] for r in found} == {"k0a": 7, "k1a": 90, "k3a": 3}
    assert commits(root) == 3
    snapshot(root)


BATCHES: list[Rows] = [
    [row(f"k{n}{'ab'[n % 2]}", 1, n) for n in range(8)],
    [row("k0a", 3, 30), row("k1b", 3, 31)],
    [row("k0a", 2, 20), row("k3b", 4, gone=True)],
    [row("k0a", 5, 50), row("k3b", 5, 55), row("k5b", 2, 25)],
]


def live(table: TableHandle, source: Source) -> None:
    """Run the checkpoints that have not succeeded: the first is a commit, the others are one."""
    end = len(BATCHES) if source.sealed else 1
    interval = THREE if source.sealed else None
    job = LocalJob(table, source=source, interval=interval, keeps_seals=True)
    for number in range(len(source.sealed), end):
        if number == len(source.rows):
            job.write(pa.Table.from_pylist(BATCHES[number], FLAGGED))
        job.checkpoint(number + 1)
        job.complete(number + 1)


@pytest.mark.parametrize(("how", "every"), [("before", 3), ("after", 6), ("torn", 5)])
def test_a_crash_in_an_interval_of_logs_is_recovered(
    new_folder: Callable[[], Path], how: str, every: int
) -> None:
    """After a kill at any operation a reader sees the interval as a whole or not at all."""
    root = new_folder() / "t"
    Table.create(root, schema=SCHEMA, ordering="ts", **KEYS)
    begun = Source()
    live(opened(root), begun)
    sources = [begun]

    def act(table: Table) -> None:
        sources.append(copy.deepcopy(begun))
        live(table._handle, sources[-1])

    model = Model()
    model.upsert(BATCHES[0])
    before = model.snapshot()
    for rows in BATCHES[1:]:
        model.upsert(rows)
    for crashed, error in each_fault(root, act, how, every=every, at_least=40, raises=OSError):
        assert isinstance(error, Crash)
        assert snapshot(crashed) == (model.snapshot() if commits(crashed) == 2 else before)
        live(opened(crashed), sources[-1])
        LocalJob(opened(crashed), source=sources[-1])
        assert snapshot(crashed) == model.snapshot()
        assert (commits(crashed), logs(crashed)) == (2, 2)
        assert_at_rest(crashed)


def test_a_background_commit_is_logs(tmp_path: Path) -> None:
    """One thread seals and another applies: each checkpoint is applied once."""
    root = composite(tmp_path / "t", **APPENDS)
    job = Job(root)
    takes_turns(job)
    job.end()
    assert commits(root) == 5
    assert logs(root) > 0
    go_on(root, 7)
