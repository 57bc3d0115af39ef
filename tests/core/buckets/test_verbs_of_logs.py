"""Inserts, overwrites, conditions and merges of merge-on-read tables: the rows of copy-on-write."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tables import hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("many_logs")
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
KEYS = {"record_key": "id", "partition_by": "p"}
APPENDS = {"hoodie_nb.append.above.bytes": 0}
Row = dict[str, Any]


def row(key: str, ts: int, v: int = 0, p: str = "a") -> Row:
    """Return a row."""
    return {"id": key, "p": p, "ts": ts, "v": v}


def make(root: Path, ordering: str | None = "ts", version: int = 9, **options: Any) -> Table:
    """Create a merge-on-read table in which every slice may get logs."""
    how = {"table_type": "merge_on_read", "table_version": version, "ordering": ordering}
    return Table.create(root, schema=SCHEMA, options={**APPENDS, **options}, **KEYS, **how)


def found(table: Table) -> list[str]:
    """Return the rows as text, sorted; hudi-rs must read the same."""
    rows = without_meta(Table.open(table.path).to_arrow(meta=False))
    assert hudi_rows(table.path) == rows
    return rows


def rows_of(table: Table) -> list[tuple[str, int]]:
    """Return key and value of each row."""
    found(table)
    return sorted((r["id"], r["v"]) for r in Table.open(table.path).to_arrow().to_pylist())


def logs(table: Table) -> list[int]:
    """Return how many logs each slice has."""
    return sorted(len(piece.logs) for piece in Table.open(table.path)._handle.file_groups())


def steps(draw: random.Random, table: Table) -> Iterator[tuple[str, tuple[Any, ...], Row]]:
    """Yield random calls: name, arguments, and arguments by name.

    Which of its copies an upsert changes depends on names of files: keys with copies get none.
    """
    for number in range(24):
        held = Counter(r["id"] for r in Table.open(table.path).to_arrow().to_pylist())
        single = [f"k{n}" for n in range(30) if held[f"k{n}"] < 2]
        keys = draw.sample(single, draw.randint(1, min(9, len(single))))
        ts = draw.randrange(6) + number // 4
        batch = [row(key, ts, number, "ab"[int(key[1:]) % 2]) for key in keys]
        some = [row(f"k{n}", ts, number, "ab"[n % 2]) for n in draw.sample(range(30), 4)]
        call = draw.choice([*3 * ("upsert", "delete"), *CALLS])
        if call in ("update", "delete where"):
            where = draw.choice([f"v < {number // 3}", "ts < 2", "id > 'k25'", "p = 'c'"])
            values = draw.choice([{"v": "v + 100"}, {"ts": "ts + 3", "v": 7}])
            yield (
                call.split()[0],
                (),
                {"where": where, **({"set": values} if " " not in call else {})},
            )
        elif call == "delete":
            few = [{"id": r["id"], "p": r["p"]} for r in some]
            yield call, (draw.choice([few, some]),), {}
        elif call in ("merge", "upsert"):
            yield call, (batch,), {}
        else:
            yield call, (some,), {}


CALLS = ("insert", "bulk_insert", "update", "delete where", "merge", "insert_overwrite")


def call(table: Table, name: str, given: tuple[Any, ...], named: Row) -> None:
    """Call a method of a table that was opened again."""
    table = Table.open(table.path)
    if name == "merge":
        merge = table.merge(*given).when_matched_delete(where="target.v < 4")
        merge.when_matched_update().when_not_matched_insert().execute()
    else:
        getattr(table, name)(*given, **named)


@pytest.mark.parametrize("ordering", ["ts", None])
@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("seed", range(5))
def test_random_calls_leave_the_rows_of_copy_on_write(
    tmp_path: Path, version: int, ordering: str | None, seed: int
) -> None:
    """After each call; and hudi-rs reads the same rows."""
    other = Table.create(tmp_path / "o", schema=SCHEMA, ordering=ordering, **KEYS)
    table = make(tmp_path / "t", ordering, version)
    most = 0
    done = []
    for name, given, named in steps(random.Random(seed), other):
        done.append((name, given, named))
        call(other, name, given, named)
        call(table, name, given, named)
        assert found(table) == without_meta(Table.open(other.path).to_arrow(meta=False)), done[-3:]
        most = max(most, *logs(table), 0)
    assert most >= 1


def test_a_key_with_copies_in_a_file_gets_no_log(tmp_path: Path) -> None:
    """A log would change the first copy only; a slice of single rows gets one."""
    table = make(tmp_path / "t")
    table.bulk_insert([row("k1", 1, 1), row("k1", 1, 2), row("k2", 1)])
    table.upsert([row("k1", 2, 3)])
    assert logs(table) == [0]
    assert rows_of(table) == [("k1", 3), ("k1", 3), ("k2", 0)]
    table.delete([{"id": "k1", "p": "a"}])
    assert rows_of(table) == [("k2", 0)]
    table.upsert([row("k2", 3, 4)])
    assert logs(table) == [1]
    assert rows_of(table) == [("k2", 4)]


@pytest.mark.parametrize("add", ["insert", "bulk_insert"])
def test_an_upsert_changes_the_row_that_lives(tmp_path: Path, add: str) -> None:
    """Not the one that a log has deleted, whose key is still in its base file."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1) for n in range(3)])
    table.delete([{"id": "k1", "p": "a"}])
    getattr(table, add)([row("k1", 1, 1)])
    assert logs(table) == [0, 1]
    table.upsert([row("k1", 2, 2)])
    assert rows_of(table) == [("k0", 0), ("k1", 2), ("k2", 0)]
    table.delete([{"id": "k1", "p": "a"}])
    table.upsert([row("k1", 1, 3)])
    assert rows_of(table) == [("k0", 0), ("k1", 3), ("k2", 0)]


