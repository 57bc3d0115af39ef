"""The lock of a table on an object store: one holder, for a limited time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from s3_server import SECRET, Proxy, S3Server
from tables import schema_of

from hoodie_nb import Table
from hoodie_nb.errors import ConcurrentWriter, InvalidConfig, StoreFailed
from hoodie_nb.lock import process as lives
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lease import _CLOCK, Lease
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.lock_file import PATH
from hoodie_nb.lock.process import Witness, has_surely_ended, machine
from hoodie_nb.storage.object_requests import Version
from hoodie_nb.storage.object_storage import ObjectStorage

ROWS = pa.Table.from_pylist([{"id": "a", "p": "x", "ts": 1, "v": 1}], schema=schema_of())


@dataclass
class Place:
    """An address on the server; each storage is one of another process, for the lock."""

    root: str
    options: dict[str, str]

    def storage(self, lease_s: float = 60.0) -> ObjectStorage:
        """Return a storage of the place."""
        return ObjectStorage(self.root, self.options, lease_s=lease_s)


@pytest.fixture
def place(s3_server: S3Server) -> Place:
    """A free address."""
    return Place(s3_server.new_root(), s3_server.options)


def holder(storage: ObjectStorage) -> dict[str, object]:
    """Return what the lock says."""
    found = storage.read_version(PATH)
    assert found is not None
    return dict(json.loads(found.content))


def as_of_another_machine(storage: ObjectStorage) -> None:
    """Let the lock's holder be a process of which nothing is known here."""
    found = storage.read_version(PATH)
    assert found is not None
    changed = {**json.loads(found.content), "process": ["another machine", "1", "1"]}
    storage.replace(PATH, json.dumps(changed).encode(), found.version)


def test_a_lock_that_is_held_is_refused_with_its_holder(place: Place) -> None:
    """The error names host, process, purpose and the end of the lease; afterwards it is free."""
    named = rf"a test, process {os.getpid()}, on .*since .*wait='10 minutes'.*ends in \d+ s"
    with Lease(place.storage(), "a test"), pytest.raises(ConcurrentWriter, match=named):
        Lease(place.storage(), "another")
    with Lease(place.storage(), "another"):
        assert holder(place.storage())["purpose"] == "another"
    assert holder(place.storage())["released"]


def test_of_many_processes_one_gets_the_lock(place: Place) -> None:
    """Leases that are asked for at the same time: one is given."""
    start, got, refused = threading.Barrier(6), list[Lease](), list[ConcurrentWriter]()

    def take() -> None:
        storage = place.storage()
        start.wait()
        try:
            got.append(Lease(storage, "a race"))
        except ConcurrentWriter as error:
            refused.append(error)

    for _ in range(5):
        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(got), len(refused)) == (1, 5)
        got.pop().close()
        refused.clear()


def test_a_lease_of_another_machine_is_taken_only_when_it_has_expired(place: Place) -> None:
    """Within its time it is refused; after it, by the store's clock, the next writer takes it."""
    first = Lease(place.storage(60), "the first")
    as_of_another_machine(place.storage())
    with pytest.raises(ConcurrentWriter, match=r"its lease ends in (6[0-2]|5[0-9]) s"):
        Lease(place.storage(), "the second")
    found = place.storage().read_version(PATH)
    assert found is not None
    expired = {**json.loads(found.content), "lease_s": -3}
    place.storage().replace(PATH, json.dumps(expired).encode(), found.version)
    with Lease(place.storage(), "the second"):
        first.renew()
        with pytest.raises(ConcurrentWriter, match=r"lease of this process .* has expired"):
            first.check()
        first.close()  # which does not release the lease of the second
        assert "released" not in holder(place.storage())


class WithoutClock(ObjectStorage):
    """A storage whose clock another program deletes before it is read."""

    def read_version(self, path: str) -> Version | None:
        """Return an object, but never the clock."""
        if path == _CLOCK:
            self.remove(path)
        return super().read_version(path)


def test_a_lease_is_not_taken_by_the_clock_of_this_machine(place: Place) -> None:
    """If the store's time is not known, nobody knows whether the holder's lease is over."""
    with Lease(place.storage(60), "the first"):
        as_of_another_machine(place.storage())
        with pytest.raises(ConcurrentWriter, match="deleted while it was read"):
            Lease(WithoutClock(place.root, place.options), "the second")


