"""Merge-on-read tables of this library: how they are created, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidInput, InvalidTable

SCHEMA = pa.schema(
    [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("x", pa.float64())]
)
KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_type": "merge_on_read"}
ROWS = [{"id": "k1", "p": "a", "ts": 1, "x": 0.5}]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a merge-on-read table with a row."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, **KEYS)
    table.upsert(ROWS)
    return table


def test_the_default_version_is_9(table: Table) -> None:
    """Version 8 can be asked for; other versions cannot get logs."""
    text = Path(table.path, ".hoodie/hoodie.properties").read_text()
    assert "hoodie.table.type=MERGE_ON_READ\n" in text
    assert "hoodie.table.version=9\n" in text


@pytest.mark.parametrize(
    "given",
    [
        {"table_version": 6},
        {"merge_mode": "partial", "table_version": 6},
        {"global_index": True},
        {"ordering": "x"},
        {"ordering": "id"},
    ],
)
def test_what_logs_cannot_say_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    """Before anything is created, with what works instead."""
    with pytest.raises(InvalidConfig, match=r"merge_on_read.*table_version=9 or 8, an ordering"):
        Table.create(tmp_path / "t", schema=SCHEMA, **{**KEYS, **given})
    assert not (tmp_path / "t").exists()


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    """With the two types that there are."""
    with pytest.raises(InvalidConfig, match="choose from"):
        Table.create(tmp_path / "t", schema=SCHEMA, **{**KEYS, "table_type": "MOR"})


@pytest.mark.parametrize("rows", [[{**ROWS[0], "ts": None}], [ROWS[0], {**ROWS[0], "ts": None}]])
def test_a_null_ordering_value_is_refused(table: Table, rows: list[dict[str, Any]]) -> None:
    """Java fails to merge a log with one; a delete may leave the column out."""
    with pytest.raises(InvalidInput, match="'ts' is the ordering column of a merge-on-read table"):
        table.upsert(pa.Table.from_pylist(rows, SCHEMA))
    with pytest.raises(InvalidInput, match="'ts' is the ordering column"):
        table.delete(pa.Table.from_pylist(rows, SCHEMA))
    table.delete([{"id": "k1", "p": "a"}])
    assert table.to_arrow().num_rows == 0


def test_bad_rows_can_be_set_aside(table: Table) -> None:
    """A null ordering value is a bad record."""
    table.upsert([{**ROWS[0], "ts": None}, {**ROWS[0], "id": "k2"}], on_bad_record="quarantine")
    assert sorted(table.to_arrow()["id"].to_pylist()) == ["k1", "k2"]


def test_another_type_is_another_table(table: Table) -> None:
    """`if_exists` compares the type; "replace" deletes log files, too."""
    again = Table.create(table.path, schema=SCHEMA, if_exists="open", **KEYS)
    assert again.to_arrow().num_rows == 1
    other = {**KEYS, "table_type": "copy_on_write", "table_version": 9}
    with pytest.raises(InvalidConfig, match="merge_on_read: table True, requested False"):
        Table.create(table.path, schema=SCHEMA, if_exists="open", **other)
    Table.create(
        table.path,
        schema=SCHEMA,
        if_exists="replace",
        options={"hoodie_nb.append.above.bytes": 0},
        **KEYS,
    )
    table = Table.open(table.path)
    table.upsert(ROWS)
    table.upsert(ROWS)
    assert [*Path(table.path, "a").glob(".*.log.*")]
    Table.create(table.path, schema=SCHEMA, if_exists="replace", **other)
    assert not Path(table.path, "a").exists()


def test_no_rules_no_writes(table: Table) -> None:
    """Without its record of the rules the table may be another engine's."""
    rules = Path(table.path, ".hoodie/.hoodie_nb/rules.json")
    backup = rules.read_bytes()
    rules.unlink()
    with pytest.raises(InvalidTable, match=r"of another engine.*restore .*rules\.json"):
        Table.open(table.path).upsert(ROWS)
    rules.write_bytes(backup)
    Table.open(table.path).upsert([{**ROWS[0], "id": "k2"}])
    assert Table.open(table.path).to_arrow().num_rows == 2


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (".hoodie_nb/rules.json", b'"ts"', b'"tt"'),
        ("hoodie.properties", b"recordkey.fields=id", b"recordkey.fields=p"),
    ],
)
def test_no_error_advises_to_delete_the_rules(
    table: Table, name: str, old: bytes, new: bytes
) -> None:
    """Damaged rules, or other properties: without its rules the table could only be read."""
    file = Path(table.path, ".hoodie", name)
    sound = file.read_bytes()
    assert old in sound
    file.write_bytes(sound.replace(old, new))
    with pytest.raises(InvalidTable, match=r"estore it from a backup.*\(not in a merge-on-read"):
        Table.open(table.path).upsert(ROWS)
    found = [f.what if name.endswith("json") else f.fix for f in Table.open(table.path).fsck()]
    assert any("from a backup" in text and "(not in a merge-on-read" in text for text in found)
    file.write_bytes(sound)
    Table.open(table.path).upsert(ROWS)
