"""Archiving by hand: move all but the commits that stay anyway to the archive, or show which."""

from dataclasses import dataclass

from hoodie_nb.actions.archive_plan import plan_archive
from hoodie_nb.commit.archiving import archive as execute
from hoodie_nb.display import card, counted
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled


@dataclass(frozen=True, slots=True)
class Archived:
    """What was archived, or would be: instants as "time action", oldest first.

    `start` is the first commit that stays on the timeline, `deleted` are base files of no commit
    that readers would show afterwards. `kept_because` says what else keeps commits there.
    """

    instants: tuple[str, ...]
    start: str
    deleted: tuple[str, ...]
    kept_because: str
    done: bool

    def __repr__(self) -> str:
        verb = "archived" if self.done else "to archive"
        since = f", the timeline starts at {self.start}" if self.start else ""
        why = f", {self.kept_because}" if self.kept_because else ""
        return f"<Archived: {counted(len(self.instants), 'instant')} {verb}{since}{why}>"

    def _repr_html_(self) -> str:
        facts = {
            "instants": len(self.instants),
            "the timeline starts at": self.start or "its first commit",
            "files of no commit": len(self.deleted),
            "more commits stay because": self.kept_because or "nothing more can be archived",
        }
        return card("archive" if self.done else "archive (plan)", facts)


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
