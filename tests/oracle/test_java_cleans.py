"""Cleans by us and by Java on one table: each continues from the other's, and all readers agree."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest

from hoodie_nb import Table, failpoints

from .client import BLOOM, JavaError, Judge
from .readers import check, java, ours, rust
from .tables import LAYOUTS, Model, words

pytestmark = pytest.mark.oracle
SIMPLE = LAYOUTS["simple"]
FILES_ONLY = {"hoodie.metadata.enable": "false", "hoodie.index.type": "BLOOM"}
TWO = {"hoodie.clean.commits.retained": "2", "hoodie.cleaner.commits.retained": "2"}
OPTIONS = {6: BLOOM, 9: FILES_ONLY}
versions = pytest.mark.parametrize("version", OPTIONS)


def made(judge: Judge, path: Path, version: int) -> tuple[Table, Model]:
    """Return a table of a version that retains two commits, after one commit of Java's."""
    model = Model(SIMPLE)
    options = words(SIMPLE) | OPTIONS[version]
    judge.write(path, model.upsert(range(40), 1), options, mode="overwrite")
    table = Table.open(path)
    assert f"hoodie.table.version={version}\n" in (path / ".hoodie/hoodie.properties").read_text()
    options = {"hoodie.clean.commits.retained": 2}
    table._handle.options = table._handle.options.updated(options)
    return table, model


def results(table: Table) -> list[dict[str, Any]]:
    """Return the completed cleans, oldest first."""
    meta = Path(table.path, ".hoodie")
    found = []
    for file in sorted([*meta.glob("*.clean"), *(meta / "timeline").glob("*.clean")]):
        (record,) = fastavro.reader(io.BytesIO(file.read_bytes()))
        found.append(record)
    return found


def retained(judge: Judge, table: Table, model: Model, *, refused: bool = True) -> None:
    """All readers agree on the model now, and on the retained commits.

    The commit before them can be read, too, but Java refuses it if the last clean is the newest.
    """
    check(judge, table, model)
    for back, as_of in enumerate(list(table.history()["requested_time"])[:-4:-1]):
        seen = ours(table, as_of)
        assert rust(table, as_of) == seen
        if back < 2 or not refused:
            assert java(judge, table, as_of) == seen
        else:
            with pytest.raises(JavaError, match="Cleaner cleaned up"):
                java(judge, table, as_of)
    assert table.fsck() == []


@versions
def test_we_and_java_clean_in_turn(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java's incremental clean starts where ours ended, and ours where Java's ended."""
    table, model = made(judge, tmp_path / "t", version)
    for number in range(2, 6):
        table.upsert(model.upsert(range(number), number))
    assert len(results(table)) == 2
    retained(judge, table, model)
    before = len(results(table))
    for number in range(6, 9):
        judge.write(table.path, model.upsert(range(number), number), OPTIONS[version] | TWO)
    times = list(table.history()["requested_time"])
    cleans = results(table)
    assert len(cleans) == before + 3
    assert cleans[-1]["earliestCommitToRetain"] == times[-2]
    assert cleans[-1]["totalFilesDeleted"] == 2  # one file in each of two partitions
    retained(judge, table, model)
    for number in range(9, 12):
        table.upsert(model.upsert(range(number), number))
    assert len(results(table)) == len(cleans) + 3
    assert [clean["totalFilesDeleted"] for clean in results(table)][-3:] == [2, 2, 2]
    retained(judge, table, model)
    assert len(list(tmp_path.glob("t/*/*.parquet"))) == 2 * 3
    assert table.clean(dry_run=True, commits=2).files == ()


@versions
def test_java_completes_a_clean_of_ours(judge: Judge, tmp_path: Path, version: int) -> None:
    """A clean that we have planned and not executed is executed by Java's next write."""
    table, model = made(judge, tmp_path / "t", version)
    for number in range(2, 4):
        table.upsert(model.upsert(range(number), number))
    failpoints.arm("clean.plan.post=raise:EIO")
    try:
        table.upsert(model.upsert(range(4), 4))
    finally:
        failpoints.arm("")
    pending = table.timeline().iloc[-1]
    assert (pending["action"], pending["state"]) == ("clean", "requested")
    judge.write(table.path, model.upsert(range(5), 5), OPTIONS[version] | TWO)
    found = table.timeline()
    (state,) = found[found["requested_time"] == pending["requested_time"]]["state"]
    assert state == "completed"
    retained(judge, table, model, refused=False)  # Java has not planned another one
    table.upsert(model.upsert(range(6), 6))
    retained(judge, table, model)


def test_a_savepoint_of_java_is_kept_by_our_clean(judge: Judge, tmp_path: Path) -> None:
    """What a savepoint of Java's names stays on disk, and is cleaned when it is deleted."""
    table, model = made(judge, tmp_path / "t", 6)
    table.upsert(model.upsert(range(2), 2))
    saved = table.history()["requested_time"].iloc[-1]
    seen = ours(table, saved)
    judge.sql(f"call create_savepoint(path => '{table.path}', commit_time => '{saved}')")
    for number in range(3, 9):
        table.upsert(model.upsert(range(number), number))
    retained(judge, table, model)
    assert ours(table, saved) == rust(table, saved) == seen
    assert len(list(tmp_path.glob("t/*/*.parquet"))) == 2 * 4
    judge.sql(f"call delete_savepoint(path => '{table.path}', instant_time => '{saved}')")
    table.upsert(model.upsert(range(9), 9))
    assert len(list(tmp_path.glob("t/*/*.parquet"))) == 2 * 3
    retained(judge, table, model)


def test_java_overwrites_and_we_clean(judge: Judge, tmp_path: Path) -> None:
    """File groups that Java has replaced are deleted whole; the others stay."""
    table, model = made(judge, tmp_path / "t", 6)
    table.upsert(model.upsert(range(2), 2))
    before = {path.name for path in tmp_path.glob("t/*/*.parquet")}
    model.delete([n for n in model.held if n % 2 == 0])
    overwrite = BLOOM | {"hoodie.datasource.write.operation": "insert_overwrite"}
    judge.write(table.path, model.upsert(range(0, 10, 2), 3), overwrite)
    for number in range(4, 8):
        table.upsert(model.upsert(range(number), number))
    left = {path.name for path in tmp_path.glob("t/*/*.parquet")}
    assert not before & left
    retained(judge, table, model)