def test_a_holder_that_cannot_renew_stops_in_time(s3_server: S3Server) -> None:
    """Before its lease has expired for others, its holder changes nothing any more."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options)
        storage = place.storage(lease_s=60)
        with writing(storage):
            storage.put("x", b"1", new=True)
            lease = _lease_of(storage)
            lease._sent_s -= 51  # as if the last renewal was 51 seconds ago
            proxy.fails = lambda *_: "403"
            with pytest.raises(ConcurrentWriter, match="has expired"):
                storage.put("y", b"2")
            proxy.fails = lambda *_: None
        assert storage.file_names("") == ["x"]


def test_a_new_file_asks_the_store_for_the_lease(place: Place) -> None:
    """A holder that slept, and whose lease was taken, does not write a completed file."""
    storage = place.storage(lease_s=60)
    with writing(storage):
        lease = _lease_of(storage)
        as_of_another_machine(place.storage())  # it is another one's now
        lease._sent_s -= 11
        with pytest.raises(ConcurrentWriter, match="has expired"):
            storage.put(".hoodie/1.commit", b"{}", new=True)
    assert storage.file_names(".hoodie") == []


def _lease_of(storage: ObjectStorage) -> Lease:
    from hoodie_nb.lock import lock

    found = lock._tables[storage.root].file
    assert isinstance(found, Lease)
    return found


def test_a_lock_that_lost_an_answer_is_held(s3_server: S3Server) -> None:
    """If the answer to the request that took or renewed the lease is lost, it is ours."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options)
        first_put = _once(lambda method, path: method == "PUT" and path.endswith("/lock"))
        proxy.fails = lambda _, method, path: "503 after" if first_put(method, path) else None
        with Lease(place.storage(), "a test") as lease:
            again = _once(lambda method, path: method == "PUT" and path.endswith("/lock"))
            proxy.fails = lambda _, method, path: "503 after" if again(method, path) else None
            lease.renew()
            lease.check(sure=True)
        assert len(proxy.fired) == 2
        assert holder(place.storage())["released"]


def test_a_renewal_whose_answers_are_all_lost_loses_no_lock(s3_server: S3Server) -> None:
    """Its holder finds with the next one that it was done, and the end is a release."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options)
        left = [1] * 8
        lost = lambda _, method, path: left and left.pop() and "reset after"  # noqa: E731
        with Lease(place.storage(), "a test") as lease:
            proxy.fails = lost
            for _ in range(2):
                with pytest.raises(StoreFailed):
                    lease.renew()
            lease.renew()
            lease.check(sure=True)
            left += [1] * 4
            with pytest.raises(StoreFailed):
                lease.renew()
        assert holder(place.storage())["released"]


def _once(wanted: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    left = [1]

    def matches(method: str, path: str) -> bool:
        return wanted(method, path) and bool(left) and bool(left.pop())

    return matches


@pytest.fixture
def killed_holder(place: Place) -> Iterator[Place]:
    """A place whose lock is held by a process that was killed."""
    program = (
        "import json, os, sys, time\n"
        "from hoodie_nb.lock.lease import Lease\n"
        "from hoodie_nb.storage.object_storage import ObjectStorage\n"
        "root, options = json.loads(sys.argv[1])\n"
        "lease = Lease(ObjectStorage(root, options), 'to be killed')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps([place.root, place.options])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(ConcurrentWriter, match="to be killed"):
        Lease(place.storage(), "the next")
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()
    yield place


def test_the_lock_of_a_killed_process_of_this_machine_is_free(killed_holder: Place) -> None:
    """Nobody waits for the end of a lease whose holder is known to have ended."""
    with Lease(killed_holder.storage(), "the next"):
        assert holder(killed_holder.storage())["purpose"] == "the next"


@pytest.mark.parametrize("header", ["if-none-match", "if-match"])
def test_a_store_that_ignores_conditions_is_refused(s3_server: S3Server, header: str) -> None:
    """There two processes could have the lock at the same time, so the first write ends."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options)
        how = {"schema": schema_of(), "record_key": "id", "storage_options": place.options}
        proxy.ignored = header
        with pytest.raises(InvalidConfig, match="supports conditional writes"):
            Table.create(place.root, **how)
        proxy.ignored = None
        assert Table.create(place.root, **how).upsert(ROWS)


