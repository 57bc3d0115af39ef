"""The lock on an object store: an object renewed for a limited time, its expiry and takeover.

*On disk*: `.hoodie/.hoodie_nb/lock`, JSON: host, process, `witness`, time, purpose, `lease_s`, and
`released` once it is, or `kept`: before it has expired, only its process may take it again. It is
created by a PUT that fails if it exists, and replaced by PUTs that fail unless it is still the
version that was read; it is never deleted, but from a store that ignores these conditions.

*Work flow*: a thread replaces the object three times in a lease, which renews it. The holder may
change the table only within its lease, less a margin, counted from before the request by a clock
that also runs while the machine sleeps. A file that must not exist yet, as the completed file of a
commit, is written only after a renewal in the last sixth of a lease.

*Fault tolerance*: a lease that was not released may be taken when it has expired by the clock of
the store, which dates every object: the clocks of the machines do not matter. If its holder was a
process of this machine that has surely ended (see `process`), it may be taken at once.

Each attempt of a change is sent only within 5/6 of the lease, and may take at most 1/6 of it. A
copy takes three requests: like a new file it is sent in the first half.

**Caveats**: the store cannot check the lease together with a write. A request that is delayed, or a
process that sleeps between its check and its request, may be late. So after the response for a
completed file its writer checks the lease again, and after a change in doubt (see `fences`) the
lease is `kept`.
"""

import io
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

from hoodie_nb.errors import ConcurrentWriter, InvalidConfig
from hoodie_nb.lock.forks import register
from hoodie_nb.lock.lock_file import PATH, holder_of, parsed, shown
from hoodie_nb.lock.process import Witness, has_surely_ended
from hoodie_nb.storage.fences import doubted_s
from hoodie_nb.storage.storage import OURS, Storage

if TYPE_CHECKING:
    from hoodie_nb.storage.object_requests import Version
    from hoodie_nb.storage.object_storage import ObjectStorage

_CLOCK = f"{OURS}/clock"
_SKEW_S = 2.0  # stores date objects in whole seconds
_TRIES = 5
_kept: dict[str, bytes] = {}  # what this process has left in its locks


