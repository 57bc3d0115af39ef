"""The archive of versions 8 and 9: Hudi's rows, few files, and nothing lost by a crash."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archives import FEW, active, archived, listed, lsm_rows
from each_fault import each_fault, opened
from tables import hudi_rows, pending_names, timeline_folder, timeline_names, tree, without_meta
from test_clean_plan import make, upsert

from hoodie_nb import Table, failpoints
from hoodie_nb.clock import SystemClock
from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.timeline.archive_lsm import LsmArchive
from hoodie_nb.timeline.instant import Instant, State

HISTORY = ".hoodie/timeline/history"
POINTS = [name for name in failpoints.NAMES if name.startswith("archive.")]


def seen(path: Path | str) -> list[str]:
    """Return the rows that both readers see."""
    found = without_meta(Table.open(path).to_arrow())
    assert hudi_rows(path) == found
    return found


def names(root: Path | str) -> list[str]:
    """Return the names of the archive's files."""
    return sorted(file.name for file in Path(root, HISTORY).iterdir())


def test_a_row_has_the_bytes_of_an_instants_files(tmp_path: Path) -> None:
    """The completed file, a clean's plan, and both times, as Java writes them."""
    table, files = make(tmp_path / "t", 9, **FEW), dict[str, bytes]()
    for number in range(8):
        folder = timeline_folder(table.path)
        files |= {name: (folder / name).read_bytes() for name in timeline_names(table.path)}
        upsert(table, number, [0, 1])
    found = lsm_rows(table.path)
    assert {row["action"] for row in found} == {"commit", "clean"}
    for row in found:
        time, action = row["instantTime"], row["action"]
        assert row["metadata"] == files[f"{time}_{row['completionTime']}.{action}"]
        assert row["plan"] == (files[f"{time}.clean.requested"] if action == "clean" else None)
        assert row["version"] == 1


def test_many_archivings_leave_few_files(tmp_path: Path) -> None:
    """Ten files of a level become one of the next; the files of three manifests are kept."""
    table, most = make(tmp_path / "t", 8, **FEW, **{"hoodie.clean.automatic": False}), 0
    for number in range(230):
        upsert(table, number, [number % 2])
        most = max(most, len(names(table.path)) if archived(table.path) else 0)
    levels = [int(re.split("[_.]", name)[2]) for name in listed(table.path)]
    assert sorted(levels, reverse=True) == [2, 1, *[0] * (levels.count(0))] and len(levels) <= 11
    assert most < 45
    manifests = sorted(Path(table.path, HISTORY).glob("manifest_*"), key=lambda f: int(f.name[9:]))
    kept = [{f["fileName"] for f in json.loads(m.read_text())["files"]} for m in manifests]
    assert 3 <= len(kept) <= 5 and {*listed(table.path)} == kept[-1]
    files = {name for name in names(table.path) if name.endswith(".parquet")}
    assert files == set().union(*kept)
    assert [*archived(table.path), *active(table.path)] == sorted(
        {*archived(table.path), *active(table.path)}
    )
    assert len(archived(table.path)) + len(active(table.path)) == 230
    assert len(list(table.to_arrow().to_pylist())) == 2 and table.fsck() == []


def test_a_file_that_counts_is_never_written_over(tmp_path: Path) -> None:
    """Other instants of the same times are refused, and the file keeps its rows."""
    archive = LsmArchive(LocalStorage(tmp_path), HISTORY)
    times = ("20261121070000001", "20261121070000002")

    def add(action: str) -> None:
        done = [Instant(t, action, State.COMPLETED, t) for t in times]
        archive.add(done, lambda instant: [(instant, b"x")])

    for _ in range(2):
        add("commit")
    before = tree(tmp_path / HISTORY)
    with pytest.raises(InvalidTable, match="exists already, with other instants"):
        add("rollback")
    assert tree(tmp_path / HISTORY) == before and archived(tmp_path) == [*times]


