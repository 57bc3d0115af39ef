"""Which logs belong to which slice, and what looking for them costs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from counted_storage import CountedStorage
from java_logs import VERSIONS, java_table
from tables import tree

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.timeline.timeline import Timeline
from hoodie_nb.view.file_groups import FileSlice
from hoodie_nb.view.partitions import Partitions
from hoodie_nb.view.read_handle import open_to_read


def slices(root: Path) -> dict[str, FileSlice]:
    """Return the newest slices by file id."""
    return {piece.file_id: piece for piece in open_to_read(str(root)).file_groups()}


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_of_a_pending_compaction_belong_to_the_slice_before(
    tmp_path: Path, version: int
) -> None:
    """Version 6 gives them the compaction's instant, later versions their own."""
    root = java_table(tmp_path, version, "pending")
    found = [piece for piece in slices(root).values() if piece.logs]
    assert found
    for piece in found:
        assert len(piece.logs) == len([*root.glob(f"{piece.partition_path}/.{piece.file_id}_*")])
        times = {log.name.instant_time for log in piece.logs}
        compaction = next(root.rglob("*.compaction.requested")).name[:17]
        assert (compaction in times) == (version == 6)


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_that_a_compaction_has_merged_belong_to_no_new_slice(
    tmp_path: Path, version: int
) -> None:
    """They are still there, beside the newer base file."""
    root = java_table(tmp_path, version)
    for piece in slices(root).values():
        named = [log.name.instant_time for log in piece.logs]
        assert all(time17 >= piece.instant_time for time17 in named)
    older = {p.name for p in root.glob("a/.*.log.*")}
    assert older - {path.rpartition("/")[2] for s in slices(root).values() for path in s.paths}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replaced_group_is_gone_with_its_logs(tmp_path: Path, version: int) -> None:
    """The overwrite of partition b left one group; the logs of the others are not a slice."""
    root = java_table(tmp_path, version)
    assert len([*root.glob("b/.*.log.*")]) > 5
    assert len([s for s in slices(root).values() if s.partition_path == "b"]) == 1


def test_a_group_without_base_file_is_a_slice(tmp_path: Path) -> None:
    """Its instant is that of its first log."""
    for piece in slices(java_table(tmp_path, 9, "log_only")).values():
        assert piece.file_name == ""
        assert piece.instant_time == piece.logs[0].name.instant_time
        assert piece.paths == tuple(log.path for log in piece.logs)


def test_the_path_of_a_slice_with_logs_is_refused(tmp_path: Path) -> None:
    """Code that knows nothing of logs gets an error, not the rows of the base file."""
    piece = next(s for s in slices(java_table(tmp_path, 9, "pending")).values() if s.logs)
    with pytest.raises(InvalidTable, match="log files"):
        _ = piece.path


def test_an_archived_log_belongs_where_the_archive_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log whose instant began before a compaction and ended after it is not in its base file."""
    root = java_table(tmp_path, 9)
    piece = next(s for s in slices(root).values() if s.logs and s.partition_path == "a")
    old = sorted(root.glob(f"a/.{piece.file_id}_*.log.*"))[0]
    table = open_to_read(str(root))
    began = old.name.split("_")[1].split(".")[0]
    for file in (root / ".hoodie" / "timeline").glob(f"{began}*"):
        file.unlink()  # as if it was archived: it is now older than the timeline
    first = root / ".hoodie" / "timeline"
    for file in first.glob(f"{piece_start(root)}*"):
        file.unlink()
    for archived, joins in [({}, False), ({began: "20990101000000000"}, True)]:
        timeline = Timeline(table.storage, table.clock, table.config.layout)
        monkeypatch.setattr(timeline.archive, "completion_times", lambda known=archived: known)
        view = Partitions(table.storage, timeline, deltas=table.logs_named).listed()
        logs = view.partition("a")[piece.file_id].logs
        assert (old.name in {log.path.rpartition("/")[2] for log in logs}) == joins


def piece_start(root: Path) -> str:
    """Return the time of the first instant of the timeline."""
    return min(file.name[:17] for file in (root / ".hoodie" / "timeline").glob("2*"))


def test_a_copy_on_write_table_pays_nothing(tmp_path: Path) -> None:
    """Files with names of logs are ignored there, and no request is made for them."""
    table = made(tmp_path / "t")
    requests = []
    for _ in range(2):
        storage = CountedStorage(table._handle.storage)
        handle = open_to_read(storage)
        found = [*handle.file_groups()]
        assert [piece.logs for piece in found] == [()]
        requests.append(dict(storage.requests))
        name = f".{found[0].file_id}_{found[0].instant_time}.log.1_0-0-0"
        Path(table.path, name).write_bytes(b"no log")
    assert requests[0] == requests[1]


def made(path: Path) -> Table:
    """Return a copy-on-write table with one file."""
    schema = pa.schema([("id", pa.string()), ("v", pa.int32())])
    table = Table.create(path, schema=schema, record_key="id")
    table.upsert([{"id": "a", "v": 1}])
    return table


def test_a_merge_on_read_view_reads_each_folder_once(tmp_path: Path) -> None:
    """The logs come from the listing that there is; the delta commits say which there must be."""
    root = java_table(tmp_path / "t", 9)
    storage = CountedStorage(open_to_read(str(root)).storage)
    [*open_to_read(storage).file_groups()]
    plain = shutil.copytree(root, tmp_path / "u")
    text = (plain / ".hoodie" / "hoodie.properties").read_text()
    text = text.replace("MERGE_ON_READ", "COPY_ON_WRITE")
    (plain / ".hoodie" / "hoodie.properties").write_text(text)
    other = CountedStorage(open_to_read(str(plain)).storage)
    [*open_to_read(other).file_groups()]
    assert storage.requests["LIST"] == other.requests["LIST"]
    deltas = len(open_to_read(str(root)).timeline.listing.completed("deltacommit"))
    assert 0 < storage.requests["GET"] - other.requests["GET"] <= deltas
    assert tree(root) == tree(java_table(tmp_path / "v", 9))
