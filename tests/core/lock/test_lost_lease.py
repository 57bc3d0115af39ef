"""A writer whose request is late: another process has its lock when the store receives it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from core.faulty_objects import end_holder
from core.lock.test_turns import BATCHES, QUERY, SCHEMA, Stream
from s3_server import Proxy, S3Server
from tables import kind_of, schema_of

import hoodie_nb as hn
from hoodie_nb import Table, failpoints
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.lock import lock
from hoodie_nb.lock.lease import Lease
from hoodie_nb.records import sealing
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import FOLDER
from hoodie_nb.storage.object_storage import ObjectStorage
from hoodie_nb.storage.storage import STAGED, read_bytes

COMPLETED = re.compile(r"/\.hoodie/(timeline/\d{17}_)?\d{17}\.(delta)?commit(\?|$)")
Rows = list[dict[str, object]]
EMPTY = Checkpoint(QUERY, 3, "without rows")
KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts"}


def rows(first: int, last: int, ts: int) -> Rows:
    """Return rows of two partitions."""
    return [{"id": f"k{i}", "p": f"par{i % 2}", "ts": ts, "v": ts} for i in range(first, last)]


class Other:
    """Another process that writes the table while a request of the first is on its way.

    Its lock is in this process under another address of the same table.
    """

    def __init__(self, server: S3Server) -> None:
        self.root, self.options, self.came = server.new_root(), server.options, 0

    def writes(self) -> None:
        """Take the lock, as if the first one's lease had expired, and write."""
        self.came += 1
        held = lock._tables[self.root].file
        assert isinstance(held, Lease)
        held._sent_s -= 61
        storage = ObjectStorage(self.root, self.options)
        end_holder(storage)
        same = self.root.replace("s3://", "s3a://")
        hn.Table.open(same, storage_options=self.options).upsert(rows(100, 104, 5))


def trial(
    server: S3Server, how: str | None, wanted: Callable[[str, str], bool], kind: int | str = 6
) -> hn.Table:
    """Let one request wait until another process has written; return the table of a new reader."""
    other = Other(server)
    with Proxy(server) as proxy:
        table = hn.Table.create(
            other.root, schema=schema_of(), storage_options=proxy.options, **KEYS, **kind_of(kind)
        )
        table.upsert(rows(0, 10, 1))

        def fails(_: int, method: str, path: str) -> str | None:
            if other.came or not wanted(method, path):
                return None
            other.writes()
            return how

        proxy.fails = fails
        with pytest.raises((hn.CommitFailed, hn.ConcurrentWriter)) as caught:
            table.upsert(rows(0, 20, 2))
    assert other.came == 1
    found = hn.Table.open(other.root, storage_options=server.options)
    assert found.to_arrow().num_rows == 14, "the first one's write is not applied"
    found.__dict__["error"] = caught.value
    return found


def test_a_request_that_was_lost_is_not_repeated_after_the_lease(s3_server: S3Server) -> None:
    """The completed file is not sent again when another process has written meanwhile."""
    trial_of = lambda method, path: method == "PUT" and bool(COMPLETED.search(path))  # noqa: E731
    found = trial(s3_server, "before", trial_of)
    assert len(found.history()) == 2
    assert found.fsck() == []


@pytest.mark.parametrize("kind", [6, "9 logs"])
def test_a_completed_file_that_arrives_late_is_withdrawn(
    s3_server: S3Server, kind: int | str
) -> None:
    """Its writer finds that the instant was rolled back: the files that it names are gone."""
    late = lambda method, path: method == "PUT" and bool(COMPLETED.search(path))  # noqa: E731
    found = trial(s3_server, None, late, kind)
    assert "was not applied" in str(found.__dict__["error"])
    assert len(found.history()) == 2
    assert found.fsck() == []


@pytest.mark.parametrize("kind", [6, "9 logs"])
def test_a_data_file_that_arrives_late_is_known_to_be_undone(
    s3_server: S3Server, kind: int | str
) -> None:
    """Nothing was published when the instant was rolled back; then the copies of files arrive."""
    late = lambda method, path: method == "POST" and "?uploadId=" in path  # noqa: E731
    found = trial(s3_server, None, late, kind)
    assert {finding.code for finding in found.fsck()} == {"orphan-file"}
    same = hn.Table.open(found.path.replace("s3://", "s3a://"), storage_options=s3_server.options)
    assert {f.repaired for f in same.fsck(repair=True)} == {"deleted"}
    assert found.fsck() == []


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("folder", ["prepared", "sealed"])
def test_a_record_that_arrives_late_does_not_count(
    s3_server: S3Server, folder: str, dies: bool
) -> None:
    """Another process has deleted its files: nobody may wait for these, also if its writer dies."""
    other = Other(s3_server)
    with Proxy(s3_server) as proxy:
        Table.create(other.root, schema=SCHEMA, storage_options=proxy.options, **KEYS)

        def fails(_: int, method: str, path: str) -> str | None:
            if other.came:
                return "503" if dies else None
            if method == "PUT" and f"/{folder}/" in path:
                other.writes()
            return None

        handle = open_table(ObjectStorage(other.root, proxy.options))
        failed = hn.StoreFailed if dies else hn.ConcurrentWriter
        with pytest.raises(failed), lock.writing(handle.storage):
            stream = Stream(handle, interval=folder == "sealed")
            proxy.fails = fails
            stream.run(0)
        proxy.fails = lambda *_: None
    assert other.came == 1
    same = ObjectStorage(other.root.replace("s3://", "s3a://"), s3_server.options)
    table = hn.Table(open_table(same))
    table.upsert(rows(100, 104, 6))  # recovers
    with lock.writing(same):
        again = Stream(open_table(same), interval=folder == "sealed")
        again.run(0)
        again.complete(stale=False)
    assert table.to_arrow().num_rows == 4 + len(BATCHES[0][1])
    assert table.fsck() == []


