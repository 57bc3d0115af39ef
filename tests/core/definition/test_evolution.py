"""Types that another engine has changed: our rows are converted as in Hudi, or refused."""

from __future__ import annotations

import datetime
import re
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import test_journal as journal
from test_journal import Life, upsert_elsewhere

from hoodie_nb import Table, failpoints
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidTable
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.records.sealing import Interval
from hoodie_nb.rows.runs import fitted

OLD = pa.struct([("x", pa.int64()), ("y", pa.string())])
NEW = pa.struct([("x", pa.int64()), ("w", pa.string())])
WRAPPED: dict[str, Any] = {
    "struct": (lambda kind: kind, lambda value: value),
    "list": (pa.list_, lambda value: [value, None]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
    "struct of list": (
        lambda kind: pa.struct([("l", pa.list_(kind))]),
        lambda value: {"l": [value]},
    ),
}


def schema_with(kind: pa.DataType) -> pa.Schema:
    """Return a schema whose column `v` has the given type."""
    return pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64()), ("v", kind)])


@pytest.fixture
def evolving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A function that creates a `Life`, and one that changes its table as another engine would."""

    def use(kind: pa.DataType) -> pa.Schema:
        schema = schema_with(kind)
        config = TableConfig("t", ("id",), ("part",), "ts", merge_mode="event_time", schema=schema)
        monkeypatch.setattr(journal, "SCHEMA", schema)
        monkeypatch.setattr(journal, "CONFIG", config)
        return schema

    def make(old: pa.DataType, value: Any, interval: Interval | None = None) -> Life:
        schema = use(old)
        one = Life(tmp_path / "t", interval)
        row = {"id": "a", "part": "p", "ts": 1, "v": value}
        one.job.write(pa.Table.from_pylist([row], schema=schema))
        one.number += 1
        one.job.checkpoint(1)
        one.source.succeeded = 1
        return one

    def change(one: Life, new: pa.DataType) -> None:
        row = {"id": "f", "part": "q", "ts": 1, "v": None}
        upsert_elsewhere(one, use(new), row)

    yield make, change
    failpoints.arm("")


@pytest.mark.parametrize("new", [pa.float64(), pa.float32()])
def test_large_whole_numbers_of_a_widened_column_are_rounded(evolving, new):
    """Values beyond a float's digits are read, and written again, as the nearest float."""
    make, change = evolving
    value = 2**53 + 1
    one = make(pa.int64(), value)
    one.job.complete(1)
    change(one, new)
    wanted = pa.scalar(float(value)).cast(new, safe=False).as_py()
    held = {r["id"]: r["v"] for r in to_arrow(one.handle()).to_pylist()}
    assert held == {"a": wanted, "f": None}
    more = {"id": "z", "part": "p", "ts": 1, "v": None}
    Table.open(one.path).upsert(pa.Table.from_pylist([more], schema=schema_with(new)))
    held = {r["id"]: r["v"] for r in to_arrow(one.handle()).to_pylist()}
    assert held == {"a": wanted, "f": None, "z": None}
    assert fsck(one.path) == []


@pytest.mark.parametrize("new", [pa.decimal128(4, 2), pa.bool_(), pa.list_(pa.int64())])
def test_values_that_fit_no_longer_name_file_and_column(evolving, new):
    """A stored value that does not fit the table's current type is refused by file and column."""
    make, change = evolving
    one = make(pa.string(), "text")
    one.job.complete(1)
    change(one, new)
    for act in (
        lambda: to_arrow(one.handle()),
        lambda: Table.open(one.path).upsert(
            pa.Table.from_pylist(
                [{"id": "z", "part": "p", "ts": 1, "v": None}], schema=schema_with(new)
            )
        ),
    ):
        with pytest.raises(InvalidTable, match=r"base file .*\.parquet .*'v'"):
            act()


@pytest.mark.parametrize("interval", [None, Interval(checkpoints=1000)], ids=["each", "interval"])
@pytest.mark.parametrize("wrap", WRAPPED)
def test_an_inner_field_that_the_table_lost_is_refused(evolving, wrap, interval):
    """Values in a field that another engine dropped are not discarded silently."""
    make, change = evolving
    kind, value = WRAPPED[wrap]
    one = make(kind(OLD), value({"x": 1, "y": "kept"}), interval)
    change(one, kind(NEW))

    def finish() -> None:
        one.start()
        one.job.checkpointing.complete()

    with pytest.raises(InvalidTable, match=r"\.y'.* dropped"):
        finish()


@pytest.mark.parametrize("wrap", WRAPPED)
def test_an_inner_field_without_values_may_go(wrap):
    """A dropped inner field with only nulls does not prevent rows from being applied."""
    kind, value = WRAPPED[wrap]
    rows = pa.table({"v": pa.array([value({"x": 1, "y": None}), None], kind(OLD))})
    made = fitted(rows, pa.schema([("v", kind(NEW))]), "run")
    assert made.column("v").to_pylist() == [value({"x": 1, "w": None}), None]


