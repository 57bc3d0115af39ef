"""A stream whose batches were undone is taken back as the error says, and goes on.

Spark then writes new offsets, so that the batches have new fingerprints under known numbers. In
each test the batches are known by their keys: none may be missing at the end, none twice.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from queries import MODES, MOMENTS, Query, follow, rows_of
from tables import schema_of, timeline_folder

from hoodie_nb import Table
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.commit.restoring import plan_restore, restore
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.evidence.handle import open_table

DEATHS = [
    *MOMENTS,
    "coord.prepare.pre",
    "coord.prepare.post",
    "coord.publish",
    "coord.commit.pre",
    "coord.commit.post",
    "coord.progress.post",
    "coord.sweep.post",
]
SEAL_DEATHS = [*DEATHS, "coord.seal.pre", "coord.seal.post", "coord.unseal.post"]
HELD = 2  # the last batch in the table after the restore
OTHERS = [{"id": "other", "p": "p0", "ts": 1, "v": 1}]


def send(query: Query, *numbers: int) -> None:
    """Let the source send the rows of these batches: each has its own key, in two partitions."""
    query.rows += [[{"id": f"k{n}", "p": f"p{n % 2}", "ts": 1, "v": n}] for n in numbers]


def begun(tmp_path: Path, mode: str, operation: str = "upsert") -> tuple[Query, str]:
    """Return a query that has written batches 0 to 2, and its last commit."""
    root = tmp_path / "t"
    Table.create(root, schema=schema_of(), record_key="id", partition_by="p", ordering="ts")
    query = Query(tmp_path / "ck", root, mode, operation)
    send(query, 0, 1, 2)
    query.run()
    return query, newest(query)


def started(tmp_path: Path, mode: str, operation: str = "upsert") -> tuple[Query, str]:
    """Return a query that has written batches 0 to 2, then 3 to 5, and the commit in between."""
    query, to = begun(tmp_path, mode, operation)
    send(query, 3, 4, 5)
    query.run()
    return query, to


def newest(query: Query) -> str:
    """Return the newest commit of the table."""
    return str(Table.open(query.table).history()["requested_time"].iloc[-1])


def undone(tmp_path: Path, mode: str, operation: str = "upsert") -> Query:
    """Return a query that has written batches 0 to 5, the last three of which were undone."""
    query, to = started(tmp_path, mode, operation)
    Table.open(query.table).restore(to)
    return query


def restore_elsewhere(query: Query, to: str) -> None:
    """Restore the table as another engine does: it does not settle what waits."""
    handle = open_table(query.table)
    commit = next(i for i in handle.timeline.completed_commits() if i.requested_time == to)
    restore(handle, plan_restore(handle, commit), lambda *given, **values: None, {})


def refused(query: Query) -> int:
    """Start a query, which is refused; do what the error says and return the number in it."""
    with pytest.raises(InvalidTable, match="restored or replaced") as error:
        query.run()
    return follow(error.value, query)


def undo_more(query: Query, to: str) -> None:
    """Start a query of inserts, which is refused; do what the error says."""
    with pytest.raises(InvalidConfig, match=r"undo its commit and all later ones \(Table\.restor"):
        query.run()
    Table.open(query.table).restore(to)


def finish(query: Query, count: int) -> None:
    """Run the query to its end: the rows of all its batches are in the table, each once."""
    query.run(2)
    query.run()
    own = [row for row in rows_of(query.table) if row != ("other", 1)]
    assert own == [(f"k{number}", number) for number in range(count)]
    assert [str(finding) for finding in fsck(query.table)] == []


@pytest.mark.parametrize(
    ("mode", "operation", "dies"),
    [
        *((mode, operation, "") for mode in MODES for operation in ("upsert", "insert")),
        *((mode, "insert", dies) for mode in ("checkpoint", "write") for dies in DEATHS),
        *((mode, "insert", dies) for mode in ("three", "background") for dies in SEAL_DEATHS),
    ],
)
def test_a_stream_that_is_taken_back_as_the_error_says_goes_on(
    tmp_path: Path, mode: str, operation: str, dies: str
) -> None:
    """It is refused once, before that; then each start goes on, also after a death anywhere."""
    query = undone(tmp_path, mode, operation)
    assert refused(query) == HELD
    if dies:
        query.run(dies=dies)
    send(query, 6, 7, 8)
    finish(query, 9)


@pytest.mark.parametrize("mode", MODES)
def test_deletes_that_were_undone_are_repeated(tmp_path: Path, mode: str) -> None:
    """A stream of deletes that is taken back deletes the keys again."""
    query, _ = started(tmp_path, mode)
    deletes = Query(tmp_path / "deletes", query.table, mode, "delete", "deletes", query.rows[:2])
    before = newest(query)
    deletes.run()
    assert len(rows_of(query.table)) == 4
    deletes.rows += query.rows[2:4]
    deletes.run(1)
    Table.open(query.table).restore(before)
    with pytest.raises(InvalidTable, match="start the stream with a new checkpoint folder"):
        deletes.run()
    deletes.take_back(-1)  # as a new folder
    deletes.run(3)
    deletes.run()
    assert [key for key, _ in rows_of(query.table)] == ["k4", "k5"]


# --- undone again --------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_second_restore_undoes_the_batches_that_were_written_again(
    tmp_path: Path, mode: str, waits: bool
) -> None:
    """Also those that wait: the restore commits them first. The number is right again."""
    query = undone(tmp_path, mode, "insert")
    assert refused(query) == HELD
    to = newest(query)
    query.run(2, dies="before the notification@2" if waits else "")
    Table.open(query.table).restore(to)
    assert refused(query) == HELD
    query.run(1)
    Table.open(query.table).rollback()
    assert refused(query) == HELD
    send(query, 6)
    finish(query, 7)


@pytest.mark.parametrize("mode", MODES)
def test_a_rollback_by_hand_before_a_restore(tmp_path: Path, mode: str) -> None:
    """The last commit is rolled back, and after it was written again, more is restored away."""
    query, to = started(tmp_path, mode, "insert")
    Table.open(query.table).rollback()
    assert refused(query) == {"three": HELD, "background": 3}.get(mode, 4)
    query.run(1)
    Table.open(query.table).restore(to)
    assert refused(query) == HELD
    finish(query, 6)


@pytest.mark.parametrize("mode", ["checkpoint", "three", "background"])
def test_another_engines_restore_while_checkpoints_wait(tmp_path: Path, mode: str) -> None:
    """What waits is not undone: upserts converge, an insert is refused until it is undone, too."""
    for operation in ("upsert", "insert"):
        query, to = started(tmp_path / operation, mode, operation)
        send(query, 6)
        query.run(dies="before the notification")
        restore_elsewhere(query, to)
        assert refused(query) == HELD
        if operation == "insert":
            undo_more(query, to)
        finish(query, 7)


@pytest.mark.parametrize("point", ["coord.commit.post", "coord.progress.post", "coord.unseal.post"])
@pytest.mark.parametrize("mode", MODES)
def test_another_engines_restore_after_a_crash_behind_the_completed_file(
    tmp_path: Path, mode: str, point: str
) -> None:
    """Records of the commit are left, but it was undone: it is not committed again from them.

    In the background later checkpoints were sealed meanwhile: those wait.
    """
    query, to = started(tmp_path, mode, "insert")
    send(query, 6, 7, 8)
    query.run(dies=point)
    restore_elsewhere(query, to)
    Table.open(query.table).upsert(OTHERS)
    waited = (7, 8) if mode == "background" else ()
    held = [(f"k{n}", n) for n in (0, 1, 2, *waited)]
    assert rows_of(query.table) == [*held, ("other", 1)]
    assert refused(query) == HELD
    if waited:
        undo_more(query, to)
    finish(query, 9)


@pytest.mark.parametrize("mode", ["three", "background"])
def test_what_waits_does_not_hide_a_gap_if_the_record_is_lost(tmp_path: Path, mode: str) -> None:
    """After another engine's restore nothing names the undone batches but their numbers."""
    query, to = started(tmp_path, mode)
    send(query, 6)
    query.run(dies="before the notification")
    restore_elsewhere(query, to)
    lose_progress(query)
    assert refused(query) == HELD
    finish(query, 7)


