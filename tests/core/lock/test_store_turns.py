"""Turns on an object store: the line, looks, the lives of jobs, late and failed requests.

The other process is in this one, under another address of the same table.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from s3_server import Proxy, S3Server

from hoodie_nb import Table, clock
from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.evidence import handle
from hoodie_nb.lock import lease, lock, store_turns
from hoodie_nb.lock import writers as writers_module
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lease import Lease
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.lock_file import PATH
from hoodie_nb.lock.process import machine, process_identity
from hoodie_nb.lock.writers import Watch, writers
from hoodie_nb.programs.doctor import doctor
from hoodie_nb.storage import object_storage
from hoodie_nb.storage.addresses import storage_at
from hoodie_nb.storage.object_storage import ObjectStorage
from hoodie_nb.storage.storage import TURNS, Entry


class Place:
    """A table's address, as two processes have it, and a checkpoint folder."""

    def __init__(self, root: str, options: dict[str, str], folder: Path) -> None:
        self.options = options
        self.here = ObjectStorage(root, options)
        self.there = ObjectStorage(root.replace("s3://", "s3a://"), options)
        self.checkpoint = folder / "ck"
        self.checkpoint.mkdir()
        (self.checkpoint / "metadata").write_text(f'{{"id":"{root}"}}')

    def job(self, wait_s: float = 60.0) -> JobHold:
        """Start a job here."""
        return JobHold(self.here, "a job", checkpoint=str(self.checkpoint), wait_s=wait_s)

    def change(self, path: str, **values: object) -> None:
        """Change what an object of a lease says, as another process with the same rights can."""
        found = self.there.read_version(path)
        assert found is not None
        text = json.dumps(json.loads(found.content) | values).encode()
        assert self.there.replace(path, text, found.version)

    def lives(self) -> list[str]:
        """Return the objects of jobs' lives."""
        names = self.there.file_names(".hoodie/.hoodie_nb")
        return [f".hoodie/.hoodie_nb/{name}" for name in names if name.startswith("job-")]


@pytest.fixture
def place(s3_server: S3Server, tmp_path: Path) -> Place:
    """A free address."""
    return Place(s3_server.new_root(), s3_server.options, tmp_path)


@contextmanager
def waiting(place: Place, **how: object) -> Iterator[Future[str]]:
    """Let the other process wait for the table, which this one has; yield what it gets."""

    def waits() -> str:
        try:
            with writing(place.there, 60.0, **how):  # type: ignore[arg-type]
                return "had it"
        except ConcurrentWriter as error:
            return str(error)

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(waits)
        while not place.there.file_names(TURNS):
            assert not future.done()
        look_again(place.here)
        yield future


def look_again(storage: ObjectStorage) -> None:
    """Let this process look at the line as if its last look was long ago."""
    store_turns._line(storage).looked_s = -1e9


def lease_of(storage: ObjectStorage) -> Lease:
    """Return the lease that this process has."""
    found = lock._tables[storage.root].file
    assert isinstance(found, Lease)
    return found


def test_a_job_gives_way_to_another_process_and_goes_on(place: Place) -> None:
    """Between two checkpoints it lets go, and is `stale`; then it has the table again."""
    job = place.job()
    for _ in range(2):
        with job.writing():
            place.here.put("x", b"1")
        with waiting(place) as other:
            job.give_way()
            assert job.stale
            with pytest.raises(ConcurrentWriter, match="outside its turn"):
                place.here.put("x", b"2")
            assert other.result() == "had it"
        with job.writing():
            job.stale = 0.0
            place.here.put("x", b"3")
    job.release()
    assert place.here.file_names(TURNS) == []
    assert writers(place.here) == []


def test_nobody_is_overtaken(place: Place) -> None:
    """A process that writes in a loop has no turn before the one that waits."""
    with ExitStack() as after:
        with writing(place.here):
            other = after.enter_context(waiting(place))
        with writing(place.here):
            assert place.there.file_names(TURNS) == []  # it has had its turn
    assert other.result() == "had it"