FLOAT, DAY, WITH_ZONE = pa.float32(), pa.date32(), pa.timestamp("us", "UTC")
FOLLOWED = [
    (pa.int32(), 5, pa.int64(), 5),
    (pa.int32(), 5, pa.string(), "5"),
    (pa.int64(), 5, pa.float64(), 5.0),
    (FLOAT, 0.1, pa.float64(), 0.1),
    (FLOAT, float("-inf"), pa.float64(), float("-inf")),
    (pa.binary(), b"text", pa.string(), "text"),
    (pa.list_(pa.int32()), [5, None], pa.list_(pa.int64()), [5, None]),
    (pa.decimal128(4, 2), Decimal("1.10"), pa.decimal128(8, 3), Decimal("1.100")),
]
NOT_FOLLOWED = [
    (pa.float64(), 1.0, pa.string()),
    (pa.float64(), 1.0, pa.int64()),
    (pa.float64(), 1.0, FLOAT),
    (pa.int64(), 5, pa.int32()),
    (pa.int64(), 5, WITH_ZONE),
    (pa.int64(), 1, pa.bool_()),
    (pa.bool_(), True, pa.string()),
    (pa.bool_(), True, pa.int32()),
    (pa.string(), "12", pa.int64()),
    (pa.string(), "1970-01-01", DAY),
    (DAY, datetime.date(1970, 1, 1), pa.string()),
    (pa.list_(pa.float64()), [1.0], pa.list_(pa.string())),
    (pa.struct([("x", pa.int64())]), {"x": 5}, pa.struct([("x", pa.bool_())])),
]


@pytest.mark.parametrize(("old", "value", "new", "wanted"), FOLLOWED)
def test_a_change_of_type_that_hudi_makes_is_followed(evolving, old, value, new, wanted):
    """Rows are read as Hudi reads them, and the next write stores the same values."""
    make, change = evolving
    one = make(old, value)
    one.job.complete(1)
    change(one, new)
    assert {r["id"]: r["v"] for r in to_arrow(one.handle()).to_pylist()}["a"] == wanted
    more = {"id": "z", "part": "p", "ts": 1, "v": None}
    Table.open(one.path).upsert(pa.Table.from_pylist([more], schema=schema_with(new)))
    assert {r["id"]: r["v"] for r in to_arrow(one.handle()).to_pylist()}["a"] == wanted
    assert fsck(one.path) == []


@pytest.mark.parametrize(
    ("wide", "value", "narrow"),
    [(pa.int64(), 5, pa.int32()), (pa.float64(), 0.5, FLOAT), (pa.float64(), 3.0, pa.int64())],
)
def test_a_sealed_checkpoint_whose_wider_type_was_undone_is_applied(evolving, wide, value, narrow):
    """Another engine undoes the commit that widened a column: values that fit are not stuck."""
    make, change = evolving
    one = make(wide, value, Interval(checkpoints=1000))
    change(one, narrow)
    one.start()
    one.job.checkpointing.complete()
    found = {r["id"]: r["v"] for r in to_arrow(one.handle()).to_pylist()}
    assert found == {"a": value, "f": None} and fsck(one.path) == []


@pytest.mark.parametrize("cure", ["widen", "drop"])
def test_a_sealed_value_that_fits_no_longer_names_the_cures(evolving, cure):
    """The column is widened again, or the folders are deleted and the source is read again."""
    make, change = evolving
    one = make(pa.int64(), 1 << 40, Interval(checkpoints=1000))
    change(one, pa.int32())

    def apply() -> None:
        one.start()
        one.job.checkpointing.complete()

    with pytest.raises(InvalidTable, match=r"'v' as int64.* row 0.*widened.* or delete") as refused:
        apply()
    if cure == "widen":
        change(one, pa.int64())
        apply()
    else:
        for name in re.findall(r"sealed|prepared|staged", str(refused.value)):
            shutil.rmtree(one.path / ".hoodie/.hoodie_nb" / name, ignore_errors=True)
        one.source, one.number = Source(), 0
        one.job = LocalJob(one.handle(), index="bloom+state", query_id="new", source=one.source)
        one.job.checkpointing.complete()
    found = {r["id"]: r["v"] for r in to_arrow(one.handle()).to_pylist()}
    assert found == {"f": None, **({"a": 1 << 40} if cure == "widen" else {})}


@pytest.mark.parametrize(("old", "value", "new"), NOT_FOLLOWED)
def test_a_change_of_type_that_hudi_does_not_make_is_refused(evolving, old, value, new):
    """Narrower types, and types in which a value has another text or meaning, name the file."""
    make, change = evolving
    one = make(old, value)
    one.job.complete(1)
    change(one, new)
    more = {"id": "z", "part": "p", "ts": 1, "v": None}
    for act in (
        lambda: to_arrow(one.handle()),
        lambda: Table.open(one.path).upsert(pa.Table.from_pylist([more], schema_with(new))),
    ):
        with pytest.raises(InvalidTable, match=r"base file .*\.parquet .*'v'"):
            act()


@pytest.mark.parametrize(("old", "value", "new"), NOT_FOLLOWED[3:6])
def test_a_table_is_restored_to_before_a_change_of_type(evolving, old, value, new):
    """As the error advises: the rows have their old type again, and can be written."""
    make, change = evolving
    one = make(old, value)
    one.job.complete(1)
    before = Table.open(one.path).history()["requested_time"].iloc[-1]
    change(one, new)
    with pytest.raises(InvalidTable, match="restore the table to before that change"):
        to_arrow(one.handle())
    Table.open(one.path).restore(before)
    more = {"id": "z", "part": "p", "ts": 1, "v": None}
    Table.open(one.path).upsert(pa.Table.from_pylist([more], schema_with(old)))
    found = {r["id"]: r["v"] for r in to_arrow(one.handle()).to_pylist()}
    assert found == {"a": value, "z": None} and fsck(one.path) == []
