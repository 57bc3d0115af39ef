"""Cleaning, archiving and savepoints of merge-on-read tables: slices go with all their logs."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import fastavro
import pytest
from archives import MAX, MIN, active, archived, lsm_rows
from tables import (
    Model,
    cleaned_files,
    data_files,
    hudi_rows,
    pending_names,
    timeline_folder,
    timeline_names,
    without_meta,
)
from test_appending import make as create
from test_appending import row

from hoodie_nb import Table
from hoodie_nb.actions.clean_plan import CleanPlan
from hoodie_nb.actions.clean_records import encode_plan
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.evidence.outdated import Mark
from hoodie_nb.reading.read import slices_as_of

pytestmark = pytest.mark.usefixtures("many_logs")
OFF = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
FLAG = "_hoodie_is_deleted"
versions = pytest.mark.parametrize("version", [8, 9])


def make(root: Path, version: int = 9, logs: int = 2, **options: object) -> Table:
    """Create a merge-on-read table whose slices are rewritten after so many logs."""
    options = {**OFF, "hoodie.compact.inline.max.delta.commits": logs, **options}
    return create(root, options=options, table_version=version)


def sizes(table: Table | Path) -> tuple[int, int]:
    """Return how many base files and how many logs are on disk."""
    found = data_files(table.path if isinstance(table, Table) else table)
    logs = [path for path in found if ".log." in path]
    return len(found) - len(logs), len(logs)


def times_of(table: Table) -> list[str]:
    """Return the times of the completed commits on the timeline."""
    return [i.requested_time for i in open_table(table.path).timeline.completed_commits()]


def rows_of(table: Table, as_of: str | None = None) -> list[str]:
    """Return the rows as both readers see them."""
    found = without_meta(Table.open(table.path).to_arrow(as_of=as_of))
    assert hudi_rows(table.path, as_of) == found
    return found


def batch(draw: random.Random, number: int, keys: int = 20) -> list[dict[str, Any]]:
    """Return a batch of updates, late rows and deletes in two partitions."""
    return [
        row(f"k{k}", number - draw.choice([0, 0, 2]), number, "ab"[k % 2], **{FLAG: flag})
        for k in draw.sample(range(keys), draw.randint(1, 8))
        for flag in [draw.random() < 0.2 and number % 3 == 2]
    ]


def test_a_slice_goes_with_all_its_logs(tmp_path: Path) -> None:
    """Plan and result name them, in the form of Java's; a snapshot that read them is refused."""
    table = make(tmp_path / "t")
    for number in range(4):  # the last one writes the base file again
        table.upsert([row("k1", number, number), row("k2", number, number)])
    assert sizes(table) == (2, 2)
    old = {path for path in data_files(table.path) if times_of(table)[3] not in path}
    assert len(old) == 3
    assert table.clean(commits=2, dry_run=True).files == ()
    table.upsert([row("k1", 9, 9)])
    done = table.clean(commits=1)
    assert {*done.files} == old == cleaned_files(table.path)
    assert sizes(table) == (1, 1)
    folder = timeline_folder(table.path)
    (requested,) = folder.glob("*.clean.requested")
    (content,) = fastavro.reader(io.BytesIO(requested.read_bytes()))
    (paths,) = content["filePathsToBeDeletedPerPartition"].values()
    assert {file["filePath"] for file in paths} == {f"file:{table.path}/{path}" for path in old}
    assert not any(file["isBootstrapBaseFile"] for file in paths)
    assert content["earliestInstantToRetain"]["action"] == "deltacommit"
    assert rows_of(table) and table.fsck() == []
    for time17 in times_of(table)[:3]:
        with pytest.raises(InvalidConfig, match="were cleaned away"):
            table.to_arrow(as_of=time17)


