"""Undoing by hand: commits are rolled back or restored, and the job continues as its error says.

The job's process has ended. Sometimes the undoing process dies, and the next one completes what was
begun; sometimes a reader is in the middle of its listing. Afterwards the source goes back to the
batch that the refused start names, and sends the rows again.

If a commit of another engine was undone, the source goes back to the last batch with rows: a batch
that changed nothing then, because the other engine's rows were newer, counts as applied (see
docs/restoring.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from core.faults import Crash, Fault, FaultyStorage
from history.beside import read_beside
from history.job import History
from history.model import VisibleRow, order, visible

from hoodie_nb import failpoints
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.progress import ProgressRecords
from hoodie_nb.services.restore import restore
from hoodie_nb.services.rollback import rollback

_REFUSED = ("can be read is", "archived", "nothing to undo", "no completed commit", "only merged")
_POINTS = [n for n in failpoints.NAMES if n.startswith(("restore.", "rollback."))]


def follow(history: History) -> None:
    """Let the follower read on."""
    history.verbs.append(history.follower.follow(history.handle(), history.undone))


def undo(history: History) -> None:
    """Undo the newest commit, or all after an earlier one, and let the job continue."""
    history.end_process()
    table = history.handle()
    settled(table, EventLog())
    before = _times(table)
    count = history.random.randint(1, max(1, min(4, len(before) - 1)))
    restores = len(before) > count and history.random.random() < 0.6
    to = before[-count - 1] if restores else None
    first = before[-count] if restores else max(before, default="")
    if not before or first <= history.widened:
        history.start()
        return
    allowed = _snapshots(table, before[-count - 1 :])
    act = _action(history, to)
    if history.random.random() < 0.4:
        _read_meanwhile(history, act, allowed)
    else:
        act()
    settled(history.handle(), EventLog())  # completes what a dead process has begun
    _continue(history, {*before} - {*_times(history.handle())})


def _times(table: TableHandle) -> list[str]:
    return [i.requested_time for i in table.timeline.completed_commits()]


def _snapshots(table: TableHandle, times: list[str]) -> list[list[VisibleRow]]:
    """Return the rows as of some commits, where they can still be read, and no rows."""
    found: list[list[VisibleRow]] = [[]]
    for time17 in times:
        try:
            found.append(_rows(table, time17))
        except InvalidConfig:
            continue
    return found


def _rows(table: TableHandle, as_of: str | None = None) -> list[VisibleRow]:
    return order(map(visible, to_arrow(table, as_of=as_of).to_pylist()))


def _action(history: History, to: str | None) -> Callable[[], None]:
    """Return the action: a restore to a commit, or a rollback; its process may die."""
    table = history.handle()
    doomed = history.random.random()

    def act() -> None:
        storage = table.storage
        if doomed < 0.2:
            point = history.random.choice(_POINTS)
            failpoints.call(point, lambda: _die(storage), history.random.randint(1, 2))
        elif doomed < 0.4:
            how = history.random.choice(["before", "after", "torn"])
            storage.fault = Fault(storage.steps + history.random.randint(1, 30), how)
        try:
            if to is None:
                rollback(table, EventLog(), None, dry_run=False)
            else:
                restore(table, EventLog(), to, dry_run=False)
            history.verbs.append("restored" if to else "rolled back")
        except Crash:
            history.verbs.append("dies")
        except InvalidConfig as error:
            assert any(text in str(error) for text in _REFUSED), error
            history.verbs.append("refused")
        finally:
            failpoints.arm("")
            storage.dead = True

    return act


def _die(storage: FaultyStorage) -> None:
    storage.dead = True
    raise Crash("while undoing")


def _read_meanwhile(
    history: History, act: Callable[[], None], allowed: list[list[VisibleRow]]
) -> None:
    """Let a reader list some folders, then undo, then let it go on: it sees a whole state.

    If the undoing process died, some commits are there and some are not, at a commit's border.
    """
    table, at = history.handle(), history.random.randint(1, 6)
    found = read_beside(table.storage, at, act, lambda: _rows(table))
    assert found in allowed, f"a reader beside an undo ({at}) sees a state that never was"


def _continue(history: History, undone: set[str]) -> None:
    """Start the job on the table as it is now, as the error of a refused start says."""
    history.undone |= undone
    for time17 in undone:
        history.snapshots.pop(time17, None)
    if history.model.withdraw(undone) and not history.traits.insert:
        _go_back(history, _last_with_rows(history))
    try:
        history.start()
    except InvalidTable as error:
        named = re.search(r"above (\d+), the last batch in the table", str(error))
        assert named or "new checkpoint folder" in str(error), error
        history.verbs.append("refused")
        _go_back(history, int(named[1]) if named else -1)
        history.start()


def _go_back(history: History, last: int) -> None:
    """Delete what the source knows about the batches after one, as in a checkpoint folder."""
    history.source.take_back(last + 1)


def _last_with_rows(history: History) -> int:
    """Return the last batch whose rows are in a commit of the table, or in an archived one."""
    table = history.handle()
    listing = table.timeline.listing
    start = table.timeline.start(listing)
    entries = ProgressRecords(table.storage, table.rules).entries("local")
    newest = {entry.batch_id: entry.instant_time or "" for entry in entries}
    held = {
        n for n, time17 in newest.items() if time17 in listing.commit_times or "" < time17 < start
    }
    return max(held, default=-1)
