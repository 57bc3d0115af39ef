"""Reads beside a rollback or restore: the rows of one state of the table, or an error that says so.

The n-th commit of a table has the value n in a key of partition `a` and in one of `b`; the newest
is undone by another handle while the reader is at work.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from overtaken import listing, opening, overtaken
from tables import commit_content, edited_elsewhere, hudi_rows, timeline_folder, without_meta
from test_clean_plan import make, upsert
from test_restore import grown
from test_savepoints import TWO, times

from hoodie_nb import Table, failpoints
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import ConcurrentWriter, HoodieError, InvalidConfig, InvalidTable

UNDO: dict[str, Callable[[Table], object]] = {
    "rollback": lambda table: table.rollback(),
    "restore": lambda table: table.restore(times(table)[-2]),
}
READS: dict[str, Callable[[Table, list[str]], pa.Table]] = {
    "to_arrow": lambda table, _: table.to_arrow(),
    "to_pandas": lambda table, _: pa.Table.from_pandas(table.to_pandas()),
    "stream": lambda table, _: pa.RecordBatchReader.from_stream(table).read_all(),
    "filters": lambda table, _: table.to_arrow(filters="ts >= 0"),
    "partitions": lambda table, _: table.to_arrow(partitions=["a", "b"]),
    "as_of": lambda table, known: table.to_arrow(as_of=known[-1]),
    "changes": lambda table, known: table.changes(since=known[0]),
    "all changes": lambda table, _: table.changes(since="earliest"),
}
LOOKS = {"between two partitions": listing("b"), "before it opens a file": opening}
each_version = pytest.mark.parametrize("version", [6, 9])
each_undo = pytest.mark.parametrize("action", UNDO)


@each_version
@each_undo
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("read", READS)
def test_a_reader_that_an_undo_overtakes_has_the_rows_without_it(
    tmp_path: Path, version: int, action: str, look: str, read: str
) -> None:
    """Between two partitions, or between listing and opening: never rows of two states."""
    table = grown(tmp_path / "t", version=version)
    known = times(table)
    reader, storage = overtaken(table, LOOKS[look], lambda: UNDO[action](Table.open(table.path)))
    found = READS[read](reader, known)
    assert storage.fired and times(table) == known[:-1]
    assert found["ts"].to_pylist() == [2, 2]
    assert hudi_rows(table.path) == without_meta(reader.to_arrow())


@each_version
@each_undo
def test_a_list_of_file_groups_is_that_of_one_state(
    tmp_path: Path, version: int, action: str
) -> None:
    """`file_groups` and the files of Spark's tasks have no slice of what was undone meanwhile."""
    table = grown(tmp_path / "t", version=version)
    known = times(table)
    reader, storage = overtaken(table, listing("b"), lambda: UNDO[action](Table.open(table.path)))
    found = reader.file_groups()
    assert storage.fired and found["instant_time"].tolist() == [known[-2]] * 2


@each_version
@each_undo
def test_the_history_is_that_of_one_moment(tmp_path: Path, version: int, action: str) -> None:
    """A commit that is undone while the commits are read is in the history wholly or not."""
    table = grown(tmp_path / "t", version=version)
    known = times(table)
    newest = next(f.name for f in timeline_folder(table.path).glob(f"{known[-1]}*.commit"))
    reader, storage = overtaken(
        table,
        lambda name, path: name == "fetch" and path.endswith(newest),
        lambda: UNDO[action](Table.open(table.path)),
    )
    assert reader.history()["requested_time"].tolist() == known[:-1] and storage.fired


