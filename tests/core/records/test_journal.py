"""Sealed and prepared checkpoints: applied once, in order of arrival, or refused if damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from core.writes import write_uncommitted
from faults import Crash, Fault, FaultyStorage
from tables import tree

from hoodie_nb import Table, failpoints
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.clock import ManualClock
from hoodie_nb.commit.admission import intake_of
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition import properties
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import ConcurrentWriter, InvalidInput, InvalidTable, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, create_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.merge_rule import WholeRow
from hoodie_nb.rows.runs import save_run

SCHEMA = pa.schema(
    [("id", pa.string()), ("part", pa.string()), ("ts", pa.int64()), ("v", pa.int64())]
)
CONFIG = TableConfig("t", ("id",), ("part",), "ts", merge_mode="event_time", schema=SCHEMA)
RULE = WholeRow("ts")
WIDER = SCHEMA.append(pa.field("note", pa.string()))
OURS = ".hoodie/.hoodie_nb"


def rows(*given: tuple[Any, ...]) -> pa.Table:
    """Return rows (id, ts, v, deleted) of one partition."""
    made = [(i, "p", ts, v, deleted) for i, ts, v, deleted in given]
    columns = list(zip(*made, strict=True))
    names = [*SCHEMA.names, "_hoodie_is_deleted"]
    return pa.Table.from_arrays([pa.array(c) for c in columns], names=names)


class Life:
    """One table, and the processes that write it one after the other from the same source."""

    def __init__(self, path: Path, interval: Interval | None) -> None:
        self.path, self.interval, self.clock = path, interval, ManualClock()
        create_table(path, CONFIG, clock=self.clock)
        self.source, self.number, self.keeps_seals = Source(), 0, False
        self.job = self.start()

    def handle(self) -> TableHandle:
        """Return the table as a new process sees it."""
        storage = FaultyStorage(self.path)
        return TableHandle(storage, self.clock, properties.load(storage))

    def start(self) -> LocalJob:
        """Continue in a new process."""
        failpoints.arm("")
        self.job = LocalJob(
            self.handle(),
            index="bloom+state",
            source=self.source,
            interval=self.interval,
            keeps_seals=self.keeps_seals,
        )
        return self.job

    def checkpoint(self, *given: tuple[Any, ...]) -> None:
        """Write rows and end a checkpoint, without its success notification."""
        if given:
            self.job.write(rows(*given))
        self.number += 1
        self.job.checkpoint(self.number)
        self.source.succeeded = len(self.source.sealed)

    def die(self, failpoint: str, action: Callable[[], object]) -> None:
        """Run an action whose process dies at a failpoint."""

        def dies() -> None:
            self.job.table.storage.dead = True
            raise Crash(failpoint)

        failpoints.call(failpoint, dies)
        with contextlib.suppress(Crash):
            action()
        failpoints.arm("")
        assert self.job.table.storage.dead, f"{failpoint} was never reached"

    def rows_by_key(self) -> dict[str, tuple[int, int]]:
        """Return ordering value and value of each key."""
        read = to_arrow(self.handle()).to_pylist()
        assert len({r["id"] for r in read}) == len(read)
        return {r["id"]: (r["ts"], r["v"]) for r in read}


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Callable[[Interval | None], Life]]:
    """A function that creates a `Life`."""
    yield lambda interval=None: Life(tmp_path / "table", interval)
    failpoints.arm("")


# --- membership and order -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "failpoint", ["coord.progress.post", "coord.unseal.post", "coord.sweep.post"]
)
def test_a_long_interval_is_applied_once(life, failpoint):
    """After a kill right after their commit, 131 sealed checkpoints are not applied again."""
    one = life(Interval(checkpoints=1000))
    one.checkpoint(("back", 1, 1, False), ("kept", 1, 1, False))
    one.checkpoint(("back", 2, 0, True))
    for number in range(129):
        one.checkpoint(("kept", 1, number + 2, False))
    one.die(failpoint, one.job.checkpointing.complete)
    assert one.rows_by_key() == {"kept": (1, 130)}
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"kept": (1, 130)}
    assert fsck(one.path) == []


@pytest.mark.parametrize("step", range(1, 16))
def test_seals_that_are_half_removed_are_not_applied_again(life, step):
    """After a crash at any step after the commit the next start does not apply the seals again."""
    one = life(Interval(checkpoints=1000))
    one.checkpoint(("back", 1, 1, False), ("kept", 1, 1, False))
    one.checkpoint(("back", 2, 0, True))
    one.checkpoint(("kept", 1, 2, False))
    storage = one.job.table.storage

    def soon() -> None:
        storage.fault = Fault(storage.steps + step, "before")

    failpoints.call("coord.progress.post", soon)
    with contextlib.suppress(Crash):
        one.job.checkpointing.complete()
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"kept": (1, 2)}
    assert list(one.path.glob(f"{OURS}/sealed/*")) == []


def test_seals_are_applied_in_order_of_arrival(life):
    """A batch of a restored checkpoint folder arrives last and wins against larger numbers."""
    one = life(Interval(checkpoints=1000))
    checkpointing, storage = one.job.checkpointing, one.job.table.storage
    for batch_id, value in ((0, 1), (1, 2), (2, 3), (1, 4)):  # the last one after a restore
        keyed = keyed_in_order(rows(("a", 1, value, False)), one.job.intake)
        folder = checkpointing.new_folder()
        run = save_run(storage, f"{folder}/0.arrow", keyed, WholeRow("ts"))
        checkpointing.keep(Checkpoint("q", batch_id, f"{value:064x}"), folder, [run], ["p"])
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 4)}


def test_a_restored_checkpoint_folder_in_an_interval_arrives_last(life):
    """After a restart that keeps the seals, rows of a restored folder are newer than all seals."""
    one = life(Interval(checkpoints=1000))
    one.keeps_seals = True
    one.start()
    one.checkpoint(("a", 1, 1, False))
    one.checkpoint(("b", 1, 1, False))
    one.checkpoint(("a", 1, 2, False))
    one.source.take_back(1)  # the folder of an hour ago
    one.start()
    one.checkpoint(("a", 1, 3, False))
    assert one.rows_by_key() == {}
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 3), "b": (1, 1)}


def test_an_interval_ends_though_the_clock_is_set_back(life):
    """An interval of 30 seconds ends after 30 seconds of running time, for any clock."""
    one = life(Interval(duration_ms=30_000))
    one.checkpoint(("a", 1, 1, False))
    assert not one.job.checkpointing.due()
    one.clock.ms -= 3_600_000
    assert not one.job.checkpointing.due()
    for _ in range(29):
        one.clock.ms += 1000
        assert not one.job.checkpointing.due()
    one.clock.ms += 1000
    assert one.job.checkpointing.due()


# --- damage -------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    """Remove the second half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGES = {"flipped": flip, "cut": cut, "missing": Path.unlink}
SEALED = {"run": "staged/*/*.arrow", "record": "sealed/*.json"}
PREPARED = {
    "base file": "staged/*/*.staged",
    "deletes": "staged/*/*-deletes",
    "record": "prepared/*.json",
}


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", SEALED)
def test_a_damaged_seal_is_refused(life, kind, damage, which):
    """A damaged or lost sealed run or record is refused, with its name and a fix."""
    one = life(Interval(checkpoints=1000))
    for number in range(3):
        one.checkpoint((f"k{number}", 1, number, False), ("same", number, number, False))
    path = sorted(one.path.glob(f"{OURS}/{SEALED[kind]}"))[which]
    if kind == "run":  # staged folders have random names
        assert len(list(one.path.glob(f"{OURS}/{SEALED[kind]}"))) == 3
    whole = path.read_bytes()
    DAMAGES[damage](path)
    with pytest.raises(InvalidTable, match=r"[Rr]estore") as caught:
        one.start()
    if not (kind == "record" and damage == "missing"):
        assert path.name in str(caught.value)
    assert one.rows_by_key() == {}
    path.write_bytes(whole)
    one.start()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"k0": (1, 0), "k1": (1, 1), "k2": (1, 2), "same": (2, 2)}