def test_of_three_each_has_its_turn_in_the_order_of_coming(place: Place) -> None:
    """Places are numbered; the first in the line is asked for before the lease."""
    got = list[int]()

    def waits(number: int) -> None:
        storage = ObjectStorage(place.here.root, place.options)
        storage.root += f"#{number}"  # another process's, for the lock
        with writing(storage, 60.0):
            got.append(number)

    with ThreadPoolExecutor(2) as threads, writing(place.here):
        for number in range(2):
            future = threads.submit(waits, number)
            while len(place.here.file_names(TURNS)) <= number:
                assert not future.done()
    assert got == [0, 1]


def test_a_lone_job_lists_the_line_three_times_in_a_lease(s3_server, tmp_path: Path) -> None:
    """However many checkpoints it runs, and however often it asks: its commits cost no request."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        job = place.job()
        proxy.counts.clear()
        for _ in range(50):
            with job.writing():
                pass
            job.give_way()
        assert sum(proxy.counts.values()) == 0  # its start has looked
        look_again(place.here)
        for _ in range(50):
            job.give_way()
        assert dict(proxy.counts) == {"LIST": 1}
        job.release()


def test_a_dead_writer_that_waited_is_passed_over(place: Place, monkeypatch) -> None:
    """Its place becomes older than those of the living; who looks then deletes it."""
    monkeypatch.setattr(store_turns, "ASLEEP_S", 1.5)
    place.there.mark(f"{TURNS}/000000000001-dead", b"{}")
    with writing(place.here, 30.0):
        pass
    assert place.here.file_names(TURNS) == []


def test_a_dead_writer_of_this_machine_is_passed_over_soon(place: Place, monkeypatch) -> None:
    """Its place names a process that has ended; one that lives, and only sleeps, keeps its own."""
    monkeypatch.setattr(store_turns, "_STILL_S", 0.5)
    with subprocess.Popen(["sleep", "1000"]) as process:
        dead = json.dumps({"process": process_identity(process.pid)}).encode()
        process.kill()
    place.there.mark(f"{TURNS}/000000000001-dead", dead)
    with writing(place.here, 5.0):
        pass
    assert place.here.file_names(TURNS) == []
    lives = json.dumps({"process": process_identity(os.getpid())}).encode()
    place.there.mark(f"{TURNS}/000000000001-sleeps", lives)
    with pytest.raises(ConcurrentWriter), writing(place.here, 3.0):
        pass
    assert place.here.file_names(TURNS) == ["000000000001-sleeps"]


def date_back(monkeypatch: pytest.MonkeyPatch, age_s: int) -> None:
    """Let the store's dates of the line be older: its writers have put nothing for so long."""
    listed = ObjectStorage.list_folder

    def older(self: ObjectStorage, folder: str) -> list[Entry]:
        back_ms = 1000 * age_s if folder == TURNS else 0
        entries = listed(self, folder)
        return [replace(entry, modified_ms=entry.modified_ms - back_ms) for entry in entries]

    monkeypatch.setattr(ObjectStorage, "list_folder", older)


@pytest.mark.parametrize("age_s", [4, 14])
def test_who_does_not_wait_passes_over_a_dead_writer(place: Place, monkeypatch, age_s: int) -> None:
    """Its process looks once, and is new: the store knows how old a place is."""
    place.there.mark(f"{TURNS}/000000000001-dead", b"{}")
    date_back(monkeypatch, age_s)
    for _ in range(2):
        monkeypatch.setattr(store_turns, "_lines", {})
        refused = pytest.raises(ConcurrentWriter, match="came before")
        with refused if age_s == 4 else nullcontext(), writing(place.here, 0.0):
            place.here.put("x", b"1")
    assert place.here.file_names(TURNS) == ["000000000001-dead"][: age_s == 4]


