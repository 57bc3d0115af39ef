"""Automatic archiving: after commits, by Hudi's rules, and every reader goes on as before."""

from __future__ import annotations

import random
from pathlib import Path

import lives
import pytest
from archives import FEW, MAX, MIN, active, archived, plant, points, records
from tables import Model, hudi_rows, timeline_folder, timeline_names, without_meta
from test_clean_plan import make, upsert
from test_replaced import replaced_elsewhere

from hoodie_nb import Table, failpoints
from hoodie_nb.errors import InvalidConfig

OFF = {"hoodie.clean.automatic": "false"}


def rows(keys: list[int], number: int) -> list[dict[str, object]]:
    """Return the rows that `upsert` writes, for the model."""
    return [{"id": f"k{k}", "p": "ab"[k % 2], "ts": number} for k in keys]


def seen(table: Table) -> list[str]:
    """Return the rows that both readers see."""
    found = without_meta(table.to_arrow())
    assert hudi_rows(table.path) == found
    return found


@pytest.mark.parametrize("version", [6, 9])
def test_hudis_defaults_keep_twenty_to_thirty_commits(tmp_path: Path, version: int) -> None:
    """With more than thirty commits the oldest are archived until there are twenty."""
    table, model, found = make(tmp_path / "t", version), Model(), []
    for number in range(65):
        upsert(table, number, [number % 5])
        model.upsert(rows([number % 5], number))
        found.append(len(active(table.path)))
    assert found == [*range(1, 31), *range(20, 31), *range(20, 31), *range(20, 31), 20, 21]
    assert len(archived(table.path)) + found[-1] == 65
    assert max(archived(table.path)) < min(active(table.path))
    assert len(timeline_names(table.path)) <= 3 * 2 * 31
    assert seen(table) == model.snapshot() and table.fsck() == []


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("seed", range(6))
def test_random_tables_are_the_model_across_archiving(
    tmp_path: Path, version: int, seed: int
) -> None:
    """With tiny limits both readers see the model after each commit, also of a new process."""
    draw, model = random.Random(seed), Model()
    least = draw.randint(1, 4)
    given = {MIN: least, MAX: least + draw.randint(1, 3)}
    table = make(
        tmp_path / "t", version, **given, **{"hoodie.clean.commits.retained": draw.randint(1, 4)}
    )
    for number in range(25):
        keys = draw.sample(range(9), draw.randint(1, 4))
        if draw.random() < 0.2:
            table.delete([{"id": f"k{k}", "p": "ab"[k % 2]} for k in keys])
            model.delete([{"id": f"k{k}", "p": "ab"[k % 2]} for k in keys])
        else:
            upsert(table, number, keys)
            model.upsert(rows(keys, number))
        assert seen(table) == model.snapshot()
        if draw.random() < 0.3:
            table = Table.open(table.path)
    assert len(archived(table.path)) > 5 and table.fsck() == []


