"""What a second writer brings: `python benchmarks/several_writers.py [--seconds 5]`.

One process writes batches of 2,000 rows into each of its partitions, of 50,000 rows, of a table of
version 9; then two do, with a table each, with partitions of their own, and with the same ones.
Two with a table each share the machine alone, not a lock: more than that is not to be had. Each arm
writes for some seconds into new tables, three times, in turn. Prints Markdown: the batches of one
process in a second, and the ratios of the others' medians to it. Each table is compared with a dict
that applied the batches in the order of their commits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from hoodie_nb import Table

ROUNDS, ROWS, BATCH = 3, 50_000, 2_000
ARMS = {  # for each process the table, and the half of its partitions
    "one, batches a second": [(0, "a")],
    "two, a table each": [(0, "a"), (1, "a")],
    "two, own partitions": [(0, "a"), (0, "b")],
    "two, same partitions": [(0, "a"), (0, "a")],
}
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.string())])


def rows(half: str, partitions: int, keys: np.ndarray, value: str) -> pa.Table:
    """Return rows with these keys in each partition of a half of the table."""
    paths = np.repeat([f"{half}{number}" for number in range(partitions)], len(keys))
    same = paths, np.zeros(len(paths), np.int64), [value] * len(paths)
    return pa.table([np.tile(keys, partitions), *same], schema=SCHEMA)


def keys_of(value: str, size: int, batch: int) -> np.ndarray:
    """Return the keys of a batch, which its value decides."""
    return np.random.default_rng([*value.encode()]).choice(size, batch, replace=False)


def loop(root: str, name: str, half: str, *numbers: str) -> None:
    """Write batches while there is a file `go`; print the value and the instant of each."""
    table = Table.open(root)
    size, batch, partitions = map(int, numbers)
    print("ready", flush=True)
    sys.stdin.readline()
    number = 0
    while os.path.exists(Path(root).with_name("go")):
        number += 1
        value = f"{name}-{number}"
        keys = keys_of(value, size, batch)
        done = table.upsert(rows(half, partitions, keys, value), wait="60 seconds")
        assert done is not None
        print(json.dumps([done.requested_time, value, half]), flush=True)


def trial(arm: list[tuple[int, str]], table_type: str, seconds: float, numbers: list[int]) -> int:
    """Let each process of an arm write; return how many batches were committed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        go = Path(folder, "go")
        tables = [stored(Path(folder, f"t{number}"), table_type, numbers) for number in range(2)]
        processes = []
        for number, (place, half) in enumerate(arm):
            arguments = [str(Path(folder, f"t{place}")), f"w{number}", half, *map(str, numbers)]
            command = [sys.executable, __file__, "--loop", *arguments]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            processes.append(stack.enter_context(subprocess.Popen(command, text=True, **pipes)))
            stack.callback(processes[-1].kill)
        for process in processes:
            process.stdout.readline()
        go.touch()
        for process in processes:
            print(file=process.stdin, flush=True)
        time.sleep(seconds)
        go.unlink()
        done: list[list[list[str]]] = [[], []]  # for each table
        for process, (place, _) in zip(processes, arm, strict=True):
            done[place] += map(json.loads, process.communicate()[0].splitlines())
        for table, lines in zip(tables, done, strict=True):
            check(table, sorted(lines), *numbers)
        return sum(map(len, done))


def stored(root: Path, table_type: str, numbers: list[int]) -> Table:
    """Make a table with all keys in both halves of its partitions."""
    size, _, partitions = numbers
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    table = Table.create(root, schema=SCHEMA, table_version=9, table_type=table_type, **keys)
    for half in "ab":
        table.upsert(rows(half, partitions, np.arange(size), "stored"))
    return table


def check(table: Table, done: list[list[str]], size: int, batch: int, partitions: int) -> None:
    """Compare the table with the batches in the order of their instants."""
    paths = [f"{half}{number}" for half in "ab" for number in range(partitions)]
    wanted = {(path, key): "stored" for path in paths for key in range(size)}
    for _, value, half in done:
        for key in keys_of(value, size, batch).tolist():
            wanted |= {(path, key): value for path in paths if path.startswith(half)}
    found = table.to_arrow(columns=["p", "id", "v"])
    pairs = zip(found["p"].to_pylist(), found["id"].to_pylist(), strict=True)
    assert found.num_rows == len(wanted)
    assert dict(zip(pairs, found["v"].to_pylist(), strict=True)) == wanted
    assert table.fsck() == []


def measure(table_type: str, partitions: int, seconds: float) -> str:
    """Return one line of the table."""
    done: dict[str, list[int]] = {name: [] for name in ARMS}
    for _ in range(ROUNDS):
        for name, arm in ARMS.items():
            done[name].append(trial(arm, table_type, seconds, [ROWS, BATCH, partitions]))
    one, *others = (median(counts) for counts in done.values())
    ratios = " | ".join(f"{other / one:.2f}" for other in others)
    return f"| {table_type} | {partitions} | {one / seconds:.0f} | {ratios} |"


def main() -> None:
    """Measure both types of tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    print(f"| table | partitions of a process | {' | '.join(ARMS)} |\n{'|---' * 6}|")
    for table_type in ("copy_on_write", "merge_on_read"):
        for partitions in (1, 4):
            print(measure(table_type, partitions, seconds), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        loop(*sys.argv[2:])
    else:
        main()
