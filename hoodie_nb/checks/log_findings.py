"""fsck, log files: missing ones, damaged ones, blocks that are not read; merged rows.

Every log of a newest slice is read by itself, block by block with all columns, so that each one
that is damaged is found; then the slice is merged, as readers do it. The logs of older slices are
not read.

In version 6 the bytes of a failed write may stay in a log, and other readers pass over them, too:
they are a finding, since nothing says whether their rows were written again.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.checks.findings import Finding
from hoodie_nb.errors import InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.folding import BRING_BACK, LogMerge, folded, missing
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.types.log_blocks import BlockType, UnknownBlock, read_blocks
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.view.file_groups import FileSlice

_TORN = "torn-log"
_UNDO = (
    "restore it from a backup; without one, undo its commit and later ones (Table.restore, or the "
    "table's own engine)"
)


def log_findings(table: TableHandle, piece: FileSlice, merge: LogMerge) -> Iterator[Finding]:
    """Read each log file of a slice."""
    schema = stored_schema(table.schema)
    for log in piece.logs:
        if log.missing_of:
            what = f"{missing(log)}: other readers show older rows, or none"
            yield Finding(what, BRING_BACK, "lost-log")
            continue
        try:
            folded(table.storage, [log], schema, merge)
            local = table.storage.fetch(log.path, log.size_bytes)
            torn = [b for b in read_blocks(log.path, local) if b.kind is BlockType.CORRUPT]
        except UnknownBlock as error:
            cure = "let the engine that wrote it compact the table, or read it there"
            yield Finding(str(error), cure, "unreadable-log")
        except InvalidTable as error:
            yield Finding(str(error), _UNDO, "damaged-log")
        except PermissionError:
            yield Finding(f"{log.path} is denied", "let this user read it", "unreadable-log")
        else:
            for block in torn if merge.version < 8 else ():
                yield Finding(
                    f"{log.path} has {block.length} bytes at {block.begin} that are no block: a "
                    "write failed there, and was repeated or its rows are lost",
                    "compare the rows with the source, and upsert what is missing with the engine "
                    "that created the table; a compaction leaves these bytes behind",
                    _TORN,
                )


def merged_keys(
    table: TableHandle, piece: FileSlice, merge: LogMerge, found: list[Finding], *, merges: bool
) -> pa.Array | None:
    """Return the keys of a slice's merged rows; add what is wrong with its logs to `found`.

    None if some log is not read, or if the base file is not (then it `merges` no rows).
    """
    wrong = [*log_findings(table, piece, merge)]
    found += wrong
    if not merges or any(finding.code != _TORN for finding in wrong):
        return None
    schema = pa.schema([(RECORD_KEY, pa.string()), (PARTITION_PATH, pa.string())])
    pieces = slice_rows(table.storage, piece, schema, None, merge)
    rows = pa.concat_tables([schema.empty_table(), *pieces])
    texts = pc.unique(rows[PARTITION_PATH]).to_pylist()
    other = next((str(text) for text in texts if text != piece.partition_path), None)
    if other is not None:
        what = f"a log of {piece.paths[0]} has rows of partition {other!r}, which readers show here"
        found.append(Finding(what, _UNDO, "wrong-partition"))
    return rows[RECORD_KEY].combine_chunks()
