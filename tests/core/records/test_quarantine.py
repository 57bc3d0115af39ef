"""Rows in quarantine are as durable as their batch: never lost, never doubled, never alone.

One trial: a writer runs six batches with good and bad rows, its n-th operation on the disk fails,
readers read, and a new process settles the table and replays. At any time the snapshot and the
quarantine are those after the same number of batches.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from each_fault import each_fault
from lives import assert_at_rest, ended, opened
from tables import Model, hudi_rows, without_meta
from writes import commit_elsewhere

from hoodie_nb import Table, failpoints
from hoodie_nb.actions.quarantine import COUNT_KEY, FOLDER
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.bad_rows import BadRows
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_as_arrived, saved, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.records.progress import Checkpoint, quarantine_of
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.runs import partitions_of, save_run
from hoodie_nb.rows.sorting import in_order

_KEYS = [pa.field("id", pa.string()), pa.field("p", pa.string()), pa.field("ts", pa.int64())]
GIVEN = pa.schema([*_KEYS, ("n", pa.int64()), ("_hoodie_is_deleted", pa.bool_())])
STORED = pa.schema([*_KEYS, ("n", pa.int32())])
MODES = ("write", "checkpoint", "interval")
INTERVALS = {"interval": 2, "alone": 1}
QUERY = "query-1"
Rows = list[dict[str, object]]


def _row(
    key: str | None, partition: str, ts: int, n: int, deleted: bool = False
) -> dict[str, object]:
    return {"id": key, "p": partition, "ts": ts, "n": n, "_hoodie_is_deleted": deleted}


GOOD: list[Rows] = [
    [_row(f"k{i}", f"par{i % 2}", 10, i) for i in range(4)],
    [_row("k0", "par0", 11, 100), _row("k9", "par2", 1, 9)],
    [],
    [_row("k2", "par0", 12, 0, True), _row("k1", "par1", 5, 101)],
    [_row("k3", "par1", 13, 300)],
    [_row("k7", "par0", 14, 700), _row("k9", "par2", 14, 0, True)],
]
BAD: list[Rows] = [
    [_row(None, "par0", 20, 1), _row("b0", "..", 20, 2)],
    [_row("", "par0", 20, 3)],
    [_row("b1", "par0", 20, 1 << 40), _row(None, "par1", 20, 5, True), _row(None, "x", 1, 6)],
    [_row("b2", "a:b", 20, 7)],
    [],
    [_row("k0", "par0", 99, -(1 << 33))],
]
BATCHES = [[*bad[:1], *good, *bad[1:]] for good, bad in zip(GOOD, BAD, strict=True)]
ALL = Counter(json.dumps(row) for batch in BAD for row in batch)


def _states() -> list[tuple[list[str], Counter[str]]]:
    """Return snapshot and quarantine after each number of batches."""
    model, refused = Model(), Counter[str]()
    found = [(model.snapshot(), refused.copy())]
    for good, bad in zip(GOOD, BAD, strict=True):
        model.upsert(good)
        refused.update(json.dumps(row) for row in bad)
        found.append((model.snapshot(), refused.copy()))
    return found


STATES = _states()


def make(root: Path) -> Path:
    """Create an empty table."""
    Table.create(root, schema=STORED, record_key="id", partition_by="p", ordering="ts")
    return root


def live(table: TableHandle, mode: str, batches: int = len(BATCHES)) -> EventLog:
    """Settle the table, then run the batches that are not in it, as a stream does."""
    job = _Life(table, mode)
    for number in range(batches):
        job.run(number)
        job.checkpointing.notify(number)
    job.checkpointing.complete()
    return job.events


class _Life:
    """A writer process."""

    def __init__(self, table: TableHandle, mode: str) -> None:
        self.table, self.events, self.seals = table, EventLog(), mode in INTERVALS
        coordinator = WriteCoordinator(table, self.events)
        settle(coordinator, sealing=QUERY if self.seals else None)
        intake = Intake(table.config, table.schema, quarantines=True)
        self.checkpointing = Checkpointing(
            coordinator,
            intake,
            Shape(),
            IN_PROCESS,
            commit_on="write" if mode == "write" else "checkpoint",
            interval=Interval(checkpoints=INTERVALS[mode]) if self.seals else None,
        )

    def run(self, number: int) -> None:
        """Run one batch."""
        bad, rows = BadRows(), pa.Table.from_pylist(BATCHES[number], schema=GIVEN)
        keyed = in_order(keyed_as_arrived(rows, self.checkpointing.intake, bad=bad))
        checkpoint = Checkpoint(QUERY, number, f"{number:064d}")
        previous = f"{number - 1:064d}" if number else None
        if self.seals:
            self._seal(keyed, bad, checkpoint, previous)
            return
        has_rows = lambda: bool(keyed.num_rows or bad)  # noqa: E731
        with self.checkpointing.running(checkpoint, previous, has_rows=has_rows) as work:
            if work is not None:
                work.quarantined = saved(bad, work.plan)
                work.statuses = write_in_process(keyed, work.plan, self.events)

    def _seal(
        self, keyed: pa.Table, bad: BadRows, checkpoint: Checkpoint, previous: str | None
    ) -> None:
        storage, intake = self.table.storage, self.checkpointing.intake
        folder = self.checkpointing.sealing(checkpoint, previous)
        if folder is None:
            return
        runs = []
        if keyed.num_rows:
            runs.append(save_run(storage, f"{folder}/0.arrow", keyed, intake.rule))
        quarantine = quarantine_of(intake, folder, self.table.clock, checkpoint)
        assert quarantine is not None
        files = bad.saved(storage, quarantine)
        self.checkpointing.keep(checkpoint, folder, runs, partitions_of(keyed), files)


def quarantined(root: Path) -> Counter[str]:
    """Return the rows in quarantine, counted."""
    return Counter(Table.open(root).quarantine()["row"].to_pylist())


def state(root: Path) -> int:
    """Return how many batches a reader sees, in the snapshot as in the quarantine."""
    found = without_meta(Table.open(root).to_arrow()), quarantined(root)
    assert found in STATES
    return STATES.index(found)


def assert_finished(root: Path) -> None:
    """Each good row is in the table and each bad row in quarantine, once; nothing is left over."""
    assert (without_meta(Table.open(root).to_arrow()), quarantined(root)) == STATES[-1]
    assert hudi_rows(root) == STATES[-1][0]
    table = Table.open(root)
    assert table.history()["quarantined"].sum() == sum(ALL.values())
    names = {path.name.partition("_")[0] for path in (root / FOLDER).iterdir()}
    assert names <= {*table.history()["requested_time"]}
    assert_at_rest(root)


def trials(
    source: Path, act: Callable[[Table], object], how: str, every: int = 1
) -> Iterator[tuple[Path, BaseException | None]]:
    """Let operations fail, of more than thirty."""
    return each_fault(source, act, how, every=every, at_least=30, raises=OSError)


def lives(mode: str) -> Callable[[Table], object]:
    """Return `live` for a table, as `each_fault` takes it."""
    return lambda table: live(table._handle, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("how", "every"), [("before", 11), ("after", 13), ("torn", 17), ("error", 11)]
)
def test_a_failure_at_any_operation_keeps_each_row_once(
    tmp_path: Path, mode: str, how: str, every: int
) -> None:
    """After any failure readers see whole batches, and a new process gives all rows once."""
    made = make(tmp_path / "t")
    for root, _ in trials(made, lives(mode), how, every):
        state(root)
        live(opened(root), mode)
        assert_finished(root)


def test_a_batch_call_applies_good_and_bad_rows_or_none(tmp_path: Path) -> None:
    """`upsert` fails at any operation: both kinds of rows are there, or neither."""
    made, good, bad = make(tmp_path / "t"), Model(), Counter(map(json.dumps, BAD[0]))
    good.upsert(GOOD[0])
    rows, seen = pa.Table.from_pylist(BATCHES[0], schema=GIVEN), set[bool]()

    def upsert(table: Table) -> object:
        return table.upsert(rows, on_bad_record="quarantine")

    for how in ("before", "after", "error"):
        for root, _ in trials(made, upsert, how):
            states = [([], Counter()), (good.snapshot(), bad)]
            assert (without_meta(Table.open(root).to_arrow()), quarantined(root)) in states
            settle(WriteCoordinator(opened(root), EventLog()))
            found = without_meta(Table.open(root).to_arrow()), quarantined(root)
            applied = states.index(found)
            seen.add(bool(applied))
            assert sum(1 for _ in (root / FOLDER).glob("*")) == applied
            assert_at_rest(root)
    assert seen == {False, True}


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("is_open", [False, True], ids=["one", "several"])
def test_a_redone_instant_keeps_its_refused_rows(tmp_path: Path, how: str, is_open: bool) -> None:
    """Another engine commits before the notification; the rewrite may fail at any operation.

    The instant has one checkpoint, of bad rows only, or several, whose notifications are lost.
    """
    made = make(tmp_path / "t")
    job = _Life(opened(made), "checkpoint")
    for number in range(3):
        job.run(number)
        if is_open:
            job.checkpointing.hold_open(number)
    other = pa.Table.from_pylist([{"id": "o", "p": "par0", "ts": 1, "n": 1}], schema=STORED)
    commit_elsewhere(made, other)
    model = Model()
    for batch in (*GOOD[:3], other.to_pylist(), *GOOD[3:]):
        model.upsert(batch)
    for root, _ in trials(made, lives("checkpoint"), how, 5):
        live(opened(root), "checkpoint")
        assert quarantined(root) == ALL
        assert hudi_rows(root) == model.snapshot() == without_meta(Table.open(root).to_arrow())
        assert_at_rest(root)


def test_an_open_instant_collects_refused_rows(tmp_path: Path) -> None:
    """If notifications are lost, the instant of several checkpoints has the rows of all."""
    root = make(tmp_path / "t")
    job = _Life(opened(root), "checkpoint")
    for number in range(4):
        job.run(number)
        job.checkpointing.hold_open(number)
    assert state(root) == 0
    live(opened(root), "checkpoint")
    assert_finished(root)
    assert Table.open(root).history()["quarantined"].tolist()[0] == sum(map(len, BAD[:4]))


def test_an_interval_of_only_bad_rows_is_applied(tmp_path: Path) -> None:
    """A sealed checkpoint without good rows is a commit, not an empty checkpoint."""
    root = make(tmp_path / "t")
    live(opened(root), "alone")
    assert_finished(root)
    assert Table.open(root).history()["quarantined"].tolist() == [len(bad) for bad in BAD]


def test_the_commit_and_the_events_count_refused_rows(tmp_path: Path) -> None:
    """A batch of only bad rows is a commit without files; each commit has its number of rows."""
    root = make(tmp_path / "t")
    events = live(opened(root), "checkpoint")
    handle = opened(root)
    counts = [len(bad) for bad in BAD]
    extra = [handle.commit_metadata(i).extra for i in handle.timeline.completed_commits()]
    assert [int(e.get(COUNT_KEY, 0)) for e in extra] == counts
    assert [e.values["rows"] for e in events.records("rows_quarantined")] == [*filter(None, counts)]
    found = Table.open(root).quarantine()
    assert found["batch_id"].to_pylist() == [n for n, bad in enumerate(BAD) for _ in bad]
    assert {*found["query_id"].to_pylist()} == {QUERY}
    times = [i.requested_time for i in handle.timeline.completed_commits()]
    assert found["commit"].to_pylist() == [times[n] for n, bad in enumerate(BAD) for _ in bad]


def test_upkeep_keeps_the_quarantine_and_a_restore_takes_it_back(tmp_path: Path) -> None:
    """Cleaning, archiving and clustering keep refused rows; a restore takes back its commits'."""
    root = make(tmp_path / "t")
    live(opened(root), "checkpoint")
    few = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3}
    few |= {"hoodie.clean.commits.retained": 1}
    handle = opened(root)
    handle.options = handle.options.updated(few)
    table = Table(handle)
    for number in range(4):
        table.upsert([{"id": "k0", "p": "par0", "ts": 100 + number, "n": number}])
    table.cluster()
    table.clean()
    table.archive()
    assert len(table.history()) < 5 and quarantined(root) == ALL
    assert [str(finding) for finding in table.fsck()] == []
    before = table.history()["requested_time"].iloc[-1]
    table.upsert([{"id": None, "p": "x", "ts": 1, "n": 1}], on_bad_record="quarantine")
    assert sum(quarantined(root).values()) == sum(ALL.values()) + 1
    table.restore(before)
    assert quarantined(root) == ALL


