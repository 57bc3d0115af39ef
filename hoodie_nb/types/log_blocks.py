"""Blocks of Hudi's log format: headers, lengths, Avro records; damaged and torn ones.

Blocks are read one by one, their content only when it is asked for.

*On disk*, a block, with all integers big-endian:

| field | bytes |
| --- | --- |
| magic `#HUDI#` | 6 |
| length of all that follows | 8 |
| version of the log format, 1 | 4 |
| type of the block (see `BlockType`) | 4 |
| header: a number of pairs, each a key (see `Header`), a length and UTF-8 text | 4 + … |
| length of the content, and the content | 8 + … |
| footer: as the header, always empty | 4 |
| length of the block up to here, magic included | 8 |

The content of a block of Avro records is 3, their number, and each one's length and datum; these
numbers have 4 bytes, and the schema is in the header.

*Fault tolerance*: where no block begins, or its lengths do not agree, a `CORRUPT` block reaches up
to the next magic: a writer failed there, and a later one appended.

**Caveats**: Java also drops a block if something else than a block follows it. Here it counts: its
lengths agree.

*Source:* HoodieLogFileReader, HoodieLogFormatWriter, HoodieLogBlock, HoodieAvroDataBlock.
"""

import io
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa

from hoodie_nb.errors import InvalidTable

CONTENT_VERSION = 3
_MAGIC = b"#HUDI#"
_FORMAT_VERSION = 1
_LENGTH = struct.Struct(">q")
_WORD = struct.Struct(">i")
_PAIR = struct.Struct(">ii")
_SCAN_BYTES = 1 << 20


class UnknownBlock(InvalidTable):
    """A block is of a kind that this library does not read."""


class BlockType(IntEnum):
    """The types of blocks; `CORRUPT` is never on disk."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO_DATA = 3
    HFILE_DATA = 4
    PARQUET_DATA = 5
    CDC_DATA = 6


class Header(IntEnum):
    """The keys of a block's header."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class LogBlock:
    """A block of a log file (`path` in the table, `local` on disk), and where its content is."""

    path: str
    local: str
    kind: BlockType
    begin: int
    length: int
    header: Mapping[int, str] = field(default_factory=dict)

    @property
    def instant_time(self) -> str:
        """Return the instant that wrote the block."""
        return self.header.get(Header.INSTANT_TIME, "")

    def content(self) -> bytes:
        """Return the content of the block, read from disk."""
        with open(self.local, "rb") as file:
            file.seek(self.begin)
            return file.read(self.length)


def read_blocks(path: str, local: str) -> Iterator[LogBlock]:
    """Yield the blocks of the log file `path`, of which `local` is the local copy, in file order.

    Raises UnknownBlock for a block of another version of the format.
    """
    with open(local, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            block, end = _block(file, at, size, path, local)
            if block is None:
                end = _next_magic(file, at + 1, size)
                block = LogBlock(path, local, BlockType.CORRUPT, at, end - at)
            yield block
            at = end


def _block(
    file: BinaryIO, at: int, size: int, path: str, local: str
) -> tuple[LogBlock | None, int]:
    """Return the block at a position and its end; None if there is none, or it is damaged."""
    file.seek(at)
    if file.read(len(_MAGIC)) != _MAGIC:
        return None, at
    begin = at + len(_MAGIC) + _LENGTH.size
    length = _length(file, begin - _LENGTH.size)
    end = begin + length
    if length < _LENGTH.size or end > size or _length(file, end - 8) != length + len(_MAGIC):
        return None, at
    file.seek(begin)
    version = _WORD.unpack(file.read(_WORD.size))[0]
    if version != _FORMAT_VERSION:
        raise UnknownBlock(
            f"log file {path} has a block of version {version} of the log format, which this "
            "library does not read: compact the table with the engine that wrote it"
        )
    try:
        kind = BlockType(_WORD.unpack(file.read(_WORD.size))[0])
        header = _header(file)
        content = _LENGTH.unpack(file.read(_LENGTH.size))[0]
    except (ValueError, struct.error):
        return None, at
    if not 0 <= content <= end - file.tell():
        return None, at
    return LogBlock(path, local, kind, file.tell(), content, header), end


def _length(file: BinaryIO, at: int) -> int:
    """Return the length at a position; -1 if the file ends before."""
    file.seek(at)
    found = file.read(_LENGTH.size)
    return _LENGTH.unpack(found)[0] if len(found) == _LENGTH.size else -1


def _header(file: BinaryIO) -> dict[int, str]:
    pairs = {}
    for _ in range(_WORD.unpack(file.read(_WORD.size))[0]):
        key, length = _PAIR.unpack(file.read(_PAIR.size))
        if length < 0:
            raise ValueError("a text of negative length")
        pairs[key] = file.read(length).decode()
    return pairs


def _next_magic(file: BinaryIO, at: int, size: int) -> int:
    """Return the position of the next magic; the end of the file if there is none."""
    while at < size:
        file.seek(at)
        part = file.read(_SCAN_BYTES)
        found = part.find(_MAGIC)
        if found >= 0:
            return at + found
        at += max(1, len(part) - len(_MAGIC) + 1)
    return size


def block_parts(
    kind: BlockType, header: Mapping[Header, str], content: bytes | pa.Buffer
) -> tuple[bytes | pa.Buffer, ...]:
    """Return the bytes of a new block, in parts: `content` is not copied."""
    head = _PAIR.pack(_FORMAT_VERSION, kind) + _map(header) + _LENGTH.pack(len(content))
    footer = _map({})
    after = len(head) + len(content) + len(footer) + _LENGTH.size
    end = _LENGTH.pack(after + len(_MAGIC))
    return _MAGIC, _LENGTH.pack(after), head, content, footer, end


def _map(pairs: Mapping[Header, str]) -> bytes:
    parts = [_WORD.pack(len(pairs))]
    for key, text in pairs.items():
        content = text.encode()
        parts += [_PAIR.pack(key, len(content)), content]
    return b"".join(parts)


# --- Avro records in a block ----------------------------------------------------------------------


def encode_records(records: Sequence[Mapping[str, Any]], parsed: Any) -> bytes:  # noqa: ANN401
    """Return the content of a block of Avro records; `decode_records` is the inverse."""
    parts = [_PAIR.pack(CONTENT_VERSION, len(records))]
    for record in records:
        datum = io.BytesIO()
        fastavro.schemaless_writer(datum, parsed, record)
        parts += [_WORD.pack(datum.tell()), datum.getvalue()]
    return b"".join(parts)


def decode_records(content: bytes, parsed: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Yield the records of a block; `parsed` is fastavro's schema, that of the block's header."""
    version, count = _PAIR.unpack_from(content)
    check_version(version)
    stream = io.BytesIO(content)
    at = _PAIR.size
    for _ in range(count):
        length = _WORD.unpack_from(content, at)[0]
        stream.seek(at + _WORD.size)
        record: Any = fastavro.schemaless_reader(stream, parsed, None)
        yield record
        at += _WORD.size + length
        if stream.tell() != at:
            raise ValueError(f"a row of {length} bytes ends at {stream.tell()} instead of {at}")


def check_version(version: int) -> None:
    """Raise ValueError for content of another version."""
    if version != CONTENT_VERSION:
        raise ValueError(f"version {version} of its content is not {CONTENT_VERSION}")
