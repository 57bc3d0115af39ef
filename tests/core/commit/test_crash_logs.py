"""Any operation on a merge-on-read table may fail in any way, as in `test_crash_loop`.

Slices are never too small for log files here, so batches leave logs, and slices that are merged and
rewritten because a log has deletes. hudi-rs reads after each crash what this library reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from each_fault import each_fault
from faults import Crash
from lives import (
    BATCHES,
    assert_at_rest,
    assert_finished,
    assert_whole_prefix,
    finish,
    live,
    make,
    opened,
    runs,
)
from tables import hudi_rows, without_meta

from hoodie_nb import Table

pytestmark = pytest.mark.usefixtures("many_logs")
both_modes = pytest.mark.parametrize("commit_on", ["write", "checkpoint"])
APPENDS = {"hoodie_nb.append.above.bytes": 0}


@pytest.fixture(scope="module")
def prepared(new_folder: Callable[[], Path]) -> dict[int, Path]:
    """Merge-on-read tables that hold the first n batches."""
    root = make(new_folder() / "t", 9, merge_on_read=True, **APPENDS)
    found = {}
    for number in range(len(BATCHES)):
        live(opened(root), number)
        found[number] = root.with_name(f"after{number}")
        shutil.copytree(root, found[number])
    return found


def logs(root: Path) -> list[Path]:
    """Return the log files in the partitions of a table."""
    return sorted(root.glob("par*/.*.log.*"))


def test_the_workload_leaves_logs_and_rewritten_slices(prepared: dict[int, Path]) -> None:
    """The second batch updates by logs, the fourth deletes by logs, the last rewrites slices."""
    assert [len(logs(prepared[number])) for number in (1, 2, 4)] == [0, 2, 4]
    root = prepared[4]
    live(opened(shutil.copytree(root, root.with_name("last"))))
    assert_finished(root.with_name("last"))
    assert len(logs(root.with_name("last"))) == 5


@pytest.mark.parametrize("number", [0, 1, 3, 4])
@pytest.mark.parametrize(
    ("how", "commit_on"), [("before", "write"), ("torn", "write"), ("after", "checkpoint")]
)
def test_a_crash_at_any_operation_is_recovered(
    prepared: dict[int, Path], number: int, how: str, commit_on: str
) -> None:
    """After a kill at any operation readers see whole commits; a new process gives the model."""
    act = runs(number + 1, commit_on=commit_on)
    for root, error in each_fault(prepared[number], act, how, at_least=10, raises=OSError):
        assert isinstance(error, Crash)
        assert_whole_prefix(root)
        finish(root, number)


@pytest.mark.parametrize("number", [1, 4])
@both_modes
def test_a_crash_inside_the_recovery_is_recovered(
    prepared: dict[int, Path], number: int, commit_on: str
) -> None:
    """After a kill at any operation of the recovery the next process still gives the model."""
    act = runs(number + 1, commit_on=commit_on)
    for crashed, _ in each_fault(prepared[number], act, "before", every=3):
        for root, _ in each_fault(crashed, act, "before", every=3, at_least=0):
            assert_whole_prefix(root)
            finish(root, number)


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("how", ["error", "error_after"])
@both_modes
def test_an_error_of_the_disk_is_reported_and_repeated(
    prepared: dict[int, Path], number: int, how: str, commit_on: str
) -> None:
    """After an error the batch is in the table or not, and the next try ends well."""
    act = runs(number + 1, commit_on=commit_on)
    for root, _ in each_fault(prepared[number], act, how, every=2, raises=OSError):
        assert_whole_prefix(root)
        finish(root, number)


def row(key: str, partition: str, ts: int, v: int) -> dict[str, object]:
    """Return a row."""
    return {"id": key, "p": partition, "ts": ts, "v": v}


CHANGES: dict[str, Callable[[Table], object]] = {
    "overwrite": lambda t: t.insert_overwrite([row("k0", "par0", 1, 7), row("new", "par0", 1, 8)]),
    "overwrite all": lambda t: t.insert_overwrite([row("k0", "par0", 1, 7)], scope="table"),
    "delete": lambda t: t.delete(where="v = 100 OR id = 'k3'"),
    "update": lambda t: t.update(where="v = 100 OR id = 'k3'", set={"v": "7"}),
    "merge": lambda t: (
        t.merge([row("k0", "par0", 30, 7), row("new", "par1", 1, 8)])
        .when_matched_update()
        .when_not_matched_insert()
        .execute()
    ),
    "insert": lambda t: t.insert([row("more", "par0", 1, 7), row("new", "par1", 1, 8)]),
}


def rows_in(root: Path) -> list[str]:
    """Return the rows that this library reads; hudi-rs must agree."""
    rows = without_meta(Table(opened(root)).to_arrow(meta=False))
    assert hudi_rows(root) == rows
    return rows


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("how", ["before", "torn", "error_after"])
def test_a_crash_of_another_change_leaves_all_or_nothing(
    prepared: dict[int, Path], name: str, how: str
) -> None:
    """Of overwrites, conditions, merges and inserts onto logs; the next write recovers."""
    before = rows_in(prepared[2])
    done = shutil.copytree(prepared[2], prepared[2].with_name(f"{name}-{how}-done"))
    CHANGES[name](Table(opened(done)))
    after = rows_in(done)
    assert after != before
    seen = []
    for root, _ in each_fault(prepared[2], CHANGES[name], how, at_least=8):
        seen.append(rows_in(root))
        assert seen[-1] in (before, after)
        Table(opened(root)).upsert([row("late", "par3", 1, 1)])
        now = rows_in(root)
        assert sorted(set(now) ^ set(seen[-1])) == [r for r in now if "late" in r]
        assert_at_rest(root)
    assert before in seen
