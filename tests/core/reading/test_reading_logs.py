"""Reads of merge-on-read tables, judged by what Java read of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from java_logs import STATES, VERSIONS, commits, java_rows, java_table, same_rows

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable


@pytest.mark.parametrize("version, state", STATES)
def test_a_snapshot_is_javas(tmp_path: Path, version: int, state: str) -> None:
    """With a compaction pending, an unfinished write, by commit time, without base files."""
    table = Table.open(java_table(tmp_path, version, state))
    assert same_rows(table.to_arrow(), java_rows(version, state))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_earlier_snapshot_is_javas(tmp_path: Path, version: int) -> None:
    """As of each commit of the timeline the rows are those that Java read right after it."""
    table = Table.open(java_table(tmp_path, version))
    known = commits(version)
    assert len(known) == 11
    for time17 in known:
        assert same_rows(table.to_arrow(as_of=time17), java_rows(version, f"expected/{time17}"))
    assert same_rows(table.to_arrow(), java_rows(version, f"expected/{known[-1]}"))


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_columns_and_streams(tmp_path: Path, version: int) -> None:
    """Parts of a snapshot are parts of Java's."""
    table = Table.open(java_table(tmp_path, version, "pending"))
    wanted = java_rows(version, "pending")
    found = table.to_arrow(partitions=["b"])
    assert same_rows(found, wanted.filter(pc.field("part") == "b"))
    assert same_rows(table.to_arrow(["id", "money"]), wanted.select(["id", "money"]))
    frame = table.to_pandas(["id", "v"]).sort_values("id", ignore_index=True)
    ours = wanted.select(["id", "v"]).to_pandas().sort_values("id", ignore_index=True)
    pd.testing.assert_frame_equal(frame, ours)
    streamed = pl.DataFrame(table).sort("id")
    assert streamed["v"].to_list() == [*ours["v"]]


FILTERS = ["id = 'k004'", "id > 'k010'", "v < 7", "part = 'a' and at >= 30", "money is null"]


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("version, state", [(6, "pending"), (9, "pending"), (9, "log_only")])
def test_a_filter_sees_merged_rows(tmp_path: Path, version: int, state: str, text: str) -> None:
    """A filter returns the rows that filtering the whole snapshot returns, no older ones."""
    table = Table.open(java_table(tmp_path, version, state))
    whole = pl.from_arrow(java_rows(version, state))
    wanted = pl.SQLContext(rows=whole).execute(f"select * from rows where {text}", eager=True)
    found = table.to_arrow(["id", "v", "at"], filters=text)
    assert sorted(found["id"].to_pylist()) == sorted(wanted["id"].to_list())
    assert sorted(found["v"].to_pylist()) == sorted(wanted["v"].to_list())


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda content: content[:-20], r"\.log\.\d.*its commit wrote.*Restore it"),
    "begins with zeros": (lambda content: bytes(6) + content[6:], r"damaged at byte 0.*Restore it"),
}


@pytest.mark.parametrize("case", DAMAGE)
@pytest.mark.parametrize("version", [8, 9])
def test_a_damaged_log_is_an_error_until_it_is_restored(
    tmp_path: Path, version: int, case: str
) -> None:
    """Other readers drop the rows that are lost, without a word; here the file is named."""
    root = java_table(tmp_path, version)
    log = max(root.glob("a/.*.log.*"), key=lambda path: path.name)
    content = log.read_bytes()
    damage, words = DAMAGE[case]
    log.write_bytes(damage(content))
    with pytest.raises(InvalidTable, match=words):
        Table.open(root).to_arrow()
    log.write_bytes(content)
    wanted = java_rows(version, f"expected/{commits(version)[-1]}")
    assert same_rows(Table.open(root).to_arrow(), wanted)


def test_a_log_of_version_6_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    """The commit that wrote it is found by its path."""
    root = java_table(tmp_path, 6)
    log = max(root.glob("a/.*.log.*"), key=lambda path: path.name)
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(InvalidTable, match=r"\.log\.\d.*its commit wrote"):
        Table.open(root).to_arrow()


def test_history_has_all_kinds_of_commits(tmp_path: Path) -> None:
    """Delta commits, compactions and overwrites are listed; the ended compactions only once."""
    table = Table.open(java_table(tmp_path, 9))
    seen = [*table.history()["operation"]]
    assert seen.count("compact") == 2
    assert seen[0] == "insert"
    assert "insert_overwrite" in seen
    actions = table.timeline()
    assert "compaction" not in set(actions["action"])
    assert isinstance(table.schema, pa.Schema)


def test_reads_of_copy_on_write_need_no_ordering_column(tmp_path: Path) -> None:
    """Only logs are merged by it: a table without logs is read if its properties name no column."""
    schema = pa.schema([("id", pa.string()), ("ts", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id", ordering="ts")
    table.upsert([{"id": "a", "ts": 1}])
    properties = tmp_path / "t" / ".hoodie" / "hoodie.properties"
    changed = properties.read_text().replace("precombine.field=ts", "precombine.field=gone")
    assert changed != properties.read_text()
    properties.write_text(changed)
    rows = Table.open(tmp_path / "t").to_arrow(meta=False).to_pylist()
    assert rows == [{"id": "a", "ts": 1}]
