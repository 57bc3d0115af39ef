"""Histories in which rows would be lost or hidden: 1 to 10; each fails without its rule.

A and B are writers of one table. Names in the decorators are rules of `broken.py`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
from core.writes import commit_elsewhere
from history.follower import Follower
from tables import schema_of
from writers.histories.players import SMALL, Row, Stage, behind, history, row, write

from hoodie_nb import Table
from hoodie_nb.actions.rollback import roll_back
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.records.progress import FOLDER as PROGRESS
from hoodie_nb.records.sealing import Interval

MINE = [row("k0", "par0", 6, 1), row("k1", "par1", 6, 1)]
THEIRS = [row("k6", "par0", 7, 2)]  # of the file group of k0


def elsewhere(root: Path, rows: list[Row]) -> None:
    """Commit rows as a writer that does not know the records of others."""
    commit_elsewhere(root, pa.Table.from_pylist(rows, schema=schema_of()))


@history(
    lock="another writer changed",
    lock__rollback="another writer changed",
    lock__rollback__current="other rows",
)
def test_history_01_view_after_request(stage: Stage) -> None:
    """B commits between A's request and A's view: B waits, since A has the lock.

    Below it A refuses what is not the newest.
    """
    stage.make()
    a = stage.play(partial(write, operation="upsert", rows=MINE), "coord.requested.post")
    a.stops()
    stage.between(a, stage.play(partial(write, operation="upsert", rows=THEIRS)))
    stage.ends(("upsert", MINE), ("upsert", THEIRS))


@history(new_instant__newest="File exists")
def test_history_02_only_what_conflicts_is_written_again(stage: Stage) -> None:
    """B overtakes a prepared checkpoint in one of its groups: all is written as a new instant."""
    stage.make()
    a = stage.stream()
    a.run(0, MINE)
    elsewhere(stage.root, THEIRS)
    a.complete()
    assert len(a.events.records("instant_redone")) == 1
    stage.ends(("upsert", THEIRS), ("upsert", MINE))


@history(arrivals="other rows")
def test_history_03_arrival_numbers_of_all(stage: Stage) -> None:
    """A has sealed three checkpoints, B seals one and applies it: those of A are applied, too."""
    stage.make()
    interval = Interval(checkpoints=100)
    a, b = (stage.stream(name, interval=interval) for name in "ab")
    for number in range(3):
        a.run(number, [row(f"a{number}", "par0", 6, number)])
    b.run(0, THEIRS)
    b.complete()
    a.complete()
    added = [row(f"a{number}", "par0", 6, number) for number in range(3)]
    stage.ends(("upsert", added), ("upsert", THEIRS))


@history(settling__current="other rows")
def test_history_04_notes_of_the_newest_instant(stage: Stage) -> None:
    """B commits beside A's prepared checkpoint, and A's progress is lost: it is not repeated."""
    stage.make()
    a = stage.stream(operation="insert")
    a.run(0, [row("a0", "par0")])
    a.complete(stale=False)
    a.run(1, [row("a1", "par0")])
    (record,) = (stage.root / PROGRESS).iterdir()
    before = record.read_bytes()
    theirs = [row("k1", "par1", 7, 2)]
    behind(stage.root).upsert(theirs)
    a.complete()
    record.write_bytes(before)
    again = stage.stream(operation="insert")
    again.run(1, [row("a1", "par0")])
    again.complete(stale=False)
    stage.ends(("upsert", [row("a0", "par0"), row("a1", "par0")]), ("upsert", theirs))


@history(columns="the column is lost")
def test_history_05_schema(stage: Stage) -> None:
    """B adds a column while A streams: A's next commit keeps it, and its values."""
    stage.make()
    a = stage.stream()
    a.run(0, MINE)
    a.complete(stale=False)
    b = behind(stage.root)
    b.add_columns({"w": "int64"})
    b.upsert([row("k6", "par0", 7, 2) | {"w": 7}])
    a.run(1, [row("k3", "par0", 8, 3)])
    a.complete()
    found = {r["id"]: r.get("w") for r in stage.table.to_arrow().to_pylist()}
    assert found["k6"] == 7 and "w" in stage.table.to_arrow().column_names, "the column is lost"
    assert stage.table.fsck() == []


@history(kept_files="is missing; a stream")
def test_history_07_a_redo_for_a_dead_writer(stage: Stage) -> None:
    """A has died; B dies while it writes A's checkpoint again: A's files are still there."""
    stage.make()
    stage.stream().run(0, MINE)
    elsewhere(stage.root, THEIRS)
    last = [row("k8", "par2", 9, 9)]
    for point in ("coord.requested.post", "coord.redo.pre"):
        b = stage.play(partial(write, operation="upsert", rows=last), point)
        assert b.hear() == "stops"
        b.kill()
    Table.open(stage.root).upsert(last)
    stage.ends(("upsert", THEIRS), ("upsert", MINE), ("upsert", last))


@history(settling__needed__undone="archived and cleaned, or rolled back")
def test_history_08_archiving_keeps_what_a_record_needs(stage: Stage) -> None:
    """Another engine rolls A's prepared deletes back, B archives: the deletes are not lost."""
    options = {"hoodie.keep.min.commits": 3, "hoodie.keep.max.commits": 4}
    stage.make(options={**options, "hoodie.clean.commits.retained": 2})
    gone = [row("k0", "par0", 6) | {"_hoodie_is_deleted": True}]
    table = open_table(str(stage.root))
    a = stage.stream(operation="delete")
    a.run(0, [row("k0", "par0", 6)])
    (pending,) = table.timeline.pending()
    roll_back(table, pending, keep_staged=True)
    b = Table.open(stage.root)
    for number in range(8):
        b.upsert([row("k1", "par1", 9, number)])
    b.archive()
    a.complete()
    stage.ends(("upsert", gone), ("upsert", [row("k1", "par1", 9, 7)]))


@history(earlier__later__slices__newest="other rows")
def test_history_09_the_order_of_logs(stage: Stage) -> None:
    """A has staged a log when B completes one with a later time: A writes again, for a later one.

    Without an ordering column readers merge logs in the order of their instants.
    """
    stage.make("9 logs", ordering=None)
    theirs = [row("k0", "par0", 1, 2)]
    stage.ahead(lambda: stage.ahead_by_an_hour().upsert(theirs), MINE)
    stage.ends(("upsert", theirs), ("upsert", MINE))


@history(version_6__later__newest="differs")
def test_history_10_followers(stage: Stage) -> None:
    """A follower that has read B's later commit reads A's: in version 6 none is written ahead."""
    stage.make(6)
    stage.have_slices()
    copy = Follower()
    theirs = [row("k1", "par1", 9, 2)]

    def others() -> None:
        stage.overtakes(theirs)
        copy.follow(stage.table._handle, set())

    stage.ahead(others, MINE[:1])
    copy.follow(stage.table._handle, set())
    stage.ends(SMALL, ("upsert", theirs), ("upsert", MINE[:1]))