@pytest.mark.parametrize("later", [False, True], ids=["last", "followed"])
@pytest.mark.parametrize("foreign", [False, True], ids=["alone", "foreign commit"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_seal_of_a_prepared_instant_loses_no_row(life, lost, foreign, later):
    """The prepared instant has its rows, or the error names it and everything stays until then."""
    one = life(Interval(checkpoints=1000))
    one.checkpoint(("a", 1, 0, False))
    one.checkpoint(("b", 1, 1, False))
    sealed = sorted(one.path.glob(f"{OURS}/{SEALED['record']}"))
    if later:
        failpoints.call("coord.prepare.post", lambda: one.checkpoint(("c", 1, 2, False)))
    one.die("coord.commit.pre", one.job.checkpointing.complete)
    content = sealed[lost].read_bytes()
    sealed[lost].unlink()
    expected = {"a": (1, 0), "b": (1, 1)} | ({"c": (1, 2)} if later else {})
    if foreign:
        upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 7})
        expected["f"] = (1, 7)
    if foreign or later or lost == 0:
        for _ in range(2):
            with pytest.raises(InvalidTable, match=r"is missing.*Restore"):
                one.start()
        assert one.rows_by_key().keys() <= {"f"}
        sealed[lost].write_bytes(content)
    for _ in range(2):  # the second start deletes the files that nothing names any more
        one.start()
    assert one.rows_by_key() == expected
    assert fsck(one.path) == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", PREPARED)
