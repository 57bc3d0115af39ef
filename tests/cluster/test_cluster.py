"""A stream through a Spark cluster of two workers with separate folders, onto an S3 server."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from cluster_hosts import (
    NAMES,
    ROOT,
    WORKERS,
    Cluster,
    await_printed,
    committed,
    in_hudi_rs,
    kill_group,
)
from s3_server import SECRET, Proxy, object_paths

import hoodie_nb as hn

pytestmark = [pytest.mark.spark, pytest.mark.kills]
BATCH_ROWS, KEYS = 500, 600
COLUMNS = ["id", "day", "version", "amount"]


def orders(batches: int) -> dict[str, tuple[object, ...]]:
    """Return the rows by key after so many batches of the example, by a dict."""
    found = dict[str, tuple[object, ...]]()
    for value in range(batches * BATCH_ROWS):
        key = value % KEYS
        found[f"order{key}"] = (f"order{key}", f"day{key % 3}", value, value * 7919 % 1000)
    return found


def by_key(rows: pa.Table) -> dict[str, tuple[object, ...]]:
    """Return rows by key; each key is there once."""
    found = {row["id"]: tuple(row[name] for name in COLUMNS) for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def check(address: str, options: dict[str, str], at_least: int) -> dict[str, tuple[object, ...]]:
    """Compare our reader and hudi-rs with the dict after whole batches; the table is clean.

    Returns the rows.
    """
    table = hn.Table.open(address, storage_options=options)
    rows = by_key(table.to_arrow())
    batches, rest = divmod(max(int(str(row[2])) for row in rows.values()) + 1, BATCH_ROWS)
    assert rest == 0 and batches >= at_least
    assert rows == orders(batches)
    assert by_key(in_hudi_rs(address, options)) == rows
    assert table.fsck() == []
    return rows


def amounts(rows: dict[str, tuple[object, ...]]) -> str:
    """Return what the example prints of its Spark read."""
    days = sorted({str(row[1]) for row in rows.values()})
    sums = (sum(int(str(row[3])) for row in rows.values() if row[1] == day) for day in days)
    return "amounts: " + " ".join(f"{day}={each}" for day, each in zip(days, sums, strict=True))


def secret_in(cluster: Cluster, table: hn.Table) -> list[str]:
    """Return the files of hosts and the objects of the table in which the secret key is."""
    found = [str(path) for path in cluster.files() if SECRET.encode() in path.read_bytes()]
    storage = table._handle.storage
    objects = ((path, Path(storage.fetch(path)).read_bytes()) for path in object_paths(storage))
    return found + [path for path, content in objects if SECRET.encode() in content]


def test_a_host_has_no_file_of_another(cluster) -> None:
    """Else the test below would prove less: folders of other hosts, and the package, are empty."""
    if not cluster.apart:
        pytest.skip("the kernel does not let this user mount")
    (cluster.folder / "west" / "tmp" / "file").write_text("")
    look = ["sh", "-c", f"ls -A ../west ../driver {ROOT}/hoodie_nb; ls tmp; echo done"]
    log = cluster.folder / "east" / "look.log"
    assert cluster.start("east", look, log).wait() == 0
    lines = [line for line in log.read_text().split() if not line.endswith(":")]
    assert lines == ["done"]


def test_a_stream_through_two_workers_is_the_model(cluster, s3_server) -> None:
    """Docs/cluster.md as it is: Arrow, hudi-rs and Spark read the model, and both workers write.

    The package is only where it was shipped to, requests are bounded, the secret key is in no file.
    """
    address, options = s3_server.new_root(), s3_server.options
    with Proxy(s3_server) as proxy:
        process, log = cluster.submit("driver", address, 4, proxy.options)
        await_printed(process, log, "instant_committed", 2)
        asked, seen = proxy.counts.total(), committed(log)
        await_printed(process, log, "instant_committed", 4)
        per_commit = (proxy.counts.total() - asked) / (committed(log) - seen)
        assert process.wait() == 0, log.read_text()[-5000:]
    assert per_commit < 300, "a commit of 6 file groups asks for about 170"
    rows = check(address, options, 4)
    printed = [line for line in log.read_text().splitlines() if "amounts: " in line]
    assert len(printed) == 1, log.read_text()[-5000:]
    assert printed[0].endswith(amounts(rows))  # a warning may have begun the line
    logged = [path.read_text() for path in cluster.files() if path.name.startswith("events_")]
    assert all(f'"Host":"{NAMES[name]}"' in "".join(logged) for name in WORKERS)
    assert secret_in(cluster, hn.Table.open(address, storage_options=options)) == []


def test_keys_on_the_drivers_disk_are_refused_for_tasks(cluster, s3_server) -> None:
    """`index="state"` is refused with the remedies; one of them is to write in the driver."""
    address, options = s3_server.new_root(), s3_server.options
    program = "tests/cluster/state_stream.py"
    process, log = cluster.submit("second", address, 2, options, program=program)
    assert process.wait() == 0, log.read_text()[-5000:]
    (refused,) = re.findall("^refused: (.*)", log.read_text(), re.M)
    assert f"the tasks of {cluster.master} may run on other hosts" in refused
    assert "index='bloom+state'" in refused and "placement='driver'" in refused
    rows = hn.Table.open(address, storage_options=options).to_arrow().to_pylist()
    last = max(row["value"] for row in rows)
    assert last % 10 == 9 and last > 10
    assert sorted(row["value"] for row in rows) == list(range(last - 6, last + 1))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_stream_survives_its_executor_and_its_driver(cluster, s3_server) -> None:
    """An executor and the driver are killed; a driver on another host goes on from the store.

    It has another checkpoint folder, so its source comes again. If it is refused, because the lease
    of the killed one is not over yet, it is started again as a supervisor would.
    """
    address, options = s3_server.new_root(), s3_server.options
    killed, log = cluster.submit("driver", address, 99, options)
    await_printed(killed, log, "instant_committed", 2)
    (executor,) = cluster.executors("east")
    os.kill(executor, signal.SIGKILL)
    await_printed(killed, log, "instant_committed", 4)
    kill_group(killed)
    written = committed(log)
    for _ in range(20):
        process, log = cluster.submit("second", address, written + 2, options)
        if process.wait() == 0:
            break
        assert "ConcurrentWriter" in log.read_text(), log.read_text()[-5000:]
    rows = check(address, options, written + 2)
    assert f"\n{amounts(rows)}\n" in log.read_text()
    assert secret_in(cluster, hn.Table.open(address, storage_options=options)) == []