def test_the_archive_has_the_records_of_hudi(tmp_path: Path) -> None:
    """Each file of an instant is a record with its action, state and metadata."""
    table = make(tmp_path / "t", **FEW)
    for number in range(6):
        upsert(table, number, [0, 1])
    done = [r for r in records(table.path) if r["actionState"] == "COMPLETED"]
    commits = [r for r in done if r["actionType"] == "commit"]
    cleans = [r for r in done if r["actionType"] == "clean"]
    stats = commits[1]["hoodieCommitMetadata"]["partitionToWriteStats"]
    assert {*stats} == {"a", "b"} and stats["a"][0]["prevCommit"] == commits[0]["commitTime"]
    assert cleans[0]["hoodieCleanMetadata"]["totalFilesDeleted"] == 2
    states = [r["actionState"] for r in records(table.path)]
    assert states == ["REQUESTED", "INFLIGHT", "COMPLETED"] * (len(states) // 3)
    plans = [r["hoodieCleanerPlan"] for r in records(table.path) if r["actionType"] == "clean"]
    assert plans[0]["policy"] == "KEEP_LATEST_COMMITS"


@pytest.mark.parametrize("version", [6, 9])
def test_an_orphan_is_deleted_before_it_would_be_visible(tmp_path: Path, version: int) -> None:
    """A file that no commit names is hidden, and gone when the timeline begins later than it."""
    table, model = make(tmp_path / "t", version, **FEW), Model()
    upsert(table, 0, [0, 1, 2, 3])
    model.upsert(rows([0, 1, 2, 3], 0))
    orphan = plant(table.path, active(table.path)[0])
    for number in range(1, 8):
        upsert(table, number, [0])
        model.upsert(rows([0], number))
        assert seen(table) == model.snapshot()
        assert orphan.exists() == (not archived(table.path))
    assert len(archived(table.path)) > 3 and table.fsck() == []


def test_replaced_file_groups_with_files_keep_their_replacecommit(tmp_path: Path) -> None:
    """A group that was replaced never reappears: its replacecommit stays until they are cleaned."""
    table, model = make(tmp_path / "t", **FEW, **OFF), Model()
    upsert(table, 0, [0, 1])
    model.upsert(rows([0, 1], 0))
    replaced_elsewhere(Path(table.path), "a")
    model.delete(rows([0], 99))
    for number in range(1, 8):
        upsert(table, number, [1, 3])
        model.upsert(rows([1, 3], number))
        assert seen(table) == model.snapshot()
    assert archived(table.path) == [min([*active(table.path), *archived(table.path)])]
    assert active(table.path, "replacecommit") and not archived(table.path, "replacecommit")
    (event,) = {e.values["why"] for e in table.events.records("archive_postponed")}
    assert "not cleaned yet" in event
    table = Table.open(table.path)
    table.clean(commits=1)
    upsert(table, 9, [1])
    model.upsert(rows([1], 9))
    assert archived(table.path, "replacecommit") and seen(table) == model.snapshot()


@pytest.mark.parametrize("version", [6, 9])
def test_a_savepoint_stops_the_archiving(tmp_path: Path, version: int) -> None:
    """From the commit of a savepoint on all commits stay, and it can be read."""
    table = make(tmp_path / "t", version, **FEW)
    for number in range(2):
        upsert(table, number, [0, 1])
    saved, before = active(table.path)[1], seen(table)
    save(table, saved)
    for number in range(2, 9):
        upsert(table, number, [0, 1])
    assert len(archived(table.path)) == 1 and active(table.path)[0] == saved
    assert without_meta(table.to_arrow(as_of=saved)) == before == hudi_rows(table.path, saved)
    assert [finding.code for finding in table.fsck()] == ["damaged-savepoint"]  # it has no content


def test_commits_after_a_savepoint_are_never_archived(tmp_path: Path) -> None:
    """Other readers would hide their rows: the option of Hudi is refused, and the error says so."""
    with pytest.raises(InvalidConfig, match=r"beyond\.savepoint=True is not .* hide the rows"):
        make(tmp_path / "t", **{"hoodie.archive.beyond.savepoint": True})
    make(tmp_path / "t", **{"hoodie.archive.beyond.savepoint": "false"})


def save(table: Table, time17: str) -> None:
    """Put a savepoint on the timeline, as another engine would."""
    for suffix in (".savepoint.inflight", ".savepoint"):
        (timeline_folder(table.path) / f"{time17}{suffix}").write_bytes(b"")


@pytest.mark.parametrize("version", [6, 9])
def test_an_unfinished_instant_of_another_engine_stops_the_archiving(
    tmp_path: Path, version: int
) -> None:
    """The newest commit before it stays, so no reader takes its files for archived ones."""
    table = make(tmp_path / "t", version, **FEW)
    for number in range(3):
        upsert(table, number, [0, 1])
    last = active(table.path)[-1]
    for suffix in ("requested", "inflight"):
        (timeline_folder(table.path) / f"{int(last) + 1}.indexing.{suffix}").touch()
        (timeline_folder(table.path) / f"{int(last) + 2}.compaction.{suffix}").touch()
    for number in range(3, 9):
        upsert(table, number, [0, 1])
    assert active(table.path)[0] == last


@pytest.mark.parametrize("version", [6, 9])
def test_an_error_does_not_fail_the_commit(tmp_path: Path, version: int) -> None:
    """The commit succeeds, the error is an event, and a later commit archives."""
    for point in points(version):
        table = make(tmp_path / point, version, **FEW)
        for number in range(3):
            upsert(table, number, [0, 1])
        plant(table.path, active(table.path)[0])
        failpoints.arm(f"{point}=raise:EIO")
        try:
            upsert(table, 10, [0])
        finally:
            failpoints.arm("")
        (event,) = table.events.records("archive_postponed")
        assert "Input/output error" in event.values["why"]
        expected = seen(table)
        for number in range(11, 15):
            upsert(table, number, [5])
        assert len(archived(table.path)) >= 3 and table.fsck() == []
        assert [row for row in seen(table) if "k5" not in row] == expected


@pytest.mark.parametrize("version", [6, 9])
def test_a_commit_whose_file_is_lost_is_not_archived(tmp_path: Path, version: int) -> None:
    """Nobody would notice the loss afterwards: the archiving is postponed, and says why."""
    table = make(tmp_path / "t", version, **FEW)
    upsert(table, 0, [1])
    for number in range(2):
        upsert(table, number, [0])
    next(Path(table.path, "b").glob("*.parquet")).unlink()
    upsert(table, 3, [0])
    (event,) = table.events.records("archive_postponed")
    assert "is missing" in event.values["why"] and archived(table.path) == []


@pytest.mark.parametrize("version", [6, 9])
def test_a_file_whose_commit_was_lost_is_not_deleted(tmp_path: Path, version: int) -> None:
    """A base file of no commit may be the only copy of rows: a trace of its commit keeps it."""
    table = make(tmp_path / "t", version, **FEW)
    upsert(table, 0, [0])
    upsert(table, 1, [0, 1])
    upsert(table, 2, [0])
    lost = active(table.path)[1]
    for file in timeline_folder(table.path).glob(f"{lost}*"):
        file.unlink()
    (only,) = Path(table.path, "b").glob("*.parquet")
    table = Table.open(table.path)
    for number in range(3, 8):
        upsert(table, number, [0])
    assert only.exists() and archived(table.path) == []
    assert {
        "builds on it" in e.values["why"] for e in table.events.records("archive_postponed")
    } == {True}


def test_the_limits_of_hudi_are_checked(tmp_path: Path) -> None:
    """More commits must be allowed at most than at least, as in Hudi."""
    with pytest.raises(InvalidConfig, match=r"hoodie.keep.max.commits=20 must be greater than"):
        make(tmp_path / "t", **{MAX: 20})
    with pytest.raises(InvalidConfig, match=r"hoodie.keep.min.commits=0 must be an integer of 1"):
        make(tmp_path / "t", **{MIN: 0})


@pytest.mark.parametrize("version", [6, 9])
def test_what_cleaning_retains_stays(tmp_path: Path, version: int) -> None:
    """Where the cleaner retains more than the limits, its commits and one before them stay."""
    table = make(tmp_path / "t", version, **{"hoodie.clean.commits.retained": 6, MIN: 2, MAX: 4})
    found, snapshots = [], {}
    for number in range(14):
        upsert(table, number, [0, 1])
        found.append(len(active(table.path)))
        snapshots[active(table.path)[-1]] = without_meta(table.to_arrow())
    assert found == [1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8, 9, 7, 8]
    for time17 in active(table.path)[-7:]:
        assert without_meta(table.to_arrow(as_of=time17)) == snapshots[time17]
        assert hudi_rows(table.path, time17) == snapshots[time17]
    with pytest.raises(InvalidConfig, match="the earliest time that can be read"):
        table.to_arrow(as_of=archived(table.path)[0])


@pytest.mark.parametrize("version", [6, 9])
def test_a_time_before_archived_cleans_is_refused(tmp_path: Path, version: int) -> None:
    """Without a clean on the timeline, the archived ones say that files may be gone."""
    table = make(tmp_path / "t", version, **FEW)
    for number in range(20):
        upsert(table, number, [0, 1])
    for clean in timeline_folder(table.path).glob("*.clean*"):  # Java archives them all, too
        clean.unlink()
    assert archived(table.path, "clean")
    for time17 in (archived(table.path)[0], f"{int(active(table.path)[0]) - 1}"):
        with pytest.raises(InvalidConfig, match=f"can be read is {active(table.path)[0]}"):
            table.to_arrow(as_of=time17)
    never = make(tmp_path / "never", version, **FEW, **OFF)
    seen = []
    for number in range(9):
        upsert(never, number, [0, number])
        seen.append((active(never.path)[-1], without_meta(never.to_arrow())))
    assert archived(never.path)
    assert [(t, without_meta(never.to_arrow(as_of=t))) for t, _ in seen] == seen


@pytest.mark.parametrize("version", [6, 9])
def test_a_replay_of_archived_batches_is_skipped(tmp_path: Path, version: int) -> None:
    """A stream that starts over finds its batches in the table though their commits are gone."""
    root = lives.make(tmp_path / "t", version, **FEW)
    lives.live(lives.opened(root))
    first, before = archived(root)[0], timeline_names(root)
    assert first not in active(root)
    events = lives.live(lives.opened(root))
    assert len(events.records("batch_skipped")) == len(lives.BATCHES)
    assert timeline_names(root) == before
    assert hudi_rows(root) == lives.MODELS[-1]
