"""New tables of versions 8 and 9: created, written, overwritten, cleaned, replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tables import Model, hudi_rows, schema_of, timeline_folder, without_meta

from hoodie_nb import Table

KEYS: dict[str, Any] = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
versions = pytest.mark.parametrize("version", [6, 8, 9])


def version_of(table: Table) -> str:
    """Return the version in the properties."""
    text = Path(table.path, ".hoodie/hoodie.properties").read_text()
    return text.partition("hoodie.table.version=")[2].partition("\n")[0]


def rows(numbers: range, ts: int) -> list[dict[str, Any]]:
    """Return a row per number in one of two partitions."""
    return [{"id": f"k{n}", "p": f"p{n % 2}", "ts": ts, "v": n + ts} for n in numbers]


@versions
def test_a_new_table_of_each_version_is_written_and_read(tmp_path: Path, version: int) -> None:
    """Upserts, late rows, deletes and cleans: ours and hudi-rs read what the model holds."""
    retained = {"hoodie.clean.commits.retained": 2}
    table = Table.create(
        tmp_path / "t", schema=schema_of(), table_version=version, options=retained, **KEYS
    )
    model = Model()
    assert table.to_arrow().num_rows == 0
    for ts in (5, 7, 6, 9):
        batch = rows(range(ts, ts + 10), ts)
        model.upsert(batch)
        table.upsert(batch)
    gone = rows(range(8, 12), 10)
    model.delete(gone)
    table.delete(gone)
    assert hudi_rows(table.path) == model.snapshot() == without_meta(table.to_arrow())
    assert without_meta(Table.open(table.path).to_arrow()) == model.snapshot()
    assert any(".clean" in file.name for file in timeline_folder(table.path).iterdir())
    assert (version_of(table), table.fsck()) == (str(version), [])


@versions
def test_an_existing_table_keeps_its_version_unless_it_is_replaced(
    tmp_path: Path, version: int
) -> None:
    """`if_exists="open"` with another version opens it; "replace" makes one of that version."""
    for first in (6, 9):
        root = tmp_path / f"t{first}"
        made = Table.create(root, schema=schema_of(), table_version=first, **KEYS)
        made.upsert(rows(range(3), 1))
        again: dict[str, Any] = {"schema": schema_of(), "table_version": version, **KEYS}
        opened = Table.create(root, if_exists="open", **again)
        assert (version_of(opened), opened.to_arrow().num_rows) == (str(first), 3)
        new = Table.create(root, if_exists="replace", **again)
        assert (version_of(new), new.to_arrow().num_rows) == (str(version), 0)
        new.upsert(rows(range(2), 1))
        assert len(hudi_rows(root)) == 2
