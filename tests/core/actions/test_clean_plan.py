"""Which files a clean deletes: exactly those that no retained snapshot reads, against a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tables import data_files, hudi_rows, without_meta
from test_replaced import replaced_elsewhere

from hoodie_nb import Table
from hoodie_nb.actions.clean_plan import _Rule
from hoodie_nb.errors import InvalidConfig

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())])
OFF = {"hoodie.clean.automatic": "false"}


def make(
    path: Path | str, version: int = 6, *, if_exists: str = "error", **options: object
) -> Table:
    """Return a table whose keys are in two partitions."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_version": version}
    return Table.create(path, schema=SCHEMA, options=options, if_exists=if_exists, **keys)


def upsert(table: Table, number: int, keys: Sequence[int]) -> None:
    """Write some keys with a new value; even ones are in partition `a`."""
    ids, parts = [f"k{k}" for k in keys], ["ab"[k % 2] for k in keys]
    table.upsert(pa.table([ids, parts, [number] * len(ids)], schema=SCHEMA))


def visible(times: Sequence[str], at: str, replaced: str | None) -> str | None:
    """Return the slice that a reader sees as of a time: the model of a file group."""
    if replaced is not None and at >= replaced:
        return None
    return max((time17 for time17 in times if time17 <= at), default=None)


def test_a_slice_is_kept_if_and_only_if_a_retained_snapshot_reads_it() -> None:
    """For random groups, retentions, savepoints and replacements the rule is that of the model."""
    draw, deleted = random.Random(1), 0
    clock = [f"{n:02d}" for n in range(40)]
    for _ in range(3000):
        times = sorted(draw.sample(clock, draw.randint(1, 8)))
        replaced = draw.choice([None, None, draw.choice([t for t in clock if t not in times])])
        kept = tuple(sorted(draw.sample(clock, draw.randint(0, 2))))
        earliest = draw.randint(1, 39)
        versions = draw.choice([0, 0, 1, 2, 3])
        rule = _Rule(f"{earliest:02d}", versions, kept)
        gone = rule.unneeded(times, replaced)
        deleted += len(gone)
        before = [t for t in times if replaced is None or t <= replaced]
        read = {visible(before, at, replaced) for at in (*kept, *clock[earliest - 1 :])}
        if versions:
            read = {visible(before, at, replaced) for at in kept}
            read |= set() if replaced else set(before[-versions:])
        assert gone == [t for t in before if t not in read]
    assert deleted > 1000


@pytest.mark.parametrize("seed", range(12))
def test_random_tables_keep_every_retained_snapshot(tmp_path: Path, seed: int) -> None:
    """After each commit the last snapshots are as they were; an earlier one is that, or refused."""
    draw = random.Random(seed)
    retained = draw.randint(1, 4)
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": retained})
    seen: list[tuple[str, list[str]]] = []
    refused = 0
    for number in range(16):
        upsert(table, number, draw.sample(range(8), draw.randint(1, 5)))
        newest = table.history()["requested_time"].iloc[-1]
        seen.append((newest, without_meta(table.to_arrow())))
        for back, (time17, rows) in enumerate(reversed(seen)):
            try:
                assert without_meta(table.to_arrow(as_of=time17)) == rows
            except InvalidConfig as error:
                assert back > retained
                refused += 1
                first = str(error).partition("can be read is ")[2][:17]
                assert without_meta(table.to_arrow(as_of=first)) == dict(seen)[first]
            if back <= retained:
                assert hudi_rows(table.path, time17) == rows
    assert refused > 10 and table.fsck() == []
    assert table.events.records("clean_postponed") == []


def test_the_table_does_not_grow(tmp_path: Path) -> None:
    """With ten commits retained a file group has twelve files at most, however long it lives."""
    table = make(tmp_path / "t")
    for number in range(30):
        upsert(table, number, [0])
    assert len(data_files(table.path)) == 11
    assert len(table.events.records("files_cleaned")) == 19