@versions
@pytest.mark.parametrize("given", [{"commits": 1}, {"commits": 4}, {"versions": 2}])
@pytest.mark.parametrize("seed", range(3))
def test_what_stays_is_what_snapshots_read(
    tmp_path: Path, version: int, given: dict[str, int], seed: int
) -> None:
    """Exactly the files of retained snapshots and of the savepoint are left, and their rows."""
    draw = random.Random(seed)
    table = make(tmp_path / "t", version, draw.choice([1, 2, 4]))
    seen: dict[str, list[str]] = {}
    saved = ""
    most = 0
    for number in range(14):
        table.upsert(batch(draw, number))
        newest = times_of(table)[-1]
        seen[newest] = rows_of(table)
        if number == 4:
            saved = table.savepoint().requested_time
        if number % 3 == 1:
            table.clean(**given)
        most = max(most, sizes(table)[1])
    table.clean(**given)
    times = times_of(table)
    read = {saved, *times[-given.get("commits", 0) - 1 :]}
    kept = set()
    for time17 in read:
        kept |= {p for piece in slices_as_of(open_table(table.path), time17) for p in piece.paths}
        assert rows_of(table, time17) == seen[time17]
    if "commits" in given:
        assert {p for p in data_files(table.path) if p[2] != "." or p in kept} == kept
        slices = {p[2:].partition("_")[0] for p in kept if p[2] != "."}
        assert all(p[3:].partition("_")[0] in slices for p in data_files(table.path) - kept)
    assert cleaned_files(table.path) and not cleaned_files(table.path) & data_files(table.path)
    assert any(".log." in path for path in cleaned_files(table.path))
    assert most > 0 < sizes(table)[1]
    assert table.fsck() == []
    table.delete_savepoint(saved)
    table.clean(commits=1)
    assert rows_of(table) == seen[times[-1]]


@versions
def test_a_long_life_stays_small(tmp_path: Path, version: int) -> None:
    """Sixty batches with automatic cleaning and archiving: a bounded folder, the right rows."""
    more = {"hoodie.clean.commits.retained": 2, MIN: 4, MAX: 6}
    more |= {"hoodie.clean.automatic": "true", "hoodie.archive.automatic": "true"}
    table = make(tmp_path / "t", version, 10, **more)
    draw, model, found = random.Random(version), Model(), []
    table.upsert(rows := [row(f"k{k}", 0, 0, "ab"[k % 2]) for k in range(20)])
    model.upsert(rows)
    for number in range(1, 61):
        rows = [{**r, FLAG: r[FLAG] and number % 20 == 2} for r in batch(draw, number)]
        table.upsert(rows)
        model.upsert(rows)
        assert rows_of(table) == model.snapshot()
        found.append((*sizes(table), len(timeline_names(table.path))))
    assert max(logs for _, logs, _ in found) >= 5
    assert max(a + b for a, b, _ in found[30:]) <= max(a + b for a, b, _ in found[:30]) + 10
    assert max(names for *_, names in found) < 6 * 15
    assert len({*archived(table.path, "deltacommit")}) > 30
    assert len(archived(table.path, "clean")) > 3
    assert {*archived(table.path, "deltacommit")}.isdisjoint(active(table.path, "deltacommit"))
    assert pending_names(table.path) == [] and table.fsck() == []
    assert len(table.history()) == len(times_of(table))
    for time17 in times_of(table)[-3:]:
        assert rows_of(table, time17)
    with pytest.raises(InvalidConfig, match="earliest time that can be read"):
        table.to_arrow(as_of=archived(table.path, "deltacommit")[-1])
    assert table.index_status() == table.rebuild_index() or table.rebuild_index().pure
    table.upsert(rows := batch(draw, 61))
    model.upsert(rows)
    assert rows_of(table) == model.snapshot()


def test_a_slice_with_an_old_log_is_due(tmp_path: Path) -> None:
    """Else its log would keep all later commits on the timeline."""
    table = make(tmp_path / "t", 9, 10, **{MIN: 2, MAX: 4})
    table.upsert([row("k1", 0), row("x", 0, p="b")])
    table.upsert([row("k1", 1)])
    for number in range(2, 5):
        table.upsert([row("x", number, p="b")])
    assert sizes(table) == (2, 4)
    table.upsert([row("k1", 9)])  # the log is the fourth last commit's
    assert sizes(table) == (2, 5)
    table.upsert([row("k1", 10)])
    assert sizes(table) == (3, 5)


