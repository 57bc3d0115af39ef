"""Processes that wait for a table get their turn, also beside a job; what a running job refuses."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from core.lock.test_lock import held_elsewhere
from lives import live, make, opened

from hoodie_nb import Table
from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.lock import forks
from hoodie_nb.lock import waiting as waiting_module
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lease import LockedFile
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.waiting import is_awaited, jobs, noted, take_place
from hoodie_nb.storage.local_storage import LocalStorage

OTHER = """
import sys
from hoodie_nb.errors import HoodieError
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.storage.local_storage import LocalStorage
storage = LocalStorage(sys.argv[1])
try:
    with {how}:
        print("has it", flush=True)
        sys.stdin.readline()
except HoodieError as error:
    print(error, flush=True)
"""
WRITES = "writing(storage)"  # waits a minute
ALONE = "writing(storage, 100, alone=True)"
STATE = "JobHold(storage, 'b', wait_s=100).writing()"
JOB = "JobHold(storage, 'b', checkpoint={checkpoint!r}, wait_s=100).writing()"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """The storage of a table with two batches."""
    live(opened(make(tmp_path / "t")), 2)
    return LocalStorage(tmp_path / "t")


def places(storage: LocalStorage) -> list[str]:
    """Return the places in the line, those of the dead too."""
    return storage.file_names(".hoodie/.hoodie_nb/turns")


@contextmanager
def waiting(
    storage: LocalStorage, how: str = WRITES, *, count: int = 1
) -> Iterator[subprocess.Popen[str]]:
    """Start another process that waits for the table, which this one holds.

    Then there are `count` places.
    """
    command = [sys.executable, "-c", OTHER.format(how=how), storage.root]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            while not (is_awaited(storage) and len(places(storage)) >= count):
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> str:
    """Return the next line that the other process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


@pytest.mark.usefixtures("at_once")
def test_nobody_overtakes_a_process_that_waits(storage: LocalStorage) -> None:
    """A process that writes in a loop does not take the lock again before the one that waits."""
    with writing(storage):
        process = waiting(storage)
        other = process.__enter__()
        other.send_signal(signal.SIGSTOP)  # else it may have the lock before this one asks
        os.waitid(os.P_PID, other.pid, os.WSTOPPED | os.WNOWAIT)
    for _ in range(3):
        refused = pytest.raises(ConcurrentWriter, match=r"another process waits .* came before")
        with refused, writing(storage):
            pass
    other.send_signal(signal.SIGCONT)
    assert answer(other) == "has it"
    other.communicate("\n")
    process.__exit__(None, None, None)
    with writing(storage):
        pass


def test_a_waiting_process_that_is_killed_delays_nobody(storage: LocalStorage) -> None:
    """The kernel frees its place in the line."""
    with writing(storage), waiting(storage) as other:
        other.kill()
        other.wait()
        assert not is_awaited(storage)
    with writing(storage):
        pass


def test_a_process_that_is_stopped_while_it_waits_delays_nobody(storage: LocalStorage) -> None:
    """It is passed over, and has the next turn when it goes on."""
    with writing(storage), waiting(storage) as other:
        other.send_signal(signal.SIGSTOP)
        while is_awaited(storage):
            pass
        other.send_signal(signal.SIGCONT)
        while not is_awaited(storage):
            pass
    with writing(storage):  # it is dead now
        assert places(storage) == []


def test_those_that_wait_have_turns_in_their_order(storage: LocalStorage) -> None:
    """Of five processes nobody overtakes another one; no place is left."""
    with contextlib.ExitStack() as stack:
        with writing(storage):
            others = []
            for number in range(1, 6):
                others.append(stack.enter_context(waiting(storage, count=number)))
        for number, other in enumerate(others):
            assert answer(other) == "has it"
            assert len(places(storage)) == 4 - number
            other.communicate("\n")
    assert places(storage) == []


def dead_place(storage: LocalStorage) -> Path:
    """Return the file of a dead writer's place, which looks alive for some seconds."""
    path = Path(storage.root, ".hoodie/.hoodie_nb/turns/00000000000000000001-1")
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return path


