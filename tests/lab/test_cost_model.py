"""The cost model: its requests are those that an S3 server received, its CPU time is the fit's."""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from s3_server import Proxy

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import Shape, pipeline_named
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import EventLog
from hoodie_nb.lab.experiments.cost_model import (
    CPU_S,
    Store,
    Workload,
    cost_of,
    cost_table,
    requests_of,
)
from hoodie_nb.lab.experiments.log_costs import (
    APPEND_CPU_S,
    READ_CPU_S,
    compared,
    copy_on_write,
    logs_per_merge,
    merge_on_read,
)
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.lab.rfc.task_threads import write_in_threads
from hoodie_nb.lab.stores.slow_storage import Link
from hoodie_nb.records.sealing import Interval

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import cost_model as fit  # noqa: E402  the benchmarks are no package
import scaling  # noqa: E402

FILE_ROWS, ROW_BYTES = 20, 100
SMALL_FILES = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.parquet.max.file.size": FILE_ROWS * ROW_BYTES,
    "hoodie.copyonwrite.record.size.estimate": ROW_BYTES,
}


@pytest.fixture
def proxy(s3_server) -> Iterator[Proxy]:
    """Start a proxy in front of the S3 server, which counts the requests."""
    with Proxy(s3_server) as counting:
        yield counting


def new_table(root: str, proxy: Proxy, partitions: int, files: int, options: dict = SMALL_FILES):
    """Return a table of so many partitions and files in each, on the store of the proxy."""
    made = hn.Table.create(
        root,
        schema=scaling.SCHEMA,
        **scaling.KEYS,
        options={**options, "hoodie.clean.automatic": False},
        storage_options=proxy.options,
    )
    made.insert(scaling.rows(np.arange(partitions * files * FILE_ROWS), partitions, 0))
    assert len(made.file_groups()) == partitions * files
    return made._handle


def as_sent(predicted: dict[str, float], times: int = 1) -> Counter[str]:
    """Return the predicted requests of so many commits as S3 receives them: a delete is a POST."""
    sent = Counter({kind: round(times * each) for kind, each in predicted.items()})
    sent["POST"] += sent.pop("DELETE")
    return +sent


def workload(partitions: int, files: int, **more: int) -> Workload:
    """Return the workload of batches that update every row of such a table."""
    rows = partitions * files * FILE_ROWS
    sizes = {"rows": rows, "row_bytes": ROW_BYTES, "file_bytes": FILE_ROWS * ROW_BYTES}
    return Workload(**sizes, batch_rows=100 * rows, partitions=partitions, **more)


def run(job: LocalJob, first: int, count: int, batch) -> None:
    """Run checkpoints `first` to `first + count - 1`; `batch` returns the ids of each."""
    for number in range(first, first + count):
        ids, partitions = batch(number)
        job.write(scaling.rows(ids, partitions, number))
        job.checkpoint(number)
        job.complete(number)


@pytest.mark.parametrize(("partitions", "files"), [(1, 1), (4, 1), (1, 4), (4, 3)])
def test_the_requests_of_a_commit_are_those_counted(s3_server, proxy, partitions, files):
    """Over two commits of updates a stream sends exactly the predicted requests of each kind."""
    table = new_table(s3_server.new_root(), proxy, partitions, files)
    job, batch = LocalJob(table), (np.arange(partitions * files * FILE_ROWS), partitions)
    run(job, 1, 2, lambda number: batch)
    proxy.counts.clear()
    run(job, 3, 2, lambda number: batch)
    assert proxy.counts == as_sent(requests_of(workload(partitions, files)), 2)


@pytest.mark.parametrize(("interval", "partitions", "files"), [(2, 4, 2), (4, 1, 2), (8, 2, 1)])
def test_the_requests_of_an_interval_are_those_counted(
    s3_server, proxy, interval, partitions, files
):
    """Each sealed checkpoint adds the predicted requests, however many are sealed already."""
    table = new_table(s3_server.new_root(), proxy, partitions, files)
    job = LocalJob(table, interval=Interval(checkpoints=interval))
    batch = (np.arange(partitions * files * FILE_ROWS), partitions)
    run(job, 1, interval, lambda number: batch)
    proxy.counts.clear()
    run(job, interval + 1, interval, lambda number: batch)
    load = workload(partitions, files, commit_interval=interval)
    assert proxy.counts == as_sent(requests_of(load))


def test_new_keys_add_few_requests(s3_server, proxy):
    """If a batch has new keys, too, eight commits send at most 20 % more requests than predicted.

    Eight is the number of index runs of a partition before they are merged.
    """
    table = new_table(s3_server.new_root(), proxy, 4, 1, {})
    job, old = LocalJob(table), np.arange(4 * FILE_ROWS)
    proxy.counts.clear()
    run(job, 1, 8, lambda n: (np.append(old, 1000 * n + np.arange(8)), 4))
    predicted = as_sent(requests_of(workload(4, 1)), 8)
    assert proxy.counts["LIST"] == predicted["LIST"]  # they are added to the files that exist
    assert 1.0 < proxy.counts.total() / predicted.total() < 1.2