def seal(storage: ObjectStorage) -> Stream:
    """Let a stream seal its first checkpoint in its turn."""
    with lock.writing(storage):
        stream = Stream(open_table(storage), interval=True)
        stream.run(0)
    return stream


def test_the_writer_of_a_late_seal_deletes_none_that_was_sealed_again(s3_server: S3Server) -> None:
    """It has the same name: its writer sleeps until another run of the stream has sealed it."""
    other = Other(s3_server)
    same = ObjectStorage(other.root.replace("s3://", "s3a://"), s3_server.options)
    again: list[Stream] = []
    with Proxy(s3_server) as proxy:
        Table.create(other.root, schema=SCHEMA, storage_options=proxy.options, **KEYS)

        def fails(_: int, method: str, path: str) -> str | None:
            if method == "PUT" and "/sealed/" in path and not other.came:
                other.writes()
            elif method == "PUT" and path.endswith("/lock") and other.came and not again:
                again.append(seal(same))
            return None

        handle = open_table(ObjectStorage(other.root, proxy.options))
        with pytest.raises(hn.ConcurrentWriter), lock.writing(handle.storage):
            stream = Stream(handle, interval=True)
            proxy.fails = fails
            stream.run(0)
    assert again
    assert [name for name in same.file_names(FOLDER) if name.endswith(".json")]
    with lock.writing(same):
        again[0].complete(stale=True)
    assert hn.Table(open_table(same)).to_arrow().num_rows == 4 + len(BATCHES[0][1])


