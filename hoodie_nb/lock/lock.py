"""Who may write when: process lock, mutex between threads, forks, waiting times.

*On disk*: `.hoodie/.hoodie_nb/lock`, held with `flock`, so the kernel releases it when its holder
dies for any reason. The file names the holder; it is never deleted. On an object store the lock is
held for a limited time: see `lease`.

Threads of a process share its hold, and write one after the other: who writes has the mutex. Beside
a job of the same process (see `job`) a batch call waits until it is between two checkpoints, and no
thread of it works in the staging area. All others wait a minute, or as `wait=` says; those that
wait for another process form a line (see `waiting` and `store_turns`). A listener may write within
the call whose event it gets: it has the lock of that call, or, if that works ahead of its turn (see
`local.ahead`), its place in the line.

*Fault tolerance*: a lock belongs to an open file, which a forked child shares. The child closes its
copy at once and drops the hold, so it can neither write with it nor keep it after its parent has
released it. Before each change of the table the open file is compared with the current lock file:
if that was deleted or replaced, another process may hold the table, and nothing more is written.
The `with` statement that opened the file closes it, so an interrupt cannot leave it open.

**Caveats**: on some network file systems `flock` does not work across machines, and Java Hudi does
not know this lock: use one engine at a time.
"""

import contextlib
import io
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hoodie_nb.clock import wait_seconds
from hoodie_nb.errors import ConcurrentWriter, StoreFailed
from hoodie_nb.events import in_any_listener
from hoodie_nb.lock import waiting
from hoodie_nb.lock.forks import forget, refuse_forked, without_forks
from hoodie_nb.lock.lease import Lease, LockedFile
from hoodie_nb.lock.lock_file import PATH, is_at, lock_file, opened
from hoodie_nb.lock.store_turns import Life, turns_of
from hoodie_nb.storage.fences import fence, place_of
from hoodie_nb.storage.storage import Storage, is_remote

_log = logging.getLogger("hoodie_nb.lock")
_TRIES = 10
_POLL_S = (0.002, 0.05)  # a writer that waits looks again after a twentieth of the time it waited


class _Held:
    """A process's hold on one table: the mutex, the locked file if there is one, and its job."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)  # of the next three
        self.in_use: list[str] = []  # what paused threads write, by name in the staging area
        self.calls = 0  # threads that wait until no other one is paused
        self.writes = 0  # of these threads, in the middle of a write
        self.forked = False  # a child's copy of its parent's hold
        self.thread: int | None = None  # the one that writes
        self._file: Callable[[], LockedFile | None] = lambda: None  # weak, as the next one
        self._living: Callable[[], LockedFile | Life | None] = lambda: None  # its job's, to the end
        self._job = ""
        self._place: Callable[[], io.FileIO | None] = lambda: None  # weak: of what works ahead

    @property
    def file(self) -> LockedFile | None:
        """Return the locked file; None if this process does not hold the table."""
        file = self._file()
        return None if file is None or file.closed else file

    @property
    def job(self) -> str | None:
        """Return the description of this process's running job; None if there is none."""
        living = self._living()
        return None if living is None or living.closed else self._job

    @property
    def place(self) -> io.FileIO | None:
        """Return the place of the call that works ahead of its turn; None if none does."""
        place = self._place()
        return None if place is None or place.closed else place

    def refuse_second(self) -> None:
        """Raise ConcurrentWriter if this process has a job."""
        if self.job is not None:
            raise ConcurrentWriter(
                f"{self.root} is written by the job {self.job} of this process: stop that job "
                "first; only one query may write a table at a time"
            )

    def begin_job(self, job: str, living: LockedFile | Life) -> None:
        """Note that a job runs until this file is closed."""
        self._job = job
        self._living = weakref.ref(living)

    def take(
        self,
        storage: Storage,
        purpose: str,
        until: Callable[[], float],
        meanwhile: waiting.Meanwhile | None = None,
        *,
        place: io.FileIO | None = None,
    ) -> LockedFile:
        """Lock the file until it is closed; ConcurrentWriter if others have it at `until()`.

        With the `place` of an outer call it is locked in the turn of that call, which keeps it.
        """
        file = None
        line = contextlib.ExitStack()  # not `with`, whose end an interrupt may prevent
        try:
            file = self._in_turn(storage, purpose, until, line, meanwhile, place=place)
            line.close()
            return file
        except BaseException:
            line.close()
            file = file or self.file  # which it has before this call returns
            if file is not None:
                file.close()
            raise

    def _in_turn(
        self,
        storage: Storage,
        purpose: str,
        until: Callable[[], float],
        line: contextlib.ExitStack,
        meanwhile: waiting.Meanwhile | None,
        *,
        place: io.FileIO | None,
    ) -> LockedFile:
        local = not is_remote(storage.root)
        waits = 0.0  # since when
        tries = 0
        while tries < _TRIES:
            try:
                with without_forks():
                    turns_of(storage).refuse_early(storage, place)
                file = None
                try:
                    file = self._opened(storage, purpose, there=bool(waits or place or self.job))
                    if isinstance(file, Lease) or lock_file(file, storage, purpose):
                        self._file = weakref.ref(file)
                        return file
                except BaseException:
                    if file is not None:
                        file.close()
                    raise
                file.close()
                tries += 1
            except (ConcurrentWriter, StoreFailed) as error:  # who waits is patient with the store
                end = until() if waits or isinstance(error, ConcurrentWriter) else 0.0
                if self.forked or time.monotonic() >= end:
                    raise
                tries = 0
                is_first = not waits
                if is_first:
                    waits = time.monotonic()
                    _log.info("waits: %s", error)
                if place is None and (is_first or not local):
                    with without_forks(), contextlib.suppress(StoreFailed):  # then at the next look
                        place = turns_of(storage).take_place(storage, line)
                    if local and place is not None and meanwhile is not None:
                        self._work(place, meanwhile)
                        continue
                waited = time.monotonic() - waits
                # on a store, each look is up to eight requests
                time.sleep(min(max(waited / 20, _POLL_S[0]), _POLL_S[1]) if local else 1.0)
        raise ConcurrentWriter(f"another program keeps replacing {PATH} of {storage.root}: stop it")

    def _work(self, place: io.FileIO, meanwhile: waiting.Meanwhile) -> None:
        """Work ahead of the turn; what this thread writes in between uses the same place."""
        with waiting.awake(place) as note:
            self._place = weakref.ref(place)
            meanwhile(note)

    def _opened(self, storage: Storage, purpose: str, *, there: bool) -> LockedFile:
        """Open the lock (a file is not locked yet); `there`: the table was, and is not made."""
        with without_forks():
            if is_remote(storage.root):
                return Lease(storage, purpose, self._leased)
            return opened(storage, folders=not there)

    def _leased(self, lease: Lease) -> None:
        self._file = weakref.ref(lease)  # before anything can interrupt who takes it

    def wait_until_unused(self, *, ended: bool = False) -> None:
        """Wait until no thread is paused; the caller has the mutex, which is released meanwhile.

        `ended`: until no thread is in the middle of a write; the caller is not.
        """
        writes = self.thread == threading.get_ident() and not ended
        outer = self.thread
        self.thread = None
        self.calls += 1  # meanwhile the job begins nothing new
        self.writes += writes
        try:
            self.changed.wait_for(lambda: not (self.in_use or (ended and self.writes)))
        finally:
            self.calls -= 1
            self.writes -= writes
            self.changed.notify_all()
            self.thread = outer

    def check(self, *, new: bool = False) -> None:
        """Raise ConcurrentWriter if the file that this process holds is no longer the lock."""
        if self.forked:
            refuse_forked(self.root)
        file = self.file
        if isinstance(file, Lease):
            file.check(sure=new)
        elif file is not None and not is_at(file, str(file.name)):  # also if a link was switched
            raise ConcurrentWriter(
                f"{PATH} of {self.root} was deleted or replaced while this process held it. "
                "Another process may be writing, so this one stops; the next write rolls back its "
                "uncommitted work. Never delete that file; write the data again"
            )
        elif file is None and self.job is not None:
            raise ConcurrentWriter(
                f"a thread of the job {self.job} writes {self.root} outside its turn: nothing of "
                "it is in the table"
            )


