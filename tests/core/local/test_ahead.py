"""A batch that is written before its turn: when it is committed as it is, and when written again.

The other process is a handle here that has the lock; its clock is behind, so that its instants are
those of a turn that began before the place was taken.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from core.lock.test_lock import held_elsewhere
from tables import Model, hudi_rows, kind_of, schema_of, without_meta

from hoodie_nb import Table, failpoints
from hoodie_nb.clock import ManualClock, instant_ms, instant_time
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.events import Event, EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.local.ahead import Ahead, Luck
from hoodie_nb.local.batch import Commit
from hoodie_nb.lock import lock, waiting
from hoodie_nb.lock.lock import writing
from hoodie_nb.storage.storage import STAGED, TURNS, Storage

KINDS = [8, 9, "8 logs", "9 logs"]
Row = dict[str, Any]


def row(key: str, partition: str, ts: int = 5, v: int = 0) -> Row:
    """Return a row of the test's table."""
    return {"id": key, "p": partition, "ts": ts, "v": v}


STORED = [row(f"k{n}", f"par{n % 3}") for n in range(9)]
MINE = [row("k0", "par0", 6, 1), row("new", "par0", 6, 1), row("k3", "par0", 4, 1)]


def make(root: Path, kind: int | str) -> Table:
    """Create a table with a batch, by a clock that is behind."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    Table.create(root, schema=schema_of(), **keys, **kind_of(kind))
    table = behind(root)
    table.upsert(STORED)
    return table


def behind(root: Path) -> Table:
    """Open the table with a clock that is behind: its instants are a millisecond after others."""
    return Table(open_table(str(root), ManualClock()))


@contextmanager
def place(storage: Storage) -> Iterator[Callable[[str], None]]:
    """Take a place in the line; yield what notes the instant whose files are staged."""
    with contextlib.ExitStack() as line:
        taken = waiting.take_place(storage, line)
        yield line.enter_context(waiting.awake(taken))


def after(
    root: Path, others: Callable[[Path], object], rows: list[Row] = MINE, operation: str = "upsert"
) -> bool:
    """Write rows ahead while others have the table, then take the turn; return whether they fit."""
    batch = Ahead(open_table(str(root)), rows, operation, EventLog(), Luck())
    storage = open_table(str(root)).storage
    with contextlib.closing(batch):
        with writing(storage), place(storage) as note:  # the other one's turn
            batch.write(note)
            assert batch.intake is not None
            others(root)
        with writing(storage):
            done = batch.commit()
            if done is None:
                getattr(Table.open(root), operation)(rows)
    assert not os.listdir(root / STAGED)
    return done is not None


def assert_rows(root: Path, *batches: tuple[str, list[Row]]) -> None:
    """Compare the table with a dict that had these batches after the stored rows."""
    model = Model()
    model.upsert(STORED)
    for operation, rows in batches:
        getattr(model, operation)(rows)
    assert without_meta(Table.open(root).to_arrow()) == model.snapshot() == hudi_rows(root)
    assert Table.open(root).fsck() == []


def elsewhere(root: Path) -> object:
    """Write another partition: a new key, a known one, a delete of one that is not there."""
    behind(root).upsert([row("k1", "par1", 9, 2), row("other", "par9", 9, 2)])
    return behind(root).delete([row("k2", "par2", 9)])


@pytest.mark.parametrize("operation", ["upsert", "insert", "bulk_insert", "delete"])
@pytest.mark.parametrize("kind", KINDS)
def test_commits_to_other_partitions_do_not_matter(
    tmp_path: Path, kind: int | str, operation: str
) -> None:
    """What was written ahead is committed, after theirs, and everybody reads both."""
    root = tmp_path / "t"
    make(root, kind)
    rows = MINE if operation in ("upsert", "delete") else [row("n1", "par0"), row("n2", "new")]
    assert after(root, elsewhere, rows, operation)
    assert_rows(
        root,
        ("upsert", [row("k1", "par1", 9, 2), row("other", "par9", 9, 2)]),
        ("delete", [row("k2", "par2", 9)]),
        ("delete" if operation == "delete" else "upsert", rows),
    )
    times = Table.open(root).history()["requested_time"]
    assert times.is_monotonic_increasing


@pytest.mark.parametrize("kind", [9, "9 logs"])
def test_nobody_came_between(tmp_path: Path, kind: int | str) -> None:
    """The lock was only held; the table is new, too."""
    root = tmp_path / "t"
    make(root, kind)
    assert after(root, lambda _: None)
    assert_rows(root, ("upsert", MINE))
    empty = tmp_path / "empty"
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_version": 9}
    Table.create(empty, schema=schema_of(), **keys)
    assert after(empty, lambda _: None)
    assert Table.open(empty).to_arrow().num_rows == 3


def test_cleans_and_savepoints_do_not_matter(tmp_path: Path) -> None:
    """They move no row, and keep the newest slices."""
    root = tmp_path / "t"
    table = make(root, 9)
    for n in range(3):
        table.upsert([row("k1", "par1", 7 + n), row("k0", "par0", 5)])

    def others(root: Path) -> None:
        elsewhere(root)
        other = behind(root)
        other.savepoint(comment="kept")
        assert other.clean(commits=1).files

    assert after(root, others)
    assert_rows(
        root,
        ("upsert", [row("k1", "par1", 9, 0), row("k0", "par0", 5)]),
        ("upsert", [row("k1", "par1", 9, 2), row("other", "par9", 9, 2)]),
        ("delete", [row("k2", "par2", 9)]),
        ("upsert", MINE),
    )


SAME = {
    "an update of a known key": ("upsert", [row("k0", "par0", 9, 3)]),
    "an update of another key of its file group": ("upsert", [row("k6", "par0", 9, 3)]),
    "the same new key": ("upsert", [row("new", "par0", 7, 3)]),
    "an insert": ("insert", [row("more", "par0", 7, 3)]),
    "a delete": ("delete", [row("k3", "par0", 9)]),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_to_the_same_partition(tmp_path: Path, kind: int | str, name: str) -> None:
    """The batch is written again, on top of it."""
    root = tmp_path / "t"
    make(root, kind)
    operation, rows = SAME[name]
    assert not after(root, lambda root: getattr(behind(root), operation)(rows))
    assert_rows(
        root, (operation, rows) if operation != "insert" else ("upsert", rows), ("upsert", MINE)
    )


def size_of(path: Path) -> int:
    """Return the size of a file in bytes."""
    return path.stat().st_size


def later(root: Path) -> object:
    """Write elsewhere, by a clock that is an hour ahead, after a clean by that clock."""
    ahead = Table(open_table(str(root), ManualClock(int(time.time() * 1000) + 3_600_000)))
    assert ahead.clean(commits=1).files
    return ahead.upsert([row("k1", "par1", 9)])


OTHERS: dict[str, Callable[[Path], object]] = {
    "a later instant": later,
    "an overwrite": lambda root: behind(root).insert_overwrite([row("k1", "par1", 9)]),
    "a clustering": lambda root: behind(root).cluster(),
    "a rollback": lambda root: behind(root).rollback(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_makes_it_write_again(tmp_path: Path, name: str) -> None:
    """Whatever else happened, the rows are those of one batch after the other."""
    root = tmp_path / "t"
    table = make(root, 9)
    twin = tmp_path / "twin"
    for each in (table, make(twin, 9)):
        for n in range(4):  # small files in another partition, for the clustering
            each.bulk_insert([row(f"b{n}", "small")])
        for ts in (9, 10):  # an old slice, for the clean
            each.upsert([row("b0", "small", ts)])
    assert not after(root, OTHERS[name])
    OTHERS[name](twin)
    Table.open(twin).upsert(MINE)
    assert without_meta(Table.open(root).to_arrow()) == without_meta(Table.open(twin).to_arrow())
    assert Table.open(root).fsck() == []


def test_a_commit_that_is_archived_meanwhile(tmp_path: Path) -> None:
    """What came since the batch looked is not known any more: it is written again."""
    root = tmp_path / "t"
    options = {"hoodie.keep.min.commits": 3, "hoodie.keep.max.commits": 4}
    options["hoodie.clean.commits.retained"] = 2
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_version": 9}
    Table.create(root, schema=schema_of(), options=options, **keys)
    behind(root).upsert(STORED)

    def others(root: Path) -> None:
        other = behind(root)
        other.upsert([row("new", "par0", 7, 3)])
        for n in range(8):
            other.upsert([row("k1", "par1", 9 + n)])
        assert other.history()["requested_time"].min() > "20260101000000001"

    assert not after(root, others)
    assert_rows(
        root, ("upsert", [row("new", "par0", 7, 3), row("k1", "par1", 16)]), ("upsert", MINE)
    )


def test_a_new_column(tmp_path: Path) -> None:
    """The turn says that the rows lack it, as it does to every write."""
    root = tmp_path / "t"
    make(root, 9)
    with pytest.raises(InvalidInput, match="'more'"):
        after(root, lambda root: behind(root).add_columns({"more": "int64"}))
    assert os.listdir(root / STAGED) == []


def test_a_restore(tmp_path: Path) -> None:
    """A batch that was written on commits that are undone since is written again."""
    root = tmp_path / "t"
    table = make(root, 9)
    saved = table.savepoint()
    table.upsert([row("k0", "par0", 8, 8), row("k1", "par1", 8, 8)])
    assert not after(root, lambda root: behind(root).restore(saved))
    assert_rows(root, ("upsert", MINE))


def test_files_of_the_dead_are_deleted_and_those_of_the_living_kept(tmp_path: Path) -> None:
    """Recovery looks whose place it is: without the note, or without the place, they go."""
    root = tmp_path / "t"
    make(root, 9)
    storage = open_table(str(root)).storage
    for noted in (True, False):
        batch = Ahead(open_table(str(root)), MINE, "upsert", EventLog(), Luck())
        with writing(storage), place(storage) as note:
            batch.write(note if noted else lambda _: None)
            assert len(os.listdir(root / STAGED)) == 1
            elsewhere(root)
            assert len(os.listdir(root / STAGED)) == noted
        elsewhere(root)
        assert os.listdir(root / STAGED) == []
        with writing(storage):
            assert batch.commit() is None  # its files are gone


def test_an_error_is_left_to_the_turn(tmp_path: Path) -> None:
    """Bad rows are no reason to fail while waiting: the write itself says what is wrong."""
    root = tmp_path / "t"
    make(root, 9)
    batch = Ahead(
        open_table(str(root)), [row("k0", "par0") | {"v": "?"}], "upsert", EventLog(), Luck()
    )
    batch.write(lambda _: None)
    assert batch.intake is None
    assert batch.commit() is None


def test_a_full_disk_leaves_no_file_to_the_turn(tmp_path: Path, monkeypatch: Any) -> None:
    """What was staged is deleted before the batch is written again."""
    root = tmp_path / "t"
    make(root, 9)
    batch = Ahead(open_table(str(root)), MINE, "upsert", EventLog(), Luck())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        patch.setattr(failpoints, "hit", full)
        batch.write(lambda _: None)
    assert len(os.listdir(root / STAGED)) == 1
    assert batch.commit() is None
    assert os.listdir(root / STAGED) == []


class Limit(Exception):
    """What the handler of a signal raises, as Celery's does after a time."""