@pytest.mark.parametrize("mode", MODES)
def test_commits_that_left_no_trace_of_their_rollback(tmp_path: Path, mode: str) -> None:
    """Another engine has undone them and archived that: the entries have no mark, but are lost."""
    query, to = started(tmp_path, mode)
    for time17 in Table.open(query.table).history()["requested_time"]:
        if time17 > to:
            files = [*timeline_folder(query.table).glob(f"{time17}*")]
            for file in [*files, *query.table.glob(f"*/*_{time17}.parquet")]:
                file.unlink()
    assert refused(query) == HELD
    query.run(1, dies=MOMENTS[1])
    send(query, 6)
    finish(query, 7)


# --- a folder that is taken back too far, or not far enough ---------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_folder_that_is_not_taken_back_far_enough_is_refused(tmp_path: Path, mode: str) -> None:
    """The number is the same as before, whichever files were left."""
    query = undone(tmp_path, mode, "insert")
    for names in (("commits",), ("offsets",)):
        query.take_back(4, *names)
        with pytest.raises(InvalidTable, match=rf"above {HELD}, the last batch in the table"):
            query.run()
    query.take_back(4)
    with pytest.raises(InvalidTable, match=rf"above {HELD}, the last batch in the table"):
        query.run()
    query.take_back(HELD, "commits")
    assert refused(query) == HELD
    finish(query, 6)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_whose_offsets_were_kept_is_inserted_once(tmp_path: Path, mode: str) -> None:
    """Only the file in `commits` was deleted: Spark runs the batch again, as the same one."""
    query, _ = started(tmp_path, mode, "insert")
    to = newest(query)
    send(query, 6)
    query.run()
    Table.open(query.table).restore(to)
    query.take_back(5, "commits")
    send(query, 7)
    query.run(1, dies=MOMENTS[0])
    finish(query, 8)


