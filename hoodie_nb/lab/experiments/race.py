"""The race of the RFC's pipelines: its input, order of runs, what is measured, its figure.

Each run streams the same files, one per checkpoint, into a new table through real Structured
Streaming. All results come from the job's events: the operators report rows, their own seconds,
seconds spent waiting for input, and the seconds that the checkpoint waited for files after the last
row had arrived.

`storage="local"` is the plain disk. `storage="simulated"` is the same disk with the delays of an
object store (latency and bandwidth of each stream; its results are labelled): on few cores,
parallel writers are faster only if writing waits.

`table_types=("copy_on_write", "merge_on_read")` races types of tables, too: the same stream into
a table of each, of version 9. `read_s` is the time of a read of the whole table at the end.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb.buckets.pipelines import PIPELINES, pipeline_named
from hoodie_nb.clock import SystemClock
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import Event, EventLog
from hoodie_nb.evidence.handle import TableHandle, create_table
from hoodie_nb.lab.experiments import flights
from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.stores.slow_storage import Link, SlowStorage
from hoodie_nb.local.batch import write_arrow
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.stream.job import Job
from hoodie_nb.stream.settings import StreamSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession


SIMULATED = Link(latency_s=0.02, bytes_per_s=2_000_000)
_KEY = ["_hoodie_partition_path", "_hoodie_record_key"]


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated input: `skew` is the share of rows in the first of the partitions."""

    rows: int = 200_000
    batches: int = 2
    partitions: int = 8
    skew: float = 0.0
    update_share: float = 0.3
    record_bytes: int = 100
    seed: int = 0

    @property
    def config(self) -> TableConfig:
        """Return the configuration of the table for these rows."""
        fields = [("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())]
        schema = pa.schema([*fields, ("payload", pa.string())])
        return TableConfig("race", ("id",), ("part",), "ts", merge_mode="event_time", schema=schema)

    def tables(self) -> list[pa.Table]:
        """Return the batches; an updated key stays in its partition."""
        random = np.random.default_rng(self.seed)
        size = self.rows // self.batches
        made = []
        known = 0
        for number in range(self.batches):
            old = min(known, int(size * self.update_share)) if number else 0
            ids = np.r_[random.choice(known, old, replace=False), known + np.arange(size - old)]
            known += size - old
            made.append(self._table(ids, number, random))
        return made

    def _table(self, ids: Any, number: int, random: np.random.Generator) -> pa.Table:  # noqa: ANN401
        hot = (ids * 2_654_435_761 % 1_000_003) / 1_000_003 < self.skew
        part = np.where(hot, 0, ids % self.partitions)
        text = random.bytes(len(ids) * self.record_bytes // 2 + 1).hex().encode()
        ends = np.arange(len(ids) + 1, dtype=np.int32) * self.record_bytes
        payload = pa.StringArray.from_buffers(len(ids), pa.py_buffer(ends), pa.py_buffer(text))
        columns = {
            "id": pa.array(np.char.mod("k%010d", ids).astype(object), pa.string()),
            "part": pa.array(np.char.mod("p%03d", part).astype(object), pa.string()),
            "ts": pa.array(np.full(len(ids), number, dtype=np.int64)),
            "payload": payload,
        }
        return pa.table(columns)


@dataclass(frozen=True, slots=True, repr=False)
class RaceResult:
    """The result: `frame` has one row per run (units are in the column names).

    `events` are those of the last run of each pipeline: `hn.Compare` shows two side by side. With
    several types of tables the pipelines are named "step3 copy_on_write", and so on.
    """

    frame: pd.DataFrame
    storage: str
    events: dict[str, list[Event]] = field(default_factory=dict)

    def medians(self) -> pd.DataFrame:
        """Return the median of every measurement by pipeline, in the RFC's order."""
        found = self.frame.drop(columns="repeat").groupby("pipeline", sort=False).median()
        order = list(PIPELINES)
        return found.loc[sorted(found.index, key=lambda name: order.index(name.split()[0]))]

    def __repr__(self) -> str:
        return f"Race on {self.storage} storage, medians:\n{self.medians()}"

    def _repr_html_(self) -> str:
        table = self.medians().round(2).to_html(border=0)
        return f"<b>Race on {self.storage} storage, medians</b>{table}"

    def figure(self) -> Figure:
        """Return bar charts of the measurements in which the pipelines differ."""
        from matplotlib.figure import Figure

        shown = {
            "records_per_s": "rows per second",
            "write_s": "longest writer, seconds",
            "blocked_s": "waiting for files, seconds",
            "peak_buffer_mb": "peak buffer, MB",
        }
        medians = self.medians()
        figure = Figure(figsize=(11, 5.6), layout="constrained")
        for axes, (column, label) in zip(figure.subplots(2, 2).flat, shown.items(), strict=True):
            labels = [name.replace(" ", "\n") for name in medians.index]
            bars = axes.bar(labels, medians[column], color=palette.BLUE)
            axes.bar_label(bars, map(svg.short, medians[column]), fontsize=palette.NOTE_PX)
            axes.set_ylabel(label, fontsize=palette.NOTE_PX)
            axes.tick_params(labelsize=palette.NOTE_PX)
            axes.margins(y=0.15)
        best = medians["records_per_s"].idxmax()
        figure.suptitle(f"{best} is fastest here ({self.storage} storage, medians)", fontsize=14)
        return figure


@dataclass(slots=True)
class _Course:
    """One input on disk, and the folder for the runs."""

    spark: SparkSession
    folder: Path
    config: TableConfig
    link: Link | None
    options: dict[str, object]
    existing: pa.Table | None
    write_tasks: int | None
    index: str | None
    events: dict[str, list[Event]] = field(default_factory=dict)

    def run(self, name: str, number: int) -> dict[str, float]:
        """Stream the input through a pipeline into a new table and return the measurements."""
        here = self.folder / f"{name}-{number}"
        pipeline, _, kind = name.partition(" ")
        config = self.config
        if kind:
            config = replace(config, version="9", merge_on_read=kind == "merge_on_read")
        made = create_table(here / "table", config, options=self.options)
        storage = made.storage if self.link is None else SlowStorage(made.storage, self.link)
        table = TableHandle(storage, SystemClock(), made.config)
        if self.existing is not None:
            write_arrow(made, self.existing, "upsert", EventLog())
        settings = StreamSettings(
            str(here / "checkpoint"),
            trigger={"availableNow": True},
            pipeline=pipeline,
            index=self.index or pipeline_named(pipeline).index,
            write_tasks=self.write_tasks,
        )
        job = Job(stream_input(self.spark, self.folder / "input"), table, settings)
        job.wait()
        self.events[name] = job.events.records()
        return measurements(job.events, made)


_BOARD = TableConfig(
    "race",
    ("flight_id",),
    ("flight_date",),
    "event_time",
    merge_mode="event_time",
    schema=flights.SCHEMA,
)


def race(
    pipelines: Sequence[str] = ("current", "step1", "step2", "step3"),
    input: Generated | None = None,
    storage: str | Link = "local",
    repeats: int = 3,
    *,
    warm_up: bool = True,
    spark: SparkSession | None = None,
    days: int = 4,
    existing: bool = False,
    write_tasks: int | None = None,
    index: str | None = None,
    options: dict[str, object] | None = None,
    table_types: Sequence[str] = (),
) -> RaceResult:
    """Race pipelines on flights (`days` of them) or a generated input.

    `warm_up`: a first run is not counted; `existing`: another job writes the input into the table
    first; `options` are the table's; `table_types`: each pipeline writes a table of each type
    (none given: copy-on-write).
    """
    from hoodie_nb.api.session import spark as make_session

    runs = _runs(pipelines, table_types, input)
    link = _link(storage)
    tables = input.tables() if input else _flight_batches(days)
    rows = []
    with tempfile.TemporaryDirectory(prefix="hoodie-race-") as folder:
        course = _Course(
            spark or make_session(),
            Path(folder),
            input.config if input else _BOARD,
            link,
            options or {},
            pa.concat_tables(tables) if existing else None,
            write_tasks,
            index,
        )
        write_input(course.folder / "input", tables)
        if warm_up:
            course.run(runs[-1], -1)  # warms Spark's and Python's workers; not counted
        for repeat in range(repeats):
            for name in runs:
                rows.append({"pipeline": name, "repeat": repeat, **course.run(name, repeat)})
    label = "local" if link is None else "simulated"
    return RaceResult(pd.DataFrame(rows), label, course.events)


def _runs(
    pipelines: Sequence[str], table_types: Sequence[str], input: Generated | None
) -> list[str]:
    """Return the names of the runs, or refuse what cannot be raced."""
    for name in pipelines:
        pipeline_named(name)
    for kind in table_types:
        if kind not in ("copy_on_write", "merge_on_read"):
            raise InvalidConfig(
                f"table_types: {kind!r}: choose 'copy_on_write' and 'merge_on_read'"
            )
    if "merge_on_read" in table_types:
        if input is None:
            raise InvalidConfig(
                "flights have no integers for ordering, which a merge-on-read table needs: choose "
                "input=Generated(...)"
            )
        if "current" in pipelines:
            raise InvalidConfig(
                "the pipeline 'current' writes no merge-on-read tables: name others, as 'step3'"
            )
    return [f"{name} {kind}".strip() for name in pipelines for kind in table_types or [""]]


def _link(storage: str | Link) -> Link | None:
    if isinstance(storage, Link):
        return storage
    if storage not in ("local", "simulated"):
        raise InvalidConfig(f"storage={storage!r}: choose 'local', 'simulated' or a Link")
    return SIMULATED if storage == "simulated" else None


def _flight_batches(days: int) -> list[pa.Table]:
    events = flights.event_table(days=days)
    return [events.slice(start, 5000) for start in range(0, events.num_rows, 5000)]


def write_input(folder: Path, tables: list[pa.Table]) -> None:
    """Write each table as one Parquet file, in the order in which a stream reads them."""
    folder.mkdir()
    for number, table in enumerate(tables):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table, path, row_group_size=16_384)
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


def stream_input(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the stream over the files of `write_input`, one per trigger."""
    reader = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder))


def measurements(events: EventLog, table: TableHandle) -> dict[str, float]:
    """Return the measurements of one run from its events and its table."""

    def records(kind: str) -> pd.DataFrame:
        return pd.DataFrame([dict(event.values) for event in events.records(kind)])

    ran = records("operator_ran")
    commits = records("instant_committed")
    seconds = ran.groupby("operator")["seconds"].sum()
    working = max(seconds.sum(), 1e-9)
    waiting = ran["waiting_seconds"].sum()
    writers = ran[ran["operator"] == "BucketWriter"]
    task_rows = writers.groupby("task")["rows"].sum()
    total = records("batch_ended")["seconds"].sum()
    tasks = records("job_started")["tasks"][0]
    slices = list(table.file_groups())
    began = time.perf_counter()
    snapshot = to_arrow(table)
    read_s = time.perf_counter() - began
    distinct = snapshot.group_by(_KEY).aggregate([]).num_rows
    written = commits["bytes"].sum() + writers["spilled_bytes"].sum()
    return {
        "records_per_s": task_rows.sum() / total,
        "seconds": total,
        "serial_s": seconds.get("InstantGenerator", 0.0),
        "serial_share": seconds.get("InstantGenerator", 0.0) / working,
        "assign_s": seconds.get("FileIdAssigner", 0.0),
        "write_s": writers["seconds"].max(),
        "blocked_s": writers["blocked_seconds"].max(),
        "waiting_share": waiting / (waiting + working),
        "skew": task_rows.max() * tasks / task_rows.sum(),  # tasks without rows count too
        "commit_s": commits["seconds"].mean(),
        "peak_buffer_mb": writers["peak_bytes"].max() / 2**20,
        "amplification": written / sum(each.total_bytes for each in slices),
        "written_mb": written / 1e6,
        "logs": sum(len(each.logs) for each in slices),
        "read_s": read_s,
        "rows": snapshot.num_rows,
        "duplicates": snapshot.num_rows - distinct,
    }
