"""What Java does to a table between two commits, and which changes we see in it."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from core.replay import check_replay

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig

from .client import BLOOM, OPERATION, TIDY, Judge
from .tables import LAYOUTS, Model, rows

pytestmark = pytest.mark.oracle
SIMPLE = LAYOUTS["many_file_groups"]


def kinds(table: Table, since: str | None, until: str | None = None) -> Counter[str]:
    """Return how many changes of each kind there are; they add up to the later snapshot."""
    return check_replay(table._handle, since, until)


def newest(table: Table) -> str:
    """Return the time of the newest commit."""
    return str(table.history()["requested_time"].iloc[-1])


def test_changes_by_java_are_ours(judge: Judge, tmp_path: Path) -> None:
    """Java upserts, deletes, overwrites, drops a partition and clusters, which changes nothing."""
    table, model = SIMPLE.create(tmp_path / "t"), Model(SIMPLE)
    table.upsert(model.upsert(range(40), 1))
    steps = [newest(table)]
    judge.write(table.path, model.upsert(range(30, 50), 2), BLOOM)
    steps.append(newest(table))
    judge.write(table.path, model.delete(range(0, 20, 3)), BLOOM | {OPERATION: "delete"})
    steps.append(newest(table))
    assert kinds(table, *steps[:2]) == {"update": 10, "insert": 10}
    assert kinds(table, *steps[1:]) == {"delete": 7}
    sql = f"call run_clustering(path => '{table.path}', op => 'scheduleAndExecute')"
    judge.sql(sql)
    steps.append(newest(table))
    assert table.history()["operation"].iloc[-1] == "cluster"
    assert kinds(table, *steps[2:]) == {}
    overwritten = model.upsert([30, 32, 90], 3)
    judge.write(table.path, overwritten, BLOOM | {OPERATION: "insert_overwrite"})
    steps.append(newest(table))
    assert kinds(table, *steps[3:])["update"] == 2
    part = {"hoodie.datasource.write.partitions.to.delete": "south"}
    judge.write(
        table.path, rows(range(1), SIMPLE, 4), BLOOM | part | {OPERATION: "delete_partition"}
    )
    steps.append(newest(table))
    assert {*kinds(table, *steps[4:])} == {"delete"}
    for span in itertools.combinations([None, *steps], 2):
        kinds(table, *span)


def test_changes_after_java_cleaned_and_archived(judge: Judge, tmp_path: Path) -> None:
    """A span with archived commits or cleaned files is refused; others are right."""
    layout = LAYOUTS["simple"]
    table, model = layout.create(tmp_path / "t"), Model(layout)
    for version in range(1, 8):
        table.upsert(model.upsert([2, 3, 10 * version], version))
    times = list(table.history()["requested_time"])
    some = {"hoodie.keep.min.commits": "4", "hoodie.keep.max.commits": "5"}
    judge.write(table.path, model.upsert([4], 8), BLOOM | TIDY | some)
    left = list(table.history()["requested_time"])
    assert times[0] < left[0]
    with pytest.raises(InvalidConfig, match="were archived"):
        table.changes(since=times[0])
    answered = 0
    for since, until in itertools.combinations(left, 2):
        try:
            kinds(table, since, until)
            answered += 1
        except InvalidConfig as error:
            assert "can be read is" in str(error)
    assert 0 < answered < len(left) * (len(left) - 1) // 2
    assert kinds(table, None)["insert"] == len(model.held)
