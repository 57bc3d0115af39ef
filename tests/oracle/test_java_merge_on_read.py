"""Merge-on-read tables that Java writes: after each of its writes we read what Java reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hoodie_nb import Table
from hoodie_nb.types.schema import META_COLUMNS

from .client import BROKEN, OPERATION, TIDY, JavaError, Judge
from .readers import java, ours
from .tables import LAYOUTS, rows, words

pytestmark = pytest.mark.oracle
_INLINE = "hoodie.compact.inline"
_DUE = {f"{_INLINE}.max.delta.commits": "1"}
SCHEDULES = {"hoodie.compact.schedule.inline": "true", **_DUE}
COMPACTS = {_INLINE: "true", **_DUE}
PAYLOADS = {"event_time": "DefaultHoodieRecordPayload", "commit_time": "OverwriteWithLatest"}
SHAPES = [
    (6, "event_time", "SIMPLE"),
    (6, "commit_time", "BLOOM"),
    (6, "event_time", "INMEMORY"),
    (8, "event_time", "SIMPLE"),
    (9, "event_time", "BLOOM"),
    (9, "commit_time", "SIMPLE"),
    (9, "event_time", "INMEMORY"),
]


class Writer:
    """Java, writing one table in one shape; `check` compares its reads with ours."""

    def __init__(self, judge: Judge, path: Path, shape: tuple[int, str, str]) -> None:
        version, mode, index = shape
        write = "hoodie.datasource.write."
        payload = PAYLOADS[mode] + "AvroPayload" * (mode == "commit_time")
        self.judge, self.path, self.layout = judge, path, LAYOUTS["simple"]
        self.options = {
            **words(self.layout),
            f"{write}table.type": "MERGE_ON_READ",
            f"{write}payload.class": f"org.apache.hudi.common.model.{payload}",
            "hoodie.write.table.version": str(version),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.metadata.enable": "false",
            "hoodie.index.type": index,
            _INLINE: "false",
        }
        if version > 6:
            self.options["hoodie.record.merge.mode"] = f"{mode.upper()}_ORDERING"

    def write(self, numbers: range, version: int, operation: str = "upsert", **more: str) -> None:
        """Let Java write a version of some rows."""
        mode = "append" if self.path.exists() else "overwrite"
        options = {**self.options, OPERATION: operation, **more}
        self.judge.write(self.path, rows(numbers, self.layout, version), options, mode)

    def check(self) -> None:
        """Compare the snapshots of both readers, all meta columns but the file's name included.

        Java doubles keys that are only in logs, so rows are in the order of their versions, too.
        """
        table = Table.open(self.path)
        seen = [ours(table), java(self.judge, table)]
        for found in seen:
            for row in found:
                del row["_hoodie_file_name"]
            found.sort(key=lambda row: [row[name] for name in META_COLUMNS[:4]])
        assert seen[0] == seen[1]
        assert seen[0]


def writes(writer: Writer) -> Iterator[None]:
    """Let Java write in every way that leaves other files; yields after each."""
    steps = [
        (range(40), 2, "insert", {}),
        (range(20), 4, "upsert", {}),
        (range(10, 30), 3, "upsert", {}),
        (range(5), 5, "delete", {}),
        (range(3, 50, 4), 6, "upsert", SCHEDULES),
        (range(8, 20), 7, "upsert", {}),
        (range(12, 24), 8, "upsert", COMPACTS),
        (range(2, 30, 5), 9, "upsert", {}),
    ]
    for numbers, version, operation, more in steps:
        writer.write(numbers, version, operation, **more)
        yield


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"v{shape[0]}-{shape[1]}-{shape[2]}")
def test_we_read_what_java_reads(judge: Judge, tmp_path: Path, shape: tuple[int, str, str]) -> None:
    """Updates, late rows, deletes, a compaction that is pending, then done; undone writes."""
    writer = Writer(judge, tmp_path / "t", shape)
    for _ in writes(writer):
        writer.check()
    times = [*Table.open(writer.path).history()["requested_time"]]
    judge.rollback(writer.path, times[-1], writer.options)
    writer.check()
    with pytest.raises(JavaError):
        writer.write(range(30), 10, **BROKEN)
    writer.check()
    writer.write(range(0, 30, 3), 11)
    writer.check()


@pytest.mark.parametrize("version", [6, 9])
def test_a_table_that_java_cleans_and_archives(judge: Judge, tmp_path: Path, version: int) -> None:
    """Logs and base files of archived commits count, and those that were compacted do not."""
    writer = Writer(judge, tmp_path / "t", (version, "event_time", "SIMPLE"))
    writer.write(range(30), 2, "insert", **TIDY)
    for number in range(3, 15):
        more = COMPACTS if number % 4 == 0 else {}
        writer.write(range(number, 30, 3), number, **TIDY, **more)
        writer.check()
    assert Table.open(writer.path)._handle.timeline.archived()
