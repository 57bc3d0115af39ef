from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from hoodie_nb import InvalidTable, Table

from .client import BLOOM, KEEP, NO_METADATA, OPERATION, TIDY, Judge
from .readers import agree, check, java, ours
from .tables import LAYOUTS, SCHEMA, Layout, Model, rows, words

pytestmark = pytest.mark.oracle
SIMPLE = LAYOUTS["simple"]
FIXTURES = Path(__file__).parents[1] / "fixtures"
_KEYGEN = "hoodie.datasource.write.keygenerator.class"
_CLASS = "org.apache.hudi.keygen."


def started(path: Path) -> tuple[Table, Model]:
    """Return one of our tables after one commit of 20 rows."""
    table, model = SIMPLE.create(path), Model(SIMPLE)
    table.upsert(model.upsert(range(20), 1))
    return table, model


# --- tables created by Java ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "many_file_groups"])
def test_we_take_over_a_table_of_java(judge: Judge, tmp_path: Path, name: str) -> None:
    """A version 6 table that Java made reads the same, is written by us, then by Java again."""
    layout, path = LAYOUTS[name], tmp_path / name
    model = Model(layout)
    judge.write(path, model.upsert(range(40), 2), BLOOM | words(layout), mode="overwrite")
    table = Table.open(path)
    check(judge, table, model)
    table.upsert(model.upsert([*range(20, 60), *range(100, 104)], 3))
    table.upsert(model.upsert(range(10), 1))
    table.delete(model.delete(range(5, 25, 3)))
    check(judge, table, model)
    judge.write(path, model.upsert(range(50, 70), 4), BLOOM | words(layout))
    check(judge, table, model)


_WRITE = "hoodie.datasource.write."
_CDC, _NO_META = "hoodie.table.cdc.enabled", "hoodie.populate.meta.fields"
OTHER = {  # options of Java's -> may we read such a table, and what the error names
    "keys with names": ({_KEYGEN: f"{_CLASS}ComplexKeyGenerator"}, True, "type=COMPLEX"),
    "keys for deletes": (
        {_KEYGEN: f"{_CLASS}GlobalDeleteKeyGenerator"},
        True,
        "type=GLOBAL_DELETE",
    ),
    "two parts, one key": ({f"{_WRITE}partitionpath.field": "part,day"}, True, "HUDI-7001"),
    "change data": ({_CDC: "true"}, True, _CDC),
    "bucket index": (
        {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
        True,
        "bucket",
    ),
    "no meta columns": ({_NO_META: "false"}, False, _NO_META),
    "parts in the path only": (
        {f"{_WRITE}drop.partition.columns": "true"},
        False,
        "drop.partition.columns",
    ),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_table_we_would_damage_is_refused(judge: Judge, tmp_path: Path, case: str) -> None:
    """A table that we would write differently is at most read, and the error names the property."""
    options, readable, named = OTHER[case]
    model = Model(SIMPLE)
    unchecked = {"hoodie.write.complex.keygen.validation.enable": "false"}
    written = BLOOM | words(SIMPLE) | unchecked | options
    judge.write(tmp_path / "t", model.upsert(range(20), 1), written, mode="overwrite")
    if readable:
        table = Table.open(tmp_path / "t")
        check(judge, table, model)
    with pytest.raises(InvalidTable, match=re.escape(named)):
        Table.open(tmp_path / "t").upsert(rows(range(4), SIMPLE))


@pytest.mark.parametrize(
    "name", ["v6_nonpartitioned", "v6_simplekeygen_nonhivestyle_overwritetable"]
)
def test_we_and_java_read_old_tables_alike(judge: Judge, tmp_path: Path, name: str) -> None:
    """Tables of Hudi 0.x are read as by Java, also after a row was deleted and inserted again."""
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    table = Table.open(tmp_path / name)
    before = ours(table)
    assert before
    assert java(judge, table) == before
    rest = table.to_arrow(meta=False)
    table.delete(rest.slice(0, 1))
    assert java(judge, table) == ours(table)
    table.upsert(rest)
    assert len(java(judge, table)) == len(before)
    assert java(judge, table) == ours(table)


# --- operations of Java on our tables ------------------------------------------------------------


def test_empty_file_groups_are_read_and_filled(judge: Judge, tmp_path: Path) -> None:
    """A file group that deletes have emptied is filled again by us and by Java."""
    table, model = started(tmp_path / "t")
    table.delete(model.delete(range(0, 20, 2)))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(10, 30), 2), BLOOM)
    check(judge, table, model)
    judge.write(table.path, model.delete([*model.held]), BLOOM | {OPERATION: "delete"})
    assert agree(judge, table) == []
    table.upsert(model.upsert(range(5, 25), 3))
    check(judge, table, model)
    table.delete(model.delete([*model.held]))
    assert agree(judge, table) == []
    judge.write(table.path, model.upsert(range(10), 4), BLOOM)
    check(judge, table, model)


