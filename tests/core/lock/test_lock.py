"""The lock cannot be bypassed by a fork, a deleted file, Ctrl-C or a link in its place."""

from __future__ import annotations

import fcntl
import itertools
import json
import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from each_fault import each_fault
from faults import Fault, FaultyStorage
from lives import MODELS, SCHEMA, assert_at_rest, assert_whole_prefix, commits, live, make, opened
from tables import LOCK, without_meta

from hoodie_nb import Table, failpoints
from hoodie_nb.errors import ConcurrentWriter, HoodieError, InvalidConfig, InvalidTable
from hoodie_nb.evidence import lost
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.lock import forks, lease, lock_file, store_turns, waiting
from hoodie_nb.lock import job as job_module
from hoodie_nb.lock import lock as lock_module
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import STAGED, TURNS, Storage

pytestmark = pytest.mark.usefixtures("at_once")

ROW = {"id": "k0", "p": "par0", "ts": 99, "v": 1}


def upsert(root: Path) -> None:
    """Write a row through the public API."""
    Table.open(root).upsert(pa.Table.from_pylist([ROW], schema=SCHEMA))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The workload's table with two batches in it."""
    live(opened(make(tmp_path / "t")), 2)
    return tmp_path / "t"


def is_free(root: Path) -> bool:
    """Whether another process could take the lock now."""
    with open(root / LOCK, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class Child:
    """A forked process that runs `act` and waits until it is released."""

    def __init__(self, act: Callable[[], object]) -> None:
        result, ours = os.pipe()
        theirs, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            try:
                outcome = f"did {act()}"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            os.write(ours, outcome.encode())
            os.close(ours)
            os.read(theirs, 1)
            os._exit(0)
        os.close(ours)
        os.close(theirs)
        with open(result) as file:
            self.outcome = file.read()

    def end(self) -> None:
        """Release the child and wait for it."""
        os.close(self._go)
        os.waitpid(self.pid, 0)


@contextmanager
def child(act: Callable[[], object]) -> Iterator[str]:
    """Run `act` in a forked process that lives as long as the block; yield the result."""
    process = Child(act)
    try:
        yield process.outcome
    finally:
        process.end()


# --- forks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["job", "batch"])
def test_a_forked_process_cannot_write_with_its_parents_hold(root: Path, holder: str) -> None:
    """While the parent holds the table its child is refused, by the API and below it."""
    storage = LocalStorage(root)
    hold = JobHold(storage, "a job") if holder == "job" else None
    with writing(storage):
        with child(lambda: upsert(root)) as outcome:
            assert outcome.startswith("ConcurrentWriter: ")
        with child(lambda: storage.put(".hoodie/x", b"", new=True)) as outcome:
            assert outcome.startswith("ConcurrentWriter: ")
            assert "was forked from the one that holds" in outcome
        assert not is_free(root)
    if hold is not None:
        upsert(root)
        hold.release()
    assert commits(root) == 2 + (hold is not None)


@pytest.mark.parametrize("holder", ["job", "batch"])
def test_a_child_that_outlives_its_parents_hold_keeps_nothing_locked(
    root: Path, holder: str
) -> None:
    """After the parent's release the table is free, even if a child forked before still runs."""
    storage = LocalStorage(root)
    if holder == "job":
        hold = JobHold(storage, "a job")
        process = Child(lambda: None)
        hold.release()
    else:
        with writing(storage):
            process = Child(lambda: None)
    assert is_free(root)
    upsert(root)
    process.end()


def test_what_a_child_does_with_the_parents_job_leaves_the_parent_alone(root: Path) -> None:
    """A job's hold is refused in a child; a release there does not affect the parent."""
    hold = JobHold(LocalStorage(root), "a job")

    def use() -> None:
        hold.release()
        with hold.writing():
            pass

    with child(use) as outcome:
        assert outcome.startswith("ConcurrentWriter: this process was forked from the one that")
    assert not is_free(root)
    with hold.writing():
        upsert(root)
    hold.release()
    assert is_free(root)


def test_a_child_locks_like_any_other_process(root: Path) -> None:
    """A child of a process without a hold can write, and other writers are refused meanwhile."""
    hold = JobHold(LocalStorage(root), "a job")
    read, write = os.pipe()

    def after_release() -> object:
        os.close(write)
        os.read(read, 1)
        with writing(LocalStorage(root)):
            return is_free(root)

    pid = os.fork()
    if pid == 0:
        os._exit(0 if after_release() is False else 1)
    hold.release()
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    upsert(root)


def test_a_child_of_a_process_that_waits_leaves_its_place_alone(root: Path) -> None:
    """The place stays its parent's, whether the child ends by `sys.exit` or goes on."""
    storage, me, ends = LocalStorage(root), os.getpid(), list[int]()

    def fork(exits: bool) -> None:
        pid = os.fork()
        if pid == 0 and exits:
            sys.exit()
        if pid:
            ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def meanwhile(_: Callable[[str], None]) -> None:
        for exits in (True, False):
            if os.getpid() == me:
                fork(exits)
        if os.getpid() == me:
            assert len(storage.file_names(TURNS)) == 1
            other.close()

    with open(root / LOCK, "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        try:
            with writing(storage, 100, meanwhile=meanwhile):
                assert os.getpid() == me
        except BaseException as error:
            if os.getpid() != me:
                os._exit(1 if isinstance(error, SystemExit) else 2 if "forked" in str(error) else 3)
            raise
    assert ends == [1, 2]
    assert storage.file_names(TURNS) == []


def test_a_child_needs_no_lock_that_a_thread_of_its_parent_had(root: Path) -> None:
    """A thread lists the timeline and partitions, and records an event, as its process forks."""
    table = Table.open(root)
    handle, inside, ends = table._handle, threading.Event(), threading.Event()
    assert table.to_arrow().num_rows
    handle.file_groups()

    def hold() -> None:
        partitions = handle._partitions
        assert partitions is not None
        with handle.timeline._lock, table.events._lock, lost._writing.lock, partitions._lock:
            inside.set()
            ends.wait()

    with ThreadPoolExecutor() as pool:
        pool.submit(hold)
        inside.wait()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends a child that waits
            table.upsert(pa.Table.from_pylist([ROW], schema=SCHEMA))
            os._exit(0)
        ends.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert commits(root) == 3
    assert_at_rest(root)


def test_what_ends_in_a_child_of_a_write_is_not_rolled_back(root: Path) -> None:
    """Also if the child has tried to write in the meantime, with a hold of its own."""
    me = os.getpid()

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            with suppress(ConcurrentWriter):
                upsert(root)
            sys.exit()
        os.waitpid(pid, 0)

    failpoints.call("coord.statuses.pre", fork, 1)
    try:
        upsert(root)
    finally:
        if os.getpid() != me:
            os._exit(0)
        failpoints.arm("")
    assert commits(root) == 3
    assert_at_rest(root)


# --- the file is deleted or replaced ------------------------------------------------------------


@pytest.mark.parametrize("point", ["coord.inflight.post", "coord.publish.post", "coord.commit.pre"])
def test_a_link_to_the_table_that_is_switched_ends_the_write(root: Path, point: str) -> None:
    """Nothing gets into the other table, and the next write rolls back what is in this one."""
    link, twin = root.with_name("link"), root.with_name("twin")
    shutil.copytree(root, twin)
    link.symlink_to(root)

    def switch() -> None:
        link.unlink()
        link.symlink_to(twin)

    failpoints.call(point, switch, 1)
    try:
        with pytest.raises(ConcurrentWriter, match="was deleted or replaced"):
            upsert(link)
    finally:
        failpoints.arm("")
    for each in (root, twin):
        live(opened(each), 3)
        assert without_meta(Table.open(each).to_arrow()) == MODELS[3]
        assert_at_rest(each)


class Unlocked(FaultyStorage):
    """A storage that loses the lock's file before one of its operations."""

    replaced, committed = False, 0

    def _strike(self, fault: Fault, name: str, action: Any, content: bytes | None) -> Any:
        lock, self.committed = Path(self.root, LOCK), commits(Path(self.root))
        lock.unlink()
        if self.replaced:
            lock.write_text("")
        return action()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("commit_on", ["write", "checkpoint"])
def test_nothing_is_committed_after_the_lock_file_went_away(
    root: Path, commit_on: str, replaced: bool
) -> None:
    """If the file is deleted or replaced at any time, the write ends in ConcurrentWriter.

    If that happens after the last commit, the write ends well and the next one cleans up.
    """
    whole = root.with_name("whole")
    shutil.copytree(root, whole)
    live(opened(whole), 4, commit_on=commit_on)
    done = commits(whole)
    storages: list[Unlocked] = []

    def unlocked(copy: Path, fault: Fault) -> TableHandle:
        handle = opened(copy, fault, kind=Unlocked)
        storages.append(handle.storage)
        storages[-1].replaced = replaced
        return handle

    def act(table: Table) -> None:
        with writing(LocalStorage(table.path)):
            live(table._handle, 4, commit_on=commit_on)

    for copy, error in each_fault(root, act, "unlocked", at_least=20, process=unlocked):
        if error is None:  # only the steps after the last commit were left
            assert storages[-1].committed == done
        else:
            assert isinstance(error, ConcurrentWriter)
            assert "was deleted or replaced" in str(error)
        assert commits(copy) == storages[-1].committed
        assert_whole_prefix(copy)
        live(opened(copy), 4)
        assert without_meta(Table.open(copy).to_arrow()) == MODELS[4]
        assert_at_rest(copy)


def _lose_the_lock(root: Path) -> None:
    (root / LOCK).unlink()


def _lose_the_staging_folder(root: Path) -> None:
    shutil.rmtree(root / STAGED)
    (root / STAGED).write_text("a file")


@pytest.mark.parametrize("lose", [_lose_the_lock, _lose_the_staging_folder])
def test_a_failure_after_the_commit_is_no_failure_of_the_write(
    root: Path, lose: Callable[[Path], None]
) -> None:
    """The call returns its commit and reports what is left: an insert is not written again."""
    table, row = Table.open(root), {"id": "new", "p": "par0", "ts": 1, "v": 1}
    failpoints.call("coord.commit.post", lambda: lose(root))
    try:
        commit = table.insert(pa.Table.from_pylist([row], schema=SCHEMA))
    finally:
        failpoints.arm("")
    assert commit is not None
    assert commit.inserts == 1
    assert len(table.events.records("settling_postponed")) == 1
    if (root / STAGED).is_file():
        (root / STAGED).unlink()
    upsert(root)
    found = [key for key in table.to_arrow(["id"]).column("id").to_pylist() if key == "new"]
    assert found == ["new"]
    assert_at_rest(root)


def test_a_file_replaced_while_the_lock_is_taken_is_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a deleted file does not count: the existing file is locked."""
    flock, replaced = fcntl.flock, []

    def slow(file: Any, how: int) -> None:
        if not replaced:
            replaced.append(True)
            (root / LOCK).unlink()
            (root / LOCK).write_text("")
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with writing(LocalStorage(root)):
        monkeypatch.undo()
        assert not is_free(root)
    assert is_free(root)


# --- interrupts -------------------------------------------------------------------------------


def is_unlocked(storage: Storage) -> bool:
    """Whether another thread could have the mutex now."""
    mutex = lock_module.hold_of(storage).mutex
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(
            lambda: mutex.acquire(blocking=False) and not mutex.release()
        ).result()


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line that the lock's modules run."""

    files = tuple(
        m.__file__ for m in (forks, job_module, lock_module, lock_file, waiting, lease, store_turns)
    )

    def __init__(
        self, at: int, skips: Container[str] = (), events: Container[str] = ("line",)
    ) -> None:
        self.at, self.lines, self.line, self.skips, self.events = at, 0, "", skips, events

    def __call__(self, frame: FrameType, event: str, arg: object) -> object:
        code = frame.f_code
        if code.co_filename not in self.files or code.co_name in self.skips:
            return None
        if event in self.events:
            self.lines += 1
            self.place = code.co_filename, frame.f_lineno
            if self.lines == self.at:
                # as these end, no interrupt comes before `__exit__`, in C; `try:` is no code
                if re.search(r"with .*(OwnTurn|mutex|_lock)|try:$", linecache.getline(*self.place)):
                    self.at += 1
                    return self
                self.line = f"{Path(code.co_filename).stem}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def batch(storage: LocalStorage) -> None:
    """Hold the table for a moment."""
    with writing(storage):
        pass


def queued(storage: LocalStorage) -> None:
    """Hold a table for which a process waited that is dead."""
    place = Path(storage.root, LOCK).with_name("turns") / "1-1"
    place.parent.mkdir(exist_ok=True)
    place.touch()
    batch(storage)
    assert not place.exists()


def late(storage: LocalStorage) -> None:
    """Wait for a table until the time is over."""
    with open(f"{storage.root}/{LOCK}", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(ConcurrentWriter), writing(storage, 0.02):
            pass


def nested(storage: LocalStorage) -> None:
    """Wait for a table, and write it meanwhile."""
    with open(f"{storage.root}/{LOCK}", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def meanwhile(_: Callable[[str], None]) -> None:
            file.close()
            batch(storage)

        with suppress(ConcurrentWriter), writing(storage, 0.02, meanwhile=meanwhile):
            pass


def job(storage: LocalStorage) -> None:
    """Run a job with a batch in it."""
    hold = None
    try:
        hold = JobHold(storage, "a job")
        batch(storage)
    finally:
        if hold is not None:
            hold.release()


def failing(storage: LocalStorage) -> None:
    """Try to hold a table that another descriptor has locked."""
    with open(f"{storage.root}/{LOCK}", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(ConcurrentWriter):
            batch(storage)


def beside(storage: LocalStorage) -> None:
    """Wait for another thread that has the table."""
    has_it, goes_on = threading.Event(), threading.Event()

    def write() -> None:
        with writing(storage):
            has_it.set()
            goes_on.wait()

    thread = threading.Thread(target=write)
    thread.start()
    has_it.wait()
    try:
        with suppress(ConcurrentWriter):
            batch(storage)
    finally:
        goes_on.set()
        thread.join()
    batch(storage)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("act", [batch, job, beside])
def test_an_interrupt_never_leaves_the_mutex_locked(
    root: Path, act: Callable[[LocalStorage], None]
) -> None:
    """At the points at which one may come: a call of C has returned, a call of Python begins."""
    storage, leaks = LocalStorage(root), []
    for at in itertools.count(1):
        tracer, raised = Interrupt(at, skips=("release",), events=("call", "c_return")), None
        sys.setprofile(tracer)  # type: ignore[arg-type]
        try:
            act(storage)
        except KeyboardInterrupt as error:
            raised = error  # kept, as a notebook would keep it
        finally:
            sys.setprofile(None)
        if raised is None:
            break
        if not is_unlocked(storage):
            leaks.append(tracer.line)
            mutex = lock_module.hold_of(storage).mutex
            while mutex._is_owned():  # type: ignore[attr-defined]
                mutex.release()
        raised = None
        forks._guard = threading.RLock()
    assert leaks == []
    assert at > 20


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("act", [batch, queued, late, nested, job, failing])
def test_an_interrupt_at_any_line_leaves_the_lock_free(
    root: Path, act: Callable[[LocalStorage], None]
) -> None:
    """Ctrl-C anywhere in taking or leaving the lock leaks no descriptor and no hold."""
    storage = LocalStorage(root)
    act(storage)
    before, known = os.listdir("/proc/self/fd"), sys.gettrace()
    leaks = []
    for at in itertools.count(1):
        tracer, raised = Interrupt(at), None
        sys.settrace(tracer)  # type: ignore[arg-type]
        try:
            act(storage)
        except KeyboardInterrupt as error:
            raised = error  # kept, as a notebook would keep it: its frames are not freed yet
        finally:
            sys.settrace(known)
        if raised is None:
            break
        if not is_unlocked(storage):
            leaks.append(("mutex", tracer.line))
        if act is not job and not is_free(root):  # a job is freed with the last reference
            leaks.append(("held", tracer.line))
        # a place that the frames of an exception keep is passed over after ASLEEP_S
        if act not in (late, nested) and waiting.is_awaited(storage):
            leaks.append(("queued", tracer.line))
        raised = None
        if not is_free(root) or len(os.listdir("/proc/self/fd")) > len(before):
            leaks.append(("leaked", tracer.line))
        batch(storage)
        forks._guard = threading.RLock()  # one line in hundreds leaves it locked
    assert leaks == []
    assert at > 20


def test_a_guard_left_locked_by_an_interrupt_blocks_no_thread(root: Path) -> None:
    """Ctrl-C between two instructions may leave the guard locked: other threads continue."""
    storage, done = LocalStorage(root), threading.Event()
    forks._guard.acquire()
    try:
        thread = threading.Thread(target=lambda: (batch(storage), done.set()), daemon=True)
        thread.start()
        assert done.wait(60), "another thread never returns"
    finally:
        forks._guard.release()


# --- other files in place of the lock -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_only_a_regular_file_is_taken_as_the_lock(root: Path, tmp_path: Path, kind: str) -> None:
    """A link, pipe or folder in the lock's place is refused by name, and nothing is written."""
    precious, lock = tmp_path / "precious", root / LOCK
    precious.write_text("precious")
    lock.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(precious if kind == "link" else tmp_path / "nothing")
    with pytest.raises(InvalidTable, match=rf"{LOCK}.*delete"):
        upsert(root)
    assert precious.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_a_file_that_is_linked_to_the_lock_keeps_its_content(root: Path, tmp_path: Path) -> None:
    """If the lock is a hard link to another file, that file is not written."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (root / LOCK).unlink(missing_ok=True)
    os.link(precious, root / LOCK)
    upsert(root)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(
    "content",
    [
        "\x1b[2J" + "x" * 10_000,
        '{"pid": "\x1b[2J"}',
        "[1]",
        "",
    ],
)
def test_the_content_of_the_lock_file_is_not_trusted(root: Path, content: str) -> None:
    """For any content of the file, the message is one short, printable line."""
    (root / LOCK).write_text(content)
    with open(root / LOCK, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConcurrentWriter, match="another process") as caught:
            upsert(root)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.parametrize("if_exists", ["replace", "error"])
def test_a_table_that_is_being_replaced_is_not_made_by_another_process(
    root: Path, if_exists: str
) -> None:
    """While a process holds a table, another one can neither replace nor create it."""
    if (
        if_exists == "error"
    ):  # the holder is replacing the table: its properties are missing for a moment
        shutil.rmtree(root / "par0")
        for name in ("par1", "par2"):
            shutil.rmtree(root / name, ignore_errors=True)
        for entry in (root / ".hoodie").iterdir():
            if entry.is_file():
                entry.unlink()
        for name in (".temp", "metadata"):
            shutil.rmtree(root / ".hoodie" / name, ignore_errors=True)
    (root / LOCK).touch()
    with open(root / LOCK, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConcurrentWriter, match="another process"):
            Table.create(
                root, schema=SCHEMA, record_key="id", partition_by="p", if_exists=if_exists
            )


def test_replacing_a_table_keeps_the_file_that_is_locked(root: Path) -> None:
    """A table replaced by its holder has the same lock file after as before."""
    upsert(root)
    before = (root / LOCK).stat().st_ino
    Table.create(root, schema=SCHEMA, record_key="id", partition_by="p", if_exists="replace")
    assert (root / LOCK).stat().st_ino == before
    assert json.loads((root / LOCK).read_text())["pid"] == os.getpid()
    assert issubclass(ConcurrentWriter, HoodieError)


_HOLDER = """
import sys
from hoodie_nb.lock.lock import writing
from hoodie_nb.storage.local_storage import LocalStorage
with writing(LocalStorage(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def held_elsewhere(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the table until it reads a line."""
    command, pipe = [sys.executable, "-c", _HOLDER, str(root)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_a_write_waits_for_another_process(root: Path) -> None:
    """With wait= a write runs once the other process has ended; without time it is refused."""
    table, rows = Table.open(root), pa.Table.from_pylist([ROW], schema=SCHEMA)
    with held_elsewhere(root) as holder:
        for wait in (None, 0.2, "100 ms"):
            with pytest.raises(ConcurrentWriter, match="being written by another process"):
                table.upsert(rows, wait=wait)
        before = commits(root)
        waiting = threading.Thread(target=lambda: table.upsert(rows, wait="100 seconds"))
        waiting.start()
        assert commits(root) == before
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        waiting.join(100)
    assert commits(root) == before + 1
    with pytest.raises(InvalidConfig, match="wait='soon' is not a duration"):
        table.delete(rows, wait="soon")
