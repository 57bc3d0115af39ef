"""Positions: whoever has read a commit that was undone later is stopped, however much later."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from pathlib import Path

import pytest
from archives import FEW, active, archived, log_elsewhere
from followers import Follower, datetime_of, lived, rolled_back_elsewhere
from tables import timeline_folder, timeline_names
from test_clean_plan import make, upsert
from test_crash_restore import recover
from test_restore import grown, half_restored
from test_rollback import fails
from test_savepoints import times

from hoodie_nb import Table, failpoints
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.records.progress import Checkpoint, ProgressRecords

GONE = "had commit {}, but {} .*has undone it.*Read the table again"


def followed(table: Table) -> Follower:
    """Return a follower of the table as it is now."""
    follower = Follower()
    follower.follow(table)
    return follower


def test_the_proof_of_a_rollback_by_hand_outlives_32_others(tmp_path: Path) -> None:
    """Archiving takes no rollback that is newer than a commit on the timeline, on version 6."""
    outlives(make(tmp_path / "t"), 32)


@pytest.mark.parametrize("version", [6, 8, 9])
def test_the_proof_of_a_rollback_by_hand_outlives_others(tmp_path: Path, version: int) -> None:
    """The same with less retention, on each version."""
    outlives(make(tmp_path / "t", version, **FEW), 5)


def outlives(table: Table, rollbacks: int) -> None:
    """A follower is refused although its commit was undone many rollbacks ago."""
    for number in range(3):
        upsert(table, number, [0, 1])
    upsert(table, 3, [5])
    follower, seen = followed(table), times(table)[-1]
    undone = table.rollback().requested_time
    for number in range(rollbacks):
        upsert(table, 10 + number, [0])
        table.rollback()
        table.archive()
    with pytest.raises(InvalidConfig, match=GONE.format(seen, f"rollback {undone}")):
        follower.follow(table)
    upsert(table, 9, [1])
    follower.follow_or_restart(table)
    follower.check(table)
    assert follower.refused == 1 and table.fsck() == []


def test_rollbacks_before_the_timeline_are_archived(tmp_path: Path) -> None:
    """Once the commits around them are archived: no position on the timeline needs them."""
    table = make(tmp_path / "t", **FEW)
    for number in range(12):
        upsert(table, number, [0, 1])
        upsert(table, 99, [0, 1])
        follower = followed(table)
        table.rollback()
    assert len(active(table.path, "rollback")) <= 6 and len(archived(table.path, "rollback")) >= 6
    assert max(archived(table.path, "rollback")) < active(table.path)[0]
    with pytest.raises(InvalidConfig, match="has undone it"):
        follower.follow(table)


def test_rollbacks_stay_with_the_commits_that_must_stay(tmp_path: Path) -> None:
    """Also if fewer commits can be archived than are due: one has replaced files that exist."""
    table = make(tmp_path / "t", **FEW, **{"hoodie.clean.automatic": False})
    upsert(table, 0, [0, 1])
    table.insert_overwrite([{"id": "k0", "p": "a", "ts": 1}])
    upsert(table, 2, [5])
    follower, seen = followed(table), times(table)[-1]
    table.rollback()
    for number in range(3, 9):
        upsert(table, number, [1])
        upsert(table, 99, [1])
        table.rollback()
    assert archived(table.path) and seen > min(times(table))
    with pytest.raises(InvalidConfig, match=f"had commit {seen}, but rollback"):
        follower.follow(table)


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("remove_plan", [False, True])
def test_a_rollback_of_another_engine_is_seen(
    tmp_path: Path, version: int, remove_plan: bool
) -> None:
    """Java's plan has no note; that it names no file groups shows how it found the files."""
    table = make(tmp_path / "t", version)
    for number in range(3):
        upsert(table, number, [0, 1])
    follower, seen = followed(table), times(table)[-1]
    undone = rolled_back_elsewhere(table, seen, remove_plan=remove_plan)
    upsert(table, 9, [0])
    for since in (seen, datetime_of(seen) + dt.timedelta(milliseconds=1)):
        with pytest.raises(InvalidConfig, match=GONE.format(seen, f"rollback {undone}")):
            table.changes(since=since)
    follower.follow_or_restart(table)
    follower.check(table)


