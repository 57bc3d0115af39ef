"""The logs of a slice as one row or tombstone per key; a missing or damaged log is refused.

*Work flow*: first the headers of all blocks are read, in the order of the files. A rollback block
removes the blocks of its instant that came before it. In version 6, a block counts only if its
instant does; later versions hide whole files. Blocks are put together by instant, in the order in
which the instants were first met; what a log compaction has merged is replaced by its result. Then
the rows are read, block by block, and folded; see `newest`.

*Semantics*, for two entries of a key, of which the second is newer:

| | commit time | event time |
| --- | --- | --- |
| row, then row | the newer | the newer, unless its ordering value is smaller |
| row, then delete | the delete | the delete, unless its ordering value is smaller |
| delete, then row | the row | the row, unless its ordering value is smaller |
| any, then delete without ordering value | the delete | the delete |
| delete without ordering value, then row | the row | the row |
| delete without ordering value, then delete of a delete block | the newer | the first |

The last line is Java's: what such a delete has removed is not restored by a late delete. Tombstones
are kept, so a row that is older than one is dropped; but only until the next compaction.

*Fault tolerance*: versions 8 and 9 never append to a log, so damage inside the bytes that its
commit names is an error. In version 6 another writer may have appended after a crash.

**Caveats**: the logs of one slice are held in memory. Null ordering values are lower than any
other, but equal to 0 if they have 32 bits, as in Java, which fails on the others.

*Source:* BaseHoodieLogRecordReader.scanInternal, BufferedRecordMergerFactory.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import InvalidTable
from hoodie_nb.logs.log_name import CDC, LogFile
from hoodie_nb.logs.records import log_rows, with_op
from hoodie_nb.rows.columns import DELETE_ALWAYS, OP
from hoodie_nb.rows.ordering import Mask, ranked
from hoodie_nb.storage.checksums import crc_of
from hoodie_nb.storage.storage import Storage
from hoodie_nb.types.log_blocks import BlockType, Header, LogBlock, UnknownBlock, read_blocks
from hoodie_nb.types.schema import RECORD_KEY

Indices = npt.NDArray[np.int64]
_ROLLBACK = "0"
BRING_BACK = (
    "restore it from a backup, or copy the table again with its hidden files (`cp *` leaves them "
    "out); without one, undo that commit and later ones (Table.restore, or the table's own engine)"
)


@dataclass(frozen=True, slots=True)
class LogMerge:
    """What a table says about the merging of its logs.

    `ordering` is the ordering column in the table's current type; None: by commit time. `counts`
    says in version 6 whether the blocks of an instant count (None: all do).
    """

    ordering: pa.Field | None = None
    version: int = 9
    counts: Callable[[str], bool] | None = None


def folded(
    storage: Storage, logs: Sequence[LogFile], schema: pa.Schema, merge: LogMerge
) -> tuple[pa.Table, Indices]:
    """Return all rows and tombstones, and the position of the newest one of each key.

    The rows have the columns of `schema`, among them the record key and the ordering column, and
    `OP`. Raises InvalidTable naming the file if a log is missing, damaged, shorter than its commit
    says, or of a kind that is not read.
    """
    pieces = [with_op(schema).empty_table()]
    of_deletes = [np.zeros(0, bool)]
    for block in counted_blocks(whole_blocks(storage, logs, merge), merge.counts):
        pieces.append(log_rows(block, schema, merge.ordering))
        is_delete = block.kind is BlockType.DELETE
        of_deletes.append(np.full(pieces[-1].num_rows, is_delete))
    rows = pa.concat_tables(pieces)
    return rows, newest(rows, np.concatenate(of_deletes), merge.ordering)


def missing(log: LogFile) -> str:
    """Return the text that a log of a completed commit is missing."""
    return f"log file {log.path} is missing, which the completed commit {log.missing_of} names"


def whole_blocks(storage: Storage, logs: Sequence[LogFile], merge: LogMerge) -> Iterator[LogBlock]:
    """Yield the blocks of a slice's logs that are whole, in order; without those of changes."""
    for log in sorted(logs, key=lambda log: log.name):
        if log.name.suffix == CDC:
            continue
        if log.missing_of:
            raise InvalidTable(f"{missing(log)}: {BRING_BACK}")
        local = storage.fetch(log.path, log.size_bytes)
        size = _size(local, log)
        if log.crc is not None and crc_of(local) != log.crc:
            raise InvalidTable(
                f"log file {log.path} is damaged: its checksum is not that in its commit "
                f"{log.name.instant_time}. Restore it from a backup"
            )
        for block in read_blocks(log.path, local):
            if block.kind is not BlockType.CORRUPT:
                if merge.version >= 8 and block.instant_time != log.name.instant_time:
                    raise InvalidTable(
                        f"log file {log.path} has the content of another log, of instant "
                        f"{block.instant_time}. Restore it from a backup; if it is only a copy, "
                        "delete it (`fsck` says whether its commit names it)"
                    )
                yield block
            elif merge.version >= 8 and block.begin < size:
                raise InvalidTable(
                    f"log file {log.path} is damaged at byte {block.begin} of {size}: other "
                    f"readers drop these rows. Restore it from a backup, or undo commit "
                    f"{log.name.instant_time} and later ones (Table.restore, or the table's own "
                    "engine)"
                )