def test_a_slow_writer_that_is_passed_over_at_first_sight_has_its_turn(
    place: Place, monkeypatch
) -> None:
    """It lives, but nothing of it has arrived for long: it loses its place, and puts it again."""
    with ExitStack() as after, writing(place.here):
        other = after.enter_context(waiting(place))
        (name,) = place.here.file_names(TURNS)
        with monkeypatch.context() as slow:
            date_back(slow, 14)
            store_turns.refuse_early(place.here, None)
        while place.here.file_names(TURNS) != [name]:
            assert not other.done()
        look_again(place.here)
        with pytest.raises(ConcurrentWriter, match="came before"):
            store_turns.refuse_early(place.here, None)
    assert other.result() == "had it"


def test_the_store_is_asked_for_its_time_only_by_who_meets_others(
    s3_server: S3Server, tmp_path: Path, monkeypatch
) -> None:
    """Who meets nobody sends no request for it; who waits has the date of its own place."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        with writing(place.here, 0.0):
            pass
        proxy.counts.clear()
        monkeypatch.setattr(store_turns, "_lines", {})
        with writing(place.here, 0.0):
            pass
        assert proxy.counts == {"LIST": 1, "GET": 1, "PUT": 2}
        with ExitStack() as line:
            store_turns.take_place(place.there, line)
            own = store_turns.take_place(place.here, line)
            proxy.counts.clear()
            with pytest.raises(ConcurrentWriter, match="came before"):
                store_turns.refuse_early(place.here, own)
            assert proxy.counts == {"LIST": 1, "PUT": 1}


def test_two_threads_of_a_job_share_a_turn(place: Place) -> None:
    """A commit and the next checkpoint, which waits for it: else each commit takes two turns."""
    job = place.job()
    had: list[bool] = []

    def checkpoint() -> None:
        with job.writing():
            had.append(other.done())

    with ThreadPoolExecutor(1) as threads, waiting(place) as other:
        with job.writing():
            second = threads.submit(checkpoint)
            while not job._comes:
                assert not second.done()
        second.result()
        assert had == [False]
        assert other.result() == "had it"
    job.release()


def test_a_slow_writer_that_was_passed_over_has_its_place_again(place: Place) -> None:
    """Its next look puts the place that somebody deleted."""
    with ExitStack() as after, writing(place.here):
        other = after.enter_context(waiting(place))
        (name,) = place.here.file_names(TURNS)
        place.here.mark(f"{TURNS}/{name}", None)
        while place.here.file_names(TURNS) != [name]:
            assert not other.done()
    assert other.result() == "had it"


@pytest.mark.parametrize("how", ["restore", "run"])
def test_a_restore_and_a_second_run_are_refused_between_two_turns(place: Place, how: str) -> None:
    """The job has given way, and lives; after its end they go on."""
    job = place.job()
    with waiting(place) as other:
        job.give_way()
        assert other.result() == "had it"

    def act() -> None:
        if how == "restore":
            with writing(place.there, 0.0, alone=True):
                pass
        else:
            checkpoint = str(place.checkpoint)
            JobHold(place.there, "again", checkpoint=checkpoint, wait_s=0.0).release()

    with pytest.raises(ConcurrentWriter, match="a stream from checkpoint"):
        act()
    with job.writing():
        pass
    job.release()
    act()


def test_a_job_whose_life_was_taken_does_not_write_again(place: Place, monkeypatch) -> None:
    """It slept past its life between its turns; a restore came in."""
    job = place.job()
    with waiting(place) as other:
        job.give_way()
        assert other.result() == "had it"
    job._living._lease._ended.set()  # type: ignore[union-attr]  # it sleeps
    with monkeypatch.context() as later, writing(place.there, 0.0):
        later.setattr(lease, "store_time", lambda _: datetime.now(UTC) + timedelta(seconds=63))
        store_turns.refuse_living(place.there)  # as a restore does
    job._living._lease._sent_s -= 61  # type: ignore[union-attr]
    for _ in range(2):
        with pytest.raises(ConcurrentWriter, match="was taken for dead"), job.writing():
            place.here.put("x", b"1")
    job.release()
    with writing(place.there):  # it has kept nothing
        assert place.there.file_names("") == []


def test_the_next_run_waits_for_the_life_of_a_dead_one(place: Place) -> None:
    """A machine died between two turns: its lease is over after a while, and not before."""
    job = place.job()
    with waiting(place) as other:
        job.give_way()
        assert other.result() == "had it"
    job._living._lease._ended.set()  # type: ignore[union-attr]
    (life,) = place.lives()
    place.change(life, process=["another machine", "1", "1"], lease_s=1)
    with pytest.raises(ConcurrentWriter, match=r"its lease ends in [1-3] s"):
        JobHold(place.there, "again", checkpoint=str(place.checkpoint), wait_s=0.0)
    again = JobHold(place.there, "again", checkpoint=str(place.checkpoint), wait_s=30.0)
    with again.writing():
        place.there.put("x", b"1")
    again.release()
    job.release()


def test_a_job_whose_table_was_taken_does_not_give_way(place: Place) -> None:
    """Before it had a life it slept past its lease: what came between is not known to it."""
    job = place.job()
    lease_of(place.here)._ended.set()
    place.change(PATH, lease_s=-3, process=None)
    with writing(place.there, 0.0, alone=True):
        pass
    lease_of(place.here)._sent_s -= 61
    place.there.mark(f"{TURNS}/000000000001-waits", b"{}")
    look_again(place.here)
    job.give_way()
    assert not job.stale
    assert place.lives() == []
    with pytest.raises(ConcurrentWriter, match="has expired"), job.writing():
        place.here.put("x", b"1")
    job.release()


@pytest.mark.parametrize("stands_still", [False, True])
def test_a_life_that_was_made_too_late_is_not_one(
    place: Place, monkeypatch, stands_still: bool
) -> None:
    """The job sleeps past its lease while it makes its life: a restore came before it.

    The clock of a virtual machine may stand still meanwhile.
    """
    job = place.job()
    place.there.mark(f"{TURNS}/000000000001-waits", b"{}")
    look_again(place.here)
    take, slept = Lease._take, list[str]()

    def late(self: Lease) -> tuple[float, str]:
        if self._path != PATH and not slept:
            slept.append(self._path)
            lease_of(place.here)._ended.set()
            place.change(PATH, lease_s=-3, process=None)
            place.there.mark(f"{TURNS}/000000000001-waits", None)
            with writing(place.there, 0.0, alone=True):
                pass
            lease_of(place.here)._sent_s -= 0 if stands_still else 61
        return take(self)

    monkeypatch.setattr(Lease, "_take", late)
    job.give_way()
    assert slept and not job.stale
    with pytest.raises(ConcurrentWriter, match="has expired"), job.writing():
        place.here.put("x", b"1")
    job.release()


def slow_change(place: Place, proxy: Proxy, monkeypatch) -> None:
    """Let the first attempt of a change get no answer for a while."""
    monkeypatch.setattr(object_storage, "_DOUBT_S", 0.05)
    silent = iter([True])
    proxy.fails = lambda _, method, path: (
        "silent" if method == "PUT" and path.endswith("/x") and next(silent, False) else None
    )
    storage = ObjectStorage(place.here.root, place.options, lease_s=3.0)  # 0.5 s for an attempt
    storage.put("x", b"1")
    assert len(proxy.fired) == 1


def test_a_change_in_doubt_keeps_the_table(
    s3_server: S3Server, tmp_path: Path, monkeypatch
) -> None:
    """It could arrive in another process's turn: a job does not give way, a lease is not free."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        job = place.job()
        with waiting(place) as other:
            with job.writing():
                slow_change(place, proxy, monkeypatch)
            look_again(place.here)
            job.give_way()
            assert not job.stale and not other.done()
            job.release()
            place.change(PATH, process=["another machine", "1", "1"])
            with pytest.raises(ConcurrentWriter, match="its lease ends in"):
                Lease(place.there, "another process")
            place.change(PATH, lease_s=-3)
            assert other.result() == "had it"


