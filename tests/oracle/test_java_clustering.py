"""Java reads what we cluster, goes on writing, and undoes, cleans and archives our clusterings."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoodie_nb import Table

from .client import BLOOM, TIDY, Judge
from .crashes import die_at, files_of, pending
from .readers import agree, agree_on_the_past, check, java, ours, rust
from .tables import LAYOUTS, Layout, Model, words

pytestmark = pytest.mark.oracle
FILES_ONLY = {"hoodie.metadata.enable": "false", "hoodie.index.type": "BLOOM"}
VERSIONS = {"6": BLOOM, "9": FILES_ONLY, "9 with a metadata table": {}}


def made(judge: Judge, path: Path, version: str, layout: Layout) -> tuple[Table, Model]:
    """Return a table of 40 rows in many small files: of ours in version 6, else of Java."""
    model = Model(layout)
    if version == "6":
        table = layout.create(path)
        table.upsert(model.upsert(range(10), 2))
    else:
        options = words(layout) | VERSIONS[version]
        judge.write(path, model.upsert(range(10), 2), options, mode="overwrite")
        table = Table.open(path, drop_metadata_table=True)
    for start in (10, 20, 30):
        table.bulk_insert(model.upsert(range(start, start + 10), 2))
    return table, model


@pytest.mark.parametrize("name", ["simple", "unpartitioned"])
@pytest.mark.parametrize("version", VERSIONS)
def test_java_follows_our_clusterings(
    judge: Judge, tmp_path: Path, version: str, name: str
) -> None:
    """All readers agree on a clustered table, its history and its changes, and Java goes on."""
    layout = LAYOUTS[name]
    options = words(layout) | VERSIONS[version]
    table, model = made(judge, tmp_path / "t", version, layout)
    table.upsert(model.upsert(range(5, 15), 3))
    before, last = agree(judge, table), table.history().iloc[-1]
    since = last["requested_time" if version == "6" else "completion_time"]
    done = table.cluster()
    assert done.new_files == len(table.file_groups()) < done.files
    check(judge, table, model)
    assert agree(judge, table) == before
    assert java(judge, table, since=since) == rust(table, since=since) == []
    if version == "6":  # later ones compare completion times
        first = table.history()["requested_time"].iloc[0]
        assert java(judge, table, since=first) == ours(table, since=first)
    judge.write(table.path, model.upsert(range(12, 60, 4), 4), options)
    check(judge, table, model)
    table.upsert(model.upsert(range(16, 70, 3), 5))
    check(judge, table, model)
    table.cluster()
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(3, 9), 6), options)
    check(judge, table, model)
    agree_on_the_past(judge, table)


@pytest.mark.parametrize("version", ["6", "9"])
def test_java_cleans_and_archives_our_clusterings(
    judge: Judge, tmp_path: Path, version: str
) -> None:
    """Small files are deleted and the replacecommit is archived; both of us continue."""
    layout = LAYOUTS["simple"]
    options = words(layout) | VERSIONS[version] | TIDY
    table, model = made(judge, tmp_path / "t", version, layout)
    done = table.cluster()
    small = {*Path(table.path).rglob("*.parquet")}
    for number in range(3, 9):
        judge.write(table.path, model.upsert([1, 2, 10 * number], number), options)
        check(judge, table, model)
    assert done.requested_time not in set(table.history()["requested_time"])
    assert len({*Path(table.path).rglob("*.parquet")} & small) < len(small) - 4
    table.upsert(model.upsert(range(4, 12), 9))
    check(judge, table, model)


@pytest.mark.parametrize("version", ["6", "9"])
@pytest.mark.parametrize("failpoint", ["coord.inflight.post", "coord.publish.post"])
def test_java_undoes_a_clustering_in_which_we_died(
    judge: Judge, tmp_path: Path, version: str, failpoint: str
) -> None:
    """Java's next write rolls back our pending clustering, without its files, and so do we."""
    layout = LAYOUTS["simple"]
    options = words(layout) | VERSIONS[version]
    table, model = made(judge, tmp_path / "t", version, layout)
    die_at(f"{failpoint}=kill", table, None, tmp_path, call="cluster")
    (dead,) = pending(table)
    assert agree(judge, table) == model.cells()
    judge.write(table.path, model.upsert(range(15, 50), 3), options)
    assert pending(table) == []
    assert files_of(table, dead) == []
    assert agree(judge, table) == model.cells()  # our staged files remain until our next write
    die_at(f"{failpoint}=kill", table, None, tmp_path, call="cluster")
    table.upsert(model.upsert(range(45, 55), 4))
    check(judge, table, model)
    table.cluster()
    check(judge, table, model)
