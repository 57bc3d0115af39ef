"""The experiments of `Knob`: their inputs, positions, captions, and moments of a crash.

Each runs the real operators and the real protocol in this process, on a new table in a temporary
folder, in about a second. The network between tasks and the store are simulated links; errors and
crashes are those of a `FrailStorage`.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa

from hoodie_nb.clock import ManualClock
from hoodie_nb.errors import HoodieError, InvalidConfig
from hoodie_nb.events import Event, EventLog
from hoodie_nb.evidence.handle import TableHandle, create_table, open_table
from hoodie_nb.lab.experiments.race import Generated
from hoodie_nb.lab.experiments.trial import Trial
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.lab.stores.frail_storage import Dead, FrailStorage
from hoodie_nb.lab.stores.slow_storage import Link
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.storage.storage import Storage

_PIECES = Generated(rows=900, batches=9, partitions=2, update_share=0)
_SMALL = {"hoodie.parquet.max.file.size": 50_000, "hoodie.copyonwrite.record.size.estimate": 100}
_UNFILLED = {"hoodie.parquet.small.file.limit": 0}  # filling up small files could hide duplicates
_SHARES = {f"{share:.0%}": share for share in (0.0, 0.25, 0.5, 1.0)}
_EAGER = {str(rows): rows for rows in (0, 100, 300, 600)}
_MOMENTS = {  # in the order of a checkpoint and its commit
    "before the instant": r"put .*\.requested",
    "while files are written": "open_new",
    "before prepare": "put .*prepared/",
    "before the commit": "publish",
    "before the completed file": r"put .hoodie/\d+\.commit$",
    "before the cleanup": "put .*progress/",
    "never": "$^",
}
_AFTER = "{visible_then} rows visible then, {rows} in the end; {files_again} files written after it"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an experiment: its events, and its facts by name."""

    title: str
    events: Sequence[Event]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A function of one value: the positions of its knob, a caption of facts, its pictures."""

    run: Callable[[Any], list[Run]]
    knob: str
    positions: Mapping[str, Any]
    caption: str
    drawn: Sequence[str]


_EXPERIMENTS: dict[str, Experiment] = {}


def _experiment(
    knob: str, positions: Mapping[str, Any], caption: str, *drawn: str
) -> Callable[[Callable[[Any], list[Run]]], None]:
    def add(run: Callable[[Any], list[Run]]) -> None:
        _EXPERIMENTS[run.__name__] = Experiment(run, knob, positions, caption, drawn)

    return add


def names() -> dict[str, str]:
    """Return the names of the experiments with what each shows."""
    return {name: str(experiment.run.__doc__) for name, experiment in _EXPERIMENTS.items()}


def named(name: str) -> Experiment:
    """Return an experiment, or raise InvalidConfig with the known names."""
    if name not in _EXPERIMENTS:
        raise InvalidConfig(f"experiment {name!r} is unknown: choose from {', '.join(names())}")
    return _EXPERIMENTS[name]


# --- the four bottlenecks ------------------------------------------------------------------------


def _tried(trial: Trial) -> Run:
    logs: list[EventLog] = []
    facts = trial.run(lambda log, _: logs.append(log))
    return Run(f"{trial.pipeline}; {trial.writers} tasks", logs[0].records(), facts)


_SERIAL = "{seconds:.2f} s, of which {serial_s:.2f} s in the one task"


@_experiment("tasks", {str(tasks): tasks for tasks in (1, 2, 4, 8)}, _SERIAL, "lanes")
def serial_task(tasks: int) -> list[Run]:
    """Bottleneck 1: every record passes one task, however many tasks follow it."""
    made = Generated(rows=2000, batches=1, partitions=16)
    network = Link(bytes_per_s=1_200_000)
    trial = Trial(writers=tasks, input=made, network=network)
    return [_tried(replace(trial, pipeline=name)) for name in ("current", "step1")]


_SKEWS = {"25%": 0.0, "50%": 1 / 3, "75%": 2 / 3, "100%": 1.0}


@_experiment("hot partition", _SKEWS, "the longest writer takes {write_s:.2f} s", "lanes")
def hot_partition(skew: float) -> list[Run]:
    """Bottleneck 2: the rows of one partition are one task's work, file after file."""
    made = Generated(rows=3000, batches=1, partitions=4, skew=skew)
    store = Link(latency_s=0.01, bytes_per_s=1_000_000)
    trial = Trial(writers=4, input=made, store=store, options={**_SMALL, **_UNFILLED})
    return [_tried(replace(trial, pipeline=name)) for name in ("step1", "step2")]


_SIZES = {size: size for size in ("8 KB", "32 KB", "128 KB", "512 KB")}
_BUFFER = "peak {peak_buffer_mb:.2f} MB; the checkpoint waits {blocked_s:.2f} s for files"


@_experiment("flush a bucket at", _SIZES, _BUFFER, "lanes", "buffers")
def buffer(size: str) -> list[Run]:
    """Bottleneck 3: without mini-batches a task buffers all rows, and the checkpoint waits."""
    made = Generated(rows=1200, batches=1, partitions=2, record_bytes=200)
    link = Link(0, 800_000)
    trial = Trial(batch_size=size, input=made, network=link, store=link)
    return [_tried(replace(trial, pipeline=name)) for name in ("step2", "step3")]


_STORED = "{rows} rows stored, {duplicates} of them duplicates"