def test_a_commit_below_others_that_java_undid(tmp_path: Path) -> None:
    """A reader of the commit after it is refused, too: its copy has rows of both."""
    table = make(tmp_path / "t", 9, **{"hoodie.parquet.small.file.limit": 0})
    for number in range(3):
        upsert(table, number, [number])
    follower, (first, second, third) = followed(table), times(table)
    undone = rolled_back_elsewhere(table, second)
    for since in (second, third):
        with pytest.raises(InvalidConfig, match=GONE.format(second, f"rollback {undone}")):
            table.changes(since=since)
    assert table.changes(since=first).num_rows == 1
    follower.follow_or_restart(table)
    follower.check(table)


@pytest.mark.parametrize("version", [6, 9])
def test_the_rollback_of_a_failed_write_refuses_nobody(tmp_path: Path, version: int) -> None:
    """Nobody has read the rows of a commit that did not complete."""
    table = make(tmp_path / "t", version)
    upsert(table, 0, [0, 1])
    follower, before = followed(table), dt.datetime.now(dt.UTC)
    failpoints.arm("coord.commit.pre=raise:EIO")
    try:
        with pytest.raises(Exception, match="rolled back"):
            upsert(table, 1, [0])
    finally:
        failpoints.arm("")
    (rollback,) = active(table.path, "rollback")
    upsert(table, 2, [1])
    between = datetime_of(rollback) - dt.timedelta(milliseconds=1)
    for since in (before, between, rollback):
        assert table.changes(since=since).num_rows == 1
    follower.follow(table)
    follower.check(table)


@pytest.mark.parametrize("version", [6, 9])
def test_an_archived_rollback_counts_too(tmp_path: Path, version: int) -> None:
    """Java's archiver on version 6 takes it earlier."""
    table = make(tmp_path / "t", version)
    for number in range(3):
        upsert(table, number, [0, 1])
    seen = times(table)[-1]
    undone = table.rollback().requested_time
    upsert(table, 9, [0])
    archive_rollback(table, undone)
    assert active(table.path, "rollback") == [] and archived(table.path, "rollback") == [undone]
    later = datetime_of(seen) + dt.timedelta(milliseconds=1)
    for since in (seen, later):
        with pytest.raises(InvalidConfig, match=GONE.format(seen, f"rollback {undone}, which is")):
            Table.open(table.path).changes(since=since)
    for since in (times(table)[-2], undone, datetime_of(undone)):
        assert Table.open(table.path).changes(since=since).num_rows == 1


def archive_rollback(table: Table, time17: str) -> None:
    """Archive one rollback, as another engine."""
    from hoodie_nb.actions.archive_plan import ArchivePlan
    from hoodie_nb.commit.archiving import archive

    done = table._handle.timeline.listing.completed("rollback")
    (rollback,) = (i for i in done if i.requested_time == time17)
    archive(table._handle, ArchivePlan((rollback,)), lambda *_, **__: None)


def test_a_damaged_archive_refuses_only_who_needs_it(tmp_path: Path) -> None:
    """A completed commit is a position without a look at the archive; a time of day is not."""
    table = make(tmp_path / "t")
    for number in range(3):
        upsert(table, number, [0, 1])
    first, second, third = times(table)
    log_elsewhere(table.path, str(int(first) - 1))
    (file,) = Path(table.path, ".hoodie/archived").glob(".commits*")
    file.write_bytes(file.read_bytes()[:-9])
    assert Table.open(table.path).changes(since=second).num_rows == 2
    with pytest.raises(InvalidTable, match=r"not known which commits .* `table\.history\(\)`"):
        Table.open(table.path).changes(since=datetime_of(third) - dt.timedelta(milliseconds=1))