@pytest.mark.parametrize(
    ("given", "left"), [({"commits": 2}, 3), ({"versions": 2}, 2), ({"hours": 1}, 8), ({}, 8)]
)
def test_cleaning_by_hand_follows_the_given_policy(
    tmp_path: Path, given: dict[str, int], left: int
) -> None:
    """A dry run names what the clean then deletes; a second clean has nothing to delete."""
    table = make(tmp_path / "t", **OFF)
    for number in range(8):
        upsert(table, number, [0])
    rows, before = without_meta(table.to_arrow()), data_files(table.path)
    plan = table.clean(dry_run=True, **given)
    assert data_files(table.path) == before and plan.requested_time is None
    done = table.clean(**given)
    assert before - data_files(table.path) == set(done.files) == set(plan.files)
    assert done.size_bytes == plan.size_bytes and (done.size_bytes > 0) == (left < 8)
    assert len(data_files(table.path)) == left
    assert table.clean(**given).files == ()
    assert without_meta(table.to_arrow()) == hudi_rows(table.path) == rows
    assert (done.requested_time is None) == (left == 8)
    assert f"{8 - left} files" in repr(done) and str(8 - left) in done._repr_html_()


def test_hours_count_by_the_clock(tmp_path: Path) -> None:
    """Commits of the last hours are retained, and what was current before the first of them."""
    table = make(tmp_path / "t", **{"hoodie.clean.policy": "keep_latest_by_hours"})
    clock = table._handle.clock = _Later()
    table._handle.timeline._clock = clock
    for number in range(6):
        upsert(table, number, [0])
        clock.ms += 10 * 3_600_000
    times = list(table.history()["requested_time"])
    assert len(data_files(table.path)) == 4  # 0, 10 and 20 hours old, and the one before
    assert table.to_arrow(as_of=times[-4])["ts"].to_pylist() == [2]
    with pytest.raises(InvalidConfig, match=f"can be read is {times[-4]}"):
        table.to_arrow(as_of=times[-5])


def spread(path: Path, **options: object) -> Table:
    """Return a table with a partition for each of thirty keys, and a clock set by the test."""
    table = Table.create(
        path, schema=SCHEMA, record_key="id", partition_by="p", ordering="ts", options=options
    )
    clock = table._handle.clock = table._handle.timeline._clock = _Later()
    ids = [f"k{n:02d}" for n in range(30)]
    table.upsert(pa.table([ids, ids, [0] * 30], schema=SCHEMA))
    clock.ms += 2000
    return table


def stream(table: Table, commits: int, seconds: float = 2) -> list[str]:
    """Change one key after the other, every few seconds; return the times of the commits."""
    times = []
    for number in range(commits):
        key = f"k{number % 30:02d}"
        commit = table.upsert(pa.table([[key], [key], [number + 1]], schema=SCHEMA))
        assert commit is not None
        times.append(commit.requested_time)
        table._handle.clock.sleep(seconds)
    return times


def readable(table: Table, times: Sequence[str]) -> int:
    """Return how many of the commits can be read, which are the last ones, by us and hudi-rs."""
    found = []
    for time17 in times:
        try:
            rows = without_meta(table.to_arrow(as_of=time17))
        except InvalidConfig:
            continue
        assert hudi_rows(table.path, time17) == rows
        found.append(time17)
    assert found == [*times][len(times) - len(found) :]
    return len(found)


def test_commits_of_the_last_hour_stay_while_their_old_files_are_few(tmp_path: Path) -> None:
    """Small commits of a fast stream: all can be read; a number that is given is exact."""
    table = spread(tmp_path / "t")
    assert readable(table, stream(table, 45)) == 45
    exact = spread(tmp_path / "exact", **{"hoodie.clean.commits.retained": 10})
    assert readable(exact, stream(exact, 45)) == 11
    assert table.fsck() == exact.fsck() == []


def test_old_files_have_at_most_twice_the_bytes_of_what_is_written_to(tmp_path: Path) -> None:
    """However long the stream runs; beyond that, ten commits are retained."""
    table = spread(tmp_path / "t")
    times = stream(table, 100)
    live = table.file_groups()["size_bytes"].sum()
    total = sum(file.stat().st_size for file in Path(table.path).glob("k*/*.parquet"))
    assert 2 * live < total <= 3 * live and 55 <= readable(table, times) <= 62
    assert len(table.timeline()) < 200
    whole = make(tmp_path / "whole")
    for number in range(30):
        upsert(whole, number, [0, 1])
    assert len(data_files(whole.path)) == 2 * 11


