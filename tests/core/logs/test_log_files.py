"""Log files: names, damaged blocks, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from log_writer import (
    SCHEMA,
    LoggedSlice,
    avro_block,
    block,
    delete_block,
    parquet_block,
    times,
)
from tables import hudi_table

from hoodie_nb.errors import InvalidTable
from hoodie_nb.logs.folding import counted_blocks
from hoodie_nb.logs.log_name import LogFileName
from hoodie_nb.types.log_blocks import BlockType, Header, read_blocks

BASE = [{"id": "a", "ts": 4, "v": 0}, {"id": "b", "ts": 4, "v": 0}]
JUNK = b"no block begins here"


def values(table: LoggedSlice) -> dict[str, int]:
    """Return the value of each key."""
    return {row["id"]: row["v"] for row in table.read()}


def theirs(table: LoggedSlice) -> dict[str, int]:
    """Return the value of each key in hudi-rs."""
    found = hudi_table(table.root)
    assert found is not None
    return {row["id"]: row["v"] for row in found.to_pylist()}


def updates(table: LoggedSlice, count: int = 2, by: str = "") -> list[bytes]:
    """Return blocks, each of its instant or all `by` one: `a`, `b`, `a`... become 1, 2, 3..."""
    found = []
    for number, time17 in enumerate([by] * count if by else times(count)):
        row = table.row(time17, {"id": "ab"[number % 2], "ts": 5, "v": number + 1})
        found.append(parquet_block(time17, [row], SCHEMA))
    return found


@pytest.mark.parametrize(
    "name",
    [
        ".f1-0_20240101000000000.log.1_0-0-0",
        ".f1-0_20240101000000.log.12_1-20-300.cdc",
        ".f1-0_20240101000000.log.3",
    ],
)
def test_a_name_is_printed_as_it_was_parsed(name: str) -> None:
    """Parsing and printing are inverses."""
    assert str(LogFileName.parse(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "f1_20240101000000000.log.1_0-0-0",
        ".f1_20240101000000000.log.1_0-0",
        ".f1_2024.log.1_0-0-0",
        ".f_1_20240101000000000.log.1_0-0-0",
        ".f1_20240101000000000.log.1_0-0-0.tmp",
        "f1_0-0-0_20240101000000000.parquet",
    ],
)
def test_other_names_are_no_log_files(name: str) -> None:
    """Base files, temporary files and names that only look alike are not parsed."""
    assert LogFileName.parse(name) is None


def test_versions_are_sorted_as_numbers() -> None:
    """Logs are in order of instant, version as a number, token, and suffix."""
    names = [
        ".f_20240101000000.log.2_0-0-0",
        ".f_20240101000000.log.10_0-0-0",
        ".f_20240101000000.log.10_0-0-0.cdc",
        ".f_20240101000000.log.10_1-0-0",
        ".f_20240102000000.log.1_0-0-0",
    ]
    parsed = [LogFileName.parse(name) for name in reversed(names)]
    assert [str(name) for name in sorted(p for p in parsed if p is not None)] == names


def test_a_log_shorter_than_its_commit_says_is_an_error(tmp_path: Path) -> None:
    """A torn log names its file; hudi-rs silently drops the row."""
    table = LoggedSlice(tmp_path, BASE)
    (first, _) = updates(table)
    path = table.log(times(1)[0], first[:-5], len(first))
    table.commit(times(1)[0])
    with pytest.raises(InvalidTable, match=f"{path.name}.*its commit wrote {len(first)}"):
        table.read()
    assert theirs(table) == {"a": 0, "b": 0}


def test_a_lost_log_is_an_error(tmp_path: Path) -> None:
    """A log that is gone names its file."""
    table = LoggedSlice(tmp_path, BASE)
    path = table.log(times(1)[0], updates(table)[0])
    path.unlink()
    with pytest.raises(InvalidTable, match=f"{path.name} is gone"):
        table.read()


@pytest.mark.parametrize("tail", [JUNK, b"#HUD", b"#HUDI#", b"#HUDI#" + b"\0" * 30])
def test_bytes_after_those_committed_are_ignored(tmp_path: Path, tail: bytes) -> None:
    """What a later, failed append left does not hide the committed blocks."""
    table = LoggedSlice(tmp_path, BASE)
    first = updates(table)[0]
    table.log(times(1)[0], first + tail, len(first))
    assert values(table) == {"a": 1, "b": 0}


def damaged(content: bytes, kind: str) -> bytes:
    """Return a block whose end is lost, or whose lengths do not agree."""
    if kind == "torn":
        return content[:-9]
    if kind == "first length":
        return content[:6] + struct.pack(">q", len(content) + 1) + content[14:]
    return content[:-8] + struct.pack(">q", 1)


@pytest.mark.parametrize("kind", ["torn", "first length", "last length"])
def test_a_damaged_block_is_skipped_in_version_6_only(tmp_path: Path, kind: str) -> None:
    """There a writer may have appended after a crash; later versions never append."""
    for version in (6, 9):
        root = tmp_path / str(version)
        table = LoggedSlice(root, BASE, version)
        first, second, third = updates(table, 3, times(3)[2] if version == 9 else "")
        content = first + damaged(second, kind) + third
        path = table.log(times(3)[2], content)
        for time17 in times(3):
            table.commit(time17)
        if version == 6:
            assert values(table) == {"a": 3, "b": 0}
        else:
            with pytest.raises(InvalidTable, match=f"{path.name} is damaged at byte {len(first)}"):
                table.read()


def test_damage_is_found_as_one_corrupt_block(tmp_path: Path) -> None:
    """A corrupt block reaches from the damage to the next magic."""
    table = LoggedSlice(tmp_path / "t", BASE)
    first, second, third = updates(table, 3)
    path = tmp_path / "log"
    path.write_bytes(first + JUNK + second + third[:40])
    found = [(b.kind, b.begin, b.length) for b in read_blocks("log", str(path))]
    assert [kind for kind, _, _ in found] == [
        BlockType.PARQUET_DATA,
        BlockType.CORRUPT,
        BlockType.PARQUET_DATA,
        BlockType.CORRUPT,
    ]
    assert found[1][1:] == (len(first), len(JUNK))
    assert found[3][1:] == (len(first + JUNK + second), 40)


@pytest.mark.parametrize("at", [20, 60, 200, 700])
def test_damaged_content_is_an_error(tmp_path: Path, at: int) -> None:
    """A block that cannot be decoded names the file, whatever byte is damaged."""
    table = LoggedSlice(tmp_path, BASE)
    (time17,) = times(1)
    row = table.row(time17, {"id": "a", "ts": 5, "v": 1})
    content = bytearray(avro_block(time17, [row], SCHEMA))
    content[-at % len(content)] ^= 0xFF
    path = table.log(time17, bytes(content))
    try:
        found = values(table)
    except InvalidTable as error:
        assert path.name in str(error)
    else:
        assert {*found} >= {"b"}  # a damaged value is not detected: a log has no checksum


HEADER = {Header.INSTANT_TIME: times(1)[0], Header.SCHEMA: "{}"}
_OTHER = block(BlockType.AVRO_DATA, HEADER)
REFUSED = {
    "HFile": block(BlockType.HFILE_DATA, HEADER, b"..."),
    "CDC": block(BlockType.CDC_DATA, HEADER, b"..."),
    "partial": block(BlockType.PARQUET_DATA, {**HEADER, Header.IS_PARTIAL: "true"}, b"..."),
    "deletes in the old format 2": delete_block(times(1)[0], [("a", 5)], "LongWrapper", 2),
    "a command": block(BlockType.COMMAND, {**HEADER, Header.COMMAND_BLOCK_TYPE: "7"}),
    "damaged": block(BlockType.PARQUET_DATA, HEADER, b"PAR1 and nothing else"),
    "version 2 of the log format": _OTHER[:14] + struct.pack(">i", 2) + _OTHER[18:],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_read_is_refused(tmp_path: Path, reason: str) -> None:
    """The error names the file and says what to do."""
    table = LoggedSlice(tmp_path, BASE)
    path = table.log(times(1)[0], REFUSED[reason])
    with pytest.raises(InvalidTable, match=f"{path.name}.*{reason}.*: (compact|restore)"):
        table.read()


def test_changes_for_incremental_readers_are_no_rows(tmp_path: Path) -> None:
    """A CDC log beside the others is skipped."""
    table = LoggedSlice(tmp_path, BASE)
    table.log(times(1)[0], updates(table)[0])
    (log,) = table.logs
    name = LogFileName(log.name.file_id, log.name.instant_time, 1, "0-0-0", ".cdc")
    content = REFUSED["CDC"]
    (tmp_path / str(name)).write_bytes(content)
    table.logs.append(type(log)(str(name), name, len(content)))
    assert values(table) == {"a": 1, "b": 0}


def test_a_log_compaction_takes_the_place_of_its_newest_instant(tmp_path: Path) -> None:
    """What it merged is left out, also if it was merged again."""

    def content(time17: str, merged: str = "") -> bytes:
        header = {Header.INSTANT_TIME: time17, Header.SCHEMA: "{}"}
        if merged:
            header[Header.COMPACTED_BLOCK_TIMES] = merged
        return block(BlockType.AVRO_DATA, header)

    parts = [content("1"), content("2"), content("3"), content("4", "1,2"), content("5")]
    parts += [content("6", "4,3"), content("7")]
    path = tmp_path / "log"
    path.write_bytes(b"".join(parts))
    found = counted_blocks(read_blocks("log", str(path)))
    assert [b.instant_time for b in found] == ["6", "5", "7"]


def test_blocks_of_an_instant_are_together(tmp_path: Path) -> None:
    """Instants are in the order in which they were first met; others do not count."""
    parts = [block(BlockType.AVRO_DATA, {Header.INSTANT_TIME: t}) for t in "21323"]
    path = tmp_path / "log"
    path.write_bytes(b"".join(parts))
    found = counted_blocks(read_blocks("log", str(path)), {"2", "3"}.__contains__)
    assert [b.instant_time for b in found] == ["2", "2", "3", "3"]
