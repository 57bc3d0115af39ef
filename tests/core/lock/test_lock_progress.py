"""One writer at a time, changes by other writers, and misleading names on disk."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from core.writes import run_checkpoint, write_and_commit
from lives import (
    BATCHES,
    COMMITS,
    MODELS,
    QUERY,
    SCHEMA,
    assert_at_rest,
    assert_finished,
    assert_whole_prefix,
    fingerprint,
    live,
    make,
    opened,
)
from tables import Model, data_files, hudi_rows, pending_names, timeline_names, tree, without_meta

from hoodie_nb import Table
from hoodie_nb import __file__ as package_file
from hoodie_nb.actions import rollback as rollback_module
from hoodie_nb.actions.rollback import roll_back
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.clock import ManualClock, instant_ms, instant_time
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import CommitFailed, ConcurrentWriter, InvalidConfig, InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.local.settling import IN_PROCESS, settle
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.records.progress import Checkpoint, ProgressRecords
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import create_empty, read_bytes
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.view.markers import marker_folder

ROW = {"id": "k0", "p": "par0", "ts": 99, "v": 1}


def upsert(root: Path, *rows: dict[str, Any]) -> None:
    """Write rows through the public API."""
    Table.open(root).upsert(pa.Table.from_pylist(list(rows or [ROW]), schema=SCHEMA))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The workload's table with two batches in it."""
    live(opened(make(tmp_path / "t")), 2)
    return tmp_path / "t"


# --- the lock ---------------------------------------------------------------------------------

HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from hoodie_nb.lock.lock import writing
from hoodie_nb.storage.local_storage import LocalStorage
with writing(LocalStorage(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def in_other_process(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the table at `root` until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(Path(package_file).parents[1]), str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.communicate("")


@pytest.fixture
def holder(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the table's lock until its input ends."""
    with in_other_process(root) as process:
        yield process


@pytest.mark.usefixtures("at_once")
def test_a_second_process_gets_the_writers_pid(root: Path, holder: subprocess.Popen[str]) -> None:
    """While another process writes, a write raises ConcurrentWriter with its pid; reads work."""
    before = tree(root)
    with pytest.raises(ConcurrentWriter, match=rf"process {holder.pid}, on .*wait='10 minutes'"):
        upsert(root)
    assert tree(root) == before
    assert without_meta(Table.open(root).to_arrow()) == MODELS[2]
    holder.communicate("")
    upsert(root)


@pytest.mark.kills
def test_the_kernel_frees_the_lock_of_a_killed_process(
    root: Path, holder: subprocess.Popen[str]
) -> None:
    """A holder killed with SIGKILL leaves no lock: the next write succeeds."""
    os.kill(holder.pid, signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    upsert(root)
    assert without_meta(Table.open(root).to_arrow()) != MODELS[2]


def test_the_lock_is_one_for_all_names_of_a_table(root: Path, tmp_path: Path) -> None:
    """A symlink to the table is the same table: its job holds both, batches of this process run."""
    link = tmp_path / "link"
    link.symlink_to(root)
    hold = JobHold(LocalStorage(root), "writing from checkpoint /c")
    with pytest.raises(ConcurrentWriter, match="checkpoint /c of this process"):
        JobHold(LocalStorage(link), "another")
    upsert(link)
    hold.release()
    hold.release()
    JobHold(LocalStorage(link), "another").release()


def test_the_lock_is_released_when_a_write_fails(root: Path) -> None:
    """After an exception in a write the next write gets the lock."""
    with pytest.raises(RuntimeError, match="inside"), writing(LocalStorage(root)):
        raise RuntimeError("inside")
    upsert(root)


# --- other writers ----------------------------------------------------------------------------


def foreign(root: Path, time17: str, *states: str) -> None:
    """Put another engine's instant on the timeline."""
    names = {"requested": ".commit.requested", "inflight": ".inflight", "completed": ".commit"}
    content = json.dumps({"partitionToWriteStats": {}, "operationType": "UPSERT"})
    for state in states:
        text = content if state == "completed" else ""
        Path(root, ".hoodie", time17 + names[state]).write_text(text)


def heartbeat(root: Path, time17: str, age_ms: int, clock: ManualClock) -> None:
    """Leave a heartbeat of that age."""
    folder = root / ".hoodie/.heartbeat"
    folder.mkdir(exist_ok=True)
    (folder / time17).touch()
    moment = (clock.now_ms() - age_ms) / 1000
    os.utime(folder / time17, (moment, moment))


def later(root: Path) -> str:
    """Return a time after the newest instant."""
    return instant_time(instant_ms(timeline_names(root)[-1][:17]) + 1000)


@pytest.mark.parametrize("states", [("requested",), ("requested", "inflight")])
def test_a_live_writer_of_another_engine_is_left_alone(root: Path, states: Any) -> None:
    """A pending instant with a fresh heartbeat is refused and nothing is changed."""
    time17 = later(root)
    table = opened(root)
    foreign(root, time17, *states)
    heartbeat(root, time17, 119_000, table.clock)
    before = tree(root)
    with pytest.raises(ConcurrentWriter, match=rf"{time17}.*heartbeat 119 s ago"):
        live(table)
    assert tree(root) == before


@pytest.mark.parametrize("age_ms", [None, 121_000])
def test_a_dead_writer_of_another_engine_is_rolled_back(root: Path, age_ms: int | None) -> None:
    """A pending instant without a fresh heartbeat is rolled back, with the files in its markers."""
    time17 = later(root)
    table = opened(root)
    foreign(root, time17, "requested", "inflight")
    if age_ms is not None:
        heartbeat(root, time17, age_ms, table.clock)
    name = f"file-0_0-1-2_{time17}.parquet"
    (root / "par0" / name).write_bytes(b"half a file")
    markers = root / ".hoodie/.temp" / time17 / "par0"
    markers.mkdir(parents=True)
    (markers / f"{name}.marker.CREATE").touch()
    live(table)
    assert_finished(root)
    assert [n for n in timeline_names(root) if n.endswith(".rollback")]


def test_markers_of_javas_timeline_server_are_read(root: Path) -> None:
    """Files that `MARKERS0` lists are rolled back like those with a marker each."""
    time17 = later(root)
    foreign(root, time17, "requested", "inflight")
    name = f"file-0_0-1-2_{time17}.parquet"
    (root / "par0" / name).write_bytes(b"half a file")
    markers = root / ".hoodie/.temp" / time17
    markers.mkdir(parents=True)
    (markers / "MARKERS.type").write_text("TIMELINE_SERVER_BASED")
    (markers / "MARKERS0").write_text(f"par0/{name}.marker.CREATE\n")
    live(opened(root))
    assert_finished(root)


@pytest.mark.parametrize("action", ["replacecommit", "clean", "indexing"])
def test_a_plan_of_another_engine_stays(root: Path, action: str) -> None:
    """A pending replacecommit stops writing; other services' plans do not and are not touched."""
    name = f"{later(root)}.{action}.requested"
    (root / ".hoodie" / name).write_bytes(b"plan")
    if action == "replacecommit":
        with pytest.raises(ConcurrentWriter, match="another engine's plan"):
            live(opened(root))
    else:
        live(opened(root))
        assert without_meta(Table.open(root).to_arrow()) == MODELS[-1]
    assert (root / ".hoodie" / name).read_bytes() == b"plan"


def run_with_intruder(root: Path, number: int, act: Callable[[WritePlan], None]) -> TableHandle:
    """Run batch `number`; another writer acts between its writers' end and its commit."""
    table = opened(root)
    events = EventLog()
    coordinator = WriteCoordinator(table, events)
    settle(coordinator)
    operation, rows = BATCHES[number]
    intake = Intake(table.config, table.schema, operation)
    keyed = keyed_in_order(pa.Table.from_pylist(rows, schema=SCHEMA), intake)

    def write(plan: WritePlan) -> list[WriteStatus]:
        statuses = write_in_process(keyed, plan, events)
        act(plan)
        return statuses

    checkpoint = Checkpoint(QUERY, number, fingerprint(number))
    write_and_commit(coordinator, intake, write, checkpoint=checkpoint)
    return table


@pytest.mark.parametrize("offset_ms", [-1, 1])
def test_a_commit_of_another_writer_meanwhile_is_a_conflict(root: Path, offset_ms: int) -> None:
    """If another commit, older or newer, completes during ours, ours is rolled back."""

    def act(plan: WritePlan) -> None:
        time17 = instant_time(instant_ms(plan.instant_time) + offset_ms * 1000)
        foreign(root, time17, "requested", "inflight", "completed")

    before = data_files(root)
    with pytest.raises(ConcurrentWriter, match="rolled back, write the data again"):
        run_with_intruder(root, 4, act)
    assert pending_names(root) == []
    assert data_files(root) == before
    assert without_meta(Table.open(root).to_arrow()) == MODELS[2]


def test_a_commit_that_takes_a_later_time_before_our_plan_is_a_conflict(root: Path) -> None:
    """Files built on a slice that is newer than their own instant are never published."""
    table = opened(root)
    coordinator = WriteCoordinator(table, EventLog())
    coordinator.recover()
    began = coordinator.begin

    def begin_then_lose(**given: str) -> Instant:
        instant = began(**given)
        foreign(root, later(root), "requested", "inflight", "completed")
        return instant

    coordinator.begin = begin_then_lose  # type: ignore[method-assign]  # the other writer's moment
    intake = Intake(table.config, table.schema)
    keyed = keyed_in_order(pa.Table.from_pylist([ROW], schema=SCHEMA), intake)
    with pytest.raises(ConcurrentWriter, match="rolled back"):
        write_and_commit(
            coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog())
        )
    assert pending_names(root) == []
    assert without_meta(Table.open(root).to_arrow()) == MODELS[2]


def test_an_instant_that_another_engine_rolled_back_is_not_committed(root: Path) -> None:
    """If our pending instant is gone at the commit, nothing is published."""

    def act(plan: WritePlan) -> None:
        for name in timeline_names(root):
            if name.startswith(plan.instant_time):
                (root / ".hoodie" / name).unlink()

    before = data_files(root)
    with pytest.raises(ConcurrentWriter):
        run_with_intruder(root, 4, act)
    assert data_files(root) == before
    settle(WriteCoordinator(opened(root), EventLog()))
    assert_at_rest(root)


def test_a_file_of_the_same_name_with_other_bytes_is_never_replaced(root: Path) -> None:
    """If a name to publish exists already, the commit fails; the foreign file is kept."""
    planted: list[Path] = []

    def act(plan: WritePlan) -> None:
        for staged in (root / plan.staged).glob("*.staged"):
            schema = pa.parquet.read_table(staged, columns=["_hoodie_file_name", "p"]).to_pylist()
            path = root / schema[0]["p"] / schema[0]["_hoodie_file_name"]
            path.write_bytes(b"a stranger's")
            planted.append(path)

    with pytest.raises(CommitFailed, match="not applied"):
        run_with_intruder(root, 4, act)
    assert pending_names(root) == []
    assert without_meta(Table.open(root).to_arrow()) == MODELS[2]
    assert planted


def test_a_completed_instant_cannot_be_rolled_back(root: Path) -> None:
    """roll_back refuses a completed commit, whose files are the table's rows."""
    table = open_table(root)
    done = table.timeline.completed_commits()[-1]
    before = tree(root)
    with pytest.raises(InvalidTable, match="has completed"):
        roll_back(table, Instant(done.requested_time, "commit", State.INFLIGHT))
    assert tree(root) == before


# --- progress ---------------------------------------------------------------------------------


def progress(root: Path) -> Path:
    """Return the query's progress record."""
    return root / f".hoodie/.hoodie_nb/progress/{QUERY}.json"


def test_lost_progress_is_read_from_the_newest_commit(root: Path) -> None:
    """Without the record, the newest commit names the last checkpoint, with its instant."""
    progress(root).unlink()
    events, table = EventLog(), opened(root)
    settle(WriteCoordinator(table, events))
    entries = ProgressRecords(table.storage).entries(QUERY)
    assert [(e.batch_id, e.fingerprint) for e in entries] == [(1, fingerprint(1))]
    assert entries[0].instant_time == table.timeline.completed_commits()[-1].requested_time


def test_a_batch_that_is_in_the_table_is_skipped(root: Path) -> None:
    """A replay of every batch emits `batch_skipped` and changes nothing on disk."""
    live(opened(root))
    before = tree(root)
    events = live(opened(root))
    assert [e.values["batch"] for e in events.records("batch_skipped")] == [0, 1, 2, 3, 4]
    assert tree(root) == before


def check(root: Path, batch: int, mine: str, previous: str) -> None:
    """Run an empty checkpoint of a given identity after a given one."""
    table, events = opened(root), EventLog()
    intake = Intake(table.config, table.schema)
    checkpointing = Checkpointing(WriteCoordinator(table, events), intake, Shape(), IN_PROCESS)
    run_checkpoint(checkpointing, Checkpoint(QUERY, batch, mine), previous, lambda plan: [])


def test_a_gap_between_table_and_checkpoint_folder_is_an_error(root: Path) -> None:
    """Batch N runs only if N-1 is in the table with the same data; the error names the fix."""
    before = tree(root)
    for batch, previous in [(3, fingerprint(2)), (2, "other data"), (9, "")]:
        with pytest.raises(
            InvalidTable, match=rf"batch {batch - 1} of .* is not in the table.*restored"
        ):
            check(root, batch, "new", previous)
    assert tree(root) == before
    check(root, 2, "new", fingerprint(1))
    check(root, 3, "newer", "new")


def test_a_table_that_was_restored_to_an_older_state_is_noticed(root: Path) -> None:
    """A record whose commit is gone from the timeline does not count as held."""
    newest = [n for n in timeline_names(root) if n.endswith(".commit")][-1][:17]
    for name in timeline_names(root):
        if name.startswith(newest):
            (root / ".hoodie" / name).unlink()
    with pytest.raises(InvalidTable, match=r"batch 1 of .* is not in the table"):
        check(root, 2, "new", fingerprint(1))


def test_the_same_number_with_other_data_is_run_again(root: Path) -> None:
    """A batch with a known number and an unknown fingerprint is a new batch, but not for insert."""
    table, events = opened(root), EventLog()
    rows = pa.Table.from_pylist([ROW], schema=SCHEMA)
    model = Model()
    model.upsert(BATCHES[0][1])
    model.upsert(BATCHES[1][1])
    model.upsert([ROW])
    for operation in ("insert", "upsert"):
        intake = Intake(table.config, table.schema, operation)
        keyed = keyed_in_order(rows, intake)
        checkpointing = Checkpointing(
            WriteCoordinator(table, events), intake, Shape(), IN_PROCESS, commit_on="write"
        )
        mine = Checkpoint(QUERY, 1, "other data")

        def write(plan: WritePlan, keyed: pa.Table = keyed) -> list[WriteStatus]:
            return write_in_process(keyed, plan, events)

        if operation == "insert":
            with pytest.raises(InvalidConfig, match="could duplicate rows"):
                run_checkpoint(checkpointing, mine, fingerprint(0), write)
        else:
            run_checkpoint(checkpointing, mine, fingerprint(0), write)
    assert hudi_rows(root) == model.snapshot()


def test_the_last_hundred_checkpoints_are_kept(root: Path) -> None:
    """A record has the newest hundred entries, one per checkpoint, and drops older ones."""
    records = ProgressRecords(LocalStorage(root))
    for batch in range(150):
        records.record([Checkpoint("long", batch, "f")], None)
    records.record([Checkpoint("long", 149, "f")], "t")
    entries = records.entries("long")
    assert [e.batch_id for e in entries] == list(range(50, 150))
    assert entries[-1].instant_time == "t"


def test_every_commit_carries_the_newest_checkpoint_of_every_query(root: Path) -> None:
    """A batch write between two checkpoints keeps their query's position."""
    upsert(root)
    table = open_table(root)
    newest = table.commit_metadata(table.timeline.completed_commits()[-1])
    carried = json.loads(newest.extra["_hoodie_nb_progress"])
    assert carried[QUERY][:2] == [1, fingerprint(1)]


@pytest.mark.parametrize("query", ["../up", "a/b", "", "a.b", "x\0"])
def test_a_query_id_never_becomes_another_path(root: Path, query: str) -> None:
    """Query ids are file names of letters, digits, - and _ only."""
    with pytest.raises(InvalidConfig, match="query id"):
        ProgressRecords(LocalStorage(root)).record([Checkpoint(query, 0, "f")], None)


def test_a_broken_progress_record_is_named(root: Path) -> None:
    """A truncated record raises InvalidTable with its path and the fix."""
    progress(root).write_text('{"query"')
    with pytest.raises(InvalidTable, match=rf"progress/{QUERY}\.json is damaged.*delete it"):
        live(opened(root))


# --- an instant is applied again if the table has changed -------------------------------------


def prepared_then_overtaken(root: Path) -> None:
    """Prepare batch 3 (a delete) and batch 4 in one instant; then another writer commits."""
    live(opened(root), 3)
    table, events = opened(root), EventLog()
    coordinator = WriteCoordinator(table, events)
    settle(coordinator)
    for number in (3, 4):
        operation, rows = BATCHES[number]
        intake = Intake(table.config, table.schema, operation)
        checkpointing = Checkpointing(coordinator, intake, Shape(), IN_PROCESS)
        checkpointing.hold_open(3)
        schema = pa.schema([SCHEMA.field(name) for name in rows[0]])
        keyed = keyed_in_order(pa.Table.from_pylist(rows, schema=schema), intake)
        run_checkpoint(
            checkpointing,
            Checkpoint(QUERY, number, fingerprint(number)),
            fingerprint(number - 1),
            lambda plan, keyed=keyed: write_in_process(keyed, plan, events),
        )
    foreign(root, later(root), "requested", "inflight", "completed")


def test_a_prepared_instant_is_redone_on_a_moved_table(root: Path) -> None:
    """Two prepared checkpoints are applied under a new instant if the table has changed."""
    prepared_then_overtaken(root)
    old = pending_names(root)
    events = live(opened(root))
    assert [f"{e.values['instant']} commit" for e in events.records("instant_redone")] == old
    assert without_meta(Table.open(root).to_arrow()) == MODELS[-1]
    assert hudi_rows(root) == MODELS[-1]
    assert_at_rest(root)


# --- misleading names -------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside the table whose name is that of one of its base files."""
    folder = tmp_path / "outside"
    folder.mkdir()
    file = folder / "file-0_0-1-2_20260101000001001.parquet"
    file.write_bytes(b"precious")
    return file


@pytest.fixture
def hostile(root: Path, victim: Path) -> str:
    """A pending instant with the victim's time."""
    time17 = victim.name[-25:-8]
    foreign(root, time17, "requested", "inflight")
    return time17


def test_a_marker_that_points_outside_deletes_nothing_there(
    root: Path, victim: Path, hostile: str
) -> None:
    """Lines with `..`, absolute paths or other instants in MARKERS files are ignored."""
    ours = sorted(data_files(root))
    folder = root / marker_folder(hostile)
    folder.mkdir(parents=True)
    lines = [
        f"../outside/{victim.name}",
        f"par0/../../outside/{victim.name}",
        str(victim),
        f"/{victim.name}",
        f".hoodie/{victim.name}",
        ours[0],
        "par0",
        "",
    ]
    (folder / "MARKERS0").write_text("".join(f"{line}.marker.CREATE\n" for line in lines))
    live(opened(root), 2)
    assert victim.read_bytes() == b"precious"
    assert sorted(data_files(root)) == ours
    assert pending_names(root) == []


def test_a_rollback_plan_that_points_outside_deletes_nothing_there(
    root: Path, victim: Path, hostile: str
) -> None:
    """A pending rollback's plan may name any path: only base files of its instant are deleted."""
    ours = sorted(data_files(root))
    mine = root / "par0" / victim.name
    mine.write_bytes(b"half a file")
    named = [
        f"file:{victim}",
        str(victim),
        f"file:{root}/../outside/{victim.name}",
        f"file:{root}/par0/../../outside/{victim.name}",
        f"file:{root}/{ours[0]}",
        f"file:{root}/.hoodie/hoodie.properties",
        f"file://{root}/par0/{mine.name}",
    ]
    request = {
        "partitionPath": "par0",
        "fileId": "file-0",
        "latestBaseInstant": hostile,
        "filesToBeDeleted": named,
        "logBlocksToBeDeleted": {},
    }
    plan = {
        "instantToRollback": {"commitTime": hostile, "action": "commit"},
        "RollbackRequests": [request],
        "version": 1,
    }
    out = io.BytesIO()
    fastavro.writer(out, rollback_module._PLAN, [plan])
    time17 = later(root)
    (root / ".hoodie" / f"{time17}.rollback.requested").write_bytes(out.getvalue())
    live(opened(root), 2)
    assert victim.read_bytes() == b"precious"
    assert sorted(data_files(root)) == ours
    assert pending_names(root) == []
    assert (root / ".hoodie" / f"{time17}.rollback").exists()


def test_a_partition_that_is_a_link_to_elsewhere_is_not_followed_to_delete(
    root: Path, victim: Path, hostile: str
) -> None:
    """A symlinked partition does not lead a rollback out of the table."""
    (root / "link").symlink_to(victim.parent)
    folder = root / marker_folder(hostile) / "link"
    folder.mkdir(parents=True)
    (folder / f"{victim.name}.marker.CREATE").touch()
    with pytest.raises(InvalidTable, match="outside the table"):
        live(opened(root), 2)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("content", [b"", b"Obj\x01", b"junk" * 100])
def test_a_rollback_plan_that_cannot_be_read_is_named(root: Path, content: bytes) -> None:
    """An empty, truncated or foreign plan raises InvalidTable; nothing is deleted."""
    name = f"{later(root)}.rollback.requested"
    (root / ".hoodie" / name).write_bytes(content)
    before = tree(root)
    with pytest.raises(InvalidTable, match=rf"{name} cannot be read.*delete"):
        live(opened(root), 2)
    assert tree(root) == before


def test_a_rollback_of_a_completed_instant_is_not_finished(root: Path) -> None:
    """A pending rollback of a completed commit is left to its engine, with its files in place."""
    table = open_table(root)
    done = table.timeline.completed_commits()[-1]
    plan = rollback_module.RollbackPlan(done, sorted(data_files(root)))
    content = rollback_module._encoded(table, plan)
    (root / ".hoodie" / f"{later(root)}.rollback.requested").write_bytes(content)
    before = tree(root)
    with pytest.raises(InvalidTable, match="let the engine that started it"):
        live(opened(root), 2)
    assert tree(root) == before


def test_no_path_leaves_the_table(root: Path) -> None:
    """Storage refuses `..`, absolute paths and NUL, and deletes trees in `.hoodie` only."""
    storage = LocalStorage(root)
    for path in ("../x", "a/../../x", "/etc/passwd", "a\0b", ".."):
        for act in (
            storage.remove,
            storage.fetch,
            storage.entry,
            storage.list_folder,
            storage.make_folder,
            storage.open_new,
            partial(create_empty, storage),
            partial(read_bytes, storage),
            lambda p: storage.put(p, b""),
            lambda p: storage.put(p, b"", new=True),
            lambda p: storage.publish(".hoodie/hoodie.properties", p),
        ):
            with pytest.raises(InvalidTable, match="outside the table"):
                act(path)
    with pytest.raises(InvalidTable, match="not deleted"):
        storage.remove("par0", tree=True)
    assert_whole_prefix(root)
    assert COMMITS[2] == MODELS[2]


def test_putting_a_new_file_is_all_or_nothing(root: Path) -> None:
    """The second of two puts raises FileExistsError and the first one's content stays."""
    storage = LocalStorage(root)
    storage.put("par0/once", b"first", new=True)
    with pytest.raises(FileExistsError):
        storage.put("par0/once", b"second", new=True)
    assert read_bytes(storage, "par0/once") == b"first"
    assert list((root / ".hoodie/.hoodie_nb/tmp").iterdir()) == []


@pytest.fixture
def nearly_full() -> Iterator[None]:
    """Limit files to 100 bytes, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("nearly_full")
def test_no_name_appears_before_its_content_is_complete(tmp_path: Path) -> None:
    """If content cannot be written completely, the name does not appear or keeps its old file."""
    storage = LocalStorage(tmp_path)
    storage.make_folder(".hoodie")
    with pytest.raises(OSError, match="too large"):
        storage.put(".hoodie/new", b"x" * 1000, new=True)
    assert storage.entry(".hoodie/new") is None
    storage.put(".hoodie/old", b"as it was")
    with pytest.raises(OSError, match="too large"):
        storage.put(".hoodie/old", b"x" * 1000)
    assert read_bytes(storage, ".hoodie/old") == b"as it was"