@pytest.mark.parametrize("limit", [Limit("30 s"), TimeoutError("30 s")])
def test_a_limit_of_time_ends_the_call(tmp_path: Path, monkeypatch: Any, limit: Exception) -> None:
    """It comes once, in whatever the call does then; nothing of the batch is left."""
    root = tmp_path / "t"
    make(root, 9)
    batch = Ahead(open_table(str(root)), MINE, "upsert", EventLog(), Luck())

    def over(*_: object) -> None:
        raise limit

    with contextlib.closing(batch), monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", over)
        with pytest.raises(type(limit), match="30 s"):
            batch.write(lambda _: None)
        assert len(os.listdir(root / STAGED)) == 1
    assert os.listdir(root / STAGED) == []


def test_a_turn_that_began_before_has_the_earlier_time(tmp_path: Path) -> None:
    """Its instant is requested after the files were staged, and precedes theirs."""
    root = tmp_path / "t"
    make(root, 9)
    assert after(root, lambda root: Table.open(root).upsert([row("k1", "par1", 9, 2)]))
    assert_rows(root, ("upsert", [row("k1", "par1", 9, 2)]), ("upsert", MINE))


@pytest.mark.parametrize(("kind", "fits"), [(9, True), ("9 logs", False)])
def test_those_who_wait_without_staging_have_room(
    tmp_path: Path, kind: int | str, fits: bool
) -> None:
    """Who has the table, and who waits for it, have times before that of the batch behind them.

    The second time is earlier than the first one's completion, except where logs may be merged.
    """
    root = tmp_path / "t"
    make(root, kind)
    storage = open_table(str(root)).storage
    batch = Ahead(open_table(str(root)), MINE, "upsert", EventLog(), Luck())
    theirs = [row("k1", "par1", 9, 1)], [row("k2", "par2", 9, 2)]
    with contextlib.closing(batch), writing(storage):
        waits = contextlib.ExitStack()
        waiting.take_place(storage, waits)
        with waits, place(storage) as note:
            batch.write(note)
            Table.open(root).upsert(theirs[0])
            waits.close()
            Table.open(root).upsert(theirs[1])
        assert (batch.commit() is not None) == fits
    if not fits:
        Table.open(root).upsert(MINE)
    assert_rows(root, ("upsert", [*theirs[0], *theirs[1]]), ("upsert", MINE))


