"""Deletes and updates by condition: exactly the matching rows, whatever the merge rule would do."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from each_fault import each_fault
from lives import assert_at_rest
from tables import hudi_rows, pending_names, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidInput

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("v", pa.int32()),
        ("s", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)
V, S = pc.field("v"), pc.field("s")
Row = dict[str, Any]
Rows = dict[str, Row]
MODES = {"event_time": "ts", "commit_time": None, "partial": "ts"}


def row(key: str, v: int | None, s: str | None = "x") -> Row:
    """Return one row; the partition depends on the key."""
    return {"id": key, "p": f"p{len(key) % 2}", "ts": 5, "v": v, "s": s, "tags": ["a", s]}


ROWS = [row("a", 1), row("bb", 2), row("ccc", None), row("dddd", 4, None)]


def table_of(path: Path, mode: str = "event_time", rows: list[Row] = ROWS) -> Table:
    """Return a table with the rows."""
    table = Table.create(
        path / "t",
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering=MODES[mode],
        merge_mode=mode,
    )
    table.upsert(pa.Table.from_pylist(rows, SCHEMA))
    return table


def found(table: Table) -> Rows:
    """Return the rows by key, after comparing them with what hudi-rs reads."""
    rows = table.to_arrow(meta=False)
    assert hudi_rows(table.path) == without_meta(rows)
    assert table.fsck() == []
    return {each["id"]: each for each in rows.to_pylist()}


def matches(v: int | None, limit: int) -> bool:
    """Return what SQL says of `v > limit`: null is not true."""
    return v is not None and v > limit


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_random_changes_equal_those_of_a_dict(tmp_path: Path, mode: str, seed: int) -> None:
    """Upserts, deletes and updates by condition, in turn, give the rows of a dict."""
    rng = random.Random(seed)
    model = {each["id"]: dict(each) for each in ROWS}
    table = table_of(tmp_path, mode)
    for _ in range(12):
        limit, key = rng.randrange(-2, 9), "k" * rng.randrange(1, 9)
        hits = [k for k, each in model.items() if matches(each["v"], limit)]
        action = rng.choice(["upsert", "delete", "update", "null"])
        if action == "upsert":
            model[key] = row(key, rng.randrange(9))
            table.upsert([model[key]])
            continue
        if action == "delete":
            commit = table.delete(where=limit < V)
            counted = commit and commit.deletes
            for each in hits:
                del model[each]
        else:
            new = None if action == "null" else V + 1
            commit = table.update(where=[("v", ">", limit)], set={"v": new, "s": "'new'"})
            counted = commit and commit.updates
            for each in hits:
                old = model[each]["v"]
                model[each] |= {"v": None if new is None else old + 1, "s": "new"}
        assert counted == (len(hits) or None)
        assert found(table) == model
    assert found(table) == model


@pytest.mark.parametrize("mode", MODES)
def test_the_ordering_value_neither_decides_nor_changes(tmp_path: Path, mode: str) -> None:
    """A row is changed although no newer ordering value is given, and a null that is set counts."""
    table = table_of(tmp_path, mode)
    table.update(where=S == "x", set={"s": None, "tags": None})
    rows = found(table)
    assert [rows[k]["s"] for k in ("a", "bb", "ccc")] == [None] * 3
    assert [rows[k]["tags"] for k in ("a", "dddd")] == [None, ["a", None]]
    assert {each["ts"] for each in rows.values()} == {5}
    table.upsert([{**row("a", 7), "ts": 4}])
    late = found(table)["a"]["v"]
    assert late == (7 if mode == "commit_time" else 1)


def test_only_matching_rows_and_their_files_are_written(tmp_path: Path) -> None:
    """Other rows keep their commit time, other file groups their file; `changes` has the rest."""
    table = table_of(tmp_path)
    first = table.history()["requested_time"].iloc[-1]
    files = set(table.file_groups()["file_name"])
    commit = table.update(where=pc.field("id") == "a", set={"v": 10, "s": pc.utf8_upper(S)})
    assert commit is not None
    assert (commit.operation, commit.updates, commit.files) == ("upsert", 1, 1)
    assert len(files & set(table.file_groups()["file_name"])) == 1
    times = {r["id"]: r["_hoodie_commit_time"] for r in table.to_arrow().to_pylist()}
    assert times.pop("a") == commit.requested_time
    assert set(times.values()) == {first}
    changed = table.changes(since=first).to_pylist()
    assert [(r["id"], r["v"], r["s"], r["_change"]) for r in changed] == [("a", 10, "X", "update")]
    gone = table.delete(where=pc.field("_hoodie_commit_time") == commit.requested_time)
    assert gone is not None
    assert (gone.operation, gone.deletes) == ("delete", 1)
    assert set(found(table)) == {"bb", "ccc", "dddd"}
    table.upsert([row("a", 3)])
    assert found(table)["a"]["v"] == 3


def test_no_match_makes_no_instant(tmp_path: Path) -> None:
    """A condition that is true for no row, or null for all, changes nothing on the disk."""
    table = table_of(tmp_path)
    table.delete(where=V == 1)
    before = tree(table.path)
    assert table.delete(where=V > 99) is None
    assert table.update(where=pa.scalar(None, pa.int32()) == V, set={"v": 1}) is None
    assert tree(table.path) == before


def test_copies_of_a_key_are_changed_by_their_own_values(tmp_path: Path) -> None:
    """Of a key that was inserted twice, only the copy that matches is changed or deleted."""
    table = table_of(tmp_path)
    table.insert([row("a", 50)])
    table.update(where=V == 50, set={"v": 51})
    assert sorted(r["v"] for r in table.to_arrow().to_pylist() if r["id"] == "a") == [1, 51]
    table.delete(where=V == 51)
    assert found(table)["a"]["v"] == 1


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "SQL function": ({"where": "abs(v) > 1", "set": {"v": 1}}, InvalidConfig, r"ABS.*compute"),
    "unknown column": ({"where": pc.field("w") > 1, "set": {"v": 1}}, InvalidConfig, "w.*columns"),
    "no condition": ({"where": 7, "set": {"v": 1}}, InvalidConfig, "give an expression"),
    "key": ({"where": V > 1, "set": {"id": "z"}}, InvalidConfig, r"\['id'\].*cannot be set"),
    "partition": ({"where": V > 1, "set": {"p": "z"}}, InvalidConfig, r"\['p'\].*cannot be set"),
    "unknown": ({"where": V > 1, "set": {"z": 1}}, InvalidConfig, r"\['z'\] are not in the table"),
    "meta column": ({"where": V > 1, "set": {"_hoodie_file_name": "z"}}, InvalidConfig, "not in"),
    "nothing": ({"where": V > 1, "set": {}}, InvalidConfig, "at least one column"),
    "type": ({"where": V > 1, "set": {"v": pa.scalar("z")}}, InvalidInput, "'v'.*'z'.*int32"),
    "too large": ({"where": V > 1, "set": {"v": 2**40}}, InvalidInput, "'v'.*1099511627776"),
    "overflow": ({"where": V > 1, "set": {"v": V * 2**30}}, InvalidInput, "'v'.*fails|do not fit"),
    "text of it": ({"where": V > 1, "set": {"v": V.cast(pa.string())}}, InvalidInput, "'v'.*int32"),
    "no such column": ({"where": V > 1, "set": {"v": pc.field("w")}}, InvalidConfig, "'v'.*w"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_set_is_refused(tmp_path: Path, case: str) -> None:
    """A wrong condition, column or value is refused by name; no row changes, nothing is pending."""
    given, error, words = REFUSED[case]
    table = table_of(tmp_path)
    before = found(table)
    with pytest.raises(error, match=f"(?s){words}"):
        table.update(**given)
    assert found(table) == before
    assert pending_names(table.path) == []


KEYS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1, 3],
    "a tuple": lambda: (1, 3),
    "a set": lambda: {1, 3},
    "an Arrow array": lambda: pa.array([1, 3], pa.int16()),
    "a column": lambda: pa.chunked_array([[1], [3]]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_alone_delete_their_rows(tmp_path: Path, kind: str) -> None:
    """In a table with one key column and no partitions, a list or array of keys can be deleted."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id", ordering="v")
    table.upsert([{"id": n, "v": n} for n in range(5)])
    commit = table.delete(KEYS[kind]())
    assert commit is not None
    assert commit.deletes == 2
    assert sorted(table.to_arrow(["id"]).column(0).to_pylist()) == [0, 2, 4]