def test_a_commit_whose_log_is_there_stays_on_the_timeline(tmp_path: Path) -> None:
    """The plan says which; once the slice is merged and cleaned, its commits are archived."""
    table = make(tmp_path / "t", **{MIN: 1, MAX: 2, "hoodie.clean.commits.retained": 1})
    table.upsert([row("k1", 0), row("x", 0, p="b")])
    table.upsert([row("k1", 1)])
    for number in range(2, 6):
        table.upsert([row("y", number, p="c")])
    times = times_of(table)
    found = table.archive()
    assert times_of(table) == times[1:] and found.start == times[1]
    assert f"{times[1]} deltacommit" in found.kept_because
    assert "wrote log file a/." in found.kept_because
    assert "not merged and cleaned yet" in found.kept_because
    assert rows_of(table)
    for number in range(6, 9):
        table.upsert([row("k1", number)])
    table.clean()
    table.archive()
    assert len(times_of(table)) == 2
    assert rows_of(table) and table.fsck() == []


def test_a_compaction_leaves_the_timeline_whole(tmp_path: Path) -> None:
    """Its requested and inflight files have another name than the completed one."""
    table = make(tmp_path / "t", 9, 1, **{MIN: 1, MAX: 2, "hoodie.clean.commits.retained": 1})
    table.upsert([row("k1", 0)])
    table.upsert([row("k1", 1)])
    table.upsert([row("k1", 2)])  # a base file
    time17 = times_of(table)[-1]
    for file in timeline_folder(table.path).glob(f"{time17}*"):
        pending = file.suffix != ".deltacommit"
        name = file.name.replace(".deltacommit", ".compaction" if pending else ".commit")
        file.rename(file.with_name(name))
    (timeline_folder(table.path) / f"{time17}.compaction.requested").write_bytes(b"the plan")
    table = Table.open(table.path)
    for number in range(3, 9):
        table.upsert([row("k1", number)])
        table.clean()
    table.archive()
    (found,) = [r for r in lsm_rows(table.path) if r["instantTime"] == time17]
    assert (found["action"], found["plan"]) == ("commit", b"the plan")
    assert not [name for name in timeline_names(table.path) if name.startswith(time17)]
    table.upsert([row("k1", 10)])
    assert pending_names(table.path) == [] and rows_of(table)


def test_a_lost_log_is_not_forgotten(tmp_path: Path) -> None:
    """Once its commit is archived, nobody would miss it; so it is not archived."""
    table = make(tmp_path / "t", **{MIN: 1, MAX: 2, "hoodie.clean.commits.retained": 1})
    table.upsert([row("k1", 0), row("x", 0, p="b")])
    table.upsert([row("k1", 1)])
    for number in range(2, 6):
        table.upsert([row("y", number, p="c")])
    (log,) = Path(table.path, "a").glob(".*.log.*")
    log.rename(tmp_path / "kept")
    before = timeline_names(table.path)
    with pytest.raises(InvalidTable, match=r"\.log\..* is missing"):
        table.archive()
    assert timeline_names(table.path) == before
    (tmp_path / "kept").rename(log)
    table.archive()
    assert rows_of(table)


def test_a_log_of_no_commit_does_not_come_back(tmp_path: Path) -> None:
    """A log of a writer that left no marker would count as archived: it is deleted before."""
    table = make(tmp_path / "t", 9, 1, **{MIN: 1, MAX: 2, "hoodie.clean.commits.retained": 1})
    table.upsert([row("k1", 0)])
    table.upsert([row("k1", 1)])
    (log,) = Path(table.path, "a").glob(".*.log.*")
    time17 = times_of(table)[1]
    stray = log.with_name(log.name.replace(time17, str(int(time17) + 1)))
    stray.write_bytes(log.read_bytes())
    other = tmp_path / "t/copy" / stray.name
    for number in range(2, 8):
        table.upsert([row("k1", number)])
        table.clean()
    assert stray.exists()
    found = table.archive()
    assert found.deleted == (f"a/{stray.name}",) and not stray.exists()
    assert rows_of(table) and table.fsck() == []
    newest = times_of(table)[-1]
    other.parent.mkdir()
    other = other.with_name(stray.name.replace(str(int(time17) + 1), str(int(newest) + 1)))
    other.write_bytes(b"")
    for number in range(8, 14):
        table.upsert([row("k1", number)])
        table.clean()
    assert "'copy' is not a partition" in table.archive().kept_because
    assert other.exists()


