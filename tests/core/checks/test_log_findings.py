"""fsck of merge-on-read tables: their log files, merged rows, and all that other tables have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from java_logs import STATES, VERSIONS, commits, java_rows, java_table, same_rows
from log_writer import SCHEMA, LoggedSlice, block, delete_block, parquet_block, times
from tables import tree

from hoodie_nb import Table
from hoodie_nb.checks.findings import Finding
from hoodie_nb.errors import InvalidTable
from hoodie_nb.logs.log_name import LogFileName
from hoodie_nb.types.log_blocks import BlockType, Header
from hoodie_nb.view.read_handle import open_to_read

BASE = [{"id": key, "ts": 4, "v": number} for number, key in enumerate("abcde")]
EXPECTED = {
    "table": [],
    "commit_time": [],
    "pending": ["foreign-pending-instant"],
    "log_only": ["foreign-pending-instant"],
    "failed": ["foreign-pending-instant", "leftover", "unfinished-file"],
}


def codes(root: Path) -> list[str]:
    """Return the codes of the findings."""
    return sorted(finding.code for finding in Table.open(root).fsck())


@pytest.mark.parametrize("version, state", [*((v, "table") for v in VERSIONS), *STATES])
def test_a_table_of_java_is_clean(tmp_path: Path, version: int, state: str) -> None:
    """But for what it has left pending; nothing is changed."""
    root = java_table(tmp_path, version, state)
    before = tree(root)
    assert codes(root) == EXPECTED[state]
    assert tree(root) == before


@dataclass(frozen=True)
class Damage:
    """What is done to the bytes of a log (None: it is deleted), and what is found."""

    code: str
    words: str
    change: Callable[[bytes], bytes | None]
    versions: tuple[int, ...] = VERSIONS


def with_block(content: bytes, kind: BlockType, **more: str) -> bytes:
    """Return a log with one more block of the instant of its first one."""
    header = {Header.INSTANT_TIME: instant(content), **{Header[k]: v for k, v in more.items()}}
    return content + block(kind, header, b"rows")


def instant(content: bytes) -> str:
    """Return the first instant that a log names."""
    (found, *_) = re.findall(rb"\x11(20\d{15})", content)
    return found.decode()


DAMAGES = [
    Damage("lost-log", "which the completed commit", lambda _: None),
    Damage("damaged-log", "but its commit wrote", lambda content: content[:-20]),
    Damage("damaged-log", "damaged at byte 0", lambda c: bytes(6) + c[6:], (8, 9)),
    Damage("torn-log", "that are no block", lambda content: content + bytes(9), (6,)),
    Damage(
        "unreadable-log", "HFile block", lambda content: with_block(content, BlockType.HFILE_DATA)
    ),
    Damage(
        "unreadable-log",
        "partial updates",
        lambda content: with_block(content, BlockType.AVRO_DATA, IS_PARTIAL="true"),
    ),
    Damage(
        "unreadable-log",
        "old format 1",
        lambda content: (
            content + delete_block(instant(content), [("a", 1)], "LongWrapper", version=1)
        ),
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: f"{damage.code}: {damage.words}")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_finding_goes_when_the_log_is_back(
    tmp_path: Path, version: int, damage: Damage
) -> None:
    """Each log is found by itself, with its name; put back, the table is clean and the rows Java's.

    What makes a snapshot fail is found, and what is found as damage makes it fail.
    """
    if version not in damage.versions:
        return
    root = java_table(tmp_path, version)
    table = open_to_read(str(root))
    named = {p for i in table.timeline.completed_commits() for p in table.timeline.commit(i).files}
    logs = {log.path for piece in table.file_groups() for log in piece.logs}
    paths = sorted(logs & named)  # version 6 has others, of a commit that was rolled back
    contents = {path: (root / path).read_bytes() for path in paths}
    assert len(contents) > 1
    for path, content in contents.items():
        (root / path).unlink()
        changed = damage.change(content)
        if changed is not None:
            (root / path).write_bytes(changed)
    found = Table.open(root).fsck()
    assert [f.code for f in found] == [damage.code] * len(paths)
    assert all(damage.words in f.what and "Table.open(" not in f.fix for f in found)
    assert [path for path, f in zip(paths, found, strict=True) if path not in f.what] == []
    if damage.code in ("lost-log", "damaged-log"):
        with pytest.raises(InvalidTable):
            Table.open(root).to_arrow()
    for path, content in contents.items():
        (root / path).write_bytes(content)
    assert codes(root) == []
    wanted = java_rows(version, f"expected/{commits(version)[-1]}")
    assert same_rows(Table.open(root).to_arrow(), wanted)


def but_strays(root: Path) -> list[Finding]:
    """Return the findings; the commits of a `LoggedSlice` name none of its logs."""
    return [found for found in Table.open(root).fsck() if found.code != "unnamed-file"]


def other_group(table: LoggedSlice, time17: str, rows: list[dict[str, object]]) -> None:
    """Add a file group without a base file."""
    name = LogFileName("other", time17, 1, "0-0-0")
    content = parquet_block(time17, [table.row(time17, row) for row in rows], SCHEMA)
    (table.root / str(name)).write_bytes(content)
    table.commit(time17)


def test_duplicate_keys_are_those_of_merged_rows(tmp_path: Path) -> None:
    """A key in two groups is double; deleted by a log of one of them it is not."""
    table = LoggedSlice(tmp_path, BASE)
    first, second = times(2)
    other_group(table, first, [{"id": "b", "ts": 9, "v": 1}, {"id": "x", "ts": 9, "v": 1}])
    (finding,) = but_strays(tmp_path)
    assert finding.code == "duplicate-keys" and "1 duplicate" in finding.what
    assert len(Table.open(tmp_path).to_arrow()) == 7
    table.log(second, delete_block(second, [("b", None)], "LongWrapper"))
    table.commit(second)
    assert but_strays(tmp_path) == []


def test_a_repair_is_left_to_the_tables_engine(tmp_path: Path) -> None:
    """No finding advises a call that is refused; restored, the table is clean."""
    root = java_table(tmp_path, 9)
    piece = next(p for p in open_to_read(str(root)).file_groups() if p.logs and p.file_name)
    base = root / piece.partition_path / piece.file_name
    mark = base.parent / ".hoodie_partition_metadata"
    kept = base.read_bytes(), mark.read_bytes()
    rows = pq.read_table(base)
    metadata = {**rows.schema.metadata, b"hoodie_max_record_key": b"b"}
    pq.write_table(rows.replace_schema_metadata(metadata), base)
    mark.unlink()
    found = {finding.code: finding.fix for finding in Table.open(root).fsck()}
    assert {"wrong-key-index", "lost-partition-metadata"} <= found.keys()
    assert all("Table.open(" not in fix for fix in found.values())
    assert "let the engine that created the table repair it" in found["wrong-key-index"]
    with pytest.raises(InvalidTable, match="only be read"):
        Table.open(root).fsck(repair=True)
    base.write_bytes(kept[0])
    assert codes(root) == ["lost-partition-metadata"]
    mark.write_bytes(kept[1])
    assert codes(root) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_base_file_below_logs_may_be_lost_or_damaged(tmp_path: Path, version: int) -> None:
    """Its loss is found although the logs make a slice without it, and its damage with its name."""
    root = java_table(tmp_path, version, "commit_time")
    piece = next(p for p in open_to_read(str(root)).file_groups() if p.logs and p.file_name)
    path = root / piece.partition_path / piece.file_name
    content = path.read_bytes()
    path.unlink()
    assert "lost-base-file" in codes(root)
    middle = len(content) // 4
    path.write_bytes(content[:middle] + bytes(40) + content[middle + 40 :])
    (finding,) = Table.open(root).fsck()
    assert finding.code == "damaged-base-file" and piece.file_name in finding.what
    path.write_bytes(content)
    assert codes(root) == []


def test_a_log_row_of_another_partition_is_found(tmp_path: Path) -> None:
    """Readers show it in the folder where it is."""
    table = LoggedSlice(tmp_path, BASE)
    (time17,) = times(1)
    row = table.row(time17, {"id": "x", "ts": 9, "v": 1}) | {"_hoodie_partition_path": "p"}
    table.log(time17, parquet_block(time17, [row], SCHEMA))
    table.commit(time17)
    (finding,) = but_strays(tmp_path)
    assert finding.code == "wrong-partition" and "'p'" in finding.what


def test_what_a_dead_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    """A table of this library is clean; a pending instant and leftovers are its own to settle."""
    table = Table.create(
        tmp_path / "t",
        schema=SCHEMA,
        record_key="id",
        ordering="ts",
        table_type="merge_on_read",
        options={"hoodie_nb.append.above.bytes": 0},
    )
    table.upsert(BASE)
    table.upsert([{"id": "a", "ts": 9, "v": 1}])
    assert [*(tmp_path / "t").glob(".*.log.*")]
    assert codes(tmp_path / "t") == []
    late = "20300101000000000"
    timeline = tmp_path / "t" / ".hoodie" / "timeline"
    (timeline / f"{late}.deltacommit.requested").touch()
    (tmp_path / "t" / ".hoodie" / ".temp" / late).mkdir(parents=True)
    (tmp_path / "t" / ".hoodie_partition_metadata").unlink()
    found = {finding.code: finding.fix for finding in Table.open(tmp_path / "t").fsck()}
    assert found.keys() == {"pending-instant", "leftover", "lost-partition-metadata"}
    assert all("fsck(repair=True)" in fix for fix in found.values())
    Table.open(tmp_path / "t").upsert([{"id": "b", "ts": 9, "v": 2}])
    assert codes(tmp_path / "t") == []
