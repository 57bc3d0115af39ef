"""Folding the logs of slices into base files; which idle slices, after a commit.

*Semantics*: a delta commit stays on the timeline while its logs are there. A slice that is written
to is merged in time, but one that nobody writes to any more would keep its logs. So if the archive
could not go on after a commit, idle slices are merged: a bounded number, in a commit of their own.
Their old files are cleaned and their commits archived after later commits, as ever. Nothing is
merged without automatic cleaning and archiving.

*Fault tolerance*: that of `table.compact()`. It begins when the commit before it is complete in all
respects, and never fails it: an error is rolled back and becomes an event.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate

from hoodie_nb.actions.archive_plan import limits
from hoodie_nb.buckets.plan import TaskAttempt, WritePlan
from hoodie_nb.buckets.rewrite import rewrite
from hoodie_nb.events import Emit
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.index.file_keys import KeysToIndex
from hoodie_nb.machine import threads
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.view.file_groups import FileSlice

AT_ONCE = 16  # idle slices after one commit, and no more bytes than one full file has


def fold(plan: WritePlan, emit: Emit, pieces: Sequence[FileSlice]) -> list[WriteStatus]:
    """Write each slice's merged rows to a new base file of its file group, a few at a time."""
    with ThreadPoolExecutor(threads(plan.options.max_file_bytes)) as pool:
        return [*pool.map(partial(_merged, plan, emit), pieces, range(len(pieces)))]


def _merged(plan: WritePlan, emit: Emit, piece: FileSlice, number: int) -> WriteStatus:
    """Write the new base file of a slice, the `number`-th of the instant; return its status."""
    keys = KeysToIndex(plan, piece.partition_path, None)
    status = rewrite(plan, piece, TaskAttempt(task=number), lambda rows: rows, keys=keys)
    emit("file_written", task=number, **status.facts, merged_logs=len(piece.logs))
    return status


def idle_slices(table: TableHandle) -> tuple[list[FileSlice], bool]:
    """Return slices whose logs are all older than the commits that stay, and if there are more.

    Those with the oldest logs come first: they hold back the archive.
    """
    listing = table.timeline.listing
    least, _ = limits(table, listing)
    first = listing.commit_times[-least:][0]
    found = [p for p in table.file_groups() if p.logs]
    idle = [p for p in found if max(log.name.instant_time for log in p.logs) < first]
    idle.sort(key=lambda piece: min(log.name.instant_time for log in piece.logs))
    sums = accumulate(piece.total_bytes for piece in idle[:AT_ONCE])
    fit = sum(1 for size in sums if size <= table.options.max_file_bytes)
    chosen = idle[: max(fit, 1)]
    groups = table.groups_to_write(folds_logs=True)  # checks the partitions that are asked for
    pieces = [groups.partition(piece.partition_path)[piece.file_id] for piece in chosen]
    return pieces, len(idle) > len(chosen)