def test_a_seal_that_was_put_back_with_its_rows_counts(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were deleted while its record was lost. The mark of that goes after a while."""
    root = s3_server.new_root()
    table = Table.create(root, schema=SCHEMA, storage_options=s3_server.options, **KEYS)
    storage = ObjectStorage(root, s3_server.options)
    stream = seal(storage)
    record = f"{FOLDER}/{storage.file_names(FOLDER)[0]}"
    (folder,) = (entry.name for entry in storage.list_folder(STAGED))
    backup = {path: read_bytes(storage, path) for path in (record, f"{STAGED}/{folder}/0.arrow")}
    storage.mark(record, None)
    table.upsert(rows(100, 104, 6))
    assert storage.file_names(FOLDER) == [f"swept-{folder}"]
    assert storage.list_folder(STAGED) == []
    table.upsert(rows(100, 104, 7))
    assert storage.file_names(FOLDER) == [f"swept-{folder}"], "a late record may still come"
    for path, content in backup.items():
        storage.mark(path, content)
    with lock.writing(storage):
        stream.complete(stale=True)
    assert table.to_arrow().num_rows == 4 + len(BATCHES[0][1])
    monkeypatch.setattr(sealing, "_LATE_MS", -10_000)
    table.upsert(rows(100, 104, 8))
    assert storage.file_names(FOLDER) == []


class Run:
    """A run of a stream whose request is late: the next run has gone on when the store gets it."""

    def __init__(self, server: S3Server, wanted: str, goes_on: Callable[[Stream], None]) -> None:
        self.other, self.server = Other(server), server
        self.wanted, self.goes_on = re.compile(wanted), goes_on
        self.same = ObjectStorage(self.other.root.replace("s3://", "s3a://"), server.options)

    def _late(self, _: int, method: str, path: str) -> None:
        if method == "PUT" and not self.other.came and self.wanted.search(path):
            self.other.came += 1
            held = lock._tables[self.other.root].file
            assert isinstance(held, Lease)
            held._sent_s -= 61
            end_holder(ObjectStorage(self.other.root, self.server.options))
            with lock.writing(self.same):
                self.goes_on(Stream(open_table(self.same)))

    def commits(self) -> BaseException | None:
        """Let the first run commit a checkpoint that is prepared; return its error."""
        with Proxy(self.server) as proxy:
            kind = kind_of(9)
            root, given = self.other.root, proxy.options
            Table.create(root, schema=SCHEMA, storage_options=given, **KEYS, **kind)
            handle = open_table(ObjectStorage(root, given))
            try:
                with lock.writing(handle.storage):
                    stream = Stream(handle)
                    stream.run(0)
                    proxy.fails = self._late
                    stream.complete(stale=False)
            except (hn.HoodieError, OSError) as error:
                return error
            finally:
                assert self.other.came == 1
        return None


def test_a_completed_file_that_arrives_after_that_of_another_is_withdrawn(
    s3_server: S3Server,
) -> None:
    """The next run has completed the instant from its record, under another time."""
    run = Run(s3_server, COMPLETED.pattern, lambda stream: None)
    assert isinstance(run.commits(), hn.CommitFailed)
    names = run.same.file_names(".hoodie/timeline")
    assert len([name for name in names if name.endswith(".commit")]) == 1
    table = hn.Table(open_table(run.same))
    assert table.fsck() == [] and table.to_arrow().num_rows == len(BATCHES[0][1])


def test_progress_that_arrives_late_replaces_no_later_one(s3_server: S3Server) -> None:
    """Else the stream's next start would miss its last batches."""

    def goes_on(stream: Stream) -> None:
        for number in (1, 2):
            stream.run(number)
            stream.complete(stale=False)
        stream.coordinator.record_empty(EMPTY)

    run = Run(s3_server, "/progress/", goes_on)
    assert run.commits() is None  # the commit is valid
    with lock.writing(run.same):
        protocol = Stream(open_table(run.same))._protocol("upsert")
        protocol.recover()
        protocol.check_held(EMPTY)


@pytest.mark.parametrize(("refusals", "known"), [(1, True), (9, False)])
def test_an_insert_is_never_called_refused_that_may_be_in_the_table(
    s3_server: S3Server, refusals: int, known: bool
) -> None:
    """The answer to its completed file is lost, then the credentials are over, for a while."""
    with Proxy(s3_server) as proxy:
        table = Table.create(
            s3_server.new_root(), schema=schema_of(), storage_options=proxy.options, **KEYS
        )
        left: list[str] = []

        def fails(_: int, method: str, path: str) -> str | None:
            if not left and method == "PUT" and COMPLETED.search(path):
                left.extend(["end", *["403"] * refusals])
                return "reset after"
            return left.pop() if len(left) > 1 else None

        proxy.fails = fails
        if known:
            table.insert(rows(0, 3, 1))
        else:
            with pytest.raises(hn.CommitFailed, match="it is not known whether"):
                table.insert(rows(0, 3, 1))
    found = hn.Table.open(table.path, storage_options=s3_server.options)
    assert found.to_arrow().num_rows == 3


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("answer", ["503", "403"])
def test_a_commit_that_was_rolled_back_is_not_called_done(
    s3_server: S3Server, version: int, answer: str
) -> None:
    """Its completed file arrives in another process's turn; then the store renews no lease."""
    other = Other(s3_server)
    with Proxy(s3_server) as proxy:
        kind = kind_of(version)
        table = Table.create(
            other.root, schema=schema_of(), storage_options=proxy.options, **KEYS, **kind
        )
        table.upsert(rows(0, 10, 1))
        left: list[str] = []

        def fails(_: int, method: str, path: str) -> str | None:
            if not other.came and method == "PUT" and COMPLETED.search(path):
                other.writes()
                left.extend([answer] * 4)
            return left.pop() if left and method == "PUT" and path.endswith("/lock") else None

        proxy.fails = fails
        with pytest.raises(hn.CommitFailed):
            table.upsert(rows(0, 20, 2))
    found = hn.Table.open(table.path, storage_options=s3_server.options)
    assert found.to_arrow().num_rows == 14


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("version", [6, 9])
def test_a_commit_that_was_archived_meanwhile_is_not_called_refused(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, version: int, crashes: bool
) -> None:
    """S sleeps after its completed file; B archives the commit, and perhaps dies in between."""
    other = Other(s3_server)
    few = {"hoodie.clean.commits.retained": 1, "hoodie.keep.min.commits": 2}
    table = Table.create(
        other.root,
        schema=schema_of(),
        storage_options=s3_server.options,
        options={**few, "hoodie.keep.max.commits": 30},
        table_version=version,
        **KEYS,
    )
    table.insert(rows(0, 4, 1))
    create = ObjectStorage._create

    def sleeps(self: ObjectStorage, key: str, *more: Any) -> str:
        made = create(self, key, *more)
        if self.root == other.root and not other.came and COMPLETED.search(f"/{key}"):
            other.writes()
            b = hn.Table.open(self.root.replace("s3://", "s3a://"), storage_options=self._options)
            for number in (20, 30):
                b.insert(rows(number, number + 1, 3))
            failpoints.arm("archive.completed=raise:EIO@1" if crashes else "")
            with suppress(OSError):
                b.archive()
            failpoints.arm("")
            end_holder(self)
        return made

    monkeypatch.setattr(ObjectStorage, "_create", sleeps)
    with pytest.raises(hn.CommitFailed, match="it is not known whether"):
        table.insert(rows(10, 14, 3))
    found = hn.Table.open(table.path, storage_options=s3_server.options)
    assert found.to_arrow().num_rows == 14 and other.came == 1
    found.upsert(rows(10, 12, 9))
    assert found.to_arrow().num_rows == 14
