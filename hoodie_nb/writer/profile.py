"""The write profile: what the assigner knows about the table before a checkpoint.

The average record size comes from the newest commit that is large enough (more than the threshold
times the small file limit), else from the estimate. The newest `LOOKED_BACK` commits are read, as
many as Hudi keeps on a timeline before it archives. A small file is a slice below the small file
limit; it has room for (max size - size) // average size more rows.

*Source:* WriteProfile, AverageRecordSizeUtils; formulas and defaults as in Flink.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hoodie_nb.config import WriteOptions
from hoodie_nb.table.commits import CommitMetadata
from hoodie_nb.table.file_groups import FileSlice
from hoodie_nb.writer.plan import task_of

LOOKED_BACK = 30


def average_record_bytes(newest_first: Iterable[CommitMetadata], options: WriteOptions) -> int:
    """Return the average size of a row in bytes, from the newest commit that is large enough."""
    enough = options.record_size_threshold * options.small_file_bytes
    for commit in itertools.islice(newest_first, LOOKED_BACK):
        written, rows = commit.total("totalWriteBytes"), commit.total("numWrites")
        if written > enough and rows > 0:
            return -(-written // rows)
    return options.record_size_bytes


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
