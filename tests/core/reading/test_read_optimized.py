"""Read-optimised queries: the newest base file of each group, whatever logs say; as hudi-rs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hudi import HudiReadOptions, HudiTableBuilder
from java_logs import STATES, VERSIONS, commits, java_rows, java_table, same_rows

from hoodie_nb import Table

READ_OPTIMIZED = {"hoodie.read.use.read_optimized.mode": "true"}
OF_FILE = ["id", "part", "v", "at", "_hoodie_record_key", "_hoodie_commit_time"]
ALL = [*((version, "table") for version in VERSIONS), *STATES]


def judged(root: Path, as_of: str | None = None) -> pa.Table | None:
    """Return what hudi-rs reads of the base files; None if there are no rows."""
    table = HudiTableBuilder.from_base_uri(str(root)).with_options(READ_OPTIMIZED).build()
    options = HudiReadOptions().with_hudi_options(READ_OPTIMIZED)
    if as_of is not None:
        options = options.with_as_of_timestamp(as_of)
    batches = table.read(options)
    return pa.Table.from_batches(batches) if batches else None


@pytest.mark.parametrize("version, state", ALL)
def test_the_rows_are_those_of_the_newest_base_files(
    tmp_path: Path, version: int, state: str
) -> None:
    """Groups of logs only are invisible; the other ways to read return the same rows."""
    root = java_table(tmp_path, version, state)
    table = Table.open(root)
    found = table.to_arrow(read_optimized=True)
    theirs = judged(root)
    if state == "log_only":
        assert found.num_rows == 0
        assert theirs is None or theirs.num_rows == 0
    else:
        assert theirs is not None
        assert same_rows(found, theirs.select(OF_FILE))
        assert not same_rows(table.to_arrow(OF_FILE), theirs.select(OF_FILE))
    frame = table.to_pandas(OF_FILE, read_optimized=True)
    assert frame.equals(found.select(OF_FILE).to_pandas())
    assert same_rows(table.to_pyarrow_dataset(read_optimized=True).to_table(), found)


@pytest.mark.parametrize("version", VERSIONS)
def test_earlier_base_files(tmp_path: Path, version: int) -> None:
    """As of each commit, the base files that were completed then."""
    root = java_table(tmp_path, version)
    table = Table.open(root)
    sizes = set()
    for time17 in commits(version):
        found = table.to_arrow(as_of=time17, read_optimized=True)
        theirs = judged(root, time17)
        assert theirs is not None
        assert same_rows(found, theirs.select(OF_FILE))
        sizes.add(str(sorted(found.select(OF_FILE).to_pylist(), key=str)))
    assert 1 < len(sizes) < len(commits(version))  # most commits wrote only logs


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_are_not_even_looked_at(tmp_path: Path, version: int) -> None:
    """Missing ones are no error, and a filter leaves out rows of the base file, as it has them."""
    root = java_table(tmp_path, version)
    table = Table.open(root)
    whole = table.to_arrow(read_optimized=True)
    for log in root.glob("*/.*.log.*"):
        log.unlink()
    assert same_rows(Table.open(root).to_arrow(read_optimized=True), whole)
    found = table.to_arrow(filters="at >= 10", read_optimized=True)
    assert sorted(found["id"].to_pylist()) == sorted(
        row["id"] for row in whole.to_pylist() if row["at"] >= 10
    )


def test_of_a_copy_on_write_table_it_is_the_snapshot(tmp_path: Path) -> None:
    """It has no logs."""
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert([{"id": "a", "v": 1}, {"id": "b", "v": 2}])
    table.upsert([{"id": "a", "v": 3}])
    assert same_rows(table.to_arrow(read_optimized=True), table.to_arrow())


def test_the_snapshot_of_the_fixture_differs(tmp_path: Path) -> None:
    """Else the tests above would not see which of both was read."""
    table = Table.open(java_table(tmp_path, 9, "pending"))
    assert same_rows(table.to_arrow(), java_rows(9, "pending"))
    assert not same_rows(table.to_arrow(read_optimized=True), java_rows(9, "pending"))