def test_a_rollback_that_cannot_be_read(tmp_path: Path) -> None:
    """What it has undone is not known, so positions before it are refused; writes go on."""
    table = make(tmp_path / "t")
    for number in range(3):
        upsert(table, number, [0, 1])
    position = times(table)[-2]
    rollback = table.rollback().requested_time
    upsert(table, 4, [0])
    folder = timeline_folder(table.path)
    plan = folder / f"{rollback}.rollback.requested"
    plan.write_bytes(b"")
    table = Table.open(table.path)
    assert table.changes(since=position).num_rows == 1  # its result says it
    (folder / f"{rollback}.rollback").write_bytes(b"")
    table = Table.open(table.path)
    with pytest.raises(InvalidTable, match=f"{plan.name} cannot be read.*backup"):
        table.changes(since=position)
    upsert(table, 5, [1])
    assert table.changes(since=times(table)[-2]).num_rows == 1


# --- instants that the table does not have --------------------------------------------------------


def test_a_position_in_a_table_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """The new table has no such commit, and the copy has rows that it never had."""
    table = make(tmp_path / "t")
    upsert(table, 0, [0, 1, 2])
    follower = followed(table)
    commit = table._handle.timeline.completed_commits()[-1]
    table = make(tmp_path / "t", if_exists="replace")
    upsert(table, 1, [1])
    for since in (follower.position, commit):
        with pytest.raises(InvalidConfig, match=f"no completed commit {follower.position}"):
            table.changes(since=since)
    follower.follow_or_restart(table)
    follower.check(table)


def test_a_commit_whose_undoing_left_no_trace_is_refused(tmp_path: Path) -> None:
    """As digits and as a commit; a time of day is not meant to name one."""
    table = make(tmp_path / "t")
    for number in range(3):
        upsert(table, number, [0, 1])
    _, second, third = table._handle.timeline.completed_commits()
    for file in Path(table.path, ".hoodie").glob(f"{second.requested_time}.*"):
        file.unlink()
    for since in (second, second.requested_time):
        with pytest.raises(InvalidConfig, match=r"undone or archived, or .* replaced.*ISO text"):
            table.changes(since=since)
    assert table.changes(since=datetime_of(third.requested_time)).num_rows == 0
    with pytest.raises(InvalidConfig, match="no completed commit"):
        table.changes(since=str(int(third.requested_time) + 1))


# --- pending restores and rollbacks ---------------------------------------------------------------


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("point", ["restore.plan.post", "restore.commit.post"])
def test_followers_during_a_restore(tmp_path: Path, version: int, point: str) -> None:
    """Who does what the errors say while a restore is pending has the right rows after it."""
    table = grown(tmp_path / "t", version=version)
    followers = []
    for until in times(table):
        follower = Follower()
        follower.follow(table, until)
        followers.append(follower)
    target = times(table)[1]
    table = half_restored(table, target, point)
    for follower in followers:
        follower.follow_or_restart(table)
        follower.check(table)
    recover(Path(table.path))
    for follower in followers:
        follower.follow_or_restart(table)
        follower.check(table)
    upsert(table, 9, [0])
    for follower in followers:
        follower.follow_or_restart(table)
        follower.check(table)


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("point", ["restore.rollback.post", "restore.withdrawn.post"])
def test_followers_during_a_rollback(tmp_path: Path, version: int, point: str) -> None:
    """The time of a pending rollback is no position: the commit may still be there."""
    table = grown(tmp_path / "t", version=version)
    follower, seen = followed(table), times(table)[-1]
    table = fails(table, point)
    (pending,) = (n[:17] for n in timeline_names(table.path) if n.endswith("rollback.requested"))
    with pytest.raises(InvalidConfig, match=rf"{pending} .*is pending: complete it with .*repair"):
        table.changes(since=datetime_of(pending))
    with pytest.raises(InvalidConfig, match="is pending"):
        table.changes(since=pending)
    follower.follow_or_restart(table)
    follower.check(table)
    table.fsck(repair=True)
    follower.follow_or_restart(table)
    follower.check(table)
    assert follower.refused == 1 and seen not in times(table)
    assert table.changes(since=pending).num_rows == 0  # as every completed instant