@pytest.mark.parametrize("mode", MODES)
def test_a_folder_that_is_taken_back_too_far_repeats_batches(tmp_path: Path, mode: str) -> None:
    """Upserts converge."""
    query = undone(tmp_path, mode)
    query.take_back(0)
    query.run(1, dies=MOMENTS[1])
    finish(query, 6)


@pytest.mark.parametrize("mode", ["checkpoint", "write", "background"])
def test_an_insert_that_is_taken_back_too_far_is_refused(tmp_path: Path, mode: str) -> None:
    """It would double rows. Once they are undone as well, as the error says, it goes on."""
    query = undone(tmp_path, mode, "insert")
    query.take_back(0)
    undo_more(query, str(Table.open(query.table).history()["requested_time"].iloc[0]))
    finish(query, 6)


@pytest.mark.parametrize("mode", MODES)
def test_an_insert_that_is_taken_back_before_an_empty_batch_goes_on(
    tmp_path: Path, mode: str
) -> None:
    """The empty batch is in the table, but the new one has rows under its number: each once."""
    query, to = begun(tmp_path, mode, "insert")
    query.rows += [[]]
    query.run()
    send(query, 3, 4, 5)
    query.run()
    Table.open(query.table).restore(to)
    assert refused(query) == 3
    query.take_back(HELD)
    query.rows[3:4] = []
    finish(query, 6)


@pytest.mark.parametrize("operation", ["upsert", "insert"])
def test_a_folder_that_is_taken_back_behind_what_waits(tmp_path: Path, operation: str) -> None:
    """A sealed batch is as good as one in the table: upserts converge, an insert is refused."""
    query, to = started(tmp_path, "three", operation)
    send(query, 6, 7)
    query.run(dies="before the notification@2")
    query.take_back(5)
    if operation == "insert":
        undo_more(query, to)
        assert refused(query) == HELD
    finish(query, 8)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_after_an_undone_one_does_not_stop_an_insert(
    tmp_path: Path, mode: str
) -> None:
    """It has no row that could be inserted twice; an empty batch may also replace an undone one."""
    query, to = started(tmp_path, mode, "insert")
    query.rows += [[], []]
    query.run()
    Table.open(query.table).restore(to)
    assert refused(query) == HELD
    query.rows.insert(3, [])  # the source sends the rows in other batches
    query.run(1, dies=MOMENTS[1])
    finish(query, 6)


# --- other folders, other queries, lost records ---------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_old_folder_is_refused_after_its_batches_were_written_again(
    tmp_path: Path, mode: str
) -> None:
    """It continues after batches that are undone, and after an empty one that nobody undid."""
    query = undone(tmp_path, mode)
    to = newest(query)
    assert refused(query) == HELD
    query.pieces, query.rows = 3, [*query.rows, [], []]  # all rows in batch 3, none in batch 4
    query.run()
    old = shutil.copytree(query.folder, tmp_path / "old")
    Table.open(query.table).restore(to)
    assert refused(query) == HELD
    query.pieces = 1
    query.run(1)  # batch 3 has only the first of these rows now
    shutil.rmtree(query.folder)
    shutil.move(old, query.folder)
    assert [refused(query), refused(query)] == [3, HELD]
    finish(query, 6)


@pytest.mark.parametrize("mode", MODES)
def test_each_query_is_taken_back_by_itself(tmp_path: Path, mode: str) -> None:
    """That one has written its batches again does not excuse another one with these numbers."""
    query, to = started(tmp_path, mode, "insert")
    other = Query(tmp_path / "ck2", query.table, mode, "insert", "query-2")
    other.rows = [[{"id": f"m{n}", "p": "p0", "ts": 1, "v": n}] for n in range(3)]
    other.run()
    send(query, 6)
    query.run()
    commits = Table.open(query.table).history()["requested_time"]
    Table.open(query.table).restore(commits[commits > to].iloc[-3 if len(commits) > 6 else 0])
    first = refused(query)
    query.run(1, dies=MOMENTS[1])
    with pytest.raises(InvalidTable, match="batch 2 of query query-2 is not in the table") as error:
        other.run()
    if "above" in str(error.value):
        follow(error.value, other)
    else:
        other.take_back(-1)
    other.run()
    query.run()
    assert first >= HELD
    found = rows_of(query.table)
    assert found == [*((f"k{n}", n) for n in range(7)), *((f"m{n}", n) for n in range(3))]


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_record_after_the_batches_were_written_again(tmp_path: Path, mode: str) -> None:
    """The newest commit, also one of another writer, names a batch from which it goes on."""
    query = undone(tmp_path, mode, "insert")
    assert refused(query) == HELD
    for step in range(3):
        query.run(1, dies=MOMENTS[1] if step < 2 else "")
        Table.open(query.table).upsert(OTHERS)
        lose_progress(query)
    finish(query, 6)


def lose_progress(query: Query) -> None:
    """Delete the progress records."""
    for file in query.table.glob(".hoodie/.hoodie_nb/progress/*.json"):
        file.unlink()
