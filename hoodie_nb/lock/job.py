"""A streaming job's hold on its table: all the time, or from turn to turn.

The job takes the mutex for each checkpoint; batch calls of the same process wait for the mutex and
run between checkpoints. If another process waits (see `waiting` and `store_turns`), a job with a
checkpoint folder releases the lock between two checkpoints, and takes it again for the next one;
else it holds the lock from its start to its end.

While a thread of a job only reads and stages files, it may release the mutex (`paused`), so that
the job's other thread goes on; its work in the staging area is *in use*, which recovery respects.
Batch calls wait until no thread is paused, and the job begins nothing new while one waits.

*Fault tolerance*: see `lock`. A job that has released the lock is `stale`: in its next turn it
recovers the table.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hoodie_nb.clock import WAIT_S
from hoodie_nb.lock import lock, store_turns, waiting
from hoodie_nb.lock.forks import refuse_forked, without_forks
from hoodie_nb.lock.store_turns import turns_of
from hoodie_nb.storage.storage import Storage


class JobHold:
    """A streaming job's hold on its table, from its start to `release`.

    With a `checkpoint` folder it shares the table: between two writes it releases the lock while
    another process waits for it. Since then (monotonic seconds, else 0) it is `stale`, until its
    owner recovers the table in its next turn: the other one may have died.
    """

    def __init__(
        self, storage: Storage, job: str, *, checkpoint: str | None = None, wait_s: float = WAIT_S
    ) -> None:
        self._storage = storage
        self._job = job
        self._held = lock.hold_of(storage)
        self.stale = 0.0
        self.until = math.inf  # how long it waits for a turn, in monotonic seconds
        self._comes: set[object] = set()  # threads of the job that wait for the mutex
        self._writes = 0  # in this turn
        until = time.monotonic() + wait_s
        held = self._held
        held.refuse_second()
        store_turns.await_life(storage, checkpoint, until)  # threads of this process may write
        with waiting.OwnTurn(held.mutex, storage.root, lambda: time.monotonic() >= until):
            held.refuse_second()
            self._begin(checkpoint, lambda: until)

    def _begin(self, checkpoint: str | None, until: Callable[[], float]) -> None:
        held = self._held
        try:
            self._file = held.take(self._storage, self._job, until)
            with without_forks():
                living = store_turns.life_of(self._storage, checkpoint)
                self._living = living or self._file
            held.begin_job(self._job, self._living)
        except BaseException:
            if held.file is not None:
                held.file.close()
            raise

    @property
    def _shares(self) -> bool:
        return self._living is not self._file and not self._living.closed

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the table for one checkpoint; ConcurrentWriter in a child of the job's process."""
        if self._held.forked:
            refuse_forked(self._held.root)
        comes = waiting.coming(self._comes)
        with comes, self._held.mutex:
            comes.close()
            self._held.changed.wait_for(lambda: not self._held.calls)
            if self._shares and self._held.file is None:
                self._writes = 0
                self._file = self._held.take(self._storage, self._job, lambda: self.until)
                store_turns.resume(self._living, self._file)
            with lock.holding(self._held, self._storage, 0.0):
                self._writes += 1
                yield
        self.give_way()

    def give_way(self) -> None:
        """Release the lock if another process waits; first a thread of the job that has come."""
        held = self._held
        shared = self._comes and self._writes < 2
        if not self._shares or self._file.closed or held.forked or shared:
            return
        with held.mutex:
            with without_forks():
                turns = turns_of(self._storage)
                gives = held.thread is None and turns.is_awaited(self._storage)
            if gives:
                held.wait_until_unused(ended=True)
                if store_turns.may_pause(self._living, self._file):
                    self.stale = time.monotonic()
                    self._file.close()

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Let the job's other thread write meanwhile; the staged work `name` is in use.

        For the job's own threads, which no interrupt reaches, inside one `writing`.
        """
        held = self._held
        outer = held.thread
        held.thread = None
        held.in_use.append(name)
        held.mutex.release()
        try:
            yield
        finally:
            held.mutex.acquire()
            held.thread = outer
            held.in_use.remove(name)
            held.changed.notify_all()

    def wait_until_unused(self) -> None:
        """Inside `writing`: wait until the job's other thread is not paused."""
        self._held.wait_until_unused()

    @property
    def in_write(self) -> bool:
        """Whether this thread is inside a write of the table: the job would wait for it forever."""
        return self._held.thread == threading.get_ident()

    def release(self) -> None:
        """Release the table, between two writes; idempotent."""
        if not self._held.forked:
            with self._held.mutex:
                self._held.wait_until_unused(ended=True)
                try:
                    self._living.close()  # first: who gets the lock next may be its next run
                    self._file.close()
                finally:  # again, if an interrupt came in between
                    self._living.close()
                    self._file.close()
