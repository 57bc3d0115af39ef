"""Clustering merges small files in one instant; the rows, their times and later writes agree."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_files import check, meta_of, model_of, row, table_of
from tables import (
    Model,
    data_files,
    hudi_rows,
    pending_names,
    schema_of,
    timeline_names,
    tree,
    without_meta,
)

from hoodie_nb import Table
from hoodie_nb.__main__ import main
from hoodie_nb.checks.fsck import index_objection
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.files.base_file import read_footer
from hoodie_nb.types.schema import RECORD_KEY


@pytest.mark.parametrize("version", [6, 8, 9])
def test_small_files_become_one_in_one_instant(tmp_path: Path, version: int) -> None:
    """Each partition has one file then, in key order; rows keep their commit times and numbers."""
    table = table_of(tmp_path, version)
    model, before = model_of(table), meta_of(table)
    assert len(table.file_groups()) == 13
    done = table.cluster()
    assert (done.files, done.new_files) == (12, 2)
    assert table.timeline()["action"].iloc[-1] == "replacecommit"
    last = table.history().iloc[-1]
    assert (last["requested_time"], last["operation"]) == (done.requested_time, "cluster")
    assert [int(last[n]) for n in ("inserts", "updates", "deletes")] == [0, 0, 0]
    assert len(table.file_groups()) == 3
    assert meta_of(table) == before
    check(table, model)
    for path in data_files(table.path):
        if done.requested_time and done.requested_time in path:
            file = pq.ParquetFile(f"{table.path}/{path}")
            keys = file.read([RECORD_KEY]).column(0).to_pylist()
            footer = read_footer(file)
            assert keys == sorted(keys)
            assert (footer.min_key, footer.max_key) == (keys[0], keys[-1])
            assert index_objection(footer, pa.array(keys)) is None


def test_a_second_clustering_has_nothing_to_do(tmp_path: Path) -> None:
    """The instant is the only change; without small files there is none, and no file changes."""
    table = table_of(tmp_path)
    table.cluster()
    before = tree(table.path)
    again = table.cluster()
    assert (again.files, again.requested_time) == (0, None)
    assert tree(table.path) == before


@pytest.mark.parametrize("version", [6, 9])
def test_writes_go_on_in_the_new_files(tmp_path: Path, version: int) -> None:
    """Known keys are updated and deleted where they are now, by this table object and new ones."""
    table = table_of(tmp_path, version)
    model = model_of(table)
    table.cluster()
    rows = [row(3, 5, "y"), row(7, 1), row(100, 1), row(900, 9, "z")]
    for at, key in enumerate((table, Table.open(table.path))):
        given = [{**r, "v": r["v"] + at} for r in rows]
        key.upsert(given)
        model.upsert(given)
        check(table, model)
        gone = [row(10 + at, 9)]
        key.delete(gone)
        model.delete(gone)
        check(table, model)
    assert len(table.file_groups()) == 4  # a new file for the new key: no file is filled here


def test_changes_report_no_row_of_a_clustering(tmp_path: Path) -> None:
    """Between the commits around a clustering nothing has changed; a later update is reported."""
    table = table_of(tmp_path)
    since = table.history()["requested_time"].iloc[-1]
    first = table.history()["requested_time"].iloc[0]
    done = table.cluster()
    assert table.changes(since=since).num_rows == 0
    assert table.changes(since=since, until=done.requested_time).num_rows == 0
    table.upsert([row(0, 7)])
    (change,) = table.changes(since=since).to_pylist()
    assert (change["id"], change["v"], change["_change"]) == ("k000", 7, "update")
    assert table.changes(since=done.requested_time).num_rows == 1
    kinds = [r["_change"] for r in table.changes(since=first).to_pylist()]
    assert kinds.count("insert") == 51 and len(kinds) == 52


def test_earlier_snapshots_read_the_old_files_until_they_are_cleaned(tmp_path: Path) -> None:
    """`as_of` a time before the clustering shows the same rows; a clean deletes the old files."""
    table = table_of(tmp_path)
    model, old = model_of(table), data_files(table.path)
    before = table.history()["requested_time"].iloc[-1]
    table.cluster()
    assert without_meta(table.to_arrow(as_of=before)) == model.snapshot()
    assert hudi_rows(table.path, before) == model.snapshot()
    assert old < data_files(table.path)
    for value in (5, 6):
        table.upsert([row(0, value)])
        model.upsert([row(0, value)])
    table.clean(commits=1)
    left = old & data_files(table.path)
    assert [path.partition("/")[0] for path in left] == ["z"]
    check(table, model)
    with pytest.raises(InvalidConfig, match="cleaned"):
        table.to_arrow(as_of=before)


def test_a_plan_changes_nothing_and_says_what_would_be_done(tmp_path: Path) -> None:
    """`dry_run` lists partitions, files and bytes; the table is as it was."""
    table = table_of(tmp_path)
    before = tree(table.path)
    plan = table.cluster(dry_run=True)
    assert tree(table.path) == before
    assert plan.requested_time is None
    assert [(p.path, p.files, p.new_files) for p in plan.partitions] == [("x", 6, 1), ("y", 6, 1)]
    groups = table.file_groups()
    small = groups[groups["partition_path"] != "z"]
    assert plan.size_bytes == small["size_bytes"].sum()
    assert repr(plan).startswith("<Clustered: 12 files to merge, ") and "2 new files" in repr(plan)
    assert "6 files" in plan._repr_html_()


def test_only_the_partitions_that_are_given_are_clustered(tmp_path: Path) -> None:
    """Other partitions keep their files; an unknown partition is refused with the choice."""
    table = table_of(tmp_path)
    done = table.cluster(partitions=["y"])
    assert [p.path for p in done.partitions] == ["y"]
    assert list(table.file_groups()["partition_path"]).count("x") == 6
    with pytest.raises(InvalidConfig, match=r"partitions \['q'\] are not in the table.*'x', 'y'"):
        table.cluster(partitions=["q"])


def test_files_are_packed_up_to_the_maximal_size(tmp_path: Path) -> None:
    """No new file is above it, files that are large enough stay, and a second run ends."""
    table = table_of(tmp_path)
    size = max(Path(table.path, path).stat().st_size for path in data_files(table.path))
    table = Table.create(
        table.path,
        schema=schema_of(),
        record_key="id",
        partition_by="p",
        ordering="ts",
        if_exists="open",
        options={"hoodie.parquet.max.file.size": 2 * size + 10},
    )
    model = model_of(table)
    done = table.cluster()
    assert [(p.files, p.new_files) for p in done.partitions] == [(6, 3), (6, 3)]
    check(table, model)


def test_copies_of_a_key_are_kept(tmp_path: Path) -> None:
    """Keys that `insert` has duplicated are not dropped silently; `repair` removes them."""
    table = table_of(tmp_path)
    table.insert([row(0, 50), row(3, 50, "y")])
    before = sorted(without_meta(table.to_arrow()))
    table.cluster()
    assert sorted(without_meta(table.to_arrow())) == before == sorted(hudi_rows(table.path))
    table.fsck(repair="deduplicate")
    values = {(r["p"], r["id"]): r["v"] for r in table.to_arrow().to_pylist()}
    assert len(values) == table.to_arrow().num_rows
    assert (values["x", "k000"], values["y", "k003"]) == (50, 50)


@pytest.mark.parametrize("seed", range(4))
def test_random_writes_and_clusterings_equal_the_model(tmp_path: Path, seed: int) -> None:
    """Upserts, deletes and clusterings in turn give the rows of a dict, also to new processes."""
    rng = random.Random(seed)
    table, model = table_of(tmp_path, batches=2), Model()
    model.upsert(table.to_arrow(meta=False).to_pylist())
    for step in range(3, 15):
        given = [row(rng.randrange(90), rng.randrange(12), rng.choice("xyz")) for _ in range(9)]
        action = rng.choice(["upsert", "delete", "compact", "compact"])
        if action == "compact":
            done = table.cluster()
            assert len(table.file_groups()) == 3 or done.requested_time is None
        else:
            getattr(table, action)(given)
            getattr(model, action)(given)
        table = Table.open(table.path) if step % 3 == 0 else table
        check(table, model)


def test_the_index_covers_the_new_files(tmp_path: Path) -> None:
    """Every file is loaded after a clustering: its keys are answered without bloom filters."""
    table = table_of(tmp_path)
    table.rebuild_index()
    table.cluster()
    status = table.index_status()
    assert status.loaded_files == status.files == 3


def test_the_command_line_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cluster --dry-run` shows the plan, `cluster` executes it."""
    table = table_of(tmp_path)
    names = timeline_names(table.path)
    assert main(["cluster", table.path, "--dry-run"]) == 0
    assert "x: 6 files" in capsys.readouterr().out
    assert timeline_names(table.path) == names
    assert main(["cluster", table.path]) == 0
    assert "12 files merged, " in capsys.readouterr().out
    assert len(table.file_groups()) == 3
    assert pending_names(table.path) == []


def test_events_report_the_progress(tmp_path: Path) -> None:
    """The plan, each new file and the end are events, while the clustering runs."""
    table = table_of(tmp_path)
    done = table.cluster()
    kinds = [e.kind for e in table.events.records()]
    assert kinds.index("clustering_planned") < kinds.index("files_clustered")
    (last,) = table.events.records("files_clustered")
    assert last.values["instant"] == done.requested_time
    assert (last.values["files"], last.values["new_files"]) == (12, 2)
