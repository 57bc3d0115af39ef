"""The services of a table on an object store: clustering, savepoint, clean, archive, restore."""

from __future__ import annotations

import datetime as dt
from typing import Any

import hudi
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from core.followers import Follower, rolled_back_elsewhere
from s3_server import S3Server

import hoodie_nb as hn
from hoodie_nb import failpoints
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.timeline.archive_lsm import read_manifest

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
SMALL = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.parquet.max.file.size": 4000,
    "hoodie.copyonwrite.record.size.estimate": 100,
    "hoodie.clean.commits.retained": 2,
    "hoodie.keep.min.commits": 4,
    "hoodie.keep.max.commits": 6,
}
LARGE = {"hoodie.parquet.max.file.size": "10 MB", "hoodie.parquet.small.file.limit": "1 MB"}
Rows = dict[str, dict[str, Any]]


def rows(numbers: range, ts: int) -> Rows:
    """Return a row per number in one of two partitions, by key."""
    return {f"k{n}": {"id": f"k{n}", "p": f"p{n % 2}", "ts": ts, "v": n * ts} for n in numbers}


def check(table: hn.Table, server: S3Server, model: Rows) -> None:
    """Our reader and hudi-rs have the model's rows, and `fsck` finds nothing."""
    assert {row["id"]: row for row in table.to_arrow(meta=False).to_pylist()} == model
    builder = hudi.HudiTableBuilder.from_base_uri(table.path).with_storage_options(server.options)
    found = pa.Table.from_batches(builder.build().read(hudi.HudiReadOptions()))
    assert {row["id"]: row for row in found.select(SCHEMA.names).to_pylist()} == model
    assert table.fsck() == []


@pytest.mark.parametrize("version", [6, 9])
def test_services_work_on_a_store_as_on_a_disk(s3_server: S3Server, version: int) -> None:
    """After each service the rows are those of the model; a restore brings the saved ones back."""
    made: dict[str, Any] = {"schema": SCHEMA, "record_key": "id", "partition_by": "p"}
    made |= {"ordering": "ts", "storage_options": s3_server.options, "table_version": version}
    table, model = hn.Table.create(s3_server.new_root(), options=SMALL, **made), Rows()
    for n in range(4):
        batch = rows(range(n * 40, n * 40 + 40), n + 1)
        table.upsert(list(batch.values()))
        model |= batch
    table = hn.Table.create(table.path, if_exists="open", options=LARGE, **made)
    assert sum(each.files for each in table.cluster().partitions) > 10
    assert len(table.file_groups()) == 2
    saved, kept = table.savepoint(), dict(model)
    for ts in range(10, 18):
        batch = rows(range(ts, ts + 5), ts)
        table.upsert(list(batch.values()))
        model |= batch
    check(table, s3_server, model)
    table.clean()
    table.archive()
    table.update(where="v > 100", set={"v": 1})
    for key, row in model.items():
        model[key] = {**row, "v": 1 if row["v"] > 100 else row["v"]}
    check(table, s3_server, model)
    assert table.restore(saved).requested_time is not None
    check(table, s3_server, kept)
    table.upsert(list(rows(range(3), 30).values()))
    check(table, s3_server, kept | rows(range(3), 30))


def test_the_archive_of_version_9_is_merged_on_a_store(s3_server: S3Server) -> None:
    """Each commit is on the timeline or once in the archive, whose files stay few."""
    made: dict[str, Any] = {"schema": SCHEMA, "record_key": "id", "partition_by": "p"}
    made |= {"ordering": "ts", "storage_options": s3_server.options, "table_version": 9}
    few = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3}
    few |= {"hoodie.clean.commits.retained": 1}
    table, model, times = hn.Table.create(s3_server.new_root(), options=few, **made), Rows(), []
    for ts in range(24):
        batch = rows(range(ts % 3, ts % 3 + 3), ts + 1)
        table.upsert(list(batch.values()))
        model |= batch
        times.append(table.history()["requested_time"].iloc[-1])
    check(table, s3_server, model)
    storage, folder = table._handle.storage, ".hoodie/timeline/history"
    files = read_manifest(storage, folder).files
    assert sorted(name.split("_")[2] for name in files) == ["0.parquet", "1.parquet"]
    archived = [
        row["instantTime"]
        for name in files
        for row in pq.read_table(storage.fetch(f"{folder}/{name}")).to_pylist()
        if row["action"] == "commit"
    ]
    assert sorted([*archived, *table.history()["requested_time"]]) == times


@pytest.mark.parametrize("version", [6, 9])
def test_followers_on_a_store_know_what_was_undone(s3_server: S3Server, version: int) -> None:
    """By hand and by Java, many rollbacks ago; and who starts again has the table's rows."""
    made: dict[str, Any] = {"schema": SCHEMA, "record_key": "id", "partition_by": "p"}
    made |= {"ordering": "ts", "storage_options": s3_server.options, "table_version": version}
    few = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3}
    few |= {"hoodie.clean.commits.retained": 1}
    table, followers = hn.Table.create(s3_server.new_root(), options=few, **made), []
    for ts in range(1, 9):
        table.upsert(list(rows(range(ts, ts + 3), ts).values()))
        followers.append(Follower())
        followers[-1].follow(table)
        if ts == 4:
            rolled_back_elsewhere(table, table.history()["requested_time"].iloc[-1])
        elif ts > 2:
            table.rollback()
            table.archive()
    for follower in followers[2:]:
        with pytest.raises(InvalidConfig, match="has undone it"):
            follower.follow(table)
    table.upsert(list(rows(range(2), 20).values()))
    for follower in followers[1:]:
        follower.follow_or_restart(table)
        follower.check(table)
    assert [follower.refused for follower in followers[1:]] == [0, *[1] * 6]
    assert table.fsck() == []


@pytest.mark.parametrize("version", [6, 9])
def test_a_time_while_a_commit_is_being_undone_is_refused(
    s3_server: S3Server, version: int
) -> None:
    """A store says to the second when a rollback was complete; the copy has the commit's rows."""
    made: dict[str, Any] = {"schema": SCHEMA, "record_key": "id", "partition_by": "p"}
    made |= {"ordering": "ts", "storage_options": s3_server.options, "table_version": version}
    table, seen = hn.Table.create(s3_server.new_root(), **made), list[dt.datetime]()
    for ts in (1, 2):
        table.upsert(list(rows(range(ts, ts + 3), ts).values()))

    def look() -> None:
        then = dt.datetime.now(dt.UTC)
        while dt.datetime.now(dt.UTC) - then < dt.timedelta(milliseconds=5):
            pass  # times have milliseconds
        seen.append(dt.datetime.now(dt.UTC))
        assert table.to_arrow().num_rows == 4

    while dt.datetime.now(dt.UTC).microsecond > 100_000:
        pass  # the whole rollback is in one second
    failpoints.call("restore.rollback.post", look)
    try:
        table.rollback()
    finally:
        failpoints.arm("")
    assert table.to_arrow().num_rows == 3
    with pytest.raises(InvalidConfig, match="has undone it"):
        table.changes(since=seen[0])
