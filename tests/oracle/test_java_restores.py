"""Savepoints and restores by us and by Java on one table: each goes on from the other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoodie_nb import Table

from .client import Judge
from .readers import check, ours, rust
from .test_java_cleans import OPTIONS, TWO, made, versions

pytestmark = pytest.mark.oracle


def shown(judge: Judge, table: Table) -> list[str]:
    """Return the times of the savepoints that Java sees."""
    found = judge.sql(f"call show_savepoints(path => '{table.path}')")
    return sorted(row[0] for row in found)


@versions
def test_java_keeps_and_deletes_our_savepoint(judge: Judge, tmp_path: Path, version: int) -> None:
    """Java's cleans keep the files of our savepoint until one of us deletes it."""
    table, model = made(judge, tmp_path / "t", version)
    first = table.savepoint(comment="ours", user="ada")
    seen = ours(table)
    assert shown(judge, table) == [first.requested_time]
    table.upsert(model.upsert(range(2), 2))
    second = table.savepoint()
    for number in range(3, 8):
        judge.write(table.path, model.upsert(range(number), number), OPTIONS[version] | TWO)
    assert ours(table, first.requested_time) == rust(table, first.requested_time) == seen
    assert shown(judge, table) == [first.requested_time, second.requested_time]
    check(judge, table, model)
    judge.sql(
        f"call delete_savepoint(path => '{table.path}', instant_time => '{first.requested_time}')"
    )
    assert list(table.savepoints()["requested_time"]) == [second.requested_time]
    table.delete_savepoint(second)
    assert shown(judge, table) == []
    assert len(table.clean(commits=2).files) >= 4
    check(judge, table, model)
