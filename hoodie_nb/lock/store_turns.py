"""Turns on an object store: the line of those that wait for the lease, and the lives of jobs.

*On disk*, in `.hoodie/.hoodie_nb`:

| object | what |
| --- | --- |
| `turns/<number>-<random>` | a writer that waits, replaced with each look: its place in the line |
| `job-<hash>` | a job that has given way, by the id of its query: a lease of its own |

*Semantics*: the functions of `waiting`. The line is for fairness only; the lease decides who may
write. A place whose object is older than `ASLEEP_S` is passed over, by the dates of the store: that
of one's own place, which is put before each look, or of its clock, if others were met; so no clocks
are compared. One of a process of this machine that has ended is, after `_STILL_S`. Who does not
wait looks seldom, unless it has met others.
"""

import hashlib
import io
import json
import logging
import math
import os
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from types import ModuleType
from typing import TYPE_CHECKING, cast

from hoodie_nb.errors import ConcurrentWriter, HoodieError, StoreFailed
from hoodie_nb.lock import waiting
from hoodie_nb.lock.lease import Lease, LockedFile, left_s_of, store_time
from hoodie_nb.lock.lock_file import holder_of, is_at, parsed, shown
from hoodie_nb.lock.process import has_ended
from hoodie_nb.storage.fences import doubted_s
from hoodie_nb.storage.storage import OURS, TURNS, Storage, is_remote

if TYPE_CHECKING:
    from hoodie_nb.storage.object_requests import Version
    from hoodie_nb.storage.object_storage import ObjectStorage

_log = logging.getLogger("hoodie_nb.lock")
ASLEEP_S = 12.0  # a writer that waits looks each second; stores date objects in whole seconds
_STILL_S = 4.0
_PAUSE_S = 1.0


class _Line:
    """When this process has looked at a table's line, and met others, in monotonic seconds."""

    def __init__(self) -> None:
        self.looked_s = -math.inf
        self.met_s = -math.inf


_lines: dict[str, _Line] = {}


def turns_of(storage: Storage) -> ModuleType:
    """Return the functions of this module, or on a disk those of `waiting`."""
    return sys.modules[__name__] if is_remote(storage.root) else waiting


def life_of(storage: Storage, checkpoint: str | None) -> "io.FileIO | Life | None":
    """Return the life of a job; ConcurrentWriter if another run of its checkpoint folder lives.

    None without a folder, for a job that keeps the lock: it is refused while any other one lives,
    which would wait for its turn to the end.
    """
    if checkpoint is None:
        turns_of(storage).refuse_living(storage)
        return None
    life: io.FileIO | Life = turns_of(storage).living(storage, checkpoint)
    return life


def take_place(storage: Storage, line: ExitStack) -> str:
    """Return the name of a new place, behind all others; the end of `line` gives it up."""
    _line(storage).met_s = time.monotonic()
    numbers = [name.partition("-")[0] for name in storage.file_names(TURNS)]
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    place = f"{last + 1:012d}-{uuid.uuid4().hex[:16]}"
    line.callback(_delete, storage, place)
    with suppress(StoreFailed):  # else with the first look
        _mark(storage, place)
    return place


def refuse_early(storage: Storage, place: str | None) -> None:
    """Raise ConcurrentWriter if a writer waits that came before the one with this place."""
    if place is not None:
        _mark(storage, place)
    elif not _is_due(storage, 0.0):
        return
    if _is_awaited(storage, place):
        waiting.refuse_behind(storage.root)


def is_awaited(storage: Storage) -> bool:
    """Whether another process is known to wait for the lock, and a job may give way."""
    with suppress(HoodieError):
        return not in_doubt(storage) and _is_due(storage, _PAUSE_S) and _is_awaited(storage, None)
    return False


def in_doubt(storage: Storage) -> bool:
    """Whether a change of this process may arrive later: it got no answer within a lease."""
    return doubted_s(storage.root) < cast("ObjectStorage", storage).lease_s


def _line(storage: Storage) -> _Line:
    return _lines.setdefault(storage.root, _Line())


def _is_due(storage: Storage, pause_s: float) -> bool:
    """Whether to look: after a third of a lease, or after `pause_s` if others were met lately."""
    line = _line(storage)
    lease_s = cast("ObjectStorage", storage).lease_s
    now = time.monotonic()
    return now - line.looked_s >= (pause_s if now - line.met_s < lease_s else lease_s / 3)


def _is_awaited(storage: Storage, place: str | None) -> bool:
    line = _line(storage)
    line.looked_s = time.monotonic()
    dates = {entry.name: entry.modified_ms / 1000 for entry in storage.list_folder(TURNS)}
    now = dates.pop(place or "", 0.0)
    if dates and not now:
        now = store_time(cast("ObjectStorage", storage)).timestamp()
    awaited = False
    for name, date in dates.items():
        still_s = now - date
        if still_s > ASLEEP_S or (still_s > _STILL_S and _has_died(storage, name)):
            _delete(storage, name)  # it has died; or it puts its place again
        else:
            line.met_s = line.looked_s
            awaited |= place is None or name < place
    return awaited


def _has_died(storage: Storage, place: str) -> bool:
    found = cast("ObjectStorage", storage).read_version(f"{TURNS}/{place}")
    return found is None or has_ended(parsed(found.content).get("process"))


def _mark(storage: Storage, place: str) -> None:
    content = json.dumps({**holder_of("waits for its turn"), "look": uuid.uuid4().hex})
    cast("ObjectStorage", storage).mark(f"{TURNS}/{place}", content.encode())


