"""Damaged properties and commits are detected, not trusted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tables import schema_of, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import InvalidTable

SCHEMA = schema_of()


def rows(ts: int, value: int) -> pa.Table:
    """Return one row."""
    return pa.Table.from_pylist([{"id": "a", "p": "x", "ts": ts, "v": value}], SCHEMA)


def make_table(path: Path, merge_mode: str) -> Table:
    """Return a table with one row at 10."""
    made = Table.create(
        path,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        merge_mode=merge_mode,
    )
    made.upsert(rows(10, 1))
    return made


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with one row at 10; the greater ordering value wins."""
    return make_table(tmp_path / "t", "event_time")


def flips(content: bytes, begin: int, end: int, step: int) -> list[bytes]:
    """Return contents with one flipped bit in a range."""
    found = []
    for bit in range(8 * begin, 8 * end, step):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        found.append(bytes(changed))
    return found


LINES = {
    "hoodie.table.precombine.field=ts": "event_time",
    "hoodie.compaction.payload.class": "partial",
}


@pytest.mark.parametrize("line", LINES)
def test_a_flipped_bit_in_the_properties_changes_no_rule(tmp_path: Path, line: str) -> None:
    """If any bit of the lines about merging has flipped, writers are refused."""
    table = make_table(tmp_path / "t", LINES[line])
    path = Path(table.path, ".hoodie/hoodie.properties")
    whole = path.read_bytes()
    begin = whole.index(line.encode())
    for content in flips(whole, begin, whole.index(b"\n", begin), 3):
        path.write_bytes(content)
        with pytest.raises(InvalidTable):
            Table.open(table.path).upsert(rows(5, 99))
    path.write_bytes(whole)
    Table.open(table.path).upsert(rows(5, 99))
    assert without_meta(table.to_arrow()) == without_meta(rows(10, 1))


def test_properties_that_changed_are_named_with_the_fix(table: Table) -> None:
    """Writers are refused until a lost line is restored or the stored rules are deleted."""
    path = Path(table.path, ".hoodie/hoodie.properties")
    path.write_text(path.read_text().replace("hoodie.table.precombine.field=ts\n", ""))
    before = tree(table.path)
    with pytest.raises(InvalidTable, match=r"ordering=None \(it was 'ts'\).*delete .*rules\.json"):
        Table.open(table.path).upsert(rows(5, 99))
    assert tree(table.path) == before
    assert without_meta(Table.open(table.path).to_arrow()) == without_meta(rows(10, 1))
    Path(table.path, RULES).unlink()
    Table.open(table.path).upsert(rows(5, 99))
    assert without_meta(table.to_arrow()) == without_meta(rows(5, 99))


def test_rules_are_kept_from_the_first_write_on(table: Table) -> None:
    """The rules of another engine's table are stored as of our first write."""
    Path(table.path, RULES).unlink()
    Table.open(table.path).upsert(rows(11, 2))
    path = Path(table.path, ".hoodie/hoodie.properties")
    path.write_text(path.read_text().replace("precombine.field=ts", "precombine.field=v"))
    with pytest.raises(InvalidTable, match=r"ordering='v' \(it was 'ts'\)"):
        Table.open(table.path).upsert(rows(12, 3))


def test_damaged_rules_are_refused_and_may_be_deleted(table: Table) -> None:
    """A damaged record is refused as well; without a record the properties count."""
    path = Path(table.path, RULES)
    path.write_bytes(path.read_bytes().replace(b'"ts"', b'"tt"'))
    with pytest.raises(InvalidTable, match=r"rules\.json is damaged; delete it"):
        Table.open(table.path).upsert(rows(11, 2))
    path.unlink()
    Table.open(table.path).upsert(rows(11, 2))
    assert without_meta(table.to_arrow()) == without_meta(rows(11, 2))


def test_a_flipped_bit_in_what_a_commit_carries_is_refused(table: Table) -> None:
    """A changed column name is not read as a column of nulls, and a changed note is not used."""
    (path,) = Path(table.path, ".hoodie").glob("*.commit")
    whole = path.read_bytes()
    begin = whole.index(b'"extraMetadata"')
    refused = 0
    for content in flips(whole, begin, whole.index(b'"operationType"'), 19):
        path.write_bytes(content)
        try:
            assert without_meta(Table.open(table.path).to_arrow()) == without_meta(rows(10, 1))
        except InvalidTable as error:
            assert path.name in str(error)
            refused += 1
    assert refused > 150


def test_a_flipped_bit_in_what_a_commit_says_of_its_files_is_refused(table: Table) -> None:
    """A base file's path that has changed is damage of the commit: fsck deletes no sound file."""
    (path,) = Path(table.path, ".hoodie").glob("*.commit")
    whole = path.read_bytes()
    begin = whole.index(b'"partitionToWriteStats"')
    refused = 0
    for content in flips(whole, begin, whole.index(b'"extraMetadata"'), 37):
        path.write_bytes(content)
        with pytest.raises(InvalidTable, match=path.name):
            Table.open(table.path).upsert(rows(11, 2))
        (finding,) = Table.open(table.path).fsck()
        assert path.name in finding.what and "delete" not in finding.fix
        refused += 1
    assert refused > 150


def test_commits_that_were_exchanged_are_refused(table: Table) -> None:
    """A commit of ours under the name of another instant is not believed, and named."""
    Table.open(table.path).upsert(rows(11, 2))
    first, second = sorted(Path(table.path, ".hoodie").glob("*.commit"))
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])
    for use in (Table.to_arrow, lambda t: t.upsert(rows(12, 3))):
        with pytest.raises(InvalidTable, match=f"{second.name}.* of another instant"):
            use(Table.open(table.path))
    first.write_bytes(contents[0])
    second.write_bytes(contents[1])
    Table.open(table.path).upsert(rows(12, 3))
    assert without_meta(table.to_arrow()) == without_meta(rows(12, 3))