def test_an_insert_merges_the_slice_that_it_fills(tmp_path: Path) -> None:
    """A slice that is due is written with its logs; another one gets no new rows."""
    table = make(tmp_path / "t", **{"hoodie.compact.inline.max.delta.commits": 1})
    table.upsert([row(f"k{n}", 1) for n in range(3)])
    table.insert([row("n1", 1)])
    assert logs(table) == [0, 0]
    table.upsert([row("k1", 2, 2), row("n1", 2, 2)])
    assert logs(table) == [1, 1]
    table.insert([row("k1", 1, 5), row("n2", 1)])
    assert logs(table) == [0, 1]
    both = [("k1", 2), ("k1", 5)]
    assert rows_of(table) == [("k0", 0), *both, ("k2", 0), ("n1", 2), ("n2", 0)]


def test_conditions_see_merged_rows(tmp_path: Path) -> None:
    """The base file's old value of a row does not match any more, its log's does."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1, n) for n in range(4)])
    table.upsert([row("k1", 2, 10), row("k2", 2, 0)])
    assert logs(table) == [1]
    table.delete(where="v = 1")
    assert rows_of(table) == [("k0", 0), ("k1", 10), ("k2", 0), ("k3", 3)]
    table.update(where="v = 0", set={"v": "ts + 50"})
    assert rows_of(table) == [("k0", 51), ("k1", 10), ("k2", 52), ("k3", 3)]
    table.upsert([row("k3", 2, 30)])
    table.delete(where="v >= 30")
    assert rows_of(table) == [("k1", 10)]
    table.upsert([row("k3", 1, 8), row("k1", 1, 8)])
    assert rows_of(table) == [("k1", 10), ("k3", 8)]


def test_a_merge_inserts_a_deleted_key_where_it_was(tmp_path: Path) -> None:
    """Its key is still in that base file: in another one Java would find it twice."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1) for n in range(4)])
    table.delete([{"id": "k1", "p": "a"}])
    assert logs(table) == [1]
    table.merge([row("k1", 1, 5)]).when_not_matched_insert().execute()
    assert len(logs(table)) == 1
    assert rows_of(table) == [("k0", 0), ("k1", 5), ("k2", 0), ("k3", 0)]


def test_a_key_that_a_condition_deleted_is_new(tmp_path: Path) -> None:
    """The index does not find it in its old file group any more."""
    table = make(tmp_path / "t")
    table.upsert([row(f"k{n}", 1, n) for n in range(9)])
    table.upsert([row("k0", 2, 0)])
    table.delete(where="v = 3")
    table.upsert([row("k3", 1, 5)])
    assert len(logs(table)) == 2
    assert [v for key, v in rows_of(table) if key == "k3"] == [5]


def test_no_ordering_value_becomes_null(tmp_path: Path) -> None:
    """Java fails on a later log of such a row; nothing is written."""
    table = make(tmp_path / "t")
    table.upsert([row("k1", 1)])
    before = found(table)
    with pytest.raises(InvalidInput, match="'ts' is the ordering column of a merge-on-read table"):
        table.update(where="id = 'k1'", set={"ts": None})
    merge = table.merge([{**row("k1", 1), "ts": None}])
    with pytest.raises(InvalidInput, match="'ts' is the ordering column"):
        merge.when_matched_update().execute()
    merge = table.merge([{**row("k2", 1), "ts": None}])
    with pytest.raises(InvalidInput, match="'ts' is the ordering column"):
        merge.when_not_matched_insert().execute()
    assert found(table) == before


@pytest.mark.parametrize("scope", ["partitions", "table"])
def test_logs_of_replaced_file_groups_are_gone(tmp_path: Path, scope: str) -> None:
    """Their rows do not come back, and earlier snapshots have them."""
    table = make(tmp_path / "t")
    table.upsert([row("k1", 1), row("k2", 1), row("k9", 1, 9, "b")])
    table.upsert([row("k1", 2, 2)])
    assert sum(logs(table)) == 1
    before = Table.open(table.path).history()["requested_time"].iloc[-1]
    table.insert_overwrite([row("k1", 1, 5)], scope=scope)
    left = [("k9", 9)] if scope == "partitions" else []
    assert rows_of(table) == [("k1", 5), *left]
    assert sum(logs(table)) == 0
    assert Table.open(table.path).to_arrow(as_of=before).num_rows == 3
    table.upsert([row("k1", 6, 6), row("k2", 1, 2)])
    assert rows_of(table) == [("k1", 6), ("k2", 2), *left]