def test_commits_older_than_an_hour_are_cleaned_but_the_last_ten(tmp_path: Path) -> None:
    """Both must say so: older than the hour, and not one of the last ten."""
    table = spread(tmp_path / "t")
    assert readable(table, stream(table, 20, seconds=600)) == 11


def test_the_last_hour_is_that_of_this_process(tmp_path: Path) -> None:
    """Another process has not seen what earlier commits have made old, and retains ten."""
    table = spread(tmp_path / "t")
    times = stream(table, 40)
    other = Table.open(table.path)
    other._handle.clock = other._handle.timeline._clock = table._handle.clock
    times += stream(other, 1)
    assert readable(other, times) == 11


class _Later:
    """A clock that is set by the test."""

    ms = 1_800_000_000_000

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self.ms

    def sleep(self, seconds: float) -> None:
        """Advance the time."""
        self.ms += int(seconds * 1000)


def test_a_savepoint_keeps_its_snapshot(tmp_path: Path) -> None:
    """The snapshot of a savepoint stays readable; once it is deleted, a clean finds its files."""
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": 2})
    for number in range(3):
        upsert(table, number, [0, 1])
    saved = table.history()["requested_time"].iloc[-1]
    for name in (f"{saved}.savepoint.inflight", f"{saved}.savepoint"):
        (tmp_path / "t/.hoodie" / name).touch()
    rows = without_meta(table.to_arrow())
    for number in range(3, 10):
        upsert(table, number, [0, 1])
    assert without_meta(table.to_arrow(as_of=saved)) == rows
    assert len(data_files(table.path)) == 2 * 4
    for name in (f"{saved}.savepoint.inflight", f"{saved}.savepoint"):
        (tmp_path / "t/.hoodie" / name).unlink()
    upsert(table, 10, [0, 1])
    assert len(data_files(table.path)) == 2 * 3
    with pytest.raises(InvalidConfig, match="cleaned away"):
        table.to_arrow(as_of=saved)


def test_a_replaced_file_group_is_deleted_whole(tmp_path: Path) -> None:
    """Files of a group replaced before the first retained commit go, also its newest one."""
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": 2})
    upsert(table, 0, [0, 1])
    instant = replaced_elsewhere(tmp_path / "t", "a")
    before = {path for path in data_files(table.path) if path.startswith("a/")}
    for number in range(1, 4):
        upsert(table, number, [1])
        assert before <= data_files(table.path) or number >= 2
    assert not before & data_files(table.path) and table.fsck() == []
    assert hudi_rows(table.path) == without_meta(table.to_arrow())
    upsert(table, 5, [0])
    assert sorted(table.to_arrow()["id"].to_pylist()) == ["k0", "k1"]
    with pytest.raises(InvalidConfig, match="cleaned away"):
        table.to_arrow(as_of=str(int(instant) - 1))


def test_only_the_partitions_that_are_read_must_be_whole(tmp_path: Path) -> None:
    """A snapshot of one partition is not refused because files of another one are gone."""
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": 1})
    upsert(table, 0, [0, 1])
    first = table.history()["requested_time"].iloc[0]
    for number in range(1, 4):
        upsert(table, number, [0])
    rows = table.to_arrow(as_of=first, partitions=["b"])
    assert rows["id"].to_pylist() == ["k1"]
    for some in (None, ["a"], ["a", "b"]):
        with pytest.raises(InvalidConfig, match="cleaned away"):
            table.to_arrow(as_of=first, partitions=some)


def test_the_number_to_retain_is_checked(tmp_path: Path) -> None:
    """Zero, text and two policies at once are refused, as options too."""
    table = make(tmp_path / "t")
    for given in ({"commits": 0}, {"hours": -1}, {"versions": "3"}, {"commits": True}):
        with pytest.raises(InvalidConfig, match="integer of 1 or more"):
            table.clean(**given)
    with pytest.raises(InvalidConfig, match="give only one of"):
        table.clean(commits=1, hours=1)
    for name, value in (("commits.retained", 0), ("automatic", "yes"), ("policy", "ALL")):
        with pytest.raises(InvalidConfig, match=f"hoodie.clean.{name}"):
            make(tmp_path / "other", **{f"hoodie.clean.{name}": value})