def _size(local: str, log: LogFile) -> int:
    """Return the bytes of a log that were committed, or raise InvalidTable if some are missing."""
    try:
        found = os.stat(local).st_size
    except FileNotFoundError:
        raise InvalidTable(
            f"log file {log.path} is gone: it was cleaned away or undone before it was read, or it "
            "is lost (then `fsck` lists it): read again, and if readers take longer than the "
            "retained commits last, raise hoodie.clean.commits.retained"
        ) from None
    if found < log.size_bytes:
        raise InvalidTable(
            f"log file {log.path} has {found} bytes, but its commit wrote {log.size_bytes}: other "
            "readers drop the missing rows. Restore it from a backup, or undo the commit that "
            "wrote it with the table's own engine"
        )
    return log.size_bytes


def counted_blocks(
    blocks: Iterable[LogBlock], counts: Callable[[str], bool] | None = None
) -> list[LogBlock]:
    """Return the data and delete blocks that count, in the order in which they apply."""
    by_instant: dict[str, list[LogBlock]] = {}
    for block in blocks:
        if block.kind is BlockType.COMMAND:
            if block.header.get(Header.COMMAND_BLOCK_TYPE) != _ROLLBACK:
                raise UnknownBlock(
                    f"log file {block.path} has a command that this library does not know: "
                    "compact the table with the engine that wrote it"
                )
            by_instant.pop(block.header.get(Header.TARGET_INSTANT_TIME, ""), None)
        elif counts is None or counts(block.instant_time):
            by_instant.setdefault(block.instant_time, []).append(block)
    return [block for instant in _applied(by_instant) for block in by_instant[instant]]


def _applied(by_instant: dict[str, list[LogBlock]]) -> list[str]:
    """Return the instants whose blocks apply, oldest first.

    Where the newest of the instants was that a log compaction has merged, its result is.
    """
    merged: dict[str, str] = {}
    applied: dict[str, None] = {}
    for instant in reversed(by_instant):
        inside = by_instant[instant][0].header.get(Header.COMPACTED_BLOCK_TIMES)
        result = merged.get(instant, instant)
        if inside is None:
            applied[result] = None
        else:
            merged.update(dict.fromkeys(inside.split(","), result))
    return [*reversed(applied)]


def newest(rows: pa.Table, of_delete_block: Mask, ordering: pa.Field | None) -> Indices:
    """Return the position of each key's entry that the rules above choose, in order of arrival."""
    codes = _codes(rows.column(RECORD_KEY))
    count = int(codes.max()) + 1 if len(codes) else 0
    at = np.arange(len(codes))
    if count == len(codes):
        return at
    if ordering is not None:
        at = at[_live(rows, codes, of_delete_block)]
        ranks = _ranks(rows.column(ordering.name))[at]
        best = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(best, codes[at], ranks)
        at = at[ranks == best[codes[at]]]
    return np.sort(_last(codes[at], at, count))


def _codes(keys: pa.ChunkedArray) -> Indices:
    """Return a number for each key, the same for equal ones."""
    codes = keys.combine_chunks().dictionary_encode().indices
    return np.asarray(codes.to_numpy(), dtype=np.int64)


def _last(codes: Indices, at: Indices, count: int) -> Indices:
    """Return for each key the last of its positions in `at`, which ascends; -1 if it has none."""
    found = np.full(count, -1)
    found[codes] = at
    return found


def _live(rows: pa.Table, codes: Indices, of_delete_block: Mask) -> Mask:
    """Return the entries among which the greatest ordering value decides.

    Those from the first row after the last delete without ordering value; if there is none after
    it, that delete itself.
    """
    at = np.arange(len(codes))
    count = int(codes.max()) + 1
    always = always_wins(rows)
    if not always.any():
        return np.ones(len(codes), dtype=bool)
    reset = _last(codes[always], at[always], count)
    rises = ~of_delete_block & (at > reset[codes])
    begin = np.full(count, len(codes))
    begin[codes[rises][::-1]] = at[rises][::-1]
    begin = np.where(reset < 0, 0, begin)
    alone = (begin == len(codes))[codes] & (at == reset[codes])
    return np.asarray((at >= begin[codes]) | alone, dtype=bool)


def _ranks(values: pa.ChunkedArray) -> Indices:
    """Return numbers in the order of the ordering values; the lowest for null."""
    numbers = ordinal(values).combine_chunks()
    if not pa.types.is_integer(numbers.type):
        valid = numbers.is_valid().to_numpy(zero_copy_only=False)
        ranks = np.full(len(numbers), -1)
        ranks[valid] = ranked(numbers.drop_null())[0]
        return ranks
    lowest = np.iinfo(np.int64).min
    return np.asarray(pc.fill_null(numbers.cast(pa.int64()), lowest).to_numpy(), dtype=np.int64)


def ordinal(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return ordering values as Arrow compares them as Java does: NaN highest, -0.0 below 0.0."""
    kind = values.type
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array(
            [ordinal(chunk) for chunk in values.chunks], ordinal(pa.array([], kind)).type
        )
    if pa.types.is_floating(kind):
        floats = values.cast(pa.float64())
        bits = pc.fill_null(floats, 0.0).to_numpy(zero_copy_only=False)
        bits = np.where(np.isnan(bits), np.nan, bits).view(np.int64)
        bits = np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)
        return pa.array(bits, mask=values.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_timestamp(kind):
        return values.cast(pa.int64())
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8())
    if pa.types.is_int32(kind) or pa.types.is_date32(kind):
        return pc.fill_null(values.cast(pa.int32()), 0)
    return values


def always_wins(entries: pa.Table) -> Mask:
    """Return which entries are deletes that win over any stored row."""
    return np.asarray(entries.column(OP).to_numpy() == DELETE_ALWAYS)
