"""Histories in which somebody is stuck, or starves: 21 to 32, the store's clock aside.

A and B are writers of one table. Names in the decorators are rules of `broken.py`.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from test_ahead import place, size_of
from test_review_files import Deaf
from writers.histories.players import Row, Stage, Stop, Stream, behind, history, row, write

from hoodie_nb import Table
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import ConcurrentWriter, InvalidInput, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.local.ahead import Ahead, Luck
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import hold_of, writing
from hoodie_nb.lock.waiting import is_awaited
from hoodie_nb.records.progress import ProgressRecords
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import STAGED

MINE = [row("k0", "par0", 6, 1), row("new", "par0", 6, 1)]
THEIRS = [row("k1", "par1", 7, 2)]


@history(fence="changed outside its turn")
def test_history_21_a_late_thread(stage: Stage) -> None:
    """A thread of A's stream is late, and B has the table: the thread may change nothing."""
    storage = stage.make()._handle.storage
    hold = JobHold(storage, "a", checkpoint=f"{stage.root}-checkpoints")
    try:
        with place(storage):
            hold.give_way()
            assert hold.stale
            storage.put("par0/late.parquet", b"")
    except ConcurrentWriter as error:
        assert "outside its turn" in str(error)
    else:
        raise AssertionError("changed outside its turn")
    finally:
        hold.release()
    stage.ends()


@history(records="is missing; a stream")
def test_history_22_recovery_keeps_what_is_prepared(stage: Stage) -> None:
    """B recovers the table while A's checkpoint is prepared: it completes it."""
    stage.make()
    stage.stream().run(0, MINE)
    behind(stage.root).upsert(THEIRS)
    stage.ends(("upsert", MINE), ("upsert", THEIRS))


@history(notes="swept")
def test_history_22_recovery_keeps_what_is_staged(stage: Stage) -> None:
    """B recovers the table while A stages a batch before its turn: A need not write it again."""
    stage.make()
    assert stage.ahead(lambda: behind(stage.root).upsert(THEIRS), MINE), "swept"
    stage.ends(("upsert", THEIRS), ("upsert", MINE))


def stream_of_three(root: Path, stop: Stop) -> None:
    """Prepare a checkpoint, stop, and run an empty one and a third."""
    table = open_table(str(root))
    with writing(table.storage, 50):
        stream = Stream(table)
        stream.run(0, MINE)
    stop()
    for number, rows in ((1, []), (2, [row("k3", "par0", 8, 3)])):
        with writing(table.storage, 50):
            stream.protocol.recover()
            stream.run(number, rows)
        stop()
    with writing(table.storage, 50):
        stream.complete()


def write_and_stop_before_progress(root: Path, stop: Stop) -> None:
    """Write a batch, and stop between reading and writing the progress of a query."""
    put = ProgressRecords._write

    def slow(self: ProgressRecords, raw: dict[str, object]) -> None:
        stop()
        put(self, raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressRecords, "_write", slow)
        Table.open(root).upsert(THEIRS, wait=50)


@history(lock__rollback="batch 1 of query a is not in the table")
def test_history_23_the_progress_record(stage: Stage) -> None:
    """B records A's progress while A appends an empty checkpoint: A waits for its turn."""
    stage.make()
    a = stage.play(stream_of_three)
    a.stops()
    b = stage.play(write_and_stop_before_progress)
    b.stops()
    a.go_on()
    said = a.hear()
    assert said in ("waits", "stops"), said
    b.go_on()
    b.ends()
    if said == "waits":
        a.stops()
    a.go_on()
    a.stops()
    a.go_on()
    a.ends()
    stage.ends(("upsert", MINE), ("upsert", THEIRS), ("upsert", [row("k3", "par0", 8, 3)]))


@history(release="is being written by another process")
def test_history_24_a_dead_thread(stage: Stage) -> None:
    """A's thread ends with an error in its turn, and its process lives: B has the table."""
    stage.make()

    def dies() -> None:
        with suppress(ZeroDivisionError), writing(stage.table._handle.storage):
            _ = 1 / 0

    thread = threading.Thread(target=dies)
    thread.start()
    thread.join()
    try:
        stage.play(partial(write_at_once, rows=THEIRS)).ends()
    finally:
        kept = getattr(hold_of(stage.table._handle.storage), "kept", None)  # without the rule
        if kept is not None:
            kept.close()
    stage.ends(("upsert", THEIRS))


def write_at_once(root: Path, stop: Stop, *, rows: list[Row]) -> None:
    """Write a batch without waiting."""
    Table.open(root).upsert(rows, wait=0)


@history(folders="not refused")
def test_history_25_case_insensitive_folders(stage: Stage) -> None:
    """A has prepared rows of the partition NY, and B would commit `ny`: refused."""
    stage.patch.setattr(LocalStorage, "entry", Deaf.entry)
    stage.make()
    mine = [row("a", "NY", 6, 1)]
    stage.stream().run(0, mine)
    try:
        behind(stage.root).upsert([row("b", "ny", 6, 2)])
    except InvalidInput as error:
        assert "one folder" in str(error)
    else:
        raise AssertionError("not refused")
    stage.ends(("upsert", mine))


