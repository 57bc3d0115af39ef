"""Rollbacks: plan, delete the instant's files, complete pending ones, encode and parse records.

*Work flow*: plan (`R.rollback.requested`, Avro) → `R.rollback.inflight` → delete the data files
that the markers name → remove T from the timeline → `R.rollback` (Avro) → delete the markers. An
instant that published nothing is only removed from the timeline. A restore also rolls back
completed commits, and so does `Table.rollback`: the completed file is deleted before the base
files. A note in the header of such a plan says so, and lets a writer complete the latter without
a restore; with it is the number of the last sealed checkpoint that the undone commit has applied.

*Fault tolerance*: a crash at any point leaves either T with its markers (rolled back again) or a
pending rollback with its plan, which `finish_rollbacks` completes; both are idempotent, in this
library and in Java Hudi. Files named on disk are deleted only if they are base or log files of T
inside the table.

*Source:* RFC-24 "Fault Tolerance", BaseRollbackPlanActionExecutor, MarkerBasedRollbackStrategy.
"""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from hoodie_nb import failpoints
from hoodie_nb.actions.plans import read_plan
from hoodie_nb.actions.publish import sweep
from hoodie_nb.actions.quarantine import withdraw_refused
from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.storage.storage import is_remote, java_path, joined
from hoodie_nb.timeline.instant import ENDS_AS
from hoodie_nb.timeline.timeline import COMMITS, Instant, Listing, State, Timeline
from hoodie_nb.types.avro_file import decode, encode, load_schema, notes_of
from hoodie_nb.view.markers import is_data_file, marked_files, marker_folder
from hoodie_nb.view.read_handle import ReadHandle

_COMPLETED = "hoodie_nb.completed"  # the note: the commit was completed when this was planned
# its values: no restore is needed to complete it, or one
_BY_HAND = "true"
_RESTORED = "restore"
_PENDING = "hoodie_nb.pending"  # the note: it was not, so its completed file may only be late
_PLAN = load_schema("HoodieRollbackPlan")
_METADATA = load_schema("HoodieRollbackMetadata")


class RollbackPlan(NamedTuple):
    """The instant that a rollback undoes, the files that it deletes, and the notes of the plan."""

    instant: Instant
    files: Sequence[str]
    notes: Mapping[str, str] = MappingProxyType({})

    @property
    def by_hand(self) -> bool:
        """Whether a writer may undo the instant, although completed, without a restore."""
        return self.notes.get(_COMPLETED) == _BY_HAND and self.instant.action in COMMITS

    @property
    def is_late(self) -> bool:
        """Whether a completed file of the instant can only have come after the plan."""
        return _PENDING in self.notes


def roll_back(table: TableHandle, instant: Instant, *, keep_staged: bool = False) -> bool:
    """Roll back a pending commit; return whether files had been published.

    Staged files are deleted too, unless they are kept to be applied again. A store may receive
    files later: then the rollback tells that they are to be deleted. Raises InvalidTable for a
    completed instant: readers use its files.
    """
    storage = table.storage
    timeline = table.timeline
    if _has_completed(timeline, instant):
        raise InvalidTable(f"{instant} has completed and cannot be rolled back as pending")
    marked = marked_files(storage, instant.requested_time)
    found = [path for path in marked if storage.entry(path)]
    paths = marked if is_remote(storage.root) else found
    if paths:
        notes = {_PENDING: "true"} if is_remote(storage.root) else {}
        plan = RollbackPlan(instant, paths, notes)
        rollback = timeline.request("rollback", _encoded(table, plan))
        failpoints.hit("rollback.plan.post")
        _finish(table, rollback, plan)
    else:
        withdraw_refused(storage, instant.requested_time)
        timeline.remove(instant)
    if keep_staged:
        storage.remove(marker_folder(instant.requested_time), tree=True)
    else:
        sweep(storage, {instant.requested_time})
    return bool(found)


def undo(
    table: TableHandle,
    instant: Instant,
    files: Sequence[str],
    notes: Mapping[str, str],
    *,
    by_hand: bool = False,
) -> Instant | None:
    """Roll back a commit, completed or not, with all these base files; return the rollback.

    Idempotent: nothing is done if the instant is no longer on the timeline. What is not `by_hand`
    is part of a restore, which completes it after a crash. The `notes` are kept in its plan.
    """
    plans = [(r, _read_plan(table, r)) for r in table.timeline.listing.pending_of("rollback")]
    mine = [(r, plan) for r, plan in plans if _same(plan.instant, instant)]
    if mine:
        rollback, known = mine[0]
        plan = RollbackPlan(instant, sorted({*files, *known.files}))
    elif any(_same(known, instant) for known in table.timeline.listing.instants):
        marked = marked_files(table.storage, instant.requested_time)
        noted = {**notes, _COMPLETED: _BY_HAND if by_hand else _RESTORED}
        plan = RollbackPlan(instant, sorted({*files, *marked}), noted)
        rollback = table.timeline.request("rollback", _encoded(table, plan))
        failpoints.hit("restore.rollback.post")
    else:
        return None
    _finish(table, rollback, plan, completed=True)
    return rollback