def test_java_deletes_rows_and_we_continue(judge: Judge, tmp_path: Path) -> None:
    """A delete by Java does not change the schema."""
    table, model = started(tmp_path / "t")
    judge.write(table.path, model.delete(range(0, 20, 3)), BLOOM | {OPERATION: "delete"})
    assert table.schema == SCHEMA
    table.upsert(model.upsert(range(15, 30), 2))
    check(judge, table, model)


def test_java_replaces_file_groups_and_we_continue(judge: Judge, tmp_path: Path) -> None:
    """We do not read groups that Java's overwrites, partition drop or clustering replaced."""
    table, model = started(tmp_path / "t")
    model.delete(range(0, 20, 2))
    overwrite = BLOOM | {OPERATION: "insert_overwrite"}
    judge.write(table.path, model.upsert(range(0, 10, 2), 2), overwrite)
    check(judge, table, model)
    table.upsert(model.upsert(range(30), 3))
    check(judge, table, model)
    model.delete(range(0, 30, 2))
    part = {"hoodie.datasource.write.partitions.to.delete": "north"}
    drop = BLOOM | part | {OPERATION: "delete_partition"}
    judge.write(table.path, rows(range(1), SIMPLE, 4), drop)
    table.upsert(model.upsert(range(8), 5))
    check(judge, table, model)
    clustering = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
    judge.write(table.path, model.upsert(range(4, 40), 6), BLOOM | clustering)
    assert "replacecommit" in set(table.timeline()["action"])
    table.upsert(model.upsert(range(35, 50), 7))
    check(judge, table, model)


def test_java_cleans_and_archives_and_we_continue(judge: Judge, tmp_path: Path) -> None:
    """Java archives our commits and deletes old files; unchanged rows are still read."""
    table, model = started(tmp_path / "t")
    first = table.history()["requested_time"].iloc[0]
    for version in range(2, 8):
        table.upsert(model.upsert([2, 10 * version], version))  # northern rows only
    judge.write(table.path, model.upsert([4], 8), BLOOM | TIDY)
    assert table.history()["requested_time"].iloc[0] > first
    assert list(Path(table.path, ".hoodie", "archived").iterdir())
    assert first in set(table.file_groups()["instant_time"])
    check(judge, table, model)
    table.upsert(model.upsert(range(3, 30), 9))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(25, 40), 10), BLOOM | TIDY)
    check(judge, table, model)


# --- what Java may do to a table of ours ---------------------------------------------------------


def test_a_table_with_a_metadata_table_is_not_written(judge: Judge, tmp_path: Path) -> None:
    """Readers of Java's metadata table would miss our rows: refused, until Java has dropped it."""
    table, model = started(tmp_path / "t")
    judge.write(table.path, model.upsert(range(10, 30), 2), KEEP)
    assert ours(table) == java(judge, table)
    with pytest.raises(InvalidTable, match=r"metadata table .*hoodie\.metadata\.enable=false"):
        table.upsert(rows(range(30, 40), SIMPLE, 3))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(25, 35), 3), NO_METADATA)
    table.upsert(model.upsert(range(30, 50), 4))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(45, 60), 5), KEEP)  # built again over our files
    assert agree(judge, table) == model.cells()
    again = Table.open(table.path, drop_metadata_table=True)
    again.upsert(model.upsert(range(55, 70), 6))
    check(judge, again, model)


def test_a_table_that_java_upgraded_is_read_and_written(judge: Judge, tmp_path: Path) -> None:
    """Java's default write upgrades to version 9: an open table goes on without a metadata table.

    Java converts our commits to Avro, whose checksums no longer fit.
    """
    table, model = started(tmp_path / "t")
    judge.write(table.path, model.upsert(range(10, 30), 2), {})
    check(judge, table, model)
    with pytest.raises(InvalidTable, match=r"drop_metadata_table=True"):
        table.upsert(rows(range(30, 40), SIMPLE, 3))
    again = Table.open(table.path, drop_metadata_table=True)
    again.upsert(model.upsert(range(25, 40), 3))
    check(judge, table, model)
    table.delete(model.delete(range(5)))
    judge.write(table.path, model.upsert(range(35, 50), 4), {})
    check(judge, table, model)


def test_a_table_replaced_over_javas_files_is_clean(judge: Judge, tmp_path: Path) -> None:
    """Replacing a table also deletes Java's checksum files, which would not match the new files."""
    table, model = started(tmp_path / "t")
    judge.write(table.path, rows(range(30), SIMPLE, 2), BLOOM)
    again = Layout(options={"if_exists": "replace"}).create(table.path)
    assert not list(Path(table.path).rglob(".*.crc"))
    model = Model(SIMPLE)
    again.upsert(model.upsert(range(5, 25), 1))
    judge.write(again.path, model.upsert(range(20, 30), 2), BLOOM)
    check(judge, again, model)
