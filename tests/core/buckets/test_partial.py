"""The merge mode `partial`, against a model of dicts: a null does not overwrite a value."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.records.sealing import Interval

DELETED = "_hoodie_is_deleted"
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "p": pa.string(),
        "ts": pa.int64(),
        "a": pa.int64(),
        "b": pa.string(),
        "l": pa.list_(pa.int64()),
        DELETED: pa.bool_(),
    }.items()
)
Row = dict[str, Any]


def make_table(path: Path, ordering: str | None = "ts", limits: Row | None = None) -> Table:
    """Return an empty table with merge mode `partial`."""
    return Table.create(
        path,
        schema=pa.schema([f for f in SCHEMA if f.name != DELETED]),
        record_key="id",
        partition_by="p",
        ordering=ordering,
        merge_mode="partial",
        options=limits,
    )


def fill(winner: Row, other: Row) -> Row:
    """Return a row with its nulls replaced by the values of another one."""
    return {name: other[name] if value is None else value for name, value in winner.items()}


def rank(row: Row) -> tuple[bool, int]:
    """Return the rank of an ordering value: null is the lowest."""
    return row["ts"] is not None, row["ts"] or 0


def apply(model: dict[str, Row], batch: list[Row], *, by_arrival: bool) -> None:
    """Fold a batch by key, then merge each folded row with the stored one."""
    ranked = batch if by_arrival else sorted(batch, key=rank)
    folded: dict[str, Row] = {}
    for row in ranked:
        before = folded.get(row["id"])
        keeps = before is not None and not before[DELETED] and not row[DELETED]
        folded[row["id"]] = fill(row, before) if keeps else row
    for key, row in folded.items():
        stored = model.get(key)
        wins = stored is None or by_arrival or rank(row) >= rank(stored)
        if row[DELETED]:
            if wins:
                model.pop(key, None)
        elif stored is None:
            model[key] = row
        else:
            model[key] = fill(row, stored) if wins else fill(stored, row)


def random_row(draw: random.Random, keys: int, *, deletes: bool = True) -> Row:
    """Return a random row with random nulls."""
    return {
        "id": f"k{draw.randrange(keys)}",
        "p": "x",
        "ts": draw.choice([None, *range(20)]),
        "a": draw.choice([None, draw.randrange(100)]),
        "b": draw.choice([None, "", "text"]),
        "l": draw.choice([None, [], [1, draw.randrange(9)]]),
        DELETED: deletes and draw.random() < 0.1,
    }


def rows_of(table: Table) -> dict[str, Row]:
    """Return the table's rows by key."""
    return {row["id"]: row for row in table.to_arrow(meta=False).to_pylist()}


def rows_of_model(model: dict[str, Row]) -> dict[str, Row]:
    """Return the model's rows as the table has them."""
    return {k: {n: v for n, v in r.items() if n != DELETED} for k, r in model.items()}


@pytest.mark.parametrize("ordering", ["ts", None])
@pytest.mark.parametrize("seed", range(6))
def test_upserts_fill_what_is_null(tmp_path: Path, seed: int, ordering: str | None) -> None:
    """Random batches with duplicate keys, late rows and deletes give the model's rows."""
    draw, model = random.Random(seed), {}
    table = make_table(tmp_path / "t", ordering)
    for _ in range(8):
        batch = [random_row(draw, 12) for _ in range(draw.randint(1, 30))]
        table.upsert(pa.Table.from_pylist(batch, SCHEMA))
        apply(model, batch, by_arrival=ordering is None)
        assert rows_of(table) == rows_of_model(model)
    assert table.fsck() == [] and Table.open(table.path)._handle.config.merge_mode == "partial"


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=4)])
def test_checkpoints_fill_what_is_null(tmp_path: Path, interval: Interval | None) -> None:
    """Sealed checkpoints, and those of a lost notification, are applied one after the other."""
    draw, model = random.Random(3), {}
    table = make_table(tmp_path / "t")
    job = LocalJob(open_table(table.path), interval=interval, pipeline="step2", index="bloom")
    for number in range(1, 13):
        batch = [random_row(draw, 8) for _ in range(10)]
        job.write(pa.Table.from_pylist(batch, SCHEMA))
        job.checkpoint(number)
        (job.lose if number % 3 else job.complete)(number)
        apply(model, batch, by_arrival=False)
    job.checkpointing.complete()
    assert rows_of(table) == rows_of_model(model)


def test_a_redo_does_not_bring_old_values_back(tmp_path: Path) -> None:
    """Another engine changes a column while ours is prepared: our null keeps that change."""
    table = make_table(tmp_path / "t")
    row = {"id": "k", "p": "x", "ts": 1, "a": 1, "b": "old", "l": None}
    table.upsert(pa.Table.from_pylist([row], SCHEMA))
    job = LocalJob(open_table(table.path), pipeline="step2", index="bloom")
    late = {**row, "id": "late", "ts": 0, "a": None}
    job.write(pa.Table.from_pylist([{**row, "ts": 3, "a": 3, "b": None}, late], SCHEMA))
    job.checkpoint(1)
    change = {**row, "ts": 2, "a": None, "b": "new"}
    commit_elsewhere(table, change, {**late, "ts": 1, "b": None, "a": 7})
    job.checkpointing.complete()
    assert rows_of(table)["k"] == {**row, "ts": 3, "a": 3, "b": "new"}
    assert rows_of(table)["late"] == {**late, "ts": 1, "a": 7, "b": "old"}


