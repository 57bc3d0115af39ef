"""One trial for each operation that changes the disk: it fails, and the test looks at what is left.

A loop `for root, error in each_fault(source, act, "before")` copies the table `source`, runs `act`
on the copy as a new process whose first operation fails, and yields the copy and what the process
raised; then the second, and so on until an operation is no longer reached. A copy exists only
during its turn of the loop.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from faults import Crash, Fault, FaultyStorage
from suites import seed

from hoodie_nb import Table, failpoints
from hoodie_nb.clock import Clock, ManualClock
from hoodie_nb.definition import properties
from hoodie_nb.errors import HoodieError
from hoodie_nb.evidence.handle import TableHandle

Act = Callable[[Table], object]


def opened(
    root: Path,
    fault: Fault | None = None,
    *,
    links: bool = True,
    clock: Clock | None = None,
    kind: type[FaultyStorage] = FaultyStorage,
) -> TableHandle:
    """Return a new process's handle on the table, through a storage that may fail."""
    storage = kind(root, fault, links=links)
    return TableHandle(storage, clock or ManualClock(), properties.load(storage))


def each_fault(
    source: str | Path,
    act: Act,
    how: str,
    *,
    every: int = 1,
    first: int = 1,
    at_least: int = 1,
    code: int = errno.EIO,
    content_only: bool = False,
    raises: type[Exception] = HoodieError,
    process: Callable[[Path, Fault], TableHandle] = opened,
) -> Iterator[tuple[Path, BaseException | None]]:
    """Let operations of `act` fail, the `first` and later ones; there must be `at_least` so many.

    With `every=3` each third fails: the commit draws the one to begin with, so that all have their
    turn (`HOODIE_NB_SAMPLE=<commit>` draws the same ones again).
    A failure may end `act` with Crash, KeyboardInterrupt, HoodieError or what it `raises`. Without
    a failure it must end well. `process` opens the table.
    """
    with tempfile.TemporaryDirectory(dir=Path(source).parent, prefix=f"{how}-") as folder:
        for at in itertools.count(first + _drawn(how, every), every):
            root = Path(folder, f"{at}")
            shutil.copytree(source, root)
            fired, error = _attempt(process(root, Fault(at, how, code, content_only)), act, raises)
            if not fired:
                assert at >= first + at_least, f"only {at - first} operations"
                return
            yield root, error
            shutil.rmtree(root)


@cache
def _drawn(how: str, every: int) -> int:
    """Return a number from 0 to `every` - 1."""
    return hashlib.sha256(f"{seed()} {how}".encode()).digest()[0] % every


def _attempt(
    handle: TableHandle, act: Act, raises: type[Exception]
) -> tuple[bool, BaseException | None]:
    """Return whether the fault fired, and what the process raised."""
    storage, error = handle.storage, None
    assert isinstance(storage, FaultyStorage)
    try:
        act(Table(handle))
    except (Crash, KeyboardInterrupt, HoodieError, raises) as raised:
        if storage.fired is None:
            raise
        error = raised
    return storage.fired is not None, error


def operation_of(source: Path, act: Act, point: str) -> int:
    """Return how many operations precede a failpoint, 0 if `act` does not reach it."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        handle, found = opened(Path(shutil.copytree(source, Path(folder, "t")))), [0]
        assert isinstance(handle.storage, FaultyStorage)
        failpoints.call(point, lambda: found.insert(0, handle.storage.steps))
        try:
            act(Table(handle))
        finally:
            failpoints.arm("")
    return found[0]
