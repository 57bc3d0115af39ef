"""The bloom-backed state index: the same answers as the files, in any state."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import threading
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from core.writes import write_and_commit, write_uncommitted
from hypothesis import given, settings
from hypothesis import strategies as st
from index_truth import forget_caches, index_gaps, plan_of

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.files.base_file import read_keys
from hoodie_nb.index import file_keys, upkeep
from hoodie_nb.index.bloom import BloomIndex
from hoodie_nb.index.file_keys import hash64, load
from hoodie_nb.index.lookup import BloomStateIndex
from hoodie_nb.index.manifest import (
    FOLDER,
    PARTS,
    RUNS,
    PartitionState,
    newest_manifest,
    read_manifest,
)
from hoodie_nb.index.run import DamagedRun, Entries, SectionView, write_run
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.batch import write_arrow
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.storage.local_storage import LocalStorage

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
TINY = {"hoodie.parquet.max.file.size": 12_000, "hoodie.parquet.small.file.limit": 0}


def make(path: Path, **options: object) -> Table:
    """Create an empty table whose files have a dozen rows each."""
    return Table.create(
        path,
        schema=SCHEMA,
        record_key="id",
        partition_by="part",
        ordering="ts",
        options={**TINY, "hoodie.copyonwrite.record.size.estimate": 1024, **options},
    )


def rows(ids, ts: int, parts: int = 3) -> pa.Table:
    """Return a row for each number."""
    columns = [[f"k{i:06d}" for i in ids], [f"p{i % parts}" for i in ids], [ts] * len(ids)]
    return pa.Table.from_arrays([pa.array(c) for c in columns], schema=SCHEMA)


def write_elsewhere(table: Table, data: pa.Table, operation: str = "upsert") -> None:
    """Write as another engine would: the state does not change."""
    handle = open_table(table.path)
    intake, coordinator = (
        Intake(handle.config, handle.schema, operation),
        WriteCoordinator(handle, EventLog()),
    )
    keyed = keyed_in_order(data, intake)
    write_and_commit(
        coordinator,
        intake,
        lambda plan: write_in_process(keyed, plan, EventLog()),
        shape=Shape(index="bloom"),
    )


def write_here(table: Table, data: pa.Table, operation: str = "upsert") -> dict[str, int]:
    """Write and return the counts of the lookup and of the index that was saved."""
    events = EventLog()
    write_arrow(open_table(table.path), data, operation, events)
    saved = events.records("index_looked_up") + events.records("index_saved")
    return {name: value for event in saved for name, value in event.values.items()}


def keys_of(table: Table) -> list[str]:
    """Return the record keys, sorted."""
    return sorted(table.to_arrow(columns=["id"]).column("id").to_pylist())


# --- on an existing table ------------------------------------------------------------------------


def test_a_second_job_with_empty_state_makes_no_duplicate(tmp_path):
    """On a table of another engine blooms find every key at first, and later the state does."""
    table = make(tmp_path / "t")
    write_elsewhere(table, rows(range(300), 1))
    files = table.index_status().files
    assert table.index_status().loaded_files == 0 < files
    first = write_here(table, rows(range(0, 330), 2))
    assert (first["found"], first["state_hits"]) == (300, 0)
    assert first["candidates"] >= 300 and first["files_looked_up"] == files
    assert first["keys_loaded"] == 300
    second = write_here(table, rows(range(0, 360), 3))
    assert (second["state_hits"], second["found"], second["keys"]) == (330, 330, 360)
    assert second["files_looked_up"] == second["candidates"] == 0
    assert second["pure_partitions"] == second["partitions"] == 3 and second["pure"]
    assert keys_of(table) == [f"k{i:06d}" for i in range(360)]
    assert table.index_status().pure and index_gaps(open_table(table.path)) == []


def test_remaining_files_are_loaded_a_few_per_commit(tmp_path):
    """A batch that touches one file of a partition loads it and `index_load_budget` others."""
    table = make(tmp_path / "t", index_load_budget=2)
    write_elsewhere(table, rows(range(0, 300, 3), 1))  # p0 only, in order of keys
    files, loaded = table.index_status().files, []
    while not table.index_status().pure:
        write_here(table, rows([0], 2 + len(loaded)))
        loaded.append(table.index_status().loaded_files)
    assert loaded[0] == 3 and files > 5
    assert np.diff([*loaded[:-1]]).tolist() == [2] * (len(loaded) - 2)


def test_own_files_count_as_loaded_without_being_read(tmp_path):
    """Writers report their keys: no file that this library wrote is read for the index."""
    table, read = make(tmp_path / "t"), 0
    for ts in range(6):
        read += write_here(table, rows(range(ts * 40, ts * 40 + 120), ts))["files_looked_up"]
        assert table.index_status().pure
    assert read == 0 and index_gaps(open_table(table.path)) == []


def test_a_file_is_read_once_however_many_tasks_need_it(tmp_path):
    """Eight tasks that need a file at the same time read its key column once."""
    table = make(tmp_path / "t")
    write_elsewhere(table, rows(range(30), 1))
    plan = plan_of(open_table(table.path))
    piece, gate, read = next(iter(plan.groups)), threading.Barrier(8), []

    def task() -> None:
        gate.wait()
        read.append(load(plan.storage, plan.staged, piece)[1])

    threads = [threading.Thread(target=task) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(read) == {True: 1, False: 7}


def test_a_file_is_loaded_under_its_whole_path_and_again_if_that_is_damaged(tmp_path):
    """Files of two partitions may have the same name; a torn copy of the hashes is not used."""
    table = make(tmp_path / "t")
    write_elsewhere(table, rows(range(12), 1, parts=2))
    plan = plan_of(open_table(table.path))
    ours, theirs = (next(iter(plan.groups.partition(p).values())) for p in ("p0", "p1"))
    rows_of_theirs = pq.ParquetFile(f"{table.path}/{theirs.path}").read()
    pq.write_table(rows_of_theirs, f"{table.path}/p1/{ours.file_name}")
    twin = replace(theirs, file_id=ours.file_id, file_name=ours.file_name)
    views = [load(plan.storage, plan.staged, piece)[0] for piece in (ours, twin)]
    assert [view.partition for view in views] == ["p0", "p1"]
    for run in Path(table.path, plan.staged, "loaded").glob("*.run"):
        run.write_bytes(run.read_bytes()[:40])
    view, read = load(plan.storage, plan.staged, ours)
    assert (len(view.hashes), read) == (6, True)


def test_each_key_column_is_read_once_on_the_way_to_pure_state(tmp_path, monkeypatch):
    """Lookups and maintenance read files of another engine at most once, and own files never."""
    table, read = make(tmp_path / "t", index_load_budget=1), Counter()
    write_elsewhere(table, rows(range(300), 1))
    theirs = {name for name in table.file_groups()["file_name"]}

    def counted(path: str) -> pa.Array:
        read[Path(path).name] += 1
        return read_keys(path)

    monkeypatch.setattr(file_keys, "read_keys", counted)
    draw = random.Random(5)
    for ts in range(2, 60):
        write_here(table, rows(draw.sample(range(400), 5), ts))
    assert table.index_status().pure
    assert set(read.values()) == {1} and set(read) <= theirs


# --- exactness -----------------------------------------------------------------------------------


def reference(key: bytes) -> int:
    """Return MurmurHash64A of one key, as its author defined it."""
    m, whole = 0xC6A4A7935BD1E995, (1 << 64) - 1
    h = len(key) * m & whole
    for start in range(0, len(key) - 7, 8):
        k = int.from_bytes(key[start : start + 8], "little") * m & whole
        k = (k ^ k >> 47) * m & whole
        h = (h ^ k) * m & whole
    if len(key) % 8:
        h = (h ^ int.from_bytes(key[len(key) & ~7 :], "little")) * m & whole
    h = (h ^ h >> 47) * m & whole
    return h ^ h >> 47


@given(st.lists(st.text(min_size=1, max_size=40), max_size=50))
def test_hashes_are_murmurs(keys):
    """Keys of any length and alphabet have the hash of the published function."""
    assert hash64(pa.array(keys, pa.string())).tolist() == [reference(k.encode()) for k in keys]


def test_the_hash_does_not_change():
    """Hashes are stored on disk: the hash of `hello` is the published one."""
    assert hash64(pa.array(["hello"])).tolist() == [0x1E68D17C457BF117]


OPERATIONS = st.tuples(
    st.sampled_from(["upsert", "upsert", "delete", "elsewhere", "elsewhere_delete", "forget"]),
    st.integers(0, 60),
    st.integers(1, 40),
    st.integers(1, 7),
)


@pytest.mark.parametrize("bits", [8, 64])
@settings(max_examples=25, deadline=None)
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=8), budget=st.integers(0, 3))
def test_any_history_of_writers_ends_in_the_model(tmp_path_factory, bits, operations, budget):
    """With hashes of 8 bits nearly all keys collide, and still no key is lost or duplicated."""
    file_keys.MASK = (1 << 64) - (1 << 64 - bits)
    try:
        table = make(tmp_path_factory.mktemp("t") / "t", index_load_budget=budget)
        model: dict[str, int] = {}
        for ts, (kind, start, count, step) in enumerate(operations):
            ids = [start + n * step for n in range(count)]
            data = rows(ids, ts)
            if kind == "forget":
                shutil.rmtree(Path(table.path, FOLDER), ignore_errors=True)
                continue
            write = write_elsewhere if kind.startswith("elsewhere") else write_here
            deletes = kind.endswith("delete")
            write(table, data, "delete" if deletes else "upsert")
            for key in data.column("id").to_pylist():
                model.pop(key, None) if deletes else model.update({key: ts})
            found = table.to_arrow(columns=["id", "ts"], meta=False).to_pydict()
            assert Counter(found["id"]) == Counter(model.keys())
            assert dict(zip(found["id"], found["ts"], strict=True)) == model
        assert index_gaps(open_table(table.path)) == []
    finally:
        file_keys.MASK = (1 << 64) - 1


def test_keys_with_one_hash_in_two_groups_are_distinguished_by_the_files(tmp_path, monkeypatch):
    """If all keys have the same hash, the key columns decide, and answers stay exact."""
    monkeypatch.setattr(file_keys, "MASK", 0)
    table = make(tmp_path / "t")
    table.upsert(rows(range(60), 1))
    counts = write_here(table, rows(range(50, 70), 2))
    assert counts["found"] == 10 and counts["files_looked_up"] > 0
    assert keys_of(table) == [f"k{i:06d}" for i in range(70)]


def test_a_key_that_was_inserted_twice_is_located_where_the_blooms_say(tmp_path):
    """Whether the state knows a file or not, the same one of its duplicates is updated."""
    table = make(tmp_path / "t")
    for ts in range(3):
        write_here(table, rows(range(10), ts, parts=1), "insert")
    plan, keys = plan_of(open_table(table.path)), pa.array([f"k{i:06d}" for i in range(10)])
    assert BloomStateIndex(plan).locate("p0", keys).equals(BloomIndex(plan).locate("p0", keys))


# --- what other writers do -----------------------------------------------------------------------


def test_a_commit_of_another_writer_unloads_what_it_rewrote(tmp_path):
    """Files that another engine rewrote are checked by their blooms again, and no others."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(300), 1))
    before = table.index_status()
    write_elsewhere(table, rows([0], 2))  # rewrites one file of p0
    after = table.index_status()
    assert (before.files - before.loaded_files, after.files - after.loaded_files) == (0, 1)
    counts = write_here(table, rows(range(3), 3))
    assert counts["found"] == 3 and counts["files_looked_up"] == 1
    assert table.index_status().pure and index_gaps(open_table(table.path)) == []


