"""Who waits for the lock of a table, and which jobs live: more locks, on local disks only.

*On disk*, all under `flock`, so that they end with their process:

| file in `.hoodie/.hoodie_nb` | locked by |
| --- | --- |
| `turns/<time>-<process>` | a writer that waits, until it has the lock: its place in the line |
| `job-<hash>` | a running job, by its checkpoint folder; also while another process has a turn |

*Semantics*: without the line, a process that writes in a loop takes the lock again before a
waiting one looks. So nobody takes the lock while a writer waits that came before. The place
of a dead writer is deleted by the next one that looks; a stopped process is passed over after
`ASLEEP_S`, and keeps its place.
"""

import fcntl
import hashlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from operator import attrgetter
from typing import NoReturn

from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.lock.forks import refuse_forked, without_forks
from hoodie_nb.lock.lock_file import is_at, opened, unlinked
from hoodie_nb.storage.storage import OURS, TURNS, Storage, is_remote

Meanwhile = Callable[[Callable[[str], None]], None]  # called with what notes an instant's time
JOB = f"{OURS}/job-"
ASLEEP_S = 5.0  # a writer that waits looks many times a second
_POLL_S = 0.05  # a job of this process may begin or end meanwhile


class OwnTurn:
    """Holds the mutex of this process's threads; ConcurrentWriter once `expired` without it.

    An interrupt never leaves it locked: the mutex itself ends the `with` statement.
    """

    __exit__ = property(attrgetter("_mutex.__exit__"))  # no code of Python, which may not begin

    def __init__(self, mutex: threading.RLock, root: str, expired: Callable[[], bool]) -> None:
        self._mutex = mutex
        self._root = root
        self._expired = expired

    def __enter__(self) -> None:
        got: list[bool] = []
        try:
            while not got:
                # one step for an interrupt: it has not begun, or `got` says that the mutex is ours
                got += filter(None, map(self._mutex.acquire, (True,), (_POLL_S,)))
                if not got and self._expired():
                    _refuse(
                        f"{self._root} is being written by another thread of this process: wait "
                        "until it ends; with wait='10 minutes' a write waits longer"
                    )
        except BaseException:
            if got:
                self._mutex.release()
            raise


def coming(threads: set[object]) -> ExitStack:
    """Note that this thread waits for a mutex, until the end of what is returned."""
    me = object()
    stack = ExitStack()
    stack.callback(threads.discard, me)
    threads.add(me)
    return stack


def take_place(storage: Storage, line: ExitStack) -> io.FileIO | None:
    """Return the locked file of a new place, behind all others; the end of `line` gives it up.

    None if the disk has no room for it. InvalidTable if somebody has deleted the table.
    """
    place = None
    try:
        while True:
            last = max(storage.file_names(TURNS), default="")[:20]  # perhaps of another clock
            number = max(time.monotonic_ns(), int(last) + 1 if last.isdecimal() else 0)
            path = f"{TURNS}/{number:020d}-{os.getpid()}"
            place = _locked(storage, path)
            if place is not None:
                if is_at(place, storage.fetch(path)):
                    line.enter_context(place)
                    line.callback(_left, storage, place)
                    return place
                place.close()  # another process took it for that of a dead one
    except BaseException as error:
        if place is not None:
            place.close()
        if not (isinstance(error, OSError) and error.errno):
            raise
        return None


def _left(storage: Storage, place: io.FileIO) -> None:
    """Delete a place, unless this is a forked child, whose copy is closed: it is its parent's."""
    if not place.closed:
        with _despite_failures():
            unlinked(storage, f"{TURNS}/{_name(place)}")


