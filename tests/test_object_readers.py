"""Readers of a table on an object store, which a rollback or restore overtakes."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from core.overtaken import listing, opening, overtaken
from s3_server import Proxy, S3Server

import hoodie_nb as hn
from hoodie_nb.checks.fsck import fsck

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("n", pa.int64())])
UNDO: dict[str, Callable[[hn.Table], object]] = {
    "rollback": lambda table: table.rollback(),
    "restore": lambda table: table.restore(table.history()["requested_time"].iloc[-2]),
}
READS: dict[str, Callable[[hn.Table], pa.Table]] = {
    "to_arrow": lambda table: table.to_arrow(),
    "stream": lambda table: pa.RecordBatchReader.from_stream(table).read_all(),
    "changes": lambda table: table.changes(since="earliest"),
}
LOOKS = {"between two partitions": listing("b"), "before it opens a file": opening}
both = pytest.mark.parametrize("version", [6, 9])


def grown(server: S3Server, version: int) -> hn.Table:
    """Return a table whose n-th of three commits has the value n in each of two partitions."""
    made = {"schema": SCHEMA, "record_key": "id", "partition_by": "p", "table_version": version}
    table = hn.Table.create(server.new_root(), storage_options=server.options, **made)
    for n in range(3):
        table.upsert([{"id": f"k{p}", "p": p, "n": n} for p in "ab"])
    return table


@both
@pytest.mark.parametrize("action", UNDO)
@pytest.mark.parametrize("look", LOOKS)
def test_a_reader_on_a_store_has_the_rows_of_one_state(
    s3_server: S3Server, look: str, action: str, version: int
) -> None:
    """As on a disk: it lists or reads again, and `fsck` finds nothing."""
    table = grown(s3_server, version)
    for expected, read in zip((1, 0), ("to_arrow", "changes"), strict=True):
        other = hn.Table.open(table._handle.storage)
        reader, storage = overtaken(table, LOOKS[look], lambda o=other: UNDO[action](o))
        assert READS[read](reader)["n"].to_pylist() == [expected] * 2 and storage.fired
    table.upsert([{"id": f"k{p}", "p": p, "n": 7} for p in "ab"])
    _, storage = overtaken(table, LOOKS[look], lambda: UNDO[action](table))
    assert fsck(storage) == [] and storage.fired


@both
@pytest.mark.parametrize(("read", "lists"), [("to_arrow", 6), ("stream", 6), ("changes", 8)])
def test_a_read_of_a_store_sends_few_requests(
    s3_server: S3Server, read: str, lists: int, version: int
) -> None:
    """It lists three folders, the timeline twice, and where another engine or archive would be."""
    table = grown(s3_server, version)
    with Proxy(s3_server) as proxy:
        reader = hn.Table.open(table.path, storage_options=proxy.options)
        READS[read](reader)
        proxy.counts.clear()
        READS[read](reader)
        assert proxy.counts == {"LIST": lists, "GET": 3, "HEAD": 2}