@pytest.mark.parametrize("ordering", ["ts", None])
def test_a_redo_keeps_a_key_that_was_deleted_and_written_again(tmp_path: Path, ordering) -> None:
    """The delete of another copy of the key is applied before the row that follows it."""
    table = make_table(tmp_path / "t", ordering, {"small_file_bytes": 0})
    row = {"id": "k", "p": "x", "ts": 1, "a": 0, "b": "old", "l": None, DELETED: None}
    for a in range(3):
        table.insert(pa.Table.from_pylist([{**row, "a": a}], SCHEMA))
    job = LocalJob(open_table(table.path), pipeline="step2", index="bloom")
    batch = [{**row, "ts": 9, DELETED: True}, {**row, "ts": 9, "a": 77}]
    job.write(pa.Table.from_pylist(batch, SCHEMA))
    job.checkpoint(1)
    commit_elsewhere(table, {**row, "id": "other"})
    job.checkpointing.complete()
    rows = table.to_arrow(meta=False).to_pylist()
    assert [(r["ts"], r["a"]) for r in rows if r["id"] == "k"] == [(9, 77)]


def commit_elsewhere(table: Table, *rows: Row) -> None:
    """Commit rows like another engine, which does not know prepared instants."""
    handle, events = open_table(table.path), EventLog()
    intake = Intake(handle.config, handle.schema)
    keyed = keyed_in_order(pa.Table.from_pylist(list(rows), handle.schema), intake)
    coordinator = WriteCoordinator(handle, events)
    with coordinator.writing(intake, Shape(index="bloom")) as work:
        work.statuses = write_in_process(keyed, work.plan, events)
    assert work.result is not None
    coordinator.complete([work.result], intake)


@pytest.mark.parametrize("limit", range(200, 2000, 200))
def test_flushes_do_not_change_the_result(tmp_path: Path, limit: int) -> None:
    """Partial rows are folded once: in each column the newest value counts."""
    table = make_table(tmp_path / "t", limits={"batch_bytes": 1, "task_max_bytes": limit})
    rows: list[Row] = [
        {"id": "k", "p": "x", "ts": 10, "a": 1, "b": None},
        {"id": "k", "p": "x", "ts": 5, "a": None, "b": "old"},
        {"id": "k", "p": "x", "ts": 7, "a": None, "b": "new"},
    ]
    table.upsert(pa.Table.from_pylist(rows, schema=table.schema))
    (row,) = table.to_arrow(meta=False).to_pylist()
    assert row == {**rows[0], "b": "new", "l": None}


@pytest.mark.parametrize("filled_ones", ["011", "101", "110", "000"])
def test_empty_checkpoints_of_an_interval_are_applied_with_the_next(
    tmp_path: Path, filled_ones: str
) -> None:
    """An empty sealed checkpoint before, between or after others blocks nothing."""
    table, expected = make_table(tmp_path / "t"), set()
    job = LocalJob(open_table(table.path), interval=Interval(checkpoints=3))
    for number, has_rows in enumerate(filled_ones):
        if has_rows == "1":
            row = {"id": f"k{number}", "p": "x", "ts": 1, "a": 1, "b": "", "l": None}
            job.write(pa.Table.from_pylist([row], schema=table.schema))
            expected.add(row["id"])
        job.checkpoint(number)
        job.complete(number)
    assert rows_of(table).keys() == expected
    table.upsert(pa.Table.from_pylist([{**dict.fromkeys(table.schema.names), "id": "z", "p": "x"}]))
    assert rows_of(table).keys() == expected | {"z"} and table.fsck() == []


@pytest.mark.parametrize("strategy", ["", "ce9acb64-bde0-424c-9b91-f6ebba25356d"])
def test_a_custom_merge_mode_of_another_engine_is_not_written(
    tmp_path: Path, strategy: str
) -> None:
    """Of the custom merge modes only partial updates by the payload class are known."""
    table = (
        make_table(tmp_path / "t")
        if strategy
        else Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", ordering="ts")
    )
    with open(tmp_path / "t/.hoodie/hoodie.properties", "a") as file:
        file.write("hoodie.record.merge.mode=CUSTOM\n")
        file.write(f"hoodie.record.merge.strategy.id={strategy}\n")
    (tmp_path / "t" / RULES).unlink()
    with pytest.raises(InvalidTable, match="a rule of its own"):
        Table.open(table.path).upsert(pa.Table.from_pylist([], schema=table.schema))