def _same(one: Instant, other: Instant) -> bool:
    return (one.requested_time, one.action) == (other.requested_time, other.action)


def finish_rollbacks(table: TableHandle) -> list[Instant]:
    """Complete all pending rollbacks; return the instants that they rolled back."""
    undone = []
    for rollback in table.timeline.listing.pending_of("rollback"):
        plan = read_rollback(table, rollback)
        _finish(table, rollback, plan, completed=plan.by_hand or plan.is_late)
        undone.append(plan.instant)
    return undone


def drop_late(table: TableHandle) -> None:
    """Remove what a store received late of writers that have died since, or got an error.

    Plans to undo commits, after which there is a commit: nothing of a plan is done before it is
    inflight. Completed files of commits that others had rolled back.
    """
    timeline = table.timeline
    listing = timeline.listing
    if not is_remote(table.storage.root):
        return
    for plan in listing.pending_of("rollback", "restore"):
        if plan.state is State.REQUESTED and listing.commit_times[-1:] > (plan.requested_time,):
            timeline.remove(plan)
    for done in late_files(table, listing):
        timeline.withdraw(done)


def planned_rollbacks(table: ReadHandle) -> list[RollbackPlan]:
    """Return the plans of all pending rollbacks; raise if one cannot be completed."""
    pending = table.timeline.listing.pending_of("rollback")
    return [read_rollback(table, rollback) for rollback in pending]


def undone_by_rollback(table: ReadHandle, rollback: Instant) -> frozenset[str]:
    """Return the commits that a rollback undid, or will, unless they certainly had not completed.

    If neither plan nor result can be read, InvalidTable is raised.
    """
    timeline = table.timeline
    for file in (rollback.requested, rollback):
        if timeline.listing.has(file):
            with suppress(ValueError, LookupError, TypeError):
                return _undone(timeline.read(file))
    path = timeline.path(rollback.requested)
    raise InvalidTable(
        f"{table.storage.root}/{path} cannot be read, so it is not known what that rollback has "
        "undone: restore the file from a backup"
    )


def being_undone(table: ReadHandle) -> set[str]:
    """Return the commits that pending rollbacks undo; those that cannot be read are left out."""
    found = set[str]()
    for rollback in table.timeline.listing.pending_of("rollback"):
        with suppress(OSError, InvalidTable):
            found |= undone_by_rollback(table, rollback)
    return found


def _undone(content: bytes) -> frozenset[str]:
    """Return the commits that had completed, or may have, by the plan or result of a rollback.

    Java and `roll_back` undo a commit that has not completed by its markers, and then the plan has
    the file group of each file. Of a completed one Java lists the files, without their groups.
    """
    raw = decode(content)
    completed = _COMPLETED in notes_of(content)
    if "commitsRollback" in raw:  # the result does not say it; Hudi before 0.10 has no plan
        return frozenset(map(str, raw["commitsRollback"]))
    undone = raw["instantToRollback"]
    requests = raw["RollbackRequests"] or []
    by_markers = all(request["fileId"] for request in requests)
    adds = undone["action"] in ("commit", "deltacommit")
    replaced = not adds and not requests  # perhaps only file groups
    if by_markers and not completed and not replaced:
        return frozenset()
    return frozenset([str(undone["commitTime"])])


def was_rolled_back(table: ReadHandle, requested_time: str) -> bool:
    """Whether a readable completed rollback on the timeline names an instant."""
    for done in table.timeline.listing.completed("rollback"):
        with suppress(Exception):  # a damaged record may have any shape
            if requested_time in decode(table.timeline.read(done))["commitsRollback"]:
                return True
    return False


def late_files(table: ReadHandle, listing: Listing) -> list[Instant]:
    """Return completed files that were written after their commits were rolled back.

    A compaction may be rolled back and done again; an archiving deletes its other files first.
    """
    alone = filter(listing.is_alone, listing.commits)
    late = [done for done in alone if was_rolled_back(table, done.requested_time)]
    archived = table.timeline.archive.commits()[0] if late else ()
    return [done for done in late if done.requested_time not in archived]


def _has_completed(timeline: Timeline, instant: Instant) -> bool:
    done = timeline.completed(instant.requested_time)
    return done is not None and done.action == instant.action