def test_a_place_is_behind_those_that_were_named_by_another_clock(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have a monotonic clock of its own, an hour ahead of another one's."""
    now = time.monotonic_ns()
    with ExitStack() as line:
        monkeypatch.setattr(time, "monotonic_ns", lambda: now + 3_600 * 10**9)
        first = take_place(storage, line)
        monkeypatch.undo()
        second = take_place(storage, line)
        assert places(storage) == [os.path.basename(str(p.name)) for p in (first, second)]
        assert is_awaited(storage, second)


def test_two_that_look_at_a_dead_place_do_not_disturb_each_other(storage: LocalStorage) -> None:
    """One has it open and locked, as whoever looks, when the other one looks."""
    with dead_place(storage).open("rb") as looker:
        fcntl.flock(looker, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with writing(storage, 0):
            pass
    assert places(storage) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_dead_place_of_another_user_delays_nobody() -> None:
    """It can be read and locked, but neither written nor deleted."""
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(make(Path(folder) / "t"))
        with writing(storage):
            place = dead_place(storage)
        subprocess.run(["chmod", "-R", "a+rwX", folder], check=True)
        place.parent.chmod(0o755)
        place.chmod(0o644)
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            with contextlib.suppress(BaseException), writing(storage, 0):
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert places(storage) == [place.name]


def test_what_is_no_file_is_passed_over_in_the_line(storage: LocalStorage) -> None:
    """A socket or pipe that somebody put there delays nobody."""
    with contextlib.chdir(dead_place(storage).parent), socket.socket(socket.AF_UNIX) as planted:
        planted.bind("00000000000000000000-1")
        os.mkfifo("00000000000000000000-2")
        os.mkdir("00000000000000000000-3")
        with writing(storage, 0):
            pass


@pytest.mark.parametrize(
    ("age_s", "is_passed"), [(0, False), (4, False), (6, True), (-4, False), (-6, True)]
)
def test_a_place_delays_nobody_after_five_seconds(
    storage: LocalStorage, age_s: int, is_passed: bool
) -> None:
    """Also one whose time is in the future: the clock has been put back since."""
    path = dead_place(storage)
    with path.open("rb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(path, (0, time.time() - age_s))
        assert is_awaited(storage) != is_passed


def write(storage: LocalStorage, wait_s: float) -> None:
    """Hold the table for a moment."""
    with writing(storage, wait_s):
        pass


def run_job(storage: LocalStorage, wait_s: float) -> None:
    """Run a job for a moment."""
    JobHold(storage, "b", checkpoint="/b", wait_s=wait_s).release()


@contextmanager
def locked_elsewhere(storage: LocalStorage) -> Iterator[None]:
    """Hold the lock as another process would."""
    with Path(storage.root, ".hoodie/.hoodie_nb/lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@pytest.mark.parametrize("holder", [writing, locked_elsewhere])
@pytest.mark.parametrize("act", [write, run_job])
def test_a_wait_has_its_length_whatever_the_clock_does(
    storage: LocalStorage,
    act: Callable[[LocalStorage, float], None],
    holder: Callable[[LocalStorage], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a thread of this process and for another process; each look at the clock is a jump."""
    jumps = itertools.count(int(time.time()), 3600)
    with ThreadPoolExecutor(1) as threads, holder(storage):
        monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
        began = time.monotonic()
        refused = threads.submit(act, storage, 0.3).exception(timeout=30)
        assert time.monotonic() - began >= 0.3
    who = "thread of this process" if holder is writing else "process"
    assert isinstance(refused, ConcurrentWriter)
    assert f"is being written by another {who}" in str(refused)
    act(storage, 0)


def test_what_a_call_does_before_its_turn_is_of_that_call_only(storage: LocalStorage) -> None:
    """It is done once, if the call has to wait; neither later nor by a job."""
    done: list[str] = []
    with writing(storage, meanwhile=lambda _: done.append("in vain")):
        pass
    with locked_elsewhere(storage):
        with pytest.raises(ConcurrentWriter):
            run_job(storage, 0.1)
        assert done == []
        with (
            pytest.raises(ConcurrentWriter),
            writing(storage, 0.1, meanwhile=lambda _: done.append("while it waited")),
        ):
            pass
    assert done == ["while it waited"]


def test_a_write_within_a_call_that_waits_has_its_place(storage: LocalStorage) -> None:
    """It comes before who came later, and the call keeps its place: it is next."""
    others = ExitStack()

    def meanwhile(_: Callable[[str], None]) -> None:
        theirs.append(others.enter_context(waiting(storage, count=2)))
        before = places(storage)
        with pytest.raises(ConcurrentWriter, match="by another process"):
            write(storage, 0.1)
        elsewhere.close()
        write(storage, 0)
        assert places(storage) == before
        assert len(noted(storage)) == 2  # both are locked

    theirs: list[subprocess.Popen[str]] = []
    with others:
        with ExitStack() as elsewhere:
            elsewhere.enter_context(locked_elsewhere(storage))
            with writing(storage, 100, meanwhile=meanwhile):
                assert len(places(storage)) == 1
                write(storage, 0)
        assert answer(theirs[0]) == "has it"
        theirs[0].communicate("\n")
    write(storage, 0)


def test_a_place_that_an_interrupt_has_left_is_not_used_again(storage: LocalStorage) -> None:
    """Else the others, who wait behind it, would wait for each later write."""

    def interrupted(_: Callable[[str], None]) -> None:
        raise KeyboardInterrupt

    with ExitStack() as line:
        with pytest.MonkeyPatch.context() as patch, locked_elsewhere(storage):
            patch.setattr(waiting_module, "take_place", lambda *_: take_place(storage, line))
            with pytest.raises(KeyboardInterrupt), writing(storage, 100, meanwhile=interrupted):
                pass
        with pytest.raises(ConcurrentWriter, match="another process waits"):
            write(storage, 0)
    write(storage, 0)


def test_a_thread_that_waits_first_for_its_process_has_one_limit(storage: LocalStorage) -> None:
    """What it has waited for another thread counts when it then waits for another process."""
    with ThreadPoolExecutor(1) as threads, locked_elsewhere(storage):
        began = time.monotonic()
        first = threads.submit(write, storage, 1.5)
        while not places(storage):
            assert not first.done()
        with pytest.raises(ConcurrentWriter, match="by another process"):
            write(storage, 2)
        assert time.monotonic() - began < 3.3  # not 1.5 and 2 s
        assert isinstance(first.exception(), ConcurrentWriter)


def test_a_batch_write_beside_a_job_of_its_process_waits_for_its_turn(
    storage: LocalStorage,
) -> None:
    """However long the job's checkpoint takes."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with ThreadPoolExecutor(1) as threads:
        with hold.writing():
            waits = threads.submit(write, storage, 0)
            with pytest.raises(TimeoutError):
                waits.result(0.2)
        waits.result(30)
    hold.release()


def test_who_waits_logs_for_whom(storage: LocalStorage, caplog: pytest.LogCaptureFixture) -> None:
    """At once, also if it then waits: a job with state keeps the lock to its end."""
    hold = JobHold(storage, "writing to its end from checkpoint /a")
    caplog.set_level("INFO", "hoodie_nb.lock")
    with ExitStack() as stack:
        copy = os.dup(hold._file.fileno())  # as if the job were another process's
        stack.callback(os.close, copy)
        hold.release()
        with pytest.raises(ConcurrentWriter):
            write(storage, 0.02)
    assert [("writing to its end" in each.message) for each in caplog.records] == [True]


def test_a_process_that_waits_does_not_make_a_deleted_table_again(storage: LocalStorage) -> None:
    """It says that the table is gone."""
    root = Path(storage.root)
    with writing(storage), waiting(storage) as other:
        root.rename(root.with_name("deleted"))  # at once: it looks a hundred times a second
        assert "was deleted meanwhile" in other.communicate()[0]
    assert not root.exists()


def test_a_job_between_turns_does_not_make_a_deleted_table_again(storage: LocalStorage) -> None:
    """Its next turn fails."""
    root = Path(storage.root)
    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage) as other:
        hold.give_way()
        assert answer(other) == "has it"
    root.rename(root.with_name("deleted"))
    with pytest.raises(InvalidTable, match="was deleted meanwhile"), hold.writing():
        pass
    assert not root.exists()
    hold.release()


@pytest.mark.parametrize("idle", [False, True])
def test_a_job_gives_way_between_two_writes(storage: LocalStorage, idle: bool) -> None:
    """To a process that waits, after a checkpoint or while it has none; then it is stale."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage) as other:
        if idle:
            hold.give_way()
        else:
            with hold.writing():
                assert hold.in_write
                hold.give_way()  # inside a write it does nothing
                storage.put("x", b"")
        assert answer(other) == "has it"
        assert hold.stale
        other.stdin.write("\n")  # type: ignore[union-attr]
        other.stdin.flush()  # type: ignore[union-attr]
        with hold.writing():
            assert hold.stale
            storage.put("x", b"")
        hold.stale = 0.0
        with hold.writing():  # nobody waits: it has kept the lock
            assert not hold.stale
    hold.release()


def test_a_job_that_ends_does_not_wait_forever(storage: LocalStorage) -> None:
    """Another process may keep the lock, or its place in the line, as long as it likes."""
    hold = JobHold(storage, "a", checkpoint="/a")

    def write() -> None:
        with hold.writing():
            pass

    with waiting(storage) as other, ThreadPoolExecutor(1) as threads:
        hold.give_way()
        assert answer(other) == "has it"
        writing_ = threads.submit(write)
        while not is_awaited(storage):
            assert not writing_.done()
        hold.until = 0.0
        with pytest.raises(ConcurrentWriter, match="is being written by another process"):
            writing_.result()
        assert not is_awaited(storage)
    hold.release()


def test_a_job_without_a_folder_keeps_the_lock(storage: LocalStorage) -> None:
    """Such a job has state that others' commits would make wrong."""
    hold = JobHold(storage, "a")
    with waiting(storage) as other:
        with hold.writing():
            pass
        hold.give_way()
        with hold.writing():
            assert not hold.stale
        hold.release()
        assert answer(other) == "has it"


def test_a_job_with_state_is_refused_beside_another_one(storage: LocalStorage) -> None:
    """It would hold the lock to its end, and the other job could neither write nor stop."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage, STATE) as other:
        hold.give_way()
        assert "is written by a stream of another process: stop it" in answer(other)
        other.communicate()
    hold.release()
    JobHold(storage, "b").release()


def test_a_job_keeps_the_lock_while_one_of_its_threads_is_in_a_write(storage: LocalStorage) -> None:
    """Also while that thread waits for what another one does in background."""
    hold = JobHold(storage, "a", checkpoint="/a")
    paused = threading.Event()
    goes_on = threading.Event()

    def apply() -> None:
        with hold.writing(), hold.paused("x"):
            paused.set()
            goes_on.wait()

    def seal() -> None:
        with hold.writing():
            hold.wait_until_unused()
            storage.put("x", b"")  # refused without the lock

    with ThreadPoolExecutor(2) as threads, waiting(storage) as other:
        applying = threads.submit(apply)
        paused.wait()
        sealing = threads.submit(seal)
        while not hold._held.calls:
            assert not sealing.done()
        goes_on.set()
        applying.result()
        sealing.result()
        assert answer(other) == "has it"
    hold.release()


def test_a_fork_waits_while_a_job_looks_who_waits(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the child would share the place in the line, and nobody could write while it lives."""
    opened_it = threading.Event()
    forked = threading.Event()

    class Slow(weakref.WeakSet[LockedFile]):
        def add(self, item: LockedFile) -> None:
            """Let a fork come before the file is registered."""
            opened_it.set()
            forked.wait(0.5)
            super().add(item)

    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage):
        pass
    assert places(storage)  # of a dead process: it is locked for a moment
    monkeypatch.setattr(forks, "_files", Slow())
    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(hold.give_way)
        opened_it.wait()
        pid = os.fork()
        if pid == 0:
            links = (os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd"))
            os._exit(any("/turns/" in link for link in links))
        forked.set()
        assert os.waitpid(pid, 0) == (pid, 0)
        looking.result()
    hold.release()


def test_nothing_is_written_outside_a_turn(storage: LocalStorage) -> None:
    """A late thread of a job cannot change the table while another process may write it."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage):
        hold.give_way()
        with pytest.raises(ConcurrentWriter, match="outside its turn"):
            storage.put("x", b"")
        with pytest.raises(ConcurrentWriter, match="outside its turn"):
            storage.remove(".hoodie/hoodie.properties")
    hold.release()
    storage.put("x", b"")


def test_batch_writes_beside_a_job_wait_for_their_turn(storage: LocalStorage) -> None:
    """Those of its process are not refused while another process has its turn."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage) as other:
        hold.give_way()
        assert answer(other) == "has it"
        other.stdin.write("\n")  # type: ignore[union-attr]
        other.stdin.flush()  # type: ignore[union-attr]
        with writing(storage):
            pass
    hold.release()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (ALONE, "is written by a stream of another process: stop it"),
        (JOB.format(checkpoint="/a"), "from the checkpoint folder /a: stop that stream"),
    ],
)
def test_a_running_job_refuses(storage: LocalStorage, how: str, message: str) -> None:
    """A restore, and a second run of its checkpoint folder, also while it has given way."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage, how) as other:
        hold.give_way()
        assert message in answer(other)
        other.communicate()
    hold.release()
    with writing(storage, alone=True):  # the job has ended
        pass


@pytest.mark.parametrize("replaced", [False, True])
def test_a_job_ends_whose_life_was_deleted(storage: LocalStorage, replaced: bool) -> None:
    """Nothing kept others from a restore, or from a second run of its checkpoint folder."""
    hold = JobHold(storage, "a", checkpoint="a")
    with waiting(storage) as other:
        hold.give_way()
        assert answer(other) == "has it"
        (life,) = jobs(storage)
        os.unlink(storage.fetch(life))
        if replaced:
            Path(storage.fetch(life)).touch()
    with pytest.raises(ConcurrentWriter, match="was deleted while a stream ran"), hold.writing():
        pass
    hold.release()
    with writing(storage, 0):
        pass


def test_two_jobs_take_turns(storage: LocalStorage) -> None:
    """A second process's job with another checkpoint folder waits at its start, then has a turn."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with waiting(storage, JOB.format(checkpoint="/b")) as other:
        hold.give_way()
        assert answer(other) == "has it"
    with hold.writing():
        assert hold.stale
    hold.release()


def test_a_table_is_created_beside_those_that_wait(tmp_path: Path) -> None:
    """Their places are no remains of another table."""
    place = tmp_path / "t/.hoodie/.hoodie_nb/turns/1-1"
    place.parent.mkdir(parents=True)
    with place.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(place, (0, 0))  # stopped long ago: it delays nobody
        Table.create(tmp_path / "t", schema={"id": "string"}, record_key="id")
    assert place.exists()


def test_a_table_is_replaced_beside_those_that_wait(storage: LocalStorage) -> None:
    """They keep their places."""
    columns = {"id": "string"}
    with writing(storage), waiting(storage):
        Table.create(storage.root, schema=columns, record_key="id", if_exists="replace")
        assert is_awaited(storage)


def test_replacing_a_table_beside_its_job_is_refused(storage: LocalStorage) -> None:
    """Else the job would go on in another table."""
    hold = JobHold(storage, "a", checkpoint="/a")
    with pytest.raises(ConcurrentWriter, match="stop it first"):
        Table.create(storage.root, schema={"id": "string"}, record_key="id", if_exists="replace")
    hold.release()


@pytest.mark.parametrize("step", ["comes", "waits"])
def test_a_disk_that_fails_in_the_line(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The line loses its order, at most; the write itself meets the error, and reports it."""
    failed = threading.Event()
    number = errno.ENOSPC if step == "comes" else errno.EROFS

    def fails(*_: object) -> None:
        failed.set()
        raise OSError(number, os.strerror(number))

    def write() -> str:
        with writing(storage, 100):
            return "has it"

    with (
        monkeypatch.context() as patch,
        ThreadPoolExecutor() as pool,
        held_elsewhere(Path(storage.root)) as holder,
    ):
        if step == "comes":
            patch.setattr(waiting_module, "_locked", fails)
        else:
            patch.setattr(waiting_module, "unlinked", fails)
            patch.setattr(os, "utime", fails)
        found = pool.submit(write)
        assert failed.wait(100)
        holder.communicate("\n")
        assert found.result(100) == "has it"
    assert len(places(storage)) == (step == "waits")
    assert not is_awaited(storage)
    assert not places(storage)


@pytest.mark.parametrize("name", ["_locked", "unlinked"])
def test_a_limit_of_time_ends_the_waiting(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What the handler of a signal raises is no failure of the disk."""

    def over(*_: object) -> None:
        raise TimeoutError("30 s")

    with pytest.raises(TimeoutError, match="30 s"), ExitStack() as line:
        monkeypatch.setattr(waiting_module, name, over)
        take_place(storage, line)
