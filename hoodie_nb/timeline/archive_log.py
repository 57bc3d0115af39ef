"""Archive format of table version 6: log files with Avro blocks.

*On disk*: `.hoodie/archived/.commits_.archive.<n>_1-0-1` (the folder is an option of the table), in
Hudi's log format: blocks of Avro records, one `HoodieArchivedMetaEntry` for each file of an
instant. A block:

    "#HUDI#" <8: size> <4: version 1> <4: type 3, data> <header> <8: size> <content> <footer> <8>

The header maps 2 to the schema, the footer is empty, and the last number is the size of the whole
block. The content is <4: version 3> <4: records> and for each record <4: size> and its bytes. All
numbers are big-endian.

Blocks are added to the newest file until it has a megabyte. An instant that is in the newest files
already is not added again: a crash may leave it on the timeline.

*Source:* HoodieLogFormatWriter, HoodieAvroDataBlock, MetadataConversionUtils.
"""

import functools
import io
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fastavro

from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.storage import Storage, permitted, read_bytes
from hoodie_nb.timeline.instant import LAYOUT_1, Contents, Instant, State
from hoodie_nb.types import log_blocks
from hoodie_nb.types.avro_file import MAGIC as AVRO
from hoodie_nb.types.avro_file import decode, schema_text
from hoodie_nb.types.log_blocks import BlockType

_NAME = re.compile(r"\.commits_\.archive\.(\d+)(?:_\d+-\d+-\d+)?")
_LARGEST = 1 << 20
_ENTRY = "HoodieArchivedMetaEntry"
Record = dict[str, Any]
Identity = tuple[Any, ...]  # of a record: time, action and state
_FIELDS = {  # of an instant's record: by action, what its requested, inflight and completed file is
    "commit": ("", "hoodieCommitMetadata", "hoodieCommitMetadata"),
    "replacecommit": (
        "hoodieRequestedReplaceMetadata",
        "HoodieInflightReplaceMetadata",
        "hoodieReplaceCommitMetadata",
    ),
    "clean": ("hoodieCleanerPlan", "hoodieCleanerPlan", "hoodieCleanMetadata"),
    "rollback": ("", "", "hoodieRollbackMetadata"),
}
_STATES = tuple(State)


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> Any:  # noqa: ANN401 -- fastavro's schema
    return fastavro.parse_schema(json.loads(text))


class LogArchive:
    """The archive of a table of layout 1, for its writer, who holds the table's lock."""

    def __init__(self, storage: Storage, folder: str, batch: int) -> None:
        self._storage = storage
        self._folder = folder
        self._batch = batch

    def add(self, instants: Sequence[Instant], read: Callable[[Instant], Contents]) -> None:
        """Add instants, oldest first, durably; `read` returns their files."""
        records = [record for instant in instants for record in self._records(read(instant))]
        append(self._storage, self._folder, records, self._batch)

    def tidy(self) -> None:
        """Do nothing: a new file is begun when one is large."""

    def _records(self, files: Contents) -> Iterator[Record]:
        """Yield the records of an instant's files; a clean that is inflight has its plan, too."""
        plan = b""
        for file, content in files:
            if file.action == "clean" and file.state is State.REQUESTED:
                plan = content
            where = f"{self._storage.root}/{LAYOUT_1.path(file)}"
            yield record_of(file, plan if file.state is State.INFLIGHT and plan else content, where)


def record_of(instant: Instant, content: bytes, where: str) -> Record:
    """Return the record of one file of an instant; InvalidTable if the file cannot be read.

    What an unfinished attempt left in an inflight file is dropped if it cannot be read.
    """
    field = _FIELDS[instant.action][_STATES.index(instant.state)]
    record = {
        "commitTime": instant.requested_time,
        "actionType": instant.action,
        "actionState": instant.state.upper(),
        "stateTransitionTime": instant.completion_time,
        "version": None,
    }
    if not field or not content:
        return record
    try:
        record |= {field: _content(content)}
        fastavro.schemaless_writer(io.BytesIO(), _parsed(schema_text(_ENTRY)), record)
    except Exception as error:  # a damaged record may have any shape
        if instant.state is State.COMPLETED:
            raise InvalidTable(
                f"{where} cannot be archived ({error!r:.200}): restore it from a backup"
            ) from None
        del record[field]
    return record


def _content(content: bytes) -> Any:  # noqa: ANN401 -- a record of any schema
    if content.startswith(AVRO):
        return decode(content)
    raw = json.loads(content)
    extra = raw.get("extraMetadata") or {}
    return {
        "version": None,
        **raw,
        "extraMetadata": {k: v for k, v in extra.items() if v is not None},
    }


def append(storage: Storage, folder: str, records: Sequence[Record], batch: int) -> str:
    """Add records to the archive durably, in blocks of `batch`; return the path of the file."""
    storage.make_folder(folder)
    files = sorted(_files(storage, folder), reverse=True)
    number, path = files[0] if files else (0, "")
    content = b""
    known = set[Identity]()
    wanted = {*map(_identity, records)}
    for _, at in files:
        found, whole = _identities(storage, at)
        if at == path and whole and len(read := read_bytes(storage, at)) < _LARGEST:
            content = read
        known |= found
        if whole and wanted.isdisjoint(found):
            break  # what a crash has left is in the newest files
    new = [record for record in records if _identity(record) not in known]
    if not content:
        path = f"{folder}/.commits_.archive.{number + 1}_1-0-1"
    if new:
        blocks = (new[at : at + batch] for at in range(0, len(new), batch))
        storage.put(path, content + b"".join(map(_block, blocks)), new=not content)
    return path


def _identities(storage: Storage, path: str) -> tuple[set[Identity], bool]:
    """Return what a file has, and whether it is whole: another engine may have died in it."""
    found: set[Identity] = set()
    try:
        found.update(map(_identity, records_in(storage, path)))
    except ValueError:
        return found, False
    return found, True


def _files(storage: Storage, folder: str) -> Iterator[tuple[int, str]]:
    for name in storage.file_names(folder):
        number = log_number(name)
        if number is not None:
            yield number, f"{folder}/{name}"


def log_number(name: str) -> int | None:
    """Return the number of a log file, from 1; None if it is not the name of one."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def _identity(record: Mapping[str, Any]) -> Identity:
    return record["commitTime"], record["actionType"], record["actionState"]


def _block(records: Sequence[Record]) -> bytes:
    text = schema_text(_ENTRY)
    content = log_blocks.encode_records(records, _parsed(text))
    header = {log_blocks.Header.SCHEMA: text}
    return b"".join(log_blocks.block_parts(BlockType.AVRO_DATA, header, content))


def records_in(storage: Storage, path: str) -> Iterator[Record]:
    """Yield the records of a log file; ValueError if it is damaged."""
    with permitted(f"{storage.root}/{path}"):
        try:
            for block in log_blocks.read_blocks(path, storage.fetch(path)):
                if block.kind is BlockType.CORRUPT:
                    raise ValueError("a block is damaged")
                if block.kind is BlockType.AVRO_DATA:
                    parsed = _parsed(block.header[log_blocks.Header.SCHEMA])
                    yield from log_blocks.decode_records(block.content(), parsed)
        except (log_blocks.UnknownBlock, struct.error, LookupError, EOFError) as error:
            raise ValueError(f"a block is damaged: {error!r:.200}") from None
