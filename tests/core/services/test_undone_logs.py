"""Undoing commits of merge-on-read tables: log files go with their commits, earlier ones count."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from each_fault import each_fault
from index_truth import index_gaps
from lives import (
    assert_at_rest,
    assert_finished,
    assert_whole_prefix,
    commits,
    live,
    opened,
)
from lives import make as made
from tables import (
    Model,
    commit_content,
    data_files,
    hudi_rows,
    timeline_folder,
    tree,
    without_meta,
)
from test_crash_restore import check, is_planned, restore, settled
from test_rollback import assert_all_or_nothing

from hoodie_nb import Table
from hoodie_nb.actions.clean_plan import CleanPlan
from hoodie_nb.actions.clean_records import encode_plan, encode_result
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.evidence.outdated import Mark

pytestmark = pytest.mark.usefixtures("many_logs")
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
APPENDS = {"hoodie_nb.append.above.bytes": 0}
FLAG = "_hoodie_is_deleted"
both_versions = pytest.mark.parametrize("version", [8, 9])


def make(root: Path, version: int = 9, **given: Any) -> Table:
    """Create a merge-on-read table in which every slice may get logs."""
    options = {**APPENDS, **given.pop("options", {})}
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_version": version}
    more = {**keys, "table_type": "merge_on_read", **given}
    return Table.create(root, schema=SCHEMA, options=options, **more)


def row(key: int, ts: int, **more: Any) -> dict[str, Any]:
    """Return a row of one of two partitions, with its time as its value."""
    return {"id": f"k{key}", "p": "ab"[key % 2], "ts": ts, "v": ts, **more}


def times(table: Table) -> list[str]:
    """Return the times of the commits, oldest first."""
    return list(table.history()["requested_time"])


def logs(table: Table) -> list[str]:
    """Return the paths of all log files."""
    return sorted(path for path in data_files(table.path) if ".log." in path)


def slices(table: Table) -> list[int]:
    """Return how many logs each slice has."""
    return sorted(len(piece.logs) for piece in Table.open(table.path)._handle.file_groups())


def assert_is(table: Table, model: Model) -> None:
    """This library and hudi-rs read the model's rows; the index is right; nothing is stray."""
    found = Table.open(table.path).to_arrow(meta=False)
    assert without_meta(found) == model.snapshot()
    assert hudi_rows(table.path) == model.snapshot()
    assert index_gaps(Table.open(table.path)._handle) == []
    assert [str(finding) for finding in table.fsck()] == []


