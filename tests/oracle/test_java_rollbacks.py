"""Followers of a table whose commits Java rolls back: completed ones, and writes that failed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from core.followers import Follower

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig

from .client import BROKEN, TIDY, JavaError, Judge
from .readers import check
from .tables import Model
from .test_java_cleans import OPTIONS, made, versions

pytestmark = pytest.mark.oracle
LAZY = {"hoodie.clean.failed.writes.policy": "LAZY"}  # as beside other writers


def grown(judge: Judge, path: Path, version: int) -> tuple[Table, Model, list[Follower]]:
    """Return a table after three commits, and a follower at each."""
    table, model = made(judge, path, version)
    followers = [Follower()]
    followers[0].follow(table)
    for number in (2, 3):
        judge.write(table.path, model.upsert(range(5), number), OPTIONS[version])
        followers.append(Follower())
        followers[-1].follow(table)
    return table, model, followers


def fails(judge: Judge, table: Table, model: Model, version: int) -> None:
    """Let a write of Java's stop before its commit."""
    rows = Model(model.layout).upsert(range(5), 50)
    with pytest.raises(JavaError):
        judge.write(table.path, rows, OPTIONS[version] | BROKEN)


@versions
def test_followers_of_a_commit_that_java_rolled_back_are_refused(
    judge: Judge, tmp_path: Path, version: int
) -> None:
    """Its plan has no note of ours; a follower at an earlier commit goes on."""
    table, model, (_, second, third) = grown(judge, tmp_path / "t", version)
    seen = str(third.position)
    judge.rollback(table.path, seen, OPTIONS[version])
    model.held |= dict.fromkeys(range(5), 2)
    table.upsert(model.upsert(range(3, 9), 4))
    with pytest.raises(InvalidConfig, match=f"had commit {seen}, but rollback .* has undone it"):
        table.changes(since=seen)
    for follower in (second, third):
        follower.follow_or_restart(table)
        follower.check(table)
    assert (second.refused, third.refused) == (0, 1)
    check(judge, table, model)


@versions
def test_java_rolls_back_a_commit_below_another(judge: Judge, tmp_path: Path, version: int) -> None:
    """Beside other writers it may: then the commit after it is no position either."""
    table, _, (first, second, third) = grown(judge, tmp_path / "t", version)
    judge.rollback(table.path, str(second.position), OPTIONS[version] | LAZY)
    assert list(table.history()["requested_time"]) == [first.position, third.position]
    for follower in (second, third):
        with pytest.raises(InvalidConfig, match=f"had commit {second.position}, but rollback"):
            follower.follow(table)
    for follower in (second, third):
        follower.follow_or_restart(table)
        follower.check(table)


@versions
def test_a_write_of_java_that_failed_refuses_nobody(
    judge: Judge, tmp_path: Path, version: int
) -> None:
    """Its next write rolls it back by its markers, so the plan names the file groups."""
    table, model, (*_, third) = grown(judge, tmp_path / "t", version)
    fails(judge, table, model, version)
    during = dt.datetime.now(dt.UTC)
    judge.write(table.path, model.upsert(range(4, 6), 5), OPTIONS[version])
    assert "rollback" in set(table.timeline()["action"])
    assert table.changes(since=during).num_rows == 2
    third.follow(table)
    third.check(table)


def test_a_rollback_that_java_archives_before_the_commits_around_it(
    judge: Judge, tmp_path: Path
) -> None:
    """On version 6 it takes the oldest of many rollbacks: then the archive is the proof."""
    table, model, (_, second, third) = grown(judge, tmp_path / "t", 6)
    seen = str(third.position)
    some = {"hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}
    judge.rollback(table.path, seen, OPTIONS[6])
    model.held |= dict.fromkeys(range(5), 2)
    for _ in range(4):
        fails(judge, table, model, 6)
    judge.write(table.path, model.upsert(range(3), 4), OPTIONS[6] | some)
    found = table._handle.timeline.archive.rollbacks("")
    assert seen in set().union(*(commits for _, commits in found))
    assert seen > min(table.history()["requested_time"])
    with pytest.raises(InvalidConfig, match=f"had commit {seen}, but rollback .* is archived, has"):
        third.follow(table)
    for follower in (second, third):
        follower.follow_or_restart(table)
        follower.check(table)
    assert second.refused == 0


def test_the_archive_of_java_names_what_it_rolled_back(judge: Judge, tmp_path: Path) -> None:
    """On version 9 it archives a rollback with the commits around it; we can read what it says."""
    table, model, (*_, third) = grown(judge, tmp_path / "t", 9)
    judge.rollback(table.path, str(third.position), OPTIONS[9])
    for number in range(4, 8):
        judge.write(table.path, model.upsert(range(3), number), OPTIONS[9] | TIDY)
    ((_, commits),) = table._handle.timeline.archive.rollbacks("")
    assert commits == {third.position}
    with pytest.raises(InvalidConfig, match="were archived"):
        third.follow(table)
