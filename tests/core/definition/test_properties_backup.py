"""`hoodie.properties` of an engine that died while changing it: the backup is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tables import hudi_rows, schema_of, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidInput, InvalidTable

SCHEMA = schema_of()
KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts"}


def rows(value: int, key: str = "a") -> pa.Table:
    """Return one row."""
    return pa.Table.from_pylist([{"id": key, "p": "x", "ts": value, "v": value}], SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of one row."""
    made = Table.create(tmp_path / "t", schema=SCHEMA, **KEYS)
    made.upsert(rows(1))
    return made


def last_line_gone(file: Path) -> None:
    """Remove the checksum, which is the last line."""
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:300]),
    "checksum gone": last_line_gone,
    "checksum wrong": lambda file: file.write_text(
        file.read_text().replace("checksum=", "checksum=9")
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_the_backup_counts_and_the_next_write_puts_it_back(table: Table, case: str) -> None:
    """Readers use the backup and change nothing; a write restores the file."""
    file = Path(table.path, ".hoodie/hoodie.properties")
    backup = file.with_name("hoodie.properties.backup")
    content = b"# as it was before\n" + file.read_bytes()
    backup.write_bytes(content)
    DAMAGE[case](file)
    before = tree(table.path)
    assert without_meta(Table.open(table.path).to_arrow()) == without_meta(rows(1))
    assert tree(table.path) == before
    with pytest.raises(InvalidTable, match="has a table already"):
        Table.create(table.path, schema=SCHEMA, **KEYS)
    Table.create(table.path, schema=SCHEMA, if_exists="open", **KEYS).upsert(rows(2))
    assert (file.read_bytes(), backup.exists()) == (content, False)
    assert without_meta(Table.open(table.path).to_arrow()) == hudi_rows(table.path)
    table.upsert(rows(3))
    assert without_meta(Table.open(table.path).to_arrow()) == without_meta(rows(3))
    assert table.fsck() == []


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_backup_is_not_used(table: Table, case: str) -> None:
    """The file is used if it is complete; if both are damaged, nothing is written."""
    file = Path(table.path, ".hoodie/hoodie.properties")
    backup, content = file.with_name("hoodie.properties.backup"), file.read_bytes()
    backup.write_bytes(content)
    DAMAGE[case](backup)
    table.upsert(rows(2))
    assert file.read_bytes() == content
    DAMAGE[case](file)
    before = tree(table.path)
    for write in (table.upsert, lambda given: Table.open(table.path).upsert(given)):
        with pytest.raises(InvalidTable, match=r"hoodie\.properties"):
            write(rows(3))
    assert tree(table.path) == before


@pytest.mark.parametrize("keys", ["id", ["id", "v"]])
def test_keys_of_more_than_64_kib_are_refused(tmp_path: Path, keys: str | list[str]) -> None:
    """A longer key is refused with its column before any write; a shorter one is stored."""
    table = Table.create(tmp_path / "t", schema=SCHEMA, **{**KEYS, "record_key": keys})
    room = 65_536 - (0 if keys == "id" else len("id:,v:1"))
    before = tree(table.path)
    with pytest.raises(InvalidInput, match=r"'id.*longer than 64 KiB in 1 row, e\.g\..*'.*kkk"):
        table.upsert(pa.concat_tables([rows(1), rows(1, "k" * (room + 1))]))
    assert tree(table.path) == before
    table.upsert(rows(1, "k" * room))
    assert table.to_arrow().num_rows == 1
