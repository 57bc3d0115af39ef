"""Merge-on-read tables are only read: every write and service refuses them and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from java_logs import java_table
from tables import tree

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable

ROWS = [{"id": "k001", "part": "a", "at": 99}]
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("at", pa.int64())])
DOORS: dict[str, Callable[[Table], object]] = {
    "upsert": lambda t: t.upsert(ROWS),
    "an empty upsert": lambda t: t.upsert([]),
    "insert": lambda t: t.insert(ROWS),
    "bulk_insert": lambda t: t.bulk_insert(ROWS),
    "insert_overwrite": lambda t: t.insert_overwrite(ROWS),
    "delete": lambda t: t.delete(ROWS),
    "delete where": lambda t: t.delete(where="at > 0"),
    "update": lambda t: t.update(where="at > 0", set={"at": 1}),
    "add_columns": lambda t: t.add_columns({"w": pa.int64()}),
    "merge": lambda t: t.merge(ROWS).when_matched_delete().execute(),
    "clean": lambda t: t.clean(),
    "a plan to clean": lambda t: t.clean(dry_run=True),
    "archive": lambda t: t.archive(),
    "a plan to archive": lambda t: t.archive(dry_run=True),
    "cluster": lambda t: t.cluster(),
    "a plan to cluster": lambda t: t.cluster(dry_run=True),
    "savepoint": lambda t: t.savepoint(),
    "delete_savepoint": lambda t: t.delete_savepoint("20261126001254292"),
    "restore": lambda t: t.restore("20261126001254292"),
    "a plan to restore": lambda t: t.restore("20261126001254292", dry_run=True),
    "rollback": lambda t: t.rollback(),
    "a plan to roll back": lambda t: t.rollback(dry_run=True),
    "repair": lambda t: t.fsck(repair=True),
    "index_status": lambda t: t.index_status(),
    "rebuild_index": lambda t: t.rebuild_index(),
    "drop_metadata_table": lambda t: Table.open(t.path, drop_metadata_table=True).upsert(ROWS),
    "replace": lambda t: Table.create(t.path, schema=SCHEMA, record_key="id", if_exists="replace"),
    "create or open": lambda t: Table.create(
        t.path, schema=SCHEMA, record_key="id", if_exists="open"
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("version", [6, 9])
def test_every_door_is_closed(tmp_path: Path, version: int, door: str) -> None:
    """The error names what works, and no file is changed or created, not even a lock."""
    table = Table.open(java_table(tmp_path, version))
    before = {**tree(tmp_path), "lock": [*tmp_path.rglob("lock")]}
    with pytest.raises(InvalidTable, match=r"merge-on-read table.*read"):
        DOORS[door](table)
    assert {**tree(tmp_path), "lock": [*tmp_path.rglob("lock")]} == before