# --- crashes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(new_folder: Callable[[], Path]) -> Path:
    """A table whose next archiving fills a level: it adds the tenth file, and merges them."""
    table = make(new_folder() / "t", 9, **FEW)
    number = 0
    while len(listed(table.path)) < 9 or len(active(table.path)) < 3:
        upsert(table, number := number + 1, [0, 1])
    return Path(table.path)


def whole(root: Path, commits: int) -> None:
    """Each commit is archived once, or on the timeline; all readers see the newest rows."""
    known = {*archived(root), *active(root)}
    assert len(known) == commits
    assert sorted(known)[-len(active(root)) :] == active(root)
    assert not {name.split()[0] for name in pending_names(root)} & {*archived(root)}
    assert len(seen(root)) == 2


@pytest.mark.parametrize(
    "how",
    [
        *("before", "torn", "error"),
        pytest.param("after", marks=pytest.mark.slow),
        pytest.param("interrupt", marks=pytest.mark.slow),
    ],
)
def test_a_failure_anywhere_in_a_merge_loses_nothing(full: Path, how: str) -> None:
    """At any operation of an archiving that merges a level; later writers archive and merge."""
    commits, process = len({*archived(full), *active(full)}), partial(opened, clock=SystemClock())
    trials = each_fault(full, Table.archive, how, at_least=16, raises=OSError, process=process)
    for root, _ in trials:
        whole(root, commits)
        table = Table.open(root)
        for number in range(1000, 1006):
            upsert(table, number, [0, 1])
        whole(root, commits + 6)
        assert len(listed(root)) < 10 and table.fsck() == [] and pending_names(root) == []


STEPS = [p for p in POINTS if p.startswith("archive.lsm.")]


@pytest.mark.parametrize("step", [*itertools.product(STEPS[:3], [1, 2]), (STEPS[3], 1)])
def test_what_a_crash_left_does_not_count(
    full: Path, tmp_path: Path, step: tuple[str, int]
) -> None:
    """Of the first and the second file of an archiving; nothing is archived twice or missed."""
    root = Path(shutil.copytree(full, tmp_path / "t"))
    before, commits = archived(root), len({*archived(root), *active(root)})
    failpoints.arm(f"{step[0]}=raise:EIO@{step[1]}")
    try:
        with pytest.raises(OSError, match="Input/output"):
            Table.open(root).archive()
    finally:
        failpoints.arm("")
    assert (archived(root) == before) == (step in [(STEPS[0], 1), (STEPS[1], 1)])
    whole(root, commits)
    Table.open(root).archive()  # the same instants, into a file of the same name
    assert len(active(root)) == 2
    whole(root, commits)
    upsert(Table.open(root), 1000, [0, 1])
    upsert(Table.open(root), 1001, [0, 1])
    whole(root, commits + 2)


@pytest.mark.parametrize("version", ["", "x", "99"])
def test_without_a_version_the_newest_manifest_counts(
    full: Path, tmp_path: Path, version: str
) -> None:
    """As in Hudi, which deletes the file before it writes it again; a wrong one is an error."""
    root = Path(shutil.copytree(full, tmp_path / "t"))
    known, file = archived(root), root / HISTORY / "_version_"
    number = file.read_text()
    file.write_text(version)
    table = Table.open(root)
    for ts in (1000, 1001):
        upsert(table, ts, [0, 1])
    events = table.events.records("archive_postponed")
    if version == "99":
        assert "manifest_99 is missing): restore its files" in events[0].values["why"]
        assert len(active(root)) == 5
        file.write_text(number)
        upsert(table, 1002, [0, 1])
    assert known == archived(root)[: len(known)] and len(archived(root)) > len(known)
    assert bool(events) == (version == "99") and len(seen(root)) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"files": [{"fileName": "../x", "fileLen": 1}]}'])
