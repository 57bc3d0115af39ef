"""Changes of merge-on-read tables: those between two snapshots, whatever files hold the rows."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from java_logs import STATES, VERSIONS, commits, java_rows, java_table, same_rows
from log_writer import SCHEMA, delete_block, parquet_block, times
from test_missing_logs import Deltas

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable

NAMES = ["id", "part", "v", "at"]


def key(row: dict[str, Any]) -> tuple[str, str]:
    """Return what identifies a row."""
    return row["_hoodie_partition_path"], row["_hoodie_record_key"]


def version_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return what identifies a version of a row."""
    return row["_hoodie_commit_time"], row["_hoodie_commit_seqno"]


def difference(before: pa.Table | None, after: pa.Table) -> list[str]:
    """Return the changes between two snapshots of Java, as texts."""
    old = {key(row): row for row in (before.to_pylist() if before else [])}
    new = {key(row): row for row in after.to_pylist()}
    found = [("delete", old[k]) for k in old.keys() - new.keys()]
    found += [("insert", new[k]) for k in new.keys() - old.keys()]
    both = old.keys() & new.keys()
    found += [("update", new[k]) for k in both if version_of(old[k]) != version_of(new[k])]
    return sorted(repr((kind, [row[name] for name in NAMES])) for kind, row in found)


def seen(changes: pa.Table) -> list[str]:
    """Return changes as texts."""
    rows = changes.to_pylist()
    return sorted(repr((row["_change"], [row[name] for name in NAMES])) for row in rows)


@pytest.mark.parametrize("version", VERSIONS)
def test_changes_are_the_difference_of_javas_snapshots(tmp_path: Path, version: int) -> None:
    """Between any two commits, over updates, late rows, deletes, compactions and an overwrite."""
    table = Table.open(java_table(tmp_path, version))
    rows = {time17: java_rows(version, f"expected/{time17}") for time17 in commits(version)}
    for first, last in itertools.combinations(rows, 2):
        found = table.changes(since=first, until=last)
        assert seen(found) == difference(rows[first], rows[last]), (first, last)
    for last in rows:
        assert seen(table.changes(since="earliest", until=last)) == difference(None, rows[last])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_compaction_is_no_change(tmp_path: Path, version: int) -> None:
    """From right before it to right after it."""
    table = Table.open(java_table(tmp_path, version))
    history = table.history()
    done = [*history["requested_time"]]
    compactions = [t for t, o in zip(done, history["operation"], strict=True) if o == "compact"]
    assert len(compactions) == 2
    for time17 in compactions:
        before = done[done.index(time17) - 1]
        assert table.changes(since=before, until=time17).num_rows == 0


@pytest.mark.parametrize("version, state", [s for s in STATES if s[1] != "failed"])
def test_all_rows_are_inserts_from_the_start(tmp_path: Path, version: int, state: str) -> None:
    """Also while a compaction is pending, and where there are only logs."""
    found = Table.open(java_table(tmp_path, version, state)).changes(since="earliest")
    assert set(found["_change"].to_pylist()) == {"insert"}
    assert same_rows(found, java_rows(version, state))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("version", [6, 9])
def test_random_histories_are_replayed(tmp_path: Path, version: int, seed: int) -> None:
    """The changes of each commit, applied to a dict, lead from each snapshot to the next one."""
    draw = random.Random(f"{version} {seed}")
    base = [{"id": f"k{n}", "ts": 1, "v": n} for n in range(5)]
    table = Deltas(tmp_path, base, version=version)
    copy = {row["id"]: row for row in base}
    model = dict(copy)
    since = table.name.instant_time
    for time17 in times(6):
        name = f"k{draw.randrange(9)}"
        if draw.randrange(4):
            row = {"id": name, "ts": draw.randrange(1, 4), "v": draw.randrange(99)}
            content = parquet_block(time17, [table.row(time17, row)], SCHEMA)
            if row["ts"] >= model.get(name, row)["ts"]:
                model[name] = row
        else:
            content = delete_block(time17, [(name, None)], "LongWrapper")
            model.pop(name, None)
        table.commit(time17, table.log(time17, content).name)
        for change in Table.open(tmp_path).changes(since=since, until=time17).to_pylist():
            kind = change["_change"]
            assert (change["id"] in copy) == (kind != "insert")
            copy.pop(change["id"], None)
            if kind != "delete":
                copy[change["id"]] = {column: change[column] for column in SCHEMA.names}
        assert copy == model
        since = time17


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    """Changes are not those without it."""
    root = java_table(tmp_path, 9)
    log = max(root.glob("a/.*.log.*"), key=lambda path: path.name)
    log.unlink()
    table = Table.open(root)
    with pytest.raises(InvalidTable, match="is missing"):
        table.changes(since=commits(9)[-2])
