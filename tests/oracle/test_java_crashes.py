from __future__ import annotations

from pathlib import Path

import pytest

from hoodie_nb import Table
from hoodie_nb.storage.storage import STAGED

from .client import BLOOM, TIDY, Judge
from .crashes import die_at, files_of, java_dies, pending
from .readers import agree, check
from .tables import LAYOUTS, Layout, Model, rows

pytestmark = pytest.mark.oracle
ENCODED = Layout(options={"url_encode": True, "hive_style": True}, parts=("a/b: c", "50% of 2"))
WIDER = Layout(options=ENCODED.options, parts=(*ENCODED.parts, "new here"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return an empty table with awkward paths."""
    return ENCODED.create(tmp_path / "table")


@pytest.fixture
def model(table: Table) -> Model:
    """Return the model of `table` after a first commit."""
    model = Model(ENCODED)
    table.upsert(model.upsert(range(20), 1))
    return model


@pytest.mark.parametrize(
    "failpoint",
    [
        "coord.requested.post=kill",
        "coord.markers.post=kill",  # with markers in a partition that does not exist yet
        "coord.publish=kill@2",
        "coord.publish.post=kill",
    ],
)
def test_java_rolls_our_crash_back(
    judge: Judge, table: Table, model: Model, tmp_path: Path, failpoint: str
) -> None:
    """After a crash of ours before the commit, Java's next write removes our files only."""
    die_at(failpoint, table, rows(range(10, 40), WIDER, 2), tmp_path)
    (dead,) = pending(table)
    staged = sorted((Path(table.path) / STAGED).rglob("*"))
    assert agree(judge, table) == model.cells()
    judge.write(table.path, model.upsert(range(15, 30), 2), BLOOM)
    assert pending(table) == files_of(table, dead) == []
    assert sorted((Path(table.path) / STAGED).rglob("*")) == staged
    assert agree(judge, table) == model.cells()
    table.upsert(model.upsert(range(25, 35), 3))
    check(judge, table, model)


def test_java_sees_what_we_committed_and_did_not_settle(
    judge: Judge, table: Table, model: Model, tmp_path: Path
) -> None:
    """A crash right after the commit leaves markers and staged files; Java sees the rows."""
    die_at("coord.commit.post=kill", table, model.upsert(range(10, 30), 2), tmp_path)
    assert agree(judge, table) == model.cells()
    judge.write(table.path, model.upsert(range(25, 40), 3), BLOOM)
    assert agree(judge, table) == model.cells()
    table.upsert(model.upsert(range(35, 50), 4))
    check(judge, table, model)


def test_java_reads_our_rollback(judge: Judge, table: Table, model: Model, tmp_path: Path) -> None:
    """Java lists our rollback with the instant it undid, and archives it with the commits."""
    die_at("coord.publish.post=kill", table, rows(range(10, 40), WIDER, 2), tmp_path)
    (dead,) = pending(table)
    table.upsert(model.upsert(range(10, 25), 2))
    judge.sql(f"create table rolled_back using hudi location '{table.path}'")
    (listed,) = judge.sql("call show_rollbacks(table => 'rolled_back')")
    files = judge.sql(
        f"call show_rollback_detail(table => 'rolled_back', instant_time => '{listed[0]}')"
    )
    assert listed[1] == dead
    assert len(files) == 3
    check(judge, table, model)


@pytest.mark.parametrize(
    "failpoint",
    [
        "rollback.plan.post",
        "rollback.files.post",
        "rollback.instant.post",
        "rollback.completed.post",
    ],
)
def test_java_finishes_our_rollback(
    judge: Judge, table: Table, model: Model, tmp_path: Path, failpoint: str
) -> None:
    """Wherever we die in a rollback, Java's next write completes the rollback, and writes."""
    die_at("coord.publish.post=kill", table, rows(range(10, 40), WIDER, 2), tmp_path)
    (dead,) = pending(table)
    die_at(f"{failpoint}=kill", table, rows(range(1), ENCODED, 1), tmp_path)
    (begun,) = table.timeline().query("action == 'rollback'")["requested_time"]
    assert agree(judge, table) == model.cells()
    judge.write(table.path, model.upsert(range(15, 30), 2), BLOOM)
    assert pending(table) == []
    assert list(table.timeline().query("action == 'rollback'")["requested_time"]) == [begun]
    assert not [name for name in files_of(table, dead) if name.endswith(".parquet")]
    assert agree(judge, table) == model.cells()
    table.upsert(model.upsert(range(25, 35), 3))
    check(judge, table, model)


@pytest.mark.parametrize("markers", ["DIRECT", "TIMELINE_SERVER_BASED"])
def test_we_roll_back_a_crash_of_java(
    judge: Judge, table: Table, model: Model, markers: str
) -> None:
    """Both kinds of Java's markers are read: none of its files or their checksums remains."""
    java_dies(judge, table, rows(range(10, 40), WIDER, 2), markers)
    (dead,) = pending(table)
    assert len([name for name in files_of(table, dead) if name.endswith(".parquet")]) == 3
    assert agree(judge, table) == model.cells()
    table.upsert(model.upsert(range(15, 30), 2))
    assert files_of(table, dead) == []
    check(judge, table, model)
    judge.write(table.path, model.upsert(range(25, 50), 3), BLOOM)
    check(judge, table, model)


def test_a_rollback_outlives_the_commits_around_it(judge: Judge, tmp_path: Path) -> None:
    """Java archives commits, not the older rollback: the timeline starts at its first commit."""
    layout = LAYOUTS["simple"]
    table, model = layout.create(tmp_path / "table"), Model(layout)
    table.upsert(model.upsert(range(0, 10, 2), 1))
    die_at("coord.publish.post=kill", table, rows(range(10), layout, 2), tmp_path)
    table.upsert(model.upsert(range(10), 2))  # the last write to the southern partition
    for version in range(3, 9):
        judge.write(table.path, model.upsert([2, 10 * version], version), BLOOM | TIDY)
    timeline = table.timeline()
    assert timeline["action"].iloc[0] == "rollback"
    assert len(table.history()) < 6
    check(judge, table, model)
    table.upsert(model.upsert(range(5, 15), 9))
    check(judge, table, model)