def test_a_stopped_process_holds_back_no_time(tmp_path: Path) -> None:
    """It is passed over: the times of others are those of now, as if nobody waited."""
    root = tmp_path / "t"
    make(root, 9)
    table, before = Table.open(root), instant_time(int(time.time() * 1000))
    with contextlib.ExitStack() as line:
        taken = waiting.take_place(table._handle.storage, line)
        os.pwrite(taken.fileno(), b"20260102000000000", 0)
        long_ago = time.time() - waiting.ASLEEP_S - 1
        os.utime(taken.fileno(), (long_ago, long_ago))
        commit = table.upsert(MINE)
    assert commit is not None
    assert commit.requested_time >= before
    assert_rows(root, ("upsert", MINE))


def test_a_child_does_not_delete_what_its_parent_has_staged(tmp_path: Path) -> None:
    """A child of a process that waits may end by an error, or `sys.exit`."""
    root = tmp_path / "t"
    make(root, 9)
    batch = Ahead(open_table(str(root)), MINE, "upsert", EventLog(), Luck())
    batch.write(lambda _: None)
    pid = os.fork()
    if pid == 0:
        batch.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(os.listdir(root / STAGED)) == 1
    batch.close()
    assert os.listdir(root / STAGED) == []


@pytest.mark.parametrize("version", [6, 9])
def test_without_others_no_time_lies_in_the_past(tmp_path: Path, version: int) -> None:
    """Who reads up to now, and later from there, misses nothing, whenever the turn began."""
    root = tmp_path / "t"
    make(root, version)
    table = Table.open(root)
    with writing(table._handle.storage), table._handle.timeline.listed_once():
        time.sleep(0.002)  # the clock goes on, in milliseconds
        now = datetime.now(UTC)
        table.changes(since="20260101000000000", until=now)
        time.sleep(0.002)
        table.upsert([row("k0", "par0", 6, 1)])
    assert table.changes(since=now).num_rows == 1


