"""Executing a restore: undoes all commits after one; completes pending restores.

*Work flow*: plan (`R.restore.requested`, durable) → `R.restore.inflight` → for each commit T: its
rollback is planned with its files → its completed file is deleted, so that readers see the table
before T → its files are deleted → T leaves the timeline → `R.restore` keeps what was undone → the
rollbacks leave the timeline.

*Semantics*: readers see the commits vanish one by one: at each moment the table is as it was after
one of its commits; where files of that one were cleaned, ours see the target (see `reading.read`).
Cleans stay on the timeline; so do savepoints, since none is later than the target. The checkpoints
of the commits are marked in the progress of their queries: a stream that continues after them is
refused (see `progress`).

*Fault tolerance*: each step is idempotent. A pending restore, of this library or of Java, is
completed by the next writer before anything else: a table that is half restored is never written.

**Caveats**: a query that is reading the files that are deleted reads again, or fails (see
`view.views`). Metadata files of partitions stay.

*Source:* BaseRestoreActionExecutor, CopyOnWriteRollbackActionExecutor.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hoodie_nb import failpoints
from hoodie_nb.actions.restore_plan import (
    ACTION,
    RestorePlan,
    encode_plan,
    encode_result,
    files_of,
    notes_by,
    read_restore,
)
from hoodie_nb.actions.rollback import undo
from hoodie_nb.actions.savepoints import refuse_archived, saved
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.events import Emit
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.lost import lost_files
from hoodie_nb.reading.read import slices_as_of
from hoodie_nb.records.sealing import marks_in
from hoodie_nb.storage.storage import joined
from hoodie_nb.timeline.timeline import Instant
from hoodie_nb.types.avro_file import decode


def restore(table: TableHandle, plan: RestorePlan, emit: Emit, notes: Mapping[str, str]) -> Instant:
    """Execute a plan; the caller has recovered the table and committed what was prepared.

    The `notes` are kept in the plan.
    """
    requested = table.timeline.request(ACTION, encode_plan(plan, notes))
    failpoints.hit("restore.plan.post")
    return _finish(table, requested, plan, emit)


def finish_restores(table: TableHandle, emit: Emit) -> None:
    """Complete the pending restores, oldest first; InvalidTable if one cannot be."""
    for pending in table.timeline.listing.pending_of(ACTION):
        plan = read_restore(table, pending)
        _refuse_overtaken(table, pending, plan)
        _finish(table, pending, plan, emit)


def _refuse_overtaken(table: TableHandle, pending: Instant, plan: RestorePlan) -> None:
    """Raise InvalidTable if another engine has built a commit on a half restored table."""
    for commit in table.timeline.listing.commits:
        time17 = commit.requested_time
        if time17 > pending.requested_time:
            raise InvalidTable(
                f"restore {pending.requested_time} of {table.storage.root} is pending, but another "
                f"engine has since written commit {time17}, on rows that are to be undone: "
                "delete the restore's .requested and .inflight files, and call "
                f"Table.restore({plan.to!r}), which undoes that commit too"
            )


def _finish(table: TableHandle, instant: Instant, plan: RestorePlan, emit: Emit) -> Instant:
    timeline = table.timeline
    instant = timeline.begin(instant)
    failpoints.hit("restore.inflight.post")
    files = files_of(table, plan.times)
    notes = marks_in(notes_by(table, instant))
    for undone in plan.undone:
        undo(table, undone, files[undone.requested_time], notes)
        failpoints.hit("restore.commit.post")
    rollbacks = {t: record for done in _rollbacks(table, plan) for t, record in _read(table, done)}
    done = timeline.complete(instant, encode_result(plan, instant, rollbacks))
    with contextlib.suppress(OSError):  # the restore is complete: what is left is archived later
        failpoints.hit("restore.completed.post")
        for rollback in _rollbacks(table, plan):
            timeline.remove(rollback)
            timeline.withdraw(rollback)
    emit(
        "table_restored",
        instant=instant.requested_time,
        to=plan.to,
        commits=len(plan.undone),
        files=sum(map(len, files.values())),
    )
    return done


def _rollbacks(table: TableHandle, plan: RestorePlan) -> list[Instant]:
    """Return the rollbacks after the target: they concern instants that no longer exist."""
    oldest = min(plan.times, default="9")
    found = table.timeline.listing.instants
    return [i for i in found if i.action == "rollback" and i.requested_time > oldest]


def _read(table: TableHandle, rollback: Instant) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the record of a completed rollback, with each commit that it names."""
    with contextlib.suppress(Exception):  # a damaged record may have any shape
        record = decode(table.timeline.read(rollback))
        for time17 in record["commitsRollback"]:
            yield time17, record


def plan_restore(table: TableHandle, to: Instant) -> RestorePlan:
    """Return the plan that makes the commit `to` the newest again.

    Raises InvalidConfig if it is, if its files were cleaned away, or if a later commit has a
    savepoint; InvalidTable if one of its files is lost.
    """
    listing = table.timeline.listing
    root = table.storage.root
    undone = [i for i in listing.commits if i.requested_time > to.requested_time]
    if not undone:
        raise InvalidConfig(
            f"{to.requested_time} is the newest commit of {root}: there is nothing to undo"
        )
    refuse_archived(table, undone[0].requested_time)
    later = [i.requested_time for i in saved(table) if i.requested_time > to.requested_time]
    if later:
        raise InvalidConfig(
            f"commits of {root} that would be undone have savepoints ({', '.join(later)}): delete "
            "those with Table.delete_savepoint first, or restore to the newest of them"
        )
    before = slices_as_of(table, to)
    earlier = [i for i in listing.commits if i.requested_time <= to.requested_time]
    lost = [joined(folder, str(name)) for folder, name in lost_files(table, before, earlier)]
    for path in (*lost, *(log.path for piece in before for log in piece.logs if log.missing_of)):
        raise InvalidTable(
            f"{root}/{path} is lost, and commit {to.requested_time} needs it: "
            "restore it from a backup, or choose another commit"
        )
    return RestorePlan(to.requested_time, tuple(reversed(undone)))