@pytest.mark.parametrize("given", ["v > 1 AND s IS NULL", (V > 1) & S.is_null()])
def test_text_or_an_expression_alone_is_a_condition(tmp_path: Path, given: Any) -> None:
    """`delete("...")` is `delete(where="...")`; a list of texts is one of keys."""
    table = table_of(tmp_path)
    commit = table.delete(given)
    assert commit is not None and commit.deletes == 1
    assert set(found(table)) == {"a", "bb", "ccc"}
    assert table.delete("v > 99") is None
    keyed = Table.create(tmp_path / "keyed", schema=SCHEMA, record_key="id")
    keyed.upsert(ROWS)
    with pytest.raises(InvalidConfig, match="'a' is not a usable condition"):
        keyed.delete("a")
    keyed.delete(["a"])
    assert set(found(keyed)) == {"bb", "ccc", "dddd"}


def test_ambiguous_deletes_are_refused(tmp_path: Path) -> None:
    """Keys without their partition are refused, and so are rows together with a condition."""
    table = table_of(tmp_path)
    with pytest.raises(InvalidConfig, match=r"columns \['id', 'p'\]"):
        table.delete(["a"])
    for given in ({}, {"data": ROWS, "where": V > 1}, {"data": "v > 1", "where": V > 1}):
        with pytest.raises(InvalidConfig, match="either rows or keys, or where="):
            table.delete(**given)
    assert set(found(table)) == {"a", "bb", "ccc", "dddd"}


