"""`table.clean()`: its arguments, dry run and result.

With a number it looks at all partitions, so it also finds what the automatic cleaning after commits
does not look at again, such as files that somebody has put back. Without one it looks at what has
changed since the last clean, or at everything if that is not known or a savepoint was deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hoodie_nb.actions.clean_plan import Retention, plan_clean
from hoodie_nb.actions.clean_records import last_mark
from hoodie_nb.commit.cleaning import clean as execute
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.local.settling import settled
from hoodie_nb.services.result import Result


@dataclass(frozen=True, slots=True, repr=False)
class Cleaned(Result):
    """What a clean has deleted, or would delete: files as paths in the table, their bytes.

    `requested_time` is that of its instant: None if it was a plan only, or nothing was to be done.
    `earliest_commit` is the first commit that is retained; None if all are, or versions count.
    """

    policy: str
    retained: int
    earliest_commit: str | None
    files: tuple[str, ...]
    size_bytes: int
    requested_time: str | None = None


def clean(
    table: TableHandle, events: EventLog, given: Mapping[str, int | None], *, dry_run: bool
) -> Cleaned:
    """Clean, or return the plan: all partitions by a number, else by the table's options.

    `given` are the numbers by policy, of which one may be given.
    """
    chosen = {policy: number for policy, number in given.items() if number is not None}
    if len(chosen) > 1:
        raise InvalidConfig("give only one of commits, hours and versions")
    for number in chosen.values():
        if type(number) is not int or number < 1:
            raise InvalidConfig(f"{number!r}: give the number to retain as an integer of 1 or more")
    settled(table, events, dry_run=dry_run)
    retention = next((Retention(*item) for item in chosen.items()), Retention.of(table.options))
    with table.timeline.listed_once():
        plan = plan_clean(table, retention, None if chosen else last_mark(table))
        done = None if dry_run else execute(table, plan, events.emit)
    return Cleaned(
        retention.policy,
        retention.number,
        plan.earliest.requested_time if plan.earliest else None,
        tuple(plan.paths),
        plan.size_bytes,
        done.requested_time if done else None,
    )
