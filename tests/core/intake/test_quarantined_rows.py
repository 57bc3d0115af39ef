"""`on_bad_record="quarantine"` in this process: each bad row is put aside with its reason."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import Model, hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.actions.quarantine import FOLDER
from hoodie_nb.errors import InvalidConfig, InvalidInput
from hoodie_nb.intake.bad_rows import BadRowsFile, Quarantine, files_of_tasks
from hoodie_nb.storage.local_storage import LocalStorage

SCHEMA = pa.schema(
    [
        *(("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("n", pa.int32())),
        *(("x", pa.float32()), ("day", pa.date32()), ("price", pa.decimal128(7, 2))),
        ("tags", pa.list_(pa.string())),
    ]
)


class Mute:
    """A class whose objects cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


# what is wrong → a column's value as a Python object, the column, a part of the reason
BAD: dict[str, tuple[Any, str, str]] = {
    "null key": (None, "id", "is null or empty"),
    "empty key": ("", "id", "is null or empty"),
    "long key": ("k" * 65_537, "id", "has a key longer than 64 KiB"),
    "parent": ("..", "p", "cannot be a partition path: it points outside the table"),
    "hidden": ("_x", "p", "cannot be a partition path: it starts with '.' or '_'"),
    "unsafe": ("a:b", "p", "cannot be a partition path: it has a character that is unsafe"),
    "null's name": ("__HIVE_DEFAULT_PARTITION__", "p", "is Hudi's name for null"),
    "too large": (1 << 40, "n", "does not fit int32: Integer value"),
    "not exact": (0.1, "x", "does not fit float: no float is exactly this value"),
    "time of day": (dt.datetime(2026, 1, 1, 5), "day", "cannot hold the time of day"),
    "too many digits": (Decimal("1234567.125"), "price", "does not fit decimal128(7, 2)"),
}
ONLY_OBJECTS: dict[str, tuple[Any, str, str]] = {  # Arrow's columns have one type
    "text for a number": ("seven", "n", "string cannot become int32"),
    "half a character": ("\ud800", "id", "surrogates not allowed"),
    "number in a list": (["a", 7], "tags", "does not fit list<"),
    "array without a length": (np.array(5), "tags", "does not fit list<"),
    "integer without a text": (10**5000, "price", "does not fit decimal128(7, 2)"),
    "object without a text": (Mute(), "price", "does not fit decimal128(7, 2)"),
}
GIVEN = {
    "n": pa.int64(),
    "x": pa.float64(),
    "day": pa.timestamp("us"),
    "price": pa.decimal128(12, 3),
}


def made(path: Path, **settings: Any) -> Table:
    """Return a new table."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    return Table.create(path / "t", schema=SCHEMA, **{**keys, **settings})


def row_of(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a good row; every column has a value, so that columns have one type."""
    return {
        "id": f"k{rng.randrange(30)}",
        "p": f"p{rng.randrange(3)}",
        "ts": rng.randrange(50),
        "n": number,
        "x": rng.randrange(100) / 4,
        "day": dt.datetime(2026, 1, 1 + number % 28),
        "price": Decimal(number % 1000) / 4,
        "tags": ["a"] * rng.randrange(3),
    }


def given_as(kind: str, rows: list[dict[str, Any]]) -> Any:
    """Return rows as one kind of data."""
    if kind == "dicts":
        return rows
    if kind == "pandas":
        return pd.DataFrame(rows, index=[7] * len(rows), dtype=object)
    table = pa.Table.from_pylist(
        rows, schema=pa.schema([f.with_type(GIVEN.get(f.name, f.type)) for f in SCHEMA])
    )
    if kind == "polars":
        return pl.from_arrow(table)
    if kind == "reader":
        return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=7))
    return table


def stored(row: dict[str, Any]) -> dict[str, Any]:
    """Return a good row as the table has it."""
    return {**row, "day": row["day"].date(), "price": row["price"].quantize(Decimal("0.01"))}