def test_another_engines_rollback_hides_the_rows(tmp_path: Path) -> None:
    """A rollback that does not know the quarantine leaves its file, which no longer counts."""
    root = make(tmp_path / "t")
    live(opened(root), "checkpoint", 2)
    newest = opened(root).timeline.completed_commits()[-1].requested_time
    for path in (root / ".hoodie").glob(f"{newest}.*"):
        path.unlink()
    assert (root / FOLDER / f"{newest}_00000.parquet").exists()
    assert quarantined(root) == STATES[1][1]


@pytest.mark.parametrize("mode", ["checkpoint", "interval"])
def test_damaged_refused_rows_are_not_committed(tmp_path: Path, mode: str) -> None:
    """Staged rows that are damaged or missing stop the commit; nothing is lost silently."""
    for damage in (lambda p: p.write_bytes(bytes(p.stat().st_size)), Path.unlink):
        root = make(tmp_path / f"{damage.__name__}")
        job = _Life(opened(root), mode)
        job.run(0)
        (staged,) = root.glob(".hoodie/.hoodie_nb/staged/*/bad*.parquet")
        damage(staged)
        with pytest.raises(InvalidTable, match="a stream considers its rows written"):
            live(opened(root), mode)
        assert state(root) == 0


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Reading the quarantine names a file that cannot be read; the table itself is not affected."""
    root = make(tmp_path / "t")
    live(opened(root), "checkpoint", 1)
    (path,) = (root / FOLDER).iterdir()
    path.write_bytes(b"PAR1")
    with pytest.raises(InvalidTable, match=path.name):
        Table.open(root).quarantine()
    assert without_meta(Table.open(root).to_arrow()) == STATES[1][0]


POINTS = [
    name
    for name in failpoints.NAMES
    if name.startswith(("coord.", "quarantine.", "writer.data"))
    and name not in ("coord.redo.pre", "coord.reapply.post")
]


def live_at(root: Path, mode: str) -> None:
    """Run all batches in a new process."""
    live(opened(root), mode)


@pytest.mark.kills
@pytest.mark.parametrize("mode", ["checkpoint", "interval"])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_process_keeps_each_row_once(tmp_path: Path, point: str, mode: str) -> None:
    """SIGKILL at a failpoint, also a later time: readers see whole batches, then all rows once."""
    for hit in (1, 3):
        root = make(tmp_path / f"t{hit}")
        code = ended(f"{point}=kill@{hit}", partial(live_at, mode=mode), root)
        reached = code == -signal.SIGKILL
        assert reached or code == 0
        assert (
            reached
            or hit > 1
            or (mode == "checkpoint" and "seal" in point)
            or (mode == "interval" and point == "coord.prepare.pre")
        )
        state(root)
        live(opened(root), mode)
        assert_finished(root)