def test_a_further_writer_adds_the_predicted_requests(s3_server, proxy):
    """Each further writer reads the index again, and sends no other requests.

    Writers that read a file of the index at the same time may read it twice: at most twice the GET.
    """
    found = {}
    for tasks in (1, 4):
        table = new_table(s3_server.new_root(), proxy, 2, 4)
        shape = Shape(pipeline_named("step3"), "bloom+state", tasks, "")
        for number in (1, 2):
            proxy.counts.clear()
            rows = scaling.rows(np.arange(8 * FILE_ROWS), 2, number)
            write_in_threads(table, rows, shape, Link(), EventLog())
        found[tasks] = Counter(proxy.counts)
    few, many = (as_sent(requests_of(workload(2, 4, writers=tasks))) for tasks in (1, 4))
    added = {kind: found[4][kind] - found[1][kind] for kind in few}
    predicted = {kind: many[kind] - few[kind] for kind in few}
    assert predicted["GET"] <= added.pop("GET") <= 2 * predicted.pop("GET")
    assert added == predicted


def test_a_large_file_is_uploaded_in_the_predicted_parts(s3_server, proxy):
    """A file of 20 MB is sent in three parts, with one more HEAD and two more POST."""
    schema = pa.schema({"key": pa.string(), "day": pa.string(), "n": pa.int64(), "v": pa.binary()})
    keys = {"record_key": "key", "partition_by": "day", "ordering": "n"}
    counted, predicted = {}, {}
    for value_bytes in (100, 1_000_000):
        table = hn.Table.create(
            s3_server.new_root(), schema=schema, **keys, storage_options=proxy.options
        )
        rows = [(str(i), "x", 0, os.urandom(value_bytes)) for i in range(20)]
        job = LocalJob(table._handle)
        proxy.counts.clear()
        job.write(pa.table([pa.array(c) for c in zip(*rows, strict=True)], schema=schema))
        job.checkpoint(1)
        job.complete(1)
        counted[value_bytes] = Counter(proxy.counts)
        load = Workload(rows=20, row_bytes=value_bytes, batch_rows=2000)
        predicted[value_bytes] = as_sent(requests_of(load))
    small, large = counted.values()
    small_model, large_model = predicted.values()
    assert large - small == large_model - small_model == {"PUT": 2, "HEAD": 1, "POST": 2}