def test_an_old_copy_of_the_index_is_used_where_it_is_still_valid(tmp_path):
    """A restored backup of the index is used only for files that have not changed since."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(300), 1))
    shutil.copytree(Path(table.path, FOLDER), tmp_path / "backup")
    table.upsert(rows(range(0, 600, 2), 2))
    shutil.rmtree(Path(table.path, FOLDER))
    shutil.copytree(tmp_path / "backup", Path(table.path, FOLDER))
    assert not table.index_status().pure
    assert index_gaps(open_table(table.path)) == []
    table.upsert(rows(range(620), 3))
    assert keys_of(table) == [f"k{i:06d}" for i in range(620)]


def test_a_rolled_back_instant_leaves_nothing_in_the_index(tmp_path):
    """Keys of an instant that did not complete are not in the state, nor are its files."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(100), 1))
    manifest = newest_manifest(open_table(table.path).storage)
    handle = open_table(table.path)
    intake, coordinator = Intake(handle.config, SCHEMA), WriteCoordinator(handle, EventLog())
    keyed = keyed_in_order(rows(range(50, 150), 2), intake)
    write_uncommitted(
        coordinator, intake, lambda p: write_in_process(keyed, p, EventLog()), Shape()
    )
    coordinator.undo_unprepared()
    assert newest_manifest(handle.storage) == manifest
    assert write_here(table, rows(range(150), 3))["found"] == 100
    assert index_gaps(open_table(table.path)) == []


