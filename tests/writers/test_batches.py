"""Two processes write batches to one table, with `wait=`; one of them is killed again and again.

`python tests/writers/test_batches.py 60` lets them write for a minute, and kills at random moments.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest
from core.tables import canonical, hudi_rows, without_meta
from test_object_faults import in_hudi_rs
from writers.batch_loop import MARKS, SCHEMA, acknowledged, model

from hoodie_nb import Table
from hoodie_nb.types.schema import COMMIT_TIME

LOOP = Path(__file__).with_name("batch_loop.py")
TESTS = LOOP.parents[1]
DEATHS = {
    (8, "merge_on_read"): ("coord.requested.post", "coord.publish", "coord.commit.post"),
    (9, "copy_on_write"): ("writer.data.post", "coord.publish.post", "coord.index.pre"),
}


@contextmanager
def writer(
    root: Path, name: str, count: int, armed: str = "", *, address: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes `count` batches; its output has a line for each of them.

    With an `address` the table is there, and `root` is the name of the trial.
    """
    paths = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    env = os.environ | {"PYTHONPATH": paths, "HOODIE_NB_FAILPOINTS": armed}
    table = address or str(root)
    command = [sys.executable, str(LOOP), table, str(log(root, name)), name, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_at(root: Path, name: str, points: Iterable[str], passes: int) -> None:
    """Let a process write until it dies at a failpoint, one after the other."""
    for point in points:
        with writer(root, name, -1, f"{point}=kill@{passes}") as killed:
            assert killed.wait(60) == -signal.SIGKILL


def log(root: Path, name: str) -> Path:
    """Return where a writer logs its batches."""
    return root.with_name(f"{name}.log")


def make(root: Path, version: int, table_type: str) -> Table:
    """Create the table of a trial."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    return Table.create(root, schema=SCHEMA, table_version=version, table_type=table_type, **keys)


def check(
    root: Path,
    deaths: int,
    streamed: Iterable[str] = (),
    *,
    address: str = "",
    options: dict[str, str] | None = None,
) -> list[str]:
    """Compare the table with the batches in the order of their commits; return their names.

    Of each process that was killed one batch may be in the table without an acknowledgement; those
    that were `streamed` must be.
    """
    table = Table.open(address or root, storage_options=options)
    found = table.to_arrow()
    marks = found.filter(pc.starts_with(found["p"], MARKS))
    instants = dict(zip(marks["id"].to_pylist(), marks[COMMIT_TIME].to_pylist(), strict=True))
    done = {k: v for name in "abAB" for k, v in acknowledged(log(root, name)).items()}
    assert done.items() <= instants.items()
    assert instants.keys() >= {*streamed}
    assert len(instants.keys() - {*streamed}) - len(done) <= deaths
    commits = table.history().sort_values("requested_time")
    assert commits["completion_time"].is_monotonic_increasing  # turns: one after the other
    names = sorted(instants, key=lambda name: (instants[name], name))
    wanted = canonical(model(names).values())
    assert without_meta(found) == wanted
    assert (without_meta(in_hudi_rs(address, options)) if options else hudi_rows(root)) == wanted
    found = table.fsck()
    assert found == [], found
    return names


@pytest.mark.kills
@pytest.mark.parametrize(("version", "table_type"), DEATHS)
def test_two_processes_lose_and_double_nothing(
    tmp_path: Path, version: int, table_type: str
) -> None:
    """Each acknowledged batch of both is in the table once, in the order of the commits."""
    root = tmp_path / "t"
    make(root, version, table_type)
    with writer(root, "a", -1) as other:
        kill_at(root, "b", DEATHS[version, table_type], 4)
        with writer(root, "b", 5) as last:
            assert last.wait(60) == 0
        other.kill()
    assert Table.open(root).upsert([{"id": "end", "p": "end", "ts": 0, "v": "end"}]) is not None
    Table.open(root).delete([{"id": "end", "p": "end", "ts": 0}])
    names = check(root, 4)
    turns = sum(1 for one, other_ in itertools.pairwise(names) if one[0] != other_[0])
    assert turns >= 12


@pytest.mark.kills
@pytest.mark.parametrize(("version", "table_type"), DEATHS)
def test_two_processes_write_other_partitions_at_the_same_time(
    tmp_path: Path, version: int, table_type: str
) -> None:
    """Most batches are written while the other process has the lock; nothing is lost or doubled."""
    root = tmp_path / "t"
    make(root, version, table_type)
    with writer(root, "A", -1) as other:
        kill_at(root, "B", DEATHS[version, table_type], 9)
        with writer(root, "B", 40) as last:
            assert last.stdout is not None
            fits = [int(line.split()[2]) for line in last.stdout]
            assert last.wait(60) == 0
        other.kill()
    assert len(fits) == 40
    assert fits[-1] >= 20
    Table.open(root).clean()  # recovers from the end of the other process
    check(root, 5)


def main(seconds: str, seed: str = "1") -> None:
    """Let two processes write for some seconds; kill one of them at random moments."""
    draw = random.Random(int(seed))
    until = time.monotonic() + float(seconds)
    for version, table_type in itertools.product((8, 9), ("copy_on_write", "merge_on_read")):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "t")
            make(root, version, table_type)
            until = time.monotonic() + float(seconds)
            deaths = 1
            with writer(root, "a", -1) as other:
                while time.monotonic() < until:
                    with writer(root, "b", -1) as killed:
                        for _ in range(draw.randrange(1, 30)):
                            assert killed.stdout is not None
                            killed.stdout.readline()
                        time.sleep(draw.random() / 50)  # the random moment
                        killed.kill()
                        deaths += 1
                other.kill()
            Table.open(root).clean()  # recovers
            names = check(root, deaths)
            by = {name: sum(n[0] == name for n in names) for name in "ab"}
            print(f"version {version}, {table_type}: {by} batches, {deaths} deaths", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
