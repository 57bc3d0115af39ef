"""Histories of an object store, whose lock is a lease: 6, 15, and 24.

A and B are writers of one table: A's lease ends, and B takes it. Names in the decorators are rules
of `broken.py`.
"""

from __future__ import annotations

import re
from contextlib import suppress

from s3_server import Proxy, S3Server
from tables import canonical, schema_of, without_meta
from test_lost_lease import Other, rows
from test_object_faults import in_hudi_rs
from writers.histories.players import Stage, Stream, history

import hoodie_nb as hn
from hoodie_nb import ConcurrentWriter, failpoints
from hoodie_nb.lock.lock import writing
from hoodie_nb.storage.object_storage import ObjectStorage

SCHEMES = ("s3://", "s3a://")  # two processes
TIMELINE = ".hoodie/timeline"
COMPLETED = re.compile(r"/timeline/\d{17}_\d{17}\.commit(\?|$)")
MINE = rows(0, 20, 2)


def table_of(other: Other, options: dict[str, str]) -> hn.Table:
    """Create the table with a batch."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts", "table_version": 9}
    table = hn.Table.create(other.root, schema=schema_of(), storage_options=options, **keys)
    table.upsert(rows(0, 10, 1))
    return table


def sees(other: Other) -> hn.Table:
    """Everybody sees A's checkpoint once, and B's rows."""
    table = hn.Table.open(other.root, storage_options=other.options)
    assert without_meta(table.to_arrow()) == canonical([*MINE, *rows(100, 104, 5)]), "other rows"
    return table


@history(fence__late_records="is missing; a stream")
def test_history_06_sleeping_past_a_take_over(stage: Stage) -> None:
    """A sleeps before its checkpoint is prepared, and B rolls it back: A's record is refused.

    So Spark runs the checkpoint again.
    """
    server: S3Server = stage.request.getfixturevalue("s3_server")
    other = Other(server)
    table = table_of(other, server.options)
    stage.break_rules()
    with suppress(ConcurrentWriter), writing(table._handle.storage):
        failpoints.call("coord.prepare.pre", other.writes, 1)
        Stream(table._handle).run(0, MINE)
    failpoints.arm("")
    again = hn.Table.open(other.root, storage_options=server.options)
    with writing(again._handle.storage):
        stream = Stream(again._handle)
        stream.run(0, MINE)
        stream.complete()
    assert sees(other).fsck() == []


def complete_while_b_takes_over(stage: Stage, at: str) -> Other:
    """Let B take over while A completes its checkpoint: at a failpoint, or as A's file arrives."""
    server: S3Server = stage.request.getfixturevalue("s3_server")
    other = Other(server)
    with Proxy(server) as proxy:
        table = table_of(other, proxy.options)
        stage.break_rules()

        def fails(_: int, method: str, path: str) -> None:
            if not other.came and method == "PUT" and COMPLETED.search(path):
                other.writes()  # the request is on its way

        with writing(table._handle.storage):
            stream = Stream(table._handle)
            stream.run(0, MINE)
            if at:
                failpoints.call(at, other.writes, 1)
            else:
                proxy.fails = fails
            with suppress(hn.CommitFailed, ConcurrentWriter):
                stream.complete(stale=False)
    failpoints.arm("")
    assert other.came == 1
    return other


def completed_files(other: Other) -> list[str]:
    """Return the times of the completed files."""
    storage = ObjectStorage(other.root, other.options)
    return [name[:17] for name in storage.file_names(TIMELINE) if name.endswith(".commit")]


@history(any_name="two completed files")
def test_history_15_a_second_completed_file(stage: Stage) -> None:
    """A sleeps after its completed file, and B takes over: it writes none under another name."""
    other = complete_while_b_takes_over(stage, "coord.commit.post")
    done = completed_files(other)
    assert len(done) == len({*done}) == 3, "two completed files"
    assert sees(other).fsck() == []


@history(withdrawn="two completed files")
def test_history_15_two_completed_files(stage: Stage) -> None:
    """A's completed file arrives after B has completed A's instant: A deletes its own.

    Nothing can keep such a file out, since the names differ. Both say the same.
    """
    other = complete_while_b_takes_over(stage, "")
    done = completed_files(other)
    assert len(done) == len({*done}) == 3, "two completed files"
    table = sees(other)
    assert without_meta(in_hudi_rs(other.root, other.options)) == without_meta(table.to_arrow())
    assert len(table.history()) == 3
    table.upsert(rows(0, 1, 1))
    assert without_meta(in_hudi_rs(other.root, other.options)) == without_meta(table.to_arrow())
    assert sees(other).fsck() == []


@history(clock="taken from the living")
def test_history_24_clocks(stage: Stage) -> None:
    """A lives, and B's clock is an hour ahead: a lease is over by the clock of the store."""
    server: S3Server = stage.request.getfixturevalue("s3_server")
    stage.break_rules()
    root = server.new_root()
    here, there = (
        ObjectStorage(root.replace("s3://", scheme), server.options) for scheme in SCHEMES
    )
    with writing(here):
        try:
            with writing(there, 0):
                pass
        except ConcurrentWriter as error:
            assert "is being written by another process" in str(error)
        else:
            raise AssertionError("taken from the living")
