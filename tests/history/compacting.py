"""Compactions and clusterings by hand between two processes of a job, some after foreign logs.

Sometimes the process dies in the middle, and the next one compacts again. Another engine's log may
have new keys, so nothing else may be written to its partition until it is merged.
"""

from __future__ import annotations

import contextlib

from core.faults import Crash, Fault
from core.foreign_logs import log_elsewhere
from history.job import History
from history.model import DELETED

from hoodie_nb import failpoints
from hoodie_nb.events import EventLog
from hoodie_nb.services.cluster import cluster
from hoodie_nb.services.compact import compact


def merge_files(history: History) -> None:
    """Compact, sometimes after another engine has written a log, or cluster."""
    history.end_process()
    table = history.handle()
    act = history.random.choice([compact, compact, cluster])
    foreign = history.random.random() < 0.3 and _log_elsewhere(history)
    if foreign:
        act = compact
    history.verbs.append(act.__name__)
    if history.random.random() < 0.5:
        storage = table.storage
        how = history.random.choice(["before", "after", "torn"])
        storage.fault = Fault(storage.steps + history.random.randint(1, 60), how)
    with contextlib.suppress(Crash):
        act(table, EventLog(), partitions=None, dry_run=False)
    table.storage.dead = True
    failpoints.arm("")
    history.look()
    if history.random.random() < 0.5 or act is compact:
        compact(history.handle(), EventLog(), partitions=None, dry_run=False)
        assert not any(piece.logs for piece in history.handle().file_groups())
    if foreign:  # undoing the compaction would bring the log back, and writes would be refused
        history.widened = history.handle().timeline.completed_commits()[-1].requested_time
    history.start()


def _log_elsewhere(history: History) -> bool:
    """Let another engine log rows of new records in a file group; return whether there is one."""
    groups = [piece for piece in history.handle().file_groups() if piece.file_name]
    if not groups:
        return False
    piece = history.random.choice(groups)
    rows = history.rows.take(history.columns, 3, prefix="f", deletes=False)
    path = piece.partition_path
    new = {row["id"]: row for row in rows if row["part"] == path and not history.model.knows(row)}
    if history.traits.keys == "composite" or not new or history.place() != history.path:
        return False  # the other engine writes to a disk
    own = [{k: v for k, v in row.items() if k != DELETED} for row in new.values()]
    history.foreign = True
    instant = log_elsewhere(history.path, piece.file_id, own, partition=path)
    history.model.write(new.values(), instant)
    history.look()
    return True