def test_a_damaged_manifest_postpones_the_archiving(
    full: Path, tmp_path: Path, damage: bytes
) -> None:
    """The commit is valid, the event names the file, and nothing leaves the timeline."""
    root = Path(shutil.copytree(full, tmp_path / "t"))
    number = (root / HISTORY / "_version_").read_text()
    (root / HISTORY / f"manifest_{number}").write_bytes(damage)
    before, table = tree(root / HISTORY), Table.open(root)
    for ts in (1000, 1001):
        upsert(table, ts, [0, 1])
    why = table.events.records("archive_postponed")[0].values["why"]
    assert f"manifest_{number} " in why and "restore its files from a backup" in why
    assert tree(root / HISTORY) == before and len(active(root)) == 5 and len(seen(root)) == 2


@pytest.mark.parametrize("damage", ["no footer", "pages"])
def test_a_damaged_file_of_a_level_is_not_merged(full: Path, tmp_path: Path, damage: str) -> None:
    """The archive keeps all its files, and the event names it; instants are archived before."""
    root = Path(shutil.copytree(full, tmp_path / "t"))
    first = min(listed(root))
    whole_file = (root / HISTORY / first).read_bytes()
    pages = whole_file[:4] + bytes(len(whole_file) // 2) + whole_file[4 + len(whole_file) // 2 :]
    (root / HISTORY / first).write_bytes(b"PAR1" if damage == "no footer" else pages)
    table = Table.open(root)
    upsert(table, 1000, [0, 1])
    (event,) = table.events.records("archive_postponed")
    assert first in event.values["why"] and "from a backup" in event.values["why"]
    assert table.events.records("instants_archived")
    (root / HISTORY / first).write_bytes(whole_file)
    assert len(listed(root)) == 10 and len(active(root)) == 2
    table = Table.open(root)
    for ts in (1001, 1002):
        upsert(table, ts, [0, 1])
    assert len(listed(root)) == 2 and len(seen(root)) == 2


def test_every_name_of_an_instants_files_goes(tmp_path: Path) -> None:
    """A clustering is requested under another name; an old completed file has one time."""
    table = make(tmp_path / "t", 9, **FEW)
    upsert(table, 0, [0, 1])
    folder, (first,) = timeline_folder(table.path), active(table.path)
    table.insert_overwrite([{"id": "k0", "p": "a", "ts": 1}])
    (second,) = active(table.path, "replacecommit")
    (done,) = folder.glob(f"{first}_*.commit")
    done.rename(folder / f"{first}.commit")
    for state in ("requested", "inflight"):
        began = folder / f"{second}.replacecommit.{state}"
        began.rename(folder / f"{second}.clustering.{state}")
    table = Table.open(table.path)
    for number in range(2, 8):
        upsert(table, number, [0, 1])
    assert archived(table.path)[0] == first and archived(table.path, "replacecommit") == [second]
    assert not [name for name in timeline_names(table.path) if name[:17] in (first, second)]
    assert lsm_rows(table.path)[0]["completionTime"] >= first
    assert table.fsck() == [] and len(seen(table.path)) == 2


def test_a_file_with_other_columns_is_read_but_not_merged(full: Path, tmp_path: Path) -> None:
    """A newer Hudi may have written it: merging would drop its columns."""
    root = Path(shutil.copytree(full, tmp_path / "t"))
    name, number = min(listed(root)), (root / HISTORY / "_version_").read_text()
    file, manifest = root / HISTORY / name, root / HISTORY / f"manifest_{number}"
    size, rows = file.stat().st_size, pq.read_table(file)
    pq.write_table(rows.append_column("more", pa.nulls(len(rows), pa.string())), file)
    manifest.write_text(manifest.read_text().replace(f": {size}", f": {file.stat().st_size}", 1))
    before, table = len(archived(root)), Table.open(root)
    for ts in range(1000, 1012):
        upsert(table, ts, [0, 1])
    assert name in listed(root) and len(archived(root)) > before + 5
    assert not table.events.records("archive_postponed")
    assert len(seen(root)) == 2 and table.fsck() == []
