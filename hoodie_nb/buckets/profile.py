"""The write profile: estimated bytes per row; which small files take new rows, in which order.

The average record size comes from the newest commit that is large enough (more than the threshold
times the small file limit), else from the option. The newest `LOOKED_BACK` commits are read, as
many as Hudi keeps on a timeline before it archives. Without either, a process that has all rows of
the batch takes their size in memory: close to that of a file, and the same if it is repeated; so
does a task that has all rows of its keys. Other tasks must agree, so they take Hudi's
`ASSUMED_BYTES`: files of short rows are far smaller than the limit until a commit is large enough.
A small file is a slice below the small file limit; it has room for (max size - size) // average
size more rows. In a merge-on-read table only slices that are rewritten have room: a key that is
only in a log file is invisible to the indexes of Hudi's Spark writer.

*Source:* WriteProfile, AverageRecordSizeUtils; formulas and defaults as in Flink.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from hoodie_nb.buckets.plan import WritePlan, task_of
from hoodie_nb.config import WriteOptions
from hoodie_nb.rows.columns import OP, SEQ, THRESHOLD
from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.types.schema import PARTITION_PATH
from hoodie_nb.view.file_groups import FileSlice

LOOKED_BACK = 30
ASSUMED_BYTES = 1024
_META_BYTES = 48  # of a row's sequence number, and its share of the bloom filter


def average_record_bytes(
    newest_first: Iterable[CommitMetadata], options: WriteOptions
) -> int | None:
    """Return the average size of a stored row, from the newest commit that is large enough.

    Else the option; None if it is not set.
    """
    enough = options.record_size_threshold * options.small_file_bytes
    for commit in itertools.islice(newest_first, LOOKED_BACK):
        stats = itertools.chain.from_iterable(commit.stats.values())
        bases = [stat for stat in stats if not stat.get("logFiles")]
        written = sum(int(stat.get("totalWriteBytes") or 0) for stat in bases)
        rows = sum(int(stat.get("numWrites") or 0) for stat in bases)
        if written > enough and rows > 0:
            return -(-written // rows)
    return options.record_size_bytes


def record_bytes_of(keyed: pa.Table) -> int:
    """Return the average size of keyed rows as they will be stored, from their size in memory."""
    own = [n for n in keyed.column_names if n not in (PARTITION_PATH, SEQ, OP, THRESHOLD)]
    size = int(keyed.select(own).nbytes)
    return -(-size // max(1, int(keyed.num_rows))) + _META_BYTES


def with_record_bytes(
    plan: WritePlan, pieces: Iterable[pa.Table]
) -> tuple[WritePlan, Iterator[pa.Table]]:
    """Return a plan that has the size of a row, else that of the first piece; and all pieces."""
    pieces = iter(pieces)
    if plan.record_bytes is None and (first := next(pieces, None)) is not None:
        plan = replace(plan, record_bytes=record_bytes_of(first))
        pieces = itertools.chain([first], pieces)
    return plan, pieces


@dataclass(slots=True)
class SmallFile:
    """A file group with room for `room` more rows."""

    file_id: str
    room: int


def small_files(
    slices: Iterable[FileSlice], options: WriteOptions, record_bytes: int, task: int, tasks: int
) -> Iterator[SmallFile]:
    """Yield this task's small files with room, in listing order."""
    for piece in sorted(slices, key=lambda s: s.file_name):
        if 0 < piece.size_bytes < options.small_file_bytes:
            room = (options.max_file_bytes - piece.size_bytes) // record_bytes
            if room > 0 and task_of(piece.file_id, tasks) == task:
                yield SmallFile(piece.file_id, room)
