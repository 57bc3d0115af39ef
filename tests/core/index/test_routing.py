"""The pipeline `direct`: which task gets a row, and which file group a new key."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_assigner import DictIndex, plan, rows

from hoodie_nb.buckets.assigner import FileIdAssigner
from hoodie_nb.buckets.index_port import Copies
from hoodie_nb.buckets.pipelines import PIPELINES, Shape
from hoodie_nb.buckets.plan import WritePlan, balanced_tasks
from hoodie_nb.events import EventLog
from hoodie_nb.index.routing import KeyRouter, Routed
from hoodie_nb.local.operators import assign_routed
from hoodie_nb.rows.columns import DELETE, FILE_ID, OP, SEQ
from hoodie_nb.rows.taking import sort_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

SIZES = {"p1": {"a": 300, "b": 100, "c": 900}, "p2": {"a": 500}, "p3": {}}
KEYS = [f"k{n}" for n in range(12)]
Known = dict[tuple[str, str], str]


class CopiesIndex(DictIndex):
    """An index in which `twice` keys are also in file group c."""

    twice: frozenset[tuple[str, str]] = frozenset()

    def copies(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> Copies:
        at = [n for n, key in enumerate(keys.to_pylist()) if (partition, key) in self.twice]
        return np.array(at, dtype=np.int64), ["c"] * len(at)


def routed(tasks: int, operation: str = "upsert") -> WritePlan:
    """Return a plan of the pipeline `direct`."""
    return replace(plan(SIZES, operation=operation), shape=Shape(PIPELINES["direct"], tasks=tasks))


def by_task(own: WritePlan, index: DictIndex, chunks: list[pa.Table]) -> dict[int, pa.Table]:
    """Return the rows that each task gets from routers of one chunk each."""
    found = defaultdict(list)
    for chunk in chunks:
        for task, part in KeyRouter(own, index).route(chunk):
            found[task].append(part)
    return {task: pa.concat_tables(parts).unify_dictionaries() for task, parts in found.items()}


def placed(own: WritePlan, task: int, arrived: pa.Table) -> pa.Table:
    """Return the rows of one task with the file ids of all keys."""
    ordered = sort_rows(arrived, (PARTITION_PATH, RECORD_KEY, SEQ))
    assigner = FileIdAssigner(own, Routed(), task, EventLog().emit)
    pieces = [ordered.slice(n, 3) for n in range(0, ordered.num_rows, 3)]
    return pa.concat_tables(assigner.assign(pieces))


@given(
    st.lists(st.tuples(st.sampled_from(["p1", "p2", "p3"]), st.sampled_from(KEYS)), min_size=1),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["a", "b", "c"])),
    st.integers(1, 5),
    st.integers(1, 7),
)
@settings(max_examples=60, deadline=None)
def test_all_rows_of_a_key_reach_one_task_and_one_file_group(written, in_p1, tasks, chunk):
    """A known key goes to its file group's task, a new key to one task and one file group."""
    own, known = routed(tasks), {("p1", key): file_id for key, file_id in in_p1.items()}
    keyed = rows(written, own).take(np.random.default_rng(1).permutation(len(written)))
    chunks = [keyed.slice(n, chunk) for n in range(0, keyed.num_rows, chunk)]
    tasks_of, groups = defaultdict(set), defaultdict(set)
    arrived = by_task(own, DictIndex(dict(known)), chunks)
    for task, part in arrived.items():
        for row in placed(own, task, part).to_pylist():
            key = row[PARTITION_PATH], row[RECORD_KEY]
            tasks_of[key].add(task)
            groups[key].add(row[FILE_ID])
    assert sum(part.num_rows for part in arrived.values()) == len(written)
    assert {len(found) for found in (*tasks_of.values(), *groups.values())} == {1}
    owner = balanced_tasks(own.groups, tasks)
    for key in {*written}:
        ((task,), (file_id,)) = tasks_of[key], groups[key]
        assert file_id == known.get(key, file_id)
        assert owner.get((key[0], file_id), task) == task  # small files belong to one task, too


def test_a_delete_reaches_every_file_group_with_its_key():
    """A key that an `insert` has doubled is deleted in both file groups, by their own tasks."""
    own, index = routed(2), CopiesIndex({("p1", "k1"): "a", ("p1", "k2"): "b"})
    index.twice = frozenset({("p1", "k1")})
    keyed = rows([("p1", "k1"), ("p1", "k2"), ("p1", "k3")], own)
    deletes = pa.array([DELETE] * 3, pa.int8())
    keyed = keyed.set_column(keyed.schema.get_field_index(OP), OP, deletes)
    owner, found = balanced_tasks(own.groups, 2), set()
    for task, part in by_task(own, index, [keyed]).items():
        for row in placed(own, task, part).to_pylist():
            found.add((row[RECORD_KEY], row[FILE_ID]))
            assert owner.get(("p1", row[FILE_ID]), task) == task
    assert {pair for pair in found if pair[0] != "k3"} == {("k1", "a"), ("k1", "c"), ("k2", "b")}


def test_inserted_rows_are_not_looked_up():
    """With `insert` every row is a new record, also one whose key is known."""
    own, index = routed(2, "insert"), DictIndex({("p1", "k1"): "c"})
    (part,) = by_task(own, index, [rows([("p1", "k1"), ("p1", "k1")], own)]).values()
    assert part.num_rows == 2 and part.column(FILE_ID).null_count == 2 and index.asked == []


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_tasks_get_about_the_same_number_of_bytes(tasks):
    """No task has more than another by more than the largest file."""
    sizes = {f"p{n}": {f"{n}-{m}": 100 + 37 * n * m for m in range(5)} for n in range(9)}
    owner, loads = balanced_tasks(plan(sizes).groups, tasks), defaultdict(int)
    for (partition, file_id), task in owner.items():
        loads[task] += sizes[partition][file_id]
    largest = max(size for files in sizes.values() for size in files.values())
    assert len(loads) == tasks and max(loads.values()) - min(loads.values()) <= largest


def test_without_a_large_commit_files_are_sized_by_the_rows():
    """A task that has all rows of its keys knows how long they are: one file takes all of them."""
    own = routed(1)
    options = replace(own.options, max_file_bytes=20_000)
    known, unknown = (replace(own, options=options, record_bytes=n) for n in (1024, None))
    keyed = rows([("p3", f"new{n:03d}") for n in range(100)], own)
    (arrived,) = by_task(own, DictIndex({}), [keyed]).values()
    found = {}
    for name, used in (("known", known), ("unknown", unknown)):
        pieces = list(assign_routed(used, [arrived], 0, EventLog().emit))
        found[name] = len(pa.concat_tables(pieces).column(FILE_ID).unique())
    assert found == {"known": 6, "unknown": 1}