def test_files_on_a_slice_that_was_lost_are_not_published(tmp_path: Path) -> None:
    """A file is away while the batch is staged, on the slice before, and comes back."""
    root = tmp_path / "t"
    table = make(root, 9)
    table.upsert([row("k6", "par0", 8, 8)])
    (newest,) = [*(root / "par0").glob("*20260101000000002.parquet")]
    batch = Ahead(open_table(str(root)), MINE, "upsert", EventLog(), Luck())
    storage = open_table(str(root)).storage
    with contextlib.closing(batch), writing(storage):
        with place(storage) as note:
            batch._table.file_groups()
            away = newest.rename(tmp_path / "away")
            behind(root).upsert([row("k1", "par1", 9, 2)])
            batch.write(note)
            away.rename(newest)
        if batch.commit() is None:
            Table.open(root).upsert(MINE)
    assert_rows(
        root,
        ("upsert", [row("k6", "par0", 8, 8)]),
        ("upsert", [row("k1", "par1", 9, 2)]),
        ("upsert", MINE),
    )


def test_what_is_not_as_it_was_staged_is_written_again(tmp_path: Path) -> None:
    """A staged file is gone; or a clean has the same time."""
    root = tmp_path / "t"
    make(root, 9).upsert([row("k1", "par1", 8, 8)])

    def loses_a_file(root: Path) -> None:
        (folder,) = (root / STAGED).iterdir()
        max((path for path in folder.rglob("*") if path.is_file()), key=size_of).unlink()

    assert not after(root, loses_a_file)

    def cleans_then(root: Path) -> None:
        (folder,) = os.listdir(root / STAGED)
        clock = ManualClock(instant_ms(folder.partition("-")[0]))
        assert Table(open_table(str(root), clock)).clean(commits=1).files

    assert not after(root, cleans_then)
    assert_rows(root, ("upsert", [row("k1", "par1", 8, 8)]), ("upsert", MINE), ("upsert", MINE))


def test_a_table_is_replaced_while_others_stage(tmp_path: Path, monkeypatch: Any) -> None:
    """Their files go, also if one comes in between; the batch is written again, to the new one."""
    root = tmp_path / "t"
    make(root, 9)
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_version": 9}

    def others(root: Path) -> None:
        rmdir, late = os.rmdir, [1]

        def rmdir_late(path: Any, **more: Any) -> None:
            if path == "staged" and late:
                (root / STAGED / "late").mkdir()
                late.clear()
            rmdir(path, **more)

        monkeypatch.setattr(os, "rmdir", rmdir_late)
        Table.create(root, schema=schema_of(), if_exists="replace", **keys)
        assert not late

    assert not after(root, others)
    model = Model()
    model.upsert(MINE)
    assert without_meta(Table.open(root).to_arrow()) == model.snapshot() == hudi_rows(root)