# --- damage --------------------------------------------------------------------------------------


def newest_manifest_of(table) -> Path:
    """Return the path of a table's newest manifest."""
    return Path(table.path, FOLDER, newest_manifest(open_table(table.path).storage))


def damaged_byte(data: bytes, draw: random.Random, place: float) -> bytes:
    """Return the bytes with one of them changed."""
    at = min(len(data) - 1, int(place * len(data)))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def damage(folder: Path, draw: random.Random, number: int) -> str:
    """Damage the newest manifest or a run as a disk or a person might."""
    runs = sorted((folder / "runs").iterdir())
    manifests = sorted(p for p in folder.iterdir() if p.name.startswith("manifest-"))
    target = draw.choice([*runs, manifests[-1]])
    kind = ("flip", "flip", "cut", "swap", "delete", "empty", "longer")[number % 7]
    data = target.read_bytes()
    if kind == "flip":
        target.write_bytes(damaged_byte(data, draw, draw.random()))
    elif kind == "cut":
        target.write_bytes(data[: draw.randrange(len(data))])
    elif kind == "swap":
        other = draw.choice([r for r in runs if r != target])
        content = other.read_bytes()
        other.write_bytes(data)
        target.write_bytes(content)
    elif kind == "delete":
        target.unlink()
    else:
        target.write_bytes(b"" if kind == "empty" else data + data[:100])
    return f"{kind} {target.name}"


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> Table:
    """Return a table with several runs, some files loaded and some not."""
    table = make(tmp_path_factory.mktemp("grown") / "t", index_load_budget=0)
    for ts in range(4):
        table.upsert(rows(range(ts * 60, ts * 60 + 120), ts))
    write_elsewhere(table, rows(range(0, 300, 7), 9))
    table.upsert(rows(range(100, 130), 10))
    return table