def test_a_savepoint_names_logs_and_keeps_them(tmp_path: Path) -> None:
    """Base files and logs, as Java does; without it they are cleaned."""
    table = make(tmp_path / "t")
    table.upsert([row("k1", 0), row("k2", 0)])
    table.upsert([row("k1", 1, 1)])
    files = {path.rpartition("/")[2] for path in data_files(table.path)}
    seen = rows_of(table)
    saved = table.savepoint(comment="before")
    assert saved.files == 2 == table.savepoints()["files"].iloc[0]
    (file,) = timeline_folder(table.path).glob("*.savepoint")
    (content,) = fastavro.reader(io.BytesIO(file.read_bytes()))
    assert {*content["partitionMetadata"]["a"]["savepointDataFile"]} == files
    for number in range(2, 9):
        table.upsert([row("k1", number, number)])
    table.clean(commits=1)
    assert files <= {path.rpartition("/")[2] for path in data_files(table.path)}
    assert rows_of(table, saved.requested_time) == seen
    table.delete_savepoint(saved)
    table.clean(commits=1)
    assert not files & {path.rpartition("/")[2] for path in data_files(table.path)}
    assert rows_of(table) and table.fsck() == []


def test_the_next_clean_finds_what_delta_commits_made_old(tmp_path: Path) -> None:
    """It looks only at partitions that commits since the last one have changed."""
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": 1})
    for number in range(4):
        table.upsert([row("k1", number), row("x", number, p="b")])
    for number in range(4, 8):
        table.upsert([row("k1", number)])
        table.clean()
    for number in range(8, 16):
        table.upsert([row("x", number, p="b")])
        table.clean()
    assert table.clean(commits=1, dry_run=True).files == ()
    assert sizes(table)[0] <= 4


def test_a_plan_of_another_engine_is_completed(tmp_path: Path) -> None:
    """Of its files those go that no snapshot of now reads; the log of a newer slice stays."""
    table = make(tmp_path / "t")
    for number in range(5):
        table.upsert([row("k1", number, number), row("k2", number, number)])
    handle = open_table(table.path)
    newest = handle.timeline.completed_commits()[-1]
    named = sorted(path[2:] for path in data_files(table.path))
    assert sizes(table) == (2, 3)
    mark = Mark(0, newest.requested_time, frozenset())
    clean = CleanPlan("KEEP_LATEST_COMMITS", newest, newest.requested_time, mark, {"a": named})
    handle.timeline.request("clean", encode_plan(clean, handle.storage))
    table.upsert([row("x", 1, p="b")])
    assert pending_names(table.path) == []
    assert sizes(table) == (2, 1)
    assert rows_of(table) and table.fsck() == []


def test_a_log_whose_commit_is_lost_is_not_deleted(tmp_path: Path) -> None:
    """If all files of an instant are lost, its log is the only copy of its rows, and no trace."""
    table = make(tmp_path / "t", **{"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3})
    table.upsert([row(f"k{n}", 1) for n in range(4)])
    table.upsert([row("k1", 2)])
    folder = timeline_folder(table.path)
    lost = times_of(table)[-1]
    (log,) = (path for path in data_files(table.path) if f"{lost}.log" in path)
    files = {path: path.read_bytes() for path in folder.glob(f"{lost}*")}
    for path in files:
        path.unlink()
    table = Table.open(table.path)
    for number in range(12):
        table.insert_overwrite([row("x", number, p="b")])
    table.clean(commits=1)
    with pytest.raises(InvalidTable, match=rf"nothing says that its instant {lost} was undone"):
        table.archive()
    assert Path(table.path, log).exists()
    for path, content in files.items():
        path.write_bytes(content)
    found = {r["id"]: r["ts"] for r in Table.open(table.path).to_arrow().to_pylist()}
    assert found == {"k0": 1, "k1": 2, "k2": 1, "k3": 1, "x": 11}
    assert table.fsck() == []
