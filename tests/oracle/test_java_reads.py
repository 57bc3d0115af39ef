from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hoodie_nb import Table, flights
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.records.prepared import Prepared

from .client import BLOOM, Judge
from .readers import Cells, cells, check, java, ours, rust
from .tables import LAYOUTS, Model

pytestmark = pytest.mark.oracle


@pytest.fixture(params=LAYOUTS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Table, Model]]:
    """Return a table after four commits: inserts, updates, late rows, deletes."""
    layout = LAYOUTS[request.param]
    table, model = layout.create(tmp_path / request.param), Model(layout)
    table.upsert(model.upsert(range(40), 2))
    table.upsert(model.upsert(range(20, 60), 3))
    table.upsert(model.upsert([*range(10), 60], 1))
    table.delete(model.delete(range(5, 25, 3)))
    return table, model


def times(table: Table) -> list[str]:
    """Return the commits' times, oldest first."""
    return list(table.history()["requested_time"])


def without_parts(rows: Cells) -> Cells:
    """Drop the column that Java's incremental query takes from the path, still encoded."""
    return [{k: v for k, v in row.items() if k != "part"} for row in rows]


def test_all_readers_see_the_same_snapshot(judge: Judge, written: tuple[Table, Model]) -> None:
    """Ours, Java's and the Rust reader see each cell of the model, in every layout."""
    table, model = written
    check(judge, table, model)


def test_all_readers_see_the_same_past(judge: Judge, written: tuple[Table, Model]) -> None:
    """As of each commit the three readers see the same rows; the number of rows varies."""
    table, model = written
    counts = []
    for as_of in times(table):
        seen = ours(table, as_of)
        assert java(judge, table, as_of) == seen
        assert model.layout.local_times or rust(table, as_of) == seen
        counts.append(len(seen))
    assert counts == [40, 60, 61, 54]


def test_all_readers_see_the_same_changes(judge: Judge, written: tuple[Table, Model]) -> None:
    """Since each commit, and between two, the incremental queries give the rows written then."""
    table, model = written
    first, second, *_ = times(table)
    spans = [
        ("19700101000000000", None),
        (first, second),
        (second, None),
    ]
    for since, until in spans:
        seen = ours(table, until, since)
        assert seen
        assert without_parts(java(judge, table, until, since)) == without_parts(seen)
        assert model.layout.local_times or rust(table, until, since) == seen
        changed = table.changes(since=since if since >= first else "earliest", until=until)
        written = changed.filter(pc.field("_change") != "delete").drop_columns("_change")
        assert cells(written) == seen


def test_java_upserts_and_we_upsert_again(judge: Judge, written: tuple[Table, Model]) -> None:
    """Java's BLOOM index finds every key by our filters, ours by Java's: no key is duplicated."""
    table, model = written
    judge.write(table.path, model.upsert(range(30, 70), 4), BLOOM)
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(26, 36), 3), BLOOM)  # some are late
    check(judge, table, model)
    table.upsert(model.upsert(range(50, 90), 5))
    table.upsert(model.upsert(range(60, 75), 4))  # all are late
    table.delete(model.delete(range(41, 70, 7)))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(80, 100), 6), BLOOM)
    check(judge, table, model)


def test_java_accepts_a_commit_without_files(judge: Judge, tmp_path: Path) -> None:
    """A redone instant without remaining rows is an empty commit, which all readers accept."""
    layout = LAYOUTS["simple"]
    table, model = layout.create(tmp_path / "empty"), Model(layout)
    table.upsert(model.upsert(range(40), 2))
    handle = open_table(table.path)
    coordinator = WriteCoordinator(handle, EventLog())
    base, instant = handle.file_groups().instants, coordinator.begin()
    record = Prepared(instant.requested_time, 0, (), "upsert", base, ())
    coordinator.prepare(record)
    coordinator.complete([record], Intake(handle.config, handle.schema))
    assert times(table)[-1] == instant.requested_time
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(30, 50), 3), BLOOM)
    table.upsert(model.upsert(range(45, 60), 4))
    check(judge, table, model)


def test_java_sees_the_departures_board(judge: Judge, tmp_path: Path) -> None:
    """Five days of flights, 2000 events per commit, give the board computed from the source."""
    table = Table.create(
        tmp_path / "flights",
        schema=flights.SCHEMA,
        record_key="flight_id",
        partition_by="flight_date",
        ordering="event_time",
    )
    events = flights.event_table(days=5, disorder=0.1, seed=1)
    for start in range(0, events.num_rows, 2000):
        table.upsert(events.slice(start, 2000))
    seen = judge.read(table.path).select(flights.SCHEMA.names).cast(flights.SCHEMA)
    board = pa.Table.sort_by(seen, "flight_id").to_pandas()
    pd.testing.assert_frame_equal(board, flights.board(days=5))
    assert pc.count_distinct(seen["flight_id"]).as_py() == len(board) == 4334
