"""A log that a completed commit names and that is not there is an error; other readers go on."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from counted_storage import CountedStorage
from java_logs import STATES, VERSIONS, commits, java_rows, java_table, same_rows
from log_writer import SCHEMA, LoggedSlice, parquet_block, times
from tables import hudi_table

from hoodie_nb import Table
from hoodie_nb.actions.clean_plan import CleanPlan
from hoodie_nb.actions.clean_records import encode_plan, encode_result
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.outdated import Mark
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.timeline import Instant, State
from hoodie_nb.types.avro_file import decode, encode, load_schema
from hoodie_nb.view.read_handle import COMMITS_KEPT, open_to_read

WORDS = r"is missing, which the completed commit {time17} names.*`cp \*`"


def used_logs(root: Path) -> dict[str, str]:
    """Return the logs of the newest slices that a commit names, each with that commit."""
    table = open_to_read(str(root))
    named = {}
    for done in table.timeline.completed_commits():
        named |= dict.fromkeys(table.timeline.commit(done).files, done.requested_time)
    paths = [log.path for piece in table.file_groups() for log in piece.logs]
    return {path: named[path] for path in paths if path in named}


@pytest.mark.parametrize("version, state", [*((v, "table") for v in VERSIONS), *STATES])
def test_each_log_that_is_missing_is_named(tmp_path: Path, version: int, state: str) -> None:
    """Each one alone, with its commit and the remedy; with the log again, the rows are Java's."""
    root = java_table(tmp_path, version, state)
    logs = used_logs(root)
    assert logs
    for path, time17 in logs.items():
        (root / path).rename(root / "kept")
        with pytest.raises(InvalidTable, match=WORDS.format(time17=time17)) as raised:
            Table.open(root).to_arrow()
        assert path in str(raised.value)
        (root / "kept").rename(root / path)
    name = f"expected/{commits(version)[-1]}" if state == "table" else state
    assert same_rows(Table.open(root).to_arrow(), java_rows(version, name))


@pytest.mark.parametrize("version, state", [(6, "table"), (9, "table"), (9, "log_only")])
def test_a_copy_without_hidden_files_is_an_error(tmp_path: Path, version: int, state: str) -> None:
    """Also where a group, or a partition, has only logs; asked for all partitions or for one."""
    root = java_table(tmp_path / "t", version, state)
    partitions = {path.rpartition("/")[0] for path in used_logs(root)}
    for file in root.glob("*/.*"):
        if file.parent.name != ".hoodie":
            file.unlink()
    with pytest.raises(InvalidTable, match=r"is missing.*hidden files"):
        Table.open(root).to_arrow()
    for partition in partitions:
        with pytest.raises(InvalidTable, match=r"is missing.*hidden files"):
            Table.open(root).to_arrow(partitions=[partition])


def test_a_partition_of_logs_needs_no_metadata_file(tmp_path: Path) -> None:
    """Its rows are read, as those of base files are."""
    root = java_table(tmp_path, 9, "log_only")
    for file in root.glob("*/.hoodie_partition_metadata*"):
        file.unlink()
    assert same_rows(Table.open(root).to_arrow(), java_rows(9, "log_only"))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_no_snapshot_needs_may_be_missing(tmp_path: Path, version: int) -> None:
    """Logs that a compaction has merged, or an overwrite replaced; earlier snapshots need them."""
    root = java_table(tmp_path, version)
    used = used_logs(root)
    times17 = commits(version)
    for log in [*root.glob("*/.*.log.*")]:
        if log.relative_to(root).as_posix() not in used:
            log.unlink()
    table = Table.open(root)
    assert same_rows(table.to_arrow(), java_rows(version, f"expected/{times17[-1]}"))
    assert same_rows(table.to_arrow(as_of=times17[0]), java_rows(version, f"expected/{times17[0]}"))
    with pytest.raises(InvalidTable, match="is missing"):
        table.to_arrow(as_of=times17[2])


class Deltas(LoggedSlice):
    """A slice whose delta commits name their logs."""

    def commit(self, time17: str, *names: str) -> None:
        """Complete a deltacommit that wrote some logs."""
        super().commit(time17)
        stats = [
            {"fileId": self.name.file_id, "path": name, "partitionPath": "", "numWrites": 1}
            | {"fileSizeInBytes": (self.root / name).stat().st_size}
            for name in names
        ]
        (done,) = (self.root / ".hoodie").rglob(f"{time17}*.deltacommit")
        if self.version == 6:
            content = json.loads(done.read_text())
            content["partitionToWriteStats"] = {"": stats}
            done.write_text(json.dumps(content))
        else:
            content = decode(done.read_bytes())
            content["partitionToWriteStats"] = {"": stats}
            done.write_bytes(encode(load_schema("HoodieCommitMetadata"), content))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("version", [6, 9])
