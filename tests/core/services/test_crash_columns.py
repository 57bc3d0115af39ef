"""Any operation of a write that adds columns may fail: the columns come with its instant, or not.

One trial: a table with rows; `add_columns`, or an upsert with `schema="merge"`, and its n-th
operation on the disk fails; readers read; a new process does the same again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from each_fault import each_fault
from lives import dying_at, make, opened
from tables import hudi_table, kind_of, pending_names, rows_by, schema_of

from hoodie_nb import Table

pytestmark = pytest.mark.usefixtures("many_logs")
OLD = schema_of()
NEW = OLD.append(pa.field("w", pa.string()))
ROWS = [{"id": k, "p": "xy"[n % 2], "ts": 1, "v": n} for n, k in enumerate("abcd")]
ROW = {"id": "d", "p": "y", "ts": 2, "v": 5, "w": "new"}
HOWS = ["before", "after", "torn", "error", "error_after", "interrupt"]
CASES = [
    *((6, how) for how in HOWS),
    *((9, how) for how in ("before", "torn", "error_after")),
    (8, "before"),
    *(("9 logs", how) for how in ("before", "torn", "error_after")),
    ("8 logs", "before"),
]


def add(table: Table) -> object:
    """Add the column, without rows."""
    return table.add_columns({"w": pa.string()})


def merge(table: Table) -> object:
    """Write a row with the new column: a log, where the table has them."""
    return table.upsert(pa.Table.from_pylist([ROW], NEW), schema="merge")


@pytest.fixture(scope="module", params=[6, 8, 9, "8 logs", "9 logs"])
def prepared(new_folder: Callable[[], Path], request: pytest.FixtureRequest) -> Path:
    """A table with four rows in two partitions."""
    kind = kind_of(request.param)
    logs = "table_type" in kind
    root = make(new_folder() / "t", kind["table_version"], merge_on_read=logs, **kind["options"])
    Table(opened(root)).upsert(ROWS)
    return root


def rows_of(root: Path) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether readers see the new column, and the rows; hudi-rs must agree."""
    table, theirs = Table(opened(root)), hudi_table(root)
    names = table.to_arrow(meta=False).column_names
    assert names in (OLD.names, NEW.names) and theirs is not None
    assert theirs.column_names[5:] == names
    return names == NEW.names, rows_by(table, "id")


@pytest.mark.parametrize(("prepared", "how"), CASES, indirect=["prepared"])
@pytest.mark.parametrize("change", [add, merge])
def test_a_failure_anywhere_adds_all_or_nothing(
    prepared: Path, how: str, change: Callable[[Table], Any]
) -> None:
    """The column and the rows of its instant appear together, and a second attempt completes it."""
    more, held, outcomes = [], ROWS, []
    if change is merge:
        more, held = [ROW], ROWS[:-1]
    for root, _ in each_fault(prepared, change, how):
        added, rows = rows_of(root)
        outcomes.append(added)
        wanted = [*({**row, "w": None} for row in held), *more]
        assert rows == (wanted if added else ROWS)
        change(Table(opened(root)))
        assert rows_of(root) == (True, wanted)
        assert pending_names(root) == [] and Table(opened(root)).fsck() == []
    assert outcomes.count(False) >= 3  # the fault fired before the completed file
    if how in ("before", "after", "torn"):
        assert True in outcomes


@pytest.mark.parametrize("point", ["coord.inflight.post", "coord.commit.pre", "coord.commit.post"])
def test_the_next_writer_continues_after_a_crash(
    prepared: Path, tmp_path: Path, point: str
) -> None:
    """It rolls the instant back, or takes the columns over, before it writes its own rows."""
    root = tmp_path / "t"
    shutil.copytree(prepared, root)
    with dying_at(point):
        add(Table(opened(root)))
    added, table = point == "coord.commit.post", Table(opened(root))
    assert table.schema.equals(NEW if added else OLD)
    table.upsert(pa.Table.from_pylist([ROW], NEW if added else OLD))
    assert table.schema.equals(NEW if added else OLD)
    assert rows_by(table, "id")[-1] == (ROW if added else {n: ROW[n] for n in OLD.names})
    assert table.fsck() == []