@pytest.mark.parametrize("number", range(200))
def test_a_damaged_index_gives_the_same_answers(grown, tmp_path, number):
    """After any change, cut, swap or loss of bytes each key is found where the files have it."""
    draw = random.Random(number)
    root = tmp_path / "t"
    shutil.copytree(grown.path, root)
    damaged = damage(root / FOLDER, draw, number)
    forget_caches()
    table = open_table(root)
    plan = plan_of(table)
    state, files = BloomStateIndex(plan), BloomIndex(plan)
    for partition in plan.groups.slices:
        keys = pa.array([f"k{i:06d}" for i in draw.sample(range(400), 200)])
        assert state.locate(partition, keys).equals(files.locate(partition, keys)), damaged
    if number % 10 == 0:  # and the next write repairs it
        before = keys_of(Table.open(root))
        counts = write_here(Table.open(root), rows(range(300), 20))
        assert counts["found"] == len(before), damaged
        assert index_gaps(open_table(root)) == [], damaged


def test_a_partition_whose_runs_are_gone_is_indexed_again(tmp_path):
    """A lookup reports a damaged run, and the next commit starts the partition from scratch."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(300), 1))
    for run in Path(table.path, RUNS).iterdir():
        run.write_bytes(run.read_bytes()[:20])
    forget_caches()
    counts = write_here(table, rows(range(300), 2))
    assert (counts["damaged_runs"], counts["state_hits"], counts["found"]) == (3, 0, 300)
    counts = write_here(table, rows(range(300), 3))
    assert (counts["damaged_runs"], counts["state_hits"]) == (0, 300)


@pytest.mark.parametrize("place", ["", "runs", "manifest-9"])
def test_an_index_that_cannot_be_reached_fails_no_write(tmp_path, place):
    """A folder outside is not changed; a link to itself is an example of an unreadable file."""
    table, elsewhere = make(tmp_path / "t"), tmp_path / "elsewhere"
    table.upsert(rows(range(30), 1))
    target = Path(table.path, FOLDER, place)
    if target.exists():
        target.rename(elsewhere)
    target.symlink_to(elsewhere if elsewhere.exists() else target)
    before = sorted(elsewhere.rglob("*"))
    for ts in (2, 3):
        table.upsert(rows(range(60), ts))
        assert keys_of(table) == [f"k{i:06d}" for i in range(60)]
    assert sorted(elsewhere.rglob("*")) == before


LIES = {
    "no_list": lambda state: 5,
    "no_groups": lambda state: [state[0], state[1], [1], state[3]],
    "group_of_one": lambda state: [state[0], state[1], {i: 3 for i in state[2]}, state[3]],
    "since": lambda state: [
        *state[:2],
        {i: [v[0], 5, *v[2:]] for i, v in state[2].items()},
        state[3],
    ],
    "entries": lambda state: [
        *state[:2],
        {i: [*v[:2], "x", 0] for i, v in state[2].items()},
        state[3],
    ],
    "outside": lambda state: [*state[:3], [["../../x", *v[1:]] for v in state[3]]],
    "length": lambda state: [*state[:3], [[*v[:3], [1], *v[4:]] for v in state[3]]],
    "count": lambda state: [*state[:3], [[*v[:5], "x"] for v in state[3]]],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_forged_manifest_line_is_ignored(tmp_path, lie):
    """A manifest edited by hand, with correct checksums, loses the partition and fails no write."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(60), 1))
    path = newest_manifest_of(table)
    head, *lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        name, state = line.split(b"\t")[1:]
        body = name + b"\t" + json.dumps(LIES[lie](json.loads(state))).encode()
        lines[number] = b"%08x\t%s\n" % (zlib.crc32(body), body)
    path.write_bytes(head + b"".join(lines))
    for ts in (2, 3):
        assert write_here(table, rows(range(90), ts))["found"] == (60 if ts == 2 else 90)
    assert index_gaps(open_table(table.path)) == []


