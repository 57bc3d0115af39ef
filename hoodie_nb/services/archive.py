"""`table.archive()`: its dry run and result."""

from dataclasses import dataclass

from hoodie_nb.actions.archive_plan import plan_archive
from hoodie_nb.commit.archiving import archive as execute
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled
from hoodie_nb.services.result import Result


@dataclass(frozen=True, slots=True, repr=False)
class Archived(Result):
    """What was archived, or would be: instants as "time action", oldest first.

    `start` is the first commit that stays on the timeline, `deleted` are base files of no commit
    that readers would show afterwards. `kept_because` says what else keeps commits there.
    """

    instants: tuple[str, ...]
    start: str
    deleted: tuple[str, ...]
    kept_because: str
    done: bool


def archive(table: TableHandle, events: EventLog, *, dry_run: bool) -> Archived:
    """Archive until `hoodie.keep.min.commits` commits stay, or return the plan."""
    coordinator = settled(table, events, dry_run=dry_run)
    if not dry_run:
        table.groups_to_write().listed()  # refuses lost files: nobody would miss them afterwards
    with table.timeline.listed_once():
        plan = plan_archive(table, coordinator.prepared.instant_times(), least_only=True)
        if not dry_run:
            execute(table, plan, events.emit)
    instants = tuple(f"{i.requested_time} {i.action}" for i in plan.instants)
    return Archived(instants, plan.start, plan.orphans, plan.why, done=not dry_run)