@each_version
@each_undo
@pytest.mark.parametrize("method", ["file_names", "fetch"])
def test_refused_rows_that_are_undone_meanwhile(
    tmp_path: Path, version: int, action: str, method: str
) -> None:
    """They are neither shown in part nor taken for a damaged file."""
    table = grown(tmp_path / "t", version=version)
    for number in (10, 11):
        given = [{"id": None, "p": "a", "ts": number}, {"id": "k0", "p": "a", "ts": number}]
        table.upsert(given, on_bad_record="quarantine")
    before = table.quarantine()
    at = itertools.count(0 if method == "fetch" else 1)  # the second file, or the first listing
    reader, storage = overtaken(
        table,
        lambda name, path: name == method and "/quarantine" in path and next(at) == 1,
        lambda: UNDO[action](Table.open(table.path)),
    )
    found = reader.quarantine()
    assert storage.fired and before.num_rows == 2 and found.equals(before.slice(0, 1))


@each_version
@each_undo
@pytest.mark.parametrize("look", LOOKS)
def test_an_undo_during_a_check_is_no_finding(
    tmp_path: Path, version: int, action: str, look: str
) -> None:
    """`fsck` looks again: what a rollback or restore deletes meanwhile is neither lost nor old."""
    table = grown(tmp_path / "t", version=version)
    _, storage = overtaken(table, LOOKS[look], lambda: UNDO[action](Table.open(table.path)))
    assert fsck(storage) == [] and storage.fired and len(times(table)) == 3


@each_version
@pytest.mark.parametrize("point", ["restore.rollback.post", "restore.withdrawn.post"])
@pytest.mark.parametrize("action", UNDO)
def test_a_reader_beside_an_undo_that_stops_halfway(
    tmp_path: Path, version: int, action: str, point: str
) -> None:
    """A commit counts until its completed file is gone, wherever the undo dies."""
    table = grown(tmp_path / "t", version=version)

    def dies() -> None:
        failpoints.arm(f"{point}=raise:EIO")
        try:
            with pytest.raises((HoodieError, OSError), match="Input/output"):
                UNDO[action](Table.open(table.path))
        finally:
            failpoints.arm("")

    reader, storage = overtaken(table, listing("b"), dies)
    found = reader.to_arrow()
    expected = 3 if point == "restore.rollback.post" else 2
    assert storage.fired and found["ts"].to_pylist() == [expected] * 2
    assert hudi_rows(table.path) == without_meta(found)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("read", ["to_arrow", "filters", "as_of", "changes", "all changes"])
def test_columns_are_those_of_the_rows(tmp_path: Path, look: str, read: str) -> None:
    """A column that only the undone commit had is in no read that returns the rows before it."""
    table = grown(tmp_path / "t")
    columns, known = READS[read](table, times(table)).column_names, times(table)
    commit = timeline_folder(table.path) / f"{known[-1]}.commit"
    content = commit_content(commit)
    schema = json.loads(content["extraMetadata"]["schema"])
    schema["fields"] += [{"name": "extra", "type": ["null", "long"], "default": None}]
    content["extraMetadata"]["schema"] = json.dumps(schema)
    edited_elsewhere(commit, content)
    assert Table.open(table.path).to_arrow()["extra"].null_count == 2
    reader, storage = overtaken(table, LOOKS[look], lambda: Table.open(table.path).rollback())
    found = READS[read](reader, known)
    assert storage.fired and found.column_names == columns and found["ts"].to_pylist() == [2, 2]


def test_a_reader_that_is_overtaken_again_and_again_gets_an_error(tmp_path: Path) -> None:
    """It looks again ten times; then the error names the commit that was undone last."""
    table = grown(tmp_path / "t", 14, **{"hoodie.clean.automatic": False})
    known = times(table)
    handle = Table.open(table.path)._handle
    handle.storage = Repeated(handle.storage, lambda: Table.open(table.path).rollback())
    with pytest.raises(ConcurrentWriter, match=rf"{known[4]}\) in each of 10 .*: read again when"):
        Table(handle).to_arrow()
    assert times(table) == known[:4] and table.to_arrow()["ts"].to_pylist() == [3, 3]


