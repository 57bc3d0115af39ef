"""Compactions and clusterings of merge-on-read tables by this library: Java reads and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable

from .client import Judge
from .crashes import die_at, files_of, pending
from .readers import agree, agree_on_the_past, check, java, ours
from .tables import LAYOUTS, Model, appending
from .test_java_appends import agree_but_names, batches, create, logs_of
from .test_java_merge_on_read import COMPACTS

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("many_logs")]
SHAPES = [(8, "simple"), (9, "simple"), (9, "without_ordering"), (9, "unpartitioned")]
POINTS = ["coord.statuses.pre", "coord.commit.pre", "coord.commit.post"]


def logged(path: Path, version: int, name: str = "simple", steps: int = 5) -> tuple[Table, Model]:
    """Return a table of ours whose slices have logs, and its model."""
    layout = LAYOUTS[name]
    table = create(path, layout, version)
    model = Model(layout)
    for _, _ in zip(range(steps), batches(table, model), strict=False):
        pass
    assert logs_of(table) >= 2
    return table, model


@pytest.mark.parametrize("version, name", SHAPES)
def test_java_follows_our_compactions(
    judge: Judge, tmp_path: Path, version: int, name: str
) -> None:
    """All readers agree on now and on the past; Java upserts and compacts; we merge its logs."""
    table, model = logged(tmp_path / "t", version, name)
    theirs = appending(LAYOUTS[name], version)
    before = agree_but_names(judge, table)
    since = table.history()["completion_time"].iloc[-1]
    done = table.compact()
    assert done.logs >= 2
    assert logs_of(table) == 0
    assert agree(judge, table) == before == model.cells()
    assert java(judge, table, since=since) == []
    agree_on_the_past(judge, table)
    judge.write(table.path, model.upsert(range(0, 80, 5), 8), theirs, "append")
    table = Table.open(table.path)
    assert logs_of(table) > 0
    assert agree_but_names(judge, table) == model.cells()
    with pytest.raises(InvalidTable, match=r"call Table\.compact"):
        table.upsert(model.upsert(range(3), 9))
    table.compact()
    table.upsert(model.upsert(range(3), 9))
    assert agree_but_names(judge, table) == model.cells()
    table.upsert(model.upsert(range(0, 90, 4), 10))
    assert agree_but_names(judge, table) == model.cells()
    judge.write(table.path, model.upsert(range(0, 80, 9), 11), {**theirs, **COMPACTS}, "append")
    table = Table.open(table.path)
    assert agree_but_names(judge, table) == model.cells()
    table.compact()
    check(judge, table, model)


@pytest.mark.parametrize("version", [8, 9])
def test_keys_that_java_puts_into_logs(judge: Judge, tmp_path: Path, version: int) -> None:
    """With INMEMORY Java inserts into logs; after our compaction every index finds these keys."""
    table, model = logged(tmp_path / "t", version)
    theirs = appending(LAYOUTS["simple"], version, **{"hoodie.index.type": "INMEMORY"})
    rows = model.upsert(range(300, 330), 8)
    judge.write(table.path, rows, theirs, "append")
    table = Table.open(table.path)
    assert agree_but_names(judge, table) == model.cells()
    table.compact()
    assert agree(judge, table) == model.cells()
    table.upsert(model.upsert(range(300, 340, 2), 9))
    assert agree_but_names(judge, table) == model.cells()
    judge.write(
        table.path,
        model.upsert(range(300, 345, 3), 10),
        appending(LAYOUTS["simple"], version),
        "append",
    )
    table = Table.open(table.path)
    assert agree_but_names(judge, table) == model.cells()
    table.compact()
    check(judge, table, model)


@pytest.mark.parametrize("version", [8, 9])
def test_java_follows_our_clusterings(judge: Judge, tmp_path: Path, version: int) -> None:
    """Base files with their logs become one; Java upserts into it, and reads the past."""
    table, model = logged(tmp_path / "t", version)
    before = agree_but_names(judge, table)
    done = table.cluster()
    assert done.new_files < done.files
    assert logs_of(table) == 0
    assert agree(judge, table) == before
    agree_on_the_past(judge, table)
    judge.write(
        table.path,
        model.upsert(range(0, 80, 5), 8),
        appending(LAYOUTS["simple"], version),
        "append",
    )
    table = Table.open(table.path)
    assert agree_but_names(judge, table) == model.cells()
    table.compact()
    table.upsert(model.upsert(range(0, 90, 4), 9))
    assert agree_but_names(judge, table) == model.cells()
    table.cluster()
    table.compact()
    check(judge, table, model)


@pytest.mark.parametrize("call", ["compact", "cluster"])
@pytest.mark.parametrize("version", [8, 9])
def test_java_undoes_what_we_died_in(judge: Judge, tmp_path: Path, version: int, call: str) -> None:
    """Java's next write rolls back our pending instant, without its files; or it is complete."""
    table, model = logged(tmp_path / "t", version)
    for number, point in enumerate(POINTS):
        die_at(f"{point}=kill", table, None, tmp_path, call=call)
        dead = pending(table)
        assert len(dead) == (point != "coord.commit.post")
        assert agree_but_names(judge, table) == model.cells()
        rows = model.upsert(range(number, 70, 6), 20 + number)
        judge.write(table.path, rows, appending(LAYOUTS["simple"], version), "append")
        assert pending(table) == []
        assert not dead or files_of(table, dead[0]) == []
        assert agree_but_names(judge, table) == model.cells()
        table = Table.open(table.path)
        table.compact()
        assert ours(table)
        table.upsert(model.upsert(range(number, 75, 5), 30 + number))
        assert agree_but_names(judge, table) == model.cells()
        if call == "cluster":
            table.upsert(model.upsert(range(100 + number, 130, 4), 30))  # further small files
    table.compact()
    check(judge, table, model)
