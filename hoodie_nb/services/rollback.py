"""`table.rollback()`: undoes the newest commit; when that is refused, dry run, result.

*Work flow*, under the table's lock: recover the table and commit what is prepared; plan; one
rollback instant (`actions/rollback.py`): it deletes the completed file before the commit's files.

*Fault tolerance*: a pending rollback is completed by the next writer, of this library or Java.

*Source:* BaseRollbackActionExecutor, CopyOnWriteRollbackActionExecutor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hoodie_nb.actions.restore_plan import ACTION as RESTORE
from hoodie_nb.actions.restore_plan import files_of
from hoodie_nb.actions.rollback import drop_late, planned_rollbacks, undo
from hoodie_nb.actions.savepoints import commit_as_of, saved
from hoodie_nb.commit.restoring import plan_restore
from hoodie_nb.errors import InvalidConfig, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.batch import Commit
from hoodie_nb.local.settling import settled
from hoodie_nb.services.restore import mark_undone, refuse_unsettled
from hoodie_nb.services.result import Result
from hoodie_nb.storage.storage import size_of
from hoodie_nb.timeline.commits import CLUSTER, COMPACT
from hoodie_nb.timeline.timeline import Instant


@dataclass(frozen=True, slots=True, repr=False)
class RolledBack(Result):
    """The commit that a rollback has undone, or would undo, its files and their bytes.

    `requested_time` is that of its instant: None if it was a plan only.
    """

    commit: Commit
    files: tuple[str, ...]
    size_bytes: int
    requested_time: str | None = None


def newest(table: TableHandle) -> str:
    """Return the time of the newest commit now; empty if there is none."""
    table.reload()
    return max(table.timeline.refresh().commit_times, default="")


def rollback(
    table: TableHandle, events: EventLog, commit: object, *, dry_run: bool, seen: str = ""
) -> RolledBack:
    """Undo a commit (None: the newest), which must be the newest one, or return the plan.

    `seen`: the newest one before the call waited for its turn.
    """
    table.reload()
    if not dry_run:
        drop_late(table)
    restoring = table.timeline.listing.pending_of(RESTORE)
    begun = [] if restoring else [plan.instant for plan in planned_rollbacks(table)]
    wanted = commit_as_of(table, commit)
    if seen not in ("", wanted.requested_time):
        raise InvalidConfig(
            f"{seen} was the newest commit of {table.storage.root}; while the rollback waited for "
            f"its turn, another one became it, {wanted.requested_time}: nothing was undone. Call "
            "again to undo that one, or Table.restore to undo all commits after one"
        )
    if dry_run:
        return _plan(table, wanted)
    try:
        return _undone(table, events, wanted, begun if commit is None else [])
    except OSError as error:
        time17 = (begun if commit is None and begun else [wanted])[0].requested_time
        raise WriteFailed(
            f"the rollback of {time17} on {table.storage.root} failed ({error}): call "
            f'table.rollback("{time17}") when the cause is fixed. It undoes no other commit; if '
            f"it says that {time17} is not a completed commit, that one is undone"
        ) from error


def _plan(table: TableHandle, wanted: Instant) -> RolledBack:
    """Return what the rollback of a commit deletes, or raise if it cannot be undone alone."""
    with table.timeline.listed_once():
        _refuse(table, wanted)
        files = sorted(files_of(table, [wanted.requested_time])[wanted.requested_time])
        return RolledBack(Commit.of(table, wanted), tuple(files), size_of(table.storage, files))


def _undone(
    table: TableHandle, events: EventLog, wanted: Instant, begun: Sequence[Instant]
) -> RolledBack:
    coordinator = settled(table, events)
    refuse_unsettled(coordinator)
    if begun:
        raise InvalidConfig(
            f"a rollback of {begun[0].requested_time} was pending on {table.storage.root}, and "
            "is completed now: call again to undo another commit"
        )
    with table.timeline.listed_once():
        plan = _plan(table, wanted)
        done = undo(table, wanted, plan.files, coordinator.sealed.notes(), by_hand=True)
    assert done is not None
    events.emit("commit_undone", instant=wanted.requested_time, files=len(plan.files))
    mark_undone(coordinator, done)
    return replace(plan, requested_time=done.requested_time)


def _refuse(table: TableHandle, wanted: Instant) -> None:
    """Raise InvalidConfig if a commit cannot be undone alone; InvalidTable if files are lost."""
    root = table.storage.root
    time17 = wanted.requested_time
    commits = table.timeline.listing.commits
    if all(commit.requested_time != time17 for commit in commits):
        raise InvalidConfig(f"{time17} is not a completed commit of {root} any more")
    if commits[-1].requested_time != time17:
        raise InvalidConfig(
            f"{time17} is not the newest commit of {root}, which is "
            f"{commits[-1].requested_time}: Table.restore undoes all commits after one"
        )
    if any(instant.requested_time == time17 for instant in saved(table)):
        raise InvalidConfig(
            f"{time17} of {root} has a savepoint: delete it with Table.delete_savepoint first"
        )
    if table.commit_metadata(wanted).operation.lower() in (CLUSTER, COMPACT):
        raise InvalidConfig(
            f"{time17} of {root} only merged files and changed no row: to undo it together with "
            "an earlier commit, call Table.restore"
        )
    if len(commits) > 1:
        plan_restore(table, commits[-2])  # refuses cleaned and lost files
    elif table.timeline.archived():
        raise InvalidConfig(
            f"the commits of {root} before {time17} were archived, so it is not known which files "
            "were visible then: delete or overwrite its rows instead"
        )
