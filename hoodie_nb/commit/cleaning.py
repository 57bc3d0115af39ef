"""Executing a clean plan: deletes old files; whether to clean after a commit; pending cleans.

*Work flow*: plan (`T.clean.requested`, durable) → `T.clean.inflight` → delete the files → sync the
partitions → `T.clean`. If there is nothing to delete, there is no instant.

*Semantics*: automatic after each commit (`hoodie.clean.automatic`), after its progress is recorded,
under the lock that is held anyway. It never fails the commit: an error becomes an event, and the
next commit tries again.

*Fault tolerance*: deleting is idempotent. A pending clean, of this library or of Java, is completed
by the next writer. A file is deleted only if the current table does not show it: a newer slice of
its group is on disk, than which the file is older, or the group was replaced. If a partition
of the plan has lost a file of a commit, nothing is deleted: an older file may have the only copy of
its rows.

*Source:* CleanActionExecutor, BaseHoodieWriteClient.autoCleanOnCommit.
"""

from hoodie_nb import failpoints
from hoodie_nb.actions.clean_plan import CleanPlan, Retention, plan_clean
from hoodie_nb.actions.clean_records import encode_plan, encode_result, last_mark, read_clean
from hoodie_nb.errors import HoodieError
from hoodie_nb.events import Emit
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.storage.storage import joined
from hoodie_nb.timeline.timeline import Instant
from hoodie_nb.view.file_groups import FileGroups, data_file_name


def clean_after_commit(table: TableHandle, emit: Emit) -> None:
    """Clean by the table's options what commits have left since the last time."""
    try:
        with table.timeline.listed_once():
            pending = table.timeline.listing.pending_of("clean")
            if table.options.clean_automatic and not pending:
                retention = Retention.of(table.options)
                mark = table.clean_mark or last_mark(table)
                clean(table, plan_clean(table, retention, mark), emit)
    except (OSError, HoodieError) as error:  # the commit is valid
        emit("clean_postponed", why=str(error))


def clean(table: TableHandle, plan: CleanPlan, emit: Emit) -> Instant | None:
    """Execute a plan; None if there is nothing to delete."""
    done = None
    if _obsolete(table, plan):
        requested = table.timeline.request("clean", encode_plan(plan, table.storage))
        failpoints.hit("clean.plan.post")
        done = _finish(table, requested, plan, emit)
    if plan.mark.upto:
        table.clean_mark = plan.mark
    return done


def finish_cleans(table: TableHandle, emit: Emit) -> None:
    """Complete the pending cleans; one that cannot be completed is reported and stays."""
    for pending in table.timeline.listing.pending_of("clean"):
        try:
            plan = read_clean(table, pending)
            if plan is None:
                table.timeline.remove(pending)
            else:
                _finish(table, pending, plan, emit)
        except (OSError, HoodieError) as error:
            emit("clean_postponed", instant=pending.requested_time, why=str(error))


def _finish(table: TableHandle, instant: Instant, plan: CleanPlan, emit: Emit) -> Instant:
    storage = table.storage
    files = _obsolete(table, plan)
    instant = table.timeline.begin(instant)
    failpoints.hit("clean.inflight.post")
    failed: list[OSError] = []
    for folder, names in files.items():
        for name in names:
            try:
                storage.remove(joined(folder, name))
            except OSError as error:  # the others are deleted all the same
                failed.append(error)
            failpoints.hit("clean.file")
        if storage.entry(folder):
            storage.sync_folder(folder)  # the file of a replaced group must not come back
    if failed:
        raise failed[0]
    failpoints.hit("clean.files.post")
    done = table.timeline.complete(instant, encode_result(plan, instant, files))
    failpoints.hit("clean.completed.post")
    emit(
        "files_cleaned",
        instant=instant.requested_time,
        files=sum(map(len, files.values())),
        bytes=plan.size_bytes,
        earliest=plan.earliest.requested_time if plan.earliest else None,
    )
    return done


def _obsolete(table: TableHandle, plan: CleanPlan) -> dict[str, list[str]]:
    """Return the files of a plan to delete; InvalidTable if their partitions have lost others."""
    groups = table.groups_to_write()
    return {
        folder: [name for name in names if _is_obsolete(groups, folder, name)]
        for folder, names in plan.files.items()
    }


def _is_obsolete(groups: FileGroups, folder: str, file_name: str) -> bool:
    """Whether the table as it is now does not show a base file or a log.

    A log of ours is later than the base file that it belongs to.
    """
    name = data_file_name(file_name)
    if name is None:
        return False
    piece = groups.partition(folder).get(name.file_id)  # or a log of another engine is refused
    newer = piece is not None and piece.instant_time > name.instant_time
    return newer or (folder, name.file_id) in groups.replaced