def test_random_histories_notice_each_lost_log(tmp_path: Path, version: int, seed: int) -> None:
    """Whatever logs are lost: the rows are those of a dict if all are there, else an error.

    The last commits may have been rolled back since, with their logs deleted.
    """
    draw = random.Random(f"{version} {seed}")
    base = [{"id": f"k{n}", "ts": 1, "v": n} for n in range(5)]
    table = Deltas(tmp_path, base, version=version)
    model: dict[str, dict[str, Any]] = {row["id"]: row for row in base}
    snapshots = []
    for time17 in times(5):
        rows = [{"id": f"k{draw.randrange(9)}", "ts": draw.randrange(4), "v": draw.randrange(99)}]
        log = table.log(time17, parquet_block(time17, [table.row(time17, r) for r in rows], SCHEMA))
        table.commit(time17, log.name)
        for row in rows:
            if row["ts"] >= model.get(row["id"], row)["ts"]:
                model[row["id"]] = row
        snapshots.append((time17, log, dict(model)))
    undone = draw.randrange(3)
    for time17, log, _ in snapshots[len(snapshots) - undone :]:
        for file in (tmp_path / ".hoodie").rglob(f"{time17}*"):
            file.unlink()
        log.unlink()
    left = snapshots[: len(snapshots) - undone]
    lost = draw.sample(left, draw.randrange(3))
    contents = {log: log.read_bytes() for _, log, _ in lost}
    for log in contents:
        log.unlink()
    for time17, _, wanted in left:
        opened = Table.open(tmp_path)
        if any(when <= time17 for when, _, _ in lost):
            with pytest.raises(InvalidTable, match="is missing"):
                opened.to_arrow(as_of=time17)
        else:
            found = opened.to_arrow(meta=False, as_of=time17).to_pylist()
            assert {row["id"]: row for row in found} == wanted
    for log, content in contents.items():
        log.write_bytes(content)
    found = Table.open(tmp_path).to_arrow(meta=False).to_pylist()
    assert {row["id"]: row for row in found} == left[-1][2]
    theirs = hudi_table(tmp_path)
    assert theirs is not None
    assert {row["id"]: row["v"] for row in theirs.to_pylist()} == {
        row["id"]: row["v"] for row in found
    }


def test_commits_are_read_once_for_all_views(tmp_path: Path) -> None:
    """The first view reads each delta commit, the next ones none."""
    root = java_table(tmp_path, 9)
    storage: Storage = CountedStorage(open_to_read(str(root)).storage)
    assert isinstance(storage, CountedStorage)
    table = open_to_read(storage)
    requests = []
    for _ in range(3):
        before = storage.requests["GET"]
        [*table.view().listed()]
        requests.append(storage.requests["GET"] - before)
    deltas = len(table.timeline.listing.completed("deltacommit"))
    assert deltas <= requests[0] <= deltas + 3
    assert requests[1:] == [1, 1]  # the overwrite's, of what it replaced


def test_a_long_timeline_is_read_once(tmp_path: Path) -> None:
    """More delta commits than are kept decoded: each is read once all the same."""
    base = [{"id": "k0", "ts": 1, "v": 0}]
    made = Deltas(tmp_path, base)
    for time17 in times(COMMITS_KEPT + 6):
        row = made.row(time17, {"id": "k0", "ts": 2, "v": int(time17[-5:])})
        made.commit(time17, made.log(time17, parquet_block(time17, [row], SCHEMA)).name)
    storage = CountedStorage(open_to_read(str(tmp_path)).storage)
    table = open_to_read(storage)
    [*table.view().listed()]
    before = storage.requests["GET"]
    (piece,) = table.view().listed()
    assert len(piece.logs) == COMMITS_KEPT + 6
    assert storage.requests["GET"] == before


def test_a_log_that_a_clean_has_deleted_is_not_missing(tmp_path: Path) -> None:
    """A table upgraded from version 6 has old logs that seem to be of the newest slice."""
    root = java_table(tmp_path / "t", 9)
    path = next(path for path in used_logs(root) if path.startswith("a/"))
    without = shutil.copytree(root, tmp_path / "u")
    (without / path).unlink()
    with pytest.raises(InvalidTable, match="is missing"):
        Table.open(without).to_arrow()
    write_clean(without, path)
    theirs = hudi_table(without)
    assert theirs is not None
    found = Table.open(without).to_arrow(["id", "v"])
    assert sorted(found.to_pylist(), key=str) == sorted(
        theirs.select(["id", "v"]).to_pylist(), key=str
    )


def write_clean(root: Path, path: str) -> None:
    """Add a completed clean that has deleted one file."""
    table = open_to_read(str(root))
    folder, _, name = path.rpartition("/")
    plan = CleanPlan("KEEP_LATEST_COMMITS", None, "", Mark(0, "", frozenset()), {folder: [name]})
    clean = Instant(times(1)[0], "clean", State.COMPLETED)
    at = root / ".hoodie" / "timeline"
    for state in ("requested", "inflight"):
        content = encode_plan(plan, table.storage)
        (at / f"{clean.requested_time}.clean.{state}").write_bytes(content)
    done = at / f"{clean.requested_time}_{int(clean.requested_time) + 1}.clean"
    done.write_bytes(encode_result(plan, clean, plan.files))
