"""The rules of the turns, each of which can be broken on purpose: some schedule must then fail.

`python tests/writers/simulator.py 400 1 --without line` runs schedules until one fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from writers.turns import actors

from hoodie_nb.clock import instant_time
from hoodie_nb.commit import recovery
from hoodie_nb.commit.admission import Admission
from hoodie_nb.commit.recovery import Recovery
from hoodie_nb.local import settling
from hoodie_nb.local.ahead import Ahead
from hoodie_nb.lock import lock, waiting
from hoodie_nb.records.sealing import SealedRecords
from hoodie_nb.timeline.timeline import Listing, Timeline


def _nothing(*_: object, **__: object) -> None:
    return None


def _without_lock() -> None:
    lock.lock_file = lambda file, storage, purpose: True


def _without_line() -> None:
    waiting.is_awaited = lambda *_: False


def _without_second_look() -> None:
    waiting.is_at = lambda *_: True


def _without_life() -> None:
    waiting.refuse_living = _nothing


def _without_recovery() -> None:
    def recover_if_stale(checkpointing: Any, hold: Any, events: Any) -> None:
        hold.stale = 0.0

    actors.recover_if_stale = recover_if_stale


def _without_rollback() -> None:
    Recovery._abandoned = lambda self, kept: []


def _without_kept_records() -> None:
    abandoned = Recovery._abandoned
    Recovery._abandoned = lambda self, kept: abandoned(self, set())


def _without_kept_files() -> None:
    sweep_all = recovery.sweep_all
    recovery.sweep_all = lambda storage, staged, keep: sweep_all(storage, staged, keep=set())


def _without_fresh_records() -> None:
    Recovery.forget_records = _nothing


def _without_fresh_timeline() -> None:
    refresh = Timeline.refresh

    def once(self: Timeline) -> Listing:
        return refresh(self) if self._stale or not self._known.instants else self._known

    Timeline.refresh = once


def _without_settling() -> None:
    def settle(coordinator: Any, **_: object) -> None:
        coordinator.recover()

    settling.settle = settle


def _without_skipping() -> None:
    Admission.contains = lambda self, checkpoint: False


def _without_marks() -> None:
    SealedRecords.take_mark = _nothing


def _without_later_times() -> None:
    Timeline.next_time = lambda self, after="", **_: instant_time(self._clock.now_ms())


def _without_fitting() -> None:
    Ahead.fits = lambda self, plan, intake: True


def _without_notes() -> None:
    recovery.noted = lambda storage: []


def _without_patience() -> None:
    lock._Held.wait_until_unused = _nothing


RULES: dict[str, tuple[Callable[[], None], str]] = {
    "lock": (_without_lock, "who writes holds the lock"),
    "line": (_without_line, "nobody takes the lock while a writer waits that came before"),
    "place": (_without_second_look, "a place that was taken for a dead one's is taken again"),
    "life": (_without_life, "what must be alone is refused beside a stream between its turns"),
    "patience": (_without_patience, "the lock is kept while a thread still stages"),
    "recovery": (_without_recovery, "a stream recovers the table after a turn of others"),
    "rollback": (_without_rollback, "recovery rolls back what the dead have begun"),
    "kept records": (_without_kept_records, "but not what is prepared"),
    "kept files": (_without_kept_files, "nor does it sweep the files of that, or of seals"),
    "fresh records": (_without_fresh_records, "records are read again in each turn"),
    "fresh timeline": (_without_fresh_timeline, "the timeline is listed again in each turn"),
    "settling": (_without_settling, "prepared and sealed work goes before one's own instant"),
    "skipping": (_without_skipping, "a checkpoint that is in the table is skipped"),
    "marks": (_without_marks, "who applied seals is read again in each turn"),
    "fitting": (_without_fitting, "what is written ahead is written again if others meet it"),
    "notes": (_without_notes, "files of those that wait are kept"),
    "later times": (_without_later_times, "an instant is later than all on the timeline"),
}
