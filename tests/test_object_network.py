"""A bad network between writers and their S3 server: with crashes, no answers, stale listings."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from core.tables import Model
from s3_server import Proxy, S3Server
from test_object_faults import FAULTS, batch, check, crash_at, create, in_order, life

import hoodie_nb as hn
from hoodie_nb.clock import SystemClock
from hoodie_nb.table import properties
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.object_storage import ObjectStorage

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


def refusals(server: S3Server, seed: int) -> int:
    """Write six batches while three listings in ten are too old; return how many were refused.

    A batch that was refused is not in the table; it is written again with fresh listings.
    """
    root, model, draw = server.new_root(), Model(), random.Random(seed)
    fresh, refused = create(root, server.options), 0
    with Proxy(server) as proxy:
        table = hn.Table.open(root, storage_options=proxy.options)
        for ts in range(6):
            rows = batch(ts * 5, 20 + ts * 5, ts)
            proxy.fails = lambda *_: "stale" if draw.random() < 0.3 else None
            try:
                table.upsert(rows)
            except hn.HoodieError:
                assert in_order(fresh.to_arrow().to_pylist()) == in_order(model.rows.values())
                proxy.fails, refused = good, refused + 1
                table.upsert(rows)
            model.upsert(rows)
            assert in_order(fresh.to_arrow().to_pylist()) == in_order(model.rows.values())
    fresh.upsert(rows)  # nothing new, but it cleans up
    check(root, server.options, model)
    return refused


def test_a_stale_listing_is_refused_or_does_not_matter(s3_server: S3Server) -> None:
    """A writer loses and doubles no row, and its errors say the truth; then the table is clean."""
    assert sum(refusals(s3_server, seed) for seed in range(2)) > 0


@pytest.mark.slow
def test_stale_listings_are_refused_or_do_not_matter(s3_server: S3Server) -> None:
    """The same for many more."""
    assert sum(refusals(s3_server, seed) for seed in range(2, 40)) > 20
