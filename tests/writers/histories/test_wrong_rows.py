"""Histories with doubled, resurrected or half-committed rows: 11 to 14, and 16 to 20.

A and B are writers of one table. Names in the decorators are rules of `broken.py`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tables import data_files, schema_of, timeline_names
from writers.histories.players import STORED, Row, Stage, Stop, Stream, behind, history, row, write

from hoodie_nb import Table
from hoodie_nb.definition.properties import OPTIONS
from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.index import manifest, upkeep
from hoodie_nb.index.manifest import FOLDER as INDEX
from hoodie_nb.lock.job import JobHold

NEW = [row("new", "par0", 6, 1)]
APART = {"hoodie.parquet.small.file.limit": 0}  # new keys never go into files that there are
CHECKPOINTS = "{root}-checkpoints"


@history(slices="other rows")
def test_history_11_the_same_new_key(stage: Stage) -> None:
    """A has staged a key as new when B inserts it into another file: A writes again."""
    stage.make(options=APART)
    theirs = [row("new", "par0", 5, 2)]
    stage.ahead(lambda: behind(stage.root).upsert(theirs), NEW)
    stage.ends(("upsert", theirs), ("upsert", NEW))


@history(**{"global": "other rows"})
def test_history_11_the_same_new_key_in_two_partitions(stage: Stage) -> None:
    """With global keys no partition's files tell whether a key is new: none is written ahead."""
    stage.make(global_index=True)
    theirs = [row("new", "par1", 5, 2)]
    stage.ahead(lambda: behind(stage.root).upsert(theirs), NEW)
    stage.ends(("upsert", NEW))


@history(lock__rollback="another writer changed", lock__rollback__current="other rows")
def test_history_11_the_same_new_key_in_two_turns(stage: Stage) -> None:
    """B would insert the key after A has looked for it: B waits, since A has the lock."""
    stage.make(options=APART)
    theirs = [row("new", "par0", 7, 2)]
    a = stage.play(partial(write, operation="upsert", rows=NEW), "coord.statuses.pre")
    a.stops()
    stage.between(a, stage.play(partial(write, operation="upsert", rows=theirs)))
    stage.ends(("upsert", NEW), ("upsert", theirs))


@history(slices="other rows")
def test_history_12_a_log_after_a_compaction(stage: Stage) -> None:
    """A has staged a log when B deletes the key, compacts, and inserts it elsewhere."""
    stage.make("9 logs", options=APART)
    mine, theirs = [row("k0", "par0", 9, 1)], [row("k0", "par0", 8, 2)]

    def others() -> None:
        b = behind(stage.root)
        b.delete([row("k0", "par0", 7)])
        b.compact()
        b.upsert(theirs)

    stage.ahead(others, mine)
    stage.ends(("upsert", mine))


@history(earlier__later__slices__newest__manifests="other rows")
def test_history_13_the_index_of_an_older_instant(stage: Stage) -> None:
    """A commits after B, whose keys are in the index since then: A's instant is later, too.

    Else A's merged section is older than what it has, and B's keys look new.
    """
    stage.make(options=APART)
    stage.patch.setattr(upkeep, "FANOUT", 2)
    theirs = [row("theirs", "par0", 5, 2)]
    mine = [row("mine", "par0", 5, 1)]
    stage.ahead(lambda: stage.ahead_by_an_hour().upsert(theirs), mine)
    again = [row("theirs", "par0", 6, 3)]
    stage.ahead_by_an_hour().upsert(again)
    stage.ends(("upsert", mine), ("upsert", again))


@history(manifest__gone__loaded="other rows")
def test_history_14_a_manifest_that_is_gone(stage: Stage) -> None:
    """B commits until the manifest that A's plan names is deleted: then A asks the files.

    What a manifest says of a file group holds for one of its slices.
    """
    stage.make()
    a = stage.stream()
    a.run(0, [row("k0", "par0", 6, 1)])
    a.complete(stale=False)
    stage.patch.setattr(manifest, "PARTS", 2)
    first = {path.name for path in (stage.root / INDEX).glob("manifest-*")}
    for number in range(5):
        behind(stage.root).upsert([row("new", "par0", 6, number)])
    last = {path.name for path in (stage.root / INDEX).glob("manifest-*")}
    assert not first & last
    (stage.root / OPTIONS).write_text(json.dumps(APART))  # A's new keys do not go where B's went
    a = stage.stream()
    a.run(1, [row("new", "par0", 7, 99)])
    a.complete()
    stage.ends(("upsert", [row("k0", "par0", 6, 1), row("new", "par0", 7, 99)]))


@history(slices="other rows")
def test_history_16_a_delete_that_found_nothing(stage: Stage) -> None:
    """A has looked for a key to delete when B inserts it with an older value: A looks again."""
    stage.make(options=APART)
    stage.ahead(
        lambda: behind(stage.root).upsert([row("new", "par0", 3, 2)]),
        [row("new", "par0", 5)],
        "delete",
    )
    stage.ends()