@pytest.mark.parametrize("how", ["before", "torn", "error"])
@pytest.mark.parametrize("kind", ["update", "delete"])
def test_a_crash_at_any_operation_changes_all_rows_or_none(
    tmp_path: Path, how: str, kind: str
) -> None:
    """Readers see all changes or none; the next write recovers, and a repetition completes it."""
    source, after = Path(table_of(tmp_path).path), tmp_path / "after"

    def change(table: Table) -> object:
        if kind == "delete":
            return table.delete(where=V >= 1)
        return table.update(where=(V >= 1) & (S != "new"), set={"v": V + 1, "s": "'new'"})

    shutil.copytree(source, after)
    change(Table.open(after))
    before, done = hudi_rows(source), hudi_rows(after)
    for root, _ in each_fault(source, change, how, at_least=8):
        assert hudi_rows(root) == without_meta(Table.open(root).to_arrow())
        assert hudi_rows(root) in (before, done)
        change(Table.open(root))
        assert hudi_rows(root) == without_meta(Table.open(root).to_arrow()) == done
        assert_at_rest(root)


def test_a_constant_condition_changes_all_rows_or_none(tmp_path: Path) -> None:
    """It needs no column, so the rows of a file are counted by their keys."""
    table = table_of(tmp_path)
    before = found(table)
    assert table.delete(where=pc.scalar(False)) is None and found(table) == before
    assert table.update(where=pc.scalar(True), set={"s": pc.scalar("all")}).updates == len(before)
    assert set(table.to_arrow()["s"].to_pylist()) == {"all"}
    assert table.delete(where=pc.scalar(True)).deletes == len(before)
    assert table.to_arrow().num_rows == 0 and hudi_rows(table.path) == []


def test_a_condition_that_fails_on_a_late_row_writes_nothing(tmp_path: Path) -> None:
    """The first piece of a file matches; a row of a later piece cannot be evaluated."""
    count = 140_000
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    keys = [f"k{n:06d}" for n in range(count)]
    table.insert(pa.table({"id": keys, "v": [1] * (count - 1) + [0]}, schema=schema))
    with pytest.raises(InvalidConfig, match="divide by zero"):
        table.delete(where=pc.scalar(10) / pc.field("v") > 1)
    assert table.to_arrow().num_rows == count
    assert pending_names(tmp_path / "t") == [] and table.fsck() == []


def test_a_value_that_fails_after_a_row_group_writes_nothing(tmp_path: Path) -> None:
    """A row group of the new file is written; it is abandoned without a late error."""
    count = 140_000
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    keys = [f"k{n:06d}" for n in range(count)]
    table.insert(pa.table({"id": keys, "v": [1] * (count - 1) + [0]}, schema=schema))
    with pytest.raises(InvalidInput, match="divide by zero"):
        table.update(where=pc.field("v") >= 0, set={"v": pc.scalar(10) / pc.field("v")})
    assert pending_names(tmp_path / "t") == [] and table.fsck() == []


def test_a_scalar_of_arrow_keeps_its_value(tmp_path: Path) -> None:
    """NaN as a typed scalar is NaN; one of another type is refused by name."""
    schema = pa.schema([("id", pa.string()), ("f", pa.float64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert([{"id": "a", "f": 1.0}])
    table.update(where=[("id", "=", "a")], set={"f": pa.scalar(float("nan"))})
    assert str(table.to_arrow(["f"])["f"].to_pylist()) == "[nan]"
    with pytest.raises(InvalidInput, match="column 'f'"):
        table.update(where=[("id", "=", "a")], set={"f": pa.scalar("x")})
