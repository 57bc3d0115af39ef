"""RunState: which part each event changes; unknown events are ignored, also in recordings.

*Work flow.* `RunState.take` is the only reducer: the dashboard of a running job, a replay and a
test pass it the next events, in the order in which they were recorded. An event costs a few
microseconds; drawing reads the parts.

*Semantics.* Every event and every value may be missing: older recordings lack some, and a killed
job can end anywhere. A checkpoint is a column: it begins with its batch, or with its instant if a
job has no batches; a batch that runs again is a new column.

**Caveats.** Only the newest 40 checkpoints and instants and two minutes of rates are kept. Rows
reported only at the end of a task are spread over its duration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hoodie_nb.events import Event
from hoodie_nb.lab.run.run_parts import (
    Backlog,
    BuffersState,
    CheckpointState,
    Flow,
    InstantState,
    Lookups,
    Note,
    OperatorState,
    Span,
    Story,
    as_number,
    noted,
    number,
)
from hoodie_nb.lock.writers import Writers

_KEPT = 40
_SPANS = 300
_FIXES = {
    "InvalidConfig": "Fix the options, then start the stream again.",
    "InvalidInput": "Fix the rows at the source; none of the batch was written.",
    "InvalidTable": "Check the table with table.fsck(): it names the fix of each finding.",
    "WriteFailed": "Rolled back; start the stream again, and the data is read again.",
    "CommitFailed": "Nothing is lost: the prepared instant is committed at the next start.",
    "ConcurrentWriter": "Stop the other writer, or wait for it, then start the stream again.",
    **dict.fromkeys(
        ("job_restarted", "checkpoint_timed_out", "task_failed"),
        "The batch is rolled back and runs again automatically.",
    ),
    **dict.fromkeys(
        ("commit_failed", "settling_postponed"),
        "Nothing is lost: the next checkpoint or start completes it.",
    ),
}


@dataclass(slots=True)
class Trouble:
    """The last error, and its fix."""

    what: str
    fix: str = ""


@dataclass(slots=True)
class RunState:
    """A run as of the last event, and the table's writers as of a live dashboard's last look."""

    pipeline: str = ""
    placement: str = ""  # of the newest batch, if a job has placed it
    tasks: int = 0
    status: str = "starting"
    began_ms: int = 0
    now_ms: int = 0
    event_count: int = 0
    rows: int = 0
    operators: dict[str, OperatorState] = field(default_factory=dict)
    buffers: BuffersState = field(default_factory=BuffersState)
    instants: dict[str, InstantState] = field(default_factory=dict)
    checkpoints: list[CheckpointState] = field(default_factory=list)
    backlog: Backlog = field(default_factory=Backlog)
    lookups: list[Lookups] = field(default_factory=list)
    index: str = ""
    saved: dict[str, Any] = field(default_factory=dict)
    pure_since: str = ""
    trouble: Trouble | None = None
    committed: int = 0
    notes: list[Note] = field(default_factory=list)
    stories: list[Story] = field(default_factory=list)
    writers: Writers = field(default_factory=Writers)
    turns: int = 0
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=_SPANS))
    _counted: int = 0
    _new_lookup: bool = True

    @classmethod
    def of(cls, events: Iterable[Event], pipeline: str = "") -> RunState:
        """Return the state after these events."""
        return cls(pipeline).take(events)

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.status in ("stopped", "failed")

    @property
    def written(self) -> Flow:
        """Return the rows that reached the writers."""
        writer = self.operators.get("BucketWriter")
        return writer.flow if writer else Flow()

    def take(self, events: Iterable[Event], now_ms: int = 0) -> RunState:
        """Apply the next events, live or recorded, as of `now_ms`; return this state."""
        for event in events:
            self._take(event)
        self.now_ms = max(self.now_ms, now_ms)
        return self

    def _take(self, event: Event) -> None:
        self.event_count += 1
        self.began_ms = self.began_ms or event.at_ms
        self.now_ms = max(self.now_ms, event.at_ms)
        if self.status == "starting":
            self.status = "running"
        note = noted(event, self.instants)
        if note is not None:
            self._note(note, event)
        if event.kind in ("operator_ran", "file_written", "buffer_flushed"):
            self.spans.append(Span.of(event))
        _REDUCERS.get(event.kind, _nothing)(self, event)

    def _note(self, note: Note, event: Event) -> None:
        """Keep the newest notes, and each fault with what came of it since it fired."""
        self.notes.append(note)
        del self.notes[:-_KEPT]
        fault = str(event.values.get("fault"))
        if note.kind == "fault_injected":
            self.stories.append(Story(note, fault if event.values.get("waits") else ""))
            return
        if note.kind == "fault_fired":
            for story in [story for story in self.stories if story.waits == fault][:1]:
                self.stories.append(self.stories.pop(self.stories.index(story)))  # the newest now
                story.waits = ""
        for story in [story for story in self.stories if not story.waits][-1:]:
            story.add(note)

    def _written_ahead(self, event: Event) -> None:
        if event.values.get("fits"):
            self.writers = replace(self.writers, fitted=self.writers.fitted + 1)
        else:
            self.writers = replace(self.writers, again=self.writers.again + 1)

    def _turn(self, event: Event) -> None:
        self.turns += 1

    # --- the job --------------------------------------------------------------------------------

    def _job_started(self, event: Event) -> None:
        self.status = "running"
        self.pipeline = self.pipeline or str(event.values.get("pipeline", ""))
        self.tasks = int(number(event, "tasks")) or self.tasks

    def _placed(self, event: Event) -> None:
        self.placement = str(event.values.get("placement", ""))

    def _job_ended(self, event: Event) -> None:
        self.status = event.kind.removeprefix("job_")
        if event.kind == "job_failed":
            self._trouble(event)

    def _trouble(self, event: Event) -> None:
        fix = _FIXES.get(event.kind) or _FIXES.get(str(event.values.get("error")), "")
        why = event.values.get("why") or f"after {event.values.get('seconds', '?')} s"
        self.trouble = Trouble(f"{event.kind.replace('_', ' ')}: {why}", fix)
        if event.kind == "job_restarted":
            self.status = "restarting"

    def _timed_out(self, event: Event) -> None:
        self._trouble(event)
        for checkpoint in self.checkpoints[-1:]:
            checkpoint.state = "timed out"

    # --- operators, buffers, index --------------------------------------------------------------

    def _operator(self, event: Event) -> None:
        name = str(event.values.get("operator", "?"))
        self.operators.setdefault(name, OperatorState()).update(event)
        self.tasks = max(self.tasks, int(number(event, "task")) + 1)
        if name == "InstantGenerator":  # only `current` has one
            self.pipeline = self.pipeline or "current"
        if name == "BucketWriter" and event.kind == "operator_ran":
            self.buffers.record_end(event)

    def _flushed(self, event: Event) -> None:
        self.pipeline = self.pipeline or "step3"
        self.buffers.record_flush(event)

    def _looked_up(self, event: Event) -> None:
        self.index = str(event.values.get("index", self.index))
        task = int(number(event, "task"))
        if self._new_lookup or not self.lookups or task in self.lookups[-1].tasks:
            self.lookups.append(Lookups())
            del self.lookups[:-_KEPT]
            self._new_lookup = False
        self.lookups[-1].tasks.add(task)
        self.lookups[-1].values.update({k: as_number(v) for k, v in event.values.items()})

    def _saved(self, event: Event) -> None:
        self.saved = dict(event.values)
        if not event.values.get("pure"):
            self.pure_since = ""
        elif not self.pure_since:
            self.pure_since = str(event.values.get("instant", ""))

    # --- checkpoints and instants ---------------------------------------------------------------

    def _begin(self, number_of: int, state: str = "running") -> CheckpointState:
        self.checkpoints.append(CheckpointState(number_of, state))
        del self.checkpoints[:-_KEPT]
        self._counted = number_of + 1
        for operator in self.operators.values():
            operator.stale = True
        self.buffers.stale = True
        self._new_lookup = True
        return self.checkpoints[-1]

    def _batch(self, event: Event) -> None:
        states = {"batch_skipped": "skipped", "checkpoint_sealed": "sealed"}
        batch = int(number(event, "batch"))
        self._begin(batch, states.get(event.kind, "running"))
        if event.kind == "checkpoint_sealed":
            self.backlog.seal(batch, event.at_ms)

    def _batch_ended(self, event: Event) -> None:
        batch = event.values.get("batch")
        for checkpoint in self.checkpoints[-1:]:
            if checkpoint.number == batch and checkpoint.state == "running":
                checkpoint.state = "prepared" if checkpoint.instant else "empty"

    def _instant(self, event: Event) -> None:
        time17 = str(event.values.get("instant", "?"))
        state = _STATES[event.kind]
        instant = self.instants.setdefault(time17, InstantState(time17))
        if len(self.instants) > _KEPT:
            del self.instants[next(iter(self.instants))]
        again = instant.state == "completed"
        instant.state = state
        instant.at_ms.setdefault(state, event.at_ms)
        self._columns(time17, event)
        if state == "completed":
            instant.values = dict(event.values)
            if not again:
                self.committed += 1
                self.trouble = None
                self.rows += int(number(event, "inserts") + number(event, "updates"))

    def _columns(self, time17: str, event: Event) -> None:
        """Give the instant its checkpoints, and them their state."""
        state = _STATES[event.kind]
        mine = [c for c in self.checkpoints if c.instant == time17]
        free = [c for c in self.checkpoints if not c.instant and c.state in ("running", "sealed")]
        joins = state == "prepared" and number(event, "checkpoint") >= len(mine)
        if not mine or joins:
            if not free and state in ("requested", "inflight", "prepared"):
                free = [self._begin(self._counted)]
            for checkpoint in free:
                checkpoint.instant = time17
            mine += free
        ends = {"completed": "done", "rolled back": "rolled back", "abandoned": "empty"}
        if state == "completed" and self.backlog.sealed and mine:
            self.backlog.show(max(checkpoint.number for checkpoint in mine), event.at_ms)
        for checkpoint in mine:
            if state == "prepared" and checkpoint.state in ("running", "sealed"):
                checkpoint.state = state
            elif state in ends and checkpoint.state != "timed out":
                checkpoint.state = ends[state]

    def _redone(self, event: Event) -> None:
        for checkpoint in self.checkpoints:
            if checkpoint.instant == event.values.get("instant"):
                checkpoint.instant = str(event.values.get("as_instant"))
                checkpoint.state = "running"


def _nothing(state: RunState, event: Event) -> None:
    """Ignore an event that changes no picture."""


_STATES = {
    "instant_requested": "requested",
    "instant_inflight": "inflight",
    "instant_prepared": "prepared",
    "instant_committed": "completed",
    "instant_rolled_back": "rolled back",
    "instant_abandoned": "abandoned",
}
_REDUCERS: dict[str, Callable[[RunState, Event], None]] = {
    **dict.fromkeys(_STATES, RunState._instant),
    **dict.fromkeys(("batch_started", "batch_skipped", "checkpoint_sealed"), RunState._batch),
    **dict.fromkeys(("job_stopped", "job_failed"), RunState._job_ended),
    **dict.fromkeys(("operator_ran", "operator_progress"), RunState._operator),
    **dict.fromkeys(
        ("job_restarted", "commit_failed", "settling_postponed", "task_failed"), RunState._trouble
    ),
    "job_started": RunState._job_started,
    "batch_placed": RunState._placed,
    "checkpoint_timed_out": RunState._timed_out,
    "buffer_level": lambda state, event: state.buffers.record_level(event),
    "buffer_flushed": RunState._flushed,
    "file_written": lambda state, event: state.buffers.record_file(event),
    "index_looked_up": RunState._looked_up,
    "index_saved": RunState._saved,
    "batch_ended": RunState._batch_ended,
    "instant_redone": RunState._redone,
    "instant_written_ahead": RunState._written_ahead,
    "turn_taken": RunState._turn,
}
