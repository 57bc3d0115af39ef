"""A stream and two processes that write batches share a table on a store; some are killed.

`python tests/writers/test_stores.py 120` lets two streams and two batch loops write for two
minutes, and kills them at random moments.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["HOODIE_NB_TESTING"] = "1"

import pytest
from s3_server import Proxy, S3Server
from writers.batch_loop import SCHEMA
from writers.test_batches import check, writer
from writers.test_streams import add_file, starting

from hoodie_nb import Table

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


def trial(seconds: float, seed: int) -> str:
    """Let two streams and two batch loops write, kill them at random moments, and compare."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, S3Server() as server, Proxy(server) as proxy:
        root, address = Path(folder, "t"), server.new_root()
        Table.create(address, schema=SCHEMA, storage_options=server.options, **KEYS)
        os.environ["STORE"] = json.dumps(proxy.options)
        lets_fail(proxy, seed)
        until = time.monotonic() + seconds
        deaths = dict.fromkeys("abst", 0)
        files = {"s": list[str](), "t": list[str]()}

        def batches(name: str) -> None:
            while time.monotonic() < until:
                with writer(root, name, -1, address=address) as process:
                    end = time.monotonic() + draw.uniform(5, 40)
                    assert process.stdout is not None
                    while time.monotonic() < min(until, end):
                        assert process.stdout.readline(), f"{name} has ended"
                    time.sleep(draw.random() / 10)  # the random moment
                deaths[name] += 1

        def streams(name: str) -> None:
            while time.monotonic() < until:
                for _ in range(4):
                    files[name].append(f"{name}-{len(files[name])}")
                    add_file(root.with_name(name), files[name][-1])
                with starting(
                    root, name, "", "trigger=200 milliseconds", address=address
                ) as process:
                    end = min(until, time.monotonic() + draw.uniform(20, 60))
                    while time.monotonic() < end:
                        assert process.poll() is None, f"the stream {name} has ended"
                        time.sleep(0.1)
                deaths[name] += 1

        with ThreadPoolExecutor() as threads:
            acts = [
                threads.submit(act, n) for act, ns in ((batches, "ab"), (streams, "st")) for n in ns
            ]
            for act in acts:
                act.result()
        for name in files:
            with starting(root, name, address=address) as process:
                assert process.wait(300) == 0
        names = [*files["s"], *files["t"]]
        Table.open(address, storage_options=server.options).clean()
        killed = deaths["a"] + deaths["b"]
        found = check(root, killed, names, address=address, options=server.options)
        counts = {name: sum(n.startswith(f"{name}-") for n in found) for name in "abst"}
        turns = sum(one[0] != other[0] for one, other in itertools.pairwise(found))
    return f"{counts} commits, {turns} turns, deaths {deaths}, {len(proxy.fired)} failed requests"


if __name__ == "__main__":
    print(trial(float(sys.argv[1]), int((*sys.argv, "1")[2])))