class Repeated:
    """A storage; `meanwhile` runs before each listing of partition `b`."""

    def __init__(self, inner: Any, meanwhile: Callable[[], object]) -> None:
        self._inner, self._meanwhile, self.root = inner, meanwhile, inner.root

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list_folder(self, path: str) -> Any:
        """List a folder."""
        if path == "b":
            self._meanwhile()
        return self._inner.list_folder(path)


def test_a_snapshot_of_earlier_is_not_disturbed(tmp_path: Path) -> None:
    """What is undone after the time that is read does not matter: the folders are listed once."""
    table = grown(tmp_path / "t", 14, **{"hoodie.clean.automatic": False})
    first = times(table)[0]
    handle = Table.open(table.path)._handle
    handle.storage = Repeated(handle.storage, lambda: Table.open(table.path).rollback())
    assert Table(handle).to_arrow(as_of=first)["ts"].to_pylist() == [0, 0]
    assert len(times(table)) == 13


@each_version
def test_a_restore_past_cleaned_files_shows_no_state_that_never_was(
    tmp_path: Path, version: int
) -> None:
    """Where the files of the commits between are gone, a pending restore shows its target at once.

    Partition `b` keeps an older file than `a`: together they were never the table.
    """
    table = make(tmp_path / "t", version, **TWO)
    upsert(table, 0, [0, 1])
    saved, states = table.savepoint(), [table.to_arrow()["ts"].to_pylist()]
    for number, keys in enumerate(([0], [0], [0, 1], *[[0]] * 5), 1):
        upsert(table, number, keys)
        states.append(table.to_arrow()["ts"].to_pylist())
    seen = []

    def look() -> None:
        reader = Table.open(table.path)
        seen.append(reader.to_arrow()["ts"].to_pylist())
        newest = times(reader)[-1]
        with contextlib.suppress(InvalidConfig):  # that the files of then were cleaned away
            assert reader.to_arrow(as_of=newest)["ts"].to_pylist() in states
        codes = {finding.code for finding in reader.fsck()}
        assert codes <= {"pending-instant", "unfinished-file", "leftover"}

    failpoints.call("restore.withdrawn.post", look)
    try:
        table.restore(saved)
    finally:
        failpoints.arm("")
    assert seen == [states[7], states[6], *[states[0]] * 6]
    assert table.to_arrow()["ts"].to_pylist() == states[0] and table.fsck() == []


# --- after the first rows -------------------------------------------------------------------------


@each_version
@each_undo
def test_a_stream_of_batches_that_an_undo_overtakes_is_an_error_that_says_so(
    tmp_path: Path, version: int, action: str
) -> None:
    """After its first batch it cannot begin again: the error names the commit and the remedy."""
    table = grown(tmp_path / "t", version=version)
    newest = times(table)[-1]
    batches = pa.RecordBatchReader.from_stream(table)
    assert batches.read_next_batch()["ts"].to_pylist() == [3]
    UNDO[action](table)
    with pytest.raises(Exception, match=rf"commit {newest} of .* was undone while .*: read again"):
        batches.read_next_batch()


def test_a_file_that_is_lost_is_not_called_undone(tmp_path: Path) -> None:
    """The commit of a file that is gone is on the timeline: the error says what it said before."""
    table = grown(tmp_path / "t")
    reader, storage = overtaken(
        table, opening, lambda: [f.unlink() for f in Path(table.path).glob("?/*.parquet")]
    )
    with pytest.raises(InvalidTable, match="was cleaned away or undone before it was read, or"):
        reader.to_arrow()
    assert storage.fired


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
def test_a_read_lists_the_timeline_twice(tmp_path: Path, read: str) -> None:
    """Once to see the commits, and once to see that they are still there."""
    table = grown(tmp_path / "t")
    looked: list[str] = []
    reader, _ = overtaken(table, lambda name, path: bool(looked.append(f"{name} {path}")), print)
    READS[read](reader, times(table))
    assert looked.count("file_names .hoodie") == 2
