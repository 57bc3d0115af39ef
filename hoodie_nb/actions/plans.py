"""Reading the plan of a pending action; the error if the plan is lost or damaged.

*Source:* HoodieCleanerPlan, HoodieRollbackPlan, HoodieRestorePlan.
"""

from collections.abc import Callable
from typing import TypeVar

from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.timeline.timeline import Instant
from hoodie_nb.view.read_handle import ReadHandle

T = TypeVar("T")
_CURES = {  # without a backup; by action
    "clean": "delete its .requested and .inflight files: cleaning will be planned again, and "
    "`fsck` says which earlier times have lost files",
    "restore": "delete its .requested and .inflight files, if the restore is pending, and call "
    "Table.restore again",
    "rollback": "delete its .requested and .inflight files: the rollback of a failed write will "
    "be planned again; one that was called by hand must be called again",
}


def read_plan(table: ReadHandle, pending: Instant, parse: Callable[[bytes], T]) -> T:
    """Return what `parse` makes of an action's plan; InvalidTable if it is lost or damaged."""
    try:
        return parse(table.timeline.read(pending.requested))
    except ConcurrentWriter:
        raise
    except Exception as error:  # a damaged record may have any shape
        raise InvalidTable(
            f"the plan of the {pending.action} {table.storage.root}/"
            f"{table.timeline.path(pending.requested)} cannot be read ({error!r:.200}): restore "
            f"it from a backup. Without one, {_CURES[pending.action]}"
        ) from None