@pytest.mark.parametrize("redone", [False, True])
def test_a_damaged_prepared_checkpoint_is_refused(life, kind, damage, redone):
    """The files of a prepared instant are verified before they are published or written again."""
    one = life()
    one.checkpoint(("a", 1, 1, False), ("gone", 1, 1, False))
    one.job.complete(one.number)
    one.checkpoint(("b", 2, 2, False), ("gone", 2, 0, True))
    if redone:
        upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 7})
    if kind == "deletes" and not redone:
        pytest.skip("only a redo reads them")
    before = one.rows_by_key()
    (path,) = one.path.glob(f"{OURS}/{PREPARED[kind]}")
    whole = path.read_bytes()
    DAMAGES[damage](path)
    with pytest.raises(InvalidTable, match=r"[Rr]estore"):
        one.start()
    assert one.rows_by_key() == before
    if kind == "record" and damage == "missing":
        return  # its files are gone with it: the source has to be read again
    path.write_bytes(whole)
    one.start()
    assert one.rows_by_key() == {"a": (1, 1), "b": (2, 2), **({"f": (1, 7)} if redone else {})}
    assert fsck(one.path) == []


def test_damaged_progress_is_refused(life):
    """A progress record with a flipped bit is refused."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    one.job.complete(one.number)
    (path,) = one.path.glob(f"{OURS}/progress/*.json")
    content = path.read_bytes()
    at = content.index(b"[[0") + 2
    path.write_bytes(content[:at] + b"1" + content[at + 1 :])
    with pytest.raises(InvalidTable, match=path.name):
        one.start()
    path.unlink()  # the fix that the error names
    one.start()
    one.checkpoint(("b", 1, 1, False))
    one.job.complete(one.number)
    assert one.rows_by_key() == {"a": (1, 1), "b": (1, 1)}


def test_nothing_is_built_on_an_open_instant_of_another_base(life):
    """Another engine commits just before the next checkpoint of an open instant is planned."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    (record,) = one.job.coordinator.prepared.all()
    upsert_elsewhere(one, SCHEMA, {"id": "a", "part": "p", "ts": 2, "v": 2})
    with pytest.raises(WriteFailed, match="another writer"):
        write_uncommitted(
            one.job.coordinator, one.job.intake, lambda plan: [], Shape(), None, [record]
        )
    one.job.complete(one.number)
    assert one.rows_by_key() == {"a": (2, 2)}
    assert fsck(one.path) == []


