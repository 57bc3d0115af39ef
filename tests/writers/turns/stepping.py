"""What makes a process stop at each step of the library: its baton, storage, times and locks.

A process that is simulated has a channel to the scheduler. At each *step* (a failpoint, a call of
the storage, an opened or locked file, a look for the lock) it may have to wait until the scheduler
lets it go on for some more steps. So exactly one process of a trial runs at a time, and the seed
decides which. Its clock, the times of the lock and all random ids come from the scheduler, too.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from writers.turns.threads import Threads

from hoodie_nb import failpoints
from hoodie_nb.local.ahead import Ahead
from hoodie_nb.lock import forks, job, lock, waiting
from hoodie_nb.storage.beneath import Place
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import Entry, Storage

COMMIT = "(commit|deltacommit|replacecommit)"
SEAL = re.compile(r"\.hoodie/\.hoodie_nb/sealed/(\d+)-.*")
COMPLETED = re.compile(rf"\d{{17}}(_\d{{17}})?\.{COMMIT}")
REQUESTED = re.compile(rf"\d{{17}}\.{COMMIT}\.requested")
NAP_MS = 10  # of virtual time, between two looks for the lock


class Baton:
    """The channel of one process to the scheduler, and its clock."""

    def __init__(
        self,
        channel: socket.socket,
        trace: int | None,
        name: str,
        skew_ms: int,
        stops: frozenset[str],
    ) -> None:
        self._channel = channel
        self._trace = trace
        self.name = name
        self._skew_ms = skew_ms
        self._stops = stops  # all, if there are none
        self.threads: Threads | None = None  # of a process with several
        self._left = 0
        self._looks = 0
        self.ms = 0
        self.looked_ms = 0
        self.judged_ms = 0
        self.last = False  # the writers have ended
        self.place: io.FileIO | None = None  # while it works before its turn

    def now_ms(self) -> int:
        """Return the time that the scheduler has told, as this process's clock shows it."""
        return self.ms + self._skew_ms

    def sleep(self, seconds: float) -> None:
        """Let others run."""
        if self.threads is not None:
            self.threads.step()
        self._ask("waits", self.looked_ms)

    def step(self, what: str) -> None:
        """Go on, or wait until the scheduler says so."""
        if self.threads is not None:
            self.threads.step()
        self._note(what)
        if self.place is not None:  # as a thread of the library does
            os.utime(self.place.fileno(), (self.time(),) * 2)
        if self._left > 0:
            self._left -= 1
        elif not self._stops or what in self._stops:
            self._ask("step", what)

    def tell(self, kind: str, value: object = None) -> None:
        """Tell the scheduler what has happened, which is a step, too."""
        self._note(f"{kind} {value}")
        self._ask(kind, value)

    def end(self, kind: str, value: object = None) -> None:
        """Tell the last that there is to tell."""
        self._note(f"{kind} {value}")
        self._channel.send(json.dumps([kind, value]).encode())

    def _note(self, what: str) -> None:
        if self._trace is not None:
            os.write(self._trace, f"{self.ms % 10**8:8d} {self.name} {what}\n".encode())

    def _ask(self, kind: str, value: object = None) -> None:
        self._channel.send(json.dumps([kind, value]).encode())
        self.wait()

    def wait(self) -> None:
        """Wait until the scheduler lets this process go on."""
        answer = self._channel.recv(4096)
        if not answer:
            os._exit(9)  # the scheduler is gone
        self._left, self.ms, self.last = json.loads(answer)

    # --- the module `time`, for the lock ----------------------------------------------------------

    def time(self) -> float:
        """Return seconds of virtual time."""
        return self.ms / 1000

    monotonic = time

    def monotonic_ns(self) -> int:
        """Return nanoseconds of virtual time, which no two calls share."""
        self._looks += 1
        return self.ms * 10**6 + self._looks


class Stepped(LocalStorage):
    """A local storage each call of which is a step."""

    def __init__(self, root: str | os.PathLike[str], baton: Baton) -> None:
        super().__init__(root)
        self._baton = baton

    def _step(self, what: str, path: str) -> None:
        self._baton.step(f"{what} {path}")

    def put(self, path: str, content: bytes, *, new: bool = False, durable: bool = True) -> None:
        """Step, then put the file; its time is virtual."""
        self._step("put", path)
        super().put(path, content, new=new, durable=durable)
        os.utime(self.fetch(path), (self._baton.time(),) * 2)
        folder, _, name = path.rpartition("/")
        if REQUESTED.fullmatch(name):
            _begun(self, name[:17]).mkdir(parents=True, exist_ok=True)
        if seal := SEAL.fullmatch(path):
            self._baton.tell("seals", int(seal[1]))
        if COMPLETED.fullmatch(name):
            names = super().file_names(folder)
            done = {n[:17] for n in names if COMPLETED.fullmatch(n)}
            begun = {n[:17] for n in names if REQUESTED.fullmatch(n)}
            self._baton.tell("completes", [name, sorted(begun - done)])

    def make_folder(self, path: str) -> None:
        """Step, then make the folder."""
        self._step("make_folder", path)
        super().make_folder(path)

    def sync_folder(self, path: str) -> None:
        """Step, then sync the folder."""
        self._step("sync_folder", path)
        super().sync_folder(path)

    def publish(self, staged: str, target: str) -> None:
        """Step, then publish the file."""
        self._step("publish", target)
        super().publish(staged, target)

    def remove(self, path: str, *, tree: bool = False) -> bool:
        """Step, then remove the file."""
        self._step("remove", path)
        return super().remove(path, tree=tree)

    def open_new(self, path: str) -> BinaryIO:
        """Step, then open the file."""
        self._step("open_new", path)
        return super().open_new(path)

    def _link(self, source: Place, target: Place) -> None:  # type: ignore[override]
        """Step, between a temporary file and its link."""
        self._step("link", target[1])
        super()._link(source, target)

    def list_folder(self, folder: str) -> list[Entry]:
        """Step, then list the folder."""
        self._step("list_folder", folder)
        return super().list_folder(folder)

    def file_names(self, folder: str) -> list[str]:
        """Step, then list the folder."""
        self._step("file_names", folder)
        return super().file_names(folder)

    def entry(self, path: str) -> Entry | None:
        """Step, then look at the file."""
        self._step("entry", path)
        return super().entry(path)


