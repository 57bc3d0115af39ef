"""New columns and wider types where logs and base files of one slice differ in them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tables import canonical, hudi_rows, kind_of, tree, without_meta
from writes import commit_elsewhere, write_uncommitted

from hoodie_nb import Table
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order, write_in_process
from hoodie_nb.records.progress import Checkpoint

pytestmark = pytest.mark.usefixtures("many_logs")
VERSIONS = pytest.mark.parametrize("version", ["8 logs", "9 logs"])
OLD = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int32())])
WIDE = OLD.set(3, pa.field("v", pa.int64())).append(pa.field("w", pa.string()))
WIDER = {
    "number": (pa.int32(), 1, pa.int64()),
    "field": (pa.struct([("a", pa.int32())]), {"a": 1}, pa.struct([("a", pa.int64())])),
    "items": (pa.list_(pa.int32()), [1], pa.list_(pa.float64())),
    "places": (pa.decimal128(4, 2), Decimal("1.1"), pa.decimal128(20, 4)),
}


def made(root: Path, version: int | str, ordering: str | None = "ts", **more: Any) -> Table:
    """Return an empty table."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": ordering}
    return Table.create(root, **{"schema": OLD, **keys, **kind_of(version), **more})


def rows(schema: pa.Schema, keys: str, ts: int, **more: Any) -> pa.Table:
    """Return one version of some rows, with these columns."""
    held = {"p": "a", "ts": ts, "v": ts, "w": f"w{ts}", "d": ts / 2, **more}
    return pa.Table.from_pylist([{"id": key, **held} for key in keys], schema)


STEPS: list[Callable[[Table], object]] = [
    lambda t: t.upsert(rows(OLD, "abcdefgh", 1)),
    lambda t: t.upsert(rows(WIDE, "bcd", 2, v=2**40), schema="merge"),
    lambda t: t.upsert(rows(WIDE, "cde", 3)),
    lambda t: t.upsert(rows(WIDE, "cf", 2)),  # one of them late
    lambda t: t.add_columns({"d": pa.float64()}),
    lambda t: t.upsert(rows(t.schema, "bf", 4)),
    lambda t: t.delete([{"id": "d", "p": "a"}]),
    lambda t: t.upsert(rows(t.schema, "ad", 5)),
    lambda t: t.update(where="w is null", set={"d": "v + 0.5"}),
    lambda t: t.upsert(rows(t.schema, "hz", 6)),
]


def seen(table: Table) -> list[list[str]]:
    """Return the rows now, by a filter, of the lazy dataset, and as of each commit."""
    table = Table.open(table.path)
    where = "w = 'w3' or w is null" if "w" in table.schema.names else "v > 1"
    filtered = table.to_arrow(filters=where)
    found = [table.to_arrow(), filtered, table.to_pyarrow_dataset().to_table()]
    times = table.history()["requested_time"]
    found += [table.to_arrow(as_of=time17) for time17 in times]
    since = [table.changes(since=time17) for time17 in times]
    kept = [c for c in since[0].column_names if not c.startswith("_hoodie")]
    return [without_meta(one) for one in found] + [
        canonical(c.select(kept).to_pylist()) for c in since
    ]


@VERSIONS
@pytest.mark.parametrize("ordering", ["ts", None])
def test_the_rows_are_those_of_copy_on_write(
    tmp_path: Path, version: str, ordering: str | None
) -> None:
    """After each write, each undoing of one, and a compaction; hudi-rs reads them, too."""
    table = made(tmp_path / "logs", version, ordering)
    twin = made(tmp_path / "twin", int(version[0]), ordering)
    most, states = 0, []
    for step in STEPS:
        for one in (table, twin):
            assert step(one) is not None
        states.append(seen(table))
        assert states[-1] == seen(twin) and states[-1][0] == hudi_rows(table.path)
        assert table.schema.equals(twin.schema)
        most = max(most, *(len(piece.logs) for piece in table._handle.file_groups()))
    assert most >= 3
    copy = shutil.copytree(table.path, tmp_path / "copy")
    compacted = Table.open(copy)
    compacted.compact()
    assert without_meta(compacted.to_arrow()) == hudi_rows(copy) == states[-1][0]
    assert compacted.fsck() == table.fsck() == []
    for held in reversed(states[:-1]):
        table.rollback()
        twin.rollback()
        assert seen(table) == seen(twin) == held
        assert hudi_rows(table.path) == held[0] and table.schema.equals(twin.schema)
    assert table.fsck() == []


@VERSIONS
@pytest.mark.parametrize("name", WIDER)
def test_types_do_not_become_wider_beside_logs(tmp_path: Path, version: str, name: str) -> None:
    """hudi-rs would not read these logs: the error says what to do, and then it is done."""
    old, value, new = WIDER[name]
    table = made(tmp_path / "t", version, schema=OLD.append(pa.field("x", old)))
    table.upsert(rows(table.schema, "abc", 1, x=value))
    table.upsert(rows(table.schema, "b", 2, x=value))
    before = tree(table.path)
    with pytest.raises(InvalidTable, match=r"\['x'\] would become wider.*table\.compact\(\)"):
        table.add_columns({"x": new})
    assert tree(table.path) == before
    table.add_columns({"more": pa.struct([("a", pa.int32())])})
    table.compact()
    table.add_columns({"x": new})
    table.upsert(rows(table.schema, "c", 3))
    assert [len(piece.logs) for piece in table._handle.file_groups()] == [1]
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []


@VERSIONS
def test_a_prepared_log_is_written_again_with_the_new_column(tmp_path: Path, version: str) -> None:
    """The column came between a checkpoint of a stream and its commit."""
    table = made(tmp_path / "t", version)
    table.upsert(rows(OLD, "abc", 1))
    coordinator = WriteCoordinator(open_table(table.path), EventLog())
    intake = Intake(coordinator.table.config, OLD)
    keyed = keyed_in_order(rows(OLD, "b", 3), intake)
    result = write_uncommitted(
        coordinator, intake, lambda plan: write_in_process(keyed, plan, EventLog()), Shape()
    )
    assert result is not None and [status.is_log for status in result.statuses] == [True]
    coordinator.prepare(replace(result, checkpoints=(Checkpoint("q", 0, "f"),)))
    commit_elsewhere(table.path, rows(WIDE, "bc", 2))
    table = Table.open(table.path)
    table.upsert(rows(WIDE, "a", 4))
    held = {r["id"]: (r["v"], r["w"]) for r in table.to_arrow().to_pylist()}
    assert held == {"a": (4, "w4"), "b": (3, None), "c": (2, "w2")}
    assert hudi_rows(table.path) == without_meta(table.to_arrow()) and table.fsck() == []
