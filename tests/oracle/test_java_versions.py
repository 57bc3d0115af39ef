"""Tables of versions 8 and 9: Java makes them, each of us continues, and all readers agree."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hoodie_nb import InvalidTable, Table

from .client import BROKEN, OPERATION, TIDY, JavaError, Judge
from .crashes import die_at, files_of, pending
from .readers import agree, agree_on_the_past, check
from .tables import LAYOUTS, Layout, Model, rows, words

pytestmark = pytest.mark.oracle
SIMPLE = LAYOUTS["simple"]
FILES_ONLY = {"hoodie.metadata.enable": "false", "hoodie.index.type": "BLOOM"}
EIGHT = FILES_ONLY | {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
VERSIONS = {"8": EIGHT, "9": FILES_ONLY, "9 with a metadata table": {}}  # Java's defaults: {}
_META = ".hoodie/metadata"


def made(judge: Judge, path: Path, version: str, layout: Layout = SIMPLE) -> tuple[Table, Model]:
    """Return a table that Java has made, with one commit of 40 rows."""
    model = Model(layout)
    options = words(layout) | VERSIONS[version]
    judge.write(path, model.upsert(range(40), 2), options, mode="overwrite")
    properties = (path / ".hoodie/hoodie.properties").read_text()
    assert f"hoodie.table.version={version[0]}\n" in properties
    return Table.open(path, drop_metadata_table=True), model


@pytest.mark.parametrize("version", VERSIONS)
def test_we_and_java_write_a_table_in_turn(judge: Judge, tmp_path: Path, version: str) -> None:
    """Upserts, late rows and deletes of both are read alike by all; the version stays."""
    options = VERSIONS[version]
    table, model = made(judge, tmp_path / "t", version)
    assert Path(table.path, _META).exists() == (not options)
    check(judge, table, model)
    table.upsert(model.upsert([*range(20, 60), *range(100, 104)], 3))
    assert not Path(table.path, _META).exists()
    table.upsert(model.upsert(range(10), 1))
    table.delete(model.delete(range(5, 25, 3)))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(50, 70), 4), words(SIMPLE) | options)
    assert Path(table.path, _META).exists() == (not options)  # Java has built it again
    check(judge, table, model)
    table.upsert(model.upsert(range(60, 80), 5))
    check(judge, table, model)
    gone = words(SIMPLE) | options | {OPERATION: "delete"}
    judge.write(table.path, model.delete(range(60, 80, 4)), gone)
    check(judge, table, model)
    properties = Path(table.path, ".hoodie/hoodie.properties").read_text()
    assert f"hoodie.table.version={version[0]}\n" in properties


@pytest.mark.parametrize("name", ["composite", "unpartitioned", "without_ordering"])
def test_other_layouts_of_javas_defaults_are_taken_over(
    judge: Judge, tmp_path: Path, name: str
) -> None:
    """Keys, partitions and the rule of late rows are those of Java in version 9, too."""
    layout = LAYOUTS[name]
    table, model = made(judge, tmp_path / "t", "9 with a metadata table", layout)
    table.upsert(model.upsert(range(20, 60), 3))
    table.upsert(model.upsert(range(10), 1))
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(50, 70), 4), words(layout))
    check(judge, table, model)


def test_the_past_is_the_same_for_all_readers(judge: Judge, tmp_path: Path) -> None:
    """As of each commit of a table of version 9 the three readers see the same rows."""
    table, model = made(judge, tmp_path / "t", "9")
    table.upsert(model.upsert(range(30, 50), 3))
    judge.write(table.path, model.upsert(range(45, 60), 4), FILES_ONLY)
    table.delete(model.delete(range(10)))
    assert agree_on_the_past(judge, table) == [40, 50, 60, 50]


def test_java_cleans_archives_and_replaces_and_we_continue(judge: Judge, tmp_path: Path) -> None:
    """Java's archive, cleans, clustering and overwrites do not disturb us, nor ours Java."""
    table, model = made(judge, tmp_path / "t", "9")
    first = table.history()["requested_time"].iloc[0]
    for version in range(3, 9):
        table.upsert(model.upsert([2, 10 * version], version))
    judge.write(table.path, model.upsert([4], 9), FILES_ONLY | TIDY)
    assert table.history()["requested_time"].iloc[0] > first
    assert list(Path(table.path, ".hoodie/timeline/history").glob("*.parquet"))
    check(judge, table, model)
    table.upsert(model.upsert(range(3, 30), 10))
    check(judge, table, model)
    model.delete([n for n in model.held if n % 2 == 0])
    overwrite = FILES_ONLY | {OPERATION: "insert_overwrite"}
    judge.write(table.path, model.upsert(range(0, 10, 2), 11), overwrite)
    table.upsert(model.upsert(range(8, 20), 12))
    check(judge, table, model)
    clustering = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
    judge.write(table.path, model.upsert(range(4, 40), 13), FILES_ONLY | clustering)
    assert "replacecommit" in set(table.timeline()["action"])
    table.upsert(model.upsert(range(35, 50), 14))
    check(judge, table, model)


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("failpoint", ["coord.requested.post=kill", "coord.publish.post=kill"])
def test_java_rolls_our_crash_back(judge: Judge, tmp_path: Path, failpoint: str) -> None:
    """After a crash of ours before the commit, Java's next write removes our files only."""
    table, model = made(judge, tmp_path / "t", "9")
    die_at(failpoint, table, rows(range(10, 60), SIMPLE, 3), tmp_path)
    (dead,) = pending(table)
    assert agree(judge, table) == model.cells()
    judge.write(table.path, model.upsert(range(15, 50), 3), FILES_ONLY)
    assert pending(table) == files_of(table, dead) == []
    table.upsert(model.upsert(range(45, 55), 4))
    check(judge, table, model)


