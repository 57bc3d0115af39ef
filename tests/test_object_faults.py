"""Requests that fail, processes that die, and how many requests a commit needs, on an S3 server."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest
from core.faults import Crash, Fault
from core.faulty_objects import FaultyObjects, end_holder
from core.tables import Model, schema_of
from hudi import HudiReadOptions, HudiTableBuilder
from s3_server import SECRET, Proxy, S3Server, object_paths

import hoodie_nb as hn
from hoodie_nb.clock import ManualClock
from hoodie_nb.definition import properties
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.storage import object_storage
from hoodie_nb.storage.fences import doubted_s
from hoodie_nb.storage.object_storage import ObjectStorage

Rows = list[dict[str, object]]
FAULTS = ["503", "503 after", "before", "after", "reset", "reset after", "cut", "slow"]


def create(root: str, options: dict[str, str]) -> hn.Table:
    """Create the table of these tests."""
    keys = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    return hn.Table.create(root, schema=schema_of(), storage_options=options, **keys)


def batch(first: int, last: int, ts: int) -> Rows:
    """Return rows of two partitions."""
    return [{"id": f"k{i}", "p": f"par{i % 2}", "ts": ts, "v": i + ts} for i in range(first, last)]


def in_order(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return rows without Hudi's columns, in order."""
    own = [{k: row[k] for k in sorted(row) if not k.startswith("_hoodie")} for row in rows]
    return sorted(map(str, own))


def in_hudi_rs(root: str, options: dict[str, str]) -> pa.Table:
    """Return what hudi-rs reads."""
    builder = HudiTableBuilder.from_base_uri(root).with_storage_options(options)
    return pa.Table.from_batches(builder.build().read(HudiReadOptions()))


def check(root: str, options: dict[str, str], model: Model) -> None:
    """Compare our reader and hudi-rs with the model; the table is clean."""
    table = hn.Table.open(root, storage_options=options)
    want = in_order(model.rows.values())
    assert in_order(table.to_arrow().to_pylist()) == want
    assert in_order(in_hudi_rs(root, options).to_pylist()) == want
    assert table.fsck() == []


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_fail_are_repeated(s3_server: S3Server, seed: int) -> None:
    """One request in eight fails, before or after the store has received it: no write notices."""
    root, model, draw = s3_server.new_root(), Model(), random.Random(seed)
    with Proxy(s3_server) as proxy:

        def fails(number: int, method: str, path: str) -> str | None:
            return draw.choice(FAULTS) if draw.random() < 1 / 8 else None

        table = create(root, proxy.options)
        proxy.fails = fails
        for ts in range(4):
            rows = batch(ts * 5, 40 + ts * 5, ts)
            table.upsert(rows)
            model.upsert(rows)
        proxy.fails = lambda *_: None
        assert len(proxy.fired) > 20
    check(root, s3_server.options, model)


def test_a_store_that_refuses_names_the_credentials_and_none_of_their_values(s3_server) -> None:
    """A 403 says what to check; neither errors nor objects nor events have a secret."""
    root = s3_server.new_root()
    with Proxy(s3_server) as proxy:
        table = create(root, proxy.options)
        table.upsert(batch(0, 9, 1))
        proxy.fails = lambda *_: "403"
        with pytest.raises(hn.InvalidTable, match="check the credentials") as caught:
            table.upsert(batch(0, 9, 2))
        proxy.fails = lambda *_: None
        shown = [str(caught.value), repr(table), str(table.events.records()), str(table.fsck())]
        shown += [repr(table._handle.storage), str(table._repr_mimebundle_())]
    assert not any(SECRET in text for text in shown)
    assert all(SECRET.encode() not in content for content in objects(root, s3_server.options))


def test_a_store_that_permits_no_deletions_names_the_permission(s3_server, monkeypatch) -> None:
    """S3 answers 200 and denies each key: refused once, by name, and nothing may arrive later."""
    monkeypatch.setattr(object_storage, "_DOUBT_S", -1.0)
    root, model = s3_server.new_root(), Model()
    with Proxy(s3_server) as proxy:
        table = create(root, proxy.options)
        proxy.fails = lambda _, method, path: "denied" if path.endswith("?delete") else None
        table.upsert(batch(0, 9, 1))  # what it has staged stays
        assert len(proxy.fired) == 1
        named = r"their permissions \(s3:DeleteObject is missing for \S+/staged/\S+\.staged\)$"
        with pytest.raises(hn.InvalidTable, match=named):
            table.upsert(batch(0, 9, 2))
        assert len(proxy.fired) == 2
        assert doubted_s(table._handle.storage.root) == math.inf
        proxy.fails = lambda *_: None
        table.upsert(batch(0, 9, 3))
    model.upsert(batch(0, 9, 3))
    check(root, s3_server.options, model)