def test_an_empty_checkpoint_joins_no_instant_that_another_writer_has_completed(life):
    """A batch write has written it again, so the next checkpoint without rows stands alone."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 7})
    Table(one.handle()).upsert(rows(("b", 1, 1, False)))
    one.checkpoint()
    assert list(one.path.glob(f"{OURS}/prepared/*")) == []
    one.start()
    assert one.rows_by_key() == {"a": (1, 1), "b": (1, 1), "f": (1, 7)}


# --- what other engines do to the timeline ------------------------------------------------------


def forget(one: Life, *instants: str) -> None:
    """Remove instants from the timeline, like a restore or the archiving of another engine."""
    for file in list((one.path / ".hoodie").iterdir()):
        if file.is_file() and file.name.split(".")[0] in instants:
            file.unlink()


def committed(one: Life) -> list[str]:
    """Return the completed instants."""
    return [i.requested_time for i in one.handle().timeline.completed_commits()]


@pytest.mark.parametrize("then", ["empty", "sealed", "prepared"])
def test_a_checkpoint_removed_by_a_restore_is_detected(life, then):
    """If the rows of batch N are gone, everything after N+1 is refused, even if N+1 exists."""
    one = life(Interval(checkpoints=1000) if then == "sealed" else None)
    for number in range(2):
        one.checkpoint((f"k{number}", 1, 1, False))
        one.job.checkpointing.complete()
    one.checkpoint(*([] if then == "empty" else [("k2", 1, 1, False)]))
    forget(one, committed(one)[-1])
    with pytest.raises(InvalidTable, match="is not in the table"):
        one.start()


def test_a_batch_whose_commit_a_restore_removed_runs_again(life):
    """If table and checkpoint folder are restored to the same moment, the batch is not a replay."""
    one = life()
    for number in range(3):
        one.checkpoint((f"k{number}", 1, 1, False))
        one.job.complete(one.number)
    forget(one, committed(one)[-1])
    one.source.succeeded = 2
    one.start()
    one.checkpoint()
    one.job.checkpointing.complete()
    assert sorted(one.rows_by_key()) == ["k0", "k1", "k2"]


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)])
def test_an_instant_that_was_archived_is_not_applied_again(life, interval):
    """We crash after the completed file; before the next start another engine archives it."""
    one = life(interval)
    one.checkpoint(("base", 1, 1, False))
    one.job.checkpointing.complete()
    one.checkpoint(("a", 1, 1, False))
    one.die("coord.commit.post", one.job.checkpointing.complete)
    archived = committed(one)
    upsert_elsewhere(one, SCHEMA, {"id": "a", "part": "p", "ts": 1, "v": 2})
    forget(one, *archived)
    one.start()
    assert one.rows_by_key() == {"base": (1, 1), "a": (1, 2)}
    assert list(one.path.glob(f"{OURS}/prepared/*")) == []


def test_another_engines_live_instant_is_not_undone_with_ours(life):
    """Our write fails just after another engine has started one: only ours is rolled back."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    one.job.complete(one.number)
    theirs = "20260101000000500.commit.requested"

    def begin_and_fail() -> None:
        (one.path / ".hoodie" / theirs).touch()
        raise OSError(28, "No space left on device")

    failpoints.call("writer.start", begin_and_fail)
    with pytest.raises(WriteFailed):
        one.checkpoint(("b", 1, 1, False))
    failpoints.arm("")
    pending = [i.requested_time for i in one.handle().timeline.pending()]
    assert pending == [theirs.split(".")[0]]


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)])
def test_a_plan_of_another_engine_stops_the_commit(life, interval):
    """Clustering starts between prepare and commit: our rows would be lost with its groups."""
    one = life(interval)
    one.checkpoint(("a", 1, 1, False))
    plan = one.path / ".hoodie/20260101000000700.replacecommit.requested"
    plan.write_bytes(b"what to cluster")  # an empty one is that of an overwrite
    with pytest.raises(ConcurrentWriter, match="another engine's plan"):
        one.job.checkpointing.complete()
    assert one.rows_by_key() == {}
    plan.unlink()
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1)}


# --- the schema of now --------------------------------------------------------------------------


def upsert_elsewhere(one: Life, schema: pa.Schema, *given: dict[str, Any]) -> None:
    """Commit rows like another engine that has added columns."""
    handle, intake = one.handle(), Intake(CONFIG, schema)
    keyed = keyed_in_order(pa.Table.from_pylist(list(given), schema=schema), intake)
    coordinator = WriteCoordinator(handle, EventLog())
    with coordinator.writing(intake, Shape(index="bloom")) as work:
        work.statuses = write_in_process(keyed, work.plan, EventLog())
    assert work.result is not None
    coordinator.complete([work.result], intake)


NOTED = {"id": "f", "part": "p", "ts": 5, "v": 7, "note": "kept"}


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)])
@pytest.mark.parametrize("when", ["before", "between", "prepared"])
def test_a_column_added_in_mid_stream_stays(life, interval, when):
    """A column that another engine adds while a job runs keeps its values in all later writes."""
    one = life(interval)
    one.checkpoint(("a", 1, 1, False))
    one.job.checkpointing.complete()
    if when == "between":
        one.checkpoint(("b", 1, 1, False))
        upsert_elsewhere(one, WIDER, NOTED)
        one.checkpoint(("c", 1, 1, False))
    elif when == "before":
        upsert_elsewhere(one, WIDER, NOTED)
        one.checkpoint(("b", 1, 1, False), ("c", 1, 1, False))
    else:
        one.checkpoint(("b", 1, 1, False), ("c", 1, 1, False))
        upsert_elsewhere(one, WIDER, NOTED)
        one.start()
    one.job.checkpointing.complete()
    read = {r["id"]: r for r in to_arrow(one.handle(), WIDER.names).to_pylist()}
    assert read["f"] == NOTED
    assert {i: r["note"] for i, r in read.items() if i != "f"} == dict.fromkeys("abc")
    assert to_arrow(one.handle(), meta=False).schema.names == WIDER.names


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)])
def test_a_column_dropped_in_mid_stream_is_refused(life, interval):
    """Rows with a column that the table has lost are refused with its name; no row is lost."""
    one = life(interval)
    narrow = pa.schema([f for f in SCHEMA if f.name != "v"])
    one.checkpoint(("a", 1, 1, False))
    upsert_elsewhere(one, narrow, {"id": "f", "part": "p", "ts": 1})
    before = tree(one.path)
    with pytest.raises((InvalidTable, InvalidInput), match=r"'v'"):
        one.start()
    assert tree(one.path).keys() >= before.keys()