def test_a_kept_lease_is_free_for_its_own_process(
    s3_server: S3Server, tmp_path: Path, monkeypatch
) -> None:
    """A process that writes batches goes on at once after a change in doubt."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        with writing(place.here):
            slow_change(place, proxy, monkeypatch)
        with writing(place.here, 0.0):
            pass


@pytest.mark.parametrize("how", ["503", "503 after", "reset", "reset after", "cut", "stale"])
def test_requests_of_the_line_may_fail(s3_server: S3Server, tmp_path: Path, how: str) -> None:
    """Each request of the locks fails once, or a listing is old: everybody has a turn."""
    failed = set[tuple[str, str]]()

    def fails(_: int, method: str, path: str) -> str | None:
        what = method, path.partition("?")[0] if how == "stale" else path
        if what in failed or ".hoodie_nb" not in path:
            return None
        failed.add(what)
        return how

    with Proxy(s3_server) as proxy:
        proxy.fails = fails
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        job = place.job()
        for _ in range(3):
            with waiting(place) as other:
                while not other.done():
                    with job.writing():
                        place.here.put("x", b"1")
                    time.sleep(0.01)
                assert other.result() == "had it"
        job.release()
        proxy.fails = lambda *_: None
        assert writers(place.here) == []


@pytest.mark.parametrize(("what", "times"), [("puts its place", 9), ("lists the places", 40)])
def test_who_waits_is_patient_with_the_store(
    s3_server: S3Server, tmp_path: Path, what: str, times: int
) -> None:
    """Refused requests, more than are repeated at once, do not end its wait."""
    refused: list[str] = []
    looks: list[str] = []

    def fails(_: int, method: str, path: str) -> str | None:
        if "list-type" in path and "turns" in path:
            looks.append(path)
        puts = method == "PUT" and f"/{TURNS}/" in path
        lists = looks[1:] and looks[-1] == path  # the first look is before it waits
        if len(refused) == times or not (puts if what == "puts its place" else lists):
            return None
        refused.append(path)
        return "503"

    with Proxy(s3_server) as proxy:
        proxy.fails = fails
        place = Place(s3_server.new_root(), proxy.options, tmp_path)

        def waits() -> str:
            with writing(place.there, 60.0):
                return "had it"

        with ThreadPoolExecutor(1) as threads, Lease(place.here, "a test") as held:
            future = threads.submit(waits)
            while len(refused) < times:
                assert not future.done()
            held.close()
            assert future.result() == "had it"


@pytest.mark.parametrize(("given", "waits_s"), [(None, 0.6), ("300 ms", 0.3)])
def test_the_default_wait_is_longer_than_a_lease(
    place: Place, monkeypatch: pytest.MonkeyPatch, given: str | None, waits_s: float
) -> None:
    """Twice as long: a process may keep the table for a lease in doubt, and then be killed."""
    assert 2 * (place.here.lease_s + 2) < clock.STORE_WAIT_S
    monkeypatch.setattr(clock, "STORE_WAIT_S", 0.6)
    monkeypatch.setattr(clock, "WAIT_S", 0.0)
    with writing(place.here):
        began = time.monotonic()
        with pytest.raises(ConcurrentWriter), writing(place.there, given):
            pass
        assert waits_s <= time.monotonic() - began < waits_s + 5


def test_the_doctor_lists_who_writes_waits_and_lives(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the objects of the table."""
    address = s3_server.new_root()
    with_options = partial(storage_at, options=s3_server.options)
    monkeypatch.setattr(handle, "storage_at", with_options)  # the environment cannot allow http
    schema = {"id": "string"}
    Table.create(address, schema=schema, record_key="id", storage_options=s3_server.options)
    place = Place(address, s3_server.options, tmp_path)
    job = place.job()
    with waiting(place) as other:
        report = str(doctor(table=address))
        assert f"process {os.getpid()} writes the table, or has died (a job, process" in report
        assert f"process {os.getpid()} waits, or has died (waits for its turn" in report
        job.give_way()
        other.result()
    report = str(doctor(table=address))
    assert "runs a stream into the table, or has died (a stream from checkpoint" in report
    assert "writes the table" not in report and "waits" not in report
    job.release()
    assert "or has died" not in str(doctor(table=address))