@history(table_id="belongs to another table")
def test_history_26_the_table_id(stage: Stage) -> None:
    """Another engine made the table, A and B are its first writers: both take the same id."""
    stage.make()
    (stage.root / RULES).unlink()
    a, b = (stage.stream(name) for name in "ab")
    (stage.root / RULES).unlink(missing_ok=True)
    for stream in (a, b):
        stream.coordinator.table.rules.refresh()
        assert not stream.coordinator.table.rules.known
    b.run(0, THEIRS)
    a.run(0, MINE)
    a.complete()
    b.complete()
    stage.ends(("upsert", THEIRS), ("upsert", MINE))


@history(verified="published")
def test_history_27_a_damaged_file_of_another(stage: Stage) -> None:
    """A's staged file is damaged: B is refused with its name, and goes on once it is restored.

    Nothing is left out for B's sake: a stream counts those rows.
    """
    stage.make()
    stage.stream().run(0, MINE)
    files = [path for path in (stage.root / STAGED).rglob("*") if path.is_file()]
    staged = max(files, key=size_of)
    content = staged.read_bytes()
    staged.write_bytes(b"?" + content[1:])
    try:
        behind(stage.root).upsert(THEIRS)
    except InvalidTable as error:
        assert staged.name in str(error)
    else:
        raise AssertionError("published")
    staged.write_bytes(content)
    behind(stage.root).upsert(THEIRS)
    stage.ends(("upsert", MINE), ("upsert", THEIRS))


@history(left="is gone: it was cleaned")
def test_history_28_a_clean(stage: Stage) -> None:
    """B replaces the slice on which A stages, and cleans it: A writes again, in its turn."""
    stage.make()
    theirs = [row("k3", "par0", 7, 2), row("k6", "par0", 7, 3)]

    def others() -> None:
        b = behind(stage.root)
        for one in theirs:
            b.upsert([one])
        assert b.clean(commits=1).files

    stage.ahead(others, MINE, at="writer.start")
    stage.ends(("upsert", theirs), ("upsert", MINE))


@history(settling="written again")
def test_history_29_a_prepared_checkpoint_does_not_starve(stage: Stage) -> None:
    """B commits whenever A has prepared a checkpoint: B commits A's first, and A writes once."""
    stage.make()
    a = stage.stream()
    mine = [row("k0", "par0", 6 + number, number) for number in range(3)]
    for number, one in enumerate(mine):
        a.run(number, [one])
        behind(stage.root).upsert(THEIRS)
        a.complete()
    assert a.events.records("instant_redone") == [], "written again"
    stage.ends(("upsert", mine), ("upsert", THEIRS))


@history(luck="in vain")
def test_history_30_two_that_fill_the_same_file(stage: Stage) -> None:
    """Batches that always meet others in one partition are seldom written ahead."""
    stage.make()
    luck, in_vain = Luck(), 0
    mine = [[row(f"a{number}", "par0", 6, number)] for number in range(8)]
    theirs = [[row(f"b{number}", "par0", 6, number)] for number in range(8)]
    storage = stage.table._handle.storage
    for one, other in zip(mine, theirs, strict=True):
        batch = Ahead(open_table(str(stage.root)), one, "upsert", EventLog(), luck)
        with writing(storage), place(storage) as note:
            if batch.is_possible:
                batch.write(note)
                in_vain += 1
            behind(stage.root).upsert(other)
        with writing(storage):
            assert batch.commit() is None
            stage.table.upsert(one)
    assert in_vain <= 3, "in vain"
    stage.ends(*(("upsert", rows) for rows in itertools.chain(mine, theirs)))


@history(last="written again")
def test_history_31_archiving(stage: Stage) -> None:
    """B archives old commits while A has staged a batch: A need not write it again."""
    options = {"hoodie.keep.min.commits": 3, "hoodie.keep.max.commits": 4}
    stage.make(options={**options, "hoodie.clean.commits.retained": 2})
    b = behind(stage.root)
    for number in range(3):
        b.upsert([row("k1", "par1", 7 + number, number)])
    before = len(b.history())

    def others() -> None:
        for number in range(3, 5):
            b.upsert([row("k1", "par1", 7 + number, number)])
        assert len(b.history()) < before + 2

    assert stage.ahead(others, MINE), "written again"
    stage.ends(("upsert", [row("k1", "par1", 11, 4)]), ("upsert", MINE))


def write_in_a_loop(root: Path, stop: Stop) -> None:
    """Write a batch, stop in its turn, and write another one at once."""
    storage = open_table(str(root)).storage
    with writing(storage):
        Table.open(root).upsert(THEIRS)
        stop()
    try:
        Table.open(root).upsert(THEIRS, wait=0)
    except ConcurrentWriter as error:
        assert "came before" in str(error)
        return
    raise AssertionError("jumped the line")


@history(line="jumped the line")
def test_history_32_the_line(stage: Stage) -> None:
    """B writes in a loop, and A waits for a long batch's turn: B does not overtake it."""
    stage.make()
    b = stage.play(write_in_a_loop)
    b.stops()
    a = stage.play(partial(write, operation="upsert", rows=MINE))
    assert a.waits()
    while not is_awaited(stage.table._handle.storage):
        pass
    os.kill(a.process.pid or 0, signal.SIGSTOP)  # it does not look for a moment
    b.go_on()
    said = b.hear()
    os.kill(a.process.pid or 0, signal.SIGCONT)
    assert said == "done", said
    a.ends()
    stage.ends(("upsert", THEIRS), ("upsert", MINE))