class Lease:
    """The lock at `path`, by default the table's, until `close`; ConcurrentWriter if it is held."""

    def __init__(
        self,
        storage: Storage,
        purpose: str,
        taken: Callable[["Lease"], None] = lambda _: None,
        path: str = PATH,
    ) -> None:
        self._path = path
        self.lost = False  # another one has replaced it
        self._storage = cast("ObjectStorage", storage)
        self._length_s = self._storage.lease_s
        self.closed = True
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._unanswered: tuple[float, bytes] | None = None  # a renewal that may have been done
        self._holder = {**holder_of(purpose), "lease_s": self._length_s}
        self._witness = Witness()
        try:
            self._sent_s, self._version = self._take()
            self.closed = False
            taken(self)
            register(self)
            threading.Thread(target=self._renew_often, name="table-lease", daemon=True).start()
        except BaseException:  # the thread may run already
            self.close()
            self._witness.close()
            raise

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> tuple[float, str]:
        storage = self._storage
        for _ in range(_TRIES):
            found = storage.read_version(self._path)
            sent_s = _now_s()
            left_s = 0 if found is None else left_s_of(storage, found)
            if found is not None and left_s:
                raise ConcurrentWriter(
                    f"{storage.root} is being written by another process "
                    f"({shown(parsed(found.content)) or 'unknown'}): stop it, or wait until it "
                    "ends; with wait='10 minutes' a write waits longer; if it was killed, its "
                    f"lease ends in {left_s} s"
                )
            version = None if found is None else found.version
            made = storage.replace(self._path, self._text(), version)
            if made is not None:
                if found is None and self._path == PATH:
                    self._require_conditions()
                return sent_s, made
        raise ConcurrentWriter(
            f"{storage.root} is being locked by several processes at the same time: try again"
        )

    def _require_conditions(self) -> None:
        """Raise InvalidConfig if the store replaces the new lock whatever the condition says."""
        for version in (None, '"another"'):
            if self._storage.replace(self._path, _unique(), version) is not None:
                self._storage.mark(self._path, None)
                raise InvalidConfig(
                    f"the store of {self._storage.root} ignores the conditions of a write "
                    "(If-None-Match, If-Match), so two processes could have the lock at once: "
                    "update it, or use one that supports conditional writes"
                )

    def _text(self, state: str = "held") -> bytes:
        new = {"witness": self._witness.renewed(), "renewal": uuid.uuid4().hex}
        return json.dumps({**self._holder, **new, state: True}).encode()

    def _renew_often(self) -> None:
        while not self._ended.wait(self._length_s / 3 if self._fresh() else self._length_s / 20):
            with suppress(Exception):  # a change of the table checks the lease
                self.renew()

    def _fresh(self) -> bool:
        return _now_s() - self._sent_s < self._length_s / 2

    def renew(self) -> None:
        """Renew the lease, or find that it is `lost`; StoreFailed if the store does not answer."""
        with self._lock:
            if not self.closed:
                self._settle()
                self._send(_now_s(), self._text())

    def _settle(self) -> None:
        """Send a renewal that got no answer again: the store knows whether it was done."""
        if self._unanswered is not None:
            self._send(*self._unanswered)

    def _send(self, sent_s: float, text: bytes) -> None:
        if self.lost:
            return
        self._unanswered = sent_s, text
        made = self._storage.replace(self._path, text, self._version)
        self._unanswered = None
        if made is None:
            self.lost = True
        else:
            self._sent_s = sent_s
            self._version = made

    def check(self, *, sure: bool = False) -> None:
        """Raise ConcurrentWriter if the lease may be over; if `sure`, ask the store if need be."""
        age_s = _now_s() - self._sent_s
        limit = 1 / 2 if sure else 5 / 6
        if sure and age_s > self._length_s / 6:
            self.renew()
            age_s = _now_s() - self._sent_s
        if self.lost or age_s > self._length_s * limit:
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
        if self._witness.process == os.getpid():
            self._release()
            self._witness.close()

    def _release(self) -> None:
        with self._lock, suppress(Exception):  # else the lease expires
            self._settle()
            if not self.lost:
                doubted = doubted_s(self._storage.root) < self._length_s
                kept = doubted and self._path == PATH  # the life of a job guards no change
                text = self._text("kept" if kept else "released")
                if kept:
                    _kept[self._storage.root] = text
                self._storage.replace(self._path, text, self._version)


LockedFile = io.FileIO | Lease


def left_s_of(storage: Storage, found: "Version") -> int:
    """Return how many seconds a lease may not be taken, by the store's clock; 0: it is free."""
    holder = parsed(found.content)
    kept = _kept.get(storage.root) == found.content
    if holder.get("released") or kept or has_surely_ended(holder):
        return 0
    store = cast("ObjectStorage", storage)
    length_s = holder.get("lease_s")
    length_s = length_s if isinstance(length_s, int | float) else store.lease_s
    left_s = length_s + _SKEW_S - (_store_time(store) - found.modified).total_seconds()
    return math.ceil(min(left_s, 1e9)) if left_s > 0 else 0


def _store_time(storage: "ObjectStorage") -> datetime:
    """Return the time of the store's clock; this machine's could be ahead of it."""
    storage.replace(_CLOCK, _unique(), None)
    there = storage.read_version(_CLOCK)
    while there is not None:
        made = storage.replace(_CLOCK, _unique(), there.version)
        there = storage.read_version(_CLOCK)
        if made is not None and there is not None:
            return there.modified
    raise ConcurrentWriter(
        f"{storage.root}/{_CLOCK}, which shows the store's time, was deleted while "
        "it was read: try again"
    )


def _unique() -> bytes:
    return json.dumps({**holder_of("the store's time"), "renewal": uuid.uuid4().hex}).encode()


def _now_s() -> float:
    """Return a clock in seconds that also runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
