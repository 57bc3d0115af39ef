"""Folders of staged rows of `df.write`: their names, which are in use, when they are removed.

A write of Spark's format `hoodie_nb` has no process that could hold the table's lock while its
tasks run: Spark asks one process for a plan, and another one to commit. So the tasks stage their
rows without the lock, in a folder of their own, and only the commit takes it. Recovery, which
deletes what dead writes have staged, spares a row folder as long as its job may be running.

*On disk*: `.hoodie/.hoodie_nb/staged/rows.<machine>.<pid>.<began>.<created>.<owner>.<nonce>`. The
machine (a hash), process id and start identify a process that lives as long as the job's driver;
`created` is in seconds since 1970; `owner` is the query's id, or `batch`.

*Fault tolerance*: a folder whose process has ended is deleted by the next write of any process on
that machine (a process that writes all the time looks every ten minutes); of another machine, when
it is a day old.

**Caveats**: a job that runs for more than a day, on a table that processes of several machines
write, may lose its rows before it commits. Its commit then fails, and nothing is written.
"""

import re
import zlib
from collections.abc import Collection
from os import getppid
from uuid import uuid4

from hoodie_nb.clock import Clock
from hoodie_nb.lock.process import has_ended, machine, process_identity
from hoodie_nb.storage.storage import STAGED, Storage

BATCH = "batch"
_NAME = re.compile(r"rows\.([0-9a-f]{8})\.(\d+)\.(\d+)\.(\d+)\.(\w+)\.[0-9a-f]+")
_OTHERS_S = 24 * 60 * 60


def new_row_folder(clock: Clock, owner: str = BATCH) -> str:
    """Return the path of a new row folder of the process that started this one.

    Spark starts the process that plans a write from one that ends with the driver's JVM.
    """
    _, pid, began = process_identity(getppid()) or ["", "0", "0"]
    created = clock.now_ms() // 1000
    return f"{STAGED}/rows.{_here()}.{pid}.{began}.{created}.{_word(owner)}.{uuid4().hex}"


def row_folders_in_use(names: Collection[str], clock: Clock, applied: str) -> set[str]:
    """Return which of these are row folders whose jobs may be running, or that are `applied`.

    That is the name of a folder, or a query; empty: none.
    """
    now_s = clock.now_ms() // 1000
    mine = {name for name in names if name == applied or _owner(name) == _word(applied)}
    return mine.union(name for name in names if _in_use(name, now_s))


def remove_row_folders(storage: Storage, owner: str) -> None:
    """Delete all row folders of a query, also those of attempts that failed."""
    for entry in storage.list_folder(STAGED):
        if _owner(entry.name) == _word(owner):
            storage.remove(f"{STAGED}/{entry.name}", tree=True)


def _owner(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return match and match[5]


def _in_use(name: str, now_s: int) -> bool:
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    here, pid, began, created, _ = match.groups()
    if here == _here() and pid != "0":
        return not has_ended([machine(), pid, began])
    return now_s - int(created) < _OTHERS_S


def _here() -> str:
    return f"{zlib.crc32((machine() or '').encode()):08x}"


def _word(owner: str) -> str:
    return re.sub(r"\W", "", owner)