def test_an_unknown_option_is_named_without_its_value(s3_server: S3Server) -> None:
    """An error about the options has names only."""
    with pytest.raises(hn.InvalidConfig, match="aws_bogus") as caught:
        hn.Table.open(s3_server.new_root(), storage_options={"aws_bogus": SECRET})
    assert SECRET not in str(caught.value)
    with pytest.raises(hn.InvalidConfig, match="are for object stores"):
        hn.Table.open("/tmp/t", storage_options={"aws_region": "x"})


def objects(root: str, options: dict[str, str]) -> list[bytes]:
    """Return the content of all objects of a table."""
    storage, found = ObjectStorage(root, options), list[bytes]()
    for path in object_paths(storage):
        version = storage.read_version(path)
        assert version is not None
        found.append(version.content)
    assert len(found) > 5
    return found


def test_a_commit_asks_for_as_much_in_a_large_table(s3_server: S3Server) -> None:
    """Requests of an upsert into one file group: bounded, and the same with ten times the files."""
    asked = []
    for partitions in (3, 30):
        with Proxy(s3_server) as proxy:
            table = create(s3_server.new_root(), proxy.options)
            rows = [{"id": f"k{i}", "p": f"par{i}", "ts": 1, "v": i} for i in range(partitions)]
            table.upsert(rows)
            for ts in (2, 3):
                table.upsert([{"id": "k1", "p": "par1", "ts": ts, "v": ts}])
            proxy.counts.clear()
            table.upsert([{"id": "k1", "p": "par1", "ts": 4, "v": 4}])
            asked.append(proxy.counts.copy())
    assert abs(asked[0].total() - asked[1].total()) <= 6  # of runs of keys that were merged or not
    assert asked[0].total() <= 90


# --- processes that die ---------------------------------------------------------------------------


def life(root: str, options: dict[str, str], fault: Fault | None) -> FaultyObjects:
    """Run a process that writes two batches; `fault` may end it."""
    storage = FaultyObjects(root, options, fault)
    table = hn.Table(TableHandle(storage, ManualClock(), properties.load(storage)))
    for rows in (batch(0, 4, 1), batch(2, 6, 2)):
        table.upsert(rows)
    return storage


@pytest.fixture(scope="module")
def steps(s3_server: S3Server) -> int:
    """The number of operations of a life."""
    root = s3_server.new_root()
    create(root, s3_server.options)
    return life(root, s3_server.options, None).steps


def crash_at(server: S3Server, at: int, how: str, options: dict[str, str] | None = None) -> None:
    """Let a process die at an operation, look as a reader, and go on with the next process.

    Both use the storage options that are given.
    """
    model, models = Model(), list[list[str]]()
    for rows in ([], batch(0, 4, 1), batch(2, 6, 2)):
        model.upsert(rows)
        models.append(in_order(model.rows.values()))
    root = server.new_root()
    table = create(root, server.options)
    with pytest.raises(Crash):
        life(root, options or server.options, Fault(at, how))
    assert in_order(table.to_arrow().to_pylist()) in models, f"{how} {at}"
    end_holder(ObjectStorage(root, server.options))
    life(root, options or server.options, None)
    check(root, server.options, model)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_crash_at_an_operation_loses_and_doubles_nothing(
    s3_server: S3Server, steps: int, how: str
) -> None:
    """A reader sees whole commits; the next process takes the lock, recovers, and writes on."""
    for at in range(2, steps + 1, 9):
        crash_at(s3_server, at, how)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_crash_at_any_operation_loses_and_doubles_nothing(
    s3_server: S3Server, steps: int, how: str
) -> None:
    """The same for every operation."""
    for at in range(1, steps + 1):
        crash_at(s3_server, at, how)