@contextmanager
def _despite_failures() -> Iterator[None]:
    """Go on if the disk is read-only or fails: what is written next to it reports that.

    A TimeoutError without a number is what the handler of a signal has raised.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise


@contextmanager
def awake(place: io.FileIO) -> Iterator[Callable[[str], None]]:
    """Keep a place awake while its writer works; what is called with the instant of its files.

    Recovery spares them until the place is left, see `noted`.
    """
    ended = threading.Event()

    def look() -> None:
        with suppress(ValueError, OSError):  # an interrupt has closed the place; a disk failed
            while not ended.wait(ASLEEP_S / 5):
                os.utime(place.fileno())

    def note(instant_time: str) -> None:
        os.pwrite(place.fileno(), instant_time.encode(), 0)

    thread = threading.Thread(target=look, name="hoodie-nb-waits", daemon=True)
    try:
        thread.start()
        yield note
    finally:
        if not place.closed:  # else this is a forked child, without that thread
            ended.set()
            if thread.is_alive():  # an interrupt may have come before it was started
                thread.join()


def noted(storage: Storage, *, asleep: bool = True) -> list[str]:
    """Return, for each living writer that waits, in order, what it has noted, or nothing.

    That is the instant whose files it stages, see `awake`. Unless `asleep`, without those that
    others pass over.
    """
    found = []
    with without_forks():
        for name in [] if is_remote(storage.root) else storage.file_names(TURNS):
            path = f"{TURNS}/{name}"
            with (
                suppress(FileNotFoundError, InvalidTable),
                opened(storage, path, make=False) as file,
            ):
                if _is_locked(file) and (asleep or _is_awake(file)):
                    text = os.pread(file.fileno(), 17, 0).decode("ascii", "replace")
                    found.append(text if len(text) == 17 and text.isdigit() else "")
    return found


def refuse_early(storage: Storage, place: io.FileIO | None) -> None:
    """Raise ConcurrentWriter if a writer waits that came before the one with this place."""
    if place is not None:
        if place.closed:
            refuse_forked(storage.root)
        with _despite_failures():
            os.utime(place.fileno())  # awake
    if is_awaited(storage, place):
        refuse_behind(storage.root)


def refuse_behind(root: str) -> NoReturn:
    """Raise ConcurrentWriter for a writer that came later than others."""
    _refuse(
        f"another process waits for {root}, and came before: stop it, or wait; with "
        "wait='10 minutes' a write waits longer"
    )


def is_awaited(storage: Storage, place: io.FileIO | None = None) -> bool:
    """Whether another process waits for the lock, and came before the one with this place."""
    for name in storage.file_names(TURNS):  # in order
        if place is not None and name >= _name(place):
            return False
        if _waits(storage, f"{TURNS}/{name}"):
            return True
    return False


def _waits(storage: Storage, path: str) -> bool:
    """Whether the writer that has a place is alive and awake; that of a dead one is deleted."""
    file = None
    try:
        file = opened(storage, path, make=False)
        if _is_locked(file):
            return _is_awake(file)
        with _despite_failures():  # or it was another user's
            unlinked(storage, path)
    except (FileNotFoundError, InvalidTable):
        pass  # it has the lock now, or has given up; or this is no place
    finally:
        if file is not None:
            file.close()
    return False


def _is_awake(place: io.FileIO) -> bool:
    """Whether the writer that has a place has looked lately."""
    return abs(time.time() - os.fstat(place.fileno()).st_mtime) < ASLEEP_S


def _is_locked(file: io.FileIO) -> bool:
    """Whether another open file has the lock; if not, this one shares it until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look, too
    except BlockingIOError:
        return True
    return False


def _name(place: io.FileIO) -> str:
    return os.path.basename(str(place.name))


def living(storage: Storage, checkpoint: str) -> io.FileIO:
    """Return the lock of a job's life; ConcurrentWriter if its checkpoint folder is in use.

    Its caller has the lock of the table.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(checkpoint))).hexdigest()
    return _locked(storage, f"{JOB}{name}") or _refuse(
        f"a stream of another process writes {storage.root} from the checkpoint folder "
        f"{checkpoint}: stop that stream, or give this one another folder"
    )


def refuse_living(storage: Storage) -> None:
    """Raise ConcurrentWriter if a job of another process lives; the caller has the lock."""
    for path in jobs(storage):
        with _locked(storage, path) or nullcontext() as file:
            if file is None:
                _refuse(f"{storage.root} is written by a stream of another process: stop it")


def jobs(storage: Storage) -> list[str]:
    """Return the files that jobs lock while they live; those of ended jobs stay."""
    paths = [f"{OURS}/{name}" for name in storage.file_names(OURS)]
    return [path for path in paths if path.startswith(JOB)]


def _refuse(message: str) -> NoReturn:
    raise ConcurrentWriter(message)


def _locked(storage: Storage, path: str) -> io.FileIO | None:
    """Open and lock a file; None if another process has it, InvalidTable if the table is gone."""
    file = None
    try:
        file = opened(storage, path, folders=False)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BaseException as error:
        if file is not None:
            file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
