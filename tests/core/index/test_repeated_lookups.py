"""A lookup depends on the plan and the key only: tasks that share keys must agree."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.index import file_keys
from hoodie_nb.index.lookup import BloomStateIndex
from hoodie_nb.index.run import DamagedRun
from hoodie_nb.intake.intake import Intake
from hoodie_nb.lock.lock import writing

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64())])
SMALL = {"hoodie.parquet.small.file.limit": 0, "index_load_budget": 0}
"""Every commit makes a file group of its own, and loads no file but those it writes."""


def rows(keys: list[str], ts: int = 1) -> pa.Table:
    """Return a row per key."""
    return pa.table({"id": keys, "ts": [ts] * len(keys)}, schema=SCHEMA)


def planned(path: Path) -> WritePlan:
    """Return the plan of a write; its instant is rolled back by the next start."""
    handle = open_table(path)
    with writing(handle.storage):
        coordinator = WriteCoordinator(handle, EventLog())
        coordinator.recover()
        instant = coordinator.begin()
        return coordinator.plan(instant, Intake(handle.config, handle.schema), Shape())


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write file groups that the state knows, and others that it does not; hashes have 6 bits."""
    monkeypatch.setattr(file_keys, "MASK", 63)
    table = hn.Table.create(
        tmp_path / "t", schema=SCHEMA, record_key="id", ordering="ts", options=SMALL
    )
    known = [f"k{n}" for n in range(24)]
    for n in range(0, 12, 4):
        table.insert(rows(known[n : n + 4]))
    table.delete(rows(known[:2], ts=2))  # their hashes stay in the state
    manifest = {p: p.read_bytes() for p in (tmp_path / "t/.hoodie/.hoodie_nb/index").glob("m*")}
    for n in range(12, 24, 4):
        table.insert(rows(known[n : n + 4]))
    for path in (tmp_path / "t/.hoodie/.hoodie_nb/index").glob("m*"):
        path.unlink()
    for path, content in manifest.items():  # an older state: the newest files are not loaded
        path.write_bytes(content)
    return [*known, *(f"new{n}" for n in range(40))]


def test_a_lookup_gives_the_same_answer_in_any_order_and_company(tmp_path, keys) -> None:
    """Looked up at once, one by one, or in random parts by other tasks: equal file groups."""
    plan = planned(tmp_path / "t")
    index = BloomStateIndex(plan)
    together = dict(zip(keys, index.locate("", pa.array(keys)).to_pylist(), strict=True))
    assert index.counts.files_looked_up > 0  # else nothing was unloaded
    assert all(together[key] for key in keys[2:24])
    draw = random.Random(7)
    for _ in range(20):
        own, order = BloomStateIndex(plan), draw.sample(keys, len(keys))
        while order:
            part, order = order[: (size := draw.randint(1, 9))], order[size:]
            found = own.locate("", pa.array(part)).to_pylist()
            assert found == [together[key] for key in part]


def test_a_damaged_run_is_an_error_if_several_tasks_look_up(tmp_path, keys) -> None:
    """The bloom filters could disagree with the state about keys that were deleted."""
    (run, *_) = sorted((tmp_path / "t/.hoodie/.hoodie_nb/index/runs").glob("*.run"))
    run.write_bytes(bytes(run.stat().st_size))
    plan = planned(tmp_path / "t")
    with pytest.raises(DamagedRun):
        BloomStateIndex(plan, strict=True).locate("", pa.array(keys))
    found = BloomStateIndex(plan).locate("", pa.array(keys)).to_pylist()
    assert all(found[2:24])