def test_a_section_with_impossible_counts_is_damaged(tmp_path):
    """Counts and bits are checked before anything of that size is allocated."""
    storage, entries = LocalStorage(tmp_path), Entries.of("p", "g", hash64(pa.array(["a"])))
    good = write_run(storage, "r.run", "2" * 17, [entries])[0]
    data = (tmp_path / "r.run").read_bytes()
    for claim in (b'"count": 9, "bits": 2', b'"count":9e30,"bits":1', b'"count": 1, "bits":99'):
        torn = data.replace(b'"count": 1, "bits": 0', claim)
        (tmp_path / "r.run").write_bytes(torn)
        with pytest.raises(DamagedRun):
            SectionView(str(tmp_path / "r.run"), replace(good, crc=zlib.crc32(torn[32:])))


def test_the_index_can_be_rebuilt(tmp_path):
    """`rebuild_index` reads every file once and finds the keys that the writers reported."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(300), 1))
    table.upsert(rows(range(200, 400), 2))
    status = table.index_status()
    shutil.rmtree(Path(table.path, FOLDER))
    assert table.index_status().loaded_files == 0
    made = table.rebuild_index()
    assert (made.entries, made.files, made.pure) == (status.entries, status.files, True)
    assert index_gaps(open_table(table.path)) == []
    assert "pure state: " in str(made)


def test_sections_hold_no_open_files(tmp_path):
    """A batch may touch more partitions than a process may open files."""
    table, (soft, hard) = make(tmp_path / "t"), resource.getrlimit(resource.RLIMIT_NOFILE)
    table.upsert(rows(range(150), 1, parts=150))
    room = len(os.listdir("/dev/fd")) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
    try:
        assert write_here(table, rows(range(150), 2, parts=150))["state_hits"] == 150
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_index_newer_than_the_timeline_can_be_rebuilt(tmp_path):
    """After a restore the manifests of removed instants do not hide the new one."""
    table = make(tmp_path / "t")
    for ts in range(3):
        table.upsert(rows(range(60), ts))
    for undone in open_table(table.path).timeline.completed_commits()[1:]:
        for path in Path(table.path).rglob(f"*{undone.requested_time}*"):
            if FOLDER not in str(path):
                path.unlink()
    assert index_gaps(open_table(table.path)) == []
    assert Table.open(table.path).rebuild_index().pure


def test_files_that_cannot_be_hashed_stop_neither_lookup_nor_learning(tmp_path):
    """A foreign file that lacks keys in some rows is loaded; a torn one stays unloaded."""
    table = make(tmp_path / "t")
    write_elsewhere(table, rows(range(30), 1, parts=1))
    odd, torn = sorted(Path(table.path).glob("p0/*.parquet"))[:2]
    data = pq.read_table(odd).replace_schema_metadata(None)  # without bloom: always a candidate
    keys = [None, "", *data.column("_hoodie_record_key").to_pylist()[2:]]
    pq.write_table(data.set_column(2, "_hoodie_record_key", pa.array(keys)), odd)
    content = torn.read_bytes()
    torn.write_bytes(b"PAR1" + bytes(600) + content[604:])  # its footer can be read
    assert write_here(table, rows([100], 2, parts=1))["files_looked_up"] == 1
    unloaded = table.index_status().unloaded
    assert [Path(path).name for path in unloaded] == [torn.name]


@pytest.mark.parametrize("how", ["truncated", "changed", "deleted"])
def test_a_run_damaged_after_this_process_has_used_it(tmp_path, how):
    """A run that changes in place while its mapping is cached is read again, and not used."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(300), 1))
    assert write_here(table, rows(range(300), 2))["found"] == 300  # maps the run
    for run in Path(table.path, RUNS).iterdir():
        with open(run, "r+b") as file:
            if how == "truncated":
                file.truncate(64)
            elif how == "changed":
                file.seek(40)
                file.write(bytes(run.stat().st_size - 40))
        if how == "deleted":
            run.unlink()
    assert write_here(table, rows(range(300), 3))["found"] == 300
    assert table.to_arrow().num_rows == 300