_tables: dict[str, _Held] = {}


def hold_of(storage: Storage) -> _Held:
    """Return this process's hold on a table, also if it has none now."""
    root = place_of(storage.root)
    held = _tables.get(root)
    if held is None:
        held = _tables.setdefault(root, _Held(root))
        fence(root, held.check)
    return held


@contextmanager
def writing(
    storage: Storage,
    wait: float | str | None = None,
    *,
    alone: bool = False,
    meanwhile: waiting.Meanwhile | None = None,
) -> Iterator[None]:
    """Hold the table for one write; ConcurrentWriter if others have it for as long as `wait`.

    Beside a job of this process the write waits for its turn, as the job does. `alone`: refused
    while a job of any process runs. `meanwhile` is called once if other processes have the table,
    on a local disk; it may stage files for the instant that it notes.
    """
    held = hold_of(storage)
    end = time.monotonic() + wait_seconds(wait, on_store=is_remote(storage.root))
    with waiting.OwnTurn(held.mutex, held.root, lambda: not held.job and time.monotonic() >= end):
        if alone and held.job is not None:  # of this process
            raise ConcurrentWriter(f"{held.root} is written by the job {held.job}: stop it first")
        if held.in_use and held.thread != threading.get_ident():
            if in_any_listener():
                raise ConcurrentWriter(
                    f"a listener of the job that writes {held.root} cannot write it too: the job "
                    "waits for its listeners. Write in another thread"
                )
            held.wait_until_unused()
        until = math.inf if held.job is not None else end
        with holding(held, storage, until, None if held.job else meanwhile):
            if alone:
                with without_forks():
                    turns_of(storage).refuse_living(storage)
            yield


@contextmanager
def holding(
    held: _Held, storage: Storage, until: float, meanwhile: waiting.Meanwhile | None = None
) -> Iterator[None]:
    """Hold the table for one write of this thread, which has the mutex."""
    outer = held.thread
    is_inside = held.job is not None or outer is not None  # a job of this process, an outer call
    has_it = is_inside and held.file is not None
    try:
        held.thread = threading.get_ident()
        if has_it:
            yield
            return
        place = None if outer is None else held.place  # behind it, this call would never end
        with held.take(storage, "a batch write", lambda: until, meanwhile, place=place):
            yield
    finally:
        held.thread = outer
        if not has_it and held.file is not None:  # `with` was interrupted as it began or ended
            held.file.close()


def in_use(storage: Storage) -> set[str]:
    """Return the names in the staging area that other threads of this process are writing."""
    held = _tables.get(place_of(storage.root))
    return {*held.in_use} if held else set()


def _forget() -> None:
    """In a forked child: invalidate its copies of the holds, and close those of the files."""
    for held in _tables.values():
        held.forked = bool(held.file or held.job or held.thread)  # it has the table, or waits
    forget()
    _tables.clear()


os.register_at_fork(after_in_child=_forget)
