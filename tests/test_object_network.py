"""A bad network between writers and their S3 server: with crashes, no answers, stale listings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from core.tables import Model
from s3_server import Proxy, S3Server
from test_object_faults import FAULTS, batch, check, crash_at, create, in_order, life

import hoodie_nb as hn
from hoodie_nb.clock import SystemClock
from hoodie_nb.definition import properties
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.storage.object_storage import ObjectStorage

Fails = Callable[[int, str, str], str | None]


def bad(seed: int) -> Fails:
    """Return a network on which one request in eight fails, in any way."""
    draw = random.Random(seed)
    return lambda *_: draw.choice(FAULTS) if draw.random() < 1 / 8 else None


def good(*_: object) -> None:
    """Let no request fail."""


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_crash_on_a_bad_network_loses_and_doubles_nothing(s3_server: S3Server, how: str) -> None:
    """Readers see whole commits; the next process recovers and writes on, on the same network."""
    root = s3_server.new_root()
    create(root, s3_server.options)
    steps = life(root, s3_server.options, None).steps
    with Proxy(s3_server) as proxy:
        for at in range(2 if how == "before" else 17, steps + 1, 30):
            proxy.fails = bad(at)
            crash_at(s3_server, at, how, proxy.options)
        assert {each.partition(":")[0] for each in proxy.fired} == {*FAULTS}


def test_a_request_that_is_never_answered_is_repeated(s3_server: S3Server) -> None:
    """The client waits so long, whether the server has received the request or not."""
    root, model, rows = s3_server.new_root(), Model(), batch(0, 20, 1)
    create(root, s3_server.options)
    with Proxy(s3_server) as proxy:
        options = {**proxy.options, "timeout": "1s"}
        storage = ObjectStorage(root, options, lease_s=12)  # 2 s for a change
        table = hn.Table(TableHandle(storage, SystemClock(), properties.load(storage)))
        left = {"GET": "silent", "PUT": "silent after", "POST": "silent"}
        proxy.fails = lambda number, method, path: left.pop(method, None)
        table.upsert(rows)
        assert left == {} and len(proxy.fired) == 3
    model.upsert(rows)
    check(root, s3_server.options, model)


def refused(server: S3Server, at: int, *, again: bool) -> bool | None:
    """Write a third batch, whose listing number `at` is one change too old; None: it has fewer.

    A batch that is refused is not in the table, and is written when listings are fresh. `again`: by
    the process that wrote the others, else by one that has just opened the table.
    """
    root, model = server.new_root(), Model()
    batches = [batch(n * 5, n * 5 + 20, n) for n in range(3)]
    fresh, raised = create(root, server.options), False
    with Proxy(server) as proxy:
        table = hn.Table.open(root, storage_options=proxy.options)
        for rows in batches[:2]:
            table.upsert(rows)
            model.upsert(rows)
        table = table if again else hn.Table.open(root, storage_options=proxy.options)
        first = proxy.counts["LIST"] + at
        proxy.fails = lambda *_: "stale" if proxy.counts["LIST"] == first else None
        try:
            table.upsert(batches[2])
        except hn.HoodieError:
            raised = True
            assert in_order(fresh.to_arrow().to_pylist()) == in_order(model.rows.values())
            fresh.upsert(batches[2])
        model.upsert(batches[2])
    fresh.upsert(batches[2])  # nothing new, but it cleans up
    check(root, server.options, model)
    return raised if proxy.fired else None


@pytest.mark.parametrize("again", [True, False])
def test_a_stale_listing_is_refused_or_does_not_matter(s3_server: S3Server, again: bool) -> None:
    """A writer loses and doubles no row, and its errors say the truth; then the table is clean."""
    found = {refused(s3_server, at, again=again) for at in (1, 6, 7)}
    assert found == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("again", [True, False])
def test_any_stale_listing_is_refused_or_does_not_matter(s3_server: S3Server, again: bool) -> None:
    """The same for every listing of a write."""
    numbers = itertools.count(1)
    found = list(iter(lambda: refused(s3_server, next(numbers), again=again), None))
    assert len(found) > 10 and {*found} == {True, False}
