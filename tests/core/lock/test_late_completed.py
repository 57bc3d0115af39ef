"""Late files of the timeline: completed while it is rolled back or was archived; plans to undo."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from core.faulty_objects import end_holder
from core.lock import test_lost_lease
from core.lock.test_lost_lease import BATCHES, COMPLETED, KEYS, Other, Run, rows
from core.lock.test_turns import Stream
from s3_server import Proxy, S3Server
from tables import kind_of, schema_of

import hoodie_nb as hn
from hoodie_nb import Table, failpoints
from hoodie_nb.actions import rollback
from hoodie_nb.commit import publishing
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.storage.object_storage import ObjectStorage
from hoodie_nb.storage.storage import read_bytes
from hoodie_nb.timeline.instant import Instant, State


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("version", [6, 9])
def test_a_completed_file_that_arrives_during_its_rollback_does_not_count(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, version: int, dies: bool
) -> None:
    """S looks before its instant has left the timeline; B goes on, or the writer after it does."""
    other, hit = Other(s3_server), failpoints.hit
    half, seen = threading.Event(), threading.Event()

    def stops(name: str, *more: Any) -> None:
        if name == "rollback.files.post" and not half.is_set():
            half.set()
            assert seen.wait(60)
            if dies:
                raise OSError
        hit(name, *more)

    monkeypatch.setattr(failpoints, "hit", stops)
    with Proxy(s3_server) as proxy, ThreadPoolExecutor(1) as pool:
        given, kind = proxy.options, kind_of(version)
        table = Table.create(other.root, schema=schema_of(), storage_options=given, **KEYS, **kind)
        table.upsert(rows(0, 10, 1))
        writes = []

        def fails(_: int, method: str, path: str) -> None:
            if not writes and method == "PUT" and COMPLETED.search(path):
                writes.append(pool.submit(other.writes))
                assert half.wait(60)

        proxy.fails = fails
        with pytest.raises(hn.CommitFailed, match="it is not known whether"):
            table.upsert(rows(0, 20, 2))
        seen.set()
        assert isinstance(writes[0].exception(), OSError if dies else type(None))
    end_holder(ObjectStorage(other.root, s3_server.options))
    found = hn.Table.open(other.root, storage_options=s3_server.options)
    found.upsert(rows(100, 104, 6))
    assert found.to_arrow().num_rows == 14
    assert found.fsck() == []


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("version", [6, 9])
def test_a_completed_file_that_arrives_after_its_archiving_hides_no_rows(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, version: int, dies: bool
) -> None:
    """B has completed S's checkpoint, written more, and archived it all; S deletes it, or dies."""
    few = {"hoodie.clean.commits.retained": 1, "hoodie.keep.min.commits": 2}
    kind = {"table_version": version, "options": {**few, "hoodie.keep.max.commits": 30}}
    monkeypatch.setattr(test_lost_lease, "kind_of", lambda _: kind)

    def goes_on(_: Stream) -> None:
        b = Table.open(run.same.root, storage_options=s3_server.options)
        b.insert([{"id": "alone", "p": "par2", "ts": 3, "v": 3}])
        for number in range(200, 204):
            b.insert(rows(number, number + 1, 3))
        b.archive()
        if dies:
            monkeypatch.setattr(publishing, "_lost_meanwhile", lambda *_: hn.CommitFailed(""))

    run = Run(s3_server, COMPLETED.pattern, goes_on)
    assert isinstance(run.commits(), hn.CommitFailed)
    found = hn.Table(open_table(run.same))
    if dies:
        assert ("late-archived-file", "rows hidden") in {(f.code, f.at_stake) for f in found.fsck()}
        assert {(f.code, f.repaired) for f in found.fsck(repair=True)} >= {
            ("late-archived-file", "deleted")
        }
        assert found.fsck() == []
    assert found.to_arrow().num_rows == len(BATCHES[0][1]) + 5
    found.insert(rows(300, 301, 4))
    found.archive()
    assert found.to_arrow().num_rows == len(BATCHES[0][1]) + 6
    assert found.fsck() == []


@pytest.mark.parametrize("again", ["upsert", "rollback", "restore"])
@pytest.mark.parametrize("what", ["rollback", "restore"])
def test_a_plan_to_undo_commits_that_arrives_after_a_later_commit_is_dropped(
    s3_server: S3Server, what: str, again: str
) -> None:
    """Its caller has got an error; whoever writes next is not refused."""
    other = Other(s3_server)

    def fails(_: int, method: str, path: str) -> None:
        if not other.came and method == "PUT" and f".{what}.requested" in path:
            other.writes()

    with Proxy(s3_server) as proxy:
        given = {"schema": schema_of(), "storage_options": proxy.options, **KEYS}
        table = Table.create(other.root, **given, **kind_of(9))
        first = table.upsert(rows(0, 10, 1))
        table.upsert(rows(0, 10, 2))
        proxy.fails = fails
        with pytest.raises(hn.ConcurrentWriter):
            table.rollback() if what == "rollback" else table.restore(first)
    end_holder(ObjectStorage(other.root, s3_server.options))
    found = hn.Table.open(other.root, storage_options=s3_server.options)
    if again == "upsert":
        found.upsert(rows(0, 10, 6))
    else:
        found.rollback() if again == "rollback" else found.restore(first)
    assert found.to_arrow().num_rows == (14 if again == "upsert" else 10)
    assert {ts for ts in found.to_arrow()["ts"].to_pylist() if ts != 5} == {
        {"upsert": 6, "rollback": 2, "restore": 1}[again]
    }
    assert found.fsck() == []