@pytest.mark.parametrize("kind", ["dicts", "pandas", "arrow", "reader", "polars"])
def test_random_batches_are_divided_like_the_model(tmp_path: Path, kind: str) -> None:
    """Good rows are those of a dict, for hudi-rs too; each bad row is in quarantine, with why."""
    table, model, expected = made(tmp_path), Model(), Counter[tuple[str, str, str]]()
    rng = random.Random(kind)
    kinds = {**BAD, **(ONLY_OBJECTS if kind in ("dicts", "pandas") else {})}
    for number in range(12):
        good, rows, bad = [], [], 0
        share = rng.choice([0, 0.1, 0.5, 1])
        for at in range(rng.randrange(1, 40)):
            row = row_of(rng, 100 * number + at)
            rows.append(row)
            if rng.random() < share:
                value, column, why = kinds[rng.choice([*kinds])]
                row[column] = value
                expected[str(row["n"]), column, why] += 1
                bad += 1
            else:
                good.append(stored(row))
        commit = table.upsert(given_as(kind, rows), on_bad_record="quarantine")
        assert commit is not None and commit.quarantined == bad
        model.upsert(good)
    found = Counter[tuple[str, str, str]]()
    for entry in table.quarantine().to_pylist():
        given = json.loads(entry["row"])
        assert list(given) == SCHEMA.names
        (why,) = {w for _, c, w in kinds.values() if c == entry["column"] and w in entry["reason"]}
        found[str(given["n"]), entry["column"], why] += 1
    assert found == expected and expected.total() > 30
    assert without_meta(table.to_arrow()) == model.snapshot() == hudi_rows(tmp_path / "t")
    assert table.history()["quarantined"].sum() == expected.total()


@pytest.mark.parametrize("operation", ["insert", "bulk_insert", "insert_overwrite", "delete"])
def test_every_write_takes_the_option(tmp_path: Path, operation: str) -> None:
    """The other writes divide their rows as `upsert` does; only bad rows make a commit as well."""
    table, rng = made(tmp_path), random.Random(operation)
    first = [{**row_of(rng, at), "id": f"k{at}", "p": "p0"} for at in range(4)]
    table.upsert(first)
    act = getattr(table, operation)
    bad = {**first[0], "id": None}
    left = {"insert_overwrite": ["k1"], "delete": ["k0", "k2", "k3"]}
    good = {**first[1], "ts": 99, "id": "k1" if operation in left else "k9"}
    commit = act([good, bad], on_bad_record="quarantine")
    assert commit.quarantined == 1
    ids = sorted(table.to_arrow()["id"].to_pylist())
    assert ids == left.get(operation, ["k0", "k1", "k2", "k3", "k9"])
    empty = made(tmp_path / "empty")
    assert getattr(empty, operation)([bad], on_bad_record="quarantine").quarantined == 1
    assert hudi_rows(empty.path) == [] == without_meta(empty.to_arrow())
    again = act([bad, bad], on_bad_record="quarantine")
    assert again.quarantined == 2 and again.files == 0
    assert sorted(table.to_arrow()["id"].to_pylist()) == ids
    assert len(hudi_rows(tmp_path / "t")) == len(ids) and table.fsck() == []
    assert table.quarantine()["commit"].to_pylist() == [
        commit.requested_time,
        *[again.requested_time] * 2,
    ]


def test_a_row_with_a_global_key_moves_past_bad_rows(tmp_path: Path) -> None:
    """In a table whose keys are global, good rows move their keys and bad rows do nothing."""
    table, rng = made(tmp_path, global_index=True), random.Random(1)
    first = {**row_of(rng, 1), "id": "k", "p": "p0"}
    table.upsert([first])
    bad = [{**first, "p": "..", "ts": 100}, {**first, "id": ""}]
    commit = table.upsert([{**first, "p": "p1", "ts": 99}, *bad], on_bad_record="quarantine")
    assert commit is not None and commit.quarantined == 2
    again = table.upsert(bad, on_bad_record="quarantine")
    assert again is not None and again.quarantined == 2
    assert table.to_arrow(["p", "ts"]).to_pylist() == [{"p": "p1", "ts": 99}]
    assert len(hudi_rows(table.path)) == 1 and table.fsck() == []


def test_a_batch_without_rows_still_makes_no_commit(tmp_path: Path) -> None:
    """An empty batch has nothing to put aside; a table without quarantine has an empty one."""
    table = made(tmp_path)
    assert table.upsert([], on_bad_record="quarantine") is None
    assert table.quarantine().num_rows == 0 and table.timeline().empty
    assert table.quarantine().column_names[:3] == ["row", "column", "reason"]


