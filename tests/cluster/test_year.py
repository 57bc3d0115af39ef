"""The year of flights through the cluster of two workers, onto an S3 server.

    make cluster                    # HOODIE_NB_DAYS=20 make cluster: with fewer flight dates

It prints events per second and requests per commit.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import obstore
import pytest
from cluster_hosts import Cluster, await_printed, committed, in_hudi_rs, kill_group
from pyarrow import parquet
from s3_server import Proxy
from year_stream import FILES, events_of

import hoodie_nb as hn
from hoodie_nb.lab.experiments import flights
from hoodie_nb.programs.verify import differences

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PROGRAM = "tests/cluster/year_stream.py"
DAYS = int(os.environ.get("HOODIE_NB_DAYS", "365"))


def put_events(address: str, options: dict[str, str], days: int) -> tuple[int, int]:
    """Put the events, 5 % of them repeated, late or out of order.

    Returns their number and that of micro-batches.
    """
    events, store = flights.event_table(days=days, disorder=0.05), events_of(address, options)
    batches = days // FILES + 1
    rows = -(-events.num_rows // (batches * FILES))
    for number in range(batches * FILES):
        content = io.BytesIO()
        parquet.write_table(events.slice(number * rows, rows), content)
        obstore.put(store, str(number), content.getvalue())
    return events.num_rows, batches


def check(address: str, options: dict[str, str], days: int, host: Path) -> None:
    """Compare our reader, hudi-rs and Spark with what pandas computes from the flights."""
    table, board = hn.Table.open(address, storage_options=options), flights.board(days=days)
    in_spark = parquet.read_table(host / "spark.parquet")
    for found in (table.to_arrow(meta=False), in_hudi_rs(address, options), in_spark):
        assert differences(found, board) == []
    assert table.fsck() == []


def taken_over(
    cluster: Cluster, address: str, batches: int, options: dict[str, str]
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the program on another host, as a supervisor would, until it commits.

    It is refused until the lease of the killed driver is over.
    """
    for _ in range(20):
        process, log = cluster.submit("second", address, batches, options, program=PROGRAM)
        while process.poll() is None:
            if committed(log):
                return process, log
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert "ConcurrentWriter" in log.read_text(), log.read_text()[-5000:]
    raise AssertionError("the lease of the killed driver is never over")


def executor_of(cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait for the executor of a running program on the first host; return its process id."""
    while not (found := cluster.executors("east")):
        assert process.poll() is None, log.read_text()[-5000:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    (executor,) = found
    return executor


def files_written(log: Path) -> list[int]:
    """Return how many files each commit of a program has written."""
    return [
        int(n) for n in re.findall("^instant_committed .*'files': (.+?),", log.read_text(), re.M)
    ]


def counted(
    proxy: Proxy, process: subprocess.Popen[bytes], log: Path, batches: int
) -> list[tuple[int, ...]]:
    """Return the requests, commits and files of each quarter of the micro-batches."""
    asked, found = Counter[bool](), list[tuple[int, ...]]()
    proxy.fails = lambda number, method, path: asked.update(["/table" in path])  # not the source
    first = len(files_written(log))
    for quarter in (1, 2, 3, 4):
        before, done = asked[True], len(files_written(log))
        await_printed(process, log, "instant_committed", first + (batches - first) * quarter // 4)
        files = files_written(log)[done:]
        found.append((asked[True] - before, len(files), sum(files)))
    return found


@pytest.mark.timeout(3600)
def test_the_year_survives_its_executor_and_its_driver(cluster, s3_server, capsys) -> None:
    """Our reader, hudi-rs and Spark read the board that pandas computes from the year itself.

    An executor is killed at a quarter of the year, the driver at a half. A driver on another host,
    which has nothing but the store, reads the year again from its start. The requests of a commit
    depend on how many files it writes, and not on the size of the table.
    """
    address, options = s3_server.new_root(), s3_server.options
    events, batches = put_events(address, options, DAYS)
    killed, log = cluster.submit("driver", address, batches, options, program=PROGRAM)
    await_printed(killed, log, "batch_started", max(batches // 4, 1))
    os.kill(executor_of(cluster, killed, log), signal.SIGKILL)
    await_printed(killed, log, "batch_ended", batches // 2)  # its commit has just begun
    kill_group(killed)
    with Proxy(s3_server) as proxy:
        process, log = taken_over(cluster, address, batches, proxy.options)
        quarters = counted(proxy, process, log, batches)
        assert process.wait() == 0, log.read_text()[-5000:]
    (took,) = re.findall("^streamed in seconds: (.*)", log.read_text(), re.M)
    with capsys.disabled():
        print(f"\n{events:,} events in {took} s: {events / float(took):,.0f} a second")
        for asked, commits, files in quarters:
            print(f"{asked:,} requests for {commits} commits of {files:,} files")
    check(address, options, DAYS, log.parent)
    for asked, commits, files in quarters:  # one commit more: it may begin a quarter earlier
        assert asked <= 60 * (commits + 1) + 25 * files


@pytest.mark.timeout(1200)
def test_a_driver_that_starts_again_on_its_host_loses_nothing(cluster, s3_server) -> None:
    """With its checkpoint folder a killed driver goes on where it was, for a month of flights.

    The lease of the killed one is free at once, and no micro-batch that was committed runs again.
    """
    address, options, days = s3_server.new_root(), s3_server.options, 31
    _, batches = put_events(address, options, days)
    killed, log = cluster.submit("driver", address, batches, options, program=PROGRAM)
    await_printed(killed, log, "batch_ended", 2)
    kill_group(killed)
    process, log = cluster.submit("driver", address, batches, options, program=PROGRAM)
    assert process.wait() == 0, log.read_text()[-5000:]
    begun = [int(n) for n in re.findall("^batch_started .*: (.+)}", log.read_text(), re.M)]
    assert begun[:2] == [0, 1] and 0 not in begun[2:] and batches - 1 in begun[2:]
    check(address, options, days, log.parent)
