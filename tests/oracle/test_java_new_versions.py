"""Tables that this library creates with version 8 or 9: Java reads and continues them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoodie_nb import Table

from .client import OPERATION, TIDY, Judge
from .readers import check
from .tables import LAYOUTS, Model, words

pytestmark = pytest.mark.oracle
FILES_ONLY = {"hoodie.metadata.enable": "false", "hoodie.index.type": "BLOOM"}
EIGHT = {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
LATER = ["simple", "composite", "unpartitioned", "without_ordering"]
CASES = [(8, "simple"), *((9, name) for name in LATER)]


def version_of(table: Table) -> str:
    """Return the version in the properties."""
    text = Path(table.path, ".hoodie/hoodie.properties").read_text()
    return text.partition("hoodie.table.version=")[2].partition("\n")[0]


@pytest.mark.parametrize(("version", "name"), CASES)
def test_java_continues_a_table_that_we_have_created(
    judge: Judge, tmp_path: Path, version: int, name: str
) -> None:
    """Upserts, late rows, deletes and overwrites in turn: three readers agree after each."""
    layout = LAYOUTS[name]
    options = words(layout) | FILES_ONLY | (EIGHT if version == 8 else {})
    model = Model(layout)
    table = layout.create(tmp_path / "t", table_version=version)
    table.upsert(model.upsert(range(40), 2))
    check(judge, table, model)
    judge.write(table.path, model.upsert([*range(20, 60)], 3), options)
    check(judge, table, model)
    table.upsert(model.upsert(range(10), 1))
    table.delete(model.delete(range(5, 25, 3)))
    check(judge, table, model)
    judge.write(table.path, model.delete(range(30, 40, 4)), options | {OPERATION: "delete"})
    table.upsert(model.upsert(range(35, 45), 5))
    check(judge, table, model)
    assert version_of(table) == str(version)


def test_java_tidies_a_new_table_of_version_9(judge: Judge, tmp_path: Path) -> None:
    """With Java's defaults it builds a metadata table, cleans and archives, and we go on."""
    layout = LAYOUTS["simple"]
    model = Model(layout)
    table = layout.create(tmp_path / "t", table_version=9)
    for version in range(2, 8):
        table.upsert(model.upsert([2, 10 * version], version))
    judge.write(table.path, model.upsert([4], 9), words(layout) | TIDY)
    check(judge, table, model)
    assert Path(table.path, ".hoodie/metadata").exists()
    table = Table.open(table.path, drop_metadata_table=True)
    table.upsert(model.upsert(range(3, 30), 10))
    check(judge, table, model)
    assert version_of(table) == "9"
