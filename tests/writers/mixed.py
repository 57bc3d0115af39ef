"""Two streams and two batch loops write one table; all of them are killed at random moments.

`python tests/writers/mixed.py 150` does it for 150 seconds with each kind of table: versions 6, 8
and 9, both table types (or only the one given: `mixed.py 150 9 merge_on_read`), with the seed 1.
With `--java`, Java Hudi then reads the table, and writes it (run `make oracle` first).
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["HOODIE_NB_TESTING"] = "1"

from writers.judged import arguments, folder_of_trial, judge, wait_for_commit
from writers.test_batches import check, make, writer
from writers.test_streams import add_file, starting

EACH_S = 1.2  # a new file for each stream
KINDS = [(6, "copy_on_write"), *itertools.product((8, 9), ("copy_on_write", "merge_on_read"))]


def batches(root: Path, name: str, until: float, draw: random.Random) -> int:
    """Let a process write batches, killed and started again; return its deaths."""
    deaths = 0
    while time.monotonic() < until:
        with writer(root, name, -1) as process:
            end = min(until, time.monotonic() + draw.uniform(2, 12))
            assert process.stdout is not None
            while time.monotonic() < end:
                assert process.stdout.readline(), f"{name} has ended"
            time.sleep(draw.random() / 50)  # the random moment
        deaths += 1
    return deaths


def streams(root: Path, name: str, until: float, draw: random.Random) -> int:
    """Let a stream run, killed and started again; return its deaths."""
    deaths = 0
    while time.monotonic() < until:
        with starting(root, name, "", "trigger=200 milliseconds") as process:
            wait_for_commit(process, root.with_name(f"{name}-checkpoints"), until)
            left = max(0.0, until - time.monotonic())
            try:
                code = process.wait(min(left, draw.uniform(1, 45)))
            except subprocess.TimeoutExpired:
                deaths += 1  # by the end of `with`
            else:
                raise AssertionError(f"the stream {name} has ended: {code}")
    return deaths


def files(root: Path, name: str, until: float) -> set[str]:
    """Write files for a stream; return their names."""
    names = set[str]()
    for number in itertools.count():
        if time.monotonic() > until:
            return names
        add_file(root.with_name(name), f"{name}-{number}")
        names.add(f"{name}-{number}")
        time.sleep(EACH_S)


def trial(version: int, table_type: str, seconds: float, seed: int, java: bool = False) -> str:
    """Write for some seconds, then let the streams end; compare the table with the model."""
    with folder_of_trial() as folder, ThreadPoolExecutor() as threads:
        root = folder / "table"
        make(root, version, table_type)
        for name in "st":
            root.with_name(name).mkdir()
        until = time.monotonic() + seconds
        acts = {"a": batches, "b": batches, "s": streams, "t": streams}
        running = {
            name: threads.submit(act, root, name, until, random.Random(f"{seed} {name}"))
            for name, act in acts.items()
        }
        sources = [threads.submit(files, root, name, until) for name in "st"]
        deaths = {name: future.result() for name, future in running.items()}
        with starting(root, "s") as one, starting(root, "t") as other:
            assert (one.wait(900), other.wait(900)) == (0, 0)
        streamed = set().union(*(source.result() for source in sources))
        order = check(root, deaths["a"] + deaths["b"], streamed)
        counts = {name: sum(n.startswith(f"{name}-") for n in order) for name in "abst"}
        switches = sum(one[0] != other[0] for one, other in itertools.pairwise(order))
        verdict = judge(root, version, table_type) if java else "Java was not asked"
    done = f"batches {counts}, {switches} turns, deaths {deaths}, {verdict}"
    return f"{version} {table_type}: {done}"


if __name__ == "__main__":
    given = arguments(__doc__)
    for kind in [(given.version, given.table_type)] if given.version else KINDS:
        print(trial(*kind, given.seconds, given.seed, given.java), flush=True)