def test_by_default_a_bad_row_fails_the_batch(tmp_path: Path) -> None:
    """Without the option the message names column and row, and nothing is put aside."""
    table, rng = made(tmp_path), random.Random(1)
    rows = [row_of(rng, 1), {**row_of(rng, 2), "n": 1 << 40}]
    with pytest.raises(InvalidInput, match=r"column 'n' has values.*row 1 \(from 0\)"):
        table.upsert(rows)
    with pytest.raises(InvalidInput, match="column 'id' is null or empty in 1 row"):
        table.upsert([rows[0], {**rows[0], "id": None}])
    assert table.timeline().empty and table.quarantine().num_rows == 0
    with pytest.raises(InvalidConfig, match=r"on_bad_record='drop'.*\['fail', 'quarantine'\]"):
        table.upsert(rows, on_bad_record="drop")


def test_what_is_wrong_with_the_whole_batch_is_refused(tmp_path: Path) -> None:
    """Columns that are missing, unknown or never fit, and mixtures, are no bad rows."""
    table, rows = made(tmp_path), [row_of(random.Random(1), n) for n in range(2)]
    mixed = [{**rows[0], "n": 1.0}, {**rows[1], "n": Decimal(2)}]
    text = given_as("arrow", rows)
    text = text.set_column(3, "n", pa.array(["1", "2"]))
    for data, why in (
        ([{**row, "other": 1} for row in rows], "not in the table"),
        ([{"id": "a", "p": "x"}], "missing in the data"),
        (mixed, "decimals and floats"),
        (pa.RecordBatchReader.from_batches(text.schema, text.to_batches()), "cast it first"),
    ):
        with pytest.raises(InvalidInput, match=why):
            table.upsert(data, on_bad_record="quarantine")
    assert table.timeline().empty and not (tmp_path / "t" / FOLDER).exists()


def test_rows_are_kept_as_json(tmp_path: Path) -> None:
    """Values of any type are readable in the text, also those that Python does not have."""
    offsets, text = pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xffb")
    damaged = pa.Array.from_buffers(pa.string(), 1, [None, offsets, text])
    columns = {
        "id": pa.array([""]),
        "text": damaged,
        "texts": pa.ListArray.from_arrays([0, 1], damaged),
        "inner": pa.StructArray.from_arrays([damaged, pa.array([1])], ["t", "n"]),
        "raw": pa.array([b"\x00\xff"]),
        "far": pa.array([10_000_000], pa.date32()),
        "at": pa.array([dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        "nan": pa.array([math.inf]),
        "price": pa.array([Decimal("1.50")]),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "word": pa.array(["ü"]).dictionary_encode(),
    }
    schema = pa.schema([(name, values.type) for name, values in columns.items()])
    kinds = schema.set(schema.get_field_index("word"), pa.field("word", pa.string()))
    table = Table.create(tmp_path / "t", schema=kinds, record_key="id")
    table.upsert(pa.table(columns), on_bad_record="quarantine")
    (entry,) = table.quarantine().to_pylist()
    assert (entry["column"], "UTF8" in entry["reason"]) == ("text", True)
    given = json.loads(entry["row"])
    assert "\ufffdb" in given.pop("inner") and '"ü"' in entry["row"]
    assert given == {
        "id": "",
        "text": r"b'\xffb'",
        "texts": '[[["\ufffdb"]]]',
        "raw": r"b'\x00\xff'",
        "far": "[[29349-01-26]]",
        "at": "2026-01-01 05:00:00+00:00",
        "nan": "inf",
        "price": "1.50",
        "map": [["k", 1]],
        "word": "ü",
    }
    (path,) = (tmp_path / "t" / FOLDER).iterdir()
    assert pq.read_table(path).num_rows == 1  # any program can read the file


def test_one_attempt_of_each_task_counts(tmp_path: Path) -> None:
    """A task that is repeated has several files, or a part of one; the last whole file counts."""
    storage, where = LocalStorage(tmp_path), Quarantine("staged", 1_000, "q", 3)
    storage.make_folder("staged")
    for token in ("0-4-7", "0-5-12", "1-4-8", "1-4-9", "12-4-10"):
        file = BadRowsFile(storage, where, token)
        file.add([{"id": token}], ["id"], ["why"])
        if token != "1-4-9":  # this attempt dies
            file.close()
    other = BadRowsFile(storage, Quarantine("staged", 1_000), "0-6-99")
    other.add([{"id": "another write"}], ["id"], ["why"])
    other.close()
    files = files_of_tasks(storage, where)
    rows = [pq.read_table(tmp_path / file.path)["row"].to_pylist() for file in files]
    assert rows == [[f'{{"id": "{token}"}}'] for token in ("0-5-12", "1-4-8", "12-4-10")]
    for file in files:
        file.verify(storage)


def test_composite_keys_are_put_aside_by_their_rules(tmp_path: Path) -> None:
    """Keys whose text could be another key's, and keys without a value, are bad rows too."""
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("day", pa.date32())])
    table = Table.create(tmp_path / "t", schema=schema, record_key=["a", "b"], partition_by="day")
    day = dt.date(2026, 1, 1)
    rows = pa.Table.from_pylist(
        [
            {"a": "1", "b": "2", "day": day},
            {"a": None, "b": "", "day": day},
            {"a": "__null__", "b": "2", "day": day},
            {"a": "1,b:3", "b": "2", "day": day},
            {"a": "1", "b": "4", "day": None},
        ],
        schema=schema,
    )
    far = pa.table({"a": ["5"], "b": ["5"], "day": pa.array([10_000_000], pa.date32())})
    table.upsert(pa.concat_tables([rows, far]), on_bad_record="quarantine")
    found = [(row["column"], row["reason"]) for row in table.quarantine().to_pylist()]
    for (column, why), (wanted, part) in zip(
        found,
        [
            ("a, b", "are all null or empty"),
            ("a", "'__null__'"),
            ("a", "',b:'"),
            ("day", "dates outside 0001-01-01"),
        ],
        strict=True,
    ):
        assert column == wanted and part in why
    assert sorted(table.to_arrow()["b"].to_pylist()) == ["2", "4"]


