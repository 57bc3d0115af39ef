"""The cost of a small write does not grow with the number of commits before it."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.timeline.commits import encode_commit

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
_looks: Counter[str] | None = None


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _looks is not None and event in ("os.scandir", "os.listdir", "open"):
        where = str(arguments[0])
        if isinstance(arguments[0], int):  # an open folder
            where = os.readlink(f"/proc/self/fd/{arguments[0]}")
        if event != "open":
            name = "timeline" if where.endswith("/.hoodie") else os.path.basename(where)
            _looks["listed " + ("a folder of ours" if "/.hoodie/" in where else name)] += 1
        elif where.endswith(".commit"):
            _looks["commits read"] += 1


sys.addaudithook(_hook)


@contextmanager
def count_accesses() -> Iterator[Counter[str]]:
    """Count the folders that are listed and the commits that are opened."""
    global _looks
    _looks = found = Counter()
    try:
        yield found
    finally:
        _looks = None


def make(path: Path) -> hn.Table:
    """Make an empty table of three partitions."""
    keys = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
    return hn.Table.create(path, schema=SCHEMA, **keys)


def row(number: int) -> pa.Table:
    """Return one row of one of fifty keys."""
    columns = [[f"k{number % 50:02d}"], [f"p{number % 3}"], [number]]
    return pa.table(columns, schema=SCHEMA)


def upserted(table: hn.Table, number: int) -> Counter[str]:
    """Return what one upsert looked at."""
    with count_accesses() as found:
        table.upsert(row(number))
    return found


def test_a_write_lists_the_timeline_twice(tmp_path):
    """A Table lists the timeline when a call starts and before it commits, and few other folders.

    It lists the partition that it cleans, and reads no more for the sixtieth commit than before.
    """
    table = make(tmp_path / "t")
    found = [upserted(table, number) for number in range(60)]
    early, late = found[20], found[59]
    assert late == early
    assert late["listed timeline"] == 2 and late["listed a folder of ours"] <= 8
    assert [late[f"listed {name}"] for name in ("p0", "p1", "p2", "t")] == [0, 1, 0, 0]
    assert late["commits read"] <= 1
    with count_accesses() as two:
        table.upsert(pa.concat_tables([row(60), row(61)]))
    assert two["listed timeline"] == 2 and two["listed a folder of ours"] <= 8, two


def test_a_table_that_was_just_opened_reads_few_commits(tmp_path):
    """A new Table lists each partition again, and reads only the newest commits."""
    make(tmp_path / "t")
    found = [upserted(hn.Table.open(tmp_path / "t"), number) for number in range(71)]
    early, late = found[37], found[70]  # into the same partition, seven commits after archiving
    assert late == early
    assert late["listed timeline"] <= 5 and late["commits read"] <= 32


def calls_of(work: Callable[[], object]) -> int:
    """Return how many Python functions this thread calls for it."""
    made = Counter()
    sys.setprofile(lambda frame, event, argument: made.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return made["call"]


def test_a_write_does_no_work_per_commit_before(tmp_path):
    """A write calls no function for each commit before: 400 more of them cost fewer calls."""
    table = make(tmp_path / "t")
    for number in range(12):
        table.upsert(row(number))
    early = calls_of(lambda: table.upsert(row(12)))
    for _ in range(400):
        commit_elsewhere(tmp_path / "t")
    table.upsert(row(13))  # reads the partitions again, since others have committed
    late = calls_of(lambda: table.upsert(row(15)))  # into the same partition
    assert late - early < 400, (early, late)


def test_a_write_looks_at_no_partition_that_it_leaves_alone(tmp_path):
    """With 40 times as many partitions a write looks at as much; only the first one lists them."""
    found = []
    for count in (3, 120):
        root = tmp_path / f"{count}"
        names = [f"p{number}" for number in range(count)]
        columns = [[f"k{number:02d}" for number in range(count)], names, [0] * count]
        make(root).upsert(pa.table(columns, schema=SCHEMA))
        table = hn.Table.open(root)
        first = upserted(table, 3)
        assert max(first[f"listed {name}"] for name in names) <= 2  # its files, and a first clean
        again = upserted(table, 6)  # into the same partition
        found.append((again, calls_of(partial(table.upsert, row(9)))))
    (few, calls_few), (many, calls_many) = found
    assert few == many
    assert not any(many[f"listed {name}"] for name in names[1:])
    assert calls_many - calls_few < 8 * 117  # it goes through the index's lines, and a commit's


def test_a_file_keeps_no_commit_times_that_no_row_has(tmp_path):
    """A file that is rewritten often has as many commit times as its rows, not as its commits."""
    table = make(tmp_path / "t")
    for number in range(12):
        table.upsert(row(150 * number))  # the same row each time
    table.upsert(row(3))
    newest = max(tmp_path.glob("t/p0/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    stored = pq.ParquetFile(newest, read_dictionary=["_hoodie_commit_time"]).read()
    times = stored["_hoodie_commit_time"].combine_chunks()
    assert sorted(times.dictionary.to_pylist()) == sorted(times.to_pylist())
    assert [stored["ts"].to_pylist(), table.fsck()] == [[1650, 3], []]


def commit_elsewhere(path: Path) -> None:
    """Put an empty commit on the timeline, as another engine would."""
    timeline = open_table(path).timeline
    instant = timeline.begin(timeline.request())
    timeline.complete(instant, encode_commit(instant.requested_time, [], "upsert", {}))


def test_a_commit_of_another_engine_is_seen_by_the_next_write(tmp_path):
    """A Table that is kept builds on what others have committed since its last write."""
    table, other = make(tmp_path / "t"), hn.Table.open(tmp_path / "t")
    for number in range(4):
        (table, other)[number % 2].upsert(row(7))
        commit_elsewhere(tmp_path / "t")
    assert table.to_arrow().num_rows == 1 and len(table.file_groups()) == 1
    assert len(table.history()) == 8 and table.fsck() == []


def test_a_commit_of_another_engine_during_a_write_is_seen_before_the_commit(tmp_path):
    """The listing at the start of a write does not hide a commit that completes during it."""
    table = make(tmp_path / "t")
    table.upsert(row(1))
    failpoints.call("writer.data.post", lambda: commit_elsewhere(tmp_path / "t"), 1)
    try:
        with pytest.raises(ConcurrentWriter, match="another writer changed"):
            table.upsert(row(2))
    finally:
        failpoints.arm("")
    assert table.to_arrow().num_rows == 1 and table.fsck() == []
    table.upsert(row(2))
    assert table.to_arrow().num_rows == 2 and table.fsck() == []


def test_other_threads_list_the_timeline_while_a_write_does_not(tmp_path):
    """Inside `listed_once` only the thread that entered it reuses the listing."""
    make(tmp_path / "t")
    timeline = open_table(tmp_path / "t").timeline
    with timeline.listed_once():
        assert timeline.completed_commits() == []
        commit_elsewhere(tmp_path / "t")
        assert timeline.completed_commits() == []
        with ThreadPoolExecutor(1) as pool:
            assert len(pool.submit(timeline.completed_commits).result()) == 1
        timeline.begin(timeline.request())
        assert [str(i.state) for i in timeline.pending()] == ["inflight"]
    assert len(timeline.completed_commits()) == 1