@pytest.mark.parametrize("known", ["loaded", "not loaded", "bloom"])
def test_a_delete_removes_all_copies_of_a_key(tmp_path, known):
    """Whether the state or the files know it, no copy of a deleted key remains; others do."""
    table = make(tmp_path / "t", small_file_bytes=0)
    for ts in range(3):
        table.insert(rows(range(20), ts))
    if known != "loaded":
        shutil.rmtree(Path(table.path, FOLDER))
    index = "bloom" if known == "bloom" else "bloom+state"
    handle = open_table(table.path)
    assert table.to_arrow().num_rows == 60
    intake = Intake(handle.config, SCHEMA, operation="delete")
    keyed = keyed_in_order(rows([*range(5), 99], 9), intake)
    coordinator = WriteCoordinator(handle, EventLog())
    shape = Shape(index=index)
    write_and_commit(
        coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog()), shape
    )
    kept = table.to_arrow().column("id").to_pylist()
    assert sorted(kept) == sorted([f"k{i:06d}" for i in range(5, 20)] * 3)


# --- parts of a manifest -------------------------------------------------------------------------


def test_a_commit_writes_only_the_lines_of_its_partitions(tmp_path):
    """Over 40 commits to one of 50 partitions few manifests have all lines, and none is lost."""
    table, lines = make(tmp_path / "t"), []
    table.upsert(rows(range(500), 0, parts=50))
    for ts in range(1, 41):
        table.upsert(rows([50 * ts], ts, parts=50))
        lines.append(newest_manifest_of(table).read_bytes().count(b"\n") - 1)
        assert len(list(Path(table.path, FOLDER).glob("manifest-*"))) <= 2 * PARTS
    assert lines.count(1) >= 36 and lines.count(1) + lines.count(50) == 40
    assert table.index_status().pure
    assert index_gaps(open_table(table.path)) == []


@pytest.mark.parametrize("number", range(12))
def test_a_damaged_part_of_a_manifest_costs_no_key(tmp_path, number):
    """Whichever of the manifests is damaged or lost, older lines are right for their files."""
    draw = random.Random(f"part {number}")
    table, model = make(tmp_path / "t"), set(range(120))
    table.upsert(rows(model, 0, parts=12))
    for ts in range(1, 9):
        new = set(draw.sample(range(400), 3))
        table.upsert(rows(new, ts, parts=12))
        model |= new
        if draw.random() < 0.5:
            gone = set(draw.sample(sorted(model), 4))
            table.delete(rows(gone, ts, parts=12))
            model -= gone
    target = draw.choice(sorted(Path(table.path, FOLDER).glob("manifest-*")))
    if number % 2:
        target.unlink()
    else:
        target.write_bytes(damaged_byte(target.read_bytes(), draw, draw.random()))
    assert index_gaps(open_table(table.path)) == []
    assert write_here(table, rows(range(400), 20, parts=12))["found"] >= len(model)
    assert table.to_arrow().num_rows == 400
    assert index_gaps(open_table(table.path)) == []


# --- bounds --------------------------------------------------------------------------------------


def test_the_least_used_partitions_are_dropped_above_the_limit(tmp_path):
    """The index stays below `index_max_bytes`; blooms answer for dropped partitions."""
    table = make(tmp_path / "t", index_max_bytes=6000, index_load_budget=0)
    for part in range(12):
        ids = [i * 12 + part for i in range(100)]
        table.upsert(rows(ids, part, parts=12))
        assert table.index_status().bytes <= 6000
    status = table.index_status()
    assert 0 < status.pure_partitions < 12
    assert not [path for path in status.unloaded if path.startswith("p11/")]
    assert write_here(table, rows(range(1200), 20, parts=12))["found"] == 1200


