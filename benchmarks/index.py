"""Measure the state index: `python benchmarks/index.py [--keys 10000000]`.

Prints Markdown, with ratios from one run: lookups compared with a dict and a plain binary search,
size and write amplification of the runs after commits, cold start; a new job on a table that
another engine wrote; the index's share of an upsert; lookups in a table with many partitions.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.config import WriteOptions
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.index import manifest as manifests
from hoodie_nb.index.file_keys import hash64
from hoodie_nb.index.lookup import BloomStateIndex
from hoodie_nb.index.manifest import RUNS, LoadedGroup, Manifest, PartitionState
from hoodie_nb.index.run import Entries, Section, SectionView, write_run
from hoodie_nb.index.upkeep import _Partition
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.batch import write_arrow
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import STAGED
from hoodie_nb.view.file_groups import FileGroups, FileSlice

T = "20260101000000000"
SCHEMA = pa.schema([("key", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
BATCH = 200_000


def seconds(action: Callable[[], object], times: int = 5) -> float:
    """Return the median CPU seconds of an action."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        action()
        taken.append(time.process_time() - began)
    return median(taken)


def resident_mb() -> float:
    """Return the private memory of this process, without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1000
    return 0.0


def keys(ids: np.ndarray) -> pa.Array:
    """Return record keys of 13 characters."""
    return pa.array(np.char.mod("k%012d", ids).astype(object), pa.string())


# --- runs after commits --------------------------------------------------------------------------


def grow(storage: LocalStorage, count: int) -> tuple[list[Section], int]:
    """Add hashes in commits of `BATCH`, merged as usual; return sections and entries written."""
    rng, old, written = np.random.default_rng(1), PartitionState(T), 0
    groups: dict[str, LoadedGroup] = {}
    storage.make_folder(RUNS)
    for commit in range(count // BATCH):
        file_id = f"{commit // 2:08d}-0000-0000-0000-000000000000-0"  # two batches fill a file
        groups[file_id] = LoadedGroup(T, T, BATCH)
        slices = {i: FileSlice("p", i, T, f"{i}.parquet", 1) for i in groups}
        part = _Partition(storage, T, replace(old, groups=groups), slices)
        part.new.append(Entries.of("p", file_id, rng.integers(0, 1 << 64, BATCH, dtype=np.uint64)))
        merged = part.merged()
        assert merged is not None
        sections = write_run(storage, f"{RUNS}/{commit}.run", T, [merged])
        written += sections[0].count
        old = PartitionState(T, groups, (*part.sections, *sections))
    return list(old.sections), written


def lookups(count: int) -> None:
    """Compare lookups of 200,000 keys, half of them hits."""
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder)
        sections, written = grow(storage, count)
        began, before = time.perf_counter(), resident_mb()
        views = [SectionView(storage.fetch(s.run), s) for s in sections]
        rng = np.random.default_rng(2)
        hits = np.concatenate([rng.choice(v.hashes, BATCH // 2) for v in views])
        absent = rng.integers(0, 1 << 64, BATCH // 2, dtype=np.uint64)
        asked = np.concatenate([rng.choice(hits, BATCH // 2), absent])
        rng.shuffle(asked)
        started, memory = time.perf_counter() - began, resident_mb() - before
        whole = np.sort(np.concatenate([v.hashes for v in views]))
        one = write_run(
            storage, "one.run", T, [Entries("p", ("g",), whole, np.zeros(len(whole), np.uint32))]
        )
        single = SectionView(storage.fetch("one.run"), one[0])
        table = dict.fromkeys(whole[:: max(1, count // 2_000_000)].tolist(), 0)
        listed, names = asked.tolist(), keys(np.arange(BATCH))
        state = seconds(lambda: [view.find(asked) for view in views])
        rows = {
            f"state, {len(views)} sections": state,
            "state, one section": seconds(lambda: single.find(asked)),
            "binary search (numpy)": seconds(lambda: np.searchsorted(whole, asked)),
            f"dict of {len(table):,}": seconds(lambda: [table.get(h) for h in listed]),
            "hashing the keys": seconds(lambda: hash64(names)),
        }
        size = sum(s.length for s in sections)
        print(f"\n### {count:,} keys\n\n| lookup | M keys/s per core |\n| --- | --- |")
        for name, taken in rows.items():
            print(f"| {name} | {BATCH / taken / 1e6:.1f} |")
        print(
            f"\n{size / count:.1f} bytes per key, write amplification {written / count:.2f}, "
            f"opened, with checksums verified, in {started:.2f} s; {memory:.0f} MB of memory"
        )


# --- a table of another engine -------------------------------------------------------------------


def batch(ids: np.ndarray, ts: int, days: int) -> pa.Table:
    """Return a row for each id."""
    day = np.char.mod("d%04d", ids % days).astype(object)
    columns = [keys(ids), pa.array(day, pa.string()), pa.array(np.full(len(ids), ts))]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def write(table: TableHandle, rows: pa.Table, index: str) -> None:
    """Write a batch with the given index."""
    intake, coordinator = Intake(table.config, table.schema), WriteCoordinator(table, EventLog())
    keyed = keyed_in_order(rows, intake)
    with coordinator.committing(intake, Shape(index=index)) as work:
        work.statuses = write_in_process(keyed, work.plan, EventLog())


def existing_table(count: int) -> None:
    """Let a new job upsert into an unknown table, until it is in pure-state mode."""
    with tempfile.TemporaryDirectory() as folder:
        table = hn.Table.create(
            f"{folder}/t",
            schema=SCHEMA,
            record_key="key",
            partition_by="day",
            ordering="ts",
            options={"hoodie.parquet.max.file.size": 12_000_000, "index_load_budget": 4},
        )
        handle, days, step = open_table(table.path), 8, 2_000_000
        for start in range(0, count, step):
            write(handle, batch(np.arange(start, min(start + step, count)), 0, days), "bloom")
        files = table.index_status().files
        print(f"\n### A new job on {count:,} keys in {files} files, {days} partitions\n")
        names = ["batch", "keys", "found", "state hits", "files read", "keys loaded", "loaded"]
        print(f"| {' | '.join([*names, 'index share'])} |\n|{' --- |' * 8}")
        rng, read, pure, number = np.random.default_rng(3), 0, 0, 0
        while pure < 3:
            number += 1
            near = rng.integers(0, count // days, BATCH // 2) * days + rng.integers(0, 2)
            new = count + number * BATCH * days + np.arange(BATCH // 2) * days
            rows = batch(np.concatenate([np.unique(near), np.unique(new)]), number, days)
            looked, share = upsert(handle, rows)
            assert looked["found"] == len(np.unique(near)), "a key was not found"
            read += looked["files_looked_up"]
            pure += looked["pure_partitions"] == looked["partitions"]
            status = table.index_status()
            cells = [f"{looked[n]:,}" for n in ("keys", "found", "state_hits", "files_looked_up")]
            cells += [f"{looked['keys_loaded']:,}", f"{status.loaded_files}/{status.files}"]
            print(f"| {' | '.join([str(number), *cells, f'{share:.0%}'])} |", flush=True)
        print(f"\n{read} files read by lookups")


def upsert(table: TableHandle, rows: pa.Table) -> tuple[dict[str, int], float]:
    """Upsert a batch; return the lookup's counts and the index's share of the time."""
    events, began = EventLog(), time.perf_counter()
    write_arrow(table, rows, "upsert", events)
    took = time.perf_counter() - began
    parts = events.records("index_saved") + events.records("operator_ran")
    index = [e for e in parts if e.values.get("operator") != "BucketWriter"]
    return dict(events.records("index_looked_up")[0].values), (
        sum(e.values["seconds"] for e in index) / took
    )


# --- many partitions -----------------------------------------------------------------------------


def partitions() -> None:
    """Look up a batch of one partition in tables of 1, 100 and 1,000 partitions."""
    print("\n### 20,000 keys of one partition of 200,000\n")
    print("| partitions | ms, manifest read again | ms, cached |\n| --- | --- | --- |")
    asked = keys(np.arange(190_000, 210_000))
    taken = {}
    for count in (1, 100, 1000):
        with tempfile.TemporaryDirectory() as folder:
            plan = plan_beside(LocalStorage(folder), count)

            def locate(plan: WritePlan = plan, forget: bool = False) -> None:
                if forget:
                    manifests._manifests.clear()
                index = BloomStateIndex(plan)
                assert index.locate("p0000", asked).null_count == 10_000

            locate()
            taken[count] = [seconds(lambda f=f: locate(forget=f), 15) for f in (True, False)]
            print(f"| {count:,} | {taken[count][0] * 1e3:.2f} | {taken[count][1] * 1e3:.2f} |")
    print(
        f"\n1,000 against 1: {taken[1000][0] / taken[1][0]:.2f} times, "
        f"{taken[1000][1] / taken[1][1]:.2f} with the manifest cached"
    )


def plan_beside(storage: LocalStorage, count: int) -> WritePlan:
    """Return a plan over `count` partitions with four files each, all loaded."""
    storage.make_folder(RUNS)
    states, slices = {}, {}
    for number in range(count):
        name = f"p{number:04d}"
        ids = [f"{number:08d}-0000-0000-0000-{f:012d}-0" for f in range(4)]
        hashes = hash64(keys(np.arange(200_000 if number == 0 else 1000)))
        entries = [Entries.of(name, i, hashes[f::4]) for f, i in enumerate(ids)]
        union = Entries.union(entries, [set(ids)] * 4)
        sections = write_run(storage, f"{RUNS}/{number}.run", T, [union])
        known = {i: LoadedGroup(T, T, 1) for i in ids}
        states[name] = PartitionState(T, known, tuple(sections), True)
        slices[name] = {i: FileSlice(name, i, T, f"{i}_0_{T}.parquet", 1) for i in ids}
    Manifest().with_states(T, states).save(storage)
    intake: Intake = None  # type: ignore[assignment]  # lookups do not use it
    options, manifest = WriteOptions(), f"{RUNS.rpartition('/')[0]}/manifest-{T}"
    groups = FileGroups(slices, (T,))
    return WritePlan(storage, intake, options, T, f"{STAGED}/x", groups, 1, manifest=manifest)


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=10_000_000)
    args = parser.parse_args()
    lookups(args.keys)
    partitions()
    existing_table(args.keys)


if __name__ == "__main__":
    main()