@_experiment("written by another job", _SHARES, _STORED, "index")
def job_state(share: float) -> list[Run]:
    """Bottleneck 4: a state that belongs to one job does not know the keys of another."""
    rows = pa.concat_tables(_PIECES.tables())
    runs = []
    for index in ("state", "bloom+state"):
        with _table() as table:
            other = LocalJob(table, index="bloom", query_id="other")
            _checkpoint(other, 1, rows.slice(0, round(share * rows.num_rows)))
            job = LocalJob(table, index=index, state_folder=f"{table.storage.root}-state")
            _checkpoint(job, 1, rows)
            runs.append(_ran(f"index {index}", job))
    return runs


# --- recoveries ----------------------------------------------------------------------------------


@contextmanager
def _table() -> Iterator[TableHandle]:
    with tempfile.TemporaryDirectory(prefix="hoodie-knob-") as folder:
        clock = ManualClock()
        yield create_table(f"{folder}/table", _PIECES.config, options=_UNFILLED, clock=clock)


def _checkpoint(job: LocalJob, number: int, *pieces: pa.Table) -> None:
    for rows in pieces:
        job.write(rows)
    job.checkpoint(number)
    job.table.clock.sleep(1)
    job.complete(number)


def _stored(table: TableHandle) -> dict[str, int]:
    keys = to_arrow(table, ["id"])["id"]
    return {"rows": len(keys), "duplicates": len(keys) - len(keys.unique())}


def _ran(title: str, job: LocalJob, **facts: int) -> Run:
    again = sum(event.values["rows"] for event in job.events.records("eager_rows_repeated"))
    facts = {**_stored(job.table), "repeated": again, **facts}
    return Run(title, job.events.records(), facts)


def _struck(where: str, error: BaseException, fault: str) -> list[Run]:
    """Run a checkpoint in which one change of the storage fails, and what comes after it."""
    pieces = _PIECES.tables()
    events = EventLog()
    with _table() as table:
        fires = partial(events.emit, "fault_injected", fault=fault)
        storage = FrailStorage(table.storage, error, fires)
        frail = TableHandle(cast(Storage, storage), table.clock, table.config)
        job = LocalJob(frail, index="bloom", events=events)
        storage.where = where
        with suppress(HoodieError, Dead):
            _checkpoint(job, 1, *pieces)
        visible = _stored(table)["rows"]
        written = len(events.records("file_written"))
        table.clock.sleep(1)
        if isinstance(error, Dead):
            restarted = open_table(table.storage.root, table.clock)
            job = LocalJob(restarted, index="bloom", source=job.source, events=events)
        _checkpoint(job, 2, *pieces[len(job.source.rows) :])
        again = len(events.records("file_written")) - written
        title = fault if storage.fired else "no fault"
        return [_ran(title, job, visible_then=visible, files_again=again)]


@_experiment("the process dies", _MOMENTS, _AFTER, "recovery")
def crash(where: str) -> list[Run]:
    """A crash: before prepare all is rolled back and written again; after it, it is completed."""
    return _struck(where, Dead(), "the process dies")


@_experiment("the disk fails", _MOMENTS, _AFTER, "recovery")
def disk_error(where: str) -> list[Run]:
    """One error of the disk: a failed flush is rolled back, a failed commit is tried again."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return _struck(where, error, "the disk is full, once")


_SPAN = "checkpoints in the one commit: {checkpoints}; {rows} rows"


@_experiment("lost in a row", {str(lost): lost for lost in range(6)}, _SPAN, "recovery")
def lost_notification(lost: int) -> list[Run]:
    """A success notification is lost: the instant stays open and spans the next checkpoint too."""
    with _table() as table:
        job = LocalJob(table, index="bloom")
        for number, rows in enumerate(_PIECES.tables()[:lost], 1):
            job.write(rows)
            job.checkpoint(number)
            job.events.emit("fault_injected", fault=f"notification {number} is lost")
            job.lose(number)
        _checkpoint(job, lost + 1, _PIECES.tables()[lost])
        commits = job.events.records("instant_committed")
        spans = commits[-1].values["checkpoints"]
        return [_ran("100 rows a checkpoint", job, commits=len(commits), checkpoints=spans)]


def _eager(eager: int, operation: str, fault: str, fails: Callable[[LocalJob], None]) -> Run:
    """Run a checkpoint of 300 rows, with eager rows after its barrier, that fails."""
    rows = pa.concat_tables(_PIECES.tables())
    with _table() as table:
        job = LocalJob(table, index="bloom", operation=operation)
        job.write(rows.slice(0, 300))
        job.barrier(1)
        job.write(rows.slice(300, eager))
        job.checkpoint(1)
        job.events.emit("fault_injected", fault=fault)
        fails(job)
        _checkpoint(job, 2)
        return _ran(f"operation {operation}", job)


_TWICE = "{rows} rows stored, {repeated} of them written twice, {duplicates} duplicates"


@_experiment("eager rows", _EAGER, _TWICE, "recovery")
def time_out(eager: int) -> list[Run]:
    """A checkpoint times out: the next one writes the rows after its barrier again."""
    return [_eager(eager, "upsert", "checkpoint 1 times out", lambda job: job.time_out(1))]


@_experiment("eager rows", _EAGER, _TWICE, "lanes")
def failover(eager: int) -> list[Run]:
    """A job fails after a checkpoint: its eager rows come again, which only upsert forgives."""
    names = ("insert", "upsert")
    return [_eager(eager, name, "the job fails", LocalJob.failover) for name in names]