def test_a_place_stays_awake_while_its_writer_works(tmp_path: Path, monkeypatch: Any) -> None:
    """Nobody passes it over, however long the batch takes."""
    root = tmp_path / "t"
    make(root, 9)
    storage = open_table(str(root)).storage
    monkeypatch.setattr(waiting, "ASLEEP_S", 0.5)
    with place(storage):
        (name,) = os.listdir(root / TURNS)
        until = time.monotonic() + 60
        for _ in range(3):
            os.utime(root / TURNS / name, (0, 0))
            while not waiting.is_awaited(storage):
                assert time.monotonic() < until


@pytest.mark.parametrize(
    "kind, operator, partition, waits",
    [
        ("index_looked_up", None, "par0", False),  # before a file is staged, and after
        ("index_looked_up", None, "par1", True),
        ("operator_ran", "BucketWriter", "par0", True),
        ("operator_ran", "BucketWriter", "par1", False),
    ],
)
def test_a_listener_writes_while_its_call_waits(
    tmp_path: Path,
    kind: str,
    operator: str | None,
    partition: str,
    waits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rows come first; what the call has staged is kept, unless they met its partitions."""
    root = tmp_path / "t"
    make(root, 9)
    table = Table.open(root)
    rows = [row("k0" if partition == "par0" else "k1", partition, 9, 2)]
    heard: list[Event] = []
    inner: list[Commit | None] = []
    said: list[str] = []

    def listen(event: Event) -> None:
        if not heard and event.kind == kind and event.values.get("operator") == operator:
            heard.append(event)
            if not waits:
                holder.communicate("\n")
            inner.append(table.upsert(rows, wait=20 if waits else 0))

    def info(*_: object) -> None:
        said.append("waits")
        if waits and len(said) == 2:
            holder.communicate("\n")

    monkeypatch.setattr(lock._log, "info", info)
    table.events.listen(listen)
    with held_elsewhere(root) as holder:
        outer = table.upsert(MINE, wait=100)
    assert len(said) == 1 + waits
    assert outer is not None
    assert inner
    assert inner[0] is not None
    assert inner[0].requested_time < outer.requested_time
    fits = [event.values["fits"] for event in table.events.records("instant_written_ahead")]
    assert fits == [partition == "par1"]
    assert os.listdir(root / TURNS) == []
    assert os.listdir(root / STAGED) == []
    assert_rows(root, ("upsert", rows), ("upsert", MINE))


def test_a_reader_at_a_time_of_day_misses_nothing(tmp_path: Path) -> None:
    """For it, a commit that completed later than its own time says is an error."""
    root = tmp_path / "t"
    make(root, 9)
    until: list[datetime] = []

    def others(root: Path) -> None:
        time.sleep(0.002)  # the instant's time is in the past, in milliseconds
        until.append(datetime.now(UTC))
        Table.open(root).changes(since="20260101000000000", until=until[0])

    assert after(root, others)
    with pytest.raises(InvalidConfig, match="was being written"):
        Table.open(root).changes(since=until[0])


def test_a_reader_at_a_clean_misses_nothing(tmp_path: Path) -> None:
    """A clean in the other one's turn is later than the instant, which completes after it."""
    root = tmp_path / "t"
    table = make(root, 9)
    for ts in (7, 8, 9):
        table.upsert([row("k1", "par1", ts)])
    cleans: list[Any] = []

    def others(root: Path) -> None:
        time.sleep(0.002)  # the clean is later, in milliseconds
        cleans.append(Table.open(root).clean(commits=1))
        Table.open(root).changes(since="earliest", until=cleans[0])

    assert after(root, others)
    for position in (cleans[0], cleans[0].requested_time):
        with pytest.raises(InvalidConfig, match="was being written"):
            Table.open(root).changes(since=position)


def test_version_6_is_not_written_ahead(tmp_path: Path) -> None:
    """There a reader at a time of day could not know that an earlier instant completed later."""
    root = tmp_path / "t"
    make(root, 6)
    batch = Ahead(open_table(str(root)), MINE, "upsert", EventLog(), Luck())
    batch.write(lambda _: None)
    assert batch.intake is None
    assert os.listdir(root / STAGED) == []


def test_luck() -> None:
    """After each time in vain, twice as many batches are not tried, until one fits."""
    luck = Luck()
    tried = []
    for n in range(150):
        if luck.tries():
            tried.append(n)
            luck.note(fits=False)
    assert tried == [0, 2, 5, 10, 19, 36, 69, 102, 135]
    while not luck.tries():
        pass
    luck.note(fits=True)
    assert luck.tries()
    assert luck.tries()