def test_rows_that_follow_a_new_column_are_written_with_those_before(life):
    """Another engine adds a column while writers run; then a notification and more rows arrive."""
    one = life()
    one.job.write(rows(("a", 1, 1, False)))
    upsert_elsewhere(one, WIDER, NOTED)
    one.job.checkpointing.complete()
    one.checkpoint(("b", 1, 1, False))
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1), "b": (1, 1), "f": (5, 7)}
    assert to_arrow(one.handle())["note"].to_pylist().count("kept") == 1


def test_a_resumed_query_needs_the_columns_it_started_with(life):
    """A column that another engine added may be missing; one that the query had may not."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    one.job.complete(one.number)
    upsert_elsewhere(one, WIDER, NOTED)
    intake = intake_of(one.start().coordinator, "upsert", "local")
    intake.check(SCHEMA)
    with pytest.raises(InvalidInput, match=r"\['v'\]"):
        intake.check(pa.schema([f for f in SCHEMA if f.name != "v"]))


def test_a_query_that_started_with_deletes_needs_all_columns_to_upsert(life):
    """Rows of a delete need only their key; as upserts they would overwrite values with null."""
    coordinator = life().start().coordinator
    keys = pa.schema([f for f in SCHEMA if f.name != "v"])
    deletes = intake_of(coordinator, "delete", "other")
    job = Checkpointing(coordinator, deletes, Shape(), IN_PROCESS, given=keys)
    job.note_columns("other")
    with pytest.raises(InvalidInput, match=r"\['v'\]"):
        intake_of(coordinator, "upsert", "other").check(keys)


def test_another_engine_may_commit_during_a_redo(life):
    """The redone instant is compared with the timeline again before it is published."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    one.job.complete(one.number)
    one.checkpoint(("a", 2, 2, False))
    upsert_elsewhere(one, SCHEMA, {"id": "f", "part": "p", "ts": 1, "v": 3})
    other = {"id": "g", "part": "p", "ts": 1, "v": 4}
    failpoints.call("coord.redo.pre", lambda: upsert_elsewhere(one, SCHEMA, other), 1)
    try:
        one.job.complete(one.number)
    finally:
        failpoints.arm("")
    assert one.rows_by_key() == {"a": (2, 2), "f": (1, 3), "g": (1, 4)}
    assert fsck(one.path) == []


def test_a_column_added_during_a_redo_keeps_its_values(life):
    """If another engine adds a column while an instant is redone, the next redo has it."""
    one = life()
    one.checkpoint(("a", 1, 1, False))
    one.job.complete(one.number)
    one.checkpoint(("a", 2, 2, False))
    upsert_elsewhere(one, SCHEMA, {"id": "g", "part": "p", "ts": 1, "v": 4})
    failpoints.call("coord.redo.pre", lambda: upsert_elsewhere(one, WIDER, NOTED), 1)
    try:
        one.job.complete(one.number)
    finally:
        failpoints.arm("")
    assert one.rows_by_key() == {"a": (2, 2), "f": (5, 7), "g": (1, 4)}
    assert to_arrow(one.handle())["note"].to_pylist().count("kept") == 1


def test_seals_applied_by_a_batch_during_the_job_are_not_reported_lost(life):
    """The mark of the last applied seal is read again together with the records."""
    one = life(Interval(checkpoints=10))
    one.checkpoint()
    one.checkpoint()
    table = Table.open(one.path)
    table.upsert(pa.Table.from_pylist([{"id": "b", "part": "p", "ts": 1, "v": 1}], SCHEMA))
    one.checkpoint(("a", 1, 1, False))
    one.job.checkpointing.complete()
    assert one.rows_by_key() == {"a": (1, 1), "b": (1, 1)}