def _finish(
    table: TableHandle, rollback: Instant, plan: RollbackPlan, *, completed: bool = False
) -> None:
    """Execute a plan; if the instant is `completed`, it is withdrawn first.

    A store may receive its completed file meanwhile. Its writer deletes it if it then sees that the
    instant has left the timeline, else it came before the last look here.
    """
    storage = table.storage
    timeline = table.timeline
    instant = plan.instant
    rollback = timeline.begin(rollback)
    if completed:  # before its files are deleted: no reader looks for them
        timeline.withdraw(instant)
        failpoints.hit("restore.withdrawn.post")
    for path in plan.files:
        storage.remove(path)
    withdraw_refused(storage, instant.requested_time)
    for folder in set(map(_folder, plan.files)):
        if storage.entry(folder):
            storage.sync_folder(folder)
    failpoints.hit("rollback.files.post")
    timeline.remove(instant)
    for action in ENDS_AS if table.config.merge_on_read else ():
        if ENDS_AS[action] == instant.action:  # it may have been the compaction of another engine
            timeline.remove(Instant(instant.requested_time, action))
    failpoints.hit("rollback.instant.post")
    if is_remote(storage.root):
        timeline.withdraw(instant)
    timeline.complete(rollback, encode(_METADATA, _metadata(rollback, instant, plan.files)))
    with suppress(OSError):  # the rollback is complete: the next writer removes the markers
        failpoints.hit("rollback.completed.post")
        storage.remove(marker_folder(instant.requested_time), tree=True)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def info_of(instant: Instant) -> dict[str, str]:
    """Return an instant as the records of rollbacks and restores name it."""
    return {"commitTime": instant.requested_time, "action": instant.action}


def _encoded(table: TableHandle, plan: RollbackPlan) -> bytes:
    """Return the content of the requested file; `_read_plan` is the inverse."""
    requests = [
        {
            "partitionPath": _folder(path),
            "fileId": PurePosixPath(path).name.partition("_")[0].removeprefix("."),
            "latestBaseInstant": plan.instant.requested_time,
            "filesToBeDeleted": [java_path(table.storage.root, path)],
            "logBlocksToBeDeleted": {},
        }
        for path in plan.files
    ]
    undone = info_of(plan.instant)
    content = {"instantToRollback": undone, "RollbackRequests": requests, "version": 1}
    return encode(_PLAN, content, {**plan.notes})


def _metadata(rollback: Instant, instant: Instant, files: Sequence[str]) -> dict[str, Any]:
    partitions = {
        partition: {
            "partitionPath": partition,
            "successDeleteFiles": [*paths],
            "failedDeleteFiles": [],
            "rollbackLogFiles": {},
            "logFilesFromFailedCommit": {},
        }
        for partition, paths in itertools.groupby(sorted(files, key=_folder), _folder)
    }
    return {
        "startRollbackTime": rollback.requested_time,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": len(files),
        "commitsRollback": [instant.requested_time],
        "partitionMetadata": partitions,
        "version": 1,
        "instantsRollback": [info_of(instant)],
    }


def read_rollback(table: ReadHandle, rollback: Instant) -> RollbackPlan:
    """Return the plan of a pending rollback; InvalidTable if it cannot be completed here."""
    plan = _read_plan(table, rollback)
    if _has_completed(table.timeline, plan.instant) and not plan.is_late:
        time17 = plan.instant.requested_time
        newest = table.timeline.listing.commits[-1].requested_time
        if _COMPLETED not in plan.notes:
            raise InvalidTable(
                f"rollback {rollback.requested_time} is pending for the completed instant "
                f"{time17}: let the engine that started it finish it"
            )
        if not plan.by_hand or newest != time17:
            written = f"commit {newest} has been written since"
            why = written if plan.by_hand else "the plan that it is part of is gone"
            raise InvalidTable(
                f"rollback {rollback.requested_time} of {table.storage.root} is pending. It was "
                f"to undo {time17}, but {why}: it has undone nothing yet. Delete the rollback's "
                ".requested and .inflight files, and call again"
            )
    return plan


def named_instant(table: ReadHandle, named: Mapping[str, Any], by: Instant) -> Instant:
    """Return the instant that a plan undoes; ConcurrentWriter for another engine's clustering.

    Raises ValueError if it is none.
    """
    instant = Instant(named["commitTime"], named["action"], State.INFLIGHT)
    if instant.action == "clustering":
        raise ConcurrentWriter(
            f"{by} of {table.storage.root} undoes another engine's clustering "
            f"{instant.requested_time}: let that engine finish it"
        )
    if Instant.parse(instant.file_name) != instant:
        raise ValueError(f"it names {instant}, which is not an instant")
    return instant


def _read_plan(table: ReadHandle, rollback: Instant) -> RollbackPlan:
    def parsed(content: bytes) -> RollbackPlan:
        raw = decode(content)
        instant = named_instant(table, raw["instantToRollback"], rollback)
        named = [
            joined(str(request["partitionPath"]), PurePosixPath(str(path)).name)
            for request in raw["RollbackRequests"] or []
            for path in request["filesToBeDeleted"]
        ]
        return RollbackPlan(instant, named, notes_of(content))

    plan = read_plan(table, rollback, parsed)
    time17 = plan.instant.requested_time
    paths = {*plan.files, *marked_files(table.storage, time17)}
    return plan._replace(files=sorted(path for path in paths if is_data_file(path, time17)))
