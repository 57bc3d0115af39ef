"""A stream and two processes that write batches share a table on a store; some are killed.

`python tests/writers/test_stores.py 120` lets two streams and two batch loops write for two
minutes, and kills them at random moments (`test_stores.py 120 9 merge_on_read` in such a table).
With `--java`, Java Hudi then reads a copy of it on the disk, and writes the copy.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["HOODIE_NB_TESTING"] = "1"

import pytest
from s3_server import Proxy, S3Server
from writers.batch_loop import SCHEMA
from writers.judged import arguments, copied, folder_of_trial, judge, wait_for_commit
from writers.test_batches import check, writer
from writers.test_streams import add_file, starting

from hoodie_nb import Table
from hoodie_nb.storage.addresses import storage_at

FILES = 5
FAULTS = ["503", "503 after", "reset", "reset after", "cut", "slow"]
KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts"}


def lets_fail(proxy: Proxy, seed: int) -> None:
    """Let one request in forty fail, before or after the store has received it."""
    draw = random.Random(seed)
    proxy.fails = lambda *_: draw.choice(FAULTS) if draw.random() < 1 / 40 else None


@pytest.mark.kills
@pytest.mark.parametrize(
    ("version", "table_type", "options", "dies", "deaths"),
    [
        (9, "copy_on_write", (), "coord.prepare.post=kill@3", ("coord.publish.post=kill@3",)),
        (8, "merge_on_read", ("commit_interval=background",), "", ("writer.data.post=kill@6",)),
    ],
)
def test_a_stream_and_two_batch_loops(
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    table_type: str,
    options: tuple[str, ...],
    dies: str,
    deaths: tuple[str, ...],
) -> None:
    """Each file of the stream and each acknowledged batch is in the table once; nobody is refused.

    Requests fail; the stream's first run is killed, a batch loop, and in the end the other one.
    """
    root, address = tmp_path / "t", s3_server.new_root()
    kind = {"table_version": version, "table_type": table_type}
    given = {"storage_options": s3_server.options, **KEYS, **kind}
    Table.create(address, schema=SCHEMA, **given)  # type: ignore[arg-type]
    names = [f"s-{number}" for number in range(FILES)]
    for name in names:
        add_file(tmp_path / "source", name)
    with Proxy(s3_server) as proxy:
        monkeypatch.setenv("STORE", json.dumps(proxy.options))
        lets_fail(proxy, version)
        with contextlib.ExitStack() as processes:
            run = partial(starting, root, "source", address=address)
            other = processes.enter_context(writer(root, "a", -1, address=address))
            if dies:
                with run(dies) as stream:
                    assert stream.wait(200) == -signal.SIGKILL
            stream = processes.enter_context(run("", *options))
            for armed in deaths:
                with writer(root, "b", -1, armed, address=address) as killed:
                    assert killed.wait(200) == -signal.SIGKILL
            with writer(root, "b", 3, address=address) as last:
                assert last.wait(200) == 0
            assert stream.wait(300) == 0
            assert other.poll() is None  # it was not refused
            other.kill()
        assert len(proxy.fired) > 10
    Table.open(address, storage_options=s3_server.options).clean()  # recovers
    found = check(root, len(deaths) + 1, names, address=address, options=s3_server.options)
    assert sum(one[0] != other[0] for one, other in itertools.pairwise(found)) >= 8  # turns


@contextlib.contextmanager
def copied_store(folder: Path) -> Iterator[tuple[S3Server, Proxy, str]]:
    """Start a store for one table; in the end, also of a trial that fails, `folder` has a copy."""
    with S3Server() as server, Proxy(server) as proxy:
        address = server.new_root()
        try:
            yield server, proxy, address
        finally:
            copied(storage_at(address, server.options), folder)


class Trial:
    """Two streams and two batch loops that write for some seconds, killed at random moments."""

    def __init__(self, root: Path, address: str, seconds: float, seed: int) -> None:
        self.root, self.address, self.draw = root, address, random.Random(seed)
        self.until = time.monotonic() + seconds
        self.deaths = dict.fromkeys("abst", 0)
        self.files = {"s": list[str](), "t": list[str]()}

    def batches(self, name: str) -> None:
        """Let a process write batches, killed and started again."""
        while time.monotonic() < self.until:
            with writer(self.root, name, -1, address=self.address) as process:
                end = time.monotonic() + self.draw.uniform(5, 40)
                assert process.stdout is not None
                while time.monotonic() < min(self.until, end):
                    assert process.stdout.readline(), f"{name} has ended"
                time.sleep(self.draw.random() / 10)  # the random moment
            self.deaths[name] += 1

    def streams(self, name: str) -> None:
        """Let a stream run, killed and started again; each run gets four files."""
        while time.monotonic() < self.until:
            for _ in range(4):
                self.files[name].append(f"{name}-{len(self.files[name])}")
                add_file(self.root.with_name(name), self.files[name][-1])
            with self.stream(name, "trigger=200 milliseconds") as process:
                wait_for_commit(process, self.root.with_name(f"{name}-checkpoints"), self.until)
                end = min(self.until, time.monotonic() + self.draw.uniform(1, 40))
                while time.monotonic() < end:
                    assert process.poll() is None, f"the stream {name} has ended"
                    time.sleep(0.1)
            self.deaths[name] += 1

    def stream(
        self, name: str, *options: str
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Start a stream."""
        return starting(self.root, name, "", *options, address=self.address)

    def run(self) -> None:
        """Let them all write until the time is over, then the streams to their ends."""
        with ThreadPoolExecutor() as threads:
            acts = [threads.submit(self.batches, name) for name in "ab"]
            acts += [threads.submit(self.streams, name) for name in "st"]
            for act in acts:
                act.result()
        with self.stream("s") as one, self.stream("t") as other:
            assert (one.wait(900), other.wait(900)) == (0, 0)


def trial(version: int, table_type: str, seconds: float, seed: int, java: bool = False) -> str:
    """Run a trial on a store whose requests fail, and compare the table with the model."""
    kind = {"table_version": version, "table_type": table_type}
    with folder_of_trial() as folder:
        copy = folder / "table"
        with copied_store(copy) as (server, proxy, address):
            options = server.options
            Table.create(address, schema=SCHEMA, storage_options=options, **KEYS, **kind)  # type: ignore[arg-type]
            os.environ["STORE"] = json.dumps(proxy.options)
            lets_fail(proxy, seed)
            done = Trial(folder / "t", address, seconds, seed)
            done.run()
            deaths, names = done.deaths, [*done.files["s"], *done.files["t"]]
            Table.open(address, storage_options=options).clean()
            killed = deaths["a"] + deaths["b"]
            found = check(done.root, killed, names, address=address, options=options)
        verdict = judge(copy, version, table_type) if java else "Java was not asked"
    counts = {name: sum(n.startswith(f"{name}-") for n in found) for name in "abst"}
    turns = sum(one[0] != other[0] for one, other in itertools.pairwise(found))
    failed = f"{len(proxy.fired)} of {proxy.counts.total()} requests failed"
    return (
        f"S3 {version} {table_type}: {counts}, {turns} turns, deaths {deaths}, {failed}, {verdict}"
    )


if __name__ == "__main__":
    given = arguments(__doc__)
    kind = (given.version or 9, given.table_type or "copy_on_write")
    print(trial(*kind, given.seconds, given.seed, given.java))