def test_who_waits_and_lives_is_listed(place: Place) -> None:
    """The objects name their processes."""
    job = place.job()
    with waiting(place) as other:
        roles = [writer.role for writer in writers(place.here)]
        assert roles == ["writes the table, or has died", "waits, or has died"]
        watch = Watch(place.here)
        watch.look()
        lease_of(place.here).renew()
        assert watch.look()[0].role == "writes the table"  # as the object has changed
        job.give_way()
        other.result()
    assert [w.role for w in writers(place.here)] == ["runs a stream into the table, or has died"]
    job.release()


def test_a_look_tells_the_living_from_the_dead(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who replaces its object lives; who has not for a lease, or whose process ended, has died."""
    clock_s = [0.0]
    monkeypatch.setattr(writers_module, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    watch = Watch(place.here)
    held = {"host": "there", "pid": 7, "lease_s": 60, "purpose": "a batch write"}
    line = {"host": "there", "pid": 8}

    def put(path: str, holder: dict[str, object], renewal: int) -> None:
        place.there.mark(path, json.dumps({**holder, "renewal": renewal}).encode())

    def look(*, after_s: float) -> list[str]:
        clock_s[0] += after_s
        return [f"{writer.process} {writer.role}" for writer in watch.look()]

    put(PATH, held, 0)
    put(f"{TURNS}/1", line, 0)
    doubt = ", or has died"
    assert look(after_s=0) == [f"7 writes the table{doubt}", f"8 waits{doubt}"]
    put(f"{TURNS}/1", line, 1)
    assert look(after_s=5) == [f"7 writes the table{doubt}", "8 waits"]
    put(PATH, held, 1)
    assert look(after_s=50) == ["7 writes the table", "8 has died"]
    assert look(after_s=60) == ["7 writes the table", "8 has died"]
    assert look(after_s=3) == ["7 has died", "8 has died"]
    put(PATH, held, 2)
    assert look(after_s=300) == [f"7 writes the table{doubt}", "8 has died"]  # long ago, perhaps
    ended = {"host": "here", "pid": 9, "process": [machine(), "9", "0"]}
    put(f"{TURNS}/1", ended, 0)
    assert look(after_s=1)[1] == "9 has died"
    place.there.mark(f"{TURNS}/1", None)
    put(PATH, {**held, "released": True}, 0)
    assert look(after_s=1) == []


def test_looks_ask_for_nothing_that_has_not_changed(s3_server: S3Server, tmp_path: Path) -> None:
    """A look at a table at rest is two lists; and it never changes anything."""
    asked: list[str] = []
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        with writing(place.here):
            watch = Watch(ObjectStorage(place.here.root, proxy.options))
            watch.look()
            proxy.fails = lambda _, method, path: asked.append(f"{method} {path}")
            watch.look()
    looked = [one for one in asked if not one.startswith("PUT")]  # the lease, its end
    assert len(looked) == 2 and all("list-type" in one for one in looked)
    assert all(f"{PATH}" in one for one in asked if one.startswith("PUT"))


def test_a_failing_look_finds_nobody(s3_server: S3Server, tmp_path: Path) -> None:
    """A job keeps the table if it cannot list the line, and is not hurt."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        job = place.job()
        look_again(place.here)
        proxy.fails = lambda _, method, path: "503" if "list-type" in path else None
        thread = threading.Thread(target=job.give_way)
        thread.start()
        thread.join()
        assert not job.stale and proxy.fired
        proxy.fails = lambda *_: None
        job.release()