@history(slices="other rows")
def test_history_16_a_late_row(stage: Stage) -> None:
    """A has dropped a row for a newer one, which B deletes: A looks again."""
    stage.make()
    late, kept = row("k0", "par0", 3, 1), row("k1", "par1", 6, 1)

    def others() -> None:
        behind(stage.root).delete([{"id": "k0", "p": "par0"}])

    stage.ahead(others, [late, kept])
    stage.ends(("delete", [{"id": "k0", "p": "par0"}]), ("upsert", [late, kept]))


def stream_that_gives_way(root: Path, stop: Stop) -> None:
    """Prepare a checkpoint, stop, give the table to whoever waits, and commit after its turn."""
    table = open_table(str(root))
    checkpoints = CHECKPOINTS.format(root=root)
    hold = JobHold(table.storage, "a", checkpoint=checkpoints, wait_s=50)
    with hold.writing():
        stream = Stream(table)
        stream.run(0, NEW)
    stop()
    while not hold.stale:
        hold.give_way()
    with hold.writing():
        stream.complete()
    hold.release()


def restore(root: Path, stop: Stop, *, moment: str) -> None:
    """Restore the table, unless that is refused."""
    try:
        Table.open(root).restore(moment)
    except ConcurrentWriter as error:
        assert "stop it" in str(error)
        return
    raise AssertionError("restored beside a stream")


def replace(root: Path, stop: Stop) -> None:
    """Replace the table, unless that is refused."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    try:
        Table.create(root, schema=schema_of(), if_exists="replace", **keys)
    except ConcurrentWriter as error:
        assert "stop it" in str(error)
        return
    raise AssertionError("replaced beside a stream")


def _beside_a_stream(stage: Stage, act: partial[None]) -> None:
    a = stage.play(stream_that_gives_way)
    a.stops()
    b = stage.play(act)
    assert b.waits()
    a.go_on()
    b.ends()
    a.ends()


@history(life="restored beside a stream")
def test_history_17_a_restore(stage: Stage) -> None:
    """B would restore the table between two turns of A's stream: it is refused while A lives."""
    stage.make()
    saved = stage.table.savepoint()
    later = [row("k0", "par0", 8, 8)]
    stage.table.upsert(later)
    _beside_a_stream(stage, partial(restore, moment=saved.requested_time))
    stage.ends(("upsert", later), ("upsert", NEW))


@history(life="replaced beside a stream")
def test_history_17_a_replaced_table(stage: Stage) -> None:
    """B would replace the table between two turns of A's stream: it is refused while A lives."""
    stage.make()
    _beside_a_stream(stage, partial(replace))
    stage.ends(("upsert", NEW))


@history(settling__current="saved rows have changed")
def test_history_18_a_savepoint(stage: Stage) -> None:
    """B saves its commit while A's checkpoint is prepared: A's instant comes first, or later."""
    stage.make()
    a = stage.stream()
    a.run(0, NEW)
    behind(stage.root).upsert([row("k1", "par1", 7, 2)])
    saved = behind(stage.root).savepoint()
    before = stage.table.to_arrow(as_of=saved.requested_time).sort_by("id")
    a.complete()
    after = stage.table.to_arrow(as_of=saved.requested_time).sort_by("id")
    assert before == after, "saved rows have changed"
    stage.ends(("upsert", NEW), ("upsert", [row("k1", "par1", 7, 2)]))


def half_committed(root: Path) -> list[str]:
    """Return the files of instants that have not completed, and precede one that has.

    Java takes those before the first commit for committed; some readers all before the newest.
    """
    names = [name for name in timeline_names(root) if name.endswith(".commit")]
    done = {name[:17] for name in names}
    files = data_files(root)
    return [f for f in files if f[-25:-8] not in done and f[-25:-8] < max(done, default="")]


def _read_while_links_appear(stage: Stage, start: list[Row]) -> None:
    """A stops between its links and its completed file, and B commits, if it can."""
    mine = [row("a0", "par0", 6, 1), row("a1", "par1", 6, 1)]
    theirs = [row("b2", "par2", 6, 2)]
    a = stage.play(partial(write, operation="upsert", rows=mine), "coord.publish.post")
    a.stops()
    b = stage.play(partial(write, operation="upsert", rows=theirs))
    waits = b.waits()
    assert half_committed(stage.root) == [], "half a commit"
    stage.sees(*([] if waits else [("upsert", theirs)]), start=start)
    a.go_on()
    a.ends()
    if not waits:  # else B commits meanwhile
        stage.sees(("upsert", mine), ("upsert", theirs), start=start)
    b.ends("waits" if waits else "done")
    stage.ends(("upsert", mine), ("upsert", theirs), start=start)


@history(lock__rollback="half a commit")
def test_history_19_the_first_commits(stage: Stage) -> None:
    """B would complete the first commit while A publishes: readers would count A's files."""
    stage.make(rows=[])
    _read_while_links_appear(stage, [])


@history(lock__rollback="half a commit")
def test_history_20_version_6(stage: Stage) -> None:
    """B would complete a commit while A publishes for an older instant: readers may show it."""
    stage.make(6)
    _read_while_links_appear(stage, STORED)