def _delete(storage: Storage, place: str) -> None:
    with suppress(HoodieError):  # else it is passed over
        cast("ObjectStorage", storage).mark(f"{TURNS}/{place}", None)


class Life:
    """A job's life, until `close`; others see it from the first time that it gives way."""

    def __init__(self, storage: Storage, checkpoint: str) -> None:
        self._storage = storage
        self._checkpoint = checkpoint
        self._lease: Lease | None = None
        self._says = True  # why it keeps the table, if it does
        self.closed = False

    def begin(self, lock: Lease) -> bool:
        """Whether others see this life from now on, and no change of this job may be late."""
        path = _path(self._checkpoint)
        if path is None or in_doubt(self._storage):
            return False
        try:
            self._begin(lock, path)
            self._says = True
        except HoodieError as error:
            _line(self._storage).met_s = -math.inf  # it looks again after a third of a lease
            if self._says:
                _log.warning("%s keeps the table while others wait: %s", self._name, error)
            self._says = False
        return self._says

    @property
    def _name(self) -> str:
        return f"a stream from checkpoint {self._checkpoint}"

    def _begin(self, lock: Lease, path: str) -> None:
        lock.check(sure=True)
        if self._lease is not None:
            self._lease.renew()
            if self._lease.lost:  # as the table is this process's, its object was deleted by hand
                self._lease.close()
                self._lease = None
        if self._lease is None:
            Lease(self._storage, self._name, self._leased, path)
        self.check()
        lock.renew()
        lock.check(sure=True)  # nobody had the table before there was the life

    def _leased(self, lease: Lease) -> None:
        self._lease = lease

    def check(self) -> None:
        """Raise ConcurrentWriter if others may have taken the job for dead: the store knows."""
        if self._lease is not None:
            self._lease.renew()
            try:
                self._lease.check(sure=True)
            except ConcurrentWriter:
                raise ConcurrentWriter(
                    f"{self._name} was taken for dead while others wrote {self._storage.root}: the "
                    "table was restored or replaced since, or the folder was started again; start "
                    "the stream again, unless it runs elsewhere"
                ) from None

    def close(self) -> None:
        """End it; idempotent."""
        self.closed = True
        if self._lease is not None:
            self._lease.close()


def may_pause(living: LockedFile | Life, lock: LockedFile) -> bool:
    """Whether a job may let others have a turn; one on a disk always may."""
    return not (isinstance(living, Life) and isinstance(lock, Lease)) or living.begin(lock)


def resume(living: LockedFile | Life, lock: LockedFile) -> None:
    """ConcurrentWriter, with the lock closed, if others may have taken a job for dead."""
    try:
        if isinstance(living, Life):
            living.check()
        elif isinstance(living, io.FileIO) and not is_at(living, str(living.name)):
            raise ConcurrentWriter(
                f"{living.name} was deleted while a stream ran: the table may have been restored, "
                "or the checkpoint folder used again. Never delete it; start the stream again"
            )
    except BaseException:
        lock.close()
        raise


def await_life(storage: Storage, checkpoint: str | None, until: float) -> None:
    """Wait for the end of the life of a folder's last run; ConcurrentWriter at `until`.

    On a disk there is nothing to wait for: the kernel knows who has died.
    """
    path = _path(checkpoint) if checkpoint and is_remote(storage.root) else None
    while path is not None:
        try:
            _dead(storage, path, "stop that stream, or give this one another folder")
            return
        except ConcurrentWriter:
            if time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_S)


def living(storage: Storage, checkpoint: str) -> Life:
    """Return a job's life; ConcurrentWriter if another run of its folder lives."""
    path = _path(checkpoint)
    if path is not None:
        _end(storage, path)
    return Life(storage, checkpoint)


def refuse_living(storage: Storage) -> None:
    """Raise ConcurrentWriter if a job of another process lives; the caller has the lock."""
    for path in waiting.jobs(storage):
        _end(storage, path)


def _end(storage: Storage, path: str) -> None:
    """Make sure that a life has ended, and that a job which slept past it finds that out."""
    store = cast("ObjectStorage", storage)
    found = _dead(storage, path, "stop that stream")
    while found is not None:
        ended = {**holder_of("the end of a stream that has died"), "released": uuid.uuid4().hex}
        if store.replace(path, json.dumps(ended).encode(), found.version):
            return
        found = _dead(storage, path, "stop that stream")  # it is awake again


def _dead(storage: Storage, path: str, remedy: str) -> "Version | None":
    """Return a life that has expired, None if there is none; ConcurrentWriter if it lives."""
    found = cast("ObjectStorage", storage).read_version(path)
    if found is None or parsed(found.content).get("released"):
        return None
    left_s = left_s_of(storage, found)
    if left_s:
        raise ConcurrentWriter(
            f"{storage.root} is written by a stream of another process "
            f"({shown(parsed(found.content)) or 'unknown'}): {remedy}; if it was killed, its lease "
            f"ends in {left_s} s"
        )
    return found


def _path(checkpoint: str) -> str | None:
    """Return the object of a job's life; None before Spark has given its query an id.

    The folder's path may be another folder on another machine.
    """
    with suppress(FileNotFoundError), open(os.path.join(checkpoint, "metadata"), "rb") as file:
        return f"{OURS}/job-{hashlib.sha256(file.read()).hexdigest()}"
    return None