def batch(draw: random.Random, number: int) -> list[dict[str, Any]]:
    """Return updates, late rows, deletes and new keys."""
    keys = draw.sample(range(30), draw.randint(1, 15))
    late = {k: draw.randrange(6) + number // 3 for k in keys}
    gone = number % 3 == 2
    return [row(k, late[k], **{FLAG: gone and draw.random() < 0.3}) for k in keys]


@both_versions
@pytest.mark.parametrize("ordering", ["ts", None])
@pytest.mark.parametrize("seed", range(3))
def test_random_batches_with_undone_commits_equal_a_dict(
    tmp_path: Path, version: int, ordering: str | None, seed: int
) -> None:
    """Keys of undone commits are new again; slices that were merged have their logs again."""
    draw = random.Random(seed)
    options = {"hoodie.compact.inline.max.delta.commits": draw.choice([2, 4])}
    table = make(tmp_path / "t", version, ordering=ordering, options=options)
    past = [Model(ordering=ordering)]
    undone = {"rollback": 0, "restore": 0}
    for number in range(16):
        rows = batch(draw, number)
        past.append(past[-1].copy())
        past[-1].upsert(rows)
        table.upsert(rows)
        if len(past) > 3 and draw.random() < 0.4:
            back = draw.choice([1, 1, 2])
            if back == 1:
                table.rollback()
            else:
                table.restore(times(table)[-1 - back])
            past = past[:-back]
            undone["rollback" if back == 1 else "restore"] += 1
        if number % 2:
            table = Table.open(table.path)
        assert len(times(table)) == len(past) - 1
        assert_is(table, past[-1])
    assert undone["rollback"] and undone["restore"]


@both_versions
def test_hudi_can_read_what_was_undone(tmp_path: Path, version: int) -> None:
    """Plans and results list log files as files to be deleted; none are left."""
    table = make(tmp_path / "t", version)
    for number in range(4):
        table.upsert([row(k, number) for k in range(4)])
    assert slices(table) == [3, 3]
    *_, second, third, fourth = times(table)
    planned = table.rollback(dry_run=True)
    done = table.rollback()
    assert done.files == planned.files == tuple(path for path in done.files if fourth in path)
    assert len(done.files) == 2
    assert all(".log.1_" in path for path in done.files)
    folder = timeline_folder(table.path)
    plan_file = next(folder.glob("*.rollback.requested"))
    result = commit_content(next(folder.glob("*_*.rollback")))
    requests = commit_content(plan_file)["RollbackRequests"]
    asked = [path for request in requests for path in request["filesToBeDeleted"]]
    assert asked == [f"file:{table.path}/{path}" for path in done.files]
    assert [request["logBlocksToBeDeleted"] for request in requests] == [{}, {}]
    assert result["totalFilesDeleted"] == 2
    assert commit_content(plan_file)["instantToRollback"]["action"] == "deltacommit"
    restored = table.restore(second)
    assert [commit.requested_time for commit in restored.commits] == [third]
    assert [path for path in logs(table) if second not in path] == []
    assert slices(table) == [1, 1]
    assert {r["v"] for r in table.to_arrow().to_pylist()} == {1}
    assert table.fsck() == []


@both_versions
def test_a_merged_slice_has_its_logs_again(tmp_path: Path, version: int) -> None:
    """A write that was due put base file and logs into a new base file; undone, they count."""
    options = {"hoodie.compact.inline.max.delta.commits": 2}
    table = make(tmp_path / "t", version, options=options)
    seen = []
    for number in range(4):
        table.upsert([row(k, number) for k in (0, 2)])
        seen.append(slices(table))
    assert seen[-1] == [0]
    table.rollback()
    assert slices(table) == seen[-2] != [0]
    assert {r["v"] for r in table.to_arrow().to_pylist()} == {2}
    model = Model()
    model.upsert([row(k, 2) for k in (0, 2)])
    assert_is(table, model)


def test_a_key_of_an_undone_commit_is_new_again(tmp_path: Path) -> None:
    """It goes into a base file, where every engine's index finds it."""
    table = make(tmp_path / "t")
    table.upsert([row(k, 1) for k in range(0, 20, 2)])
    table.upsert([row(0, 2), row(98, 2)])
    table.rollback()
    table.upsert([row(98, 3), row(0, 3)])
    commit = table.history().iloc[-1]
    assert (commit["inserts"], commit["updates"]) == (1, 1)
    model = Model()
    model.upsert([*(row(k, 1) for k in range(0, 20, 2)), row(98, 3), row(0, 3)])
    assert_is(table, model)


def test_what_the_target_needs_must_be_there(tmp_path: Path) -> None:
    """A log that the earlier snapshot needs is named if it is lost; nothing is changed."""
    table = make(tmp_path / "t")
    for number in range(3):
        table.upsert([row(0, number)])
    first, second, third = times(table)
    lost = Path(table.path, logs(table)[0])
    assert second in lost.name
    lost.rename(tmp_path / "lost")
    for call in (table.rollback, lambda: table.restore(second)):
        with pytest.raises(InvalidTable, match=rf"{lost.name} is lost, and commit {second} needs"):
            call()
    assert times(table) == [first, second, third]
    table.restore(first)
    assert table.to_arrow()["v"].to_pylist() == [0]
    assert table.fsck() == []


def test_cleaned_logs_are_named(tmp_path: Path) -> None:
    """A clean has deleted a log that the earlier snapshot needs: nothing is undone."""
    table = make(tmp_path / "t", options={"hoodie.compact.inline.max.delta.commits": 1})
    for number in range(3):
        table.upsert([row(0, number)])
    assert slices(table) == [0]
    log = Path(table.path, logs(table)[0])
    log.unlink()
    handle = Table.open(table.path)._handle
    newest = handle.timeline.completed_commits()[-1]
    mark = Mark(0, newest.requested_time, frozenset())
    files = {"a": [log.name]}
    clean = CleanPlan("KEEP_LATEST_COMMITS", newest, newest.requested_time, mark, files)
    requested = handle.timeline.request("clean", encode_plan(clean, handle.storage))
    begun = handle.timeline.begin(requested)
    handle.timeline.complete(begun, encode_result(clean, begun, files))
    before = tree(table.path)
    table = Table.open(table.path)
    for call in (table.rollback, lambda: table.restore(times(table)[1])):
        with pytest.raises(InvalidConfig, match=rf"cleaned away \(a/{re.escape(log.name)}\)"):
            call()
    assert {**tree(table.path), **before} == before
    assert table.to_arrow()["v"].to_pylist() == [2]


def test_readers_of_changes_know_what_was_undone(tmp_path: Path) -> None:
    """A position in an undone commit is refused; from one before it changes are right."""
    table = make(tmp_path / "t")
    for number in range(3):
        table.upsert([row(0, number), row(2, number)])
    _, second, third = times(table)
    done = table.rollback()
    with pytest.raises(InvalidConfig, match=f"rollback {done.requested_time} has undone"):
        table.changes(since=third)
    assert table.changes(since=second).num_rows == 0
    table.upsert([row(2, 7)])
    changed = table.changes(since=second).to_pylist()
    assert [(r["id"], r["v"]) for r in changed] == [("k2", 7)]


# --- crashes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(new_folder: Callable[[], Path]) -> dict[int, Path]:
    """Merge-on-read tables with the whole workload, by version."""
    found = {}
    for version in (8, 9):
        found[version] = made(new_folder() / "t", version, merge_on_read=True, **APPENDS)
        live(opened(found[version]))
        assert len([*found[version].glob("par*/.*.log.*")]) == 5
    return found


@pytest.mark.parametrize(
    ("version", "how"),
    [*((9, how) for how in ("before", "after", "error", "interrupt")), (8, "before")],
)
def test_a_failure_anywhere_in_a_restore(finished: dict[int, Path], version: int, how: str) -> None:
    """Readers see a state of the past; the next writer completes it, the stream writes again."""
    planned = []
    faults = {"every": 1 if how == "before" else 2, "at_least": 21, "raises": OSError}
    for root, _ in each_fault(finished[version], restore, how, **faults):
        planned.append(is_planned(root))
        check(root, planned=planned[-1])
    assert True in planned


@pytest.mark.parametrize(
    ("version", "how"),
    [*((9, how) for how in ("before", "after", "error", "interrupt")), (8, "before")],
)
def test_a_failure_anywhere_in_a_rollback(
    finished: dict[int, Path], version: int, how: str
) -> None:
    """All of the commit is undone, or nothing, and the stream writes its batch again."""
    assert_all_or_nothing(finished[version], how)


@pytest.mark.parametrize("act", [restore, Table.rollback], ids=["restore", "rollback"])
def test_a_crash_inside_the_completion(
    finished: dict[int, Path], tmp_path: Path, act: Callable[[Table], object]
) -> None:
    """A process that dies while it completes what another one began harms nothing."""
    source = shutil.copytree(finished[9], tmp_path / "source")
    for crashed, _ in each_fault(source, act, "before", every=3):
        for root, _ in each_fault(crashed, settled, "before", every=3, at_least=0):
            assert_whole_prefix(root)
            settled(Table(opened(root)))
            assert_whole_prefix(root)
            assert_at_rest(root)
            live(opened(root), last=_last(root))
            assert_finished(root)


def _last(root: Path) -> int | None:
    """Return the last batch in a table whose third batch commits nothing; None if all are."""
    return {2: 2, 3: 3}.get(commits(root))