def test_damaged_lines_do_not_count_against_the_limit(tmp_path):
    """A damaged line does not count against `index_max_bytes` permanently."""
    table = make(tmp_path / "t", index_max_bytes=6000)
    for ts in range(8):
        table.upsert(rows(range(100), ts, parts=1))
        assert table.index_status().pure
        path = newest_manifest_of(table)
        path.write_bytes(path.read_bytes()[:-9])


def test_entries_of_deleted_keys_are_removed(tmp_path):
    """Groups that have lost a quarter of their keys are reported again; merges drop old entries."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(0, 900, 3), 1))
    for ts, start in enumerate(range(0, 600, 60), 2):
        table.delete(rows(range(start, start + 60, 3), ts))
        table.upsert(rows(range(900 + start, 920 + start, 3), ts))
    for ts in range(20, 40):
        table.upsert(rows(range(600, 900, 3), ts))
        table.upsert(rows(range(2000 + ts * 20, 2015 + ts * 20, 3), ts))
    live, status = table.to_arrow().num_rows, table.index_status()
    assert status.entries < 2 * live
    assert index_gaps(open_table(table.path)) == []


def test_an_entry_is_rewritten_a_few_times_only(tmp_path, monkeypatch):
    """Over 200 commits merges write each entry less than four times, in few sections."""
    written: list[int] = []

    def counted(storage, path, instant, entries):
        sections = write_run(storage, path, instant, entries)
        written.extend(s.count for s in sections)
        return sections

    monkeypatch.setattr(upkeep, "write_run", counted)
    table = make(tmp_path / "t", **{"hoodie.parquet.max.file.size": 120_000_000})
    for ts in range(200):
        table.upsert(rows(range(ts * 10, ts * 10 + 10), ts, parts=1))
    assert sum(written) <= 4 * 2000
    manifest = read_manifest(open_table(table.path).storage, newest_manifest_of(table).name)
    assert len(manifest.partition("p0").sections) <= 4 * upkeep.FANOUT
    assert len(list(Path(table.path, RUNS).iterdir())) <= 4 * upkeep.FANOUT


def test_foreign_files_in_the_folder_are_left_alone(tmp_path):
    """A foreign folder among the runs does not stop the cleanup; a foreign name is no manifest."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(30), 0))
    for name in ("runs/.trash.tmp", "0.tmp", "manifest-old"):
        Path(table.path, FOLDER, name).mkdir()
    Path(table.path, FOLDER, "manifest-copy").write_text("x")
    for ts in range(1, 20):
        table.upsert(rows(range(ts * 30, ts * 30 + 6), ts))
    assert table.index_status().pure
    assert len(list(Path(table.path, RUNS).iterdir())) <= 2 * upkeep.FANOUT + 1


def found_in(number: int, wanted: list[tuple[int, str]]) -> int:
    """Return how many groups have that hash."""
    return sum(n == number for n, _ in wanted)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=300), st.lists(st.integers(0, 2**64 - 1)))
@settings(deadline=None)
def test_a_run_finds_every_stored_hash(tmp_path_factory, hashes, others):
    """Each hash is found once in each file group that has it, and no other hash is."""
    folder = tmp_path_factory.mktemp("run")
    storage = LocalStorage(folder)
    put = np.array(hashes, dtype=np.uint64)
    parts = [Entries.of("p", f"g{n}", put[n::3]) for n in range(3)]
    union = Entries.union(parts, [{"g0", "g1", "g2"}] * 3)
    section = write_run(storage, "r.run", "2" * 17, [union])[0]
    view = SectionView(storage.fetch("r.run"), section)
    asked = np.array([*hashes, *others], dtype=np.uint64)
    at, groups = view.find(asked)
    found = sorted(zip(at.tolist(), [view.file_ids[g] for g in groups], strict=True))
    wanted = [
        (n, f"g{g}")
        for n, h in enumerate(asked.tolist())
        for g in range(3)
        if h in put[g::3].tolist()
    ]
    assert found == sorted(wanted)
    one, chosen, several = view.first(asked)
    pairs = zip(one.tolist(), [view.file_ids[g] for g in chosen], strict=True)
    assert sorted(one.tolist()) == sorted({n for n, _ in wanted}) and set(pairs) <= set(wanted)
    assert sorted(several.tolist()) == [n for n in range(len(asked)) if found_in(n, wanted) > 1]