def requests_of_the_page() -> list[list[int]]:
    """Return the table of docs/object-stores.md: files, all requests, and those of each kind."""
    text = (BENCHMARKS.parent / "docs" / "object-stores.md").read_text()
    rows = re.findall(r"^\| \d+ (?:\| \d+ ){6}\|$", text, re.MULTILINE)
    assert rows
    return [[int(cell) for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize("row", requests_of_the_page())
def test_the_page_has_the_requests_of_an_upsert(s3_server, proxy, row):
    """docs/object-stores.md says what the third of three upserts sends, of each kind."""
    files, total, *kinds = row
    made = new_table(s3_server.new_root(), proxy, files, 1)
    table = hn.Table.open(made.storage.root, storage_options=proxy.options)
    for number in (1, 2, 3):
        proxy.counts.clear()
        table.upsert(scaling.rows(np.arange(files * FILE_ROWS), files, number))
    named = dict(zip(("LIST", "GET", "HEAD", "PUT", "POST"), kinds, strict=True))
    assert proxy.counts == named and total == sum(kinds)


def test_a_commit_of_many_files_does_not_read_them_again():
    """The new files pass the driver once, eight are published at once: that takes less than all."""
    sizes = {"rows": 1e9, "row_bytes": 100, "batch_rows": 1e6, "partitions": 100, "writers": 9}
    cost = cost_of(Workload(**sizes), Store(latency_s=0.03, bytes_per_s=1e8))
    assert cost.read_bytes == cost.written_bytes
    assert "coordinator verifies" not in cost.seconds
    assert cost.seconds["coordinator publishes"] == pytest.approx((5 * cost.files + 100) / 8 * 0.03)


def test_the_coefficients_are_those_of_the_fit():
    """`CPU_S` is fitted to one half of the measurements, and predicts the other one within 1.6.

    A fit to new measurements predicts at most 15 % more or less than `CPU_S` does.
    """
    known, others = fit.points(json.loads((BENCHMARKS / "scaling.json").read_text()))
    assert not {(p.law, p.size) for p in known} & {(p.law, p.size) for p in others}
    used, again = np.array(list(CPU_S.values())), fit.fitted(known)
    remedy = "run benchmarks/cost_model.py, and put what it prints into CPU_S and the docs"
    for point in (*known, *others):
        assert point.row @ again == pytest.approx(point.row @ used, rel=0.15), remedy
    assert max(fit.factor(point, used) for point in others) < 1.6, remedy


@pytest.mark.parametrize(
    ("used", "points"),
    [(APPEND_CPU_S, fit.append_points), (READ_CPU_S, fit.read_points)],
    ids=["logs", "reads"],
)
def test_the_coefficients_of_logs_are_those_of_the_fit(used, points):
    """They are fitted to one half of `snapshot.json`, and predict the other one within 1.3."""
    known, others = points(json.loads((BENCHMARKS / "snapshot.json").read_text()))
    coefficients, again = np.array(list(used.values())), fit.fitted(known)
    remedy = "run benchmarks/cost_model.py, and put what it prints into log_costs.py"
    for point in (*known, *others):
        assert point.row @ again == pytest.approx(point.row @ coefficients, rel=0.05), remedy
    assert max(fit.factor(point, coefficients) for point in others) < 1.3, remedy


LOGGED = {"rows": 1e7, "row_bytes": 100, "partitions": 8}


def test_rarer_merges_write_less_and_read_more():
    """Of small batches: each later merge makes batches cheaper, and reads dearer."""
    load = Workload(**LOGGED, batch_rows=1e5)
    costs = [copy_on_write(load), *(merge_on_read(load, count) for count in (1, 3, 10))]
    writes, reads = zip(*costs, strict=True)
    assert list(writes) == sorted(writes, reverse=True) and list(reads) == sorted(reads)
    assert len({*writes}) == len({*reads}) == 4
    frame = compared(load, (1, 10))
    assert list(frame.index) == ["copy-on-write", "merge-on-read, 1 logs", "merge-on-read, 10 logs"]
    assert frame["cheaper up to reads"].notna().tolist() == [False, True, True]


def test_large_batches_are_merged_when_the_logs_outweigh_the_base():
    """A batch of a third of the rows is merged after four logs, whatever the option says."""
    load = Workload(**LOGGED, batch_rows=1e7 / 3)
    assert logs_per_merge(load, 100) == logs_per_merge(load, 4) == 4
    assert merge_on_read(load, 100) == merge_on_read(load, 4) != merge_on_read(load, 3)
    with pytest.raises(InvalidConfig, match="merge_after=0: choose 1 or more"):
        logs_per_merge(load, 0)


def test_a_fit_finds_the_coefficients_that_made_the_points():
    """Coefficients are found exactly from costs without noise, also if one of them is zero."""
    wanted = np.array([0.02, 0.0, 2e-6, 1e-6, 0.01])
    sizes = [("base", 10**6), ("groups", 50), ("batch", 1000), ("timeline", 100), ("timeline", 10)]
    plain = [fit.Point(law, size, fit.workload(law, size), 1.0) for law, size in sizes]
    known = [fit.Point(p.law, p.size, p.load, float(p.row @ wanted)) for p in plain]
    assert fit.fitted(known) == pytest.approx(wanted, abs=1e-12)


def test_fewer_files_and_rarer_commits_cost_less():
    """Batches in fewer partitions, and a commit interval, write less; the limit is named."""
    store = Store(latency_s=0.03, bytes_per_s=1e8, read_price=0.0004, write_price=0.005)
    sizes = {"rows": 1e9, "row_bytes": 100, "batch_rows": 1e6, "partitions": 100, "writers": 8}
    loads = {
        "all": Workload(**sizes),
        "few": Workload(**sizes, touched=5),
        "rare": Workload(**sizes, commit_interval=10),
    }
    every, few, rare = (cost_of(load, store) for load in loads.values())
    assert few.files < every.files and few.price < every.price
    assert rare.load < every.load and rare.requests_per_hour < every.requests_per_hour
    assert every.commit_s == sum(every.seconds.values()) > max(every.seconds.values())
    table = cost_table(loads, store)
    assert list(table.index) == list(loads) and set(table["limit"]) <= set(every.seconds)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"writers": 0}, {"touched": 5}, {"commits": -1}])
def test_an_impossible_workload_is_refused(wrong):
    """A number that must be above 0, or more touched partitions than there are, is refused."""
    sizes = {"rows": 1e6, "row_bytes": 100, "batch_rows": 1e3, "partitions": 4}
    with pytest.raises(InvalidConfig, match=f"{next(iter(wrong))}=.*from 0 to partitions"):
        Workload(**sizes | wrong)


def test_a_long_timeline_is_listed_in_pages():
    """Each commit has three names; with 1,000 names in each page 2,000 commits need six more."""
    load = {"rows": 1e6, "row_bytes": 100, "batch_rows": 1e3}
    few, many = (requests_of(Workload(**load, commits=commits)) for commits in (0, 2000))
    assert many["LIST"] - few["LIST"] == 6 * 6  # the timeline is listed six times
