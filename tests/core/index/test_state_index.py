"""`index="state"` is used only if it has all keys that its query has written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from faults import Crash
from test_journal import CONFIG, SCHEMA, rows, upsert_elsewhere

from hoodie_nb import Table, failpoints
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import TableHandle, create_table, open_table
from hoodie_nb.index.job_keys import FOLDER
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading.read import to_arrow

ROW = {"id": "f", "part": "p", "ts": 1, "v": 7}


class Query:
    """A query of several processes, each with its own index; file groups are never filled up."""

    def __init__(self, folder: Path) -> None:
        self.path, self.state, self.source = folder / "t", folder / FOLDER, Source()
        create_table(self.path, CONFIG, options={"small_file_bytes": 0})
        self.number = 0

    def handle(self) -> TableHandle:
        """Return the table as a new process sees it."""
        return open_table(self.path)

    def start(self, index: str) -> LocalJob:
        """Continue with this index."""
        self.job = LocalJob(
            self.handle(),
            pipeline="step2",
            index=index,
            state_folder=str(self.path.parent),
            source=self.source,
        )
        return self.job

    def write(self, *keys: str, complete: bool = True) -> None:
        """Run a checkpoint with one row of each key."""
        if keys:
            self.job.write(rows(*((key, self.number, self.number, False) for key in keys)))
        self.number += 1
        self.job.checkpoint(self.number)
        if complete:
            self.job.complete(self.number)

    def keys(self) -> list[str]:
        """Return the keys of all rows."""
        assert fsck(self.path) == []
        read: pa.Table = to_arrow(self.handle())
        return sorted(read.column("id").to_pylist())


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    """A query without checkpoints."""
    yield Query(tmp_path)
    failpoints.arm("")


def lose_keys(query: Query, how: str) -> None:
    """Write keys that are not in the state, or no longer."""
    query.start("state")
    query.write("a")
    if how == "another index":
        query.start("bloom")
        query.write("b")
    elif how == "another index, then no rows":
        query.start("bloom")
        query.write("b")
        for _ in range(101):
            query.write()
        upsert_elsewhere(query, SCHEMA, ROW)
    elif how == "deleted":
        shutil.rmtree(query.state)
    elif how == "restored":
        shutil.copytree(query.state, backup := query.path.with_name("backup"))
        query.write("b")
        shutil.rmtree(query.state)
        backup.rename(query.state)
    else:
        query.write("b", complete=False)
        upsert_elsewhere(query, SCHEMA, ROW)
        query.job.complete(query.number)


@pytest.mark.parametrize(
    "how",
    ["another index", "another index, then no rows", "deleted", "restored", "another engine"],
)
def test_a_state_without_keys_of_its_query_is_refused(query: Query, how: str) -> None:
    """Nothing is written; with the index that the message names, no key is doubled."""
    lose_keys(query, how)
    query.start("state")
    before = query.keys()
    with pytest.raises(InvalidTable, match=r"instants lacks instant.*index='bloom\+state'"):
        query.write("a", "b", "c")
    assert query.keys() == before
    query.number -= 1
    query.start("bloom+state")
    query.write("a", "b", "c")
    assert query.keys() == sorted({"a", "b", "c", *before})


@pytest.mark.parametrize("failpoint", ["coord.prepare.pre", "coord.prepare.post"])
def test_a_state_of_all_keys_is_used_after_a_crash(query: Query, failpoint: str) -> None:
    """Checkpoints without rows may use any index, and one that died runs again or is completed."""
    query.start("state")
    query.write("a")
    query.start("bloom")
    query.write()
    query.start("state")

    def die() -> None:
        query.job.coordinator.dead = True
        raise Crash(failpoint)

    failpoints.call(failpoint, die)
    with pytest.raises(Crash):
        query.write("a", "b")
    failpoints.arm("")
    query.number -= 1
    query.start("state")
    for _ in range(2):
        query.write("a", "b")
    assert query.keys() == ["a", "b"]


def test_keys_that_a_clustering_moved_are_refused(query: Query) -> None:
    """With the index that the message names, they are found where they are now."""
    query.start("state")
    query.write("a")
    query.write("b")
    options = {"hoodie.parquet.small.file.limit": 1 << 20}
    create_table(query.path, CONFIG, options=options, if_exists="open")
    Table.open(query.path).cluster()
    query.start("state")
    with pytest.raises(InvalidTable, match=r"moved to other files.*index='bloom\+state'"):
        query.write("a", "b", "c")
    query.number -= 1
    query.start("bloom+state")
    query.write("a", "b", "c")
    assert query.keys() == ["a", "b", "c"]


def test_keys_of_batches_that_were_undone_are_refused(query: Query) -> None:
    """The state does not know where they are now; the other index reads the table."""
    query.start("state")
    query.write("a")
    query.write("b")
    Table.open(query.path).rollback()
    query.number = query.source.succeeded = 1
    del query.source.sealed[1:]
    query.start("state")
    with pytest.raises(InvalidTable, match=r"undone.*continue with index='bloom\+state'"):
        query.write()  # the source sends b again
    query.number -= 1
    query.start("bloom+state")
    query.write()
    query.write("a", "c")
    assert query.keys() == ["a", "b", "c"]
