"""`changes()`: net inserts, updates and deletes between two slices of a file group.

*Semantics*: a row version is identified by partition path, record key, commit time and sequence
number; a merge keeps all four in the rows that it does not change. A version that only the newer
slices have is an insert, or an update if an older version of its key is gone. A version that is
gone without a newer one is a delete, with the values that it had. Several changes of a key count as
one; changes that cancel out do not count. A row that clustering moved to another file group has not
changed; one that moved to another partition is a delete there and an insert here. Keys that
`insert` has duplicated are compared copy by copy. A compaction changes no row version.

*Work flow*: `span` returns the slices before and after of the file groups that changed. Each pair
is compared; then the remaining rows of a partition are compared, since a key that was deleted or
replaced may have been written to another file group. Memory holds a pair of slices per thread, and
the changes.

**Caveats**: instants are compared by the time of their start, as in `as_of` (Hudi's own incremental
query of versions 8 and 9 takes completion times). A commit that is older than `until` or than the
newest commit, and completes later, would be missed by a program that continues from there: as long
as it is open, such a span is refused (not for an open clustering, which changes no rows). A commit
before the first open one is a safe `until`; the time of day is not, since clocks differ, nor is a
future time. A commit that is undone after it was read is not reported by changes: its readers are
refused (see `positions`). If another engine's clustering gives rows a new commit time
(`hoodie.clustering.preserve.commit.metadata=false`), they count as updates.

*Source:* IncrementalRelation, HoodieCDCExtractor.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.folding import LogMerge
from hoodie_nb.machine import threads
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.reading.span import SlicePair, Span
from hoodie_nb.storage.storage import Storage
from hoodie_nb.types.schema import COMMIT_TIME, PARTITION_PATH, RECORD_KEY, SEQNO
from hoodie_nb.view.file_groups import FileSlice
from hoodie_nb.view.read_handle import ReadHandle
from hoodie_nb.view.views import reading, steadily, until_true

CHANGE = "_change"
_KEY = (PARTITION_PATH, RECORD_KEY)
_VERSION = (COMMIT_TIME, SEQNO, *_KEY)
Numbers = npt.NDArray[np.int64]


def changes(table: ReadHandle, since: object = None, until: object = None) -> pa.Table:
    """Return the changes after `since` up to `until` as one Arrow table (no defined order).

    `since=None` is the start: every row, as an insert. A write without rows returns None, too.
    """
    return until_true(lambda: _changes(table, since, until))


def _changes(table: ReadHandle, since: object, until: object) -> pa.Table:
    partitions, schema = changed_slices(table, since, until)

    def read(pairs: Sequence[SlicePair]) -> pa.Table:
        found = (group_changes(table.storage, pair, schema) for pair in pairs)
        return net_changes(found, schema)

    with ThreadPoolExecutor(threads()) as pool:
        return pa.concat_tables([schema.empty_table(), *pool.map(read, partitions)])


def changed_slices(
    table: ReadHandle, since: object, until: object
) -> tuple[list[list[SlicePair]], pa.Schema]:
    """Return the slices to compare, partition by partition, and the columns of the changes.

    Both are those of one listing of the timeline.
    """
    table.reload()  # another engine may have upgraded the table and its timeline

    def look() -> tuple[list[list[SlicePair]], pa.Schema]:
        schema = changes_schema(table)
        return Span.of(table, since, until).pairs(), schema

    return steadily(table, look, whole=True)


def changes_schema(table: ReadHandle) -> pa.Schema:
    """Return the columns of a snapshot and `_change`; InvalidConfig if changes are not known."""
    stored = stored_schema(table.schema)
    if CHANGE in stored.names:
        raise InvalidConfig(
            f"the table at {table.storage.root} has a column {CHANGE!r}, the name that `changes` "
            "gives to the kind of a change: compare two snapshots (`as_of`) instead"
        )
    return stored.append(pa.field(CHANGE, pa.string()))


def group_changes(storage: Storage, pair: SlicePair, schema: pa.Schema) -> pa.Table:
    """Return the changes between two slices of a file group, whose logs are merged.

    Raises UndoneMeanwhile if one cannot be read because its commit was undone.
    """
    stored = schema.remove(schema.get_field_index(CHANGE))

    def rows(piece: FileSlice | None, merge: LogMerge) -> pa.Table:
        pieces = slice_rows(storage, piece, stored, None, merge) if piece else ()
        return pa.concat_tables([stored.empty_table(), *pieces])

    files = [path for piece in (pair.before, pair.after) if piece for path in piece.paths]
    with reading(storage, *files):
        return _compared(rows(pair.before, pair.merges[0]), rows(pair.after, pair.merges[1]))


def net_changes(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the changes of several file groups; a row that moved between them is none."""
    rows = pa.concat_tables([schema.empty_table(), *parts])
    updated, gone, fresh = (
        rows.filter(pc.equal(rows[CHANGE], kind)) for kind in ("update", "delete", "insert")
    )
    if not gone.num_rows or not fresh.num_rows:
        return rows
    compared = _compared(gone.drop_columns(CHANGE), fresh.drop_columns(CHANGE))
    return pa.concat_tables([updated, compared])


def _compared(old: pa.Table, new: pa.Table) -> pa.Table:
    """Return the changes from old to new rows."""
    of_old, of_new = _unpaired(old, new, _VERSION)
    gone = old.filter(of_old)
    fresh = new.filter(of_new)
    deleted, inserted = _unpaired(gone, fresh, _KEY)
    updated = pc.invert(inserted)
    kinds = (("update", fresh, updated), ("insert", fresh, inserted), ("delete", gone, deleted))
    return pa.concat_tables([_labelled(rows.filter(mask), kind) for kind, rows, mask in kinds])


def _labelled(rows: pa.Table, kind: str) -> pa.Table:
    return rows.append_column(CHANGE, pa.repeat(pa.scalar(kind), rows.num_rows))


def _unpaired(old: pa.Table, new: pa.Table, by: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Return which rows of each side have no partner on the other side, with equal columns `by`.

    If n rows of one side and m of the other are equal, the first min(n, m) of each are partners.
    """
    chunks = [chunk for rows in (old, new) for chunk in _texts(rows, by).chunks]
    joint = pa.chunked_array(chunks, pa.large_string()).combine_chunks().dictionary_encode()
    codes = joint.indices.to_numpy().astype(np.int64)
    sides = codes[: old.num_rows], codes[old.num_rows :]
    counts = [np.bincount(side, minlength=len(joint.dictionary)) for side in sides]
    one, other = (
        _earlier(side, own) >= others[side]
        for side, own, others in zip(sides, counts, reversed(counts), strict=True)
    )
    return pa.array(one), pa.array(other)


def _texts(rows: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    """Return one text per row; only the key, which comes last, may contain the separator."""
    texts = [pc.cast(rows.column(name), pa.large_string()) for name in columns]
    separator = pa.scalar("\0", pa.large_string())
    return pc.binary_join_element_wise(*texts, separator, null_handling="replace")


def _earlier(codes: Numbers, counts: Numbers) -> Numbers:
    """Return how many earlier rows have each row's code; `counts` are the rows of each code."""
    found = np.zeros(len(codes), np.int64)
    if counts.max(initial=0) > 1:
        order = np.argsort(codes, kind="stable")
        starts = np.cumsum(counts) - counts
        found[order] = np.arange(len(codes)) - starts[codes[order]]
    return found
