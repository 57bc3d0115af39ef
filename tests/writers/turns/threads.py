"""The threads of one simulated process: one of them runs at a time, and a seed decides which."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST = 20_000  # switches while all wait: then they wait for one another


class Threads:
    """The threads of a process; the one that made this is the first."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._turns: dict[int, threading.Semaphore] = {0: threading.Semaphore(0)}
        self._current = 0
        self._idle = 0
        self.errors: list[BaseException] = []

    def start(self, act: Callable[[], None]) -> Callable[[], None]:
        """Start another thread; return what waits for its end."""
        number = max(self._turns) + 1
        self._turns[number] = threading.Semaphore(0)

        def run() -> None:
            self._turns[number].acquire()
            try:
                act()
            except BaseException as error:
                self.errors.append(error)
            del self._turns[number]
            self._let(self._draw.choice(sorted(self._turns)))

        threading.Thread(target=run, daemon=True).start()

        def join() -> None:
            while number in self._turns:
                self.wait()

        return join

    def _let(self, number: int) -> None:
        self._current = number
        self._turns[number].release()

    def step(self) -> None:
        """Let another thread go on, at times."""
        self._idle = 0
        if len(self._turns) > 1 and self._draw.random() < 0.2:
            self._switch()

    def wait(self) -> None:
        """Let another thread go on: this one waits for it."""
        self._idle += 1
        assert self._idle < MOST, "the threads wait for one another"
        self._switch()

    def _switch(self) -> None:
        mine = self._current
        other = self._draw.choice([n for n in sorted(self._turns) if n != mine] or [mine])
        if other != mine:
            self._let(other)
            self._turns[mine].acquire()

    # --- the module `threading`, for the lock -----------------------------------------------------

    def RLock(self) -> Mutex:
        """Return a lock."""
        return Mutex(self)

    def Condition(self, mutex: Mutex) -> Condition:
        """Return a condition of a lock."""
        return Condition(mutex)

    get_ident = staticmethod(threading.get_ident)
    local = threading.local


class Mutex:
    """A reentrant lock that is passed on by `Threads`."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait for the lock, without a limit."""
        mine = threading.get_ident()
        while self._owner not in (None, mine):
            self.threads.wait()
        self._owner = mine
        self._depth += 1
        return True

    def release(self) -> None:
        """Release it once."""
        assert self._owner == threading.get_ident()
        self._depth -= 1
        if self._depth == 0:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release it altogether in this block."""
        depth = self._depth
        self._depth, self._owner = 0, None
        yield
        self.acquire()
        self._depth = depth


class Condition:
    """What threads with a lock wait for."""

    def __init__(self, mutex: Mutex) -> None:
        self._mutex = mutex

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds; the lock is released meanwhile."""
        while not holds():
            with self._mutex.released():
                self._mutex.threads.wait()

    def notify_all(self) -> None:
        """Do nothing: those that wait look themselves."""
