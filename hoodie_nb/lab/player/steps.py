"""Steps of a run: what the player shows after each of them, as plain values and their changes.

*Work flow.* `RunState`, which the dashboard is drawn from, applies the events; a step shows it
after all events of a time slot. `view` turns it into plain values; a step keeps only the changes
since the step before, so that the page of a long run stays small.

*Semantics.* With a slot of 1 ms each step is what `Replay.step` goes to. `Run.of` takes longer
slots where there would be too many steps. Then moments between two steps are left out, and of the
notes of a step all but the four most important ones; the values are complete.

| value | meaning |
| --- | --- |
| status, rows, commits | as in the dashboard's head line; rows are committed ones |
| level, limit | bytes in the buffers of all tasks, and their limit (0: none) |
| count, buckets | how many buckets; of those shown: bytes, flushes, bytes of the file, whether it \
is a log, the logs it folded, the logs since its base file; by place in `Run.names` |
| checkpoints | by serial number, the newest 20 are shown: number, state, instant; of that its \
state and all states reached; states by place in `STATES` |
| trouble | the last error and its fix, or None |
| story | the numbers of the notes of the last fault, and of the first note after it; or None |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from string import Formatter
from typing import Any

from hoodie_nb.events import Event
from hoodie_nb.lab.draw.instants import CHECKPOINTS, SHOWN
from hoodie_nb.lab.look.svg import STATES as INSTANTS
from hoodie_nb.lab.run.run_parts import STEP_MS, CheckpointState, Note
from hoodie_nb.lab.run.run_state import RunState

TONES = ("routine", "", "good", "bad")  # from the least to the most important
STATES = tuple(dict.fromkeys([*INSTANTS, *CHECKPOINTS]))
SENTENCES = {  # of events without a note; a kind that is not here is named with its values
    "": "{}",
    "instant_requested": "Instant {instant} is requested: the coordinator has chosen its time",
    "instant_inflight": "Instant {instant} is inflight: the tasks may write its files",
    "instant_abandoned": "Instant {instant} is abandoned: there was nothing to write",
    "batch_placed": "Batch {batch} runs on: {placement}",
    "batch_ended": "Batch {batch} has ended after {seconds} s",
    "checkpoint_sealed": "Checkpoint {batch} is sealed: its rows are safe, and not visible yet",
    "buffer_flushed": "Partition {partition}: the bucket {file_id} is flushed, {rows} rows",
    "file_written": "Partition {partition}: the file of {file_id} is written, {rows} rows",
    "bucket_assigned": "Partition {partition}: the new file group {file_id} begins",
    "operator_ran": "{operator}, task {task}, has ended: {rows} rows",
    "operator_progress": "{operator}, task {task}: {rows} rows so far",
    "buffer_level": "Task {task} holds {bytes} bytes in its buffer",
    "index_looked_up": "Task {task} has looked up {keys} keys in the index",
    "index_saved": "The index is saved for instant {instant}",
    "files_cleaned": "{files} old files are deleted, {bytes} bytes",
    "instants_archived": "{instants} old instants are archived",
}
_SLOTS_MS = [digit * 10**zeros for zeros in range(12) for digit in (1, 2, 3, 4, 6, 8)]
_NOTES = 4  # of a step
_SHORT = 8  # characters of a file id in a sentence


@dataclass(frozen=True, slots=True)
class Step:
    """A step: ms since the first event, its number of events, its notes, a sentence, its changes.

    A note is (place in `TONES`, text). The sentence, of a step without notes, is the kind of its
    most important event and the values that `SENTENCES` names.
    """

    at_ms: int
    events: int
    notes: list[tuple[int, str]]
    said: list[Any]
    changes: dict[str, Any]


@dataclass(slots=True)
class Run:
    """All steps of a run, with what they refer to: `names` of buckets, as (partition, file id).

    `rates` are the writers' rows per second in each half second since `rates_ms`, which is the time
    from the first event, and not above 0.
    """

    state: RunState
    slot_ms: int
    steps: list[Step] = field(default_factory=list)
    names: dict[tuple[str, str], int] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    rates_ms: int = 0

    @classmethod
    def of(cls, events: Sequence[Event], pipeline: str = "", most: int = 2_500) -> Run:
        """Return at most `most` steps of events, which are in the order of their times."""
        slots = (ms for ms in _SLOTS_MS if len({_slot(e, events, ms) for e in events}) <= most)
        return _Recorder(cls(RunState(pipeline), next(slots))).record(events)


def applied(shown: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values after a step, given those before it."""
    found = dict(shown)
    for name, value in changes.items():
        if isinstance(value, dict):
            entries = {**found.get(name, {}), **value}
            value = {key: entry for key, entry in entries.items() if entry is not None}
        found[name] = value
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ; of a dict its entries that do, None for those gone.

    Checkpoints only come: the newest are shown.
    """
    found: dict[str, Any] = {}
    for name, value in after.items():
        old = before.get(name)
        if value == old and name in before:
            continue
        found[name] = value
        if isinstance(value, dict):
            old = old or {}
            entries = {key: entry for key, entry in value.items() if old.get(key) != entry}
            gone = old.keys() - value.keys() if name != "checkpoints" else ()
            found[name] = {**entries, **dict.fromkeys(gone)}
    return found


class _Recorder:
    """Applies events, and records the steps."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._shown: dict[str, Any] = {}
        self._last: CheckpointState | None = None
        self._begun = 0  # all checkpoints so far
        self._notes: list[Note] = []
        self._numbers: dict[int, int] = {}
        self._rates: dict[int, float] = {}

    def record(self, events: Sequence[Event]) -> Run:
        run = self._run
        for _, group in groupby(events, lambda event: _slot(event, events, run.slot_ms)):
            run.steps.append(self._step(list(group), events[0].at_ms))
        first = min([events[0].at_ms // STEP_MS, *self._rates])
        last = max([first, *self._rates])
        run.rates_ms = first * STEP_MS - events[0].at_ms
        per_second = 1000 / STEP_MS
        run.rates = [self._rates.get(n, 0.0) * per_second for n in range(first, last + 1)]
        return run

    def _step(self, events: list[Event], began_ms: int) -> Step:
        state = self._run.state
        notes: list[Note] = []
        for event in events:
            newest = state.notes[-1] if state.notes else None
            state.take([event])
            if state.notes and state.notes[-1] is not newest:
                notes.append(state.notes[-1])
            self._count_checkpoints(state)
        kept = self._kept(notes)
        self._rates.update(state.written.steps)
        after = self.view()
        changes = changed(self._shown, after)
        self._shown = after
        said = [] if kept else _said(max(events, key=lambda event: _rank(event.kind)))
        return Step(events[-1].at_ms - began_ms, len(events), kept, said, changes)

    def _kept(self, notes: list[Note]) -> list[tuple[int, str]]:
        """Return the most important notes of a step, and number them."""
        ranked = sorted(notes, key=lambda note: TONES.index(note.tone))[-_NOTES:]
        kept = []
        for note in notes:
            self._numbers[id(note)] = len(self._notes)  # of the next one if it is left out
            if any(note is one for one in ranked):
                self._notes.append(note)
                kept.append((TONES.index(note.tone), note.text))
        return kept

    def _count_checkpoints(self, state: RunState) -> None:
        for checkpoint in reversed(state.checkpoints):
            if checkpoint is self._last:
                break
            self._begun += 1
        self._last = state.checkpoints[-1] if state.checkpoints else None

    def view(self) -> dict[str, Any]:
        """Return what is shown now (the table above)."""
        state = self._run.state
        return {
            "status": state.status,
            "rows": state.rows,
            "commits": state.committed,
            "level": round(sum(state.buffers.levels.values())),
            "limit": round(state.buffers.total_limit),
            "count": len(state.buffers.buckets),
            "buckets": dict(self._buckets()),
            "checkpoints": dict(self._newest()),
            "trouble": [state.trouble.what, state.trouble.fix] if state.trouble else None,
            "story": self._story(),
        }

    def _newest(self) -> Iterable[tuple[str, list[Any]]]:
        state = self._run.state
        shown = state.checkpoints[-SHOWN:]
        for serial, checkpoint in enumerate(shown, self._begun - len(shown)):
            values: list[Any] = [checkpoint.number, STATES.index(checkpoint.state)]
            instant = state.instants.get(checkpoint.instant)
            if instant is not None:
                states = [instant.state, *instant.at_ms]
                values += [instant.time, *map(STATES.index, states)]
            yield str(serial), values

    def _buckets(self) -> Iterable[tuple[str, list[int]]]:
        buffers = self._run.state.buffers
        for bucket in buffers.shown:
            name = (bucket.partition, bucket.file_id)
            logs = buffers.logs[bucket.file_id]
            sizes = (
                bucket.bytes,
                bucket.flushes,
                bucket.written,
                bucket.is_log,
                bucket.merged,
                logs,
            )
            values = [round(value) for value in sizes]
            while values and not values[-1]:
                values.pop()
            yield str(self._run.names.setdefault(name, len(self._run.names))), values

    def _story(self) -> list[int] | None:
        stories = self._run.state.stories
        if not stories:
            return None
        begins = (stories[-1].fault, *stories[-1].after[:1])
        return [self._numbers[id(note)] for note in begins]


def _slot(event: Event, events: Sequence[Event], slot_ms: int) -> int:
    return (event.at_ms - events[0].at_ms) // slot_ms


def _rank(kind: str) -> int:
    """Return how important an event without a note is: the later in `SENTENCES`, the less."""
    return -[*SENTENCES].index(kind) if kind in SENTENCES else 0


def _said(event: Event) -> list[Any]:
    template = SENTENCES.get(event.kind)
    if template is None:
        values = ", ".join(f"{name} {value}" for name, value in event.values.items())
        return ["", f"{event.kind.replace('_', ' ').capitalize()}: {values}"[:200]]
    said: list[Any] = [event.kind]
    for _, name, _, _ in Formatter().parse(template):
        if name:
            value = event.values.get(name, "?")
            value = str(value)[:_SHORT] if name == "file_id" else value
            value = round(value, 1) if isinstance(value, float) else value
            said.append(value if isinstance(value, int | float) else str(value))
    return said
