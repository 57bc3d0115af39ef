"""Which file group a record goes to: the sequences of Flink's TestBucketAssigner.

With 1000 bytes per file and 100 per row, a new bucket takes ten rows, a small file what fits.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import schema_of

from hoodie_nb import Table
from hoodie_nb.buckets.assigner import BucketAssigner, FileIdAssigner
from hoodie_nb.buckets.index_port import LookupCounts
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan, task_of
from hoodie_nb.buckets.profile import average_record_bytes, small_files
from hoodie_nb.config import WriteOptions
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order
from hoodie_nb.rows.columns import FILE_ID, TASK
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.view.file_groups import FileGroups, FileSlice

OPTIONS = WriteOptions(max_file_bytes=1000, small_file_bytes=1000, record_size_bytes=100)
Sizes = dict[str, dict[str, int]]


class DictIndex:
    """An index backed by a dict from (partition, key) to file id."""

    def __init__(self, known: dict[tuple[str, str], str]) -> None:
        self.known, self.asked = known, []
        self.counts = LookupCounts()

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        self.asked += [(partition, key) for key in keys.to_pylist()]
        found = [self.known.get((partition, key)) for key in keys.to_pylist()]
        return pa.array(found, pa.string())

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        for key, file_id in zip(keys.to_pylist(), file_ids.to_pylist(), strict=True):
            self.known[partition, key] = file_id

    def save(self, name: str) -> None:
        """Do nothing."""


def plan(sizes: Sizes | None = None, *, tasks: int = 1, operation: str = "upsert") -> WritePlan:
    """Return a plan over file groups of the given sizes in bytes, by partition and file id."""
    config = TableConfig("t", ("id",), ("p",), "ts", merge_mode="event_time", schema=schema_of())
    slices = {
        partition: {
            file_id: FileSlice(partition, file_id, "1", f"{file_id}_0-0-0_1.parquet", size)
            for file_id, size in files.items()
        }
        for partition, files in (sizes or {}).items()
    }
    return WritePlan(
        storage=LocalStorage("nowhere"),
        intake=Intake(config, config.schema, operation),
        options=OPTIONS,
        instant_time="20260101000000000",
        staged="",
        groups=FileGroups(slices),
        record_bytes=100,
        shape=Shape(tasks=tasks),
    )


def assigner(given: WritePlan, task: int = 0) -> BucketAssigner:
    """Return the bucket assigner of one task."""
    return BucketAssigner(given, task, EventLog().emit)


def inserts(buckets: BucketAssigner, partition: str, count: int) -> list[str]:
    """Return the file ids that `count` new rows get, one by one."""
    return [file_id for _ in range(count) for file_id, _ in list(buckets.take(partition, 1))]


def rows(keys: Iterable[tuple[str, str]], given: WritePlan) -> pa.Table:
    """Return keyed rows of (partition, key) in order."""
    data = [{"id": key, "p": part, "ts": 1, "v": i} for i, (part, key) in enumerate(keys)]
    return keyed_in_order(pa.Table.from_pylist(data, schema=schema_of()), given.intake)


def assigned(
    keyed: pa.Table, given: WritePlan, index: DictIndex | None = None, *, piece: int = 1 << 20
) -> dict[tuple[str, str], set[str]]:
    """Return the file ids of each (partition, key), for rows that arrive in pieces."""
    pieces = (keyed.slice(i, piece) for i in range(0, keyed.num_rows, piece))
    own = FileIdAssigner(given, index or DictIndex({}), 0, EventLog().emit)
    found: dict[tuple[str, str], set[str]] = {}
    for table in own.assign(pieces):
        for row in table.to_pylist():
            assert row[TASK] == task_of(row[FILE_ID], given.id_tasks)
            found.setdefault((row[PARTITION_PATH], row[RECORD_KEY]), set()).add(row[FILE_ID])
    return found


def test_new_file_ids_hash_to_the_task_that_makes_them() -> None:
    """Flink 1: ids created by task 123 of 200 belong to it; a single task has all small files."""
    buckets = assigner(plan(tasks=200), 123)
    made = inserts(buckets, "par1", 50)
    assert len(set(made)) == 5
    assert {task_of(file_id, 200) for file_id in made} == {123}
    assert all(zlib.crc32(file_id.encode()) % 200 == 123 for file_id in made)
    slices = plan({"par1": dict.fromkeys(set(made), 500)}).groups.partition("par1").values()
    for tasks, task in [(1, 0), (200, 123)]:
        found = {s.file_id for s in small_files(slices, OPTIONS, 100, task, tasks)}
        assert found == set(made)


def test_updates_stay_in_their_file_group() -> None:
    """Flink 2: a known key goes to its file group, in each partition to a different one."""
    known = {("par1", "a"): "f0", ("par1", "b"): "f1", ("par2", "a"): "f0", ("par3", "a"): "f2"}
    given = plan()
    keyed = rows([("par1", "a")] * 3 + list(known), given)
    assert assigned(keyed, given, DictIndex(dict(known))) == {k: {v} for k, v in known.items()}


def test_inserts_share_one_new_bucket_a_partition() -> None:
    """Flink 3: without small files the new rows of a partition go to one new bucket."""
    buckets = assigner(plan())
    made = [inserts(buckets, "par1", 3), inserts(buckets, "par2", 2), inserts(buckets, "par3", 2)]
    assert [len(set(ids)) for ids in made] == [1, 1, 1]
    assert len({ids[0] for ids in made}) == 3


def test_a_full_bucket_is_followed_by_another() -> None:
    """Flink 4: a new bucket takes max size / row size rows, the next row opens another one."""
    made = inserts(assigner(plan()), "par1", 25)
    assert [len(list(group)) for _, group in itertools.groupby(made)] == [10, 10, 5]


def test_inserts_fill_small_files_first() -> None:
    """Flink 5: sizes 850, 990, 700 have room for 1, 0, 3 rows; then a new bucket follows."""
    sizes = {"par1": {"f0": 850, "f1": 990, "f2": 700}, "par2": {"f3": 40}}
    buckets = assigner(plan(sizes))
    made = inserts(buckets, "par1", 5)
    assert made[:4] == ["f0", "f2", "f2", "f2"]
    assert made[4] not in sizes["par1"]
    assert inserts(buckets, "par2", 2) == ["f3", "f3"]
    assert inserts(buckets, "par3", 1)[0] not in ("f0", "f1", "f2", "f3")


@pytest.mark.parametrize("size", [0, 1000, 1001, 5000])
def test_a_file_at_the_limit_or_empty_is_not_small(size: int) -> None:
    """Only files above nothing and below the small file limit take new rows."""
    assert "f0" not in inserts(assigner(plan({"par1": {"f0": size}})), "par1", 3)


def test_each_task_sees_its_own_small_files_only() -> None:
    """Flink 6: small files are divided among tasks by hash; no file gets rows of two tasks."""
    files = {f"f{i}": 500 for i in range(9)}
    given = plan({"par1": files}, tasks=2)
    found = [set(inserts(assigner(given, task), "par1", 40)) & set(files) for task in (0, 1)]
    assert found[0] == {f for f in files if task_of(f, 2) == 0}
    assert found[1] == set(files) - found[0]
    assert found[0]
    assert found[1]


def test_updates_do_not_turn_a_file_into_a_target_for_inserts() -> None:
    """Flink 7: updates of other file groups do not change where new rows go."""
    sizes = {"par1": {"f0": 500, "f2": 995}, "par2": {"f0": 995, "f2": 500}}
    given = plan(sizes)
    index = DictIndex({("par1", "b"): "f0", ("par1", "d"): "f2", ("par2", "a"): "f0"})
    keys = [("par1", k) for k in "abcde"] + [("par2", k) for k in "ab"]
    assert assigned(rows(keys, given), given, index) == {
        ("par1", "a"): {"f0"},
        ("par1", "b"): {"f0"},
        ("par1", "c"): {"f0"},
        ("par1", "d"): {"f2"},
        ("par1", "e"): {"f0"},
        ("par2", "a"): {"f0"},
        ("par2", "b"): {"f2"},
    }


_KEYS = st.lists(
    st.tuples(st.sampled_from(["par1", "par2"]), st.text("abcdef", min_size=1, max_size=2)),
    min_size=1,
    max_size=80,
)


@settings(max_examples=80, deadline=None, database=None)
@given(_KEYS, st.sampled_from([1, 2, 7]), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_assigner_is_a_pure_function_of_the_rows(
    keys: list[tuple[str, str]], piece: int, tasks: int, random: Any
) -> None:
    """The same rows get the same ids, for any order, division into pieces, and repetition."""
    given = plan({"par1": {"f0": 850, "f2": 700}}, tasks=tasks)
    once = assigned(rows(keys, given), given)
    assert all(len(ids) == 1 for ids in once.values())
    shuffled = list(keys)
    random.shuffle(shuffled)
    assert assigned(rows(shuffled, given), given, piece=piece) == once
    assert assigned(rows(sorted(set(keys)), given), given, piece=piece) == once


@settings(max_examples=30, deadline=None, database=None)
@given(_KEYS, st.integers(1, 5))
def test_each_key_is_looked_up_once(keys: list[tuple[str, str]], piece: int) -> None:
    """The index is asked once for each key, even if its rows are in several pieces."""
    given = plan()
    index = DictIndex({})
    assigned(rows(keys, given), given, index, piece=piece)
    assert sorted(index.asked) == sorted(set(keys))


def test_insert_asks_no_index_and_gives_every_row_its_own_room() -> None:
    """`insert` counts each row, including equal keys, and does not use the index."""
    given = plan(operation="insert")
    index = DictIndex({("par1", "a"): "f0"})
    found = assigned(rows([("par1", "a")] * 15, given), given, index)
    assert index.asked == []
    assert len(found["par1", "a"]) == 2
    assert "f0" not in found["par1", "a"]


def commit(written: int, count: int) -> CommitMetadata:
    """Return a commit of two files that wrote so many bytes and rows together."""
    stat = {"totalWriteBytes": written // 2, "numWrites": count // 2}
    rest = {"totalWriteBytes": written - written // 2, "numWrites": count - count // 2}
    return CommitMetadata("UPSERT", {"a": [stat], "b": [rest]})


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([], 100),
        ([(1001, 10)], 101),  # rounded up
        ([(1000, 10)], 100),  # not above the threshold: the estimate
        ([(500, 1), (4000, 8)], 500),  # the newest that is large enough
        ([(3000, 10), (9000, 10)], 300),
        ([(5000, 0)], 100),  # only deletes
    ],
)
def test_the_row_size_is_that_of_the_newest_large_commit(
    commits: list[tuple[int, int]], expected: int
) -> None:
    """The row size comes from the newest commit above the small file limit, else an estimate."""
    assert average_record_bytes([commit(*c) for c in commits], OPTIONS) == expected


@pytest.mark.parametrize(
    ("options", "files"), [({}, 2), ({"hoodie.copyonwrite.record.size.estimate": 1024}, 20)]
)
def test_the_first_files_are_sized_by_their_rows(
    tmp_path: Path, options: dict[str, int], files: int
) -> None:
    """Before any commit a row counts as its bytes in memory, unless the option is set."""
    limit = {"hoodie.parquet.max.file.size": "1 MB", "hoodie.parquet.small.file.limit": 0}
    table = Table.create(
        tmp_path / "t",
        schema=schema_of(),
        record_key="id",
        partition_by="p",
        options={**limit, **options},
    )
    names = [f"k{number:08d}" for number in range(20_000)]
    table.upsert(pa.table([names, ["x"] * 20_000, range(20_000), range(20_000)], schema_of()))
    found = table.file_groups()
    assert len(found) == files
    assert found["size_bytes"].max() <= 1 << 20


def test_a_table_fills_its_small_files_before_it_makes_new_ones(tmp_path: Path) -> None:
    """Two inserts into one partition share a file group until the file is large enough."""
    limits = {"hoodie.parquet.max.file.size": "1 MB", "hoodie.parquet.small.file.limit": "1 MB"}
    table = Table.create(
        tmp_path / "t", schema=schema_of(), record_key="id", partition_by="p", options=limits
    )
    for number in range(3):
        table.insert(pa.table([[f"k{number}"], ["x"], [1], [1]], schema=schema_of()))
    assert len(table.file_groups()) == 1
    packing_off = {**limits, "hoodie.parquet.small.file.limit": 0}
    other = Table.create(
        tmp_path / "u", schema=schema_of(), record_key="id", partition_by="p", options=packing_off
    )
    for number in range(3):
        other.insert(pa.table([[f"k{number}"], ["x"], [1], [1]], schema=schema_of()))
    assert len(other.file_groups()) == 3