def test_a_time_while_a_restore_ran_is_refused(tmp_path: Path) -> None:
    """On versions 8 and 9: the undone commits were visible until it was complete."""
    table = grown(tmp_path / "t", version=9)
    *_, third, _ = times(table)
    restored = table.restore(times(table)[1])
    done = table.timeline().query("action == 'restore'")["completion_time"].iloc[0]
    while_it_ran = datetime_of(done) - dt.timedelta(milliseconds=1)
    with pytest.raises(InvalidConfig, match=GONE.format(third, "restore")):
        table.changes(since=while_it_ran)
    for since in (restored.requested_time, datetime_of(done)):
        assert table.changes(since=since).num_rows == 0


# --- checkpoints ----------------------------------------------------------------------------------


def test_a_batch_that_another_engine_undid_is_not_archived(tmp_path: Path) -> None:
    """Even the first commit of a table, and if our next write found its rollback archived."""
    table = make(tmp_path / "t", **FEW)
    upsert(table, 0, [0, 1])
    (first,) = times(table)
    rolled_back_elsewhere(table, first)
    for number in range(1, 12):
        upsert(table, number, [0, 1])
        upsert(table, 99, [0, 1])
        rolled_back_elsewhere(table, times(table)[-1])
    timeline, checkpoint = table._handle.timeline, Checkpoint("query", 0, "mark")
    records = ProgressRecords(table._handle.storage)
    records.record([checkpoint], first)
    assert first < min(archived(table.path)) and archived(table.path, "rollback")
    assert not records.contains(checkpoint, timeline.commits_in_table())
    upsert(table, 100, [0])
    with pytest.raises(InvalidTable, match="batch 0 of query query is not in the table"):
        records.check_position(checkpoint, timeline.commits_in_table())


def test_a_batch_that_another_engine_undid_is_marked(tmp_path: Path) -> None:
    """By our next write, as after a rollback of ours: the mark outlives the rollback."""
    table = make(tmp_path / "t")
    upsert(table, 0, [0, 1])
    upsert(table, 1, [0, 1])
    records = ProgressRecords(table._handle.storage)
    records.record([Checkpoint("query", 0, "mark")], times(table)[-1])
    undone = rolled_back_elsewhere(table, times(table)[-1])
    upsert(table, 2, [0])
    assert [e.instant_time for e in records.entries("query")] == [f"undone by {undone}"]


# --- many histories -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("seed", range(3))
def test_followers_equal_the_table_or_are_refused(tmp_path: Path, version: int, seed: int) -> None:
    """Random writes, services and undoings, and followers that stay away for long."""
    draw = random.Random(seed)
    keep = {"hoodie.clean.commits.retained": 4, "hoodie.keep.min.commits": 6}
    table = make(tmp_path / "t", version, **keep, **{"hoodie.keep.max.commits": 8})
    followers = [Follower() for _ in range(6)]
    upsert(table, 0, range(6))
    for number in range(1, 45):
        lived(table, draw, number)
        follower = draw.choice(followers)
        follower.follow_or_restart(table, snapshot=number % 2 == 0)
        follower.check(table)
    for follower in followers:
        follower.follow_or_restart(table)
        follower.check(table)
    assert table.fsck() == [] and sum(f.refused for f in followers) > 1


def test_a_copy_of_a_table_is_followed_as_the_table_is(tmp_path: Path) -> None:
    """Nothing depends on the times of files."""
    table = grown(tmp_path / "t", version=6)
    follower = followed(table)
    table.restore(times(table)[1])
    shutil.copytree(table.path, tmp_path / "copy")
    copy = Table.open(tmp_path / "copy")
    upsert(copy, 9, [0])
    with pytest.raises(InvalidConfig, match="has undone it"):
        follower.follow(copy)
    assert copy.changes(since=dt.datetime.now(dt.UTC)).num_rows == 0