def bad_text() -> pa.Array:
    """Return two texts, of which the second is not UTF-8."""
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xffb")])


NESTED: dict[str, tuple[pa.DataType, Callable[[pa.Array], pa.Array]]] = {
    "list": (
        pa.list_(pa.string()),
        lambda text: pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), text),
    ),
    "struct": (
        pa.struct({"a": pa.string()}),
        lambda text: pa.StructArray.from_arrays([text], ["a"]),
    ),
    "map": (
        pa.map_(pa.string(), pa.string()),
        lambda text: pa.MapArray.from_arrays([0, 1, 2], ["x", "y"], text),
    ),
    "dictionary": (
        pa.string(),
        lambda text: pa.DictionaryArray.from_arrays([0, 1], text, safe=False),
    ),
}


@pytest.mark.parametrize("kind", NESTED)
def test_bad_text_in_a_nested_value_is_bad_in_its_row_only(tmp_path: Path, kind: str) -> None:
    """The good row beside it is written; without quarantine the error names the second row."""
    stored_type, nest = NESTED[kind]
    schema = pa.schema([("id", pa.string()), ("v", stored_type)])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    rows = pa.table({"id": ["good", "bad"], "v": nest(bad_text())})
    with pytest.raises(InvalidInput, match=r"column 'v' .*row 1 \(from 0\)"):
        table.upsert(rows)
    commit = table.upsert(rows, on_bad_record="quarantine")
    assert commit is not None and (commit.inserts, commit.quarantined) == (1, 1)
    (kept,), (refused,) = table.to_arrow().to_pylist(), table.quarantine().to_pylist()
    assert kept["id"] == "good" and json.loads(refused["row"])["id"] == "bad"


def test_an_overwrite_of_the_table_with_only_bad_rows_is_refused(tmp_path: Path) -> None:
    """A broken input does not empty the table; no rows at all do, as before."""
    table = made(tmp_path)
    table.upsert([row_of(random.Random(1), 1)])
    before = without_meta(table.to_arrow())
    bad = [{**row_of(random.Random(2), 2), "id": None}]
    with pytest.raises(InvalidInput, match="all rows of the overwrite are bad"):
        table.insert_overwrite(bad, scope="table", on_bad_record="quarantine")
    assert without_meta(table.to_arrow()) == before == hudi_rows(table.path)
    assert table.quarantine().num_rows == 0 and table.fsck() == []
    assert without_meta(Table.open(table.path).to_arrow()) == before
