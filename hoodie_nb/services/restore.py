"""`table.restore()`: its dry run and result; checkpoints of streams that it undoes."""

from dataclasses import astuple, dataclass, fields, replace

import pandas as pd

from hoodie_nb.actions.restore_plan import RestorePlan, files_of
from hoodie_nb.actions.savepoints import commit_as_of
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.restoring import plan_restore
from hoodie_nb.commit.restoring import restore as execute
from hoodie_nb.errors import HoodieError, WriteFailed
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.batch import Commit
from hoodie_nb.local.settling import settled
from hoodie_nb.services.result import Result
from hoodie_nb.storage.storage import size_of
from hoodie_nb.timeline.timeline import Instant


@dataclass(frozen=True, slots=True, repr=False)
class Restored(Result):
    """What a restore has undone, or would undo: commits, newest first, and files with their bytes.

    `to` is the newest commit after it; files are paths in the table. `requested_time` is that of
    its instant: None if it was a plan only.
    """

    to: str
    commits: tuple[Commit, ...]
    files: tuple[str, ...]
    size_bytes: int
    requested_time: str | None = None

    def table(self) -> pd.DataFrame:
        """Return the commits, one in each row, newest first."""
        names = [field.name for field in fields(Commit)]
        return pd.DataFrame(map(astuple, self.commits), columns=names)


def restore(table: TableHandle, events: EventLog, to: object, *, dry_run: bool) -> Restored:
    """Undo the commits after `to`, or return the plan.

    Prepared and sealed checkpoints are committed first, so that they are undone like the others.
    """
    coordinator = settled(table, events, dry_run=dry_run)
    if not dry_run:
        refuse_unsettled(coordinator)
    with table.timeline.listed_once():
        plan = plan_restore(table, commit_as_of(table, to))
        shown = _shown(table, plan)
        if dry_run:
            return shown
        try:
            done = execute(table, plan, events.emit, coordinator.sealed.notes())
        except OSError as error:
            raise WriteFailed(
                f"the restore of {table.storage.root} to {plan.to} failed ({error}): call "
                "table.fsck(repair=True) when the cause is fixed, which completes it. If "
                "table.history() has all later commits after that, it had not begun: call "
                "table.restore again"
            ) from error
    mark_undone(coordinator, done)
    return replace(shown, requested_time=done.requested_time)


def mark_undone(coordinator: WriteCoordinator, done: Instant) -> None:
    """Mark the checkpoints that a completed restore or rollback has undone, or leave it."""
    try:
        coordinator.catch_up()
    except (OSError, HoodieError) as error:  # it is complete; the next writer goes on
        values = {"instant": done.requested_time, "why": str(error)}
        coordinator.events.emit("settling_postponed", **values)


def refuse_unsettled(coordinator: WriteCoordinator) -> None:
    """Raise WriteFailed if a checkpoint has a record left: it would be committed again later."""
    coordinator.forget_records()
    left = sorted({r.instant_time for r in coordinator.prepared.all()})
    if left or coordinator.sealed.all():
        raise WriteFailed(
            f"{coordinator.table.storage.root}: a finished checkpoint "
            f"({', '.join(left) or 'sealed'}) could not be settled (see the event "
            "settling_postponed), so nothing was undone: try again"
        )


def _shown(table: TableHandle, plan: RestorePlan) -> Restored:
    commits = tuple(Commit.of(table, instant) for instant in plan.undone)
    files = sorted(path for paths in files_of(table, plan.times).values() for path in paths)
    return Restored(plan.to, commits, tuple(files), size_of(table.storage, files))
