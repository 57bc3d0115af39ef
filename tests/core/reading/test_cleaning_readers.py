"""Reads beside cleaning: the rows of one snapshot, or a clear error, whatever is deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from archives import FEW
from overtaken import listing, overtaken
from tables import without_meta
from test_clean_plan import SCHEMA, make, upsert

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.reading.read import Scan

ONE = {"hoodie.clean.commits.retained": 1}


@pytest.mark.parametrize("retained", [1, 10])
def test_a_snapshot_that_cleans_overtake_is_listed_again(tmp_path: Path, retained: int) -> None:
    """All files of a group that counted when the read began are gone: its rows must not be."""
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": retained})
    for number in range(2):
        upsert(table, number, [0, 1])

    def write() -> None:
        for number in range(2, 4 + retained):
            upsert(table, number, [0])

    reader, storage = overtaken(table, listing("a"), write)
    found = without_meta(reader.to_arrow())
    assert storage.fired and found == without_meta(table.to_arrow())
    assert len(found) == 2


def test_a_file_that_is_cleaned_away_before_it_is_read_is_named_so(tmp_path: Path) -> None:
    """A reader that takes too long gets an error about cleaning, and no wrong rows."""
    table = make(tmp_path / "t", **ONE)
    upsert(table, 0, [0, 1])
    scan = Scan.of(Table.open(table.path)._handle)
    for number in range(1, 4):
        upsert(table, number, [0, 1])
    with pytest.raises(InvalidTable, match=r"was cleaned away.*hoodie\.clean\.commits\.retained"):
        scan.read()


def test_changes_that_the_first_clean_overtakes_are_refused(tmp_path: Path) -> None:
    """No clean was on the timeline when it was listed: what is gone is not called lost."""
    table = make(tmp_path / "t", **{"hoodie.clean.automatic": False})
    for number in range(4):
        upsert(table, number, [0, 1])
    first = table.history()["requested_time"].iloc[0]
    reader, storage = overtaken(table, listing("a"), lambda: table.clean(commits=1))
    with pytest.raises(InvalidConfig, match="a cleaner removed it"):
        reader.changes(since=first)
    assert storage.fired


def test_changes_whose_logs_a_clean_overtakes_are_looked_up_again(tmp_path: Path) -> None:
    """A log that is compacted and cleaned away while folders are listed is not called lost."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_version": 9}
    options = {**ONE, "hoodie_nb.append.above.bytes": 0}
    table = Table.create(
        tmp_path / "t", schema=SCHEMA, table_type="merge_on_read", options=options, **keys
    )
    for number in range(3):
        upsert(table, number, [0, 1])

    def write() -> None:
        table.compact()
        for number in range(3, 6):
            upsert(table, number, [0, 1])
        table.clean()

    reader, storage = overtaken(table, listing("a"), write)
    found = reader.changes(since="earliest")
    assert storage.fired
    assert [*map(str, found["_change"].unique())] == ["insert"]
    assert without_meta(found.drop_columns("_change")) == without_meta(table.to_arrow())


def archive(root: Path, *kinds: str, keep: int) -> None:
    """Archive the timeline's files of these actions but for the newest instants, as Java does."""
    folder = root / ".hoodie"
    (folder / "archived").mkdir(exist_ok=True)
    named = [f for f in folder.glob("2*") if any(f".{kind}" in f.name for kind in kinds)]
    newest = sorted({f.name[:17] for f in named})[-keep:]
    for file in named:
        if file.name[:17] not in newest:
            file.rename(folder / "archived" / file.name)


def test_times_whose_cleans_were_archived_are_refused(tmp_path: Path) -> None:
    """Without the records of what was deleted an older file would be taken for the right one."""
    table = make(tmp_path / "t", **ONE)
    seen = []
    for number in range(10):
        upsert(table, number, [0, 1])
        seen.append((table.history()["requested_time"].iloc[-1], without_meta(table.to_arrow())))
        if number == 2:
            for state in ("savepoint.inflight", "savepoint"):
                (Path(table.path, ".hoodie") / f"{seen[2][0]}.{state}").touch()
    archive(Path(table.path), "clean", keep=2)
    right, refused = [], []
    for number, (time17, rows) in enumerate(seen):
        try:
            assert without_meta(Table.open(table.path).to_arrow(as_of=time17)) == rows
            right.append(number)
        except InvalidConfig:
            refused.append(number)
    assert right == [2, 8, 9] and refused == [0, 1, 3, 4, 5, 6, 7]


def test_times_before_an_archived_timeline_are_refused(tmp_path: Path) -> None:
    """Commits and cleans were archived: a snapshot as of them may lack whole file groups."""
    table = make(tmp_path / "t", **ONE)
    for number in range(8):
        upsert(table, number, [0, 1])
    times = table.history()["requested_time"].tolist()
    archive(Path(table.path), "clean", "commit", "inflight", keep=3)
    with pytest.raises(InvalidConfig, match="earliest time that can be read"):
        Table.open(table.path).to_arrow(as_of=times[1])
    assert Table.open(table.path).to_arrow().num_rows == 2


def test_a_table_with_a_lost_file_is_not_cleaned(tmp_path: Path) -> None:
    """A file beside the lost one looks newer: the older one may be the only good copy."""
    table = make(tmp_path / "t", **{"hoodie.clean.commits.retained": 2})
    upsert(table, 0, [0, 2])
    upsert(table, 1, [1])
    times = table.history()["requested_time"].tolist()
    (good,) = Path(table.path, "a").glob("*.parquet")
    orphan = good.name.replace("0-0-0", "9-9-9").replace(times[0], times[1])
    for number in range(2, 5):
        upsert(table, number, [1])
    shutil.copy(good, good.with_name(orphan))
    assert Table.open(table.path).clean().files == ()  # it has not changed since the last clean
    with pytest.raises(InvalidTable, match="another file"):
        Table.open(table.path).clean(commits=2)
    assert good.exists()


def test_a_damaged_record_of_a_clean_is_named(tmp_path: Path) -> None:
    """A completed clean without its fields is an error about that file."""
    table = make(tmp_path / "t", **ONE)
    for number in range(4):
        upsert(table, number, [0])
    first = table.history()["requested_time"].iloc[0]
    for file in Path(table.path, ".hoodie").glob("*.clean"):
        file.write_bytes(file.read_bytes().replace(b"deletePathPatterns", b"deletePathPatterms"))
    with pytest.raises(InvalidTable, match=r"cannot be read.*give earlier times up"):
        Table.open(table.path).to_arrow(as_of=first)


def test_a_replaced_file_of_an_archived_commit_is_not_missed(tmp_path: Path) -> None:
    """Its clean stays on the timeline longer than the commit that replaced it: the past is read."""
    table = make(tmp_path / "t", **FEW)
    upsert(table, 0, [0, 1])
    table.insert_overwrite(table.to_arrow(meta=False), scope="table")
    snapshots = {}
    for number in range(1, 6):
        upsert(table, number, [0, number])
        times = list(table.history()["requested_time"])
        snapshots[times[-1]] = without_meta(table.to_arrow())
        for time17 in times[-2:]:
            if time17 in snapshots:
                assert without_meta(table.to_arrow(as_of=time17)) == snapshots[time17]
    assert "replacecommit" not in set(table.timeline()["action"])
    with pytest.raises(InvalidConfig, match="can be read is"):
        table.to_arrow(as_of=min(snapshots))
