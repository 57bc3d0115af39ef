"""What the histories are played with: processes that stop where they are told, streams, checks."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lives import processes
from tables import Model, hudi_rows, kind_of, pending_names, schema_of, without_meta
from test_ahead import STORED, behind, place, row
from writers.histories.broken import BROKEN

from hoodie_nb import Table, failpoints
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.clock import ManualClock
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import HoodieError
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.local.ahead import Ahead, Luck
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.lock import writing
from hoodie_nb.records.prepared import FOLDER as PREPARED
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.runs import partitions_of, save_run
from hoodie_nb.storage.storage import STAGED

Row = dict[str, Any]
Stop = Callable[[], None]
Act = Callable[[Path, Stop], object]
WAIT_S = 50
SMALL = ("upsert", [row("b0", "small", 10)])  # what `Stage.have_slices` leaves


class Player:
    """Another process that acts on a table; `at` is the failpoint at which it stops once."""

    def __init__(self, root: Path, act: Act, at: str, broken: Sequence[str]) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self.process = processes(__name__).Process(
            target=_play, args=(theirs, root, act, at, [*broken])
        )
        self.process.start()
        theirs.close()

    def hear(self) -> str:
        """Return what it says next: that it "stops", "waits" for the table, is "done", or why."""
        assert self._pipe.poll(60), "stuck"
        try:
            return str(self._pipe.recv())
        except EOFError:
            return "dead"

    def stops(self) -> None:
        """Wait until it stops where it was told to."""
        said = self.hear()
        assert said == "stops", said

    def go_on(self) -> None:
        """Let it go on after a stop."""
        self._pipe.send("")

    def waits(self) -> bool:
        """Wait until it waits for the table, or is done; return whether it waits."""
        said = self.hear()
        assert said in ("waits", "done"), said
        return said == "waits"

    def ends(self, said: str = "waits") -> None:
        """Wait until it is done; it may wait for the table before."""
        while said == "waits":
            said = self.hear()
        assert said == "done", said

    def kill(self) -> None:
        """End it as the kernel does."""
        self.process.kill()
        self.process.join()


class _Waits(logging.Handler):
    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.INFO)
        self.pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self.pipe.send("waits")


def _play(pipe: Connection, root: Path, act: Act, at: str, broken: list[str]) -> None:
    def stop() -> None:
        pipe.send("stops")
        pipe.recv()

    log = logging.getLogger("hoodie_nb.lock")
    log.setLevel(logging.INFO)
    log.addHandler(_Waits(pipe))
    patch = pytest.MonkeyPatch()  # until the process ends
    for name in broken:
        BROKEN[name](patch)
    if at:
        failpoints.call(at, stop, 1)
    try:
        act(root, stop)
        pipe.send("done")
    except (HoodieError, OSError, AssertionError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


class Stream:
    """A stream's checkpoints, without Spark; what it has in memory stays.

    Its caller has the turn, or is alone. With an `interval` it seals its checkpoints.
    """

    def __init__(
        self,
        table: TableHandle,
        query: str = "a",
        *,
        operation: str = "upsert",
        interval: Interval | None = None,
    ) -> None:
        self.query = query
        self.events = EventLog()
        self.coordinator = WriteCoordinator(table, self.events)
        settle(self.coordinator, sealing=query if interval else None)
        given = table.schema
        self.protocol = Checkpointing(
            self.coordinator,
            intake_of(self.coordinator, operation, query),
            Shape(),
            IN_PROCESS,
            interval=interval,
            given=given,
        )
        self._given = given
        self._interval = interval

    def _mark(self, number: int) -> str:
        return f"{self.query}{number}" * 16

    def run(self, number: int, rows: list[Row]) -> None:
        """Prepare a checkpoint, or seal it."""
        protocol = self.protocol
        checkpoint = Checkpoint(self.query, number, self._mark(number))
        before = self._mark(number - 1) if number else None
        data = pa.Table.from_pylist(rows, schema=self._given)
        if self._interval is not None:
            folder = protocol.sealing(checkpoint, before)
            if folder is not None:
                keyed = keyed_in_order(data, protocol.intake)
                path = f"{folder}/0.arrow"
                runs = [save_run(protocol.table.storage, path, keyed, protocol.intake.rule)]
                protocol.keep(checkpoint, folder, runs, partitions_of(keyed))
            return
        with protocol.running(checkpoint, before, has_rows=lambda: bool(rows)) as work:
            if work is not None:
                keyed = keyed_in_order(data, protocol.intake)
                work.statuses = write_in_process(keyed, work.plan, self.events)

    def complete(self, *, stale: bool = True) -> None:
        """Commit what is prepared or sealed; if `stale`, after a turn of others."""
        if stale:
            self.protocol.recover()
        self.protocol.complete()


class Stage:
    """One history: its table, its processes, and the rules that are broken in all of them."""

    def __init__(self, root: Path, broken: str, request: pytest.FixtureRequest) -> None:
        self.root = root
        self.ordering: Any = "ts"
        self.broken = broken.split()
        self.request = request
        self.patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        self.players: list[Player] = []

    def break_rules(self) -> None:
        """Take the rules out, in this process."""
        for name in self.broken:
            BROKEN[name](self.patch)

    def make(
        self,
        kind: int | str = 9,
        rows: list[Row] = STORED,
        *,
        options: dict[str, object] | None = None,
        **given: object,
    ) -> Table:
        """Create the table with a batch, by a clock that is behind; then break the rules."""
        keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", **given}
        self.ordering = keys["ordering"]
        Table.create(self.root, schema=schema_of(), **keys, **kind_of(kind, **(options or {})))
        table = behind(self.root)
        if rows:
            table.upsert(rows)
        self.break_rules()
        return table

    @property
    def table(self) -> Table:
        """The table, opened now."""
        return Table.open(self.root)

    def ahead_by_an_hour(self) -> Table:
        """Open the table with a clock whose instants are later than all others."""
        clock = ManualClock(self.table._handle.clock.now_ms() + 3_600_000)
        return Table(open_table(str(self.root), clock))

    def stream(self, query: str = "a", **given: Any) -> Stream:
        """Start a stream, which recovers the table."""
        return Stream(open_table(str(self.root)), query, **given)

    def ahead(
        self,
        others: Callable[[], object],
        rows: list[Row],
        operation: str = "upsert",
        *,
        at: str = "",
    ) -> bool:
        """Write a batch that waits while others have the table; whether it was written ahead.

        They act once it is staged, or at a failpoint on the way.
        """
        batch = Ahead(open_table(str(self.root)), rows, operation, EventLog(), Luck())
        storage = open_table(str(self.root)).storage
        with closing(batch):
            with writing(storage), place(storage) as note:  # the other one's turn
                if at:
                    failpoints.call(at, others, 1)
                batch.write(note)
                failpoints.arm("")
                if not at:
                    others()
            with writing(storage):
                done = batch.commit()
                if done is None:
                    getattr(self.table, operation)(rows)
        return done is not None

    def have_slices(self) -> None:
        """Write slices that a clean can delete."""
        for ts in (8, 9, 10):
            self.table.upsert([row("b0", "small", ts)])

    def overtakes(self, rows: list[Row]) -> None:
        """Commit rows later than all that is noted: after a clean by a clock that is ahead."""
        other = self.ahead_by_an_hour()
        assert other.clean(commits=1).files
        other.upsert(rows)

    def play(self, act: Act, at: str = "") -> Player:
        """Start a process that acts on the table."""
        player = Player(self.root, act, at, self.broken)
        self.players.append(player)
        return player

    def between(self, first: Player, second: Player) -> None:
        """Let a second process act while the first one is stopped; it waits, if it has to."""
        waits = second.waits()
        first.go_on()
        first.ends()
        if waits:
            second.ends()

    def sees(self, *batches: tuple[str, list[Row]], start: list[Row] = STORED) -> None:
        """Readers see a dict that had these batches after the stored rows."""
        model = Model(ordering=self.ordering)
        model.upsert(start)
        for operation, rows in batches:
            getattr(model, operation)(rows)
        found = without_meta(self.table.to_arrow())
        assert found == model.snapshot(), f"other rows: {found}, not {model.snapshot()}"
        theirs = hudi_rows(self.root)
        assert theirs == model.snapshot(), f"other rows in hudi-rs: {theirs}"

    def ends(self, *batches: tuple[str, list[Row]], start: list[Row] = STORED) -> None:
        """All processes end; the rows are right, and nothing is left over."""
        for player in self.players:
            player.kill()
        self.table.clean()  # recovers
        self.sees(*batches, start=start)
        left = [n for f in (STAGED, PREPARED) for n in self.table._handle.storage.file_names(f)]
        folders = [entry.name for entry in self.table._handle.storage.list_folder(STAGED)]
        assert (left, folders, pending_names(self.root)) == ([], [], []), "left over"
        assert [str(finding) for finding in self.table.fsck()] == []


@contextmanager
def staged(root: Path, broken: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Set up a history; its processes end with it."""
    stage = Stage(root, broken, request)
    try:
        yield stage
    finally:
        for player in stage.players:
            player.kill()


def history(**broken: str) -> Callable[[Callable[[Stage], None]], Callable[..., None]]:
    """Make a test of a history: it holds, and fails without a rule.

    Keywords are the rules, several joined by `__`; the values are patterns of how it fails then.
    """

    def decorate(act: Callable[[Stage], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("broken_rule", ["", *broken])
        def test(tmp_path: Path, broken_rule: str, request: pytest.FixtureRequest) -> None:
            names = broken_rule.replace("__", " ")
            with staged(tmp_path / "t", names, request) as stage:
                if not broken_rule:
                    act(stage)
                    return
                failed = (AssertionError, HoodieError, OSError, pytest.fail.Exception)
                with pytest.raises(failed, match=broken[broken_rule]):
                    act(stage)

        test.__name__, test.__doc__, test.__module__ = act.__name__, act.__doc__, act.__module__
        return test

    return decorate


def write(root: Path, stop: Stop, *, operation: str, rows: list[Row]) -> None:
    """An act: write a batch, for which the process waits."""
    getattr(Table.open(root), operation)(rows, wait=WAIT_S)
