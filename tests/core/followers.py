"""A program that follows a table as docs/using.md says, what it must hold; rollbacks by Java."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from typing import Any

import pyarrow as pa
from core.replay import settled

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.timeline.timeline import State
from hoodie_nb.types.avro_file import encode, load_schema
from hoodie_nb.types.schema import FILE_NAME, PARTITION_PATH, RECORD_KEY

Row = dict[str, Any]


class Follower:
    """A copy of a table in a dict, and the commit up to which it has read (at first "earliest")."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.position = "earliest"
        self.refused = 0

    def follow(self, table: Table, until: object = None) -> None:
        """Apply the changes up to the newest commit; InvalidConfig if the position is refused."""
        times = table.history()["requested_time"]
        newest = until or (times.iloc[-1] if len(times) else None)
        self.apply(table.changes(since=self.position, until=newest))
        self.position = newest or "earliest"

    def apply(self, changed: pa.Table) -> None:
        """Apply changes, deletes first."""
        found = changed.to_pylist()
        for row in sorted(found, key=lambda row: row["_change"] != "delete"):
            key = row[PARTITION_PATH], row[RECORD_KEY]
            if row.pop("_change") == "delete":
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    def follow_or_restart(self, table: Table, *, snapshot: bool = False) -> None:
        """Follow; if that is refused, do one of the two things that the error says."""
        try:
            self.follow(table)
        except InvalidConfig as error:
            assert "copy" in str(error) or "archived" in str(error) or "cleaner" in str(error)
            self.refused += 1
            self.rows, self.position = {}, "earliest"
            if snapshot:
                self.position = table.history()["requested_time"].iloc[-1]
                found = table.to_arrow(as_of=self.position).to_pylist()
                self.rows = {(row[PARTITION_PATH], row[RECORD_KEY]): row for row in found}
            self.follow(table)

    def check(self, table: Table) -> None:
        """The copy has the rows of the table, but for the names of their files."""
        rows = [repr({**settled(row), FILE_NAME: ""}) for row in self.rows.values()]
        found = [repr({**settled(row), FILE_NAME: ""}) for row in table.to_arrow().to_pylist()]
        assert sorted(rows) == sorted(found)


def datetime_of(time17: str) -> dt.datetime:
    """Return the point in time of 17 digits."""
    return dt.datetime.strptime(time17 + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=dt.UTC)


def rolled_back_elsewhere(table: Table, time17: str, *, remove_plan: bool = False) -> str:
    """Roll back a completed commit as Java does, whose plan names no file groups; return when.

    `remove_plan`: as Hudi before 0.10, which has no plan.
    """
    handle = table._handle
    timeline = handle.timeline
    (commit,) = (i for i in timeline.completed_commits() if i.requested_time == time17)
    files = [*handle.commit_metadata(commit).files]
    plan = {
        "instantToRollback": {"commitTime": time17, "action": commit.action},
        "RollbackRequests": [
            {
                "partitionPath": path.rpartition("/")[0],
                "fileId": "",
                "latestBaseInstant": "",
                "filesToBeDeleted": [f"{table.path}/{path}"],
                "logBlocksToBeDeleted": {},
            }
            for path in files
        ],
        "version": 1,
    }
    result = {
        "startRollbackTime": "",
        "timeTakenInMillis": 1,
        "totalFilesDeleted": len(files),
        "commitsRollback": [time17],
        "partitionMetadata": {},
        "version": 1,
        "instantsRollback": [plan["instantToRollback"]],
    }
    rollback = timeline.request("rollback", encode(load_schema("HoodieRollbackPlan"), plan))
    timeline.begin(rollback)
    timeline.withdraw(commit)
    for path in files:
        handle.storage.remove(path)
    timeline.remove(commit)
    timeline.complete(rollback, encode(load_schema("HoodieRollbackMetadata"), result))
    if remove_plan:
        timeline.remove(rollback)
    assert rollback.state is State.REQUESTED
    return rollback.requested_time


def lived(table: Table, draw: random.Random, number: int) -> None:
    """Do one of the things that happen to a table of the columns id, p and ts."""
    kinds = ["upsert"] * 5 + ["rollback", "java", "restore", "overwrite", "delete"]
    kind = draw.choice(kinds * 4 + ["compact", "clean", "archive"] * 4)
    keys, known = draw.sample(range(12), 3), list(table.history()["requested_time"])
    rows = [{"id": f"k{key}", "p": "ab"[key % 2], "ts": number} for key in keys]
    if kind == "upsert" or len(known) < 2:
        table.upsert(rows)
    elif kind == "delete":
        table.delete([{"id": row["id"], "p": row["p"]} for row in rows])
    elif kind == "overwrite":
        table.insert_overwrite(rows)
    else:
        with contextlib.suppress(InvalidConfig):  # a refusal changes nothing
            undone_or_tidied(table, kind, draw.choice(known[:-1]))


def undone_or_tidied(table: Table, kind: str, to: str) -> None:
    """Undo commits, by us or as Java does, or call a service."""
    if kind == "rollback":
        table.rollback()
    elif kind == "java":
        plan = table.rollback(dry_run=True)  # refuses what would lose rows
        rolled_back_elsewhere(table, plan.commit.requested_time)
    elif kind == "restore":
        table.restore(to)
    elif kind == "compact":
        table.cluster()
    elif kind == "clean":
        table.clean(commits=2)
    else:
        table.archive()