class _Os:
    """The module `os`, for the places in the line: files get virtual times and names."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton

    def getpid(self) -> int:
        return ord(self._baton.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def utime(self, file: int) -> None:
        os.utime(file, (self._baton.time(),) * 2)


def simulate(baton: Baton, ids: random.Random) -> None:
    """Let the library of this process, which was forked for it, stop at its steps."""

    def hit(name: str, path: str | None = None) -> None:
        baton.step(f"* {name}")

    failpoints.hit = hit
    uuid.uuid4 = lambda: uuid.UUID(int=ids.getrandbits(128), version=4)
    lock.time = baton
    job.time = baton
    waiting.time = baton
    waiting.os = _Os(baton)
    lock.opened = _opened(baton, lock.opened)
    waiting.opened = _opened(baton, waiting.opened)
    waiting.take_place = _place(baton, waiting.take_place)
    waiting.awake = _awake(baton)
    waiting.refuse_early = _looks(baton, waiting.refuse_early)
    lock.lock_file = _locked(baton, lock.lock_file)
    Ahead.fits = _fits(baton, Ahead.fits)  # type: ignore[method-assign]


def with_threads(baton: Baton, draw: random.Random) -> Threads:
    """Let this process have several threads that take the table's mutex."""
    baton.threads = Threads(draw)
    lock.threading = baton.threads
    job.threading = baton.threads
    forks._guard = baton.threads.RLock()
    return baton.threads


def at_once(pool: ThreadPoolExecutor, act: Callable[..., Any], *given: Any) -> Future[Any]:
    """Do what a thread of a pool would do, in this thread: the steps have an order."""
    done: Future[Any] = Future()
    try:
        done.set_result(act(*given))
    except Exception as error:
        done.set_exception(error)
    return done


def _opened(baton: Baton, act: Callable[..., io.FileIO]) -> Callable[..., io.FileIO]:
    def opened(storage: Storage, path: str = lock.PATH, **more: Any) -> io.FileIO:
        baton.step(f"open {path}")
        file = act(storage, path, **more)
        baton.step("opened")
        return file

    return opened


def _place(baton: Baton, act: Callable[..., io.FileIO]) -> Callable[..., io.FileIO]:
    def take_place(storage: Storage, line: ExitStack) -> io.FileIO:
        place = act(storage, line)
        waiting.os.utime(place.fileno())
        baton.tell("place", os.path.basename(str(place.name)))
        return place

    return take_place


def _awake(baton: Baton) -> Callable[..., Any]:
    @contextmanager
    def awake(place: io.FileIO) -> Iterator[Callable[[str], None]]:
        def note(instant_time: str) -> None:
            os.pwrite(place.fileno(), instant_time.encode(), 0)
            baton.step("noted")

        baton.place = place
        try:
            yield note
        finally:
            baton.place = None

    return awake


def _looks(baton: Baton, act: Callable[..., None]) -> Callable[..., None]:
    def refuse_early(storage: Storage, place: io.FileIO | None) -> None:
        baton.looked_ms = baton.ms
        act(storage, place)
        baton.judged_ms = baton.ms

    return refuse_early


def _fits(baton: Baton, act: Callable[..., bool]) -> Callable[..., bool]:
    def fits(self: Ahead, plan: Any, intake: Any) -> bool:
        found = act(self, plan, intake)
        if not found and not os.path.exists(plan.storage.fetch(plan.staged)):
            names = [plan.staged, *filter(None, (s.staged_path for s in self._statuses))]
            for name in names:
                Path(plan.storage.fetch(name)).mkdir(parents=True)
            taken = _begun(plan.storage, self._time17).exists()  # and was rolled back
            if not taken and act(self, plan, intake):
                baton.tell("swept")
            shutil.rmtree(plan.storage.fetch(plan.staged))
        baton.tell("ahead" if found else "again")
        return found

    return fits


def _begun(storage: Storage, time17: str) -> Path:
    """Return a folder that is there if an instant of that time was ever requested."""
    return Path(f"{storage.root}-begun", time17)


def _locked(baton: Baton, act: Callable[..., bool]) -> Callable[..., bool]:
    def lock_file(file: io.FileIO, storage: Storage, purpose: str) -> bool:
        baton.step("lock")
        held = act(file, storage, purpose)
        if held:
            baton.tell("locked", [baton.looked_ms, baton.judged_ms])
        return held

    return lock_file