@pytest.mark.parametrize("failpoint", ["rollback.plan.post", "rollback.instant.post"])
def test_java_finishes_our_rollback(judge: Judge, tmp_path: Path, failpoint: str) -> None:
    """Java's next write completes a rollback in which we died, under its own name."""
    table, model = made(judge, tmp_path / "t", "9")
    die_at("coord.publish.post=kill", table, rows(range(10, 60), SIMPLE, 3), tmp_path)
    die_at(f"{failpoint}=kill", table, rows(range(1), SIMPLE, 1), tmp_path)
    (begun,) = table.timeline().query("action == 'rollback'")["requested_time"]
    judge.write(table.path, model.upsert(range(15, 50), 3), FILES_ONLY)
    assert pending(table) == []
    assert list(table.timeline().query("action == 'rollback'")["requested_time"]) == [begun]
    table.upsert(model.upsert(range(45, 55), 4))
    check(judge, table, model)


def test_we_roll_back_a_crash_of_java(judge: Judge, tmp_path: Path) -> None:
    """None of Java's files remains, and Java continues after our rollback."""
    table, model = made(judge, tmp_path / "t", "9")
    with pytest.raises(JavaError, match="pre-commit validation failed"):
        judge.write(table.path, rows(range(10, 60), SIMPLE, 3), FILES_ONLY | BROKEN)
    (dead,) = pending(table)
    table.upsert(model.upsert(range(15, 50), 3))
    assert files_of(table, dead) == []
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(45, 60), 4), FILES_ONLY)
    check(judge, table, model)


def test_java_builds_its_metadata_table_over_what_a_crash_left(
    judge: Judge, tmp_path: Path
) -> None:
    """A crash after the properties leaves a folder; readers ignore it, Java builds it again."""
    table, model = made(judge, tmp_path / "t", "9 with a metadata table")
    kept = shutil.copytree(Path(table.path, _META), tmp_path / "kept")
    table.upsert(model.upsert(range(30, 50), 3))
    shutil.copytree(kept, Path(table.path, _META))
    assert agree(judge, table) == model.cells()
    judge.write(table.path, model.upsert(range(45, 60), 4), words(SIMPLE))
    check(judge, table, model)
    with pytest.raises(InvalidTable, match="drop_metadata_table=True"):
        Table.open(table.path).upsert(rows(range(1), SIMPLE, 5))
    table.upsert(model.upsert(range(55, 70), 5))
    check(judge, table, model)