@pytest.mark.parametrize("ignored", ["if-match", None])
@pytest.mark.parametrize("first", range(1, 5))
def test_a_trial_that_fails_is_repeated_and_keeps_no_lease(
    s3_server: S3Server, first: int, ignored: str | None
) -> None:
    """From one of its requests on, the store fails the first write: the second one tries again."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options)
        proxy.ignored = ignored
        asked = count()
        proxy.fails = lambda *_: "503" if next(asked) > first else None
        with pytest.raises(StoreFailed), writing(place.storage(), 0.0):
            pass
        proxy.fails = lambda *_: None
        refused = pytest.raises(InvalidConfig, match="supports conditional writes")
        with refused if ignored else nullcontext(), writing(place.storage(), 0.0):
            place.storage().put("x", b"1")


def test_a_holder_on_a_copy_of_this_machine_may_live(
    killed_holder: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of a running virtual machine share boot, ids and times; not the new files of one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConcurrentWriter, match="to be killed"):
        Lease(killed_holder.storage(), "the next")


@pytest.mark.parametrize("copied", ["before", "during"])
def test_a_process_that_was_copied_with_its_machine_does_not_speak_for_the_other(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: str
) -> None:
    """It began before the copy was made, and is killed there; here it has a lease."""
    machines = [tmp_path / "one", tmp_path / "two"]
    machines[0].mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(machines[0]))
    with Lease(place.storage(), "an earlier write"):
        if copied == "before":
            shutil.copytree(*machines)
    with Lease(place.storage(), "a write") as lease:
        if copied == "during":
            shutil.copytree(*machines)
            lease.renew()
        monkeypatch.setattr(tempfile, "tempdir", str(machines[1]))
        monkeypatch.setattr(lives, "has_ended", lambda _: True)
        with pytest.raises(ConcurrentWriter, match="a write"):
            Lease(place.storage(), "the next")
    assert [*machines[0].iterdir()] == []


def test_a_lease_that_a_copy_of_this_process_keeps_is_not_free(place: Place) -> None:
    """Copies of a running virtual machine start processes with one id at one time, too."""
    storage = place.storage()
    with Lease(storage, "a write"):
        pass
    found = storage.read_version(PATH)
    assert found is not None
    said = {key: value for key, value in json.loads(found.content).items() if key != "released"}
    storage.replace(PATH, json.dumps({**said, "kept": True}).encode(), found.version)
    with pytest.raises(ConcurrentWriter, match="a write"):
        Lease(storage, "the next")


@pytest.mark.parametrize("name", [None, 7, "", "hosts", "../hosts", "hoodie_nb-lives-/../hosts"])
def test_a_witness_is_not_trusted(
    name: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no other file of the machine."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "hoodie_nb-lives-"))
    (tmp_path / "hoodie_nb-lives-").mkdir()
    (tmp_path / "hosts").touch()
    assert not has_surely_ended({"process": [machine(), "1", "0"], "witness": name})


def test_who_locks_its_witness_lives() -> None:
    """Whatever its process id says; also beside a child, which has none of it."""
    witness = Witness()
    name = witness.renewed()
    child = os.fork()
    if child == 0:
        witness.close()
        os._exit(7 if witness.renewed() is None else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (Path(tempfile.gettempdir()) / str(name)).exists()
    assert not has_surely_ended({"process": [machine(), "1", "0"], "witness": name})
    witness.close()
    assert not has_surely_ended({"process": [machine(), "1", "0"], "witness": name})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"lease_s": "x", "process": 7}'])
def test_the_content_of_the_lock_is_not_trusted(place: Place, content: bytes) -> None:
    """A damaged lock is held until it expires, and never an error of another kind."""
    place.storage().replace(PATH, content, None)
    with pytest.raises(ConcurrentWriter, match="ends in"):
        Lease(place.storage(), "a test")


def test_two_tables_handles_of_a_process_write_in_turn(place: Place) -> None:
    """Batch writes use the lock of a running job of their process; another process is refused."""
    table = Table.create(
        place.root, schema=schema_of(), record_key="id", storage_options=place.options
    )
    hold = JobHold(table._handle.storage, "a job")
    try:
        with hold.writing():
            assert Table.open(place.root, storage_options=place.options).upsert(ROWS)
        with pytest.raises(ConcurrentWriter, match="a job"):
            Lease(place.storage(), "another process")
    finally:
        hold.release()
    assert table.to_arrow().num_rows == 1
    assert SECRET not in json.dumps(holder(place.storage()))


def test_a_forked_child_cannot_use_the_store(place: Place) -> None:
    """The client's threads are not in the child: it gets an error instead of waiting forever."""
    table = Table.create(
        place.root, schema=schema_of(), record_key="id", storage_options=place.options
    )
    table.upsert(ROWS)
    child = os.fork()
    if child == 0:
        try:
            table.to_arrow()
        except InvalidConfig as error:
            os._exit(7 if "spawn" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert table.to_arrow().num_rows == 1


def test_a_forked_child_drops_the_lease_and_does_not_release_it(place: Place) -> None:
    """The parent's lease stays when its child ends."""
    lease = Lease(place.storage(), "the parent")
    child = os.fork()
    if child == 0:
        lease.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert "released" not in holder(place.storage())
    lease.check()
    lease.close()
