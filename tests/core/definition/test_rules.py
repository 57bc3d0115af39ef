"""Damaged properties and commits are detected, not trusted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tables import data_files, schema_of, tree, without_meta

from hoodie_nb import Table
from hoodie_nb.definition.properties import OPTIONS, load_options
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.local_storage import LocalStorage

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
    with pytest.raises(InvalidTable, match=r"rules\.json is damaged; restore it.*or delete it"):
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


RETAINED = "hoodie.clean.commits.retained"


def set_options(table: Table, options: dict[str, int]) -> None:
    """Change options of the table."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    Table.create(table.path, schema=SCHEMA, if_exists="open", options=options, **keys)


def test_damaged_options_delete_no_file(table: Table) -> None:
    """One wrong bit makes the 10 commits to retain a 1: the write that would clean is refused."""
    path = Path(table.path)
    set_options(table, {RETAINED: 10})
    for number in range(11, 15):
        table.upsert(rows(number, number))
    before, sound = data_files(path), (path / OPTIONS).read_bytes()
    (path / OPTIONS).write_bytes(sound.replace(b": 10", b": 1 "))
    with pytest.raises(InvalidTable, match=r"options\.json is damaged; restore it, or delete it"):
        Table.open(path).upsert(rows(15, 15))
    assert data_files(path) == before
    (path / OPTIONS).write_bytes(sound)
    Table.open(path).upsert(rows(15, 15))
    assert before < data_files(path)


def test_each_wrong_bit_of_the_options_is_noticed(table: Table) -> None:
    """Every bit of the file, its checksum too."""
    path = Path(table.path, OPTIONS)
    set_options(table, {RETAINED: 10})
    storage, sound = LocalStorage(table.path), path.read_bytes()
    assert load_options(storage).clean_commits == 10
    for at in range(8 * len(sound)):
        wrong = bytearray(sound)
        wrong[at // 8] ^= 1 << at % 8
        path.write_bytes(wrong)
        with pytest.raises(InvalidTable, match=r"options\.json (is damaged|cannot be read)"):
            load_options(storage)


def test_options_without_a_checksum_are_read(table: Table) -> None:
    """Those of an earlier version, or made by hand; the next change gives the file its checksum."""
    path = Path(table.path, OPTIONS)
    path.write_text(f'{{\n  "{RETAINED}": 3\n}}')
    assert Table.open(table.path)._handle.options.clean_commits == 3
    set_options(table, {"hoodie.keep.max.commits": 40})
    assert b"crc32" in path.read_bytes()
    found = load_options(LocalStorage(table.path))
    assert (found.clean_commits, found.keep_max) == (3, 40)