def test_lookups_read_the_lines_of_their_partitions_only(tmp_path):
    """A damaged line affects only its own partition."""
    table = make(tmp_path / "t")
    table.upsert(rows(range(300), 1))
    path = newest_manifest_of(table)
    text = path.read_bytes()
    at = text.index(b'"p1"') + 20
    path.write_bytes(text[:at] + b"#" + text[at + 1 :])
    manifest = read_manifest(open_table(table.path).storage, path.name)
    assert sorted(manifest) == ["p0", "p2"] and manifest.partition("p1") is None
    assert index_gaps(open_table(table.path)) == []


def test_a_line_is_read_once_however_many_files_its_partition_has(tmp_path, monkeypatch):
    """All writers of a partition's hundred files, and the coordinator, need the same line."""
    table, read = make(tmp_path / "t", **{"hoodie.parquet.max.file.size": 1024}), []
    table.upsert(rows(range(100), 1, parts=1))
    parse = PartitionState.parse

    def counted(text: bytes) -> PartitionState | None:
        read.append(text)
        return parse(text)

    monkeypatch.setattr(PartitionState, "parse", counted)
    table.upsert(rows(range(100), 2, parts=1))
    assert table.index_status().files == 100 and len(read) == 3  # tasks, coordinator, status


def test_keys_are_located_where_the_open_instant_put_them(tmp_path):
    """The staged files of an open instant are checked first: the state does not cover them yet."""
    table = open_table(make(tmp_path / "t").path)
    intake, coordinator = Intake(table.config, SCHEMA), WriteCoordinator(table, EventLog())
    keyed = keyed_in_order(rows(range(60), 1), intake)
    first = write_uncommitted(
        coordinator, intake, lambda p: write_in_process(keyed, p, EventLog()), Shape()
    )
    plan = coordinator.plan(coordinator.table.timeline.pending()[0], intake, Shape(), [first])
    files = {
        s.file_id: read_keys(plan.storage.fetch(s.staged_path)).to_pylist() for s in first.statuses
    }
    for status in first.statuses:
        keys = pa.array(files[status.file_id])
        located = BloomStateIndex(plan).locate(status.partition_path, keys)
        assert set(located.to_pylist()) == {status.file_id}


def test_lookups_use_the_newest_files_of_an_open_instant(tmp_path):
    """A file of the open instant that was loaded, and then written again, is loaded again."""
    path = make(tmp_path / "t", **{"hoodie.parquet.small.file.limit": 11_500}).path
    job = LocalJob(open_table(path))
    for number, ids in enumerate(([5], [5, 6], [1, 6]), 1):  # 6 joins the group of 5, 1 fills it
        job.write(rows(ids, number, parts=1))
        job.checkpoint(number)
        job.lose(number)
    job.complete(3)
    assert keys_of(Table.open(path)) == ["k000001", "k000005", "k000006"]
    assert index_gaps(open_table(path)) == []


def test_a_key_stays_where_its_checkpoint_put_it_when_a_file_with_its_hash_is_loaded(
    tmp_path, monkeypatch
):
    """Between two pieces of eager input a file with a key of the same hash is loaded."""
    monkeypatch.setattr(file_keys, "MASK", 0)
    table = make(tmp_path / "t")
    write_elsewhere(table, rows(range(6), 1, parts=1))
    job = LocalJob(open_table(table.path))
    job.write(rows([100], 2, parts=1))
    job.write(rows([3, 100], 3, parts=1))  # loads the file of 3
    job.checkpoint(1)
    job.complete(1)
    assert keys_of(table) == [f"k{i:06d}" for i in [*range(6), 100]]


def test_a_key_stays_where_its_hash_led_it_when_a_file_with_that_hash_is_loaded(
    tmp_path, monkeypatch
):
    """A new key goes to the one group that has its hash, also once there are two such groups."""
    monkeypatch.setattr(file_keys, "MASK", 0)
    table = make(tmp_path / "t")
    write_here(table, rows(range(3), 1, parts=1))
    write_elsewhere(table, rows(range(10, 13), 1, parts=1))
    job = LocalJob(open_table(table.path))
    job.write(rows([100], 2, parts=1))
    job.write(rows([11, 100], 3, parts=1))  # loads the file of 11
    job.checkpoint(1)
    job.complete(1)
    assert keys_of(table) == [f"k{i:06d}" for i in [*range(3), *range(10, 13), 100]]
