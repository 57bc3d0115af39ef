"""The lock on an object store: an object renewed for a limited time, its expiry and takeover.

*On disk*: `.hoodie/.hoodie_nb/lock`, JSON: host, process, time, purpose, `lease_s`, and `released`
once it is, or `kept`: before it has expired, only its process may take it again. It is created by a
PUT that fails if it exists, and replaced by PUTs that fail unless it is still the version that was
read; it is never deleted.

*Work flow*: a thread replaces the object three times in a lease, which renews it. The holder may
change the table only within its lease, less a margin, counted from before the request by a clock
that also runs while the machine sleeps. A file that must not exist yet, as the completed file of a
commit, is written only after a renewal in the last sixth of a lease.

*Fault tolerance*: a lease that was not released may be taken when it has expired by the clock of
the store, which dates every object: the clocks of the machines do not matter. If its holder was a
process of this machine that has ended, it may be taken at once.

Each attempt of a change is sent only within 5/6 of the lease, and may take at most 1/6 of it. A
copy takes three requests: like a new file it is sent in the first half.

**Caveats**: the store cannot check the lease together with a write. A request that is delayed, or a
process that sleeps between its check and its request, may be late. So after the response for a
completed file its writer checks the lease again, and after a change in doubt (see `fences`) the
lease is `kept`.
"""

import json
import math
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, cast

from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.lock.lock_file import PATH, holder_of, parsed, shown
from hoodie_nb.lock.process import has_ended, process_identity
from hoodie_nb.storage.fences import doubted_s
from hoodie_nb.storage.storage import OURS, Storage

if TYPE_CHECKING:
    from hoodie_nb.storage.object_requests import Version
    from hoodie_nb.storage.object_storage import ObjectStorage

_CLOCK = f"{OURS}/clock"
_SKEW_S = 2.0  # stores date objects in whole seconds
_TRIES = 5


class Lease:
    """The lock at `path`, by default the table's, until `close`; ConcurrentWriter if it is held."""

    def __init__(
        self,
        storage: Storage,
        purpose: str,
        register: Callable[["Lease"], None] = lambda _: None,
        path: str = PATH,
    ) -> None:
        self._path = path
        self._storage = cast("ObjectStorage", storage)
        self._length_s = self._storage.lease_s
        self.closed = True
        self._lost = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._process = os.getpid()
        process = {"process": process_identity(os.getpid()), "lease_s": self._length_s}
        self._holder = {**holder_of(purpose), **process}
        self._sent_s, self._version = self._take()
        self.closed = False
        register(self)
        threading.Thread(target=self._renew_often, name="table-lease", daemon=True).start()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> tuple[float, str]:
        storage = self._storage
        for _ in range(_TRIES):
            found = storage.read_version(self._path)
            sent_s = _now_s()
            if found is not None:
                self._refuse_if_held(found)
            version = None if found is None else found.version
            made = storage.replace(self._path, self._text(), version)
            if made is not None:
                return sent_s, made
        raise ConcurrentWriter(
            f"{storage.root} is being locked by several processes at the same time: try again"
        )

    def _text(self, state: str = "held") -> bytes:
        return json.dumps({**self._holder, "renewal": uuid.uuid4().hex, state: True}).encode()

    def _refuse_if_held(self, found: "Version") -> None:
        holder = parsed(found.content)
        process = holder.get("process")
        kept = holder.get("kept") and process is not None and process == self._holder["process"]
        if holder.get("released") or kept or has_ended(process):
            return
        length_s = holder.get("lease_s")
        length_s = length_s if isinstance(length_s, int | float) else self._length_s
        age_s = (self._store_time() - found.modified).total_seconds()
        left_s = length_s + _SKEW_S - age_s
        if left_s > 0:
            raise ConcurrentWriter(
                f"{self._storage.root} is being written by another process "
                f"({shown(holder) or 'unknown'}): stop it, or wait until it ends; a batch write "
                "waits with wait='90 seconds'; if it was killed, its lease ends in "
                f"{math.ceil(left_s)} s"
            )

    def _store_time(self) -> datetime:
        """Return the time of the store's clock; this machine's could be ahead of it."""
        self._storage.replace(_CLOCK, self._text(), None)
        there = self._storage.read_version(_CLOCK)
        while there is not None:
            made = self._storage.replace(_CLOCK, self._text(), there.version)
            there = self._storage.read_version(_CLOCK)
            if made is not None and there is not None:
                return there.modified
        raise ConcurrentWriter(
            f"{self._storage.root}/{_CLOCK}, which shows the store's time, was deleted while "
            "it was read: try again"
        )

    def _renew_often(self) -> None:
        while not self._ended.wait(self._length_s / 3 if self._fresh() else self._length_s / 20):
            with suppress(Exception):  # a change of the table checks the lease
                self._renew()

    def _fresh(self) -> bool:
        return _now_s() - self._sent_s < self._length_s / 2

    def _renew(self) -> None:
        with self._lock:
            if self.closed or self._lost:
                return
            sent_s = _now_s()
            made = self._storage.replace(self._path, self._text(), self._version)
            if made is None:
                self._lost = True
            else:
                self._sent_s = sent_s
                self._version = made

    def check(self, *, sure: bool = False) -> None:
        """Raise ConcurrentWriter if the lease may be over; if `sure`, ask the store if need be."""
        age_s = _now_s() - self._sent_s
        limit = 1 / 2 if sure else 5 / 6
        if sure and age_s > self._length_s / 6:
            self._renew()
            age_s = _now_s() - self._sent_s
        if self._lost or age_s > self._length_s * limit:
            raise ConcurrentWriter(
                f"the lease of this process on {self._storage.root} has expired: it could not be "
                "renewed in time, and another process may be writing, so this one stops; the next "
                "write rolls back its uncommitted work. Write the data again"
            )

    def close(self) -> None:
        """Release the lock; in a forked child, only drop it."""
        if self.closed:
            return
        self.closed = True
        self._ended.set()
        if self._process == os.getpid():
            with self._lock, suppress(Exception):  # else the lease expires
                if not self._lost:
                    kept = doubted_s(self._storage.root) < self._length_s
                    text = self._text("kept" if kept else "released")
                    self._storage.replace(self._path, text, self._version)


def _now_s() -> float:
    """Return a clock in seconds that also runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
