"""Java reads what we overwrite, goes on writing, and undoes, cleans and archives our overwrites."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoodie_nb import Table

from .client import BLOOM, TIDY, Judge
from .crashes import die_at, files_of, pending
from .readers import agree, agree_on_the_past, check
from .tables import LAYOUTS, Layout, Model, rows, words

pytestmark = pytest.mark.oracle
FILES_ONLY = {"hoodie.metadata.enable": "false", "hoodie.index.type": "BLOOM"}
VERSIONS = {"6": BLOOM, "9": FILES_ONLY, "9 with a metadata table": {}}


def made(judge: Judge, path: Path, version: str, layout: Layout) -> tuple[Table, Model]:
    """Return a table of 40 rows: of ours in version 6, else of Java."""
    model = Model(layout)
    if version == "6":
        table = layout.create(path)
        table.upsert(model.upsert(range(40), 2))
        return table, model
    options = words(layout) | VERSIONS[version]
    judge.write(path, model.upsert(range(40), 2), options, mode="overwrite")
    return Table.open(path, drop_metadata_table=True), model


@pytest.mark.parametrize("name", ["simple", "unpartitioned"])
@pytest.mark.parametrize("version", VERSIONS)
def test_java_follows_our_overwrites(judge: Judge, tmp_path: Path, version: str, name: str) -> None:
    """All readers agree on overwritten partitions and tables, also after Java has gone on."""
    layout = LAYOUTS[name]
    options = words(layout) | VERSIONS[version]
    table, model = made(judge, tmp_path / "t", version, layout)
    north = {n for n in model.held if n % 2 == 0 or not layout.partition_by}
    for number in north:
        del model.held[number]
    table.insert_overwrite(model.upsert(range(10, 20, 2), 1))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(12, 30), 3), options)
    check(judge, table, model)
    model.held.clear()
    table.insert_overwrite(model.upsert(range(5), 1), scope="table")
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(3, 9), 2), options)
    check(judge, table, model)
    agree_on_the_past(judge, table)


@pytest.mark.parametrize("version", ["6", "9"])
def test_java_cleans_and_archives_our_overwrites(
    judge: Judge, tmp_path: Path, version: str
) -> None:
    """Replaced files are deleted and the replacecommit is archived; both of us continue."""
    layout = LAYOUTS["simple"]
    options = words(layout) | VERSIONS[version] | TIDY
    table, model = made(judge, tmp_path / "t", version, layout)
    model.held.clear()
    commit = table.insert_overwrite(model.upsert(range(6), 1), scope="table")
    assert commit is not None
    for number in range(2, 7):
        judge.write(table.path, model.upsert([1, 2, 10 * number], number), options)
        check(judge, table, model)
    assert commit.requested_time not in set(table.history()["requested_time"])
    table.upsert(model.upsert(range(4, 12), 9))
    check(judge, table, model)


@pytest.mark.parametrize("version", ["6", "9"])
@pytest.mark.parametrize("failpoint", ["coord.inflight.post", "coord.publish.post"])
def test_java_undoes_an_overwrite_in_which_we_died(
    judge: Judge, tmp_path: Path, version: str, failpoint: str
) -> None:
    """Java's next write rolls back our pending overwrite, without its files, and so do we."""
    layout = LAYOUTS["simple"]
    options = words(layout) | VERSIONS[version]
    table, model = made(judge, tmp_path / "t", version, layout)
    lost, call = rows(range(3), layout, 9), "insert_overwrite"
    die_at(f"{failpoint}=kill", table, lost, tmp_path, call=call)
    (dead,) = pending(table)
    judge.write(table.path, model.upsert(range(15, 50), 3), options)
    assert pending(table) == []
    assert files_of(table, dead) == []
    assert agree(judge, table) == model.cells()  # our staged files remain until our next write
    die_at(f"{failpoint}=kill", table, lost, tmp_path, call=call)
    table.upsert(model.upsert(range(45, 55), 4))
    check(judge, table, model)
