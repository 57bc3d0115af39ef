"""Any operation of a compaction may fail in any way: no row is lost, doubled or changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from each_fault import each_fault, opened
from foreign_logs import log_elsewhere
from lives import MODELS, QUERY, assert_at_rest, fingerprint, kill_at, live, make
from replay import check_replay
from tables import hudi_rows, without_meta

from hoodie_nb import Table, failpoints
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.local.settling import settle
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.types.schema import FILE_NAME

pytestmark = pytest.mark.usefixtures("many_logs")
POINTS = [n for n in failpoints.NAMES if n.startswith(("coord.", "writer.data"))]
SKIPPED = ("coord.prepare", "coord.reapply", "coord.redo", "coord.seal", "coord.unseal")
POINTS = [n for n in POINTS if not n.startswith(SKIPPED)]


@pytest.fixture(scope="module")
def tables(new_folder: Callable[[], Path]) -> dict[int, Path]:
    """Tables of a stream, whose slices have logs, by version."""
    found = {}
    for version in (8, 9):
        options = {"hoodie_nb.append.above.bytes": 0}
        found[version] = make(new_folder() / "t", version, merge_on_read=True, **options)
        live(opened(found[version]), 4)
        assert logs(found[version]) == 4
    return found


def logs(root: Path) -> int:
    """Return how many logs the slices have."""
    return int(Table.open(root).file_groups()["logs"].sum())


def rows_of(root: Path) -> list[str]:
    """Return the rows as hudi-rs reads them, which must be those that this library reads."""
    assert hudi_rows(root) == without_meta(Table.open(root).to_arrow())
    return hudi_rows(root)


def times_of(root: Path) -> list[object]:
    """Return key, commit time and sequence number of each row."""
    rows = Table.open(root).to_arrow().drop_columns([FILE_NAME]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def go_on(root: Path) -> None:
    """The stream continues where it was: its batches are known, and the last one is applied."""
    live(opened(root))
    assert rows_of(root) == MODELS[5]
    assert_at_rest(root)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("how", ["before", "torn", "after", "error", "error_after", "interrupt"])
def test_a_crash_at_any_operation_changes_no_row(
    tables: dict[int, Path], how: str, version: int
) -> None:
    """Readers see logs or base files; the next writer recovers, and nothing is left."""
    source = tables[version]
    times = times_of(source)
    rows = rows_of(source)
    undone = set[bool]()
    every = 1 if how == "before" and version == 9 else 3
    trials = each_fault(source, Table.compact, how, every=every, at_least=10)
    for number, (root, _) in enumerate(trials):
        assert rows_of(root) == rows
        assert times_of(root) == times
        undone.add(logs(root) > 0)
        if number % 2 == 0:
            Table.open(root).compact()
            assert logs(root) == 0
        assert rows_of(root) == rows
        assert times_of(root) == times
        if number % 2 == 0:
            assert_at_rest(root)
            check_replay(Table.open(root)._handle, None, None)
        go_on(root)
    assert undone == {True, False}


def test_a_crash_inside_the_recovery_changes_no_row(tables: dict[int, Path]) -> None:
    """The next process may die, too, while it undoes or completes the compaction."""
    times = times_of(tables[9])
    for crashed, _ in each_fault(tables[9], Table.compact, "before", every=3):
        for root, _ in each_fault(crashed, Table.compact, "before", every=3, at_least=0):
            assert times_of(root) == times
            rows_of(root)
            Table.open(root).compact()
            assert logs(root) == 0
            assert times_of(root) == times
            go_on(root)


def compact_at(root: Path) -> None:
    """Compact in a new process."""
    Table.open(root).compact()


@pytest.mark.kills
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_compaction_changes_no_row(
    tables: dict[int, Path], tmp_path: Path, point: str
) -> None:
    """SIGKILL at each step; a stream continues."""
    root = shutil.copytree(tables[9], tmp_path / "t")
    times = times_of(root)
    kill_at(point, compact_at, root)
    assert times_of(root) == times
    rows_of(root)
    settle(WriteCoordinator(opened(root), EventLog()))
    assert_at_rest(root)
    go_on(root)


def test_a_streams_progress_is_carried(tables: dict[int, Path], tmp_path: Path) -> None:
    """The compaction's commit names the newest checkpoint of each query, as every commit does."""
    root = shutil.copytree(tables[9], tmp_path / "t")
    Table.open(root).compact()
    shutil.rmtree(root / ".hoodie/.hoodie_nb/progress")
    coordinator = WriteCoordinator(opened(root), EventLog())
    settle(coordinator)
    assert coordinator.progress.find(Checkpoint(QUERY, 3, fingerprint(3))) is not None
    assert coordinator.progress.find(Checkpoint(QUERY, 4, fingerprint(4))) is None


def test_a_crash_while_other_engines_logs_are_merged(
    tables: dict[int, Path], tmp_path: Path
) -> None:
    """Their new keys are in the base file or in the log, and found by the index or refused."""
    source = shutil.copytree(tables[9], tmp_path / "t")
    listed = Table.open(source).file_groups()
    file_id = listed.query("partition_path == 'par0'")["file_id"].iloc[0]
    new = {"id": "theirs", "p": "par0", "ts": 9, "v": 9}
    log_elsewhere(source, file_id, [new], partition="par0")
    rows = rows_of(source)
    for root, _ in each_fault(source, Table.compact, "before", every=2):
        assert rows_of(root) == rows
        Table.open(root).compact()
        assert rows_of(root) == rows
        Table.open(root).upsert([{**new, "ts": 10, "v": 10}])
        found = Table.open(root).to_arrow(filters="id = 'theirs'", columns=["v"])
        assert found.to_pylist() == [{"v": 10}]
        assert len(rows_of(root)) == len(rows)
        assert_at_rest(root)