@pytest.mark.parametrize("version", [6, 9])
def test_a_completed_file_of_a_dead_writer_does_not_count(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """It arrives after another one has rolled its commit back; the next writer is not refused."""
    other = Other(s3_server)

    def fails(_: int, method: str, path: str) -> None:
        if not other.came and method == "PUT" and COMPLETED.search(path):
            other.writes()

    monkeypatch.setattr(publishing, "_lost_meanwhile", lambda *_: hn.CommitFailed(""))
    with Proxy(s3_server) as proxy:
        given = {"schema": schema_of(), "storage_options": proxy.options, **KEYS}
        table = Table.create(other.root, **given, **kind_of(version))
        table.upsert(rows(0, 10, 1))
        proxy.fails = fails
        with pytest.raises(hn.CommitFailed):
            table.upsert(rows(0, 20, 2))
    end_holder(ObjectStorage(other.root, s3_server.options))
    found = hn.Table.open(other.root, storage_options=s3_server.options)
    assert {finding.code for finding in found.fsck()} == {"late-completed-file"}
    found.upsert(rows(100, 104, 6))
    assert found.to_arrow().num_rows == 14
    assert found.fsck() == []


@pytest.mark.parametrize("version", [6, 9])
def test_a_compaction_that_was_rolled_back_and_done_again_is_not_late(
    s3_server: S3Server, version: int
) -> None:
    """Hudi does it again at the same time; its requested file has another name."""
    root = s3_server.new_root()
    given = {"schema": schema_of(), "storage_options": s3_server.options, **KEYS}
    table = Table.create(root, **given, **kind_of(version))
    table.upsert(rows(0, 10, 1))
    time17 = str(table.upsert(rows(0, 10, 2)).requested_time)
    storage, layout = ObjectStorage(root, s3_server.options), table._handle.timeline.layout
    for state in (State.REQUESTED, State.INFLIGHT):
        storage.mark(layout.path(Instant(time17, "commit", state)), None)
        storage.mark(layout.path(Instant(time17, "compaction", state)), b"")
    later = f"{int(time17) + 1}"
    done = Instant(later, "rollback", State.COMPLETED, later)
    record = rollback._metadata(done, Instant(time17), [])
    storage.mark(layout.path(done), rollback.encode(rollback._METADATA, record))
    found = Table.open(root, storage_options=s3_server.options)
    assert rollback.was_rolled_back(found._handle, time17)
    assert "late-completed-file" not in {finding.code for finding in found.fsck()}
    found.upsert(rows(20, 21, 3))
    assert sorted(found.to_arrow()["ts"].to_pylist()) == [2] * 10 + [3]


@pytest.mark.parametrize("version", [6, 9])
def test_a_compaction_that_was_done_again_and_is_being_archived_is_not_late(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Its other files are gone first: nobody deletes it before the older ones."""
    few = {"hoodie.clean.commits.retained": 1, "hoodie.keep.min.commits": 2}
    kind: Any = {"table_version": version, "options": {**few, "hoodie.keep.max.commits": 30}}
    root, hit = s3_server.new_root(), failpoints.hit
    given = {"schema": schema_of(), "storage_options": s3_server.options, **KEYS}
    table = Table.create(root, **given, **kind)
    for number in range(5):
        table.insert([{"id": f"k{number}", "p": f"par{number}", "ts": 1, "v": 1}])
    handle = table._handle
    commits = handle.timeline.refresh().commits
    done = handle.timeline.request("rollback")
    done = replace(done, state=State.COMPLETED, completion_time=done.requested_time)
    record = rollback._metadata(done, commits[2], [])
    path = handle.timeline.path(done)
    handle.storage.mark(path, rollback.encode(rollback._METADATA, record))

    def dies(name: str, *more: Any) -> None:
        if name == "archive.completed":
            raise OSError
        hit(name, *more)

    monkeypatch.setattr(failpoints, "hit", dies)
    with pytest.raises((OSError, hn.HoodieError)):
        table.archive()
    monkeypatch.setattr(failpoints, "hit", hit)
    found = Table.open(root, storage_options=s3_server.options)
    left = found._handle.timeline.refresh().commits
    assert left == commits[1:]
    assert "late-completed-file" not in {finding.code for finding in found.fsck()}
    rollback.drop_late(found._handle)
    assert found.to_arrow().num_rows == 5
    found.insert([{"id": "k9", "p": "par9", "ts": 1, "v": 1}])
    assert found.to_arrow().num_rows == 6


def test_a_late_file_of_a_commit_that_was_undone_is_repaired(s3_server: S3Server) -> None:
    """It hides the rows of later commits that are archived, until it is deleted."""
    few = {"hoodie.clean.commits.retained": 1, "hoodie.keep.min.commits": 2}
    given: Any = {"schema": schema_of(), "storage_options": s3_server.options, **KEYS}
    given |= {"table_version": 9, "options": {**few, "hoodie.keep.max.commits": 30}}
    table = Table.create(s3_server.new_root(), **given)
    for number in range(2):
        table.insert([{"id": f"k{number}", "p": f"par{number}", "ts": 1, "v": 1}])
    timeline, storage = table._handle.timeline, table._handle.storage
    late = timeline.path(timeline.refresh().commits[-1])
    content = read_bytes(storage, late)
    table.rollback()
    for number in range(2, 7):
        table.insert([{"id": f"k{number}", "p": f"par{number}", "ts": 1, "v": 1}])
    table.archive()
    storage.mark(late, content)
    assert table.to_arrow().num_rows < 6
    found = {(finding.code, finding.repaired) for finding in table.fsck(repair=True)}
    assert ("late-completed-file", "deleted") in found
    assert table.fsck() == [] and table.to_arrow().num_rows == 6
