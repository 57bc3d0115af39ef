"""Upkeep by hand between two processes of a job: clean, archive, a savepoint that a clean respects.

Sometimes the process dies in the middle; the next one completes what was begun.
"""

from __future__ import annotations

import contextlib

from core.faults import Crash, Fault
from history.job import History
from history.model import order, visible

from hoodie_nb import failpoints
from hoodie_nb.actions.savepoints import saved
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.services import savepoint
from hoodie_nb.services.archive import archive
from hoodie_nb.services.clean import clean


def tend(history: History) -> None:
    """Clean or archive by hand, or save the snapshot of now, clean, and read it."""
    history.end_process()
    table = history.handle()
    settled(table, EventLog())
    number = history.random.randint(1, 4)
    what = history.random.choice(["clean", "archive", "save"])
    history.verbs.append(what)
    if history.random.random() < 0.4:
        storage = table.storage
        how = history.random.choice(["before", "after", "torn"])
        storage.fault = Fault(storage.steps + history.random.randint(1, 30), how)
    with contextlib.suppress(Crash):
        if what == "archive" and history.traits.archived:
            archive(table, EventLog(), dry_run=False)
        elif table.timeline.completed_commits():
            _clean(history, table, number, save=what == "save")
    table.storage.dead = True
    failpoints.arm("")
    _forget_savepoints(history)
    history.start()


def _clean(history: History, table: TableHandle, number: int, *, save: bool) -> None:
    times = [i.requested_time for i in table.timeline.completed_commits()]
    kept = times[-min(len(times), history.random.randint(1, history.kept))]
    held = None
    if save:
        held = order(map(visible, to_arrow(history.handle(), as_of=kept).to_pylist()))
        savepoint.create(table, EventLog(), kept, comment="", user="")
    history.kept = min(history.kept, number)
    clean(table, EventLog(), {"KEEP_LATEST_COMMITS": number}, dry_run=False)
    if save:
        found = order(map(visible, to_arrow(history.handle(), as_of=kept).to_pylist()))
        assert found == held, f"savepoint {kept} has other rows after a clean"


def _forget_savepoints(history: History) -> None:
    """Delete what savepoints there are: undoing would be refused."""
    table = history.handle()
    settled(table, EventLog())
    for instant in saved(table):
        savepoint.delete(table, EventLog(), instant.requested_time)
